"""Noise-robust optimizers for PyTorch: RobustAdamW, AdaTerm and the t-family."""

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
