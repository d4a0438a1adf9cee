"""The fused engine's loops for a CPU, in Numba, over the same equations as every other engine."""

import hashlib
import platform
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from types import FunctionType
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from numba import carray, cfunc, njit, types
from numba.np.unsafe.ndarray import to_fixed_tuple

from adaterm import equations, rounding
from adaterm.binding import bind, stages_of
from adaterm.engines import layout
from adaterm.engines.cpu import intrinsics
from adaterm.engines.cpu.intrinsics import UNITS, call, cast, fetch_add, load, narrow, noisy, pointer, wide
from adaterm.engines.layout import (
    GRADIENT,
    LR,
    MEAN,
    PARAMETER,
    SCALE,
    SIGN,
    STEP,
    STREAM,
    TRIGAMMA,
    WEIGHT_DECAY,
    WHOLE_SIZE,
)
from adaterm.equations import Size
from adaterm.rules import RuleKind

PIECE = 1 << 16  # elements whose sums are added up on their own, whoever does it
_BLOCK = 1 << 10  # elements that are added up in the state's precision
_PATIENCE = 1000  # looks at a counter before other programs may run
LINE = 64  # bytes from one tensor's counter to the next: what one thread writes must not slow another
# What to do with the elements of an item: gauge and move a whole tensor, gauge or move a part of one, ...
WHOLE, GAUGE, MOVE, SUM_UP, WEIGH = range(5)  # ... and, where sums are agreed in between, leave them or go on from them
ITEM = 7  # columns of an item: kind, tensor, begin, end, the tensor's first piece, its pieces, and whose item it is
# What a thread is given: addresses, and numbers of things.
(
    NUM_THREADS,
    THREAD_NUM,
    YIELD,
    TENSORS,
    TABLE,
    ITEM_COUNT,
    ITEMS,
    PART_COUNT,
    PARTS,
    COUNTERS,
    RATES,
    SCALARS,
    NUMBERS,
    STATISTICS,
    GRAD_SCALE,
    SUMS,
) = range(16)
CONTEXT = 16


def _inline(function: Callable[..., Any]) -> Any:
    return njit(error_model="numpy", inline="always")(function)


def _compile_equation(equation: FunctionType) -> Any:
    """What is needed for every element becomes part of the loops; what is needed once for a tensor is called."""
    once = equation.__name__.endswith("weigh")
    return njit(error_model="numpy")(equation) if once else _inline(equation)


_EQUATIONS = bind(
    {
        "where": _inline(lambda condition, value, other: value if condition else cast(other, value)),
        "at_least": _inline(lambda value, bound: cast(bound, value) if value < bound else value),
        "ratio": _inline(lambda value, number: value * (cast(1.0, number) / number)),
        "square": _inline(lambda value: value * value),
        "sqrt": _inline(lambda value: np.sqrt(value)),
        "log": _inline(lambda value: np.log(value)),
        "__name__": __name__,
    },
    _compile_equation,
)
_direct, _shift, _shrinkage = _EQUATIONS.direct, _EQUATIONS.shift, _EQUATIONS.shrinkage
_noise = _inline(rounding.noise)


@_inline
def _find_elements(row, column, begin, end, zero):
    """Elements of a tensor; their indices begin at 0, without which the loops would not be vectorised."""
    return carray(pointer(row[column], zero), (end,))[begin:]


@_inline
def _find_step(row):
    """The step count, as an array of one element."""
    return carray(pointer(row[STEP], np.float32(0)), (1,))


@_inline
def _load_scalars(row, scalars, zero):
    """Read a tensor's scalars from its state; those that the rule does without are 0."""
    for index in range(len(scalars)):
        address = row[layout.SHARED_COLUMNS + index]
        scalars[index] = np.float64(carray(pointer(address, zero), (1,))[0]) if address != 0 else 0.0


@_inline
def _store_scalars(row, scalars, zero):
    for index in range(len(scalars)):
        address = row[layout.SHARED_COLUMNS + index]
        if address != 0:
            carray(pointer(address, zero), (1,))[0] = scalars[index]


@_inline
def _store(value, unit, index, step, stream, stochastic):
    """A parameter as it is stored."""
    if stochastic and abs(value) < np.inf:
        value = noisy(value, _noise(index, step, stream))
    return narrow(value, unit)


def _make_gauge(gauge: Any, flags: Any, adds_decay: bool, terms: int) -> Any:
    """The function that adds the sums of a block's terms to totals, in an order that the processor likes."""
    if terms == 0:
        return _inline(lambda g, m, v, p, sign, decay, scalars, numbers, totals: None)
    before, term = _make_gauge(gauge, flags, adds_decay, terms - 1), terms - 1

    @njit(error_model="numpy", nogil=True, fastmath={"reassoc", "nsz"})
    def add_up(g, m, v, p, sign, decay, scalars, numbers):
        total = sign - sign  # a bare 0 would be added up in double precision
        for i in range(len(g)):
            gradient = _direct(wide(g[i], sign), wide(p[i], sign), sign, decay, adds_decay)
            total += gauge(gradient, m[i], v[i], scalars, numbers, flags)[term]
        return total

    @_inline
    def gauge_elements(g, m, v, p, sign, decay, scalars, numbers, totals):
        before(g, m, v, p, sign, decay, scalars, numbers, totals)
        totals[term] += add_up(g, m, v, p, sign, decay, scalars, numbers)

    return gauge_elements


def _make_move(move: Any, flags: Any, adds_decay: bool, shrinks: bool, stochastic: bool) -> Any:
    """The function that moves elements of a tensor that has been weighed."""

    @_inline
    def move_elements(g, m, v, p, rates, sign, decay, shrinkage, numbers, begin, step, stream):
        for i in range(len(g)):
            parameter = wide(p[i], sign)
            gradient = _direct(wide(g[i], sign), parameter, sign, decay, adds_decay)
            if shrinks:
                parameter = _shift(parameter, parameter, -shrinkage)
            m[i], v[i], parameter = move(gradient, m[i], v[i], parameter, rates, numbers, flags)
            p[i] = _store(parameter, p[i], begin + i, step, stream, stochastic)

    return move_elements


def has_half() -> bool:
    """Whether this processor converts float16; x86 has learnt it in 2012."""
    return "x86" not in platform.machine().lower() or bool(llvm.get_host_cpu_features().get("f16c"))


def _fingerprint() -> str:
    """Changes with what the loops are made of; of other files than this one Numba's cache would not know."""
    files = [Path(module.__file__) for module in (equations, rounding, layout, intrinsics)]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def count_threads(team: Any, threads: int, counts: Any) -> None:
    """Ask a team for so many threads; each writes into its place of `counts` how many there are."""

    @cfunc(types.void(types.int64), error_model="numpy")
    def write_count(context):
        given = carray(pointer(context, 0), (3,))
        count, thread = call(given[0]), call(given[1])
        carray(pointer(given[2], 0), (thread + 1,))[thread] = count

    context = np.array([team.num_threads, team.thread_num, counts.data_ptr()])
    team.run(write_count.address, context.ctypes.data, threads, 0)


# What differs between families of rules: the worker is compiled with theirs in place of these.
gauge_elements = move_elements = weigh = Numbers = Scalars = Rates = FLAGS = None


@lru_cache
def compile_worker(rule: RuleKind, dtypes: tuple[str, str, str], decay: tuple[bool, bool], stochastic: bool) -> Any:
    """The function that every thread runs: it does its own items, in order.

    It is made for a kind of rule, the precisions of state, parameters and gradients, and decay that is added to
    gradients or that shrinks parameters.
    """
    (zero, p_unit, g_unit), (adds_decay, shrinks) = (UNITS[name] for name in dtypes), decay
    variant = f"{_fingerprint()} {rule} {dtypes} {decay} {stochastic}"
    sum_count, number_count, scalar_count, rate_count = rule.sum_count, *(len(kind._fields) for kind in rule[3:])
    head, row_length = layout.SHARED_NUMBERS + number_count, layout.SHARED_COLUMNS + scalar_count

    def work(context):
        len(variant)  # makes it part of what Numba's cache looks at
        given = carray(pointer(context, 0), (CONTEXT,))
        threads = call(given[NUM_THREADS]) if given[NUM_THREADS] != 0 else 1
        thread = call(given[THREAD_NUM]) if given[THREAD_NUM] != 0 else 0
        count = given[TENSORS]
        head_numbers = carray(pointer(given[TABLE], 0.0), (head,))
        rows = carray(pointer(given[TABLE] + 8 * head, 0), (count, row_length))
        row_numbers = carray(pointer(given[TABLE] + 8 * head, 0.0), (count, row_length))
        items = carray(pointer(given[ITEMS], 0), (given[ITEM_COUNT], ITEM))
        parts = carray(pointer(given[PARTS], 0.0), (given[PART_COUNT], sum_count))
        all_rates = carray(pointer(given[RATES], zero), (count, rate_count))
        all_scalars = carray(pointer(given[SCALARS], 0.0), (count, scalar_count))
        narrowed = carray(pointer(given[NUMBERS], zero), (number_count,))
        statistics = carray(pointer(given[STATISTICS], zero), (3, count))
        sums = carray(pointer(given[SUMS], 0.0), (count, sum_count))
        scale = carray(pointer(given[GRAD_SCALE], 0.0), (1,))[0]

        lr, weight_decay = head_numbers[LR], head_numbers[WEIGHT_DECAY]
        sign, decay, shrinkage = head_numbers[SIGN] / scale, weight_decay, _shrinkage(lr, weight_decay)
        sign, decay, shrinkage = cast(sign, zero), cast(decay, zero), cast(shrinkage, zero)
        for index in range(number_count):
            narrowed[index] = head_numbers[layout.SHARED_NUMBERS + index]
        exact = Numbers(*to_fixed_tuple(head_numbers[layout.SHARED_NUMBERS :], number_count))
        numbers = Numbers(*to_fixed_tuple(narrowed, number_count))

        for index in range(given[ITEM_COUNT]):
            if items[index, 6] % threads != thread:
                continue
            kind, tensor, begin, end = items[index, 0], items[index, 1], items[index, 2], items[index, 3]
            first, pieces = items[index, 4], items[index, 5]
            row, done = rows[tensor], given[COUNTERS] + LINE * tensor
            if kind != MOVE:
                _load_scalars(row, all_scalars[tensor], zero)
                scalars = Scalars(*to_fixed_tuple(all_scalars[tensor], scalar_count))
                for start in range(begin, begin if kind == WEIGH else end, PIECE):
                    totals = parts[first + start // PIECE]
                    totals[:] = 0.0
                    for block in range(start, min(end, start + PIECE), _BLOCK):
                        stop = min(end, start + PIECE, block + _BLOCK)
                        g = _find_elements(row, GRADIENT, block, stop, g_unit)
                        m = _find_elements(row, MEAN, block, stop, zero)
                        v = _find_elements(row, SCALE, block, stop, zero)
                        p = _find_elements(row, PARAMETER, block, stop, p_unit)
                        gauge_elements(g, m, v, p, sign, decay, scalars, numbers, totals)
                gauged = (end - begin + PIECE - 1) // PIECE
                if fetch_add(done, gauged) + gauged == pieces:
                    if kind != WEIGH:
                        sums[tensor] = 0.0
                        for piece in range(first, first + pieces):
                            sums[tensor] += parts[piece]
                    if kind == SUM_UP:
                        continue
                    step = _find_step(row)
                    step[0] += np.float32(1)
                    size = Size(np.float64(row[WHOLE_SIZE]), row_numbers[tensor, TRIGAMMA])
                    totals = to_fixed_tuple(sums[tensor], sum_count)
                    rates, scalars, report = weigh(totals, size, scalars, lr, np.float64(step[0]), exact, FLAGS)
                    for place in range(rate_count):
                        all_rates[tensor, place] = rates[place]
                    _store_scalars(row, scalars, zero)
                    statistics[0, tensor], statistics[1, tensor], statistics[2, tensor] = report
                    fetch_add(done, 1)
            if kind in (WHOLE, MOVE):
                looks = 0
                while load(done) <= pieces:  # other threads have yet to gauge, or one is weighing
                    looks += 1
                    if looks > _PATIENCE and given[YIELD] != 0:
                        call(given[YIELD])
                rates = Rates(*to_fixed_tuple(all_rates[tensor], rate_count))
                step = np.int64(_find_step(row)[0])
                last = begin + (end - begin - 1) // PIECE * PIECE
                for start in range(last, begin - 1, -PIECE):  # what was gauged last is still in the cache
                    stop = min(end, start + PIECE)
                    g = _find_elements(row, GRADIENT, start, stop, g_unit)
                    m = _find_elements(row, MEAN, start, stop, zero)
                    v = _find_elements(row, SCALE, start, stop, zero)
                    p = _find_elements(row, PARAMETER, start, stop, p_unit)
                    move_elements(g, m, v, p, rates, sign, decay, shrinkage, numbers, start, step, row[STREAM])

    stages = stages_of(rule.family, _EQUATIONS)
    scope = globals() | {
        "gauge_elements": _make_gauge(stages.gauge, rule.flags, adds_decay, sum_count),
        "move_elements": _make_move(stages.move, rule.flags, adds_decay, shrinks, stochastic),
        "weigh": stages.weigh,
        "Numbers": rule.numbers,
        "Scalars": rule.scalars,
        "Rates": rule.rates,
        "FLAGS": rule.flags,
    }
    scoped = FunctionType(work.__code__, scope, work.__name__, None, work.__closure__)
    signature, options = types.void(types.int64), {"error_model": "numpy"}
    try:
        return cfunc(signature, cache=True, **options)(scoped)
    except RuntimeError:  # there is nowhere to write to: every process compiles for itself
        return cfunc(signature, **options)(scoped)
