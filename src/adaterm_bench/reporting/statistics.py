"""Comparisons of runs over the same seeds, as pure functions of arrays whose last axis is the seed.

A run whose result is not finite has diverged and counts as worst: infinite where lower is better, minus infinity where
higher is. Medians, interquartile means and ranks bear a few of them; a mean becomes infinite. Only `mean_std`
describes the finished runs alone, and every result says how many diverged.
"""

from collections.abc import Callable
from math import inf, nan
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from adaterm_bench.reporting.intervals import Bootstrap, Interval, Statistic, Values, too_few, wilson

Better = Literal["lower", "higher"]
Equivalence = Literal["within", "outside", "not shown"]
USUAL = Bootstrap()


class Spread(NamedTuple):
    """Mean and sample standard deviation of the runs that finished, and how many did and did not."""

    mean: float
    std: float
    seeds: int
    diverged: int


def mean(values: Values) -> Values:
    """The mean over the last axis."""
    return np.asarray(np.mean(values, axis=-1))


def median(values: Values) -> Values:
    """The median over the last axis."""
    return np.asarray(np.median(values, axis=-1))


def interquartile_mean(values: Values) -> Values:
    """The mean of what is left when a quarter of the values, rounded down, is dropped at each end."""
    count = values.shape[-1]
    cut = count // 4
    return np.asarray(np.mean(np.sort(values, axis=-1)[..., cut : count - cut], axis=-1))


def mean_std(values: ArrayLike) -> Spread:
    """Mean and sample standard deviation, as in the paper's tables, with the diverged runs counted apart."""
    array = np.asarray(values, dtype=np.float64).ravel()
    finished = array[np.isfinite(array)]
    count = finished.size
    return Spread(
        float(finished.mean()) if count else nan,
        float(finished.std(ddof=1)) if count > 1 else nan,
        count,
        array.size - count,
    )


def quartiles(values: ArrayLike, better: Better = "lower") -> tuple[Values, Values, Values]:
    """Lower quartile, median and upper quartile over the last axis, with diverged runs as worst."""
    ordered = np.sort(with_worst(values, better), axis=-1)
    if not ordered.shape[-1]:
        nothing = np.full(ordered.shape[:-1], nan)
        return nothing, nothing, nothing
    last = ordered.shape[-1] - 1
    bounds = []
    for share in (0.25, 0.5, 0.75):
        place = share * last
        below, above = ordered[..., int(place)], ordered[..., min(int(place) + 1, last)]
        # Where nothing lies between two neighbours nothing is added, nor to minus infinity: it would have no value.
        gap = np.subtract(above, below, out=np.zeros_like(below), where=(below != above) & (below != -inf))
        part = place - int(place)
        bounds.append(below + part * gap if part else below)
    return bounds[0], bounds[1], bounds[2]


def bootstrap_interval(
    values: ArrayLike,
    statistic: Statistic = mean,
    *,
    better: Better = "lower",
    bootstrap: Bootstrap = USUAL,
) -> Interval:
    """The statistic of one method's runs."""
    rows = with_worst(values, better).reshape(1, -1)
    interval = bootstrap(rows, lambda drawn: statistic(drawn[0]))
    return interval._replace(diverged=diverged(values))


def paired_difference(
    first: ArrayLike,
    second: ArrayLike,
    statistic: Statistic = mean,
    *,
    better: Better = "lower",
    bootstrap: Bootstrap = USUAL,
) -> Interval:
    """The statistic of first minus second, seed by seed; for the gain where lower is better, name the rival first."""
    rows = differences(first, second, better).reshape(1, -1)
    interval = bootstrap(rows, lambda drawn: statistic(drawn[0]))
    return interval._replace(diverged=diverged(first) + diverged(second))


def probability_of_improvement(
    first: ArrayLike, second: ArrayLike, *, better: Better = "lower", level: float = 0.95
) -> Interval:
    """The share of seeds on which the first is better than the second, ties as half, with Wilson's interval."""
    gain = differences(first, second, better).ravel() * (-1.0 if better == "lower" else 1.0)
    interval = wilson(float(np.mean((1.0 + np.sign(gain)) / 2.0)), gain.size, level)
    if too_few(gain.size, level):
        interval = interval._replace(low=0.0, high=1.0)
    return interval._replace(diverged=diverged(first) + diverged(second))


def ratio_interval(
    first: ArrayLike,
    second: ArrayLike,
    statistic: Statistic = mean,
    *,
    better: Better = "lower",
    bootstrap: Bootstrap = USUAL,
) -> Interval:
    """The first's statistic over the second's, for results that are never negative; worst is then infinity or 0."""
    pair = np.stack(_pair_seeds(first, second))
    if np.any(pair[np.isfinite(pair)] < 0.0):
        raise ValueError("a ratio needs results that are not negative")
    rows = np.where(np.isfinite(pair), pair, inf if better == "lower" else 0.0)

    def ratio(drawn: Values) -> Values:
        above, below = statistic(drawn)
        return np.asarray(above / below)

    interval = bootstrap(rows, ratio)
    return interval._replace(diverged=diverged(pair))


def trend(
    levels: ArrayLike,
    values: ArrayLike,
    *,
    rival: ArrayLike | None = None,
    kind: Literal["spearman", "slope"] = "spearman",
    statistic: Statistic = median,
    better: Better = "lower",
    bootstrap: Bootstrap = USUAL,
) -> Interval:
    """How the statistic of values (levels × seeds) goes with the level: rank correlation, or slope of the fitted line.

    With a rival it is the statistic of the paired difference from it. A statistic that never changes has the trend 0.
    """
    against = np.asarray(levels, dtype=np.float64)
    rows = with_worst(values, better) if rival is None else differences(values, rival, better)
    if rows.ndim != 2 or rows.shape[0] != against.size or against.size < 2:
        raise ValueError(f"values must be (levels, seeds) with {against.size} levels, at least 2; got {rows.shape}")
    measure = _correlate_ranks if kind == "spearman" else _fit_slope
    interval = bootstrap(rows, lambda drawn: measure(against, statistic(drawn)))
    return interval._replace(diverged=diverged(values) + (0 if rival is None else diverged(rival)))


def a_a_check(
    values: ArrayLike,
    compare: Callable[[Values, Values], Interval] | None = None,
    *,
    null: float = 0.0,
    draws: int = 400,
    generator: np.random.Generator | None = None,
) -> Interval:
    """How often a comparison finds a difference between two sets of runs drawn, with replacement, from one method's.

    There is none, so the share of intervals that leave out `null` should be near 0.05 at the level 0.95. Values may be
    levels by seeds: then seeds are drawn, with all their levels.
    """
    array = np.asarray(values, dtype=np.float64)
    random = generator or np.random.default_rng(0)
    fewer = Bootstrap(resamples=2_000, generator=random)
    judge = compare or (lambda first, second: paired_difference(first, second, bootstrap=fewer))
    differing = 0
    for _ in range(draws):
        first, second = random.integers(0, array.shape[-1], (2, array.shape[-1]))
        interval = judge(array[..., first], array[..., second])
        differing += interval.low > null or interval.high < null
    return wilson(differing / draws, draws)


def correct_by_holm(chances: ArrayLike) -> Values:
    """The chances (p-values) of a family of comparisons, raised as Holm does; what is NaN is in no family.

    Comparisons whose raised chance is below 0.05 all hold at once, except in one family in twenty.
    """
    array = np.asarray(chances, dtype=np.float64)
    known = np.flatnonzero(~np.isnan(array))
    order = known[np.argsort(array[known], kind="stable")]
    raised = np.full(array.shape, nan)
    raised[order] = np.minimum(np.maximum.accumulate(array[order] * np.arange(order.size, 0, -1)), 1.0)
    return raised


def judge_equivalence(interval: Interval, margin: float) -> Equivalence:
    """Whether an interval of a difference lies within ± the margin, outside of it, or neither is shown."""
    if -margin <= interval.low and interval.high <= margin:
        return "within"
    return "outside" if interval.low > margin or interval.high < -margin else "not shown"


def diverged(values: ArrayLike) -> int:
    """The number of runs whose result is not finite."""
    return int(np.count_nonzero(~np.isfinite(np.asarray(values, dtype=np.float64))))


def with_worst(values: ArrayLike, better: Better = "lower") -> Values:
    """The values, with the worst there is for every run that diverged."""
    array = np.asarray(values, dtype=np.float64)
    return np.where(np.isfinite(array), array, inf if better == "lower" else -inf)


def differences(first: ArrayLike, second: ArrayLike, better: Better = "lower") -> Values:
    """First minus second for each seed; two diverged runs do not differ."""
    left, right = (with_worst(side, better) for side in _pair_seeds(first, second))
    return np.subtract(left, right, out=np.zeros_like(left), where=left != right)


def _pair_seeds(first: ArrayLike, second: ArrayLike) -> tuple[Values, Values]:
    left, right = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if left.shape != right.shape:
        raise ValueError(f"pairs need the same seeds on both sides, not shapes {left.shape} and {right.shape}")
    return left, right


def rank_values(values: Values) -> Values:
    """Ranks along the first axis, ties with the mean of theirs."""
    below = np.sum(values[None] < values[:, None], axis=1)
    equal = np.sum(values[None] == values[:, None], axis=1)
    return np.asarray(below + (equal - 1) / 2.0)


def _fit_slope(levels: Values, values: Values) -> Values:
    centred = levels - levels.mean()
    return np.asarray(np.tensordot(centred, values, axes=1) / np.sum(centred**2))


def _correlate_ranks(levels: Values, values: Values) -> Values:
    x, y = rank_values(levels), rank_values(values)
    x, y = x - x.mean(), y - y.mean(axis=0)
    size = np.sqrt(np.sum(x**2) * np.sum(y**2, axis=0))
    product = np.tensordot(x, y, axes=1)
    correlation = np.divide(product, size, out=np.zeros_like(product), where=size > 0.0)
    return np.where(np.isnan(values).any(axis=0), nan, correlation)
