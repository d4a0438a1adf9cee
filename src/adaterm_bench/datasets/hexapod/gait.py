"""The tripod gait: three legs push the body on while the other three step ahead."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaterm_bench.datasets.hexapod.robot import STANCE, solve_angles


class Walk(NamedTuple):
    """How one trajectory is walked. A stride is what a tripod does from touching down to lifting off."""

    stride: float
    lift: float
    frequency: float
    phase: float
    direction: float
    turn: float
    height: float
    friction: float


class Range(NamedTuple):
    """What a number may be; the unit is for readers."""

    low: float
    high: float
    unit: str


RANGES = {
    "stride": Range(0.04, 0.08, "m"),
    "lift": Range(0.02, 0.04, "m"),
    "frequency": Range(0.7, 1.4, "Hz"),
    "phase": Range(0.0, 1.0, "periods"),
    "direction": Range(-np.pi / 4, np.pi / 4, "rad to the left of straight ahead"),
    "turn": Range(-0.12, 0.12, "rad per stride, to the left"),
    "height": Range(0.085, 0.11, "m from the feet's centres to the hips"),
    "friction": Range(0.3, 1.0, "of the floor, coefficient"),
}


class Course(NamedTuple):
    """What of a walk may change on the way, at each time; the phase is in periods."""

    phase: NDArray[np.float64]
    stride: NDArray[np.float64]
    direction: NDArray[np.float64]
    turn: NDArray[np.float64]


def keep_course(walk: Walk, times: NDArray[np.float64]) -> Course:
    """A walk on which nothing changes."""
    same = (np.full_like(times, number) for number in (walk.stride, walk.direction, walk.turn))
    return Course(walk.frequency * times + walk.phase, *same)


def draw_walk(draws: np.random.Generator) -> Walk:
    """A walk with everything uniform in its range."""
    return Walk(*(draws.uniform(RANGES[name].low, RANGES[name].high) for name in Walk._fields))


def plan_angles(
    walk: Walk, times: NDArray[np.float64], ramp: float, course: Course | None = None
) -> NDArray[np.float64]:
    """The 18 angles that the servos are told at each time; strides grow from nothing to their length in `ramp` seconds.

    A foot on the floor moves straight back while the body moves on; it returns through the air on half a sine.
    """
    course = keep_course(walk, times) if course is None else course
    tripods = np.arange(len(STANCE)) % 2 / 2
    phase = (course.phase[:, None] + tripods) % 1.0
    swing = np.clip(2 * phase - 1, 0, 1)  # how far a foot is in the air
    along = np.where(phase < 0.5, 0.5 - 2 * phase, -0.5 * np.cos(np.pi * swing))
    ahead = course.stride[:, None] * np.stack([np.cos(course.direction), np.sin(course.direction)], -1)
    around = course.turn[:, None, None] * np.stack([-STANCE[:, 1], STANCE[:, 0]], -1)
    size = np.minimum(times / ramp, 1.0)[:, None]
    feet = np.empty((len(times), len(STANCE), 3))
    feet[..., :2] = STANCE + (size * along)[..., None] * (ahead[:, None] + around)
    feet[..., 2] = size * walk.lift * np.sin(np.pi * swing) - walk.height
    return solve_angles(feet)
