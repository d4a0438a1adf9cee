"""A trial as a value: all that decides its result, and a key made from that."""

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any


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
        return hashlib.sha256(canonical(asdict(self)).encode()).hexdigest()[:32]

    def __hash__(self) -> int:
        return hash(self.key)


@dataclass(frozen=True)
class Result:
    """What came out of a trial: numbers, or lists of numbers, by name; and where it was run."""

    trial: Trial
    outcome: dict[str, Any]
    provenance: dict[str, Any]  # versions, device, commit, command, date, seconds


def canonical(value: Any) -> str:
    """The one JSON text of a value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=True)
