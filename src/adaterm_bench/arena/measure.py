"""What a task of the arena is judged by, and how two methods are compared by it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf, isfinite, nan

import numpy as np

from adaterm_bench.reporting.intervals import Interval, Values
from adaterm_bench.reporting.pairs import log_ratios, relative_difference, student_chance, student_interval
from adaterm_bench.reporting.statistics import Better, differences, diverged
from adaterm_bench.reporting.text import format_number

EQUAL = 0.5
"""Two methods are as good as each other if their difference is shown to be smaller, in per cent or points."""
CLOSE = 0.3
"""How far behind the best method RobustAdamW may be on clean data."""
LEAST = 3
"""Seeds that can decide anything: nothing speaks for or against normal differences of two."""


@dataclass(frozen=True)
class Measure:
    """An outcome, and the noises it is compared under: those of `dirty` make the columns in which methods are ranked.

    Losses are compared by their ratio, in per cent, and accuracies by their difference, in points.
    """

    outcome: str
    noun: str
    better: Better
    dirty: tuple[str, ...]
    shares: Mapping[str, float] = field(default_factory=dict)
    """The noises that differ in the share of bad batches alone, in per cent of them."""
    trap: str = ""
    chosen_by: str = ""
    """The outcome that learning rates are chosen by, if it is another."""
    chosen_noun: str = ""

    @property
    def relative(self) -> bool:
        """Whether differences are ratios."""
        return self.better == "lower"

    @property
    def sign(self) -> float:
        """What makes of an outcome a cost."""
        return 1.0 if self.better == "lower" else -1.0

    @property
    def scale(self) -> float:
        """What the outcome is multiplied by before it is shown."""
        return 1.0 if self.relative else 100.0

    @property
    def unit(self) -> str:
        """Of differences."""
        return "%" if self.relative else "points"

    @property
    def label(self) -> str:
        """The outcome with its unit, for axes and headings."""
        return self.noun if self.relative else f"{self.noun}, %"

    @property
    def tuning(self) -> "Measure":
        """That of tuning runs."""
        return replace(self, outcome=self.chosen_by or self.outcome, noun=self.chosen_noun or self.noun)

    @property
    def how(self) -> str:
        """How methods are compared, in words."""
        kind = "of the mean log-ratio, shown in per cent" if self.relative else "of the mean difference, in points"
        return (
            f"Differences are paired by seed, with Student's interval {kind}, at the level 95 %, from two seeds on: a "
            "bootstrap, as elsewhere in this suite, would need six. A method that lost a run has no interval, and is "
            "behind a method that lost none."
        )

    def compare(self, first: Values, second: Values) -> Interval:
        """The first's difference from the second, paired, in units; what is worse is above 0 for losses, else below.

        A first that lost a run is infinitely worse, whatever the second did.
        """
        if lost := diverged(first):
            return Interval(self.sign * inf, -inf, inf, first.size, lost)
        if self.relative:
            interval = relative_difference(first, second, better=self.better)
            return interval._replace(
                estimate=100.0 * interval.estimate, low=100.0 * interval.low, high=100.0 * interval.high
            )
        return student_interval(differences(100.0 * first, 100.0 * second, self.better))

    def lag(self, first: Values, second: Values) -> Interval:
        """How far the first is behind the second, paired, in units: above 0 where it is worse."""
        interval = self.compare(first, second)
        if self.relative:
            return interval
        return interval._replace(estimate=-interval.estimate, low=-interval.high, high=-interval.low)

    def chance(self, first: Values, second: Values) -> float:
        """The chance of such a difference where there is none."""
        if self.relative:
            return student_chance(log_ratios(first, second, self.better))
        return student_chance(differences(first, second, self.better))

    def format_mean(self, values: Values) -> str:
        """The mean of what finished, and how many runs did not."""
        finished = values[np.isfinite(values)]
        average = format_number(self.scale * float(finished.mean()), 4) if finished.size else ""
        lost = f"{values.size - finished.size} of {values.size} lost" if finished.size < values.size else ""
        return ", ".join(filter(None, (average, lost)))

    def limit(self, best: float, reach: float) -> float:
        """Beyond which a figure need not tell bad from worse, which would hide what differs near the best."""
        return best * (1.0 + reach) if self.relative else best * (1.0 - 0.5 * reach)


def format_difference(interval: Interval, digits: int = 2) -> str:
    """A difference and its interval, with so many decimals."""
    if not np.isfinite(interval.estimate):
        return "" if np.isnan(interval.estimate) else "lost runs"
    low, middle, high = (
        f"{value:+.{digits}f}".replace("-", "\u2212") for value in (interval.low, interval.estimate, interval.high)
    )
    return f"{middle} ({low} to {high})" if np.isfinite([interval.low, interval.high]).all() else middle


def average(values: Iterable[float]) -> float:
    """The mean of those that are there; NaN if none is."""
    known = [value for value in values if isfinite(value)]
    return float(np.mean(known)) if known else nan


def format_share(share: float) -> str:
    """In per cent; nothing if there is none."""
    return f"{100.0 * share:.1f} %" if isfinite(share) else ""
