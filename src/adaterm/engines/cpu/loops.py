"""The fused engine's loops for a CPU, in Numba, over the same equations as every other engine."""

import platform
from collections.abc import Callable
from functools import lru_cache
from types import FunctionType
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from numba import carray, cfunc, njit, types
from numba.np.unsafe.ndarray import to_fixed_tuple

from adaterm import binding, equations, rounding
from adaterm.binding import bind, stages_of
from adaterm.engines import base, layout
from adaterm.engines.base import CLIP, EXCESS, LEVEL, TRUST, VERDICT, ZSCORE
from adaterm.engines.cpu import intrinsics, orders
from adaterm.engines.cpu.intrinsics import UNITS, call, cast, fetch_add, load, narrow, noisy, pointer, wide
from adaterm.engines.cpu.orders import (
    CONTEXT,
    ITEM,
    LINE,
    MOVE,
    PIECE,
    QUESTION,
    SUM_UP,
    WEIGH,
    WHOLE,
    Context,
    Item,
    Question,
)
from adaterm.engines.fused import fingerprint
from adaterm.equations import Batch, Pace, Size, Totals
from adaterm.rules import RuleKind

_BLOCK = 1 << 10  # elements that are added up in the state's precision
_PATIENCE = 1000  # waits for a counter before other programs may run


def _inline(function: Callable[..., Any]) -> Any:
    return njit(error_model="numpy", inline="always")(function)


def _compile_equation(equation: FunctionType) -> Any:
    """What is needed for every element becomes part of the loops; what is needed once for a tensor is called."""
    once = equation.__name__.endswith(("weigh", "summarize", "judge"))
    return njit(error_model="numpy")(equation) if once else _inline(equation)


@njit(error_model="numpy")
def _count_above(window, bound):
    count = 0.0
    for value in window:
        if bound < value < np.inf:
            count += 1.0
    return count


@njit(error_model="numpy")
def _quantile(ordered, share):
    place = share * max(_count_above(ordered, -np.inf) - 1.0, 0.0)
    low = np.float64(ordered[int(place)])
    return low + (place - np.floor(place)) * (np.float64(ordered[int(np.ceil(place))]) - low)


_EQUATIONS = bind(
    {
        "where": _inline(lambda condition, value, other: value if condition else cast(other, value)),
        "at_least": _inline(lambda value, bound: cast(bound, value) if value < bound else value),
        "ratio": _inline(lambda value, number: value * (cast(1.0, number) / number)),
        "square": _inline(lambda value: value * value),
        "sqrt": _inline(lambda value: np.sqrt(value)),
        "log": _inline(lambda value: np.log(value)),
        "exp": _inline(lambda value: np.exp(value)),
        "add_up": _inline(lambda terms: terms),
        "count_above": _count_above,
        "sort": njit(lambda window: np.sort(window)),
        "quantile": _quantile,
        "count_newest_above": njit(lambda window, bound: np.argmax(window <= bound)),
        "newest": njit(lambda window: np.float64(window[0])),
        "__name__": __name__,
    },
    _compile_equation,
)
_direct, _shift = _EQUATIONS.direct, _EQUATIONS.shift
_noise = _inline(rounding.noise)


@_inline
def _find_elements(row, column, begin, end, zero):
    """Elements of a tensor; their indices begin at 0, without which the loops would not be vectorised."""
    return carray(pointer(row[column], zero), (end,))[begin:]


@_inline
def _find_block(row, begin, end, zero, p_unit, g_unit):
    """Elements of gradient, mean, scale and parameter."""
    g = _find_elements(row, layout.GRADIENT, begin, end, g_unit)
    m = _find_elements(row, layout.MEAN, begin, end, zero)
    v = _find_elements(row, layout.SCALE, begin, end, zero)
    return g, m, v, _find_elements(row, layout.PARAMETER, begin, end, p_unit)


@_inline
def _find_step(row):
    """The step count, as an array of one element."""
    return carray(pointer(row[layout.STEP], np.float32(0)), (1,))


@_inline
def _load_scalars(row, scalars, zero):
    """Read a tensor's scalars from its state; those that the rule does without are 0."""
    for index in range(len(scalars)):
        address = row[layout.SHARED_COLUMNS + index]
        scalars[index] = carray(pointer(address, zero), (1,))[0] if address != 0 else zero


@_inline
def _store_scalars(row, scalars, zero):
    for index in range(len(scalars)):
        address = row[layout.SHARED_COLUMNS + index]
        if address != 0:
            carray(pointer(address, zero), (1,))[0] = scalars[index]


@_inline
def _push(window, note):
    """Make a note the first value of a window; an infinite note is none."""
    if note < np.inf:
        window[1:] = window[:-1].copy()
        window[0] = note


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

    @njit(error_model="numpy", nogil=True, fastmath={"reassoc", "nsz", "arcp", "contract", "afn"})
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
    def move_elements(g, m, v, p, rates, sign, decay, shrink, numbers, begin, step, stream):
        for i in range(len(g)):
            parameter = wide(p[i], sign)
            gradient = _direct(wide(g[i], sign), parameter, sign, decay, adds_decay)
            if shrinks:
                parameter = _shift(parameter, parameter, -shrink)
            m[i], v[i], parameter = move(gradient, m[i], v[i], parameter, rates, numbers, flags)
            p[i] = _store(parameter, p[i], begin + i, step, stream, stochastic)

    return move_elements


def _make_weigh(weigh: Any, rule: RuleKind, zero: Any) -> Any:
    """The function that weighs a tensor, and notes what is to be remembered."""
    flags = rule.flags
    if not rule.window:
        return _inline(
            lambda sums, size, scalars, address, length, verdict, pace, numbers: weigh(
                sums, size, scalars, 0.0, Batch(1.0, 1.0, 0.0), pace, numbers, flags
            )
        )

    @_inline
    def weigh_and_note(sums, size, scalars, address, length, verdict, pace, numbers):
        window = carray(pointer(address, zero), (length,))
        batch = Batch(np.float64(verdict[TRUST]), np.float64(verdict[CLIP]), np.float64(verdict[EXCESS]))
        rates, scalars, note, report = weigh(sums, size, scalars, window, batch, pace, numbers, flags)
        _push(window, note)
        return rates, scalars, note, report

    return weigh_and_note


def has_half() -> bool:
    """Whether this processor converts float16; x86 has learnt it in 2012."""
    return platform.machine().lower() not in ("x86_64", "amd64") or bool(llvm.get_host_cpu_features().get("f16c"))


def count_threads(team: Any, threads: int, counts: Any) -> None:
    """Ask a team for so many threads; each writes into its place of `counts` how many there are."""

    @cfunc(types.void(types.int64), error_model="numpy")
    def write_count(context):
        given = carray(pointer(context, 0), (3,))
        count, thread = call(given[0]), call(given[1])
        carray(pointer(given[2], 0), (thread + 1,))[thread] = count

    context = np.array([team.num_threads, team.thread_num, counts.data_ptr()], dtype=np.int64)
    team.run(write_count.address, context.ctypes.data, threads, 0)


# What differs between families of rules: the worker is compiled with theirs in place of these.
gauge_elements = move_elements = weigh_tensor = summarize = judge = Numbers = Scalars = Rates = FLAGS = None
_FINGERPRINT = fingerprint(equations, binding, rounding, base, layout, intrinsics, orders)


@lru_cache
def compile_worker(rule: RuleKind, dtypes: tuple[str, str, str], decay: tuple[bool, bool], stochastic: bool) -> Any:
    """The function that every thread runs: it does its own items, in order.

    It is made for a kind of rule, the precisions of state, parameters and gradients, and decay that is added to
    gradients or that shrinks parameters.
    """
    (zero, p_unit, g_unit), (adds_decay, shrinks) = (UNITS[name] for name in dtypes), decay
    variant = f"{_FINGERPRINT} {rule} {dtypes} {decay} {stochastic}"
    sum_count, number_count, scalar_count, rate_count = rule.sum_count, *(len(kind._fields) for kind in rule[4:])
    shrinkage = rule.rates._fields.index("shrinkage")
    head, row_length = layout.measure_table(rule)

    def work(context):
        len(variant)  # makes it part of what Numba's cache looks at
        given = Context(*to_fixed_tuple(carray(pointer(context, 0), (CONTEXT,)), CONTEXT))
        threads = call(given.num_threads) if given.num_threads != 0 else 1
        thread = call(given.thread_num) if given.thread_num != 0 else 0
        count = given.tensors
        head_numbers = carray(pointer(given.table, 0.0), (head,))
        rows = carray(pointer(given.table + 8 * head, 0), (count, row_length))
        row_numbers = carray(pointer(given.table + 8 * head, 0.0), (count, row_length))
        items = carray(pointer(given.items, 0), (given.item_count, ITEM))
        parts = carray(pointer(given.parts, 0.0), (given.part_count, sum_count))
        all_rates = carray(pointer(given.rates, zero), (count, rate_count))
        all_scalars = carray(pointer(given.scalars, zero), (count, scalar_count))
        narrowed = carray(pointer(given.numbers, zero), (number_count,))
        statistics = carray(pointer(given.statistics, zero), (3, count))
        sums = carray(pointer(given.sums, 0.0), (sum_count, count))
        verdict = carray(pointer(given.verdict, zero), (VERDICT,))
        scale = carray(pointer(given.grad_scale, 0.0), (1,))[0]

        lr, weight_decay = head_numbers[layout.LR], head_numbers[layout.WEIGHT_DECAY]
        sign, decay = cast(head_numbers[layout.SIGN] / scale, zero), cast(weight_decay, zero)
        for index in range(number_count):
            narrowed[index] = head_numbers[layout.SHARED_NUMBERS + index]
        exact = Numbers(*to_fixed_tuple(head_numbers[layout.SHARED_NUMBERS :], number_count))
        numbers = Numbers(*to_fixed_tuple(narrowed, number_count))

        for index in range(given.item_count):
            item = Item(*to_fixed_tuple(items[index], ITEM))
            if item.owner % threads != thread:
                continue
            kind, tensor, begin, end, first, pieces, _ = item
            row, done = rows[tensor], given.counters + LINE * tensor
            if kind != MOVE:
                _load_scalars(row, all_scalars[tensor], zero)
                scalars = Scalars(*to_fixed_tuple(all_scalars[tensor], scalar_count))
                for start in range(begin, begin if kind == WEIGH else end, PIECE):
                    totals = parts[first + start // PIECE]
                    totals[:] = 0.0
                    for block in range(start, min(end, start + PIECE), _BLOCK):
                        stop = min(end, start + PIECE, block + _BLOCK)
                        g, m, v, p = _find_block(row, block, stop, zero, p_unit, g_unit)
                        gauge_elements(g, m, v, p, sign, decay, scalars, numbers, totals)
                gauged = (end - begin + PIECE - 1) // PIECE
                if fetch_add(done, gauged) + gauged == pieces:
                    if kind != WEIGH:
                        sums[:, tensor] = 0.0
                        for piece in range(first, first + pieces):
                            sums[:, tensor] += parts[piece]
                    if kind == SUM_UP:
                        continue
                    step = _find_step(row)
                    step[0] += np.float32(1)
                    size = Size(np.float64(row[layout.WHOLE_SIZE]), row_numbers[tensor, layout.TRIGAMMA])
                    totals = to_fixed_tuple(sums[:, tensor].copy(), sum_count)
                    exact_scalars = Scalars(*to_fixed_tuple(all_scalars[tensor].astype(np.float64), scalar_count))
                    pace = Pace(lr, weight_decay, np.float64(step[0]))
                    rates, following, _, report = weigh_tensor(
                        totals, size, exact_scalars, row[layout.WINDOW], given.window, verdict, pace, exact
                    )
                    for place in range(rate_count):
                        all_rates[tensor, place] = rates[place]
                    _store_scalars(row, following, zero)
                    statistics[0, tensor], statistics[1, tensor], statistics[2, tensor] = report
                    fetch_add(done, 1)
            if kind in (WHOLE, MOVE):
                waits = 0
                while load(done) <= pieces:  # other threads have yet to gauge, or one is weighing
                    waits += 1
                    if waits > _PATIENCE and given.give_way != 0:
                        call(given.give_way)
                rates = Rates(*to_fixed_tuple(all_rates[tensor], rate_count))
                step = np.int64(_find_step(row)[0])
                last = begin + (end - begin - 1) // PIECE * PIECE
                for start in range(last, begin - 1, -PIECE):  # what was gauged last is still in the cache
                    stop = min(end, start + PIECE)
                    g, m, v, p = _find_block(row, start, stop, zero, p_unit, g_unit)
                    shrink = rates[shrinkage]
                    move_elements(g, m, v, p, rates, sign, decay, shrink, numbers, start, step, row[layout.STREAM])

    stages = stages_of(rule.family, _EQUATIONS)
    return _compile(
        work,
        gauge_elements=_make_gauge(stages.gauge, rule.flags, adds_decay, sum_count),
        move_elements=_make_move(stages.move, rule.flags, adds_decay, shrinks, stochastic),
        weigh_tensor=_make_weigh(stages.weigh, rule, zero),
        Numbers=rule.numbers,
        Scalars=rule.scalars,
        Rates=rule.rates,
    )


@lru_cache
def compile_judge(rule: RuleKind, dtype: str) -> Any:
    """The function that judges a batch, for a kind of rule and the precision of its state."""
    zero, sum_count, number_count = UNITS[dtype], rule.sum_count, len(rule.numbers._fields)
    head, _ = layout.measure_table(rule)
    variant = f"{_FINGERPRINT} {rule} {dtype}"

    def judge_batch(question):
        len(variant)  # makes it part of what Numba's cache looks at
        given = Question(*to_fixed_tuple(carray(pointer(question, 0), (QUESTION,)), QUESTION))
        head_numbers = carray(pointer(given.table, 0.0), (head,))
        numbers = Numbers(*to_fixed_tuple(head_numbers[layout.SHARED_NUMBERS :], number_count))
        sums = carray(pointer(given.sums, 0.0), (sum_count, given.tensors))
        sizes = carray(pointer(given.sizes, zero), (given.tensors,))
        history = carray(pointer(given.history, zero), (4, given.window))
        verdict = carray(pointer(given.verdict, zero), (VERDICT,))
        totals = np.zeros(4)
        for tensor in range(given.tensors):
            size = Size(np.float64(sizes[tensor]), 0.0)
            parts = summarize(to_fixed_tuple(sums[:, tensor].copy(), sum_count), size, FLAGS)
            for place in range(4):
                totals[place] += parts[place]
        summed = Totals(*to_fixed_tuple(totals, 4))
        batch, report, notes = judge(summed, history[0], history[1], history[2], history[3], numbers, FLAGS)
        verdict[LEVEL], verdict[ZSCORE], verdict[TRUST] = report
        verdict[CLIP], verdict[EXCESS] = batch.clip, batch.excess
        if given.remember != 0:
            _push(history[0], notes.level)
            _push(history[1], notes.norm)
            _push(history[2], notes.far)
            _push(history[3], notes.count)

    stages = stages_of(rule.family, _EQUATIONS)
    return _compile(judge_batch, summarize=stages.summarize, judge=stages.judge, Numbers=rule.numbers, FLAGS=rule.flags)


def _compile(function: Any, **scope: Any) -> Any:
    """A function of one address as machine code, with these names in place of its module's."""
    scoped = FunctionType(function.__code__, globals() | scope, function.__name__, None, function.__closure__)
    signature, options = types.void(types.int64), {"error_model": "numpy"}
    try:
        return cfunc(signature, cache=True, **options)(scoped)
    except RuntimeError:  # there is nowhere to write to: every process compiles for itself
        return cfunc(signature, **options)(scoped)
