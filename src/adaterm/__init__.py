"""Noise-robust optimizers for PyTorch: RobustAdamW, AdaTerm and the t-family; `adaterm.optax` has them for JAX."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adaterm.equations import BatchStatistics, Statistics
    from adaterm.monitor import Monitor
    from adaterm.optimizers import AdaBelief, AdaTerm, AtAdaBelief, AtAdam, RobustAdamW, TAdaBelief, TAdam

__version__ = "0.1.0"
__all__ = [
    "AdaBelief",
    "AdaTerm",
    "AtAdaBelief",
    "AtAdam",
    "BatchStatistics",
    "Monitor",
    "RobustAdamW",
    "Statistics",
    "TAdaBelief",
    "TAdam",
]
_MODULES = {
    "equations": ("BatchStatistics", "Statistics"),
    "monitor": ("Monitor",),
    "optimizers": ("AdaBelief", "AdaTerm", "AtAdaBelief", "AtAdam", "RobustAdamW", "TAdaBelief", "TAdam"),
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: `adaterm.optax` does without torch."""
    for module, names in _MODULES.items():
        if name in names:
            value = globals()[name] = getattr(import_module(f"adaterm.{module}"), name)
            return value
    raise AttributeError(f"module 'adaterm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
