"""What the report shows of the test functions."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np

from adaterm_bench.core.section import Claim, Figure, Section, Table
from adaterm_bench.core.trial import Result
from adaterm_bench.methods import PAPER_METHODS
from adaterm_bench.reporting import figures
from adaterm_bench.reporting.claims import FEWER, Check, Sentence, correct_families, make_claim, tabulate_checks
from adaterm_bench.reporting.comparison import compare_at_levels
from adaterm_bench.reporting.intervals import Bootstrap
from adaterm_bench.reporting.pooling import pooled_ratio
from adaterm_bench.reporting.selection import Grid, Values, select
from adaterm_bench.reporting.statistics import bootstrap_interval, mean, mean_std, median, ratio_interval, trend
from adaterm_bench.reporting.text import format_number

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
CONSTANT = 0.1  # relative change of degrees of freedom that are nearly constant
STANDARD = 10.0  # times Adam's error: what still counts as the standard update performance
RELEASED = "At-Adam (as published)"
VARIED_STARTS = "From starts that vary by up to 0.1, one for each seed: without noise nothing else differs."

FIGURE = "a figure without numbers"
DOF_FALLS = Sentence("AdaTerm's degrees of freedom fall as noise rises.", "section 5.1, figure 9", FIGURE)
DOF_STAYS = Sentence(
    "At-Adam's degrees of freedom are nearly constant, whatever the noise.", "section 5.1, figure 9", FIGURE
)
ADAM_DEGRADES = Sentence("Adam gets much worse when noise comes in.", "section 5.1, figure 8", FIGURE)
MITIGATED = Sentence(
    "On Rosenbrock and Michalewicz AdaTerm mitigates the effects of noise.", "section 5.1, figure 8", FIGURE
)
UNDISTURBED = Sentence(
    "On Rosenbrock and Michalewicz AdaTerm keeps the standard update performance.", "section 5.1, figure 8", FIGURE
)
MCCORMICK = Sentence(
    "On McCormick with little noise AdaTerm is less accurate.", "section 5.1, figure 8; appendix C", FIGURE
)
AT_ADAM_MISSES = Sentence(
    "At-Adam does not find the minimum of Michalewicz.", "section 5.1, figure 8; appendix C", FIGURE
)
AT_ADAM_FINDS = Sentence("With noise, At-Adam finds the minimum of Michalewicz.", "appendix C", FIGURE)
ADATERM_FINDS = Sentence("AdaTerm finds the minimum of Michalewicz in the end.", "appendix C", FIGURE)
FASTER = Sentence("AdaTerm is faster than the others.", "appendix C", "figures of single paths")
OUR_MCCORMICK = Sentence("On McCormick, too, AdaTerm mitigates the effects of noise.")
OURS_WRITTEN = Sentence("At-Adam as written finds the minimum of Michalewicz without noise.")
OURS_MISSES = Sentence("At-Adam as written misses the minimum of Rosenbrock without noise.")


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
        "noise all seeds are one and the same search, so what is claimed of that is tested from starts that vary.",
        tables=[
            *(_make_table(name, grid) for name, grid in errors.items()),
            *([_tabulate_varied(varied, arrivals)] if varied else []),
            *(table for name, grid in errors.items() for table in compare_at_levels(name, grid, grid.levels[-1:])),
            *tabulate_checks(
                {
                    f"errors on {name}, all noise levels": Check(
                        _bound_errors(grid.values["AdaTerm"][1:]), partial(pooled_ratio, bootstrap=FEWER), 1.0
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
        claims=_make_claims(errors, dofs, varied, arrivals),
    )


def _select_all(results: list[Result], functions: list[str], outcome: str) -> dict[str, Grid]:
    """An outcome on each function that has any of these results."""
    grids = {name: select(results, outcome, "noise", list(PAPER_METHODS), function=name) for name in functions}
    return {name: grid for name, grid in grids.items() if grid.seeds}


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


def _make_claims(
    errors: dict[str, Grid], dofs: dict[str, Grid], varied: dict[str, Grid], arrivals: dict[str, Grid]
) -> list[Claim]:
    claims = [
        claim for name, grid in dofs.items() for claim in (*_claim_dof_falls(name, grid), *_claim_dof_stays(name, grid))
    ]
    for name, grid in errors.items():
        claims += [*_claim_sensitive(name, grid), *_claim_mitigated(name, grid)]
    claims += _claim_robust(errors.get("Rosenbrock"))
    claims += [claim for name, grid in varied.items() for claim in _claim_undisturbed(name, grid, errors[name])]
    claims += _claim_found(varied, errors)
    return correct_families([*claims, *(claim for name, grid in arrivals.items() for claim in _claim_fast(name, grid))])


def _claim_dof_falls(name: str, grid: Grid) -> list[Claim]:
    if "AdaTerm" not in grid.values or len(grid.levels) < 2:
        return []
    correlation = trend(grid.levels, grid.values["AdaTerm"], bootstrap=Bootstrap(against=0.0))
    text = f"On {name}, AdaTerm's degrees of freedom fall as noise rises."
    note = "Without a width: in every draw of seeds the medians have this order" * (correlation.low == correlation.high)
    return [make_claim(DOF_FALLS, text, "rank correlation of noise and dof", correlation, wants="below", note=note)]


def _claim_dof_stays(name: str, grid: Grid) -> list[Claim]:
    if RELEASED not in grid.values or len(grid.levels) < 2:
        return []
    values = grid.values[RELEASED]
    ratio = ratio_interval(values[-1], values[0], mean, better="higher")
    text = f"On {name}, the degrees of freedom of At-Adam as published do not follow the noise."
    what = "mean dof with most noise, in that with least"
    return [make_claim(DOF_STAYS, text, what, ratio, bound=1.0 + CONSTANT, wants="within")]


def _claim_sensitive(name: str, grid: Grid) -> list[Claim]:
    if "Adam" not in grid.values or grid.levels[:1] != [0.0] or len(grid.levels) < 2:
        return []
    values = _bound_errors(grid.values["Adam"])
    ratio = pooled_ratio(values[1:], np.broadcast_to(values[0], values[1:].shape), bootstrap=Bootstrap(against=1.0))
    what = "Adam's error with noise in that without, geometric mean over noise levels"
    return [make_claim(ADAM_DEGRADES, f"On {name}, Adam's error grows when noise comes in.", what, ratio, bound=1.0)]


def _claim_mitigated(name: str, grid: Grid) -> list[Claim]:
    noisy = [place for place, level in enumerate(grid.levels) if level > 0.0]
    if not noisy or not {"Adam", "AdaTerm"} <= set(grid.values):
        return []
    rival, ours = (_bound_errors(grid.values[method][noisy]) for method in ("Adam", "AdaTerm"))
    ratio = pooled_ratio(rival, ours, bootstrap=Bootstrap(against=1.0))
    sentence = OUR_MCCORMICK if name == "McCormick" else MITIGATED
    text = f"On {name} with noise, AdaTerm's error is below Adam's."
    return [make_claim(sentence, text, "Adam's error in AdaTerm's, geometric mean over noise levels", ratio, bound=1.0)]


def _claim_robust(grid: Grid | None) -> list[Claim]:
    if grid is None or not {"Adam", "AdaTerm"} <= set(grid.values):
        return []
    level = grid.levels[-1]
    ratio = ratio_interval(grid.at("Adam", level), grid.at("AdaTerm", level), mean)
    text = f"On Rosenbrock with {_format_share(level)} noise, AdaTerm's error is at least 20 times below Adam's."
    return [make_claim(Sentence(text), text, "Adam's mean error, in AdaTerm's", ratio, bound=20.0)]


def _claim_undisturbed(name: str, grid: Grid, fixed: Grid) -> list[Claim]:
    """What AdaTerm costs without noise; the paper says nothing on two functions, and something on McCormick."""
    if not {"Adam", "AdaTerm"} <= set(grid.values):
        return []
    ours, rival = (_bound_errors(grid.values[method]) for method in ("AdaTerm", "Adam"))
    note = f"{VARIED_STARTS} {_recall(fixed, 'Adam')} {_recall(fixed, 'AdaTerm')}"
    what = "AdaTerm's error in Adam's, geometric mean"
    if name == "McCormick":
        ratio = pooled_ratio(ours, rival, bootstrap=Bootstrap(against=1.0))
        text = f"On {name} without noise, AdaTerm ends further from the minimum than Adam."
        return [make_claim(MCCORMICK, text, what, ratio, bound=1.0, note=note)]
    ratio = pooled_ratio(ours, rival, bootstrap=Bootstrap(against=STANDARD))
    text = f"On {name} without noise, AdaTerm's error is at most {STANDARD:g} times Adam's."
    return [
        make_claim(UNDISTURBED, text, what, ratio, bound=STANDARD, wants="below", note=f"{note} The bound is ours.")
    ]


def _claim_found(varied: dict[str, Grid], errors: dict[str, Grid]) -> list[Claim]:
    """Whether minima are found, from starts that vary, or with noise."""
    claims = []
    for sentence, function, method, noise, missed in (
        (AT_ADAM_MISSES, "Michalewicz", RELEASED, False, True),
        (AT_ADAM_FINDS, "Michalewicz", RELEASED, True, False),
        (ADATERM_FINDS, "Michalewicz", "AdaTerm", False, False),
        (OURS_WRITTEN, "Michalewicz", "At-Adam", False, False),
        (OURS_MISSES, "Rosenbrock", "At-Adam", False, True),
    ):
        grid, fixed = (errors if noise else varied).get(function), errors.get(function)
        if grid is None or fixed is None or method not in grid.values:
            continue
        level = grid.levels[-1]
        error = bootstrap_interval(grid.at(method, level), mean, bootstrap=Bootstrap(against=MISSED))
        verb = "misses" if missed else "finds"
        text = f"With {_format_share(level)} noise, {method} {verb} the minimum of {function}."
        note = "" if noise else f"{VARIED_STARTS} {_recall(fixed, method)}"
        wants: Literal["above", "below"] = "above" if missed else "below"
        claims.append(make_claim(sentence, text, "mean error", error, bound=MISSED, note=note, wants=wants))
    return claims


def _claim_fast(name: str, grid: Grid) -> list[Claim]:
    claims = []
    for rival in ("Adam", "AdaBelief", RELEASED):
        if {rival, "AdaTerm"} <= set(grid.values):
            first, second = grid.at(rival, 0.0), grid.at("AdaTerm", 0.0)
            ratio = ratio_interval(first, second, median, bootstrap=Bootstrap(against=1.0))
            text = f"On {name} without noise, AdaTerm comes near the minimum in fewer steps than {rival}."
            what = f"median steps to within {MISSED:g} of the minimum, {rival} to AdaTerm"
            claims.append(make_claim(FASTER, text, what, ratio, bound=1.0, note=VARIED_STARTS))
    return claims


def _bound_errors(values: Values) -> Values:
    """Errors to be compared in logarithms."""
    return np.where(values > FAR, np.inf, np.maximum(values, LEAST))


def _recall(fixed: Grid, method: str) -> str:
    """What the paper's start gives, which is one and the same search for all seeds."""
    if method not in fixed.values or fixed.levels[:1] != [0.0]:
        return ""
    return f"From the paper's start alone, {method}'s error is {format_number(float(fixed.at(method, 0.0)[0]))}."


def _format_share(level: float) -> str:
    return f"{100.0 * level:g} %"
