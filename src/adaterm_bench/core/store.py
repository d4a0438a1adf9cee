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
from adaterm_bench.core.plans import Plan, join_plans, list_keys, name_command, name_trials
from adaterm_bench.core.trial import Result, Trial, canonical


class StoreError(Exception):
    """The directory cannot be used; the message says what to do."""


class Store:
    """Results, failures and plans in one directory, which is made when something is first written.

    `results/` has a file for each batch, or, when they were packed, for each experiment.
    """

    def __init__(self, path: Path | str, sets_aside: bool = True) -> None:
        """`sets_aside`: whether damaged files may be renamed; else they are only ignored."""
        self.path = Path(path)
        self.sets_aside = sets_aside
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

        Only for the holder of the lock. Results of other data than those here are refused.
        """
        self._refresh()
        new = [result for result in other.results() if result.trial.key not in self._results]
        self._refuse_other_data(new, other.path)
        for experiment in sorted({result.trial.experiment for result in new}):
            self._write_results([result for result in new if result.trial.experiment == experiment])
        self._results.update((result.trial.key, result) for result in new)
        for result in new:
            self._failure_path(result.trial.key).unlink(missing_ok=True)
        keys = {result.trial.key for result in new}
        for path in sorted((other.path / "kept").glob("*")):
            if path.stem in keys:  # which a file that is half written has not
                self._write(self.path / "kept" / path.name, path.read_bytes())
        mine = {name_trials(plan) for plan in self.plans()}
        for plan in other.plans():
            if name_trials(plan) not in mine:
                whole = {name: value for name, value in plan.items() if name != "keys" or "trials" not in plan}
                self._write_plan(name_trials(plan), whole)
        return len(new)

    def join_plans(self) -> None:
        """Make one plan of those that asked for trials of the same settings; only for the holder of the lock."""
        files = {path: self._read_json(path) for path in (self.path / "plans").glob("*.json")}
        plans = {path: plan for path, plan in files.items() if plan is not None and "trials" in plan}
        joined = join_plans(sorted(plans.values(), key=lambda plan: str(plan["date"])))
        written = {self._write_plan(name_trials(plan), plan) for plan in joined}
        for path in plans.keys() - written:  # whatever happens before this, every trial is asked for at least once
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

    def plan(self, plan: Plan) -> None:
        """Store what was asked for, so that `status` and `report` know; the same again replaces it."""
        self._write_plan(name_command(plan), plan)

    def plans(self) -> list[Plan]:
        """What was asked for, the latest last, with the keys of the trials by method."""
        files = (self._read_json(path) for path in (self.path / "plans").glob("*.json"))
        plans = [{**plan, "keys": list_keys(plan)} for plan in files if plan is not None]
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

    def _write_plan(self, name: str, plan: Plan) -> Path:
        path = self.path / "plans" / f"{name}.json"
        self._write(path, json.dumps(plan, separators=(",", ":")).encode())
        return path

    def _refuse_other_data(self, new: Sequence[Result], origin: Path) -> None:
        """Results of one experiment, with the same version and settings, must be of the same data."""

        def name(result: Result) -> str:
            return canonical([result.trial.experiment, result.trial.version, result.trial.settings])

        known = {name(result): result.outcome["data"] for result in self._results.values() if "data" in result.outcome}
        for result in new:
            data = result.outcome.get("data")
            if (here := known.setdefault(name(result), data)) != data:
                raise StoreError(
                    f"{origin} has results of {result.trial.experiment} with other data ({data}) than those that "
                    f"{self.path} has ({here}): keep them apart."
                )

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
        if not self.sets_aside:
            self.corrupt.append(f"{path} is ignored: {reason}.")
            return
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
