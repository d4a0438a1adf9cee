"""What a run is given, drawn ahead: the images and labels of all steps, and which steps are bad.

All of it depends on the noise and the seed alone, so that methods meet the same batches and the same faults. Good
batches, and the crops of all, are those of clean data.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from adaterm_bench.experiments.classification.experiment import draw_batches


class Noise(NamedTuple):
    """What is wrong, and in which share of the batches."""

    kind: str
    share: float


NOISES = {
    "clean": Noise("none", 0.0),
    "labels 20 %": Noise("labels", 0.2),
    "frozen 10 %": Noise("frozen", 0.1),
    "swapped 10 %": Noise("swapped", 0.1),
    "human": Noise("human", 0.0),
}
"""labels: those of a batch are permuted; frozen: all images of a batch are its first one, as a camera that is stuck
gives them, and labels stay; swapped: the halves of every byte are exchanged, as by a reader that takes two values of
four bits in the wrong order; human: labels are those that people gave, in all batches, of which none counts as bad."""


class Draws(NamedTuple):
    """The tables of a run: their first dimension is the step."""

    batches: Tensor
    """Steps by images by five numbers: which image, as `swap_nibbles` counts them, where it is cropped from above and
    from the left, whether it is flipped, and the image whose label it has."""
    bad: Tensor


def choose_bad_steps(noise: Noise, steps: int, seed: int) -> Tensor:
    """Which steps are bad: the share of them, rounded to whole steps, but one at least; anywhere in the run."""
    bad = torch.zeros(steps, dtype=torch.bool)
    chosen = _make_generator("steps", noise, seed).permutation(steps)
    bad[chosen[: max(round(noise.share * steps), noise.share > 0.0)]] = True
    return bad


def draw_course(noise: Noise, count: int, epochs: int, size: int, seed: int) -> Draws:
    """The course of a run over so many images."""
    drawn = torch.cat([draw_batches(count, count // size, size, [seed, epoch]) for epoch in range(epochs)])
    image, crops, label = drawn[..., :1].clone(), drawn[..., 1:], drawn[..., :1].clone()
    bad = choose_bad_steps(noise, len(drawn), seed)
    if noise.kind == "frozen":
        image[bad] = image[bad][:, :1]
    elif noise.kind == "swapped":
        image[bad] += count
    elif noise.kind == "labels":
        generator = _make_generator("labels", noise, seed)
        orders = [generator.permutation(size) for _ in range(int(bad.sum()))]
        label[bad] = label[bad].gather(1, torch.from_numpy(np.stack(orders))[..., None])
    return Draws(torch.cat([image, crops, label], 2), bad)


def swap_nibbles(pixels: Tensor) -> Tensor:
    """Images, and after them the same images again with the halves of every byte exchanged."""
    return torch.cat([pixels, (pixels << 4) | (pixels >> 4)])


def _make_generator(purpose: str, noise: Noise, seed: int) -> np.random.Generator:
    return np.random.default_rng([seed, *f"{purpose} {noise.kind}".encode()])
