"""Walks of a real hexapod, in files of a user's own: such as the set of the paper, which is on IEEE DataPort.

One file is one trajectory: a row for each step, of 36 numbers, the 18 joint angles as measured and then the 18
reference angles. Files are text (.csv, .txt: numbers with commas or blanks between them, after lines without any number
if there are some) or NumPy's (.npy). They lie in folders train, validation and test; or in one folder, and are then
taken in the order of their names, three quarters to learn from, an eighth to validate and an eighth to test, as the
paper has 150, 25 and 25.
"""

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adaterm_bench.datasets.data import DataError

KINDS = {"train": ("train", "training"), "validation": ("validation", "valid", "val"), "test": ("test", "testing")}
SUFFIXES = (".csv", ".txt", ".npy")
NOTES = ("readme", "license", "licence")  # names of files that are no trajectories, whatever their suffix
SIZE = 36
STARTS = (6, 7)  # eighths of the files after which those to validate, and those to test, begin
Array = NDArray[np.float32]


def list_files(folder: Path) -> list[list[Path]]:
    """The files to learn from, to validate and to test; none at all if this is no such folder."""
    kinds = [[file for name in names for file in _list_folder(folder / name)] for names in KINDS.values()]
    whole = _list_folder(folder)
    if any(kinds) and whole:
        inner = next(file for kind in kinds for file in kind).relative_to(folder)
        raise DataError(
            f"{folder} has {whole[0].name} beside {inner}: move all trajectories into train, validation and test, "
            "or none, and other files elsewhere."
        )
    if any(kinds):
        return kinds
    cuts = [round(len(whole) * eighths / 8) for eighths in STARTS]
    return [whole[: cuts[0]], whole[cuts[0] : cuts[1]], whole[cuts[1] :]]


def read_states(folder: Path) -> list[Array]:
    """Trajectories by steps by numbers, of each kind; all are cut to the shortest of them."""
    files = list_files(folder)
    for kind, listed in zip(KINDS, files, strict=True):
        if not listed:
            raise DataError(f"{folder} has no trajectories for {kind}: see docs/prediction.md for what is expected.")
    kinds = [[_read_file(file) for file in listed] for listed in files]
    shortest = min(len(states) for states_of_kind in kinds for states in states_of_kind)
    return [np.stack([states[:shortest] for states in states_of_kind]) for states_of_kind in kinds]


def _list_folder(folder: Path) -> list[Path]:
    """Files by name, with numbers in them by value: walk2 comes before walk10."""
    files = folder.glob("*") if folder.is_dir() else ()
    read = (file for file in files if file.suffix in SUFFIXES and file.stem.lower() not in NOTES)
    return sorted(read, key=lambda file: [int(part) if part.isdigit() else part for part in _split(file.name)])


def _split(name: str) -> list[str]:
    return re.split(r"(\d+)", name)


def _read_file(file: Path) -> Array:
    rows = _read_array(file) if file.suffix == ".npy" else _read_text(file)
    if rows.ndim != 2 or rows.shape[1] != SIZE:
        raise DataError(f"{file} has the shape {rows.shape}: a trajectory is steps by {SIZE} numbers.")
    if not np.isfinite(rows).all():
        step, column = np.argwhere(~np.isfinite(rows))[0]
        raise DataError(f"{file} has {rows[step, column]} in step {step}, number {column}.")
    return rows


def _read_array(file: Path) -> Array:
    try:
        return np.asarray(np.load(file, allow_pickle=False), np.float32)
    except (ValueError, EOFError, OSError) as error:
        raise DataError(f"{file} cannot be read: {error}") from error


def _read_text(file: Path) -> Array:
    rows: list[list[float]] = []
    for number, line in enumerate(file.read_text(encoding="utf-8-sig").splitlines(), 1):
        words = line.replace(",", " ").replace(";", " ").split()
        values = [float(word) for word in words if _is_number(word)]
        if len(values) < len(words):
            if rows or values:
                raise DataError(
                    f"{file}, line {number}: {line[:40]!r} is not a row of numbers, nor a heading, "
                    "which is above all rows and has no numbers: mend the line or remove it."
                )
            continue  # names of columns
        if len(values) not in (0, SIZE):
            raise DataError(f"{file}, line {number}: {len(values)} numbers, not {SIZE}.")
        rows += [values] if values else []
    return np.array(rows, np.float32)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
