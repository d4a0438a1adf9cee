"""The equations over JAX: its primitives, what `bind` makes of them, and stochastic rounding."""

from math import inf
from types import FunctionType
from typing import Any

import jax
import jax.numpy as jnp
import numpy

from adaterm.binding import bind
from adaterm.rounding import noise

_LONG = 32  # elements of a row, at least: so the sums over rows are small beside the tensor
_LARGE, _SHARING = 2**14, 4  # the elements of a large tensor, and how many such tensors share an array


def _add_up(terms: Any) -> Any:
    """The sum over a tensor or, if they are long, over each of its rows: the rest is added for all sums at once.

    XLA too adds up a large tensor in two kernels, but the second one for each sum on its own.
    """
    rows = terms.ndim > 1 and terms.size >= _LONG * terms.shape[0]
    return jnp.sum(terms, axis=tuple(range(1, terms.ndim)) if rows else None)


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
    | {"count_newest_above": lambda window, bound: jnp.argmax(window <= jnp.expand_dims(bound, -1), -1)}
)


def hand_out(rates: Any, tensors: list[Any]) -> list[Any]:
    """The rates of each tensor.

    XLA moves tensors of one shape that share an array of rates in one kernel. That is fast for small ones. Many large
    ones would need more registers than there are, so that only a few of them share an array.
    """
    rows = [*map(jnp.stack, zip(*rates, strict=True))]
    large = [place for place, tensor in enumerate(tensors) if tensor.size >= _LARGE]
    for start in range(0, len(large), _SHARING):
        places = large[start : start + _SHARING]
        block = jax.lax.optimization_barrier(jnp.stack([rows[place] for place in places]))
        rows = [block[places.index(place)] if place in places else row for place, row in enumerate(rows)]
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
