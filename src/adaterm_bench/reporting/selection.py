"""Results as arrays: what statistics and figures take."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaterm_bench.core.trial import Result

Values = NDArray[np.float64]


class Grid(NamedTuple):
    """One outcome of every method: levels by seeds, the same seeds for all, so that they can be paired."""

    levels: list[Any]
    seeds: list[int]
    values: dict[str, Values]
    left_out: tuple[str, ...] = ()  # methods and levels that are not in the grid, because trials are missing

    def at(self, method: str, level: Any) -> Values:
        """A method's outcome at one level, by seed."""
        row: Values = self.values[method][self.levels.index(level)]
        return row

    @property
    def note(self) -> str:
        """What a table should say of what is missing."""
        return f" Not shown, because trials are missing that the others have: {', '.join(self.left_out)}." * bool(
            self.left_out
        )


def select(results: Sequence[Result], outcome: str, level: str, methods: Sequence[str], **fixed: Any) -> Grid:
    """An outcome against a condition named `level`, others fixed, for the seeds that all methods have at all levels.

    Methods and levels of which trials are missing are left out as far as needed, and so is a method whose few seeds
    would cost the others more than it adds. So are methods for which the outcome is nothing. Those that are named come
    first, in their order.
    """
    cells: dict[str, dict[Any, dict[int, float]]] = {}
    for trial, outcomes in ((result.trial, result.outcome) for result in results):
        if outcome not in outcomes:
            raise KeyError(f"no outcome {outcome!r}: there is {', '.join(outcomes)}")
        if all(trial.condition.get(name) == value for name, value in fixed.items()) and outcomes[outcome] is not None:
            cells.setdefault(trial.method, {}).setdefault(trial.condition[level], {})[trial.seed] = outcomes[outcome]
    rows = [method for method in (*methods, *sorted(cells.keys() - set(methods))) if method in cells]
    levels = sorted({place for method in rows for place in cells[method]})
    left_out = _drop_incomplete(cells, rows, levels)
    seeds = sorted(_share_seeds(cells, rows, levels))
    values = {
        method: np.array([[cells[method][place][seed] for seed in seeds] for place in levels], dtype=np.float64)
        for method in rows
    }
    return Grid(levels, seeds, values, tuple(left_out))


Cells = Mapping[str, Mapping[Any, Mapping[int, float]]]


def _share_seeds(cells: Cells, rows: Sequence[str], levels: Sequence[Any]) -> set[int]:
    """The seeds that all these methods have at all these levels."""
    present = [set(cells[row].get(at, ())) for row in rows for at in levels]
    return set.intersection(*present) if present else set()


def _drop_incomplete(cells: Cells, rows: list[str], levels: list[Any]) -> list[str]:
    """Remove rows and levels, those with most missing first, until all that stay share a seed; what was removed."""
    left_out = []
    while rows and levels and not _share_seeds(cells, rows, levels):
        common = Counter(seed for row in rows for at in levels for seed in cells[row].get(at, ()))
        seed = max(common, key=lambda pair: (common[pair], -pair))
        lacking = [(row, at) for row in rows for at in levels if seed not in cells[row].get(at, ())]
        by_row, by_level = Counter(row for row, _ in lacking), Counter(at for _, at in lacking)
        row, missing = max(by_row.items(), key=lambda pair: pair[1])
        at, absent = max(by_level.items(), key=lambda pair: pair[1])
        if missing / len(levels) >= absent / len(rows):
            rows.remove(row)
            left_out.append(row)
        else:
            levels.remove(at)
            left_out.append(str(at))
    while rows:
        fewest = min(rows, key=lambda row: len(_share_seeds(cells, [row], levels)))
        others = [row for row in rows if row != fewest]
        if len(others) * len(_share_seeds(cells, others, levels)) <= len(rows) * len(_share_seeds(cells, rows, levels)):
            break
        rows.remove(fewest)
        left_out.append(fewest)
    return left_out
