"""Noise-robust optimizers for PyTorch: AdaTerm and the t-family."""

from adaterm.diagnostics import Monitor, Summary
from adaterm.methods import AdaBelief, AdaTerm, AtAdaBelief, AtAdam, TAdaBelief, TAdam
from adaterm.rules import PAPER, Statistics

__version__ = "0.1.0"
__all__ = [
    "PAPER",
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
