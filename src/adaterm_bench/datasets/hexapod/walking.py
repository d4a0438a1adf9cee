"""Does it really walk? What the recordings say of the body and of the servos."""

import numpy as np
from numpy.typing import NDArray

from adaterm_bench.datasets.hexapod.gait import Walk
from adaterm_bench.datasets.hexapod.simulation import RATE, Recording


def measure(recording: Recording) -> dict[str, NDArray[np.float64]]:
    """Of each trajectory: speeds in m/s and rad/s beside those that its gait asks for, metres and radians."""
    x, y, height, yaw, tilt = np.moveaxis(recording.body.astype(np.float64), -1, 0)
    walk = dict(zip(Walk._fields, recording.walk.astype(np.float64).T, strict=True))
    seconds = (x.shape[1] - 1) / RATE
    heading = (yaw[:, 1:] + yaw[:, :-1]) / 2 + walk["direction"][:, None]
    moved = np.diff(x) * np.cos(heading) + np.diff(y) * np.sin(heading)
    strayed = np.diff(y) * np.cos(heading) - np.diff(x) * np.sin(heading)
    error = recording.angles.astype(np.float64) - recording.references
    return {
        "speed": moved.sum(1) / seconds,
        "asked_speed": 2 * walk["frequency"] * walk["stride"],
        "sideways_speed": strayed.sum(1) / seconds,
        "turn_rate": (yaw[:, -1] - yaw[:, 0]) / seconds,
        "asked_turn_rate": 2 * walk["frequency"] * walk["turn"],
        "lowest": height.min(1),
        "highest": height.max(1),
        "tilt": tilt.max(1),
        "tracking_error": np.sqrt((error**2).mean((1, 2))),
    }


def summarise(recording: Recording) -> dict[str, dict[str, float]]:
    """The least, the mean and the greatest of each measure over the trajectories."""
    return {
        name: {"min": round(measure.min(), 4), "mean": round(measure.mean(), 4), "max": round(measure.max(), 4)}
        for name, measure in measure(recording).items()
    }
