"""What the report shows of the test functions."""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import numpy as np

from adaterm_bench.core.section import Claim, Figure, Section, Table
from adaterm_bench.core.trial import Result
from adaterm_bench.methods import PAPER_METHODS
from adaterm_bench.reporting import figures
from adaterm_bench.reporting.comparison import compare_at_levels
from adaterm_bench.reporting.selection import Grid, Values, select
from adaterm_bench.reporting.statistics import bootstrap_interval, mean, mean_std, ratio_interval, trend

FUNCTIONS = ("Rosenbrock", "McCormick", "Michalewicz")
MAIN = ("Adam", "AdaBelief", "RAdam", "t-Adam", "At-Adam", "At-Adam (as published)", "AdaTerm")
ON_PATHS = ("Adam", "At-Adam (as published)", "AdaTerm")
SURFACES: dict[
    str, tuple[Callable[[Values, Values], Values], tuple[float, float], tuple[float, float, float, float]]
] = {
    "Rosenbrock": (lambda x, y: 100 * (y - x**2) ** 2 + (x - 1) ** 2, (1.0, 1.0), (-2.5, 2.0, -0.5, 4.5)),
    "McCormick": (
        lambda x, y: np.sin(x + y) + (x - y) ** 2 - 1.5 * x + 2.5 * y + 1,
        (-0.54719755, -1.54719755),
        (-2.0, 4.5, -3.5, 3.0),
    ),
    "Michalewicz": (
        lambda x, y: -np.sin(x) * np.sin(x**2 / np.pi) ** 20 - np.sin(y) * np.sin(2 * y**2 / np.pi) ** 20,
        (2.20290552, 1.57079633),
        (0.8, 2.8, 0.8, 2.2),
    ),
}
"""Each function, its minimum, and the part of the plane that is shown."""
LEAST = 1e-10
FAR = 1000.0  # the distance from which a search counts as diverged
MISSED = 0.1  # the distance from which a minimum counts as missed


def section(results: list[Result]) -> Section:
    """Errors and degrees of freedom against noise, paths, and the paper's claims."""
    present = [name for name in FUNCTIONS if any(result.trial.condition["function"] == name for result in results)]
    errors = {name: select(results, "distance", "noise", list(PAPER_METHODS), function=name) for name in present}
    dofs = {name: select(results, "dof", "noise", list(PAPER_METHODS), function=name) for name in present}
    return Section(
        "Test functions",
        "The search for a minimum where a share of the steps takes its gradient beside the point. The paper shows "
        "figures of these results, and no numbers. Errors are distances to the minimum after the last step.",
        tables=[
            *(_make_table(name, grid) for name, grid in errors.items()),
            *(table for name, grid in errors.items() for table in compare_at_levels(name, grid, grid.levels[-1:])),
        ],
        figures=[
            *(_draw_errors(name, grid) for name, grid in errors.items()),
            *(_draw_against_noise(f"Degrees of freedom on {name}", grid, "final dof") for name, grid in dofs.items()),
            *(figure for name in present for figure in _draw_paths(name, results)),
        ],
        claims=[claim for claim in _make_claims(errors, dofs) if claim is not None],
    )


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
        notes.insert(0, f"{mean:.2g} ± {std:.1g}" if std > 1e-9 * mean else f"{mean:.2g}")
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
    return replace(figure, caption=f"{figure.caption} Crosses: diverged. Errors below {LEAST:g} are drawn there.")


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
        f"{method}\n{_format_share(noise)} noise": by_method[method, noise]
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
            lambda: figures.draw_paths(paths, surface, limits=limits, optimum=optimum, log=name == "Rosenbrock"),
            caption,
        )
    ]


def _make_claims(errors: dict[str, Grid], dofs: dict[str, Grid]) -> list[Claim | None]:
    claims = [_claim_dof_falls(name, grid) for name, grid in dofs.items()]
    claims += [_claim_dof_stays(name, grid) for name, grid in dofs.items()]
    return [
        *claims,
        *_claim_robust(errors.get("Rosenbrock")),
        *_claim_missed(errors.get("Michalewicz")),
        *_claim_slow(errors.get("McCormick")),
    ]


def _claim_dof_falls(name: str, grid: Grid) -> Claim | None:
    if "AdaTerm" not in grid.values or len(grid.levels) < 2:
        return None
    correlation = trend(grid.levels, grid.values["AdaTerm"])
    text = f"On {name}, AdaTerm's degrees of freedom fall as noise rises."
    return Claim(text, "rank correlation of noise and dof", *correlation[:3], note=correlation.note, wants="below")


def _claim_dof_stays(name: str, grid: Grid) -> Claim | None:
    method = "At-Adam (as published)"
    if method not in grid.values or len(grid.levels) < 2:
        return None
    values, most = grid.values[method], 0.1
    ratio = ratio_interval(values[-1], values[0], mean, better="higher")
    changes = sorted((abs(ratio.low - 1.0), abs(ratio.high - 1.0)))
    return Claim(
        f"On {name}, the degrees of freedom of At-Adam as published do not follow the noise.",
        "relative change of the mean dof from least to most noise",
        abs(ratio.estimate - 1.0),
        0.0 if ratio.low <= 1.0 <= ratio.high else changes[0],
        changes[1],
        bound=most,
        note=ratio.note,
        wants="below",
    )


def _claim_robust(grid: Grid | None) -> list[Claim | None]:
    if grid is None or not {"Adam", "AdaTerm"} <= set(grid.values):
        return []
    level = grid.levels[-1]
    ratio = ratio_interval(grid.at("Adam", level), grid.at("AdaTerm", level), mean)
    text = f"On Rosenbrock with {_format_share(level)} noise, AdaTerm's error is at least 20 times below Adam's."
    return [Claim(text, "Adam's mean error, in AdaTerm's", *ratio[:3], bound=20.0, note=ratio.note)]


def _claim_missed(grid: Grid | None) -> list[Claim | None]:
    if grid is None:
        return []
    claims: list[Claim | None] = []
    wants: Literal["above", "below"]
    for method, level, missed in (
        ("At-Adam (as published)", grid.levels[0], True),
        ("At-Adam (as published)", grid.levels[-1], False),
        ("At-Adam", grid.levels[0], False),
        ("AdaTerm", grid.levels[0], False),
    ):
        if method not in grid.values:
            continue
        error = bootstrap_interval(grid.at(method, level), mean)
        text = (
            f"With {_format_share(level)} noise, {method} {'misses' if missed else 'finds'} the minimum of Michalewicz."
        )
        note, wants = error.note or _explain_sameness(level), "above" if missed else "below"
        claims.append(Claim(text, "mean error", *error[:3], bound=MISSED, note=note, wants=wants))
    return claims


def _claim_slow(grid: Grid | None) -> list[Claim | None]:
    if grid is None or not {"Adam", "AdaTerm"} <= set(grid.values):
        return []
    level = grid.levels[0]
    ratio = ratio_interval(grid.at("AdaTerm", level), grid.at("Adam", level), mean)
    text = f"On McCormick with {_format_share(level)} noise, AdaTerm ends further from the minimum than Adam."
    note = ratio.note or _explain_sameness(level)
    return [Claim(text, "AdaTerm's mean error, in Adam's", *ratio[:3], bound=1.0, note=note)]


def _format_share(level: float) -> str:
    return f"{100.0 * level:g} %"


def _explain_sameness(level: float) -> str:
    return "" if level else "Without noise all trials are one and the same, and the interval has no width."
