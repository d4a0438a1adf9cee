"""What makes a walk hard to predict: an operator who steers, uneven ground, spells of ice, pushes and poor sensors."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaterm_bench.datasets.hexapod.gait import Course, Walk

Values = NDArray[np.float64]

CELLS, SIDE = 160, 6.0  # of the ground: a square grid, and its side in metres
BUMPS, BREADTH = 0.006, 0.06  # standard deviation of the ground's height and how far apart it differs, in metres
HIGHEST = 0.04  # of the ground, in metres
ICE, ICE_LASTS, ICE_FRICTION = 0.4, 0.2, 0.05  # how often a second feet lose their hold, for how long, and what is left
PUSHES, PUSH_LASTS, PUSH_FORCE = 0.4, 0.1, 6.0  # how often a second, for how long, and with how many newtons at most
NOISE = 0.018  # standard deviation of the joints' sensors in radians


class Wander(NamedTuple):
    """How far a number of the gait wanders from its usual value, and how many seconds it takes for that."""

    spread: float
    seconds: float


WANDERS = {
    "frequency": Wander(0.25, 0.6),  # of the logarithm
    "stride": Wander(0.25, 0.6),  # of the logarithm
    "direction": Wander(0.5, 0.6),  # radians
    "turn": Wander(0.05, 0.6),  # radians a stride
}
STRIDES, TURNS = (0.01, 0.085), (-0.15, 0.15)  # what the legs can do


class Ground(NamedTuple):
    """Where a walk goes: the floor's heights, and at each step whether it is ice, and how the body is pushed."""

    heights: Values
    ice: NDArray[np.bool_]
    pushes: Values
    course: Course


def draw_ground(walk: Walk, steps: int, rate: float, draws: np.random.Generator) -> Ground:
    """A ground and all that happens on it, for so many steps."""
    wandered = {name: _wander(steps, rate, wander, draws) for name, wander in WANDERS.items()}
    course = Course(
        phase=walk.phase + np.cumsum(walk.frequency * np.exp(wandered["frequency"])) / rate,
        stride=np.clip(walk.stride * np.exp(wandered["stride"]), *STRIDES),
        direction=walk.direction + wandered["direction"],
        turn=np.clip(walk.turn + wandered["turn"], *TURNS),
    )
    pushed = _spells(steps, rate, PUSHES, PUSH_LASTS, draws)
    angle, size = draws.uniform(-np.pi, np.pi, steps), draws.uniform(0.0, PUSH_FORCE, steps)
    begins = np.maximum.accumulate(np.where(np.diff(pushed, prepend=False) & pushed, np.arange(steps), 0))
    forces = (size * np.stack([np.cos(angle), np.sin(angle)]))[:, begins].T * pushed[:, None]
    ice = _spells(steps, rate, ICE, ICE_LASTS, draws)
    return Ground(_draw_heights(draws), ice, forces, course)


def _draw_heights(draws: np.random.Generator) -> Values:
    """Bumps in metres, from 0 on."""
    wave = np.fft.fftfreq(CELLS, SIDE / CELLS)
    smooth = np.exp(-2.0 * (np.pi * BREADTH) ** 2 * (wave[:, None] ** 2 + wave**2))
    field = np.fft.ifft2(smooth * np.fft.fft2(draws.standard_normal((CELLS, CELLS)))).real
    return np.asarray(np.clip(BUMPS * field / field.std() + HIGHEST / 2, 0.0, HIGHEST))


def _wander(steps: int, rate: float, wander: Wander, draws: np.random.Generator) -> Values:
    """A process that drifts and is drawn back (Ornstein and Uhlenbeck's), from anywhere."""
    keep = np.exp(-1.0 / (rate * wander.seconds))
    noise = wander.spread * draws.standard_normal(steps)
    values = np.empty(steps)
    value = noise[0]
    for step in range(steps):
        value = keep * value + np.sqrt(1.0 - keep**2) * noise[step]
        values[step] = value
    return values


def _spells(steps: int, rate: float, often: float, last: float, draws: np.random.Generator) -> NDArray[np.bool_]:
    """When something happens that begins by chance and lasts for a while."""
    begins = draws.uniform(size=steps) < often / rate
    return np.asarray(np.convolve(begins, np.ones(round(last * rate)))[:steps] > 0)
