"""What is to be run: orders, the batches of them that are not done yet, and one attempt at a batch."""

import hashlib
import time
import traceback
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from adaterm_bench.core import scratch
from adaterm_bench.core.experiment import Experiment, Progress
from adaterm_bench.core.provenance import describe_run
from adaterm_bench.core.registry import import_source, load
from adaterm_bench.core.trial import Trial, canonical, group_trials


@dataclass(frozen=True)
class Batch:
    """Trials that run together, with all that another process needs to run them."""

    source: str
    name: str
    settings: dict[str, Any]
    trials: list[Trial]
    origin: dict[str, str]  # the commit and the command
    plugins: tuple[str, ...] = ()  # files and modules that register methods
    out: str = ""  # the results directory, if it is to be seen from where the batch runs
    resumes: bool = False  # whether it may be interrupted when the time is up, and goes on from there

    @cached_property
    def key(self) -> str:
        """Names the batch's content."""
        return hashlib.sha256(" ".join(trial.key for trial in self.trials).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Attempt:
    """What came of running a batch: outcomes, or else an error."""

    outcomes: list[dict[str, Any]] | None
    provenance: dict[str, Any]
    error: str = ""
    blameless: bool = False  # lost with its machine, which says nothing about the batch


@dataclass(frozen=True)
class Order:
    """An experiment with its settings, for some methods and seeds."""

    source: str
    experiment: Experiment
    methods: Sequence[str]
    seeds: Sequence[int] | None
    label: str  # the preset and what was changed of it
    plugins: tuple[str, ...] = ()

    @cached_property
    def trials(self) -> list[Trial]:
        """All of them, done or not."""
        return self.experiment.trials(self.methods, self.seeds)

    def batches(
        self, done: Collection[str], origin: dict[str, str], out: str = "", interrupt: bool = False
    ) -> list[Batch]:
        """What is left to run; with `interrupt`, what writes checkpoints may be interrupted."""
        groups: dict[Any, dict[str, Trial]] = {}
        for trial in self.trials:
            if trial.key not in done:
                together = trial.method, self.experiment.together(trial)
                groups.setdefault(together, {})[trial.key] = trial
        name, settings = self.experiment.name, self._list_settings()
        resumes = interrupt and bool(out) and self.experiment.resumes
        return [
            Batch(self.source, name, settings, list(trials.values()), origin, self.plugins, out, resumes)
            for trials in groups.values()
        ]

    def plan(self) -> dict[str, Any]:
        """What the store keeps of it."""
        return {
            "source": self.source,
            "experiment": self.experiment.name,
            "label": self.label,
            "settings": self._list_settings(),
            "seeds": None if self.seeds is None else list(self.seeds),
            "methods": list(self.methods),
            "trials": group_trials(self.trials),
            "date": datetime.now(UTC).isoformat(),
        }

    def _list_settings(self) -> dict[str, Any]:
        return {field.name: getattr(self.experiment, field.name) for field in fields(self.experiment)}


def attempt(batch: Batch, device: str, progress: Progress) -> Attempt:
    """Run a batch in this process; whatever it raises is part of what this returns."""
    start, resumed = time.perf_counter(), scratch.has_checkpoint(batch.out, batch.key)
    try:
        for source in batch.plugins:
            import_source(source)
        experiment = load(batch.source, batch.name)(**batch.settings)
        device = device if experiment.on_gpu else "cpu"
        with scratch.use_folder(batch.out, batch.key):
            outcomes = experiment.run(batch.trials, device, progress)
        if len(outcomes) != len(batch.trials):
            raise ValueError(f"{batch.name} gave {len(outcomes)} outcomes for {len(batch.trials)} trials")
        outcomes = [experiment.shorten(outcome) for outcome in outcomes]
        canonical(outcomes)  # raises here, and not in the coordinator, if it is not plain data
    except Exception:
        hint = f" (it went on from checkpoints/{batch.key}.pt; delete that to start again)" if resumed else ""
        error = traceback.format_exc().rstrip() + hint
        return describe_loss(batch, device, error, time.perf_counter() - start)
    return Attempt(outcomes, _describe(batch, device, time.perf_counter() - start))


def describe_loss(batch: Batch, device: str, error: str, seconds: float = 0.0, blameless: bool = False) -> Attempt:
    """An attempt without outcomes."""
    return Attempt(None, _describe(batch, device, seconds), error, blameless)


def _describe(batch: Batch, device: str, seconds: float) -> dict[str, Any]:
    return describe_run(device, **batch.origin, seconds=round(seconds, 3))
