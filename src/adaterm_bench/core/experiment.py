"""What an experiment is: settings with the paper's values as defaults, trials, and how to run and show them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from math import inf, isfinite
from typing import Any, ClassVar

from adaterm_bench.core.section import Section
from adaterm_bench.core.trial import EQUATIONS, Result, Trial, shorten

Progress = Callable[[float], None]
"""Is told how much of a batch is done, from 0 to 1."""
CHANGING: dict[str, Callable[[], str]] = {}
"""Methods whose equations may change, and what names these as they are now: new equations are new trials."""


def grid(default: Any, meaning: str, choices: Collection[str] = (), least: float = -inf, most: float = inf) -> Any:
    """A setting that says which trials there are, or how they are run, and is not in their keys; it may be limited.

    How they are run may at most change the rounding of results (`rl` on seeds side by side: see docs/rl.md).
    """
    limits = {"choices": choices, "least": least, "most": most}
    return field(default=default, metadata={"grid": True, "help": meaning, **limits})


def setting(default: Any, meaning: str, choices: Collection[str] = (), least: float = -inf, most: float = inf) -> Any:
    """A setting that decides the results; it may be limited."""
    return field(default=default, metadata={"help": meaning, "choices": choices, "least": least, "most": most})


def list_checks(epochs: int, checks: int) -> list[int]:
    """The epochs after which to look at what has been learnt, about as many as checks; the last is among them."""
    every = max(1, epochs // checks)
    return sorted({*range(every, epochs + 1, every), epochs})


@dataclass(frozen=True)
class Experiment(ABC):
    """A frozen dataclass of settings; a subclass adds its own, made with `setting` and `grid`.

    Raise `version` when the same settings would give other results than before: finished trials then do not count.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    version: ClassVar[int]
    methods: ClassVar[Sequence[str]]
    presets: ClassVar[Mapping[str, Mapping[str, Any]]]  # "smoke", "quick" and "paper" or "full": settings that differ
    unavailable: ClassVar[Mapping[str, str]] = {}  # methods for which a package is missing here, and how to get it
    takes_methods: ClassVar[bool] = True  # whether methods that users register can run in it
    former: ClassVar[Mapping[int, str]] = {}  # versions whose results are still shown, and what was different in them
    digits: ClassVar[Mapping[str, int]] = {}  # significant ones that are stored of curves, by the outcome's name
    resumes: ClassVar[bool] = False  # whether it writes checkpoints, so that a batch goes on where it was interrupted
    on_gpu: ClassVar[bool] = True  # whether a GPU is of any use; else it runs on the CPU, whatever the device

    seeds: int = grid(1, "number of seeds", least=1)

    def __post_init__(self) -> None:
        """Refuse settings beyond their limits, what is not a number, and unknown names."""
        for setting_field in fields(self):
            value = getattr(self, setting_field.name)
            for element in value if isinstance(value, tuple | list) else (value,):
                _check(setting_field.name, element, setting_field.metadata)

    @abstractmethod
    def conditions(self) -> list[dict[str, Any]]:
        """What varies apart from method and seed."""

    @abstractmethod
    def run(self, trials: list[Trial], device: str, progress: Progress) -> list[dict[str, Any]]:
        """The outcomes of trials that `together` puts into one batch, in their order; all of it is plain data."""

    @abstractmethod
    def section(self, results: list[Result]) -> Section:
        """What the report shows of the results there are."""

    def prepare(self) -> None:  # noqa: B027 (most experiments have nothing to do here)
        """Called once before trials run on this machine: raise a `DataError` here if data is missing or broken."""

    def check(self, results: Sequence[Result]) -> None:  # noqa: B027 (likewise)
        """Raise a `DataError` if the results that a directory has, of this version, are of other data than is named."""

    def together(self, trial: Trial) -> Any:
        """Trials of a method for which this is equal run as one batch; by default each runs alone."""
        return trial.key

    def trials(self, methods: Sequence[str], seeds: Sequence[int] | None = None) -> list[Trial]:
        """The whole grid, for some methods and seeds."""
        marks = {method: {EQUATIONS: CHANGING[method]()} if method in CHANGING else {} for method in methods}
        return [
            Trial(self.name, self.version, self.decisive(), {**condition, **marks[method]}, method, seed)
            for method in methods
            for condition in self.conditions()
            for seed in (range(self.seeds) if seeds is None else seeds)
        ]

    @classmethod
    def accepts(cls, method: str) -> bool:
        """Whether it knows a method, beside those that users register; one with impossible options may raise."""
        return method in cls.methods

    @classmethod
    def shorten(cls, outcome: Mapping[str, Any]) -> dict[str, Any]:
        """An outcome as it is stored: curves with as many digits as their figure shows, all else exactly."""
        return {
            name: shorten(value, cls.digits[name]) if name in cls.digits else value for name, value in outcome.items()
        }

    def decisive(self) -> dict[str, Any]:
        """The settings that decide results."""
        return {
            setting_field.name: getattr(self, setting_field.name)
            for setting_field in fields(self)
            if not setting_field.metadata.get("grid")
        }


def _check(name: str, value: Any, limits: Mapping[str, Any]) -> None:
    choices, least, most = limits.get("choices") or (), limits.get("least", -inf), limits.get("most", inf)
    if choices and value not in choices:
        close = get_close_matches(str(value), list(choices), 1, 0.5)
        hint = f"Did you mean {close[0]!r}? " if close else ""
        raise ValueError(f"{name}: there is no {value!r}. {hint}There is: {', '.join(choices)}.")
    if isinstance(value, int | float) and not (isfinite(value) and least <= value <= most):
        bounds = [f"at least {least:g}"] * (least > -inf) + [f"at most {most:g}"] * (most < inf)
        raise ValueError(f"{name}={value}: this must be {' and '.join(bounds) or 'a finite number'}")
