"""CIFAR-100 in its official binary layout, CIFAR-100N's human labels, and wrong labels that a seed decides."""

import hashlib
import os
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from adaterm_bench.datasets import data
from adaterm_bench.datasets.data import DataError

VARIABLE = "ADATERM_CIFAR100"
SITE = "https://www.cs.toronto.edu/~kriz/cifar.html"
HUMAN_SITE = "https://github.com/UCSC-REAL/cifar-10-100n"
CLASSES, SIDE = 100, 32
ROW = 2 + 3 * SIDE * SIDE  # coarse label, fine label, and the planes of red, green and blue
ROWS = {"train.bin": 50_000, "test.bin": 10_000}
HUMAN = "4a1efd5da7a214b2"  # the fingerprint of CIFAR-100N's fine labels
SHA1 = {"train.bin": "e207cd2e05b73b1393c74c7f5e7bea451d63e08e", "test.bin": "8fb6623e830365ff53cf14adec797474f5478006"}


class Labelled(NamedTuple):
    """Images (of bytes, with colours last) and their fine labels."""

    pixels: Tensor
    labels: Tensor


def find_folder(name: str) -> Path:
    """Where the data is: as given, or as the environment variable says."""
    named = name or os.environ.get(VARIABLE, "")
    if not named:
        raise DataError(f"Where is CIFAR-100? Give --data DIR or set {VARIABLE}. {_explain_source('train.bin')}")
    path = Path(named).expanduser()
    return path / "cifar-100-binary" if (path / "cifar-100-binary").is_dir() else path


@cache
def load(path: Path) -> tuple[Labelled, Labelled]:
    """The training and the test images, if both files are what was published."""
    train, test = (_read(path / name) for name in ROWS)
    return train, test


@cache
def load_human_labels(path: Path) -> Tensor:
    """The 50,000 fine labels that people gave, of CIFAR-100N: `cifar100n_fine.npy` or `CIFAR-100_human.pt`."""
    candidates = [
        place / name for place in (path, path.parent) for name in ("cifar100n_fine.npy", "CIFAR-100_human.pt")
    ]
    file = next((candidate for candidate in candidates if candidate.is_file()), None)
    if file is None:
        raise DataError(
            f"{path} has no labels of CIFAR-100N. Put CIFAR-100_human.pt there, from {HUMAN_SITE}, "
            "or cifar100n_fine.npy: its 50,000 noisy fine labels as an array. Without it: --labels '0 %,10 %'."
        )
    try:
        numbers = np.asarray(np.load(file) if file.suffix == ".npy" else _load_torch(file))
    except Exception as error:
        reason = str(error) if isinstance(error, KeyError | ValueError | EOFError) else type(error).__name__
        raise DataError(f"{file} cannot be read ({reason}). Get it again from {HUMAN_SITE}") from error
    if numbers.shape != (ROWS["train.bin"],) or numbers.dtype.kind not in "iuf":
        raise DataError(
            f"{file} has the shape {numbers.shape} and type {numbers.dtype}, not {(ROWS['train.bin'],)} and integers: "
            "one label per training image."
        )
    wrong = np.flatnonzero((numbers < 0) | (numbers >= CLASSES) | (numbers != np.floor(numbers)))
    if wrong.size:
        raise DataError(f"{file}, row {wrong[0]}: the label {numbers[wrong[0]]} is not one of 0 to {CLASSES - 1}.")
    labels = torch.from_numpy(numbers.astype(np.int64))
    if fingerprint(labels) != HUMAN:
        raise DataError(
            f"{file} does not have the fine labels of CIFAR-100N in their order. Get it again from {HUMAN_SITE}"
        )
    return labels


def corrupt_labels(labels: Tensor, share: float, classes: int, seed: int) -> Tensor:
    """Labels of which a share, rounded to whole images, is replaced by other classes, as the seed decides."""
    draws = np.random.default_rng([seed, 2])
    chosen = draws.permutation(len(labels))[: round(share * len(labels))]
    others = labels.numpy().copy()
    others[chosen] = (others[chosen] + draws.integers(1, classes, len(chosen))) % classes
    return torch.from_numpy(others)


def fingerprint(labels: Tensor) -> str:
    """A checksum by which anyone can verify that labels are the same."""
    return data.fingerprint([labels.numpy().astype(np.int64)])


def make_synthetic(count: int, classes: int, seed: int) -> Labelled:
    """Images without meaning that can be told apart: each class a few coarse patches of colour, with noise on them."""
    draws = np.random.default_rng([classes, 3])
    patches = draws.uniform(40.0, 215.0, (classes, 4, 4, 3)).repeat(SIDE // 4, 1).repeat(SIDE // 4, 2)
    draws = np.random.default_rng([seed, 4])
    labels = draws.integers(0, classes, count)
    noisy = patches[labels] + draws.normal(0.0, 40.0, (count, SIDE, SIDE, 3))
    return Labelled(torch.from_numpy(noisy.clip(0, 255).astype(np.uint8)), torch.from_numpy(labels))


def _read(file: Path) -> Labelled:
    if not file.is_file():
        raise DataError(f"There is no {file}. {_explain_source(file.name)}")
    content = file.read_bytes()
    rows, rest = divmod(len(content), ROW)
    if len(content) != ROWS[file.name] * ROW:
        state = f"ends in the middle of row {rows}" if rest else f"has {rows} rows"
        raise DataError(f"{file} {state}, not {ROWS[file.name]} rows of {ROW} bytes. {_explain_source(file.name)}")
    table = np.frombuffer(content, np.uint8).reshape(rows, ROW)
    if hashlib.sha1(content).hexdigest() != SHA1[file.name]:
        wrong = np.flatnonzero(table[:, 1] >= CLASSES)
        row = f" (row {wrong[0]}, for one, has the label {table[wrong[0], 1]})" if wrong.size else ""
        raise DataError(f"{file} is not the published file{row}. {_explain_source(file.name)}")
    pixels = table[:, 2:].reshape(rows, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
    return Labelled(torch.from_numpy(pixels.copy()), torch.from_numpy(table[:, 1].astype(np.int64)))


def _load_torch(file: Path) -> Any:
    """The noisy labels in the file of CIFAR-100N's authors, read without running what a pickle might hold."""
    reconstruct = np.array(0).__reduce__()[0]
    older = (reconstruct, "numpy.core.multiarray._reconstruct")  # as NumPy 1 named it
    allowed: list[Any] = [reconstruct, older, np.ndarray, np.dtype, type(np.dtype(np.int64)), type(np.dtype(np.int32))]
    with torch.serialization.safe_globals(allowed):
        content = torch.load(file)
    if not isinstance(content, dict) or "noisy_label" not in content:
        raise ValueError("it has no noisy_label")
    return content["noisy_label"]


def _explain_source(name: str) -> str:
    return f"Get the binary version of CIFAR-100 from {SITE} and unpack it; the SHA-1 of {name} must be {SHA1[name]}."
