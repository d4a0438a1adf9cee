"""The policy of the paper's reinforcement learning: a multivariate Student's t-distribution, and its networks.

The distribution has one chi-square for all dimensions. The layers of many seeds are batched matrices.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import log, pi, sqrt

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

Array = NDArray[np.float32]


def log_density(action: Tensor, location: Tensor, scale: Tensor, dof: Tensor) -> Tensor:
    """The logarithm of its density; the last dimension is the action's, and `dof` has one entry there."""
    dimension = action.shape[-1]
    distance = ((action - location) / scale).square().sum(-1)
    dof = dof.squeeze(-1)
    whole = (dof + dimension) / 2
    constant = torch.lgamma(whole) - torch.lgamma(dof / 2) - dimension / 2 * (torch.log(dof) + log(pi))
    return constant - torch.log(scale).sum(-1) - whole * torch.log1p(distance / dof)


def draw_action(location: Array, scale: Array, dof: float, generator: np.random.Generator) -> Array:
    """One action: a Gaussian one, stretched in all its dimensions by the root of the same inverse chi-square."""
    stretch = sqrt(dof / max(2.0 * generator.standard_gamma(dof / 2.0), 1e-30))
    noise: Array = generator.standard_normal(location.shape, dtype=np.float32)
    return np.clip(location + scale * noise * np.float32(stretch), -1e6, 1e6).astype(np.float32)


def split_policy(out: Tensor, bounded: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Location, scale and degrees of freedom from what the network gives."""
    dimension = out.shape[-1] // 2
    location, scale, dof = torch.split(out, [dimension, dimension, 1], -1)
    scale = 0.95 * scale.sigmoid() + 0.05 if bounded else functional.softplus(scale) + 1e-3
    return location, scale, functional.softplus(dof) + 1.0


def make_layers(seeds: Sequence[int], widths: Sequence[int], number: int) -> list[Tensor]:
    """Weights and biases as torch's layers begin, those of the last layer a tenth of that; the seed decides them."""
    made = []
    for seed in seeds:
        generator = np.random.default_rng([seed, 10, number])
        weights = []
        for place, (inputs, outputs) in enumerate(pairwise(widths)):
            size = (0.1 if place == len(widths) - 2 else 1.0) / sqrt(inputs)
            weights += [generator.uniform(-size, size, shape) for shape in ((inputs, outputs), (1, outputs))]
        made.append(weights)
    return [torch.tensor(np.stack(weights), dtype=torch.float32) for weights in zip(*made, strict=True)]


def apply_trunk(params: Sequence[Tensor], x: Tensor) -> Tensor:
    """Seeds by samples by features; every hidden layer is normalised, without learnt factors, and passes Swish."""
    for place in range(0, len(params), 2):
        x = torch.baddbmm(params[place + 1], x, params[place])
        x = functional.silu(functional.layer_norm(x, x.shape[-1:]))
    return x


def apply_head(params: Sequence[Tensor], x: Tensor) -> Tensor:
    """The last layer."""
    return torch.baddbmm(params[1], x, params[0])


def normalise(states: Array, moments: NDArray[np.float64]) -> Array:
    """Observations (seeds first) by running moments: count, mean and sum of squares of each seed."""
    count, mean, squares = moments
    scale = np.sqrt(np.maximum(squares / np.maximum(count, 1.0), 1e-4))
    shape = (len(mean), *(1,) * (states.ndim - 2), -1)
    normal: Array = np.clip((states - mean.reshape(shape)) / scale.reshape(shape), -10.0, 10.0).astype(np.float32)
    return normal
