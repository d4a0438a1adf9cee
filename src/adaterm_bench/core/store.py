"""A results directory: finished batches are whole files or nothing, so nothing that was finished is ever lost."""

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from adaterm_bench.core.archive import OLD_SUFFIX, SUFFIX, DamagedError, FormatError, decode, encode
from adaterm_bench.core.files import write_whole
from adaterm_bench.core.trial import Result, Trial, canonical, expand_trials, group_trials


class StoreError(Exception):
    """The directory cannot be used; the message says what to do."""


class Store:
    """Results, failures and plans in one directory, which is made when something is first written.

    `results/` has a file for each batch, or, when they were packed, for each experiment.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.corrupt: list[str] = []  # a sentence for every file that was set aside
        self._results: dict[str, Result] = {}
        self._read: set[Path] = set()

    def done(self) -> set[str]:
        """The keys of the finished trials."""
        self._refresh()
        return set(self._results)

    def results(self, experiment: str | None = None) -> list[Result]:
        """What was finished, of one experiment or of all."""
        self._refresh()
        return [result for result in self._results.values() if experiment in (None, result.trial.experiment)]

    def add(self, batch: Sequence[Trial], outcomes: Sequence[dict[str, Any]], provenance: dict[str, Any]) -> None:
        """Store what a batch gave; a trial that has a result already keeps the one it has."""
        if not self._read:
            self._refresh()  # once; whoever adds holds the lock, so nobody else adds meanwhile
        results = [
            Result(trial, outcome, provenance)
            for trial, outcome in zip(batch, outcomes, strict=True)
            if trial.key not in self._results
        ]
        if results:
            self._write_results(results)
            self._results.update((result.trial.key, result) for result in results)
        for trial in batch:
            self._failure_path(trial.key).unlink(missing_ok=True)

    def pack(self, shorten: Callable[[Result], Result] = lambda result: result) -> None:
        """Put all results of an experiment into one file, which is smaller; only for the holder of the lock."""
        self._refresh()
        before = set(self._read)
        after = set()
        for experiment in sorted({result.trial.experiment for result in self._results.values()}):
            results = [shorten(result) for result in self.results(experiment)]
            self._results.update((result.trial.key, result) for result in results)
            after.add(self._write_results(results))
        for path in before - after:  # whatever happens before this, results are there at least once
            path.unlink(missing_ok=True)

    def take(self, other: "Store") -> int:
        """Add what another directory has finished, kept and asked for; returns how many results are new here.

        Only for the holder of the lock.
        """
        self._refresh()
        new = [result for result in other.results() if result.trial.key not in self._results]
        for experiment in sorted({result.trial.experiment for result in new}):
            self._write_results([result for result in new if result.trial.experiment == experiment])
        self._results.update((result.trial.key, result) for result in new)
        for result in new:
            self._failure_path(result.trial.key).unlink(missing_ok=True)
        for path in sorted((other.path / "kept").glob("*")):
            if not (self.path / "kept" / path.name).exists():
                self._write(self.path / "kept" / path.name, path.read_bytes())
        for path in sorted((other.path / "plans").glob("*.json")):
            self._write(self.path / "plans" / path.name, path.read_bytes())
        return len(new)

    def join_plans(self) -> None:
        """Make one plan of those that asked for trials of the same settings; only for the holder of the lock."""
        files = {path: self._read_json(path) for path in (self.path / "plans").glob("*.json")}
        kept = {path for path, plan in files.items() if plan is None or "trials" not in plan}  # the latter are old
        alike: dict[str, list[dict[str, Any]]] = {}
        for plan in self.plans():
            if "trials" in plan:
                settings = {canonical([group["version"], group["settings"]]) for group in plan["trials"]}
                same = [plan["source"], plan["experiment"], plan["label"], sorted(settings)]
                alike.setdefault(canonical(same), []).append(plan)
        for plans in alike.values():
            trials = {
                trial.key: trial
                for plan in plans
                for trial in expand_trials(plan["experiment"], plan["methods"], plan["trials"])
            }
            joined = {name: value for name, value in plans[-1].items() if name != "keys"}
            joined["methods"] = list(dict.fromkeys(trial.method for trial in trials.values()))
            joined["seeds"] = sorted({trial.seed for trial in trials.values()})
            kept.add(self.plan({**joined, "trials": group_trials(trials.values())}))
        for path in files.keys() - kept:  # whatever happens before this, every trial is asked for at least once
            path.unlink(missing_ok=True)

    def fail(self, batch: Sequence[Trial], error: str, attempts: int, provenance: dict[str, Any]) -> None:
        """Store why a batch has no outcomes; it goes when the trials succeed."""
        for trial in batch:
            failure = {
                "trial": asdict(trial),
                "key": trial.key,
                "error": error,
                "attempts": attempts,
                "provenance": provenance,
            }
            self._write(self._failure_path(trial.key), json.dumps(failure, indent=1).encode())

    def failures(self) -> dict[str, dict[str, Any]]:
        """What is known of each trial that failed and has not succeeded since, by key."""
        done = self.done()
        failures = {path.stem: self._read_json(path) for path in sorted((self.path / "failures").glob("*.json"))}
        return {key: failure for key, failure in failures.items() if failure is not None and key not in done}

    def plan(self, plan: dict[str, Any]) -> Path:
        """Store what was asked for, so that `status` and `report` know; the same again replaces it."""
        identity = canonical({name: value for name, value in plan.items() if name not in ("date", "trials")})
        path = self.path / "plans" / f"{hashlib.sha256(identity.encode()).hexdigest()[:32]}.json"
        self._write(path, json.dumps(plan, separators=(",", ":")).encode())
        return path

    def plans(self) -> list[dict[str, Any]]:
        """What was asked for, the latest last, with the keys of the trials by method."""
        plans = []
        for path in (self.path / "plans").glob("*.json"):
            if (plan := self._read_json(path)) is None:
                continue
            if "keys" not in plan:  # as older plans have them
                plan["keys"] = {method: [] for method in plan["methods"]}
                for trial in expand_trials(plan["experiment"], plan["methods"], plan["trials"]):
                    plan["keys"][trial.method].append(trial.key)
            plans.append(plan)
        return sorted(plans, key=lambda plan: str(plan["date"]))

    def sweep(self) -> None:
        """Remove what a killed process had begun to write; only for the holder of the lock."""
        for path in self.path.glob("*/*.tmp"):
            path.unlink(missing_ok=True)

    def size(self) -> int:
        """The bytes on disk."""
        total = 0
        for path in self.path.rglob("*"):
            with suppress(FileNotFoundError):  # a run may be replacing files
                total += path.stat().st_size if path.is_file() else 0
        return total

    def _failure_path(self, key: str) -> Path:
        return self.path / "failures" / f"{key}.json"

    def _write_results(self, results: Sequence[Result]) -> Path:
        keys = " ".join(result.trial.key for result in results)
        name = f"{results[0].trial.experiment}-{hashlib.sha256(keys.encode()).hexdigest()[:32]}{SUFFIX}"
        path = self.path / "results" / name
        self._write(path, encode(results))
        self._read.add(path)
        return path

    def _refresh(self) -> None:
        files = [path for suffix in (SUFFIX, OLD_SUFFIX) for path in (self.path / "results").glob(f"*{suffix}")]
        for path in sorted(set(files) - self._read):
            self._read.add(path)
            for result in self._load(path):
                self._results.setdefault(result.trial.key, result)

    def _load(self, path: Path) -> list[Result]:
        try:
            return decode(path.read_bytes())
        except FileNotFoundError:  # another process has set it aside
            return []
        except DamagedError as error:
            self._set_aside(path, str(error))
            return []
        except FormatError as error:
            raise StoreError(f"{path} has {error}: use the version that wrote it, or another directory.") from error

    def _set_aside(self, path: Path, reason: str) -> None:
        aside = path.with_name(path.name + ".corrupt")
        self.corrupt.append(f"{path} was set aside as {aside.name}: {reason}. Its trials count as not done.")
        try:
            path.rename(aside)
        except OSError as error:  # as in a directory that may only be read
            self.corrupt[-1] = f"{path} is ignored: {reason}. Its trials count as not done. ({error.strerror})"

    def _read_json(self, path: Path) -> dict[str, Any] | None:
        try:
            content: dict[str, Any] = json.loads(path.read_bytes())
            return content
        except FileNotFoundError:  # removed since it was listed
            return None
        except ValueError:
            self._set_aside(path, "it is not JSON")
            return None

    def _write(self, path: Path, content: bytes) -> None:
        try:
            write_whole(path, content)
        except OSError as error:
            raise StoreError(
                f"Cannot write {path}: {error.strerror}. All {len(self._results)} finished trials in {self.path} "
                f"are safe. Make room (or make it writable), then run the same command again: it goes on from there."
            ) from error
