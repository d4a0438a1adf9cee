"""A trial as a value: all that decides its result, and a key made from that."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from typing import Any

EQUATIONS = "equations"
"""Of a condition: which equations and defaults a method had whose equations may change."""


@dataclass(frozen=True)
class Trial:
    """One method under one condition with one seed; every part of it is plain data that JSON can hold.

    Trials with the same seed are paired: whatever the method, they see the same initial values, data and corruption.
    """

    experiment: str
    version: int
    settings: dict[str, Any]  # of the experiment, as far as they decide a result
    condition: dict[str, Any]  # such as the noise level
    method: str
    seed: int

    @cached_property
    def key(self) -> str:
        """Names the trial's content: another version, setting, condition, method or seed has another key."""
        content = {
            "experiment": self.experiment,
            "version": self.version,
            "settings": self.settings,
            "condition": self.condition,
            "method": self.method,
            "seed": self.seed,
        }
        return hashlib.sha256(canonical(content).encode()).hexdigest()[:32]

    def __hash__(self) -> int:
        return hash(self.key)


@dataclass(frozen=True)
class Result:
    """What came out of a trial: numbers, or lists of numbers, by name; and where it was run."""

    trial: Trial
    outcome: dict[str, Any]
    provenance: dict[str, Any]  # versions, device, commit, command, date, seconds


def keep_newest_equations(results: Sequence[Result]) -> list[Result]:
    """The results without those of equations or defaults that a method had before its newest result."""
    newest: dict[str, Result] = {}
    for result in sorted(results, key=lambda result: str(result.provenance.get("date", ""))):
        newest[result.trial.method] = result

    def name(result: Result) -> str | None:
        return result.trial.condition.get(EQUATIONS)

    return [result for result in results if name(result) == name(newest[result.trial.method])]


def canonical(value: Any) -> str:
    """The one JSON text of a value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=True)


def shorten(value: Any, digits: int) -> Any:
    """A number, or lists of numbers, with so many significant digits."""
    if isinstance(value, list | tuple):
        return [shorten(part, digits) for part in value]
    return float(f"{value:.{digits - 1}e}") if isinstance(value, float) and isfinite(value) else value


def group_trials(trials: Iterable[Trial]) -> list[dict[str, Any]]:
    """The trials of an experiment in few words: a group for each condition, with its methods and seeds."""
    groups: dict[str, dict[str, Any]] = {}
    for trial in trials:
        same = {"version": trial.version, "settings": trial.settings, "condition": trial.condition}
        group = groups.setdefault(canonical(same), {**same, "seeds": {}})
        group["seeds"].setdefault(trial.method, []).append(trial.seed)
    alike: dict[str, dict[str, Any]] = {}
    for place, group in enumerate(groups.values()):
        for method, seeds in group["seeds"].items():
            text = _join_seeds(seeds)
            each = alike.setdefault(f"{place} {text}", {**group, "methods": [], "seeds": text})
            each["methods"].append(method)
    return list(alike.values())


def expand_trials(experiment: str, methods: Sequence[str], groups: Iterable[dict[str, Any]]) -> Iterator[Trial]:
    """The trials of such groups, method by method."""
    listed = list(groups)
    for method in methods:
        for group in listed:
            if method in group["methods"]:
                for seed in parse_seeds(group["seeds"]):
                    yield Trial(experiment, group["version"], group["settings"], group["condition"], method, seed)


def parse_seeds(text: str) -> list[int]:
    """The numbers of a list of numbers and ranges, such as 1,5 or 3-7, in order."""
    ends = [[int(end) for end in part.split("-")] for part in text.split(",") if part]
    return sorted({seed for first, *last in ends for seed in range(first, (last[0] if last else first) + 1)})


def _join_seeds(seeds: Iterable[int]) -> str:
    ranges: list[list[int]] = []
    for seed in sorted(seeds):
        if ranges and seed == ranges[-1][-1] + 1:
            ranges[-1].append(seed)
        else:
            ranges.append([seed])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in ranges)
