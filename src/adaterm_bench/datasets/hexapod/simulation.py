"""The robot walks in MuJoCo, which only this module needs."""

import importlib
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaterm_bench.datasets.hexapod import ground as grounds
from adaterm_bench.datasets.hexapod.gait import Walk, plan_angles
from adaterm_bench.datasets.hexapod.ground import Ground
from adaterm_bench.datasets.hexapod.robot import FOOT, JOINTS, TIMESTEP, mjcf

RATE = 50  # how often a second angles are recorded and servos are told new ones
STEPS = 250  # recorded
RAMP, SETTLING = 1.0, 2.0  # seconds until the strides have their full length, and until recording begins
NOISE = 0.01  # standard deviation of the joints' sensors in radians
TICK = 2 * np.pi / 4096  # servos of this kind measure, and are told, angles in twelve bits a turn
COLUMNS = {
    "angles": JOINTS,
    "references": JOINTS,
    "body": ("x", "y", "height", "yaw", "tilt"),  # metres and radians; tilt is how far the body is from upright
    "walk": Walk._fields,
}


class MissingError(Exception):
    """MuJoCo is not installed; the message says what to do."""


class Recording(NamedTuple):
    """One walk, or many in a first dimension: at each step the angles as measured, those told next, and the body."""

    angles: NDArray[np.float32]
    references: NDArray[np.float32]
    body: NDArray[np.float32]
    walk: NDArray[np.float32]


@cache
def mujoco() -> Any:
    """The package."""
    try:
        return importlib.import_module("mujoco")
    except ImportError as error:
        raise MissingError("MuJoCo is not installed: pip install '.[prediction]' in a clone of adaterm") from error


@cache
def model(uneven: bool = False) -> Any:
    """The robot and its floor."""
    floor = (grounds.CELLS, grounds.SIDE, grounds.HIGHEST) if uneven else ()
    return mujoco().MjModel.from_xml_string(mjcf(*floor))


def simulate(walk: Walk, draws: np.random.Generator, ground: Ground | None = None) -> Recording:
    """Walk, and record once the gait is steady; what is drawn is the sensors' noise. Without a ground it is flat."""
    before, world = round(SETTLING * RATE), model(ground is not None)
    course = None if ground is None else ground.course
    targets = _round_ticks(plan_angles(walk, np.arange(before + STEPS) / RATE, RAMP, course))
    data = _standing(walk, targets[0], world, ground)
    angles, body = np.empty_like(targets), np.empty((len(targets), len(COLUMNS["body"])))
    for step, target in enumerate(targets):
        angles[step], body[step] = data.qpos[7:], _read_pose(data)
        data.ctrl[:] = target
        if ground is not None:
            world.geom("floor").friction[0] = grounds.ICE_FRICTION if ground.ice[step] else walk.friction
            data.body("body").xfrc_applied[:2] = ground.pushes[step]
        mujoco().mj_step(world, data, round(1 / RATE / TIMESTEP))
    body[:, 3] = np.unwrap(body[:, 3])
    noise = NOISE if ground is None else grounds.NOISE
    measured = _round_ticks(angles + draws.normal(0.0, noise, angles.shape))
    return Recording(
        *(np.asarray(column, np.float32) for column in (measured[before:], targets[before:], body[before:], walk))
    )


def _standing(walk: Walk, angles: NDArray[np.float64], world: Any, ground: Ground | None) -> Any:
    """A fresh state of the simulation, with the feet on a floor of the walk's friction, or just above its bumps."""
    world.geom("floor").friction[0] = walk.friction
    if ground is not None:
        world.hfield_data[:] = (ground.heights / grounds.HIGHEST).ravel()
    data = mujoco().MjData(world)
    data.qpos[2] = walk.height + FOOT + (0.0 if ground is None else grounds.HIGHEST)
    data.qpos[7:] = angles
    mujoco().mj_forward(world, data)
    return data


def _round_ticks(angles: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.round(angles / TICK) * TICK


def _read_pose(data: Any) -> tuple[float, ...]:
    axes = data.body("body").xmat.reshape(3, 3)
    return *data.qpos[:3], np.arctan2(axes[1, 0], axes[0, 0]), np.arccos(min(axes[2, 2], 1.0))
