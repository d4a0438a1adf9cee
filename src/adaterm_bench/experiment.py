"""What an experiment is: settings with the paper's values as defaults, trials, and how to run and show them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from adaterm_bench.report import Section
from adaterm_bench.trial import Result, Trial

Progress = Callable[[float], None]
"""Is told how much of a batch is done, from 0 to 1."""


def grid(default: Any, meaning: str, choices: Collection[str] = ()) -> Any:
    """A setting that says which trials there are, and does not change any of them; of names it may say which exist."""
    return field(default=default, metadata={"grid": True, "help": meaning, "choices": choices})


def setting(default: Any, meaning: str) -> Any:
    """A setting that decides the results."""
    return field(default=default, metadata={"help": meaning})


@dataclass(frozen=True)
class Experiment(ABC):
    """A frozen dataclass of settings; a subclass adds its own, made with `setting` and `grid`.

    Raise `version` when the same settings would give other results than before: finished trials then do not count.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    version: ClassVar[int]
    methods: ClassVar[Sequence[str]]
    presets: ClassVar[Mapping[str, Mapping[str, Any]]]  # "smoke", "quick" and "paper": settings that differ

    seeds: int = grid(1, "number of seeds")

    @abstractmethod
    def conditions(self) -> list[dict[str, Any]]:
        """What varies beside method and seed."""

    @abstractmethod
    def run(self, trials: list[Trial], device: str, progress: Progress) -> list[dict[str, Any]]:
        """The outcomes of trials that `together` puts into one batch, in their order; all of it is plain data."""

    @abstractmethod
    def section(self, results: list[Result]) -> Section:
        """What the report shows of the results there are."""

    def together(self, trial: Trial) -> Any:
        """Trials for which this is equal run as one batch; by default each runs alone."""
        return trial.key

    def trials(self, methods: Sequence[str], seeds: Sequence[int] | None = None) -> list[Trial]:
        """The whole grid, for some methods and seeds."""
        return [
            Trial(self.name, self.version, self.decisive(), condition, method, seed)
            for method in methods
            for condition in self.conditions()
            for seed in (range(self.seeds) if seeds is None else seeds)
        ]

    def decisive(self) -> dict[str, Any]:
        """The settings that decide results."""
        return {it.name: getattr(self, it.name) for it in fields(self) if not it.metadata.get("grid")}
