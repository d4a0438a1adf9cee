"""Gated recurrent units of many trials at once; what they put out is a Gaussian, of which samples are fed back.

Every tensor has a leading dimension of trials, and those of whole trajectories one of time before that.
"""

from collections.abc import Callable, Sequence
from math import log, pi, sqrt

import torch
from torch import Tensor
from torch.nn import functional

FLOOR = 1e-3  # of the standard deviation
Advance = Callable[[Sequence[Tensor], Tensor, Tensor, Tensor, Tensor], tuple[Tensor, ...]]


def make_weights(seeds: Sequence[int], size: int, hidden: int, dtype: torch.dtype, device: str) -> list[Tensor]:
    """Two layers and a linear head as torch's layers begin, the same for a seed whatever else there is."""
    layers = [
        ((inputs, 3 * hidden), (hidden, 3 * hidden), (1, 3 * hidden), (1, 3 * hidden)) for inputs in (size, hidden)
    ]
    shapes = [*layers[0], *layers[1], (hidden, 2 * size), (1, 2 * size)]
    trials = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        draws = (torch.rand(shape, generator=generator, dtype=torch.float64) for shape in shapes)
        trials.append([(2.0 * draw - 1.0) / sqrt(hidden) for draw in draws])
    return [torch.stack(tensors).to(device, dtype).requires_grad_() for tensors in zip(*trials, strict=True)]


def step_cell(params: Sequence[Tensor], inputs: Tensor, hidden: Tensor) -> Tensor:
    """The next hidden state of a layer, by torch's equations."""
    parts = [2 * hidden.shape[-1], hidden.shape[-1]]  # the gates, and what is new
    new_gates, new = torch.split(torch.baddbmm(params[2], inputs, params[0]), parts, -1)
    old_gates, old = torch.split(torch.baddbmm(params[3], hidden, params[1]), parts, -1)
    reset, update = (new_gates + old_gates).sigmoid().chunk(2, -1)
    return torch.lerp(torch.addcmul(new, reset, old).tanh(), hidden, update)


def advance(params: Sequence[Tensor], inputs: Tensor, noise: Tensor, *hidden: Tensor) -> tuple[Tensor, ...]:
    """One step of time: both hidden states, mean and standard deviation of what comes next, and a sample of it."""
    first = step_cell(params[:4], inputs, hidden[0])
    second = step_cell(params[4:8], first, hidden[1])
    mean, width = torch.baddbmm(params[9], second, params[8]).chunk(2, -1)
    std = functional.softplus(width) + FLOOR
    return first, second, mean, std, torch.addcmul(mean, std, noise)


def walk(
    params: Sequence[Tensor],
    states: Tensor,
    noise: Tensor,
    begins: Tensor,
    memory: Sequence[Tensor],
    advance: Advance = advance,
    factors: Sequence[float] = (),
) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """Go along trajectories: means and standard deviations of every next state, and the memory after the last step.

    Where an interval `begins` the network sees the true state, and elsewhere its own last sample. The memory is both
    hidden states and that sample. What flows back into a step's memory from the next is multiplied by its factor.
    """
    means, stds = [], []
    first, second, sample = memory
    for place, (state, draw, begin) in enumerate(zip(states, noise, begins, strict=True)):
        inputs = torch.where(begin, state, sample)
        first, second, mean, std, sample = advance(params, inputs, draw, first, second)
        means.append(mean)
        stds.append(std)
        if factors and factors[place] != 1.0:
            first, second, sample = (_scale_gradient(tensor, factors[place]) for tensor in (first, second, sample))
    return torch.stack(means), torch.stack(stds), (first, second, sample)


def _scale_gradient(value: Tensor, factor: float) -> Tensor:
    """The same value, whose gradient is multiplied."""
    still = value.detach()
    return still + factor * (value - still)


def make_memory(params: Sequence[Tensor], samples: int) -> list[Tensor]:
    """What is remembered before the first step, of so many trajectories for each trial: nothing."""
    trials, hidden, outputs = params[8].shape
    return [params[8].new_zeros(trials, samples, width) for width in (hidden, hidden, outputs // 2)]


def measure_surprise(means: Tensor, stds: Tensor, states: Tensor) -> Tensor:
    """The negative log-likelihood of each number."""
    return 0.5 * ((states - means) / stds).square() + stds.log() + 0.5 * log(2.0 * pi)
