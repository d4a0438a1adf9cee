"""What the paper says of the test functions, and what we say, with the searches that decide it."""

from dataclasses import replace
from math import nan
from typing import Any, Literal

import numpy as np

from adaterm_bench.core.section import Claim
from adaterm_bench.core.trial import Result
from adaterm_bench.reporting.claims import Sentence, correct_families, make_claim
from adaterm_bench.reporting.intervals import Bootstrap, Interval
from adaterm_bench.reporting.pooling import pooled_ratio
from adaterm_bench.reporting.selection import Grid, Values
from adaterm_bench.reporting.statistics import bootstrap_interval, mean, median, ratio_interval, trend

LEAST = 1e-10
FAR = 1000.0  # the distance from which a search counts as diverged
MISSED = 0.1  # the distance from which a minimum counts as missed
MINIMA = {"Rosenbrock": (1.0, 1.0), "McCormick": (-0.54719755, -1.54719755), "Michalewicz": (2.20290552, 1.57079633)}
CONSTANT = 0.1  # relative change of degrees of freedom that are nearly constant
STANDARD = 10.0  # times Adam's error: what still counts as the standard update performance
RELEASED = "At-Adam (as published)"
ONE_SEARCH = "Without noise all seeds are one and the same search, so that there is no interval."

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


def make_claims(
    errors: dict[str, Grid],
    dofs: dict[str, Grid],
    varied: dict[str, Grid],
    arrivals: dict[str, Grid],
    paths: dict[str, dict[str, Result]],
) -> list[Claim]:
    """All claims, from grids by function: from the paper's start with and without noise, and from starts that vary."""
    claims = []
    for name, grid in dofs.items():
        claims += [*_claim_dof_falls(name, grid), *_claim_dof_stays(name, grid)]
    for name, grid in errors.items():
        claims += [*_claim_sensitive(name, grid), *_claim_mitigated(name, grid)]
        claims += _claim_undisturbed(name, grid, varied.get(name))
    claims += [*_claim_robust(errors.get("Rosenbrock")), *_claim_found(errors, varied)]
    claims += _claim_helped(errors.get("Michalewicz"))
    for name, results in paths.items():
        claims += _claim_fast(name, results, arrivals.get(name))
    return correct_families(claims)


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
    values = bound_errors(grid.values["Adam"])
    ratio = pooled_ratio(values[1:], np.broadcast_to(values[0], values[1:].shape), bootstrap=Bootstrap(against=1.0))
    what = "Adam's error with noise in that without, geometric mean over noise levels"
    return [make_claim(ADAM_DEGRADES, f"On {name}, Adam's error grows when noise comes in.", what, ratio, bound=1.0)]


def _claim_mitigated(name: str, grid: Grid) -> list[Claim]:
    noisy = [place for place, level in enumerate(grid.levels) if level > 0.0]
    if not noisy or not {"Adam", "AdaTerm"} <= set(grid.values):
        return []
    rival, ours = (bound_errors(grid.values[method][noisy]) for method in ("Adam", "AdaTerm"))
    ratio = pooled_ratio(rival, ours, bootstrap=Bootstrap(against=1.0))
    sentence = OUR_MCCORMICK if name == "McCormick" else MITIGATED
    text = f"On {name} with noise, AdaTerm's error is below Adam's."
    return [make_claim(sentence, text, "Adam's error in AdaTerm's, geometric mean over noise levels", ratio, bound=1.0)]


def _claim_robust(grid: Grid | None) -> list[Claim]:
    if grid is None or not {"Adam", "AdaTerm"} <= set(grid.values):
        return []
    level = grid.levels[-1]
    ratio = ratio_interval(grid.at("Adam", level), grid.at("AdaTerm", level), mean)
    text = f"On Rosenbrock with {format_share(level)} noise, AdaTerm's error is at least 20 times below Adam's."
    return [make_claim(Sentence(text), text, "Adam's mean error, in AdaTerm's", ratio, bound=20.0)]


def _claim_undisturbed(name: str, fixed: Grid, varied: Grid | None) -> list[Claim]:
    """What AdaTerm costs without noise; the paper sees nothing on two functions, and something on McCormick."""
    if fixed.levels[:1] != [0.0] or not {"Adam", "AdaTerm"} <= set(fixed.values):
        return []
    what = "AdaTerm's error in Adam's, geometric mean"
    pairs = [[bound_errors(grid.at(method, 0.0)) for method in ("AdaTerm", "Adam")] for grid in (fixed, varied) if grid]
    if name == "McCormick":
        ratios = [pooled_ratio(*pair, bootstrap=Bootstrap(against=1.0)) for pair in pairs]
        text = f"on {name} without noise, AdaTerm ends further from the minimum than Adam."
        return _claim_twice(MCCORMICK, text, what, ratios, bound=1.0)
    ratios = [pooled_ratio(*pair, bootstrap=Bootstrap(against=STANDARD)) for pair in pairs]
    text = f"on {name} without noise, AdaTerm's error is at most {STANDARD:g} times Adam's."
    return _claim_twice(UNDISTURBED, text, what, ratios, bound=STANDARD, wants="below", note="The bound is ours.")


def _claim_found(errors: dict[str, Grid], varied: dict[str, Grid]) -> list[Claim]:
    """Whether minima are found without noise."""
    claims = []
    for sentence, function, method, missed in (
        (AT_ADAM_MISSES, "Michalewicz", RELEASED, True),
        (ADATERM_FINDS, "Michalewicz", "AdaTerm", False),
        (OURS_WRITTEN, "Michalewicz", "At-Adam", False),
        (OURS_MISSES, "Rosenbrock", "At-Adam", True),
    ):
        grids = [each[function] for each in (errors, varied) if function in each]
        values = [grid.at(method, 0.0) for grid in grids if method in grid.values and grid.levels[:1] == [0.0]]
        if values:
            intervals = [bootstrap_interval(value, mean, bootstrap=Bootstrap(against=MISSED)) for value in values]
            text = f"without noise, {method} {'misses' if missed else 'finds'} the minimum of {function}."
            wants: Literal["above", "below"] = "above" if missed else "below"
            claims += _claim_twice(sentence, text, "mean error", intervals, bound=MISSED, wants=wants)
    return claims


def _claim_helped(grid: Grid | None) -> list[Claim]:
    """With noise At-Adam as published finds a minimum that it misses without."""
    if grid is None or RELEASED not in grid.values or not grid.levels[-1]:
        return []
    level = grid.levels[-1]
    error = bootstrap_interval(grid.at(RELEASED, level), mean, bootstrap=Bootstrap(against=MISSED))
    text = f"With {format_share(level)} noise, {RELEASED} finds the minimum of Michalewicz."
    return [make_claim(AT_ADAM_FINDS, text, "mean error", error, bound=MISSED, wants="below")]


def _claim_fast(name: str, paths: dict[str, Result], arrivals: Grid | None) -> list[Claim]:
    claims = []
    for rival in ("Adam", "AdaBelief", RELEASED):
        pairs = []
        if {rival, "AdaTerm"} <= set(paths):
            pairs.append([np.array([find_arrival(paths[method], name)]) for method in (rival, "AdaTerm")])
        if arrivals is not None and {rival, "AdaTerm"} <= set(arrivals.values):
            pairs.append([arrivals.at(method, 0.0) for method in (rival, "AdaTerm")])
        if not pairs:
            continue
        ratios = [ratio_interval(pair[0], pair[1], median, bootstrap=Bootstrap(against=1.0)) for pair in pairs]
        text = f"on {name} without noise, AdaTerm comes near the minimum in fewer steps than {rival}."
        what = f"median steps to within {MISSED:g} of the minimum, {rival} to AdaTerm"
        claims += _claim_twice(FASTER, text, what, ratios, bound=1.0)
    return claims


def find_arrival(result: Result, name: str) -> float:
    """The first step of a kept path that is near the minimum; infinite if there is none."""
    settings, path = result.trial.settings, np.array(result.outcome["path"])
    marks = sorted(set(np.geomspace(1, settings["steps"], settings["kept"]).round().astype(int).tolist()))
    near = np.linalg.norm(path[1:] - np.array(MINIMA[name]), axis=1) < MISSED
    return float(marks[int(np.argmax(near))]) if near.any() else np.inf


def _claim_twice(sentence: Sentence, text: str, what: str, intervals: list[Interval], **options: Any) -> list[Claim]:
    """From the paper's start, of which there is one search and no interval; and, as ours, from starts near it."""
    same, *moved = intervals
    note = options.pop("note", "")
    exact = same._replace(low=same.estimate, high=same.estimate, seeds=0, chance=nan)
    claim = make_claim(sentence, f"{text[:1].upper()}{text[1:]}", what, exact, **options)
    claims = [replace(claim, note=f"{ONE_SEARCH} {note}".strip())]
    ours = Sentence(f"From other starts, too: {sentence.family}")
    elsewhere = f"From other starts, {text}"
    return [*claims, *(make_claim(ours, elsewhere, what, interval, note=note, **options) for interval in moved)]


def bound_errors(values: Values) -> Values:
    """Errors to be compared in logarithms."""
    return np.where(values > FAR, np.inf, np.maximum(values, LEAST))


def format_share(level: float) -> str:
    """A noise level in per cent."""
    return f"{100.0 * level:g} %"
