"""The fused engine's loops for a CPU, in Numba, over the same equations as every other engine."""

import platform
from collections.abc import Callable
from functools import lru_cache
from types import FunctionType
from typing import Any, NamedTuple

import llvmlite.binding as llvm
import numpy as np
from numba import carray, cfunc, njit, types
from numba.np.unsafe.ndarray import to_fixed_tuple

from adaterm import binding, equations, rounding
from adaterm.binding import bind, stages_of
from adaterm.engines import layout
from adaterm.engines.cpu import intrinsics
from adaterm.engines.cpu.intrinsics import UNITS, call, cast, do, fetch_add, load, narrow, noisy, pointer, wide
from adaterm.engines.fused import fingerprint
from adaterm.equations import Batch, Pace, Size, Totals
from adaterm.rules import RuleKind

PIECE = 1 << 16  # elements whose sums are added up on their own, whoever does it
_BLOCK = 1 << 10  # elements that are added up in the state's precision
_PATIENCE = 1000  # looks at a counter before other programs may run
LINE = 64  # bytes from one tensor's counter to the next: what one thread writes must not slow another
# What to do with the elements of an item: gauge and move a whole tensor, gauge or move a part of one, ...
WHOLE, GAUGE, MOVE, SUM_UP, WEIGH = range(5)  # ... and, where sums are agreed in between, leave them or go on from them
ITEM = 7  # columns of an item: kind, tensor, begin, end, the tensor's first piece, its pieces, and whose item it is


class Context(NamedTuple):
    """What the threads of a team are given: addresses, and numbers of things."""

    num_threads: int
    thread_num: int
    give_way: int
    gauge: int  # the functions for the stages of an item
    weigh: int
    move: int
    tensors: int
    table: int
    item_count: int
    items: int
    sum_count: int
    parts: int
    counters: int
    rates: int
    scalars: int
    exact_scalars: int
    numbers: int
    statistics: int
    grad_scale: int
    sums: int
    verdict: int
    window: int  # values of each tensor's window


class Question(NamedTuple):
    """What a judgement is given: addresses, the number of tensors, and whether the batch is to be remembered."""

    table: int
    tensors: int
    sums: int
    sizes: int
    history: int
    window: int
    verdict: int
    remember: int


CONTEXT, QUESTION = len(Context._fields), len(Question._fields)
_AT = Context(*range(CONTEXT))  # where each is


def _inline(function: Callable[..., Any]) -> Any:
    return njit(error_model="numpy", inline="always")(function)


def _insert(function: Callable[..., Any]) -> Any:
    """As `_inline`, but after it was compiled, once for all that it becomes part of, and for precise numbers only."""
    return njit(error_model="numpy", forceinline=True, fastmath=False)(function)


def _compile_equation(equation: FunctionType) -> Any:
    """What is needed for every element becomes part of the loops; what is needed once for a tensor is called."""
    once = equation.__name__.endswith(("weigh", "summarize", "judge"))
    return njit(error_model="numpy")(equation) if once else _insert(equation)


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


@njit(error_model="numpy")
def _sort(window):
    """A sorted copy, by Shell's method, which takes a fraction of the time to compile that NumPy's takes."""
    ordered, gap = window.copy(), len(window) // 2
    while gap > 0:
        for end in range(gap, len(ordered)):
            value, place = ordered[end], end
            while place >= gap and ordered[place - gap] > value:
                ordered[place] = ordered[place - gap]
                place -= gap
            ordered[place] = value
        gap = 1 if gap == 2 else int(gap / 2.2)
    return ordered


@njit(error_model="numpy")
def _count_newest_above(window, bound):
    for place, value in enumerate(window):
        if value <= bound:
            return place
    return 0


_ELEMENTWISE = {
    "where": lambda condition, value, other: value if condition else cast(other, value),
    "at_least": lambda value, bound: cast(bound, value) if value < bound else value,
    "ratio": lambda value, number: value * (cast(1.0, number) / number),
    "square": lambda value: value * value,
    "sqrt": lambda value: np.sqrt(value),
    "log": lambda value: np.log(value),
    "exp": lambda value: np.exp(value),
    "add_up": lambda terms: terms,
}
_WINDOWS = {
    "count_above": _count_above,
    "sort": _sort,
    "quantile": _quantile,
    "count_newest_above": _count_newest_above,
}
_GAUGES = bind({name: _inline(primitive) for name, primitive in _ELEMENTWISE.items()} | {"__name__": __name__}, _inline)
_EQUATIONS = bind(
    {name: _insert(primitive) for name, primitive in _ELEMENTWISE.items()} | _WINDOWS | {"__name__": __name__},
    _compile_equation,
)
_direct, _shift = _EQUATIONS.direct, _EQUATIONS.shift
_gauge_direct = _GAUGES.direct
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
def _find_row(given, tensor, head, row_length, like):
    """A tensor's row of the table."""
    return carray(pointer(given[_AT.table] + 8 * (head + row_length * tensor), like), (row_length,))


@_inline
def _find_own(address, index, count, like):
    """What belongs to a tensor, or a piece, of arrays with so many numbers for each."""
    begin = index * count
    return carray(pointer(address, like), (begin + count,))[begin:]


@_inline
def _narrow_numbers(given, count, zero):
    """Sign, decay and the rule's numbers, in the state's precision."""
    exact = carray(pointer(given[_AT.table], 0.0), (layout.SHARED_NUMBERS + count,))
    narrowed = carray(pointer(given[_AT.numbers], zero), (count,))
    for index in range(count):
        narrowed[index] = exact[layout.SHARED_NUMBERS + index]
    scale = carray(pointer(given[_AT.grad_scale], 0.0), (1,))[0]
    return cast(exact[layout.SIGN] / scale, zero), cast(exact[layout.WEIGHT_DECAY], zero), narrowed


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
        for place in range(len(window) - 1, 0, -1):
            window[place] = window[place - 1]
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
            gradient = _gauge_direct(wide(g[i], sign), wide(p[i], sign), sign, decay, adds_decay)
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
        batch = Batch(np.float64(verdict[2]), np.float64(verdict[3]), np.float64(verdict[4]))
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


# What differs between families of rules: functions are compiled with theirs in place of these.
gauge_elements = move_elements = weigh_tensor = summarize = judge = Numbers = Scalars = Rates = FLAGS = None
_FINGERPRINT = fingerprint(equations, binding, rounding, layout, intrinsics)


class Stage(NamedTuple):
    """What a function for a stage of an item is compiled for."""

    name: str
    rule: RuleKind
    dtypes: tuple[str, str, str]  # of state, parameters and gradients
    adds_decay: bool = False
    shrinks: bool = False
    stochastic: bool = False


class Stages(NamedTuple):
    """The addresses of the functions for the stages of an item."""

    gauge: int
    weigh: int
    move: int


def compile_stages(rule: RuleKind, dtypes: tuple[str, str, str], decay: tuple[bool, bool], stochastic: bool) -> Stages:
    """The functions for the stages of an item.

    They are made for a kind of rule, the precisions of state, parameters and gradients, and decay that is added to
    gradients or that shrinks parameters. Rules share a function if they differ only in flags that it does not ask for.
    """
    adds_decay, shrinks = decay
    stages = (
        Stage("gauge", rule, dtypes, adds_decay),
        Stage("weigh", rule, (dtypes[0],) * 3),
        Stage("move", rule._replace(sum_count=0, window=0), dtypes, adds_decay, shrinks, stochastic),
    )
    return Stages(*(_compile_stage(each._replace(rule=_clear_flags(each.rule, each.name))).address for each in stages))


def _clear_flags(rule: RuleKind, stage: str) -> RuleKind:
    """A kind of rule without the flags that a stage does not ask for."""
    asked = _list_names(f"{rule.family}_{stage}")
    return rule._replace(flags=rule.flags._replace(**{name: False for name in rule.flags._fields if name not in asked}))


@lru_cache
def _list_names(equation: str) -> frozenset[str]:
    """All names that an equation uses, and the equations that it calls."""
    names = frozenset(getattr(equations, equation).__code__.co_names)
    called = (name for name in names if isinstance(getattr(equations, name, None), FunctionType))
    return names.union(*map(_list_names, called))


@lru_cache
def _compile_stage(stage: Stage) -> Any:
    """The function for a stage of an item, of the addresses of context and item."""
    rule, stages = stage.rule, stages_of(stage.rule.family, _EQUATIONS)
    zero, p_unit, g_unit = (UNITS[name] for name in stage.dtypes)
    variant = f"{_FINGERPRINT} {stage}"
    sum_count, number_count, scalar_count, rate_count = rule.sum_count, *(len(kind._fields) for kind in rule[4:])
    shrinkage = rule.rates._fields.index("shrinkage")
    head, row_length = layout.SHARED_NUMBERS + number_count, layout.SHARED_COLUMNS + scalar_count

    def gauge(context, item):
        len(variant)  # makes it part of what Numba's cache looks at
        given, item = carray(pointer(context, 0), (CONTEXT,)), carray(pointer(item, 0), (ITEM,))
        tensor, begin, end, first = item[1], item[2], item[3], item[4]
        row = _find_row(given, tensor, head, row_length, 0)
        sign, decay, narrowed = _narrow_numbers(given, number_count, zero)
        numbers = Numbers(*to_fixed_tuple(narrowed, number_count))
        stored = _find_own(given[_AT.scalars], tensor, scalar_count, zero)
        _load_scalars(row, stored, zero)
        scalars = Scalars(*to_fixed_tuple(stored, scalar_count))
        for start in range(begin, end, PIECE):
            totals = _find_own(given[_AT.parts], first + start // PIECE, sum_count, 0.0)
            for place in range(sum_count):
                totals[place] = 0.0
            for block in range(start, min(end, start + PIECE), _BLOCK):
                stop = min(end, start + PIECE, block + _BLOCK)
                g, m, v, p = _find_block(row, block, stop, zero, p_unit, g_unit)
                gauge_elements(g, m, v, p, sign, decay, scalars, numbers, totals)

    def weigh(context, item):
        len(variant)
        given, item = carray(pointer(context, 0), (CONTEXT,)), carray(pointer(item, 0), (ITEM,))
        tensor, count = item[1], given[_AT.tensors]
        row = _find_row(given, tensor, head, row_length, 0)
        trigamma = _find_row(given, tensor, head, row_length, 0.0)[layout.TRIGAMMA]
        exact = carray(pointer(given[_AT.table], 0.0), (head,))
        numbers = Numbers(*to_fixed_tuple(exact[layout.SHARED_NUMBERS :], number_count))
        statistics = carray(pointer(given[_AT.statistics], zero), (3, count))
        sums = carray(pointer(given[_AT.sums], 0.0), (sum_count, count))
        verdict = carray(pointer(given[_AT.verdict], zero), (5,))
        step = _find_step(row)
        step[0] += np.float32(1)
        size = Size(np.float64(row[layout.WHOLE_SIZE]), trigamma)
        totals = to_fixed_tuple(sums[:, tensor], sum_count)
        wide_scalars = _find_own(given[_AT.exact_scalars], tensor, scalar_count, 0.0)
        _load_scalars(row, wide_scalars, zero)
        scalars = Scalars(*to_fixed_tuple(wide_scalars, scalar_count))
        pace = Pace(exact[layout.LR], exact[layout.WEIGHT_DECAY], np.float64(step[0]))
        rates, following, _, report = weigh_tensor(
            totals, size, scalars, row[layout.WINDOW], given[_AT.window], verdict, pace, numbers
        )
        stored = _find_own(given[_AT.rates], tensor, rate_count, zero)
        for place in range(rate_count):
            stored[place] = rates[place]
        _store_scalars(row, following, zero)
        statistics[0, tensor], statistics[1, tensor], statistics[2, tensor] = report

    def move(context, item):
        len(variant)
        given, item = carray(pointer(context, 0), (CONTEXT,)), carray(pointer(item, 0), (ITEM,))
        tensor, begin, end = item[1], item[2], item[3]
        row = _find_row(given, tensor, head, row_length, 0)
        sign, decay, narrowed = _narrow_numbers(given, number_count, zero)
        numbers = Numbers(*to_fixed_tuple(narrowed, number_count))
        rates = Rates(*to_fixed_tuple(_find_own(given[_AT.rates], tensor, rate_count, zero), rate_count))
        step = np.int64(_find_step(row)[0])
        last = begin + (end - begin - 1) // PIECE * PIECE
        for start in range(last, begin - 1, -PIECE):  # what was gauged last is still in the cache
            stop = min(end, start + PIECE)
            g, m, v, p = _find_block(row, start, stop, zero, p_unit, g_unit)
            shrink = rates[shrinkage]
            move_elements(g, m, v, p, rates, sign, decay, shrink, numbers, start, step, row[layout.STREAM])

    types_of_rule = {"Numbers": rule.numbers, "Scalars": rule.scalars, "Rates": rule.rates}
    if stage.name == "gauge":
        made = _make_gauge(stages_of(rule.family, _GAUGES).gauge, rule.flags, stage.adds_decay, sum_count)
        return _compile(gauge, 2, gauge_elements=made, **types_of_rule)
    if stage.name == "weigh":
        return _compile(weigh, 2, weigh_tensor=_make_weigh(stages.weigh, rule, zero), **types_of_rule)
    made = _make_move(stages.move, rule.flags, stage.adds_decay, stage.shrinks, stage.stochastic)
    return _compile(move, 2, move_elements=made, **types_of_rule)


@lru_cache
def compile_worker() -> Any:
    """The function that every thread runs, for every rule: it does its own items, in order."""
    variant = _FINGERPRINT

    def work(context):
        len(variant)
        given = Context(*to_fixed_tuple(carray(pointer(context, 0), (CONTEXT,)), CONTEXT))
        threads = call(given.num_threads) if given.num_threads != 0 else 1
        thread = call(given.thread_num) if given.thread_num != 0 else 0
        items = carray(pointer(given.items, 0), (given.item_count, ITEM))
        for index in range(given.item_count):
            if items[index, 6] % threads != thread:
                continue
            kind, tensor, begin, end = items[index, 0], items[index, 1], items[index, 2], items[index, 3]
            first, pieces = items[index, 4], items[index, 5]
            item, done = given.items + 8 * ITEM * index, given.counters + LINE * tensor
            if kind != MOVE:
                if kind != WEIGH:
                    do(given.gauge, context, item)
                gauged = (end - begin + PIECE - 1) // PIECE
                if fetch_add(done, gauged) + gauged == pieces:
                    if kind != WEIGH:
                        parts = carray(pointer(given.parts, 0.0), (first + pieces, given.sum_count))
                        sums = carray(pointer(given.sums, 0.0), (given.sum_count, given.tensors))
                        for place in range(given.sum_count):
                            total = 0.0
                            for piece in range(first, first + pieces):
                                total += parts[piece, place]
                            sums[place, tensor] = total
                    if kind == SUM_UP:
                        continue
                    do(given.weigh, context, item)
                    fetch_add(done, 1)
            if kind in (WHOLE, MOVE):
                looks = 0
                while load(done) <= pieces:  # other threads have yet to gauge, or one is weighing
                    looks += 1
                    if looks > _PATIENCE and given.give_way != 0:
                        call(given.give_way)
                do(given.move, context, item)

    return _compile(work, 1)


@lru_cache
def compile_judge(rule: RuleKind, dtype: str) -> Any:
    """The function that judges a batch, for a kind of rule and the precision of its state."""
    zero, sum_count, number_count = UNITS[dtype], rule.sum_count, len(rule.numbers._fields)
    head = layout.SHARED_NUMBERS + number_count
    variant = f"{_FINGERPRINT} {rule} {dtype}"

    def judge_batch(question):
        len(variant)  # makes it part of what Numba's cache looks at
        given = Question(*to_fixed_tuple(carray(pointer(question, 0), (QUESTION,)), QUESTION))
        head_numbers = carray(pointer(given.table, 0.0), (head,))
        numbers = Numbers(*to_fixed_tuple(head_numbers[layout.SHARED_NUMBERS :], number_count))
        sums = carray(pointer(given.sums, 0.0), (sum_count, given.tensors))
        sizes = carray(pointer(given.sizes, zero), (given.tensors,))
        history = carray(pointer(given.history, zero), (2, given.window))
        verdict = carray(pointer(given.verdict, zero), (5,))
        totals = np.zeros(4)
        for tensor in range(given.tensors):
            size = Size(np.float64(sizes[tensor]), 0.0)
            parts = summarize(to_fixed_tuple(sums[:, tensor], sum_count), size, FLAGS)
            for place in range(4):
                totals[place] += parts[place]
        batch, report, notes = judge(Totals(*to_fixed_tuple(totals, 4)), history[0], history[1], numbers, FLAGS)
        verdict[0], verdict[1], verdict[2] = report
        verdict[3], verdict[4] = batch.clip, batch.excess
        if given.remember != 0:
            _push(history[0], notes.level)
            _push(history[1], notes.norm)

    stages = stages_of(rule.family, _EQUATIONS)
    scope = {"summarize": stages.summarize, "judge": stages.judge, "Numbers": rule.numbers, "FLAGS": rule.flags}
    return _compile(judge_batch, 1, **scope)


def _compile(function: Any, addresses: int, **scope: Any) -> Any:
    """A function of so many addresses as machine code, with these names in place of its module's."""
    scoped = FunctionType(function.__code__, globals() | scope, function.__name__, None, function.__closure__)
    signature, options = types.void(*(types.int64,) * addresses), {"error_model": "numpy"}
    try:
        return cfunc(signature, cache=True, **options)(scoped)
    except RuntimeError:  # there is nowhere to write to: every process compiles for itself
        return cfunc(signature, **options)(scoped)
