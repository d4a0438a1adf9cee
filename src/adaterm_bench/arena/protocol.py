"""The arena's protocol: learning rates are chosen on tuning seeds, from one grid, and then kept for other seeds.

Trials of the arena have a condition with `model`, `noise` and `lr`, and those of our methods with `equations`, which
names the equations and defaults that they ran with: results of others are not mixed.

Two tracks are told apart: rates chosen on clean data and kept for all noises, as people do, and rates chosen for each
noise on its own.
"""

from collections import defaultdict
from collections.abc import Sequence
from math import inf, isfinite
from typing import NamedTuple

from adaterm_bench.core.flags import UsageError
from adaterm_bench.core.trial import Result

RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
TUNING_SEEDS = (1000, 1001)
"""Seeds on which rates, and the defaults of RobustAdamW, are chosen; final numbers are of seeds below them."""
CLEAN = "clean"


class Choice(NamedTuple):
    """A learning rate that was chosen, and the mean outcome of each rate of the grid; infinite where a run was lost.

    There is no rate to choose if runs were lost at all of them.
    """

    rate: float | None
    outcomes: dict[float, float]


class NotTunedError(UsageError):
    """No learning rate can be chosen; the message says what to run first."""


def is_tuning(seed: int) -> bool:
    """Whether this is no final seed: results of it may decide something, and are in no table of final outcomes."""
    return seed >= TUNING_SEEDS[0]


def choose_rates(
    results: Sequence[Result], outcome: str, noise: str = CLEAN, sign: float = 1.0
) -> dict[tuple[str, str], Choice]:
    """The best rate of each method and model in a condition, by the mean outcome of the tuning seeds.

    `sign` is 1 where a lower outcome is better, and -1 where a higher one is. A rate that has fewer seeds than another
    does not count.
    """
    outcomes: dict[tuple[str, str], dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for result in results:
        condition = result.trial.condition
        if condition["noise"] == noise and result.trial.seed in TUNING_SEEDS:
            value = result.outcome[outcome]
            cost = sign * value if value is not None and isfinite(value) else inf
            outcomes[result.trial.method, condition["model"]][condition["lr"]].append(cost)
    choices = {}
    for key, by_rate in outcomes.items():
        most = max(map(len, by_rate.values()))
        means = {rate: sum(costs) / most for rate, costs in sorted(by_rate.items()) if len(costs) == most}
        best = min(means, key=lambda rate: means[rate])
        choices[key] = Choice(
            best if isfinite(means[best]) else None, {rate: sign * cost for rate, cost in means.items()}
        )
    return choices
