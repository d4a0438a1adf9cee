"""Python sources as text to learn from: those of the installed torch package, byte by byte.

Whole files are for training or for validation, as a hash of their path decides: another release has other files, and
those that stay remain on their side.
"""

import hashlib
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from adaterm_bench.datasets import data
from adaterm_bench.datasets.data import DataError

VOCABULARY = 256
END = b"\0"  # of a file; sources have no such byte
_ONE_IN = 20  # files is for validation


class Sources(NamedTuple):
    """The bytes of all files, one file after the other, and a fingerprint of both parts."""

    training: Tensor
    validation: Tensor
    fingerprint: str

    def to(self, device: str | torch.device) -> "Sources":
        """The same on a device."""
        return Sources(self.training.to(device), self.validation.to(device), self.fingerprint)


def list_files(folder: Path) -> tuple[list[str], list[str]]:
    """The paths of files for training and for validation, relative to the folder, in an order that hashes mix."""
    paths = (path.relative_to(folder).as_posix() for path in folder.rglob("*.py"))
    order = sorted((_hash(path), path) for path in paths)
    training = [path for number, path in order if number % _ONE_IN]
    return training, [path for number, path in order if number % _ONE_IN == 0]


@cache
def load(folder: Path | None = None, limit: int | None = None) -> Sources:
    """The sources in a folder, torch's own by default; with a limit, so many bytes of each part at most."""
    root = Path(torch.__file__).parent if folder is None else folder
    parts = []
    for purpose, paths in zip(("training", "validation"), list_files(root), strict=True):
        content = bytearray()
        for path in paths:
            if limit is not None and len(content) >= limit:
                break
            content += (root / path).read_bytes() + END
        if not content:
            raise DataError(f"{root} has no Python sources for {purpose}: give a folder with more of them.")
        parts.append(torch.frombuffer(content[:limit], dtype=torch.uint8))
    training, validation = parts
    return Sources(training, validation, data.fingerprint(part.numpy() for part in parts))


def _hash(path: str) -> int:
    return int.from_bytes(hashlib.sha256(path.encode()).digest()[:8])
