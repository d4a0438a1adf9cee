"""The paper's experiments, and whatever you add: trials that are values, results that are never lost or run twice."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adaterm_bench.core.experiment import Experiment, grid, setting
    from adaterm_bench.core.section import Claim, Figure, Section, Table
    from adaterm_bench.core.trial import Result, Trial
    from adaterm_bench.methods import PAPER_METHODS, make_optimizer, make_stepper, register
    from adaterm_bench.reporting.selection import select
    from adaterm_bench.reporting.statistics import mean_std, median, paired_difference, ratio_interval

__all__ = [
    "PAPER_METHODS",
    "Claim",
    "Experiment",
    "Figure",
    "Result",
    "Section",
    "Table",
    "Trial",
    "grid",
    "make_optimizer",
    "make_stepper",
    "mean_std",
    "median",
    "paired_difference",
    "ratio_interval",
    "register",
    "select",
    "setting",
]

_MODULES = {
    "core.experiment": ("Experiment", "grid", "setting"),
    "core.section": ("Claim", "Figure", "Section", "Table"),
    "core.trial": ("Result", "Trial"),
    "methods": ("PAPER_METHODS", "make_optimizer", "make_stepper", "register"),
    "reporting.selection": ("select",),
    "reporting.statistics": ("mean_std", "median", "paired_difference", "ratio_interval"),
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: most commands need neither torch nor NumPy."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"adaterm_bench.{module}"), name)
    raise AttributeError(f"module 'adaterm_bench' has no attribute {name!r}")
