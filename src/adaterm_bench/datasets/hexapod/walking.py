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


def fit_linear(train: NDArray[np.float32], test: NDArray[np.float32], horizon: int) -> float:
    """How hard it is to predict: the mean square error of a linear predictor, of standardised states.

    It sees states of the last half second, is fitted by ridge regression, and knows nothing of any optimizer.
    """
    mean, std = train.mean((0, 1), dtype=np.float64), train.std((0, 1), dtype=np.float64)
    std = np.maximum(std, 1e-6)
    lags, pairs = (0, 1, 2, 4, 8, 16, 24), []
    for states in ((train - mean) / std, (test - mean) / std):
        places = range(lags[-1], states.shape[1] - horizon, 3)
        seen = np.concatenate([np.concatenate([states[:, at - lag] for lag in lags], 1) for at in places])
        pairs.append((np.pad(seen, ((0, 0), (0, 1)), constant_values=1.0), states[:, [at + horizon for at in places]]))
    (inputs, targets), (unseen, truths) = ((seen, after.swapaxes(0, 1).reshape(len(seen), -1)) for seen, after in pairs)
    weights = np.linalg.solve(inputs.T @ inputs + 30.0 * np.eye(inputs.shape[1]), inputs.T @ targets)
    return float(np.mean((unseen @ weights - truths) ** 2))


def summarise(recording: Recording) -> dict[str, dict[str, float]]:
    """The least, the mean and the greatest of each measure over the trajectories."""
    return {
        name: {"min": round(measure.min(), 4), "mean": round(measure.mean(), 4), "max": round(measure.max(), 4)}
        for name, measure in measure(recording).items()
    }
