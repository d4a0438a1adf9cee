"""What every data set has in common."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaterm_bench.core.trial import Result


class DataError(Exception):
    """Data that is missing or broken; the message names the file, the row if there is one, and what to do."""


def fingerprint(arrays: Iterable[NDArray[Any]]) -> str:
    """By which anyone can see whether results are of the same numbers."""
    content = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)
    return hashlib.sha256(content).hexdigest()[:16]


def check_same_data(results: Sequence[Result], source: str, named: str, load: Callable[[], str]) -> None:
    """Refuse data that is `named`, if any is, where results of the same source are of other data: by fingerprint."""
    others = {result.outcome["data"] for result in results if result.trial.settings["source"] == source}
    if named and others and others != {fingerprint := load()}:
        raise DataError(
            f"{named} holds other data ({fingerprint}) than the results in this directory are of "
            f"({', '.join(sorted(others))}): give another --out."
        )
