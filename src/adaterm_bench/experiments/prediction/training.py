"""Truncated back-propagation through time: recurrent networks of many trials learn trajectories in segments.

Segments end by chance, as Tallec and Ollivier have it ("Unbiasing Truncated Backpropagation Through Time", 2017): the
longer one is, the less likely it ends next. What flows back past a place where a segment might have ended, and did not,
is multiplied by the inverse of that chance, so that the gradient is in the mean that of whole trajectories.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import torch
from torch import Tensor

from adaterm_bench.methods import make_stepper
from adaterm_bench.models.gru import Advance, advance, make_memory, make_weights, measure_surprise, walk
from adaterm_bench.models.networks import make_repeatable

UNIT = 10  # steps between places where a segment may end: a GPU's graphs are of each length that there is
MEAN = 30  # steps of a segment, except for the last of a trajectory
ALPHA = 4.0  # how fast long segments become rare: like the length to the power of this, less one


class Training:
    """The networks of many trials, what trains them, and all that a step reads and changes, in tensors that stay.

    `train` is steps by trajectories by numbers; a prediction goes `horizon` steps beyond a true state.
    """

    def __init__(
        self, method: str, seeds: Sequence[int], train: Tensor, horizon: int, hidden: int, batch_size: int, lr: float
    ) -> None:
        self.seeds, self.train, self.horizon, self.batch_size = seeds, train, horizon, batch_size
        self.batches = train.shape[1] // batch_size
        self.steps = (len(train) - 1) // UNIT * UNIT
        self.params = make_weights(seeds, train.shape[2], hidden, train.dtype, str(train.device))
        self.stepper = make_stepper(method, self.params, lr)
        self.advance = _compile_advance() if train.is_cuda else advance
        shape = (len(seeds), batch_size, train.shape[2])
        self.states = train.new_zeros(self.steps + 1, *shape)
        self.noise = train.new_zeros(self.steps, *shape)
        self.begins = torch.zeros(self.steps, dtype=torch.bool, device=train.device)
        self.memory = make_memory(self.params, batch_size)
        self.total = train.new_zeros(len(seeds))
        self.repeated: dict[int, Callable[[], None]] = {}
        self.fresh = True

    def epoch(self, number: int) -> Tensor:
        """One pass over the data, in which nothing is read back from the device; the mean loss of a step, by trial."""
        self.total.zero_()
        order, noise = self.draw_epoch(number)
        begins = _mark_begins(self.steps, self.horizon, self.train.device)
        for batch, chosen in enumerate(order):
            states, place = self.train[:, chosen], 0
            for tensor in self.memory:
                tensor.zero_()
            for length in cut_segments(self.steps, number, batch):
                self.states[: length + 1].copy_(states[place : place + length + 1])
                self.begins[:length].copy_(begins[place : place + length])
                if noise is not None:
                    self.noise[:length].copy_(noise[batch, place : place + length])
                self._learn(length)
                place += length
        return self.total / (self.batches * self.steps)

    def state(self) -> list[Tensor]:
        """All that an epoch changes for the next one."""
        return [*self.params, *self.stepper.state()]

    def restore(self, saved: Sequence[Tensor]) -> None:
        """Go on from such a state."""
        self._step(UNIT)  # makes state, to be replaced
        self.fresh = False
        with torch.no_grad():
            for tensor, value in zip(self.state(), saved, strict=True):
                tensor.copy_(value)

    def draw_epoch(self, number: int) -> tuple[Tensor, Tensor | None]:
        """Which trajectories make each batch, and the noise of samples, where any is fed back."""

        def draw(seed: int) -> tuple[Tensor, Tensor]:
            draws = make_generator(seed, number)
            order = torch.randperm(self.train.shape[1], generator=draws)[: self.batches * self.batch_size]
            shape = (self.batches, self.steps if self.horizon > 1 else 0, self.batch_size, self.train.shape[2])
            return order.view(self.batches, self.batch_size), torch.randn(shape, generator=draws)

        with ThreadPoolExecutor() as pool:
            orders, noises = zip(*pool.map(draw, self.seeds), strict=True)
        noise = torch.stack(noises, 2).to(self.train) if self.horizon > 1 else None
        return torch.stack(orders, 1).to(self.train.device), noise

    def _learn(self, length: int) -> None:
        """Take a step with a segment of this length."""
        if self.fresh:
            self._step(length)  # what a first step does may differ: it makes state
            self.fresh = False
            return
        if length not in self.repeated:
            changed = [*self.state(), *self.memory, self.total]
            self.repeated[length] = make_repeatable(lambda: self._step(length), changed)
        self.repeated[length]()

    def _step(self, length: int) -> None:
        states, noise, begins = self.states[:length], self.noise[:length], self.begins[:length]
        factors = list_factors(length)
        means, stds, memory = walk(self.params, states, noise, begins, self.memory, self.advance, factors)
        loss = measure_surprise(means, stds, self.states[1 : length + 1]).sum((0, 3)).mean(1)
        for parameter, gradient in zip(self.params, torch.autograd.grad(loss.sum(), self.params), strict=True):
            parameter.grad = gradient
        self.stepper.step()
        with torch.no_grad():
            self.total += loss
            for old, new in zip(self.memory, memory, strict=True):
                old.copy_(new)

    def error(self, states: Tensor, noise: Tensor, params: Sequence[Tensor] = ()) -> Tensor:
        """The mean square error of samples at the last step of whole intervals, by trial; of others if given."""
        steps = (len(states) - 1) // self.horizon * self.horizon
        samples = predict(params or self.params, states[: steps + 1], noise[:steps], self.horizon)
        last = slice(self.horizon - 1, None, self.horizon)
        return (samples[last] - states[1:, None][last]).square().mean((0, 2, 3))


@torch.no_grad()
def predict(params: Sequence[Tensor], states: Tensor, noise: Tensor, horizon: int) -> Tensor:
    """The samples that networks predict in place of all states but the first."""
    along = states[:-1, None].expand(-1, len(params[0]), -1, -1)
    begins = _mark_begins(len(noise), horizon, states.device)
    means, stds, _ = walk(params, along, noise, begins, make_memory(params, states.shape[1]))
    return torch.addcmul(means, stds, noise)


def cut_segments(steps: int, epoch: int, batch: int) -> list[int]:
    """The lengths of the segments that a batch of trajectories is learnt in, the same for every trial."""
    draws = np.random.default_rng([epoch, batch])
    lengths = [UNIT]
    for _ in range(UNIT, steps, UNIT):
        if draws.uniform() < find_chance(lengths[-1]):
            lengths.append(UNIT)
        else:
            lengths[-1] += UNIT
    return lengths


def find_chance(length: int) -> float:
    """That a segment ends, where it may, after so many steps."""
    return (ALPHA - 1.0) / ((ALPHA - 2.0) * SCALE + length / UNIT)


def list_factors(length: int) -> list[float]:
    """By which to multiply what flows back into each step of a segment from the next one; the last has none."""
    return [
        1.0 / (1.0 - find_chance(step)) if step % UNIT == 0 and step < length else 1.0 for step in range(1, length + 1)
    ]


def _measure_mean(scale: float) -> float:
    """The mean length of a segment of an endless trajectory, in units, with chances of this scale."""
    lengths = np.arange(1, 100_000)
    survive = np.cumprod(1.0 - (ALPHA - 1.0) / ((ALPHA - 2.0) * scale + lengths))
    return 1.0 + float(survive.sum())


def _find_scale() -> float:
    """The scale with which segments have their mean length, by bisection."""
    low, high = 1.0, 2.0 * MEAN / UNIT
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if _measure_mean(middle) < MEAN / UNIT else (low, middle)
    return high


SCALE = _find_scale()


def make_generator(*numbers: int) -> torch.Generator:
    """Random numbers that these numbers decide."""
    (state,) = np.random.SeedSequence(numbers).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state))


@cache
def _compile_advance() -> Advance:
    compiled: Advance = torch.compile(advance, dynamic=False)
    return compiled


def _mark_begins(steps: int, horizon: int, device: torch.device) -> Tensor:
    return torch.arange(steps, device=device) % horizon == 0
