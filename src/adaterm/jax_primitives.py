"""The equations over JAX: its primitives, what `bind` makes of them, and stochastic rounding."""

from collections import Counter, defaultdict
from math import inf
from types import FunctionType
from typing import Any

import jax
import jax.numpy as jnp
import numpy

from adaterm.binding import bind
from adaterm.rounding import noise

_LONG = 32  # elements of a row, at least: so the sums over rows are small beside the tensor
_LARGE = 2**14  # elements of a large tensor
_MOVING, _ADDING = 2, 8  # large tensors of a size that are moved together, and tensors that are added up together


def _add_up(terms: Any) -> Any:
    """The sum over each row of a tensor if rows are long, the terms of a short vector, and else the whole sum.

    What is left to add up is left to `add_up_rest`.
    """
    if terms.ndim == 1 and terms.size < _LARGE:
        return terms
    rows = terms.ndim > 1 and terms.size >= _LONG * terms.shape[0]
    return jnp.sum(terms, axis=tuple(range(1, terms.ndim)) if rows else None)


def add_up_rest(sums: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    """All sums of all tensors, which `_add_up` began: a vector for each sum of a rule.

    XLA too adds up a large tensor in two kernels, but the second one for each sum on its own, and has a kernel for each
    small tensor. Here tensors of one shape share them. With several devices they do not: XLA would lay them out alike.
    """
    together = _ADDING if jax.device_count() == 1 else 1
    groups, seen = defaultdict(list), Counter[Any]()
    for place, (first, *_) in enumerate(sums):
        groups[first.shape, first.dtype, seen[first.shape] // together].append(place)
        seen[first.shape] += 1
    whole: dict[int, Any] = {}
    for places in groups.values():
        rows = jnp.stack([jnp.stack(sums[place]) for place in places])
        whole |= zip(places, jnp.sum(rows, tuple(range(2, rows.ndim))), strict=True)
    return (*jnp.stack([whole[place] for place in range(len(sums))], -1),)


def _count_above(window: Any, bound: Any) -> Any:
    return jnp.sum((window > jnp.expand_dims(bound, -1)) & (window < inf), -1).astype(window.dtype)


def _quantile(ordered: Any, share: float) -> Any:
    place = share * jnp.maximum(_count_above(ordered, -inf) - 1.0, 0.0)
    neighbours = jnp.stack([jnp.floor(place), jnp.ceil(place)], -1).astype(jnp.int32)
    low, high = jnp.moveaxis(jnp.take_along_axis(ordered, neighbours, -1), -1, 0)
    return low + (place - jnp.floor(place)) * (high - low)


def push(window: Any, note: Any) -> Any:
    """A window whose newest value, the first, is a note; an infinite note is none."""
    note = jnp.expand_dims(note, -1)
    return jnp.where(note < inf, jnp.concatenate([note, window[..., :-1]], -1), window)


JAX = bind(
    {name: getattr(jnp, name) for name in ("log", "exp", "sqrt", "square", "where")}
    | {"sort": lambda window: jnp.sort(window, stable=False)}  # equal values are equal: no need of their places
    | {"at_least": jnp.maximum, "add_up": _add_up, "count_above": _count_above, "quantile": _quantile, "push": push}
    | {"newest": lambda window: window[..., 0]}
    | {"ratio": lambda value, number: value * (1.0 / number)}  # one division for a tensor
    | {"count_newest_above": lambda window, bound: jnp.argmax(window <= jnp.expand_dims(bound, -1), -1)}
)


def hand_out(rates: Any, tensors: list[Any]) -> list[Any]:
    """The rates of each tensor.

    XLA moves all tensors of one size that share an array of rates in one kernel. That is fast for small ones. Many
    large ones would need more registers than there are, so that only a few of them share an array.
    """
    rows, groups, seen = [*jnp.stack(rates, -1)], defaultdict(list), Counter[int]()
    for place, size in enumerate(tensor.size for tensor in tensors):
        groups[seen[size] // _MOVING if size >= _LARGE else 0].append(place)
        seen[size] += 1
    for number, places in groups.items():
        if number:  # the first of all sizes have the array as it is
            block = jax.lax.optimization_barrier(jnp.stack([rows[place] for place in places]))
            for place, row in zip(places, block, strict=True):
                rows[place] = row
    return rows


# With numbers of 32 bits without a sign: JAX takes bare ones for such with a sign, and refuses what they cannot hold.
_CONSTANTS = tuple(numpy.uint32(each) if isinstance(each, int) else each for each in noise.__code__.co_consts)
_noise = FunctionType(noise.__code__.replace(co_consts=_CONSTANTS), {})


def round_stochastically(position: int, update: Any, parameter: Any, count: Any) -> Any:
    """An update that leads to a value which bfloat16 can hold."""
    before = parameter.astype(jnp.float32)
    value = before + update.astype(jnp.float32)
    element = jnp.arange(value.size, dtype=jnp.uint32).reshape(value.shape)
    bits = jax.lax.bitcast_convert_type(value, jnp.uint32)
    bits += _noise(element, count.astype(jnp.uint32), jnp.uint32(position))
    moved = jax.lax.bitcast_convert_type(bits & numpy.uint32(0xFFFF0000), jnp.float32)
    return jnp.where(jnp.isfinite(value), moved, value) - before
