"""Confidence intervals over seeds: the percentile bootstrap, Wilson's of a share, and Student's of a few seeds' mean.

The bootstrap is widened for small samples as Hesterberg proposes (2015, "What Teachers Should Know About the
Bootstrap"). Where so few pairs are of one sign by chance more often than the level allows (fewer than 6 at the level
0.95), the interval is unbounded: they decide nothing. Student's interval, for the eye, supposes normal values.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, isnan, nan, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri, stdtr, stdtrit  # what scipy.stats' norm and t are made of, and quicker to import

Values = NDArray[np.float64]
Statistic = Callable[[Values], Values]
"""Reduces the last axis."""
FEW = 3  # the interquartile mean of so many values is still their mean


class Interval(NamedTuple):
    """An estimate and its confidence interval, from so many seeds, and how many runs among them diverged.

    `chance` is the p-value of the number that the estimate was compared with, where there was one.
    """

    estimate: float
    low: float
    high: float
    seeds: int
    diverged: int = 0
    chance: float = nan

    @property
    def note(self) -> str:
        """What a reader has to know beside the numbers; empty if nothing."""
        few = f"only {self.seeds} {'seed' if self.seeds == 1 else 'seeds'}" if too_few(self.seeds, 0.95) else ""
        lost = f"{self.diverged} diverged {'run' if self.diverged == 1 else 'runs'}" if self.diverged else ""
        return ", ".join(filter(None, (few, lost)))


@dataclass(frozen=True)
class Bootstrap:
    """How an interval is made; without a generator every call draws the same, without `widen` it is the plain one.

    The chance is that of the number `against` which the estimate is compared, and goes with the interval: it is below
    1 - level where the interval leaves that number out.
    """

    level: float = 0.95
    resamples: int = 10_000
    generator: np.random.Generator | None = None
    widen: bool = True
    against: float = nan

    def __call__(self, rows: Values, statistic: Statistic) -> Interval:
        """The interval of a statistic of (rows × seeds); whole columns are drawn, so what shares a seed stays together.

        The statistic sees (rows × draws × seeds) and gives one number for each draw.
        """
        seeds = rows.shape[-1]
        if seeds == 0:
            return Interval(nan, -inf, inf, 0)
        with np.errstate(invalid="ignore", divide="ignore"):
            estimate = float(statistic(rows[:, None, :])[0])
            if too_few(seeds, self.level):
                return Interval(estimate, -inf, inf, seeds)
            random = self.generator or np.random.default_rng(0)
            drawn = statistic(rows[:, random.integers(0, seeds, (self.resamples, seeds))])
        cut = int((widen_tail(seeds, self.level) if self.widen else (1.0 - self.level) / 2.0) * (self.resamples - 1))
        # What has no value, such as infinity minus infinity, might be anything, so it widens the interval at both ends.
        undefined = np.isnan(drawn)
        low = np.sort(np.where(undefined, -inf, drawn))[cut]
        high = np.sort(np.where(undefined, inf, drawn))[self.resamples - 1 - cut]
        return Interval(estimate, float(low), float(high), seeds, chance=self._find_chance(drawn, seeds))

    def _find_chance(self, drawn: Values, seeds: int) -> float:
        """The share of draws on the rarer side of the number, twice, and as much larger as the interval is wider."""
        if isnan(self.against):
            return nan
        below, above = (int(np.count_nonzero(side)) for side in (~(drawn > self.against), ~(drawn < self.against)))
        tail = min((min(below, above) + 1) / (self.resamples + 1), 0.5)  # what has no value is on both sides
        return 2.0 * (narrow_tail(tail, seeds) if self.widen else tail)


def wilson(share: float, count: int, level: float = 0.95) -> Interval:
    """The interval of a share of so many cases; unlike a bootstrap's it has a width where all of them agree."""
    if count == 0:
        return Interval(nan, 0.0, 1.0, 0)
    z = float(ndtri((1.0 + level) / 2.0))
    centre = (share + z**2 / (2 * count)) / (1.0 + z**2 / count)
    half = z * sqrt(share * (1.0 - share) / count + z**2 / (4 * count**2)) / (1.0 + z**2 / count)
    return Interval(share, max(0.0, centre - half), min(1.0, centre + half), count)


def student(values: Values) -> Interval:
    """The mean of two or three values, and Student's interval of it at the level 0.95; of others there is none."""
    seeds, mean = len(values), float(np.mean(values)) if len(values) else nan
    if not 2 <= seeds <= FEW or not np.isfinite(values).all():
        return Interval(mean, -inf, inf, seeds)
    half = float(stdtrit(seeds - 1, 0.975)) * float(np.std(values, ddof=1)) / sqrt(seeds)
    return Interval(mean, mean - half, mean + half, seeds)


def too_few(seeds: int, level: float) -> bool:
    """Whether so many pairs are of one sign by chance more often than the level allows."""
    return 2.0 ** (1 - seeds) > 1.0 - level


def widen_tail(seeds: int, level: float) -> float:
    """The share to cut at each end so that the interval is as wide as Student's would be, and not the normal one."""
    dof = seeds - 1
    return float(ndtr(-stdtrit(dof, (1.0 + level) / 2.0) * sqrt(seeds / dof)))


def narrow_tail(tail: float, seeds: int) -> float:
    """The share at one end of Student's distribution for which `widen_tail` would cut this one."""
    dof = seeds - 1
    return float(stdtr(dof, float(ndtri(tail)) * sqrt(dof / seeds)))
