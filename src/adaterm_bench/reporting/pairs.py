"""Student's interval and test of a few seeds' paired results, which suppose that differences are normal.

For comparisons that have few seeds by design: a bootstrap needs six, Student's two. What is not finite has no interval.
"""

from math import expm1, inf, nan, sqrt

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtr, stdtrit

from adaterm_bench.reporting.intervals import Interval, Values
from adaterm_bench.reporting.statistics import Better, differences, diverged


def student_interval(values: Values, level: float = 0.95) -> Interval:
    """The mean of any number of values, and Student's interval of it; unbounded for one value, or if one was lost."""
    seeds = len(values)
    with np.errstate(invalid="ignore"):
        mean = float(np.mean(values)) if seeds else nan
    if seeds < 2 or not np.isfinite(values).all():
        return Interval(mean, -inf, inf, seeds)
    half = float(stdtrit(seeds - 1, (1.0 + level) / 2.0)) * float(np.std(values, ddof=1)) / sqrt(seeds)
    return Interval(mean, mean - half, mean + half, seeds)


def student_chance(values: Values) -> float:
    """The chance that a mean is so far from 0, on either side, where there is no difference; NaN if nobody can say."""
    seeds = len(values)
    if seeds < 2 or not np.isfinite(values).all():
        return nan
    mean, error = float(np.mean(values)), float(np.std(values, ddof=1)) / sqrt(seeds)
    if error == 0.0:
        return 1.0 if mean == 0.0 else 0.0
    return 2.0 * float(stdtr(seeds - 1, -abs(mean) / error))


def log_ratios(first: ArrayLike, second: ArrayLike, better: Better = "lower") -> Values:
    """The logarithm of first over second, seed by seed, of positive results; two diverged runs do not differ."""
    sides = [np.asarray(side, dtype=np.float64) for side in (first, second)]
    if any(np.any(side <= 0.0) for side in sides):
        raise ValueError("a relative difference needs results above 0")
    return differences(np.log(sides[0]), np.log(sides[1]), better)


def relative_difference(
    first: ArrayLike, second: ArrayLike, *, better: Better = "lower", level: float = 0.95
) -> Interval:
    """By which share the first is larger than the second: Student's interval of the mean log-ratio of the pairs."""
    interval = student_interval(log_ratios(first, second, better), level)
    estimate, low, high = (value if not np.isfinite(value) else expm1(value) for value in interval[:3])
    return Interval(estimate, low, high, interval.seeds, diverged(first) + diverged(second))
