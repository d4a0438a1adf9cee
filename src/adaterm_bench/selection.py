"""Results as arrays: what statistics and figures take."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaterm_bench.trial import Result

Values = NDArray[np.float64]


class Grid(NamedTuple):
    """One outcome of every method: levels by seeds, the same seeds for all, so that they can be paired."""

    levels: list[Any]
    seeds: list[int]
    values: dict[str, Values]

    def at(self, method: str, level: Any) -> Values:
        """A method's outcome at one level, by seed."""
        found: Values = self.values[method][self.levels.index(level)]
        return found


def selected(results: Sequence[Result], outcome: str, level: str, methods: Sequence[str], **fixed: Any) -> Grid:
    """An outcome against a condition named `level`, others fixed; seeds that a method lacks are left out.

    So are methods for which the outcome is nothing. Those that are named come first, in their order.
    """
    cells: dict[str, dict[tuple[Any, int], float]] = {}
    for trial, found, _ in ((it.trial, it.outcome, it) for it in results):
        if all(trial.condition.get(name) == value for name, value in fixed.items()) and found[outcome] is not None:
            cells.setdefault(trial.method, {})[trial.condition[level], trial.seed] = found[outcome]
    present = [method for method in (*methods, *sorted(cells.keys() - set(methods))) if method in cells]
    levels = sorted({place for method in present for place, _ in cells[method]})
    seeds = sorted(
        seed
        for seed in {seed for method in present for _, seed in cells[method]}
        if all((place, seed) in cells[method] for method in present for place in levels)
    )
    values = {
        method: np.array([[cells[method][place, seed] for seed in seeds] for place in levels], dtype=np.float64)
        for method in present
    }
    return Grid(levels, seeds, values)
