"""How fast regret and bounds grow: what every method did on every problem, and the power of T that fits it."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaterm_bench.core.trial import Result
from adaterm_bench.experiments.regret.problems import PROBLEMS
from adaterm_bench.reporting.intervals import Interval
from adaterm_bench.reporting.statistics import USUAL, trend

Values = NDArray[np.float64]

BOUNDED = {"AdaTerm": "theorem", "AdaTerm (gradient init)": "theorem", "No robustness": "corollary"}
METHODS = (*BOUNDED, "Adam", "AMSGrad")
LATE = 10  # exponents are fitted from the last time over this on


class Runs(NamedTuple):
    """What one method did on one problem: the times, and by name arrays of times by seeds."""

    times: Values
    series: dict[str, Values]

    def late(self, name: str) -> tuple[Values, Values]:
        """The times that count for growth, and values there."""
        chosen = self.times >= self.times[-1] / LATE
        return self.times[chosen], self.series[name][chosen]


RunsByCase = dict[tuple[str, str], Runs]  # by problem and method


def gather_runs(results: list[Result]) -> RunsByCase:
    """The runs of every problem and method, in the order of the report."""
    runs: RunsByCase = {}
    keys = sorted({(result.trial.condition["problem"], result.trial.method) for result in results}, key=_rank_case)
    for key in keys:
        outcomes = [
            result.outcome for result in results if (result.trial.condition["problem"], result.trial.method) == key
        ]
        series = {name: np.array([outcome[name] for outcome in outcomes], dtype=np.float64).T for name in outcomes[0]}
        runs[key] = Runs(series["time"][:, 0], series)
    return runs


def _rank_case(key: tuple[str, str]) -> tuple[int, int]:
    return list(PROBLEMS).index(key[0]), METHODS.index(key[1])


def measure_ratios(run: Runs, above: str, below: str) -> Values:
    """All quotients of two outcomes, where the lower one is positive."""
    positive = run.series[below] > 0.0
    return np.asarray(run.series[above][positive] / run.series[below][positive])


def fit_exponent(times: Values, values: Values, comparisons: int = 1) -> Interval:
    """The power of T with which the mean over seeds grows; without a value where a mean is not positive.

    As one of several comparisons it has a wider interval: by Bonferroni's correction all of them hold at once.
    """
    if len(times) < 2:
        return Interval(float("nan"), -np.inf, np.inf, values.shape[-1])
    bootstrap = replace(USUAL, level=1.0 - (1.0 - USUAL.level) / comparisons)
    return trend(
        np.log(times),
        values,
        kind="slope",
        statistic=lambda sample: np.log(np.mean(sample, axis=-1)),
        bootstrap=bootstrap,
    )


def find_fastest(runs: list[Runs], name: str) -> Interval:
    """Of the exponents and of the ends of their intervals the largest; what has no exponent does not grow."""
    grown = [fit_exponent(*run.late(name), len(runs)) for run in runs]
    finite = [growth for growth in grown if np.isfinite(growth.estimate)]
    if not finite:
        return Interval(float("nan"), -np.inf, np.inf, 0)
    estimate, low, high = (max(growth[place] for growth in finite) for place in range(3))
    return Interval(estimate, low, high, finite[0].seeds)
