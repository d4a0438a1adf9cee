"""A results directory: finished batches are whole files or nothing, so nothing that was finished is ever lost."""

import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from adaterm_bench.core.trial import Result, Trial, canonical

FORMAT = 1


class StoreError(Exception):
    """The directory cannot be used; the message says what to do."""


class Store:
    """Results, failures and plans in one directory, which is made when something is first written.

    `results/*.jsonl.gz` hold a batch each: a line with the format and the checksum of the rest, a line with the
    provenance, and a line per trial.
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
        return [it for it in self._results.values() if experiment in (None, it.trial.experiment)]

    def add(self, batch: Sequence[Trial], outcomes: Sequence[dict[str, Any]], provenance: dict[str, Any]) -> None:
        """Keep what a batch gave; a trial that has a result already keeps the one it has."""
        if not self._read:
            self._refresh()  # once; whoever adds holds the lock, so nobody else adds meanwhile
        results = [
            Result(trial, outcome, provenance)
            for trial, outcome in zip(batch, outcomes, strict=True)
            if trial.key not in self._results
        ]
        if results:
            keys = " ".join(it.trial.key for it in results)
            name = f"{results[0].trial.experiment}-{hashlib.sha256(keys.encode()).hexdigest()[:32]}.jsonl.gz"
            path = self.path / "results" / name
            self._write(path, _text(results, provenance))
            self._read.add(path)
            self._results.update((it.trial.key, it) for it in results)
        for trial in batch:
            self._failure(trial.key).unlink(missing_ok=True)

    def fail(self, batch: Sequence[Trial], error: str, attempts: int, provenance: dict[str, Any]) -> None:
        """Keep why a batch has no outcomes; it goes when the trials succeed."""
        for trial in batch:
            failure = {
                "trial": asdict(trial),
                "key": trial.key,
                "error": error,
                "attempts": attempts,
                "provenance": provenance,
            }
            self._write(self._failure(trial.key), json.dumps(failure, indent=1).encode())

    def failures(self) -> dict[str, dict[str, Any]]:
        """What is known of each trial that failed and has not succeeded since, by key."""
        done = self.done()
        found = {path.stem: self._json(path) for path in sorted((self.path / "failures").glob("*.json"))}
        return {key: failure for key, failure in found.items() if failure is not None and key not in done}

    def plan(self, plan: dict[str, Any]) -> None:
        """Keep what was asked for, so that `status` and `report` know; the same again replaces it."""
        identity = canonical({name: value for name, value in plan.items() if name not in ("date", "keys")})
        name = hashlib.sha256(identity.encode()).hexdigest()[:32]
        self._write(self.path / "plans" / f"{name}.json", json.dumps(plan, indent=1).encode())

    def plans(self) -> list[dict[str, Any]]:
        """What was asked for, the latest last."""
        found = [self._json(path) for path in (self.path / "plans").glob("*.json")]
        return sorted((it for it in found if it is not None), key=lambda plan: str(plan["date"]))

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

    def _failure(self, key: str) -> Path:
        return self.path / "failures" / f"{key}.json"

    def _refresh(self) -> None:
        for path in sorted(set((self.path / "results").glob("*.jsonl.gz")) - self._read):
            self._read.add(path)
            for result in self._load(path):
                self._results.setdefault(result.trial.key, result)

    def _load(self, path: Path) -> list[Result]:
        try:
            head, _, rest = gzip.decompress(path.read_bytes()).partition(b"\n")
        except FileNotFoundError:  # another process has set it aside
            return []
        except (EOFError, gzip.BadGzipFile, zlib.error):
            return self._set_aside(path, "it is damaged")
        try:
            header = json.loads(head)
            version, checksum = header["format"], header["sha256"]
        except (ValueError, TypeError, KeyError):
            return self._set_aside(path, "its first line is damaged")
        if version != FORMAT:
            raise StoreError(
                f"{path} has format {version}, and this version of adaterm reads format {FORMAT}: "
                f"use the version that wrote it, or another directory."
            )
        if hashlib.sha256(rest).hexdigest() != checksum:
            return self._set_aside(path, "its checksum does not fit")
        try:
            provenance, *lines = (json.loads(line) for line in rest.splitlines())
            return [Result(Trial(**line["trial"]), line["outcome"], provenance) for line in lines]
        except (ValueError, TypeError, KeyError) as error:
            return self._set_aside(path, f"it cannot be read ({error})")

    def _set_aside(self, path: Path, why: str) -> list[Result]:
        aside = path.with_name(path.name + ".corrupt")
        self.corrupt.append(f"{path} was set aside as {aside.name}: {why}. Its trials count as not done.")
        try:
            path.rename(aside)
        except OSError as error:  # as in a directory that may only be read
            self.corrupt[-1] = f"{path} is ignored: {why}. Its trials count as not done. ({error.strerror})"
        return []

    def _json(self, path: Path) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads(path.read_bytes())
            return found
        except FileNotFoundError:  # removed since it was listed
            return None
        except ValueError:
            self._set_aside(path, "it is no JSON")
            return None

    def _write(self, path: Path, content: bytes) -> None:
        try:
            write(path, content)
        except OSError as error:
            raise StoreError(
                f"Cannot write {path}: {error.strerror}. All {len(self._results)} finished trials in {self.path} "
                f"are safe. Make room (or make it writable), then run the same command again: it goes on from there."
            ) from error


def write(path: Path, content: bytes) -> None:
    """Write a file so that at every moment, even of a crash, it is there as a whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    begun = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with begun.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        begun.replace(path)
    except BaseException:
        begun.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # else the new name could be lost with the power
    finally:
        os.close(folder)


def _text(results: Iterable[Result], provenance: dict[str, Any]) -> bytes:
    lines = [{"key": it.trial.key, "trial": asdict(it.trial), "outcome": it.outcome} for it in results]
    rest = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in [provenance, *lines]).encode()
    header = {"format": FORMAT, "sha256": hashlib.sha256(rest).hexdigest()}
    return gzip.compress(json.dumps(header, separators=(",", ":")).encode() + b"\n" + rest, mtime=0)
