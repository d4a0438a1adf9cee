"""Trajectories to predict: the hexapod's, simulated if there are none yet, or noisy waves, which need no simulation."""

import os
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaterm_bench.datasets import hexapod
from adaterm_bench.datasets.data import DataError, fingerprint
from adaterm_bench.datasets.hexapod import recorded

VARIABLE = "ADATERM_HEXAPOD"
SIZE = 36  # numbers of a state: 18 measured angles, and the 18 that the servos are told next
CACHED = "hexapod-2"  # raise it when the simulation gives other numbers


class Trajectories(NamedTuple):
    """Steps by trajectories by numbers, standardised by the training set's mean and standard deviation, in float64."""

    train: Tensor
    validation: Tensor
    test: Tensor
    mean: Tensor
    std: Tensor
    fingerprint: str  # of the states, which results carry and the data's description has


def locate(name: str) -> Path:
    """Where the hexapod's data set is, or will be: as given, as the environment variable says, or the cache."""
    named = name or os.environ.get(VARIABLE, "")
    if named:
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "adaterm" / CACHED


def find_folder(name: str) -> Path:
    """Where it is: it is made in the cache if it is not there."""
    path = locate(name)
    if not (name or os.environ.get(VARIABLE) or path.is_dir()):
        asked = f"Where is the hexapod's data set? Give --data DIR or set {VARIABLE}. It can be made here too, but "
        try:
            _simulate(path)
        except hexapod.MissingError as error:
            raise DataError(f"{asked}{error}.") from error
        except OSError as error:
            raise DataError(f"{asked}{path} cannot be written: {error.strerror}.") from error
    return path


@cache
def load(path: Path) -> Trajectories:
    """The hexapod's states: of a simulation, or of a user's recordings."""
    files = [file for kind in recorded.list_files(path) for file in kind]
    described = path / hexapod.DESCRIPTION
    if files and described.exists():
        raise DataError(
            f"{path} has both {described.name}, of simulated walks, and {files[0].relative_to(path)}, which looks like "
            "a recording: move one of them to another folder."
        )
    if files:
        return _standardise(*recorded.read_states(path))
    return _standardise(*hexapod.list_states(hexapod.load(path)))


@cache
def make_synthetic(count: int, steps: int = 61) -> Trajectories:
    """Waves with a frequency and a phase for each trajectory, and noise; eight to validate with and eight to test."""
    draws = np.random.default_rng(0)
    frequency, phase = draws.uniform((0.7 / 50, 0.0), (1.4 / 50, 1.0), (count + 16, 2)).T[..., None, None]
    waves = np.sin(2 * np.pi * (frequency * np.arange(steps)[:, None] + phase + draws.uniform(size=SIZE)))
    waves += draws.normal(0.0, 0.05, waves.shape)
    train, validation, test = np.split(waves, (count, count + 8))
    return _standardise(train, validation, test)


def _simulate(target: Path) -> None:
    """Simulate; several processes may do so at once, and each sees a whole data set or none."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=target.parent) as begun:
        made = Path(begun) / "made"
        hexapod.save(hexapod.generate(0), made, 0)
        try:
            made.rename(target)
        except OSError:
            if not target.is_dir():  # else another process was faster
                raise


def _standardise(*kinds: NDArray[np.floating]) -> Trajectories:
    tensors = [torch.from_numpy(np.asarray(kind, np.float64)).transpose(0, 1) for kind in kinds]
    std, mean = torch.std_mean(tensors[0], (0, 1))
    std = std.clamp_min(1e-6)  # of a number that never changes
    train, validation, test = ((tensor - mean) / std for tensor in tensors)
    return Trajectories(train, validation, test, mean, std, fingerprint(kinds))
