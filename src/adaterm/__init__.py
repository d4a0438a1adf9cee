"""Noise-robust optimizers for PyTorch: AdaTerm and the t-family."""

from adaterm.diagnostics import Monitor, Summary
from adaterm.equations import Statistics
from adaterm.optimizers import AdaBelief, AdaTerm, AtAdaBelief, AtAdam, TAdaBelief, TAdam

__version__ = "0.1.0"
__all__ = [
    "AdaBelief",
    "AdaTerm",
    "AtAdaBelief",
    "AtAdam",
    "Monitor",
    "Statistics",
    "Summary",
    "TAdaBelief",
    "TAdam",
]
