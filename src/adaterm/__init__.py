"""Noise-robust optimizers for PyTorch: RobustAdamW, AdaTerm and the t-family; `adaterm.optax` has them for JAX."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adaterm.diagnostics import Monitor, Summary
    from adaterm.equations import BatchStatistics, Statistics
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
    "Summary",
    "TAdaBelief",
    "TAdam",
]
_ELSEWHERE = {
    "BatchStatistics": "equations",
    "Monitor": "diagnostics",
    "Statistics": "equations",
    "Summary": "diagnostics",
}
"""The modules of names that are not in `optimizers`."""


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is: JAX does without torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_ELSEWHERE.get(name, 'optimizers')}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
