"""The equations over torch: its primitives, what `bind` makes of them, and stochastic rounding."""

from math import inf
from typing import Any

import torch
from torch import Tensor, exp, log, sqrt, square, where

from adaterm.binding import bind
from adaterm.rounding import noise


def _count_above(window: Tensor, bound: Any) -> Tensor:
    known = window < inf
    if isinstance(bound, Tensor):
        known = known & (window > bound[..., None])
    elif bound > -inf:  # all values are: it is asked how many there are
        known = known & (window > bound)
    return known.sum(-1, dtype=window.dtype)


def _quantile(ordered: Tensor, share: float) -> Tensor:
    place = share * torch.clamp_min(_count_above(ordered, -inf) - 1.0, 0.0)
    below = place.floor()
    low, high = ordered.gather(-1, torch.stack([below, place.ceil()], -1).long()).unbind(-1)
    return torch.lerp(low, high, (place - below).to(low.dtype))


def push(window: Tensor, note: Tensor) -> Tensor:
    """A window whose newest value, the first, is a note; an infinite note is none."""
    return where((note < inf)[..., None], torch.cat([note[..., None], window[..., :-1]], -1), window)


PRIMITIVES: dict[str, Any] = {
    "log": log,
    "exp": exp,
    "sqrt": sqrt,
    "square": square,
    "where": where,
    "at_least": torch.clamp_min,
    "add_up": torch.sum,
    "count_above": _count_above,
    "sort": lambda window: torch.sort(window).values,
    "quantile": _quantile,
    "count_newest_above": lambda window, bound: (window <= bound[..., None]).byte().argmax(-1),
    "newest": lambda window: window[..., 0],
    "push": push,
}
TORCH = bind(PRIMITIVES)
"""The equations on tensors."""


def find_widest(tensor: Tensor) -> torch.dtype:
    """The precision of long sums: float64, which Apple's GPUs do not have."""
    return torch.float32 if tensor.device.type == "mps" else torch.float64


def round_stochastically(values: Tensor, step: Tensor, position: int) -> Tensor:
    """Float32 values that bfloat16 can hold."""
    index = torch.arange(values.numel(), device=values.device).as_strided(values.shape, values.stride())
    values = values.float()
    raw = values.view(torch.int32).long()
    moved = ((raw + noise(index, step, position)) & 0xFFFF0000).int().view(torch.float32)
    return torch.where(values.isfinite(), moved, values)
