"""Gives batches to whatever runs them, keeps what comes back, and tries again what failed; it alone writes results."""

import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Protocol

from adaterm_bench.core import scratch
from adaterm_bench.core.progress import Display
from adaterm_bench.core.store import Store
from adaterm_bench.core.trial import Result, Trial, canonical
from adaterm_bench.core.work import Attempt, Batch

LOSSES = 20  # machines that may vanish under a batch before that counts as its failure


@dataclass(frozen=True)
class Event:
    """News of a batch: it has begun, a fraction of it is done, or an attempt at it has ended."""

    batch: Batch
    fraction: float = 0.0
    attempt: Attempt | None = None


class Pool(Protocol):
    """Runs batches somewhere."""

    @property
    def capacity(self) -> int:
        """How many batches it takes at once."""

    @property
    def interrupts(self) -> bool:
        """Whether `close` ends batches in their midst, which then go on from their checkpoints."""

    def submit(self, batch: Batch) -> None:
        """Begin a batch; there is room for it."""

    def wait(self) -> list[Event]:
        """What has happened, after at most a second or so, unless batches run in this very process."""

    def close(self) -> None:
        """End everything, finished or not."""


class Times:
    """How long batches took, to tell how long another one will take."""

    def __init__(self, results: Iterable[Result]) -> None:
        self.longest: dict[tuple[str, str], float] = {}
        for result in results:
            self.add(result.trial, result.provenance["seconds"])

    def add(self, trial: Trial, seconds: float) -> None:
        """A batch with this trial took so long."""
        kind = self._classify(trial)
        self.longest[kind] = max(self.longest.get(kind, 0.0), seconds)

    def due(self, batch: Batch) -> float:
        """The longest time of this condition and these settings; if there is none, of the experiment; else nothing."""
        kind = self._classify(batch.trials[0])
        others = (each for (name, _), each in self.longest.items() if name == kind[0])
        return self.longest[kind] if kind in self.longest else max(others, default=0.0)

    def _classify(self, trial: Trial) -> tuple[str, str]:
        return trial.experiment, canonical([trial.settings, trial.condition])


def carry_out(
    batches: Sequence[Batch], pool: Pool, store: Store, display: Display, retries: int, seconds: float = inf
) -> int:
    """Run every batch, `retries` times more if it fails; the pool is closed whatever happens.

    Where there are only so many seconds, a batch that would not end in them, going by the longest of its kind in this
    directory, is not begun; one that resumes is begun all the same, and is interrupted then.
    The number of trials that are left for these reasons is returned.
    """
    times = Times(store.results() if isfinite(seconds) else ())
    end = time.monotonic() + seconds
    waiting, taken = deque(batches), dict[str, Batch]()
    fractions: dict[str, float] = {}  # of the batches that have begun
    resumed = {batch.key for batch in batches if scratch.has_checkpoint(batch.out, batch.key)}
    failed, losses = Counter[str](), Counter[str]()
    sizes = {batch.key: len(batch.trials) for batch in batches}

    def next_one() -> Batch | None:
        return next((batch for batch in waiting if time.monotonic() + find_least(batch) < end), None)

    def find_least(batch: Batch) -> float:
        """The seconds that a batch needs, or it is not begun."""
        return 0.0 if batch.resumes and pool.interrupts else times.due(batch)

    def is_over() -> bool:
        """Whether all that still runs is to be interrupted now."""
        return time.monotonic() > end and pool.interrupts and all(batch.resumes for batch in taken.values())

    try:
        while (taken or next_one()) and not is_over():
            while len(taken) < pool.capacity and (begun := next_one()):
                waiting.remove(begun)
                taken[begun.key] = begun
                pool.submit(begun)
            display.running = sum(sizes[key] for key in fractions)
            display.show(sum(sizes[key] * fraction for key, fraction in fractions.items()))
            for event in pool.wait():
                batch, attempt = event.batch, event.attempt
                if attempt is None:
                    fractions[batch.key] = min(max(event.fraction, 0.0), 1.0)
                    if event.fraction > 0.0 and batch.key in resumed:  # what was done before says nothing on the pace
                        resumed.remove(batch.key)
                        display.before += sizes[batch.key] * fractions[batch.key]
                    continue
                del taken[batch.key]
                fractions.pop(batch.key, None)
                if attempt.outcomes is not None:
                    store.add(batch.trials, attempt.outcomes, attempt.provenance)
                    scratch.forget(batch.out, batch.key)
                    display.done += len(batch.trials)
                    times.add(batch.trials[0], attempt.provenance["seconds"])
                    continue
                count, limit = (losses, LOSSES) if attempt.blameless else (failed, retries)
                count[batch.key] += 1
                again = count[batch.key] <= limit
                display.say(_describe_failure(batch, attempt, again))
                if again:
                    waiting.append(batch)
                else:
                    store.fail(batch.trials, attempt.error, count[batch.key], attempt.provenance)
                    display.failed += len(batch.trials)
        return sum(sizes[batch.key] for batch in (*waiting, *taken.values()))
    finally:
        display.running = 0
        display.close()
        pool.close()


def _describe_failure(batch: Batch, attempt: Attempt, again: bool) -> str:
    first = batch.trials[0]
    others = f" and {len(batch.trials) - 1} more" if len(batch.trials) > 1 else ""
    reason = attempt.error.strip().splitlines()[-1]
    return (
        f"{first.experiment} {first.method} {first.condition} seed {first.seed}{others}: {reason}"
        f" ({'tried again later' if again else 'given up'})"
    )
