"""Results as the bytes of a file: compressed JSON lines, in which trials that share something say it once.

The first line has the format and a checksum of the rest. Every other line holds trials of one method with the same
settings and provenance: their conditions and seeds, and a list for each outcome. Keys are made again from the trials.
"""

import gzip
import hashlib
import json
import lzma
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

from adaterm_bench.core.trial import Result, Trial, canonical

FORMAT = 2
SUFFIX = ".jsonl.xz"
OLD_FORMAT, OLD_SUFFIX = 1, ".jsonl.gz"  # a line for the provenance of all, and then one for every trial


class DamagedError(Exception):
    """The bytes are not those that were written; the message says what is wrong."""


class FormatError(Exception):
    """Another version wrote this; the message names its format."""


def encode(results: Iterable[Result]) -> bytes:
    """The content of a file with these results."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        trial = result.trial
        shared = [trial.experiment, trial.version, trial.settings, trial.method, sorted(result.outcome)]
        groups.setdefault(canonical([*shared, result.provenance]), []).append(result)
    lines = "".join(json.dumps(_join(group), separators=(",", ":")) + "\n" for group in groups.values()).encode()
    header = {"format": FORMAT, "sha256": hashlib.sha256(lines).hexdigest()}
    return lzma.compress(json.dumps(header, separators=(",", ":")).encode() + b"\n" + lines)


def decode(content: bytes) -> list[Result]:
    """The results that a file holds."""
    header, _, lines = _decompress(content).partition(b"\n")
    try:
        description = json.loads(header)
        version, checksum = description["format"], description["sha256"]
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedError("its first line is damaged") from error
    if version not in (FORMAT, OLD_FORMAT):
        raise FormatError(f"format {version}, and this version of adaterm reads format {FORMAT}")
    if hashlib.sha256(lines).hexdigest() != checksum:
        raise DamagedError("its checksum is wrong")
    try:
        rows = [json.loads(line) for line in lines.splitlines()]
        return _read_old(rows) if version == OLD_FORMAT else [result for row in rows for result in _split(row)]
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise DamagedError(f"it cannot be read ({error})") from error


def _decompress(content: bytes) -> bytes:
    try:
        return gzip.decompress(content) if content[:2] == b"\x1f\x8b" else lzma.decompress(content)
    except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        raise DamagedError("it is damaged") from error


def _join(results: list[Result]) -> dict[str, Any]:
    trial = results[0].trial
    conditions = list({canonical(result.trial.condition): result.trial.condition for result in results}.values())
    return {
        "provenance": results[0].provenance,
        "experiment": trial.experiment,
        "version": trial.version,
        "settings": trial.settings,
        "method": trial.method,
        "conditions": conditions,
        "condition": [conditions.index(result.trial.condition) for result in results],
        "seed": [result.trial.seed for result in results],
        "outcomes": {name: [result.outcome[name] for result in results] for name in results[0].outcome},
    }


def _split(row: dict[str, Any]) -> Iterator[Result]:
    outcomes = row["outcomes"]
    for place, (condition, seed) in enumerate(zip(row["condition"], row["seed"], strict=True)):
        trial = Trial(
            row["experiment"], row["version"], row["settings"], row["conditions"][condition], row["method"], seed
        )
        yield Result(trial, {name: values[place] for name, values in outcomes.items()}, row["provenance"])


def _read_old(rows: list[dict[str, Any]]) -> list[Result]:
    provenance, *trials = rows
    return [Result(Trial(**row["trial"]), row["outcome"], provenance) for row in trials]
