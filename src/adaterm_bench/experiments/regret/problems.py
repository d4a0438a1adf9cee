"""Online convex problems on a box whose best fixed point is known, and what a method pays on many of them at once.

Every loss is a sum over coordinates of `h x^2 / 2 + c_t x`; h is 0 (linear) or 1 (quadratic), and the problem is its
sequence c_t. The best fixed point is then a corner of the box, or the mean of -c_t clipped to it.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Array = NDArray[np.float64]
Stream = Callable[[int, int], Array]
"""Gives c_t for so many steps from step t on, in order: an array of steps by coordinates."""


class Problem(NamedTuple):
    """A sequence of losses, started again for each seed and dimension."""

    begin: Callable[[Generator, int], Stream]
    curvature: float = 0.0
    adversarial: bool = False
    betas: tuple[float, float] = (0.9, 0.999)  # of Adam and AMSGrad


def _drifting(noise: Callable[[Generator, tuple[int, int]], Array]) -> Callable[[Generator, int], Stream]:
    """Noise around a slope of 0.2 up or down in every other coordinate, and of 0 in the rest.

    Without a slope nothing can be learned, and the best corner in hindsight gains about sqrt(T) on everyone.
    """

    def begin(rng: Generator, dimension: int) -> Stream:
        slope = 0.2 * rng.choice((-1.0, 1.0), dimension) * (np.arange(dimension) % 2)
        return lambda start, count: slope + noise(rng, (count, dimension))

    return begin


def _normal(rng: Generator, shape: tuple[int, int]) -> Array:
    return rng.standard_normal(shape)


def _student(dof: float, limit: float) -> Callable[[Generator, tuple[int, int]], Array]:
    """Symmetric, and cut at a limit: its mean is then 0 for every dof."""
    return lambda rng, shape: np.clip(rng.standard_t(dof, shape), -limit, limit)


def _targets(rng: Generator, dimension: int) -> Stream:
    """Noise around a target inside the box."""
    target = rng.uniform(-0.5, 0.5, dimension)
    return lambda start, count: -target - rng.standard_normal((count, dimension))


def _sparse(rng: Generator, dimension: int) -> Stream:
    """As the linear problem, but nine of ten entries are zero."""
    dense, present = _drifting(_normal)(rng, dimension), rng.spawn(1)[0]
    return lambda start, count: dense(start, count) * (present.uniform(size=(count, dimension)) < 0.1)


def _flips(rng: Generator, dimension: int) -> Stream:
    """Five steps up and five down, each coordinate in a phase of its own."""
    phase = rng.integers(0, 10, dimension)
    return lambda start, count: np.where((np.arange(start, start + count)[:, None] + phase) % 10 < 5, 1.0, -1.0)


def _rare(period: int, height: float, noise: float = 0.0) -> Callable[[Generator, int], Stream]:
    """Once in a period the slope is `height`, and else -1: only the rare step says that the lower end is best."""

    def begin(rng: Generator, dimension: int) -> Stream:
        def draw(start: int, count: int) -> Array:
            first = np.arange(start, start + count)[:, None] % period == 1
            return np.where(first, height, -1.0) + noise * rng.standard_normal((count, dimension))

        return draw

    return begin


PROBLEMS = {
    "linear": Problem(_drifting(_normal)),
    "quadratic": Problem(_targets, curvature=1.0),
    "sparse": Problem(_sparse),
    "heavy tails, dof 2": Problem(_drifting(_student(2.0, 1e6))),
    "heavy tails, dof 1": Problem(_drifting(_student(1.0, 100.0))),
    "sign flips": Problem(_flips, adversarial=True),
    "one in 3": Problem(_rare(3, 3.0), adversarial=True, betas=(0.0, 0.1)),
    "one in 20": Problem(_rare(20, 40.0, noise=0.5), adversarial=True),
}
"""The problems by name; "one in 3" is that of Reddi, Kale and Kumar (2018), with betas for which Adam fails on it."""


class Losses:
    """The losses of many trials: a row for each, of a problem and a seed; every method meets the same ones."""

    def __init__(self, rows: list[tuple[str, int]], dimension: int, radius: float) -> None:
        problems = [PROBLEMS[name] for name, _ in rows]
        rngs = [np.random.default_rng([list(PROBLEMS).index(name), seed]) for name, seed in rows]
        self.radius = radius
        self.curvature = np.array([[problem.curvature] for problem in problems])
        self.start = np.stack([rng.uniform(-radius, radius, dimension) for rng in rngs])
        self._streams = [problem.begin(rng, dimension) for problem, rng in zip(problems, rngs, strict=True)]

    def slopes(self, first: int, count: int) -> Array:
        """c_t of the next steps: steps by trials by coordinates."""
        return np.stack([stream(first, count) for stream in self._streams], axis=1)

    def paid(self, points: Array, slopes: Array) -> Array:
        """The losses at the points, summed over steps: trials by coordinates."""
        paid: Array = np.sum(points * (0.5 * self.curvature * points + slopes), axis=0)
        return paid

    def best(self, steps: int, slope: Array) -> Array:
        """The best fixed point's losses after so many steps with this sum of c_t: trials by coordinates."""
        stiffness = steps * self.curvature
        inside = np.divide(-slope, stiffness, out=-self.radius * np.sign(slope), where=stiffness > 0.0)
        point = np.clip(inside, -self.radius, self.radius)
        loss: Array = point * (0.5 * stiffness * point + slope)
        return loss


def space_evenly(steps: int, count: int) -> list[int]:
    """About so many different whole numbers from 1 to `steps`, evenly on a logarithmic scale."""
    return sorted({round(step) for step in np.geomspace(1, steps, count).tolist()})


def cut_steps(marks: list[int], longest: int) -> Iterator[tuple[int, int, bool]]:
    """Cuts steps 1 to the last mark into runs (first, count, whether a mark ends it) of limited length."""
    done = 0
    for mark in marks:
        while done < mark:
            count = min(longest, mark - done)
            yield done + 1, count, done + count == mark
            done += count
