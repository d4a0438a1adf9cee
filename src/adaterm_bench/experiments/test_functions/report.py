"""What the report shows of the test functions."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from adaterm_bench.core.section import Figure, Section, Table
from adaterm_bench.core.trial import Result
from adaterm_bench.experiments.test_functions.claims import (
    FAR,
    LEAST,
    MINIMA,
    MISSED,
    bound_errors,
    format_share,
    make_claims,
)
from adaterm_bench.methods import PAPER_METHODS
from adaterm_bench.reporting import figures
from adaterm_bench.reporting.claims import FEWER, Check, tabulate_checks
from adaterm_bench.reporting.comparison import compare_at_levels
from adaterm_bench.reporting.pooling import pooled_ratio
from adaterm_bench.reporting.selection import Grid, Values, select
from adaterm_bench.reporting.statistics import mean_std, median
from adaterm_bench.reporting.text import format_number, tidy

FUNCTIONS = ("Rosenbrock", "McCormick", "Michalewicz")
MAIN = ("Adam", "AdaBelief", "RAdam", "t-Adam", "At-Adam", "At-Adam (as published)", "AdaTerm")
ON_PATHS = ("Adam", "At-Adam (as published)", "AdaTerm", "AdaBelief")  # in the order of the paper's figures
SURFACES: dict[
    str, tuple[Callable[[Values, Values], Values], tuple[float, float], tuple[float, float, float, float]]
] = {
    "Rosenbrock": (lambda x, y: 100 * (y - x**2) ** 2 + (x - 1) ** 2, MINIMA["Rosenbrock"], (-2.5, 2.0, -0.5, 4.5)),
    "McCormick": (
        lambda x, y: np.sin(x + y) + (x - y) ** 2 - 1.5 * x + 2.5 * y + 1,
        MINIMA["McCormick"],
        (-2.0, 4.5, -3.5, 3.0),
    ),
    "Michalewicz": (
        lambda x, y: -np.sin(x) * np.sin(x**2 / np.pi) ** 20 - np.sin(y) * np.sin(2 * y**2 / np.pi) ** 20,
        MINIMA["Michalewicz"],
        (0.8, 2.8, 0.8, 2.2),
    ),
}
"""Each function, its minimum, and the part of the plane that is shown."""


def section(results: list[Result]) -> Section:
    """Errors and degrees of freedom against noise, paths, and the paper's claims."""
    present = [name for name in FUNCTIONS if any(result.trial.condition["function"] == name for result in results)]
    fixed = [result for result in results if "start" not in result.trial.condition]
    moved = [result for result in results if "start" in result.trial.condition]
    errors, dofs = (_select_all(fixed, present, outcome) for outcome in ("distance", "dof"))
    varied, arrivals = (_select_all(moved, present, outcome) if moved else {} for outcome in ("distance", "arrival"))
    return Section(
        "Test functions",
        "The search for a minimum where a share of the steps takes its gradient beside the point. The paper shows "
        "figures of these results, and no numbers. Errors are distances to the minimum after the last step. Without "
        "noise all seeds are one and the same search, so what is claimed of that is tested from starts that vary, too: "
        "by up to 0.1 in each variable, another start for each seed.",
        tables=[
            *(_make_table(name, grid) for name, grid in errors.items()),
            *([_tabulate_varied(varied, arrivals)] if varied else []),
            *(table for name, grid in errors.items() for table in compare_at_levels(name, grid, grid.levels[-1:])),
            *tabulate_checks(
                {
                    f"errors on {name}, all noise levels": Check(
                        bound_errors(grid.values["AdaTerm"][1:]), partial(pooled_ratio, bootstrap=FEWER), 1.0
                    )
                    for name, grid in errors.items()
                    if "AdaTerm" in grid.values and len(grid.levels) > 1
                }
            ),
        ],
        figures=[
            *(_draw_errors(name, grid) for name, grid in errors.items()),
            *(_draw_against_noise(f"Degrees of freedom on {name}", grid, "final dof") for name, grid in dofs.items()),
            *(figure for name in present for figure in _draw_paths(name, fixed)),
        ],
        claims=make_claims(errors, dofs, varied, arrivals, {name: _find_paths(fixed, name) for name in present}),
    )


def _select_all(results: list[Result], functions: list[str], outcome: str) -> dict[str, Grid]:
    """An outcome on each function that has any of these results."""
    grids = {name: select(results, outcome, "noise", list(PAPER_METHODS), function=name) for name in functions}
    return {name: grid for name, grid in grids.items() if grid.seeds}


def _find_paths(results: list[Result], name: str) -> dict[str, Result]:
    """The searches without noise whose paths were kept, by method."""
    return {
        result.trial.method: result
        for result in results
        if {"function": name, "noise": 0.0}.items() <= result.trial.condition.items() and "path" in result.outcome
    }


def _tabulate_varied(errors: dict[str, Grid], arrivals: dict[str, Grid]) -> Table:
    methods = list(dict.fromkeys(method for grid in errors.values() for method in grid.values))
    rows = []
    for method in methods:
        cells = []
        for name, grid in errors.items():
            present = method in grid.values
            cells.append(_format_cell(grid.at(method, 0.0)) if present else "")
            cells.append(format_number(float(median(arrivals[name].at(method, 0.0)))) if present else "")
        rows.append([method, *cells])
    columns = [f"{name}: {what}" for name in errors for what in ("error", "steps")]
    note = (
        f"Mean and standard deviation of the error, and the median of the steps to within {MISSED:g} of the minimum, "
        "over seeds whose starts vary by up to 0.1 in each variable. ∞: most never came there."
    )
    return Table("Without noise, from starts that vary", ["method", *columns], rows, note)


def _make_table(name: str, grid: Grid) -> Table:
    rows = [[method, *map(_format_cell, values)] for method, values in grid.values.items()]
    note = (
        f"Mean and standard deviation of {len(grid.seeds)} trials, without those that diverged: that ended more than "
        f"{FAR:g} away.{grid.note}"
    )
    if "RAdam" in grid.values and not (grid.values["RAdam"] <= FAR).all():
        note += " RAdam does, because its first steps are not scaled, and the slope is steep here."
    return Table(f"{name}: error", ["method", *(f"{level:.3g} %" for level in _format_percent(grid))], rows, note)


def _format_cell(values: Values) -> str:
    """Mean and standard deviation, without the latter where all trials are the same."""
    mean, std, finished, diverged = mean_std(np.where(values > FAR, np.nan, values))
    notes = [f"{diverged} diverged"] if diverged else []
    if finished:
        notes.insert(0, tidy(f"{mean:.2g} ± {std:.1g}" if std > 1e-9 * mean else f"{mean:.2g}"))
    return ", ".join(notes)


def _format_percent(grid: Grid) -> list[float]:
    return [round(100.0 * level, 6) for level in grid.levels]


def _draw_against_noise(title: str, grid: Grid, ylabel: str) -> Figure:
    values = {method: value for method, value in grid.values.items() if method in MAIN or method not in PAPER_METHODS}
    percent = _format_percent(grid)
    caption = "Lines: medians over trials; bands: quartiles."
    return Figure(title, lambda: figures.draw_against_noise(percent, values, ylabel, xlabel="noise, %"), caption)


def _draw_errors(name: str, grid: Grid) -> Figure:
    values = {method: np.where(value > FAR, np.inf, np.maximum(value, LEAST)) for method, value in grid.values.items()}
    figure = _draw_against_noise(f"Error on {name}", grid._replace(values=values), "distance to the minimum")
    return replace(
        figure, caption=f"{figure.caption} Crosses: diverged. Errors below {tidy(str(LEAST))} are drawn there."
    )


def _draw_paths(name: str, results: list[Result]) -> list[Figure]:
    """The first seed's paths, without noise and with most."""
    by_method = {
        (result.trial.method, result.trial.condition["noise"]): np.array(result.outcome["path"])
        for result in results
        if result.trial.condition["function"] == name and result.trial.method in ON_PATHS and "path" in result.outcome
    }
    levels = sorted({noise for _, noise in by_method})
    chosen = [(method, noise) for noise in sorted({*levels[:1], *levels[-1:]}) for method in ON_PATHS]
    paths = {
        f"{method}\n{format_share(noise)} noise": by_method[method, noise]
        for method, noise in chosen
        if (method, noise) in by_method
    }
    if not paths:
        return []
    surface, optimum, limits = SURFACES[name]
    caption = "The first seed's path; the colour is the logarithm of the step. The star is the minimum."
    return [
        Figure(
            f"Paths on {name}",
            lambda: figures.draw_paths(
                paths, surface, limits=limits, optimum=optimum, log=name == "Rosenbrock", columns=len(ON_PATHS)
            ),
            caption,
        )
    ]
