"""Stochastic rounding to bfloat16: up or down with odds by which the mean of many roundings is the value itself.

The noise is a function of the element, its tensor and the step, so that replicas round alike and a run can be repeated.
"""

from typing import Any

import torch
from torch import Tensor


def noise(index: Any, step: Any, position: Any) -> Any:
    """Sixteen random bits for an element of a tensor, from its place in memory, its tensor's position and the step."""
    bits = (index + step * 0x9E3779B1 + position * 0x85EBCA6B) & 0xFFFFFFFF
    bits = ((bits ^ (bits >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
    bits = ((bits ^ (bits >> 15)) * 0x846CA68B) & 0xFFFFFFFF
    return (bits ^ (bits >> 16)) & 0xFFFF


def round_stochastically(values: Tensor, step: Tensor, position: int) -> Tensor:
    """Float32 values that bfloat16 can hold."""
    index = torch.arange(values.numel(), device=values.device).as_strided(values.shape, values.stride())
    values = values.float()
    raw = values.view(torch.int32).long()
    moved = ((raw + noise(index, step, position)) & 0xFFFF0000).int().view(torch.float32)
    return torch.where(values.isfinite(), moved, values)
