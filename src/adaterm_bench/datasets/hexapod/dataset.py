"""The data set: made by simulation, kept in one file with its description, and refused when anything is wrong with it.

The file is a gzipped NumPy array with a record for each trajectory, so `numpy.load(gzip.open(file))` reads it too.
"""

import gzip
import hashlib
import io
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaterm_bench.core.files import write_whole
from adaterm_bench.core.provenance import find_commit, find_versions
from adaterm_bench.datasets.data import DataError, fingerprint
from adaterm_bench.datasets.hexapod import ground as grounds
from adaterm_bench.datasets.hexapod.gait import RANGES, draw_walk
from adaterm_bench.datasets.hexapod.ground import draw_ground
from adaterm_bench.datasets.hexapod.robot import TIMESTEP
from adaterm_bench.datasets.hexapod.simulation import COLUMNS, NOISE, RATE, SETTLING, STEPS, TICK, Recording, simulate
from adaterm_bench.datasets.hexapod.walking import fit_linear, summarise

FILE, DESCRIPTION = "hexapod.npy.gz", "hexapod.json"
COUNTS = (150, 25, 25)
ROW = np.dtype(
    [
        (name, "<f4", (len(columns),) if name == "walk" else (STEPS, len(columns)))  # one walk for all steps
        for name, columns in COLUMNS.items()
    ]
)


class Dataset(NamedTuple):
    """The trajectories, in the file one after the other."""

    train: Recording
    validation: Recording
    test: Recording


def generate(
    seed: int,
    counts: tuple[int, int, int] = COUNTS,
    progress: Callable[[int], None] = lambda done: None,
    flat: bool = False,
) -> Dataset:
    """Simulate as many trajectories of each kind; what the first ones are does not depend on how many there are.

    On `flat` ground nobody steers, slips or pushes, and sensors are better: walks that are easy to predict.
    """
    if min(counts) < 1:
        raise ValueError(f"counts must be at least 1 each, not {counts}")
    kinds = []
    for kind, count in enumerate(counts):
        recorded = []
        for number in range(count):
            draws = np.random.default_rng([seed, kind, number])
            walk, events = draw_walk(draws), np.random.default_rng([seed, kind, number, 1])
            ground = None if flat else draw_ground(walk, round(SETTLING * RATE) + STEPS, RATE, events)
            recorded.append(simulate(walk, draws, ground))
            progress(sum(counts[:kind]) + number + 1)
        kinds.append(Recording(*(np.stack(field) for field in zip(*recorded, strict=True))))
    return Dataset(*kinds)


def save(dataset: Dataset, folder: Path, seed: int, flat: bool = False) -> None:
    """Write the file and its description: the same bytes for the same numbers."""
    rows = np.empty(sum(len(kind.walk) for kind in dataset), ROW)
    for name in COLUMNS:
        rows[name] = np.concatenate([getattr(kind, name) for kind in dataset])
    array = io.BytesIO()
    np.lib.format.write_array(array, rows, (1, 0))
    content = gzip.compress(array.getvalue(), mtime=0)
    write_whole(folder / FILE, content)
    write_whole(folder / DESCRIPTION, (json.dumps(_describe(dataset, seed, content, flat), indent=1) + "\n").encode())


def list_states(dataset: Dataset) -> list[NDArray[np.float32]]:
    """What is predicted, of each kind: the angles as measured, and those that the servos are told next."""
    return [np.concatenate([kind.angles, kind.references], 2) for kind in dataset]


def load(folder: Path) -> Dataset:
    """The data set in a folder, if it is whole and what its description says."""
    file, description = folder / FILE, folder / DESCRIPTION
    counts, checksum = _read_description(description, _read(description))
    packed = _read(file)
    rows = _read_rows(file, packed, sum(counts))
    _check_numbers(file, rows)
    if hashlib.sha256(packed).hexdigest() != checksum:
        raise _make_error(file, f"its SHA-256 is not {checksum}, as {DESCRIPTION} says")
    parts = np.split(rows, np.cumsum(counts)[:-1])
    return Dataset(*(Recording(*(np.ascontiguousarray(part[name]) for name in COLUMNS)) for part in parts))


def _describe(dataset: Dataset, seed: int, content: bytes, flat: bool) -> dict[str, Any]:
    states = list_states(dataset)
    units = {"angles": "rad", "references": "rad", "body": "m and rad", "walk": "as in ranges"}
    return {
        "what": "Joint angles of a simulated hexapod that walks with a tripod gait, and the angles its servos are told",
        "command": _format_command(seed) + " --flat" * flat,
        "seed": seed,
        "trajectories": {name: len(kind.walk) for name, kind in dataset._asdict().items()},
        "fields": {
            name: {"shape": ROW[name].shape, "unit": units[name], "columns": columns}
            for name, columns in COLUMNS.items()
        },
        "steps_per_second": RATE,
        "seconds_before_recording": SETTLING,
        "timestep": TIMESTEP,
        "sensor_noise": {"standard_deviation": NOISE if flat else grounds.NOISE, "resolution": TICK},
        "ground": "flat" if flat else _describe_ground(),
        "ranges": {name: limits._asdict() for name, limits in RANGES.items()},
        "walking": {name: summarise(kind) for name, kind in dataset._asdict().items()},
        "linear_predictor": {
            f"mean_square_error_of_{horizon}_steps": round(fit_linear(states[0], states[2], horizon), 4)
            for horizon in (1, 30)
        },
        "commit": find_commit(),
        "versions": {name: text for name, text in find_versions().items() if name in ("mujoco", "numpy")},
        "fingerprint": fingerprint(states),
        "file": {"name": FILE, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()},
    }


def _describe_ground() -> dict[str, Any]:
    return {
        "height": {"standard_deviation": grounds.BUMPS, "breadth": grounds.BREADTH, "highest": grounds.HIGHEST},
        "ice": {"per_second": grounds.ICE, "seconds": grounds.ICE_LASTS, "friction": grounds.ICE_FRICTION},
        "pushes": {"per_second": grounds.PUSHES, "seconds": grounds.PUSH_LASTS, "newtons": grounds.PUSH_FORCE},
        "wanders": {name: wander._asdict() for name, wander in grounds.WANDERS.items()},
    }


def _read(file: Path) -> bytes:
    if not file.is_file():
        raise DataError(f"There is no {file}. Make the data set: {_format_command(0, file.parent)}")
    return file.read_bytes()


def _read_description(file: Path, content: bytes) -> tuple[list[int], str]:
    """How many trajectories of each kind there are, and the checksum of their file."""
    try:
        description = json.loads(content)
        return [int(description["trajectories"][name]) for name in Dataset._fields], str(description["file"]["sha256"])
    except (ValueError, TypeError, KeyError) as error:
        raise _make_error(file, f"it is damaged ({error!r})") from error


def _read_rows(file: Path, packed: bytes, count: int) -> NDArray[np.void]:
    """The records in the file, if they have the right shapes and none is missing."""
    content, damage = _unpack(packed)
    array = io.BytesIO(content)
    try:
        np.lib.format.read_magic(array)
        shape, _, kind = np.lib.format.read_array_header_1_0(array)
    except (ValueError, TypeError) as error:
        raise _make_error(file, f"{damage or 'it is not an array'}, before row 0") from error
    if kind != ROW:
        raise _make_error(file, f"each row is {_format_shapes(kind)}, not {_format_shapes(ROW)}")
    if shape != (count,):
        raise _make_error(file, f"it has the shape {shape}, not {(count,)}, as {DESCRIPTION} says")
    rest = content[array.tell() :]
    if damage or len(rest) != count * ROW.itemsize:
        raise _make_error(file, f"{damage or 'its length is wrong'}, in row {len(rest) // ROW.itemsize} of {count}")
    return np.frombuffer(rest, ROW)


def _unpack(packed: bytes) -> tuple[bytes, str]:
    """What was packed, as far as it can be read, and what is wrong with the rest."""
    stream, content = zlib.decompressobj(wbits=31), bytearray()
    try:
        for begin in range(0, len(packed), 4096):  # in pieces, to know where it breaks
            content += stream.decompress(packed[begin : begin + 4096])
    except zlib.error:
        return bytes(content), "it is damaged"
    return bytes(content), "" if stream.eof else "it is cut short"


def _check_numbers(file: Path, rows: NDArray[np.void]) -> None:
    for name, columns in COLUMNS.items():
        wrong = np.argwhere(~np.isfinite(rows[name]))
        if len(wrong):
            row, *step, column = wrong[0]
            where = f"row {row}" + (f", step {step[0]}" if step else "")
            raise _make_error(file, f"{where}: {columns[column]} in {name} is {rows[name][tuple(wrong[0])]}")


def _format_shapes(kind: np.dtype[Any]) -> str:
    if kind.names is None:
        return str(kind)
    return ", ".join(f"{name} {kind[name].base}{list(kind[name].shape)}" for name in kind.names)


def _make_error(file: Path, why: str) -> DataError:
    return DataError(f"{file} cannot be used: {why}. Make it again: {_format_command(0, file.parent)}")


def _format_command(seed: int, folder: Path | str = "DIR") -> str:
    return f"python -m adaterm_bench.datasets.hexapod --seed {seed} --out {folder}"
