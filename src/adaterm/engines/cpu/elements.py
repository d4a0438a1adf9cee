"""Loops over the elements of a block, for each stage, and what a stage reads and writes of a tensor."""

from typing import Any

import numpy as np
from numba import carray, njit
from numba.cpython.unsafe.tuple import tuple_setitem
from numba.np.unsafe.ndarray import to_fixed_tuple

from adaterm import rounding
from adaterm.engines import layout
from adaterm.engines.base import CLIP, EXCESS, TRUST
from adaterm.engines.cpu.intrinsics import cast, narrow, noisy, pointer, wide
from adaterm.engines.cpu.orders import CONTEXT, ITEM, Context, Item
from adaterm.engines.cpu.primitives import EQUATIONS, GAUGES, inline
from adaterm.equations import Batch
from adaterm.rules import RuleKind

AT = Context(*range(CONTEXT))  # where each is
_direct, _shift = EQUATIONS.direct, EQUATIONS.shift
_gauge_direct = GAUGES.direct
_noise = inline(rounding.noise)


@inline
def _find_elements(row, column, begin, end, zero):
    """Elements of a tensor; their indices begin at 0, without which the loops would not be vectorised."""
    return carray(pointer(row[column], zero), (end,))[begin:]


@inline
def find_block(row, begin, end, zero, p_unit, g_unit):
    """Elements of gradient, mean, scale and parameter."""
    g = _find_elements(row, layout.GRADIENT, begin, end, g_unit)
    m = _find_elements(row, layout.MEAN, begin, end, zero)
    v = _find_elements(row, layout.SCALE, begin, end, zero)
    return g, m, v, _find_elements(row, layout.PARAMETER, begin, end, p_unit)


@inline
def find_step(row):
    """The step count, as an array of one element."""
    return carray(pointer(row[layout.STEP], np.float32(0)), (1,))


@inline
def read(context, address):
    """The context, whose values have their places in `AT`, and an item."""
    return carray(pointer(context, 0), (CONTEXT,)), Item(*to_fixed_tuple(carray(pointer(address, 0), (ITEM,)), ITEM))


@inline
def find_row(given, tensor, head, row_length, like):
    """A tensor's row of the table."""
    return carray(pointer(given[AT.table] + 8 * (head + row_length * tensor), like), (row_length,))


@inline
def find_own(address, index, count, like):
    """What belongs to a tensor, or a piece, of arrays with so many numbers for each."""
    begin = index * count
    return carray(pointer(address, like), (begin + count,))[begin:]


@inline
def narrow_numbers(given, numbers, zero):
    """Sign, decay and, in place of as many zeros, the rule's numbers, in the state's precision."""
    exact = carray(pointer(given[AT.table], 0.0), (layout.SHARED_NUMBERS + len(numbers),))
    for index in range(len(numbers)):
        numbers = tuple_setitem(numbers, index, cast(exact[layout.SHARED_NUMBERS + index], zero))
    scale = carray(pointer(given[AT.grad_scale], 0.0), (1,))[0]
    return cast(exact[layout.SIGN] / scale, zero), cast(exact[layout.WEIGHT_DECAY], zero), numbers


@inline
def load_scalars(row, scalars, zero):
    """A tensor's scalars from its state, in place of as many zeros; those that the rule does without stay 0."""
    for index in range(len(scalars)):
        address = row[layout.SHARED_COLUMNS + index]
        if address != 0:
            scalars = tuple_setitem(scalars, index, carray(pointer(address, zero), (1,))[0])
    return scalars


@inline
def store_scalars(row, scalars, zero):
    """A tensor's scalars into its state."""
    for index in range(len(scalars)):
        address = row[layout.SHARED_COLUMNS + index]
        if address != 0:
            carray(pointer(address, zero), (1,))[0] = scalars[index]


@inline
def push(window, note):
    """Make a note the first value of a window; an infinite note is none."""
    if note < np.inf:
        for place in range(len(window) - 1, 0, -1):
            window[place] = window[place - 1]
        window[0] = note


@inline
def _store(value, unit, index, step, stream, stochastic):
    """A parameter as it is stored."""
    if stochastic and abs(value) < np.inf:
        value = noisy(value, _noise(index, step, stream))
    return narrow(value, unit)


def make_gauge(gauge: Any, flags: Any, adds_decay: bool, terms: int) -> Any:
    """The function that adds the sums of a block's terms to totals, in an order that the processor likes."""
    if terms == 0:
        return inline(lambda g, m, v, p, sign, decay, scalars, numbers, totals: None)
    before, term = make_gauge(gauge, flags, adds_decay, terms - 1), terms - 1

    @njit(error_model="numpy", nogil=True, fastmath={"reassoc", "nsz", "arcp", "contract", "afn"})
    def add_up(g, m, v, p, sign, decay, scalars, numbers):
        total = sign - sign  # a bare 0 would be added up in double precision
        for i in range(len(g)):
            gradient = _gauge_direct(wide(g[i], sign), wide(p[i], sign), sign, decay, adds_decay)
            total += gauge(gradient, m[i], v[i], scalars, numbers, flags)[term]
        return total

    @inline
    def gauge_elements(g, m, v, p, sign, decay, scalars, numbers, totals):
        before(g, m, v, p, sign, decay, scalars, numbers, totals)
        totals[term] += add_up(g, m, v, p, sign, decay, scalars, numbers)

    return gauge_elements


def make_move(move: Any, flags: Any, adds_decay: bool, shrinks: bool, stochastic: bool) -> Any:
    """The function that moves elements of a tensor that has been weighed."""

    @inline
    def move_elements(g, m, v, p, rates, sign, decay, shrink, numbers, begin, step, stream):
        for i in range(len(g)):
            parameter = wide(p[i], sign)
            gradient = _direct(wide(g[i], sign), parameter, sign, decay, adds_decay)
            if shrinks:
                parameter = _shift(parameter, parameter, -shrink)
            m[i], v[i], parameter = move(gradient, m[i], v[i], parameter, rates, numbers, flags)
            p[i] = _store(parameter, p[i], begin + i, step, stream, stochastic)

    return move_elements


def make_weigh(weigh: Any, rule: RuleKind, zero: Any) -> Any:
    """The function that weighs a tensor, and notes what is to be remembered."""
    flags = rule.flags
    if not rule.window:
        return inline(
            lambda sums, size, scalars, address, length, verdict, pace, numbers: weigh(
                sums, size, scalars, 0.0, Batch(1.0, 1.0, 0.0), pace, numbers, flags
            )
        )

    @inline
    def weigh_and_note(sums, size, scalars, address, length, verdict, pace, numbers):
        window = carray(pointer(address, zero), (length,))
        batch = Batch(np.float64(verdict[TRUST]), np.float64(verdict[CLIP]), np.float64(verdict[EXCESS]))
        rates, scalars, note, report = weigh(sums, size, scalars, window, batch, pace, numbers, flags)
        push(window, note)
        return rates, scalars, note, report

    return weigh_and_note
