"""What the paper says of the test functions, and what we say, with the searches that decide it."""

from dataclasses import replace
from math import nan
from typing import Any, Literal

import numpy as np

from adaterm_bench.core.section import Claim
from adaterm_bench.core.trial import Result
from adaterm_bench.experiments.test_functions.sentences import (
    ADAM_DEGRADES,
    ADATERM_FINDS,
    ALIKE,
    AT_ADAM_FINDS,
    AT_ADAM_MISSES,
    DOF_FALLS,
    DOF_STAYS,
    DRAWBACK,
    FASTER,
    MCCORMICK,
    MCCORMICK_CLEAN,
    MITIGATED,
    OUR_MCCORMICK,
    OURS_MISSES,
    OURS_WRITTEN,
    UNDISTURBED,
)
from adaterm_bench.reporting.claims import Sentence, correct_families, make_claim
from adaterm_bench.reporting.intervals import Bootstrap, Interval
from adaterm_bench.reporting.pooling import pooled_ratio
from adaterm_bench.reporting.selection import Grid, Values
from adaterm_bench.reporting.statistics import bootstrap_interval, mean, median, ratio_interval, trend
from adaterm_bench.reporting.text import format_number

LEAST = 1e-8  # minima are known to as many digits: errors below are not told apart
FAR = 1000.0  # the distance from which a search counts as diverged
MISSED = 0.1  # the distance from which a minimum counts as missed
MINIMA = {"Rosenbrock": (1.0, 1.0), "McCormick": (-0.54719755, -1.54719755), "Michalewicz": (2.20290552, 1.57079633)}
CONSTANT = 0.1  # relative change of degrees of freedom that are nearly constant
STANDARD = 10.0  # times Adam's error: what still counts as the standard update performance
LIKE = 1.5  # times the other's error: what still counts as like it
WRITTEN, RELEASED = "At-Adam", "At-Adam (as published)"
ONE_SEARCH = "Without noise all seeds are one and the same search, so that there is no interval."
BOUND_IS_OURS = "The bound is ours."


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
        claims += [*_claim_undisturbed(name, grid, varied.get(name)), *_claim_alike(name, grid, varied.get(name))]
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
    claims = []
    for method in (WRITTEN, RELEASED):
        if method in grid.values and len(grid.levels) > 1:
            values = grid.values[method]
            ratio = ratio_interval(values[-1], values[0], mean, better="higher")
            text = f"On {name}, the degrees of freedom of {method} do not follow the noise."
            what = "mean dof with most noise over that with least"
            options: dict[str, Any] = {"bound": 1.0 + CONSTANT, "wants": "within", "note": BOUND_IS_OURS}
            claims.append(make_claim(DOF_STAYS, text, what, ratio, **options))
    return claims


def _claim_sensitive(name: str, grid: Grid) -> list[Claim]:
    if "Adam" not in grid.values or grid.levels[:1] != [0.0] or len(grid.levels) < 2:
        return []
    values = bound_errors(grid.values["Adam"])
    ratio = pooled_ratio(values[1:], np.broadcast_to(values[0], values[1:].shape), bootstrap=Bootstrap(against=1.0))
    what = "Adam's error with noise over that without, geometric mean over noise levels"
    return [make_claim(ADAM_DEGRADES, f"On {name}, Adam's error grows when noise comes in.", what, ratio, bound=1.0)]


def _claim_mitigated(name: str, grid: Grid) -> list[Claim]:
    noisy = [place for place, level in enumerate(grid.levels) if level > 0.0]
    if not noisy or not {"Adam", "AdaTerm"} <= set(grid.values):
        return []
    rival, ours = (bound_errors(grid.values[method][noisy]) for method in ("Adam", "AdaTerm"))
    ratio = pooled_ratio(rival, ours, bootstrap=Bootstrap(against=1.0))
    sentence = OUR_MCCORMICK if name == "McCormick" else MITIGATED
    text = f"On {name} with noise, AdaTerm's error is below Adam's."
    what = "Adam's error over AdaTerm's, geometric mean over noise levels"
    each = [pooled_ratio(*pair).estimate for pair in zip(rival, ours, strict=True)]
    least = int(np.argmin(each))
    note = f"Least with {format_share(grid.levels[noisy[least]])} noise: {format_number(each[least])}"
    return [make_claim(sentence, text, what, ratio, bound=1.0, note=note)]


def _claim_robust(grid: Grid | None) -> list[Claim]:
    if grid is None or not {"Adam", "AdaTerm"} <= set(grid.values):
        return []
    level = grid.levels[-1]
    ratio = ratio_interval(grid.at("Adam", level), grid.at("AdaTerm", level), mean)
    text = f"On Rosenbrock with {format_share(level)} noise, AdaTerm's error is at least 20 times below Adam's."
    return [make_claim(Sentence(text), text, "Adam's mean error over AdaTerm's", ratio, bound=20.0)]


def _claim_undisturbed(name: str, fixed: Grid, varied: Grid | None) -> list[Claim]:
    """What AdaTerm costs without noise: nothing on two functions says the paper's analysis, its discussion differs."""
    if fixed.levels[:1] != [0.0] or not {"Adam", "AdaTerm"} <= set(fixed.values):
        return []
    what = "AdaTerm's error over Adam's, geometric mean"
    against_equal = [_compare_clean(grid, "AdaTerm", 1.0) for grid in (fixed, varied)]
    if name == "McCormick":  # where both places say the same
        text = f"on {name} without noise, AdaTerm ends further from the minimum than Adam."
        said = _claim_twice(MCCORMICK_CLEAN, text, what, *against_equal, bound=1.0)
        return [*said, *_claim_little_noise(name, fixed)]
    text = f"on {name} without noise, AdaTerm's error is at most {STANDARD:g} times Adam's."
    against_standard = [_compare_clean(grid, "AdaTerm", STANDARD) for grid in (fixed, varied)]
    options: dict[str, Any] = {"bound": STANDARD, "wants": "below", "note": BOUND_IS_OURS}
    kept = _claim_twice(UNDISTURBED, text, what, *against_standard, **options)
    text = f"on {name} without noise, Adam ends nearer to the minimum than AdaTerm."
    return [*kept, *_claim_twice(DRAWBACK, text, what, *against_equal, bound=1.0)]


def _compare_clean(grid: Grid | None, method: str, bound: float = nan) -> Interval | None:
    """A method's error over Adam's without noise, if both have searched from there."""
    if grid is None or grid.levels[:1] != [0.0] or not {"Adam", method} <= set(grid.values):
        return None
    first, second = (bound_errors(grid.at(name, 0.0)) for name in (method, "Adam"))
    return pooled_ratio(first, second, bootstrap=Bootstrap(against=bound))


def _claim_little_noise(name: str, grid: Grid) -> list[Claim]:
    """The same with the least noise there is, of which there are many searches, by two kinds of mean."""
    noisy = [level for level in grid.levels if level > 0.0]
    if not noisy:
        return []
    ours, theirs = (bound_errors(grid.at(method, noisy[0])) for method in ("AdaTerm", "Adam"))
    where, above_one = f"On {name} with {format_share(noisy[0])} noise", Bootstrap(against=1.0)
    kinds = {
        "AdaTerm ends further from the minimum than Adam": (
            "geometric mean",
            pooled_ratio(ours, theirs, bootstrap=above_one),
        ),
        "AdaTerm's mean error is above Adam's": ("of means", ratio_interval(ours, theirs, mean, bootstrap=above_one)),
    }
    return [
        make_claim(MCCORMICK, f"{where}, {text}.", f"AdaTerm's error over Adam's, {kind}", ratio, bound=1.0)
        for text, (kind, ratio) in kinds.items()
    ]


def _claim_alike(name: str, grid: Grid, varied: Grid | None) -> list[Claim]:
    """The paper says so of all noise; without any there is one search from its start."""
    if not {"Adam", "AdaBelief"} <= set(grid.values):
        return []
    clean = [_compare_clean(each, "AdaBelief") for each in (grid, varied)]
    text, what = f"AdaBelief's error is like Adam's: within a factor of {LIKE:g}.", "AdaBelief's error over Adam's"
    options: dict[str, Any] = {"bound": LIKE, "wants": "within", "note": "The factor is ours."}
    claims = _claim_twice(ALIKE, f"on {name} without noise, {text}", f"{what}, geometric mean", *clean, **options)
    noisy = [place for place, level in enumerate(grid.levels) if level > 0.0]
    if not noisy:
        return claims
    pair = [bound_errors(grid.values[method][noisy]) for method in ("AdaBelief", "Adam")]
    each = [pooled_ratio(*level).estimate for level in zip(*pair, strict=True)]
    furthest = int(np.argmax(np.abs(np.log(each))))
    options["note"] += f" Furthest from 1 with {format_share(grid.levels[noisy[furthest]])} noise: "
    options["note"] += format_number(each[furthest])
    text, what = f"On {name} with noise, {text}", f"{what}, geometric mean over noise levels"
    return [*claims, make_claim(ALIKE, text, what, pooled_ratio(*pair), **options)]


def _claim_found(errors: dict[str, Grid], varied: dict[str, Grid]) -> list[Claim]:
    """Whether minima are found without noise."""
    claims = []
    for sentence, function, method, missed in (
        (AT_ADAM_MISSES, "Michalewicz", RELEASED, True),
        (ADATERM_FINDS, "Michalewicz", "AdaTerm", False),
        (OURS_WRITTEN, "Michalewicz", WRITTEN, False),
        (OURS_MISSES, "Rosenbrock", WRITTEN, True),
    ):
        intervals = [_measure_clean(each.get(function), method) for each in (errors, varied)]
        text = f"without noise, {method} {'misses' if missed else 'finds'} the minimum of {function}."
        wants: Literal["above", "below"] = "above" if missed else "below"
        claims += _claim_twice(sentence, text, "mean error", *intervals, bound=MISSED, wants=wants, note=BOUND_IS_OURS)
    return claims


def _measure_clean(grid: Grid | None, method: str) -> Interval | None:
    """A method's mean error without noise, if it has searched from there."""
    if grid is None or method not in grid.values or grid.levels[:1] != [0.0]:
        return None
    return bootstrap_interval(grid.at(method, 0.0), mean, bootstrap=Bootstrap(against=MISSED))


def _claim_helped(grid: Grid | None) -> list[Claim]:
    """Whether with noise At-Adam as published finds a minimum that it misses without."""
    if grid is None or RELEASED not in grid.values:
        return []
    claims = []
    for level in (level for level in grid.levels if level > 0.0):
        errors = grid.at(RELEASED, level)
        found = bootstrap_interval(errors, mean, bootstrap=Bootstrap(against=MISSED))
        text = f"With {format_share(level)} noise, {RELEASED} finds the minimum of Michalewicz."
        note = f"{BOUND_IS_OURS} Missed in {np.count_nonzero(errors > MISSED)} of {len(errors)} searches"
        claims.append(make_claim(AT_ADAM_FINDS, text, "mean error", found, bound=MISSED, wants="below", note=note))
    return claims


def _claim_fast(name: str, paths: dict[str, Result], arrivals: Grid | None) -> list[Claim]:
    claims = []
    for rival in ("Adam", "AdaBelief", WRITTEN, RELEASED):
        both, same, moved = (rival, "AdaTerm"), None, None
        if set(both) <= set(paths):
            same = _compare_steps(*(np.array([find_arrival(paths[method], name)]) for method in both))
        if arrivals is not None and set(both) <= set(arrivals.values):
            moved = _compare_steps(*(arrivals.at(method, 0.0) for method in both))
        text = f"on {name} without noise, AdaTerm comes near the minimum in fewer steps than {rival}."
        what = f"median steps to within {MISSED:g} of the minimum, {rival} to AdaTerm"
        if same is not None:
            claims.append(_claim_same(FASTER, text, what, *_tell_arrivals(same), bound=1.0))
        if moved is not None:
            claims.append(_claim_moved(FASTER, text, what, *_tell_arrivals(moved), bound=1.0))
    return claims


def _tell_arrivals(steps: Interval) -> tuple[Interval, str]:
    """Searches that never arrive have not diverged: the interval without them, and a note that counts them."""
    never = f" Of {2 * steps.seeds} searches, of both methods, {steps.diverged} never came so near." * bool(
        steps.diverged
    )
    return steps._replace(diverged=0), f"The distance is ours.{never}"


def _compare_steps(rival: Values, ours: Values) -> Interval:
    return ratio_interval(rival, ours, median, bootstrap=Bootstrap(against=1.0))


def find_arrival(result: Result, name: str) -> float:
    """The first step of a kept path that is near the minimum; infinite if there is none."""
    settings, path = result.trial.settings, np.array(result.outcome["path"])
    marks = sorted(set(np.geomspace(1, settings["steps"], settings["kept"]).round().astype(int).tolist()))
    near = np.linalg.norm(path[1:] - np.array(MINIMA[name]), axis=1) < MISSED
    return float(marks[int(np.argmax(near))]) if near.any() else np.inf


def _claim_twice(
    sentence: Sentence, text: str, what: str, same: Interval | None, moved: Interval | None, **options: Any
) -> list[Claim]:
    """From the paper's start, and from starts near it."""
    ends = ((_claim_same, same), (_claim_moved, moved))
    return [claim(sentence, text, what, interval, **options) for claim, interval in ends if interval is not None]


def _claim_same(sentence: Sentence, text: str, what: str, interval: Interval, note: str = "", **options: Any) -> Claim:
    """From the paper's start, of which there is one search and no interval."""
    exact = interval._replace(low=interval.estimate, high=interval.estimate, seeds=0, chance=nan)
    claim = make_claim(sentence, f"{text[:1].upper()}{text[1:]}", what, exact, **options)
    return replace(claim, note=f"{ONE_SEARCH} {note}".strip())


def _claim_moved(sentence: Sentence, text: str, what: str, interval: Interval, note: str = "", **options: Any) -> Claim:
    """From starts near the paper's, which is a claim of ours."""
    ours = Sentence(f"From other starts, too: {sentence.family}")
    return make_claim(ours, f"From other starts, {text}", what, interval, note=note, **options)


def bound_errors(values: Values) -> Values:
    """Errors to be compared in logarithms."""
    return np.where(values > FAR, np.inf, np.maximum(values, LEAST))


def format_share(level: float) -> str:
    """A noise level in per cent."""
    return f"{100.0 * level:g} %"
