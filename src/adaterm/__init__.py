"""Noise-robust optimizers for PyTorch: RobustAdamW, AdaTerm and the t-family; `adaterm.optax` has them for JAX."""

import typing as _typing  # with underscores, so that editors do not offer them as names of adaterm
from importlib import import_module as _import_module
from importlib.util import find_spec as _find_spec

__version__ = "0.1.0"
_MODULES = {
    "equations": ("BatchStatistics", "Statistics"),
    "judge": ("BatchJudge",),
    "loss_judge": ("LossJudge",),
    "monitor": ("Monitor",),
    "optimizers": ("AdaBelief", "AdaTerm", "AtAdaBelief", "AtAdam", "RobustAdamW", "TAdaBelief", "TAdam"),
}
__all__ = sorted(name for names in _MODULES.values() for name in names)

if _typing.TYPE_CHECKING:  # the same names once more; `as` tells type checkers that they are public
    from adaterm.equations import BatchStatistics as BatchStatistics
    from adaterm.equations import Statistics as Statistics
    from adaterm.judge import BatchJudge as BatchJudge
    from adaterm.loss_judge import LossJudge as LossJudge
    from adaterm.monitor import Monitor as Monitor
    from adaterm.optimizers import AdaBelief as AdaBelief
    from adaterm.optimizers import AdaTerm as AdaTerm
    from adaterm.optimizers import AtAdaBelief as AtAdaBelief
    from adaterm.optimizers import AtAdam as AtAdam
    from adaterm.optimizers import RobustAdamW as RobustAdamW
    from adaterm.optimizers import TAdaBelief as TAdaBelief
    from adaterm.optimizers import TAdam as TAdam
else:  # type checkers would take any name for one of the package's

    def __getattr__(name: str) -> _typing.Any:
        """Import a public name or a module when it is first used: `adaterm.optax` must not import torch."""
        for module, names in _MODULES.items():
            if name in names:
                value = globals()[name] = getattr(_import_module(f"adaterm.{module}"), name)
                return value
        if _find_spec(f"adaterm.{name}"):
            return _import_module(f"adaterm.{name}")
        raise AttributeError(f"module 'adaterm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
