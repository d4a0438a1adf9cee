"""Python sources as text to learn from: those of the installed torch package, byte by byte or word by word.

Whole files are for training or for validation, as a hash of their path decides: another release has other files, and
those that stay remain on their side.
"""

import hashlib
import re
from collections import defaultdict
from functools import cache
from itertools import count
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaterm_bench.datasets import data
from adaterm_bench.datasets.data import DataError

VOCABULARY = 256
END = b"\0"  # of a file; sources have no such byte
UNKNOWN = 0
"""The token of words that a vocabulary does not have."""
_ONE_IN = 20  # files is for validation
_WORD = re.compile(rb"\w+|\n *| +|.", re.DOTALL)


class Sources(NamedTuple):
    """The tokens of all files, one file after the other, and a fingerprint of the bytes of both parts."""

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


def split_words(text: bytes) -> list[bytes]:
    """Names and numbers, newlines with the indentation after them, runs of spaces, and all other bytes one by one."""
    return _WORD.findall(text)


@cache
def load_words(vocabulary: int, folder: Path | None = None, limit: int | None = None) -> Sources:
    """The same files in words: the most frequent ones of the training part, from 1 on, and `UNKNOWN` for the rest.

    They are all that follows from the bytes, of which the fingerprint is.
    """
    training, validation = (np.where(ranks < vocabulary, ranks, UNKNOWN) for ranks in _rank_words(folder, limit))
    return Sources(torch.from_numpy(training), torch.from_numpy(validation), load(folder, limit).fingerprint)


@cache
def _rank_words(folder: Path | None, limit: int | None) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Both parts in words by their rank in the training part, from 1 on; 0 for those that it does not have."""
    sources, numbers = load(folder, limit), defaultdict[bytes, int](count().__next__)
    training, validation = (_number_words(part, numbers) for part in (sources.training, sources.validation))
    counts, words = np.bincount(training, minlength=len(numbers)), list(numbers)
    order = sorted(range(len(words)), key=lambda number: (-counts[number], words[number]))
    ranks = np.zeros(len(words), np.int32)
    ranks[order] = np.arange(1, len(words) + 1)
    ranks[counts == 0] = UNKNOWN
    return ranks[training], ranks[validation]


def _number_words(part: Tensor, numbers: defaultdict[bytes, int]) -> NDArray[np.int32]:
    """A text in words by their numbers, file by file: all words of all files at once would fill the memory."""
    files = part.numpy().tobytes().split(END)
    numbered = [np.fromiter(map(numbers.__getitem__, split_words(file + END)), np.int32) for file in files]
    return np.concatenate(numbered)[:-1]  # the last one has no end, or is what comes after it


def _hash(path: str) -> int:
    return int.from_bytes(hashlib.sha256(path.encode()).digest()[:8])
