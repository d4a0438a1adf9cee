"""The arena's final runs, those of fresh seeds at the learning rates that tuning seeds chose, and their comparison."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf, isfinite, isnan, nan
from typing import Any, NamedTuple

import numpy as np

from adaterm_bench.arena.measure import LEAST, Measure
from adaterm_bench.arena.protocol import CLEAN, Choice, choose_rates, is_tuning
from adaterm_bench.core.trial import Result
from adaterm_bench.reporting.intervals import Interval, Values
from adaterm_bench.reporting.statistics import correct_by_holm, rank_values, with_worst

OURS = "RobustAdamW"
CLIPPED = "RobustAdamW (clipped)"
JUDGED = "Muon (judged)"
JUDGED_BY_LOSS = ("AdamW (judged by loss)", "Muon (judged by loss)")
OUR_ARMS = (OURS, CLIPPED, JUDGED, *JUDGED_BY_LOSS)
BASELINE = "AdamW (clipped)"
ORACLE = "Oracle"
ORDER = (
    *("AdamW", BASELINE, "SkipStepAdamW", "ZClip", "ZClip (alone)", "AdaGC", "Stable-SPAM", "StableAdamW", "ADOPT"),
    *("Lion", "Schedule-Free AdamW", "Muon", "t-Adam", "AdaTerm", "AdaTerm (gradient init)", *OUR_ARMS, ORACLE),
)
"""How methods are listed; variants with options come before the oracle, and others last. Reports do not import the arms
themselves, which need torch."""
MAY_VARY = ("t-Adam", "AdaTerm", OURS)
"""How the names of arms begin that may have options behind them, as in “RobustAdamW dof=10”."""
Runs = dict[int, dict[str, Any]]
Rule = Callable[[str, str], float | None]


@dataclass(frozen=True)
class Finals:
    """The final runs of one model by method and noise, each by seed, and the rate of each."""

    model: str
    runs: dict[tuple[str, str], Runs]
    rates: dict[tuple[str, str], float]
    untuned: tuple[str, ...] = ()
    """Methods without tuning runs, at the only rate that they have."""

    @property
    def methods(self) -> list[str]:
        """All that have a run, in order."""
        return order_methods(method for method, _ in self.runs)

    @property
    def noises(self) -> set[str]:
        """All that have a run."""
        return {noise for _, noise in self.runs}

    @property
    def seeds(self) -> list[int]:
        """All that have a run."""
        return sorted({seed for runs in self.runs.values() for seed in runs})

    def values(self, method: str, noise: str, outcome: str) -> Values:
        """An outcome of a method's runs under a noise, by seed; there may be none."""
        runs = self.runs.get((method, noise), {})
        return np.array([_to_number(runs[seed].get(outcome)) for seed in sorted(runs)], dtype=np.float64)

    def pair(self, first: str, second: str, noise: str, outcome: str) -> tuple[Values, Values]:
        """An outcome of two methods under a noise, for the seeds that both have; there may be none."""
        return self._pair((first, noise), (second, noise), outcome)

    def pair_with_clean(self, method: str, noise: str, outcome: str) -> tuple[Values, Values]:
        """An outcome of a method under a noise and on clean data, for the seeds that both have; there may be none."""
        return self._pair((method, noise), (method, CLEAN), outcome)

    def _pair(self, first: tuple[str, str], second: tuple[str, str], outcome: str) -> tuple[Values, Values]:
        sides = [self.runs.get(side, {}) for side in (first, second)]
        seeds = sorted(sides[0].keys() & sides[1].keys())
        left, right = (np.array([_to_number(side[seed].get(outcome)) for seed in seeds]) for side in sides)
        return left, right


class Column(NamedTuple):
    """The comparison of methods under one noise with the best of them."""

    best: str
    behind: dict[str, Interval]
    """How far each is behind the best, itself included, in the measure's units; above 0 where it is worse."""
    tied: frozenset[str]
    """Those that are not shown to be worse, by Holm's correction over all comparisons with the best."""
    ranks: dict[str, float]

    def judges(self, method: str) -> bool:
        """Whether there are seeds enough to say who is best, and how this method stands to it: two of each."""
        return all(name in self.behind and self.behind[name].seeds >= 2 for name in (method, self.best))


def is_ours(method: str) -> bool:
    """Whether this is RobustAdamW, a variant of it, or another method with its judgement."""
    return method in OUR_ARMS or method.partition(" ")[0] == OURS


def order_methods(methods: Iterable[str]) -> list[str]:
    """Known methods in their order, and then the others."""
    present = dict.fromkeys(methods)
    variants = [method for method in present if "=" in method and method.startswith(MAY_VARY)]
    ordered = [method for method in (*ORDER[:-1], *variants, ORDER[-1]) if method in present]
    return [*ordered, *(method for method in present if method not in ordered)]


def select_finals(results: Sequence[Result], measure: Measure, model: str) -> Finals:
    """The final runs of a model at the rates that were chosen on clean data.

    A method without tuning runs is there if all its final runs have one rate.
    """
    choices = choose_on(results, measure, model, CLEAN)
    rates: dict[str, set[float]] = {}
    for result in _list_finals(results, model):
        rates.setdefault(result.trial.method, set()).add(result.trial.condition["lr"])
    alone = {method: min(rate) for method, rate in rates.items() if method not in choices and len(rate) == 1}

    def choose(method: str, _: str) -> float | None:
        return choices[method].rate if method in choices else alone.get(method)

    return _collect(results, model, choose, tuple(order_methods(alone)))


def select_second_track(results: Sequence[Result], measure: Measure, model: str) -> Finals:
    """The final runs at the rates that were chosen for each noise, where there were several to choose from."""
    noises = {result.trial.condition["noise"] for result in results if is_tuning(result.trial.seed)} - {CLEAN}
    choices = {noise: choose_on(results, measure, model, noise) for noise in noises}

    def choose(method: str, noise: str) -> float | None:
        choice = choices.get(noise, {}).get(method)
        return choice.rate if choice is not None and len(choice.outcomes) > 1 else None

    return _collect(results, model, choose, ())


def choose_on(results: Sequence[Result], measure: Measure, model: str, noise: str) -> dict[str, Choice]:
    """The choice of each method's rate for a model, on a noise."""
    outcome = measure.tuning.outcome
    measured = [result for result in results if outcome in result.outcome]
    choices = choose_rates(measured, outcome, noise, measure.sign)
    return {method: choices[method, model] for method in order_methods(name for name, of in choices if of == model)}


def compare_column(finals: Finals, measure: Measure, noise: str, methods: Sequence[str]) -> Column | None:
    """Compare methods under a noise with the best of them, or None if no method has a run that finished.

    The best has the best mean of those with most seeds, so that few lucky seeds win nothing, unless others, with three
    seeds at least, are shown to be ahead of it: then it is the best of these. Where seeds differ, all are compared with
    it over the seeds they share.
    """
    values = {method: finals.values(method, noise, measure.outcome) for method in methods}
    values = {method: runs for method, runs in values.items() if runs.size}
    costs = {method: measure.sign * float(with_worst(runs, measure.better).mean()) for method, runs in values.items()}
    finite = [method for method in values if isfinite(costs[method])]
    if not finite:
        return None

    def compare(best: str) -> tuple[dict[str, Interval], dict[str, float]]:
        """How far each is behind the best, and the chance of it, by Holm's correction."""
        behind, chances = {}, {}
        for method in values:
            tested, rival = finals.pair(method, best, noise, measure.outcome)
            if not tested.size:  # no seed in common: the means have to do
                tested, rival = values[method].mean(keepdims=True), values[best].mean(keepdims=True)
            behind[method], chances[method] = measure.lag(tested, rival), measure.chance(tested, rival)
            if method not in finite:
                behind[method], chances[method] = Interval(inf, -inf, inf, tested.size), nan
        del chances[best]
        return behind, dict(zip(chances, correct_by_holm(list(chances.values())), strict=True))

    most = max(values[method].size for method in finite)
    best = min((method for method in finite if values[method].size == most), key=lambda method: costs[method])
    behind, chances = compare(best)
    shown = [method for method, chance in chances.items() if chance < 0.05 and behind[method].seeds >= LEAST]
    if ahead := [method for method in shown if behind[method].estimate < 0.0]:
        best = min(ahead, key=lambda method: behind[method].estimate)
        behind, chances = compare(best)
    tied = frozenset(
        method
        for method, chance in chances.items()
        if chance >= 0.05 or (not isnan(chance) and behind[method].estimate < 0.0)
    )
    ranks = rank_values(np.array([behind[method].estimate for method in values])) + 1.0
    return Column(best, behind, tied, dict(zip(values, map(float, ranks), strict=True)))


def _list_finals(results: Iterable[Result], model: str) -> list[Result]:
    return [
        result for result in results if result.trial.condition["model"] == model and not is_tuning(result.trial.seed)
    ]


def _collect(results: Sequence[Result], model: str, choose: Rule, untuned: tuple[str, ...]) -> Finals:
    runs: dict[tuple[str, str], Runs] = {}
    rates: dict[tuple[str, str], float] = {}
    for result in _list_finals(results, model):
        trial, place = result.trial, (result.trial.method, result.trial.condition["noise"])
        rate = choose(*place)
        if rate is not None and trial.condition["lr"] == rate:
            runs.setdefault(place, {})[trial.seed] = result.outcome
            rates[place] = rate
    return Finals(model, runs, rates, untuned)


def _to_number(value: Any) -> float:
    return nan if value is None else float(value)
