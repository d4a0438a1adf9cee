"""Stochastic rounding to bfloat16: up or down with odds by which the mean of many roundings is the value itself.

The noise is a function of the element, its tensor and the step, so that replicas round alike and a run can be repeated.
"""

from typing import Any


def noise(index: Any, step: Any, position: Any) -> Any:
    """Sixteen random bits for an element of a tensor, from its place in memory, its tensor's position and the step."""
    bits = (index + step * 0x9E3779B1 + position * 0x85EBCA6B) & 0xFFFFFFFF
    bits = ((bits ^ (bits >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
    bits = ((bits ^ (bits >> 15)) * 0x846CA68B) & 0xFFFFFFFF
    return (bits ^ (bits >> 16)) & 0xFFFF
