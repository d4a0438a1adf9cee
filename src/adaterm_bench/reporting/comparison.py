"""Every method beside AdaTerm, seed by seed: what a mean and its spread do not tell."""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from adaterm_bench.core.section import Table
from adaterm_bench.core.trial import Result
from adaterm_bench.reporting.intervals import Bootstrap, Interval, Values, student, too_few
from adaterm_bench.reporting.selection import Grid
from adaterm_bench.reporting.statistics import (
    Better,
    Spread,
    a_a_check,
    bootstrap_interval,
    differences,
    interquartile_mean,
    mean,
    paired_difference,
    probability_of_improvement,
)
from adaterm_bench.reporting.text import format_number, format_spread

OURS = "AdaTerm"
RIVALS = ("Adam", "AdaBelief", "RAdam", "t-Adam", "At-Adam")


def group_by_method(results: Sequence[Result], **fixed: Any) -> dict[str, list[Result]]:
    """The results of a condition by method, the paper's first, each by seed."""
    matching = sorted(
        (result for result in results if fixed.items() <= result.trial.condition.items()),
        key=lambda result: result.trial.seed,
    )
    methods = dict.fromkeys([*RIVALS, OURS, *(result.trial.method for result in matching)])
    groups = {method: [result for result in matching if result.trial.method == method] for method in methods}
    return {method: group for method, group in groups.items() if group}


def describe_how(results: Iterable[Result]) -> str:
    """How intervals are made, and what is different where some method has few seeds."""
    seeds = Counter((result.trial.method, str(result.trial.condition)) for result in results)
    few = any(too_few(count, 0.95) for count in seeds.values())
    note = " With two or three seeds they are Student's, with four or five there are none: so few decide no claim."
    return f"95 % intervals by bootstrap over seeds.{note * few}"


def list_by_seed(groups: dict[str, list[Result]], outcome: str) -> dict[str, dict[int, float]]:
    """An outcome of each method by seed."""
    return {method: {result.trial.seed: result.outcome[outcome] for result in runs} for method, runs in groups.items()}


def pair_methods(
    results: Sequence[Result], outcome: str, first: str, second: str, **fixed: Any
) -> tuple[Values, Values]:
    """An outcome of two methods in a condition, for the seeds that both have; there may be none."""
    groups = group_by_method(results, **fixed)
    return pair_outcomes(groups.get(first, ()), groups.get(second, ()), outcome)


def pair_outcomes(first: Sequence[Result], second: Sequence[Result], outcome: str) -> tuple[Values, Values]:
    """An outcome of the seeds that both have; there may be none."""
    values = [{result.trial.seed: result.outcome[outcome] for result in side} for side in (first, second)]
    seeds = sorted(values[0].keys() & values[1].keys())
    left, right = (np.array([outcomes[seed] for seed in seeds], dtype=np.float64) for outcomes in values)
    return left, right


def describe_change(before: Values, after: Values, better: Better) -> str:
    """The change of the mean of the same seeds, with its interval."""
    return describe_interval(paired_difference(after, before, mean, better=better), differences(after, before, better))


def compare_in_pairs(
    title: str,
    results: Sequence[Result],
    outcome: str,
    better: Better,
    scale: float = 1.0,
    than: str = OURS,
    **fixed: Any,
) -> list[Table]:
    """Every method compared with one in a condition, each over the seeds that both have, however many others have."""
    pairs = {
        method: pair_methods(results, outcome, method, than, **fixed)
        for method in group_by_method(results, **fixed)
        if method != than
    }
    rows = [
        [rival, str(len(ours)), *compare_with(scale * theirs, scale * ours, better)]
        for rival, (theirs, ours) in pairs.items()
        if len(ours)
    ]
    columns = ["method", "seeds", "interquartile mean", f"its difference from {than}", f"{than} is better in"]
    shared = [result for group in group_by_method(results, **fixed).values() for result in group]
    note = f"Over the seeds that both have; {better} is better. {describe_how(shared)}"
    return [Table(title, columns, rows, note)] if rows else []


def compare_with(rival: Values, ours: Values, better: Better) -> list[str]:
    """The interquartile mean of a rival's runs, its difference from ours, and the share of seeds that ours wins."""
    apart = paired_difference(rival, ours, interquartile_mean, better=better)
    chance = probability_of_improvement(ours, rival, better=better)
    share = f"{chance.estimate:.0%} of seeds ({chance.low:.0%} to {chance.high:.0%})".replace("%", " %")
    return [describe_middle(rival, better), describe_interval(apart, differences(rival, ours, better)), share]


def describe_middle(values: Values, better: Better = "lower") -> str:
    """The interquartile mean and its interval."""
    return describe_interval(bootstrap_interval(values, interquartile_mean, better=better), values)


def describe_spread(spread: Spread) -> str:
    """Mean and standard deviation of what finished, and how much did not."""
    lost = f", {spread.diverged} diverged" if spread.diverged else ""
    return (format_number(spread.mean, 4) if spread.seeds < 2 else format_spread(spread.mean, spread.std)) + lost


def describe_interval(interval: Interval, values: Values) -> str:
    """An estimate from these values and its interval, Student's where they are few."""
    if too_few(interval.seeds, 0.95):
        interval = student(values)._replace(estimate=interval.estimate)
    if not np.isfinite([interval.low, interval.high]).all():
        return format_number(interval.estimate)
    return f"{format_number(interval.estimate)} ({format_number(interval.low)} to {format_number(interval.high)})"


def _check_machinery(ours: Values) -> str:
    """What the machinery finds where there is nothing to find."""
    if len(ours) < 6 or not np.isfinite(ours).all() or not np.ptp(ours):
        return ""
    compare = partial(paired_difference, statistic=interquartile_mean, bootstrap=Bootstrap(resamples=2_000))
    differs = a_a_check(ours, compare, draws=200)
    share = f"{100 * differs.estimate:.1f} %"
    return f" AdaTerm's runs against themselves, resampled 200 times, differ in {share} of cases; 5 % are expected."


def compare_at_levels(title: str, grid: Grid, levels: Sequence[float]) -> list[Table]:
    """A table of errors for each of the levels, as shares of noise, if AdaTerm and a rival are there."""
    rivals = [method for method in grid.values if method != OURS]
    if OURS not in grid.values or not rivals or not grid.seeds:
        return []
    columns = ["method", "interquartile mean", "its difference from AdaTerm", "AdaTerm is better in"]
    tables = []
    for level in dict.fromkeys(levels):
        ours = grid.at(OURS, level)
        rows = [[OURS, describe_middle(ours), "", ""]]
        rows += [[rival, *compare_with(grid.at(rival, level), ours, "lower")] for rival in rivals]
        note = (
            f"{len(grid.seeds)} paired seeds, 95 % intervals by bootstrap. The difference is the interquartile mean of "
            f"the seeds' differences; lower is better.{_check_machinery(ours)}{grid.note}"
        )
        tables.append(Table(f"{title}, {100 * level:g} % noise: compared with AdaTerm", columns, rows, note))
    return tables
