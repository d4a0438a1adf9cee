"""What an arm of the arena is: an optimizer as its authors publish it, and what a training loop must know of it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

NamedParameters = list[tuple[str, Tensor]]
Rate = float | Tensor


class Recipe(NamedTuple):
    """What a task asks of every method, unless its authors publish other numbers."""

    betas: tuple[float, float]
    weight_decay: float
    warm_up: int
    """Steps in which the learning rate rises; for methods that bring their own schedule."""
    steps: int
    """Of a run; for the same."""
    head: str = "head"
    """How the names of the last layer's parameters begin; Muon leaves them, and embeddings, to AdamW."""


class Arm(NamedTuple):
    """An optimizer under comparison."""

    make: Callable[[NamedParameters, Rate, Recipe], torch.optim.Optimizer]
    captured: bool
    """Whether a CUDA graph can replay a whole step: then the learning rate is a tensor on the device, and all that
    changes from step to step is there, too. If not, the loop sets `lr` in the groups as a number before each step."""
    scheduled: bool = True
    """Whether it follows the task's schedule; if not, the learning rate is constant, and the method does the rest."""
    module: str = ""
    """The module of another package that it needs."""


class Observed(NamedTuple):
    """What an optimizer made of its last batch; tensors without dimensions, on the device of the parameters."""

    signal: Tensor
    """The larger, the more the batch stood out."""
    trust: Tensor
    """1 if the batch was taken as it is, 0 if it was excluded; in between if it was taken in part."""


def observe(optimizer: Any) -> Observed | None:
    """What an optimizer made of its last batch, if it has an opinion."""
    return optimizer.observe() if hasattr(optimizer, "observe") else None


def inform(optimizer: Any, loss: Tensor, bad: Tensor) -> None:
    """Tell an optimizer, if it wants to know, the batch's loss and whether it is bad (for an oracle), on the device."""
    if hasattr(optimizer, "inform"):
        optimizer.inform(loss, bad)
