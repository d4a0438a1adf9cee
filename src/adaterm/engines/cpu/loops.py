"""The fused engine's loops for a CPU, in Numba, over the same equations as every other engine."""

import platform
from functools import cache, lru_cache
from types import FunctionType
from typing import Any, NamedTuple

import llvmlite.binding as llvm
import numpy as np
from numba import carray, cfunc, types
from numba.np.unsafe.ndarray import to_fixed_tuple

from adaterm import binding, equations, rounding
from adaterm.binding import stages_of
from adaterm.engines import base, layout
from adaterm.engines.base import CLIP, EXCESS, LEVEL, NORM, TRUST, VERDICT, ZSCORE
from adaterm.engines.cpu import elements, intrinsics, orders, primitives
from adaterm.engines.cpu.elements import (
    AT,
    find_block,
    find_own,
    find_row,
    find_step,
    load_scalars,
    make_gauge,
    make_move,
    make_weigh,
    narrow_numbers,
    push,
    read,
    store_scalars,
)
from adaterm.engines.cpu.intrinsics import UNITS, call, do, fetch_add, load, pointer
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
from adaterm.engines.cpu.primitives import EQUATIONS, GAUGES
from adaterm.engines.fused import fingerprint
from adaterm.equations import Notes, Pace, Size, Totals
from adaterm.rules import RuleKind

_BLOCK = 1 << 10  # elements that are added up in the state's precision
NOTES, TOTALS = len(Notes._fields), len(Totals._fields)
_PATIENCE = 1000  # waits for a counter before other programs may run


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
_FINGERPRINT = fingerprint(equations, binding, rounding, base, layout, elements, intrinsics, orders, primitives)


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


@cache  # engines have the addresses of what it returns
def _compile_stage(stage: Stage) -> Any:
    """The function for a stage of an item, of the addresses of context and item."""
    rule, stages = stage.rule, stages_of(stage.rule.family, EQUATIONS)
    zero, p_unit, g_unit = (UNITS[name] for name in stage.dtypes)
    variant = f"{_FINGERPRINT} {stage}"
    sum_count, number_count, scalar_count, rate_count = rule.sum_count, *(len(kind._fields) for kind in rule[4:])
    shrinkage = rule.rates._fields.index("shrinkage")
    head, row_length = layout.measure_table(rule)

    def gauge(context, address):
        len(variant)  # makes it part of what Numba's cache looks at
        given, item = read(context, address)
        tensor, begin, end, first = item.tensor, item.begin, item.end, item.first
        row = find_row(given, tensor, head, row_length, 0)
        sign, decay, narrowed = narrow_numbers(given, number_count, zero)
        numbers = Numbers(*to_fixed_tuple(narrowed, number_count))
        stored = find_own(given[AT.scalars], tensor, scalar_count, zero)
        load_scalars(row, stored, zero)
        scalars = Scalars(*to_fixed_tuple(stored, scalar_count))
        for start in range(begin, end, PIECE):
            totals = find_own(given[AT.parts], first + start // PIECE, sum_count, 0.0)
            for place in range(sum_count):
                totals[place] = 0.0
            for block in range(start, min(end, start + PIECE), _BLOCK):
                stop = min(end, start + PIECE, block + _BLOCK)
                g, m, v, p = find_block(row, block, stop, zero, p_unit, g_unit)
                gauge_elements(g, m, v, p, sign, decay, scalars, numbers, totals)

    def weigh(context, address):
        len(variant)
        given, item = read(context, address)
        tensor, count = item.tensor, given[AT.tensors]
        row = find_row(given, tensor, head, row_length, 0)
        trigamma = find_row(given, tensor, head, row_length, 0.0)[layout.TRIGAMMA]
        exact = carray(pointer(given[AT.table], 0.0), (head,))
        numbers = Numbers(*to_fixed_tuple(exact[layout.SHARED_NUMBERS :], number_count))
        statistics = carray(pointer(given[AT.statistics], zero), (3, count))
        sums = carray(pointer(given[AT.sums], 0.0), (sum_count, count))
        verdict = carray(pointer(given[AT.verdict], zero), (VERDICT,))
        step = find_step(row)
        step[0] += np.float32(1)
        size = Size(np.float64(row[layout.WHOLE_SIZE]), trigamma)
        totals = to_fixed_tuple(sums[:, tensor], sum_count)
        wide_scalars = find_own(given[AT.exact_scalars], tensor, scalar_count, 0.0)
        load_scalars(row, wide_scalars, zero)
        scalars = Scalars(*to_fixed_tuple(wide_scalars, scalar_count))
        pace = Pace(exact[layout.LR], exact[layout.WEIGHT_DECAY], np.float64(step[0]))
        rates, following, _, report = weigh_tensor(
            totals, size, scalars, row[layout.WINDOW], given[AT.window], verdict, pace, numbers
        )
        stored = find_own(given[AT.rates], tensor, rate_count, zero)
        for place in range(rate_count):
            stored[place] = rates[place]
        store_scalars(row, following, zero)
        statistics[0, tensor], statistics[1, tensor], statistics[2, tensor] = report

    def move(context, address):
        len(variant)
        given, item = read(context, address)
        tensor, begin, end = item.tensor, item.begin, item.end
        row = find_row(given, tensor, head, row_length, 0)
        sign, decay, narrowed = narrow_numbers(given, number_count, zero)
        numbers = Numbers(*to_fixed_tuple(narrowed, number_count))
        rates = Rates(*to_fixed_tuple(find_own(given[AT.rates], tensor, rate_count, zero), rate_count))
        step = np.int64(find_step(row)[0])
        last = begin + (end - begin - 1) // PIECE * PIECE
        for start in range(last, begin - 1, -PIECE):  # what was gauged last is still in the cache
            stop = min(end, start + PIECE)
            g, m, v, p = find_block(row, start, stop, zero, p_unit, g_unit)
            shrink = rates[shrinkage]
            move_elements(g, m, v, p, rates, sign, decay, shrink, numbers, start, step, row[layout.STREAM])

    types_of_rule = {"Numbers": rule.numbers, "Scalars": rule.scalars, "Rates": rule.rates}
    if stage.name == "gauge":
        made = make_gauge(stages_of(rule.family, GAUGES).gauge, rule.flags, stage.adds_decay, sum_count)
        return _compile(gauge, 2, gauge_elements=made, **types_of_rule)
    if stage.name == "weigh":
        return _compile(weigh, 2, weigh_tensor=make_weigh(stages.weigh, rule, zero), **types_of_rule)
    made = make_move(stages.move, rule.flags, stage.adds_decay, stage.shrinks, stage.stochastic)
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
            item = Item(*to_fixed_tuple(items[index], ITEM))
            if item.owner % threads != thread:
                continue
            kind, tensor, begin, end, first, pieces, _ = item
            address, done = given.items + 8 * ITEM * index, given.counters + LINE * tensor
            if kind != MOVE:
                if kind != WEIGH:
                    do(given.gauge, context, address)
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
                    do(given.weigh, context, address)
                    fetch_add(done, 1)
            if kind in (WHOLE, MOVE):
                waits = 0
                while load(done) <= pieces:  # other threads have yet to gauge, or one is weighing
                    waits += 1
                    if waits > _PATIENCE and given.give_way != 0:
                        call(given.give_way)
                do(given.move, context, address)

    return _compile(work, 1)


@cache
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
        history = carray(pointer(given.history, zero), (NOTES, given.window))
        verdict = carray(pointer(given.verdict, zero), (VERDICT,))
        totals = np.zeros(TOTALS)
        for tensor in range(given.tensors):
            size = Size(np.float64(sizes[tensor]), 0.0)
            parts = summarize(to_fixed_tuple(sums[:, tensor], sum_count), size, FLAGS)
            for place in range(TOTALS):
                totals[place] += parts[place]
        summed = Totals(*to_fixed_tuple(totals, TOTALS))
        batch, report, notes = judge(summed, history[0], history[1], history[2], history[3], numbers, FLAGS)
        verdict[LEVEL], verdict[ZSCORE], verdict[TRUST] = report
        verdict[CLIP], verdict[EXCESS], verdict[NORM] = batch.clip, batch.excess, notes.norm
        if given.remember != 0:
            push(history[0], notes.level)
            push(history[1], notes.norm)
            push(history[2], notes.far)
            push(history[3], notes.count)

    stages = stages_of(rule.family, EQUATIONS)
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
