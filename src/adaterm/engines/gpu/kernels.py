"""The fused engine's kernels, in Triton, over the same equations as every other engine.

A kernel is compiled for a kind of rule: the stages, types and flags of its family are arguments in capitals.
"""

import hashlib
from functools import lru_cache
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from adaterm import equations
from adaterm.binding import bind, stages_of
from adaterm.engines import layout
from adaterm.equations import Size
from adaterm.rounding import noise
from adaterm.rules import RuleKind

TYPES = {getattr(torch, name): getattr(tl, name) for name in ("float32", "float64", "bfloat16", "float16")}
CHUNK = tl.constexpr(8192)  # elements of a program; a power of two
BLOCK = tl.constexpr(4096)  # elements at a time
PARTS = tl.constexpr(1024)  # partial sums at a time
INF = tl.constexpr(float("inf"))

LR, WEIGHT_DECAY, SIGN = (tl.constexpr(getattr(layout, name)) for name in ("LR", "WEIGHT_DECAY", "SIGN"))
PARAMETER, GRADIENT, MEAN, SCALE, STEP, SIZE, WHOLE_SIZE, TRIGAMMA, FIRST_CHUNK, STREAM = (
    tl.constexpr(column) for column in range(layout.SHARED_COLUMNS)
)
FIRST_NUMBER, FIRST_SCALAR = tl.constexpr(layout.SHARED_NUMBERS), tl.constexpr(layout.SHARED_COLUMNS)


# Primitives are functions of ours, not aliases of Triton's: its interpreter replaces `tl.where` and the like in place.


@triton.jit
def where(condition, value, other):
    return tl.where(condition, value, other)


@triton.jit
def log(value):
    return tl.log(value)


@triton.jit
def square(value):
    return value * value


@triton.jit
def power(base, exponent):
    return tl.exp(exponent * tl.log(base))


@triton.jit
def at_least(value, bound):
    exact = bound * (value == value).to(value.dtype)  # a bare number would be rounded to a float32
    return tl.maximum(value, exact, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def sqrt(value):
    if value.dtype == tl.float64:
        return tl.sqrt(value)
    else:
        return tl.sqrt_rn(value)


def _compile_equations() -> Any:
    """The equations as functions that a kernel can call; an option that is a bool is decided when it is compiled."""
    primitives = {f.__name__: f for f in (where, log, square, power, at_least, sqrt)}
    constants = {name: tl.constexpr(getattr(equations, name)) for name in ("inf", "TINY", "LARGEST_DOF_WEIGHT")}
    types = {"Array": tl.constexpr(None), "Any": tl.constexpr(None), "bool": tl.constexpr}
    return bind({**primitives, **constants, **types, "tl": tl, "__name__": __name__}, triton.jit)


# The stages of a family, on plain tuples; it is compiled with its own functions and types in place of these.
family_gauge = family_weigh = family_move = Numbers = Scalars = Rates = None


def _gauge(gradient, mean, scale, scalars, numbers, flags):
    return family_gauge(gradient, mean, scale, Scalars(*scalars), Numbers(*numbers), flags)


def _weigh(sums, size, scalars, lr, step, numbers, flags):
    return family_weigh(sums, Size(*size), Scalars(*scalars), lr, step, Numbers(*numbers), flags)


def _move(gradient, mean, scale, parameter, rates, numbers, flags):
    return family_move(gradient, mean, scale, parameter, Rates(*rates), Numbers(*numbers), flags)


class Kind(NamedTuple):
    """A kind of rule, as the kernels know it; `present` says which of its scalars the rule has."""

    gauge: Any
    weigh: Any
    move: Any
    flags: Any
    present: tuple[bool, ...]
    sums: int
    number_count: int
    scalar_count: int
    rate_count: int
    head: int
    row: int
    version: str  # of the equations, which Triton's cache on disk would not notice behind the names of functions


@lru_cache
def describe_kind(rule: RuleKind, present: tuple[bool, ...]) -> Kind:
    """What kernels are compiled for."""
    scope = {"Numbers": rule.numbers, "Scalars": rule.scalars, "Rates": rule.rates, "Size": Size, "tl": tl}
    scope |= {f"family_{name}": stage for name, stage in stages_of(rule.family, _EQUATIONS)._asdict().items()}
    scope["__name__"] = __name__
    stages = [triton.jit(FunctionType(stage.__code__, scope, stage.__name__)) for stage in (_gauge, _weigh, _move)]
    counts = [len(kind._fields) for kind in (rule.numbers, rule.scalars, rule.rates)]
    return Kind(
        *stages,
        rule.flags,
        present,
        rule.sums,
        *counts,
        layout.SHARED_NUMBERS + counts[0],
        layout.SHARED_COLUMNS + counts[1],
        hashlib.sha256(Path(equations.__file__).read_bytes()).hexdigest(),
    )


_EQUATIONS = _compile_equations()
direct, shift, shrinkage = _EQUATIONS.direct, _EQUATIONS.shift, _EQUATIONS.shrinkage
_noise = triton.jit(FunctionType(noise.__code__, {"tl": tl, "__name__": __name__, "Any": tl.constexpr(None)}, "noise"))


@triton.jit
def _load_number(table, column):
    return tl.load(table + column).to(tl.float64, bitcast=True)


@triton.jit
def _load_numbers(table, KIND: tl.constexpr, DTYPE: tl.constexpr):
    """The rule's numbers."""
    values = (_load_number(table, FIRST_NUMBER).to(DTYPE),)
    NUMBER_COUNT: tl.constexpr = KIND.number_count
    for index in tl.static_range(1, NUMBER_COUNT):
        values = values + (_load_number(table, FIRST_NUMBER + index).to(DTYPE),)
    return values


@triton.jit
def _find_tensor(row, column, DTYPE: tl.constexpr, ALIGNED: tl.constexpr):
    pointer = tl.load(row + column).to(tl.pointer_type(DTYPE))
    if ALIGNED:
        pointer = tl.multiple_of(pointer, 16)
    return pointer


@triton.jit
def _load_scalar(row, INDEX: tl.constexpr, KIND: tl.constexpr, S: tl.constexpr, DTYPE: tl.constexpr):
    if KIND.present[INDEX]:
        return tl.load(_find_tensor(row, FIRST_SCALAR + INDEX, S, False)).to(DTYPE)
    else:
        return tl.full((), 0.0, DTYPE)


@triton.jit
def _load_scalars(row, KIND: tl.constexpr, S: tl.constexpr, DTYPE: tl.constexpr):
    """A tensor's scalars; those that the rule does without are 0."""
    values = (_load_scalar(row, 0, KIND, S, DTYPE),)
    SCALAR_COUNT: tl.constexpr = KIND.scalar_count
    for index in tl.static_range(1, SCALAR_COUNT):
        values = values + (_load_scalar(row, index, KIND, S, DTYPE),)
    return values


@triton.jit
def _store_scalars(row, scalars, KIND: tl.constexpr, S: tl.constexpr):
    SCALAR_COUNT: tl.constexpr = KIND.scalar_count
    for index in tl.static_range(SCALAR_COUNT):
        if KIND.present[index]:
            tl.store(_find_tensor(row, FIRST_SCALAR + index, S, False), scalars[index].to(S))


@triton.jit
def _load_rates(rates, KIND: tl.constexpr):
    """What weighing a tensor has left for moving it."""
    values = (tl.load(rates),)
    RATE_COUNT: tl.constexpr = KIND.rate_count
    for index in tl.static_range(1, RATE_COUNT):
        values = values + (tl.load(rates + index),)
    return values


@triton.jit
def _load(pointer, offsets, size, other, FULL: tl.constexpr, S: tl.constexpr):
    if FULL:
        return tl.load(pointer + offsets).to(S)
    else:
        return tl.load(pointer + offsets, mask=offsets < size, other=other).to(S)


@triton.jit
def _store(pointer, offsets, size, values, FULL: tl.constexpr):
    if FULL:
        tl.store(pointer + offsets, values.to(pointer.dtype.element_ty))
    else:
        tl.store(pointer + offsets, values.to(pointer.dtype.element_ty), mask=offsets < size)


@triton.jit
def _round(values, offsets, step, stream):
    """Values that bfloat16 can hold, above or below by chance; what is not finite stays."""
    bits = values.to(tl.int32, bitcast=True)
    moved = (bits + _noise(offsets, step, stream).to(tl.int32)) & -65536
    return tl.where(tl.abs(values) < INF, moved.to(tl.float32, bitcast=True), values)


@triton.jit
def _load_sign(table, grad_scale, S: tl.constexpr, SCALED: tl.constexpr):
    """What gradients are multiplied with: -1 to maximize, and the inverse of GradScaler's scale."""
    sign = _load_number(table, SIGN)
    if SCALED:
        sign = sign / tl.load(grad_scale).to(tl.float64)
    return sign.to(S)


@triton.jit
def _is_taken(found_inf, FOUND: tl.constexpr):
    """Whether the step is to be taken: GradScaler has found no infinity."""
    if FOUND:
        return tl.load(found_inf) == 0.0
    else:
        return True


@triton.jit
def _add_terms(totals, terms, at, size, FULL: tl.constexpr, KIND: tl.constexpr):
    """Totals with the terms of some elements added."""
    sums = (totals[0] + (terms[0] if FULL else tl.where(at < size, terms[0], 0.0)),)
    SUM_COUNT: tl.constexpr = KIND.sums
    for index in tl.static_range(1, SUM_COUNT):
        sums = sums + (totals[index] + (terms[index] if FULL else tl.where(at < size, terms[index], 0.0)),)
    return sums


@triton.jit
def _gauge_chunk(
    row,
    start,
    size,
    sign,
    decay,
    scalars,
    numbers,
    KIND: tl.constexpr,
    FULL: tl.constexpr,
    S: tl.constexpr,
    P: tl.constexpr,
    G: tl.constexpr,
    ALIGNED: tl.constexpr,
    ADDS_DECAY: tl.constexpr,
):
    """A chunk's share of each sum."""
    g_pointer = _find_tensor(row, GRADIENT, G, ALIGNED)
    m_pointer = _find_tensor(row, MEAN, S, ALIGNED)
    v_pointer = _find_tensor(row, SCALE, S, ALIGNED)
    p_pointer = _find_tensor(row, PARAMETER, P, ALIGNED)
    FLAGS: tl.constexpr = KIND.flags
    SUM_COUNT: tl.constexpr = KIND.sums
    totals = (tl.zeros((BLOCK,), S),)
    for _ in tl.static_range(1, SUM_COUNT):
        totals = totals + (tl.zeros((BLOCK,), S),)
    for begin in tl.static_range(0, CHUNK, BLOCK):
        at = start + begin + tl.arange(0, BLOCK)
        gradient = _load(g_pointer, at, size, 0.0, FULL, S)
        mean = _load(m_pointer, at, size, 0.0, FULL, S)
        scale = _load(v_pointer, at, size, 1.0, FULL, S)
        parameter = _load(p_pointer, at, size, 0.0, FULL, S) if ADDS_DECAY else gradient
        gradient = direct(gradient, parameter, sign, decay, ADDS_DECAY)
        terms = KIND.gauge(gradient, mean, scale, scalars, numbers, FLAGS)
        totals = _add_terms(totals, terms, at, size, FULL, KIND)
    return totals


@triton.jit
def _weigh_tensor(
    sums,
    tensor,
    table,
    row,
    all_rates,
    statistics,
    tensors,
    lr_tensor,
    KIND: tl.constexpr,
    S: tl.constexpr,
    LR_TENSOR: tl.constexpr,
):
    """Weigh a tensor whose sums are whole."""
    FLAGS: tl.constexpr = KIND.flags
    step_pointer = _find_tensor(row, STEP, tl.float32, False)
    step = tl.load(step_pointer) + 1.0
    tl.store(step_pointer, step)
    lr = tl.load(lr_tensor).to(tl.float64) if LR_TENSOR else _load_number(table, LR)
    size = (tl.load(row + WHOLE_SIZE).to(tl.float64), _load_number(row, TRIGAMMA))
    scalars = _load_scalars(row, KIND, S, tl.float64)
    numbers = _load_numbers(table, KIND, tl.float64)
    rates, scalars, report = KIND.weigh(sums, size, scalars, lr, step.to(tl.float64), numbers, FLAGS)
    _store_scalars(row, scalars, KIND, S)
    RATE_COUNT: tl.constexpr = KIND.rate_count
    for index in tl.static_range(RATE_COUNT):
        tl.store(all_rates + tensor * KIND.rate_count + index, rates[index].to(S))
    for line in tl.static_range(3):
        tl.store(statistics + line * tensors + tensor, report[line].to(S))


@triton.jit
def _report_nothing(tensor, statistics, tensors):
    """A step that is skipped has no statistics."""
    for line in tl.static_range(3):
        tl.store(statistics + line * tensors + tensor, float("nan"))


@triton.jit(do_not_specialize=["tensors", "lr_tensor", "grad_scale", "found_inf"])
def gauge(
    owners,
    table,
    all_rates,
    parts,
    counters,
    statistics,
    sums,
    tensors,
    lr_tensor,
    grad_scale,
    found_inf,
    KIND: tl.constexpr,
    S: tl.constexpr,
    P: tl.constexpr,
    G: tl.constexpr,
    ALIGNED: tl.constexpr,
    ADDS_DECAY: tl.constexpr,
    LR_TENSOR: tl.constexpr,
    SCALED: tl.constexpr,
    FOUND: tl.constexpr,
    OVERLAP: tl.constexpr,
    AGREED: tl.constexpr,
):
    """Gauge one chunk; the program that completes a tensor weighs it, or leaves its sums if they are to be agreed."""
    if OVERLAP:
        gdc_launch_dependents()
    program = tl.program_id(0)
    tensor = tl.load(owners + program)
    row = table + KIND.head + tensor * KIND.row
    size = tl.load(row + SIZE)
    first = tl.load(row + FIRST_CHUNK)
    chunks = tl.cdiv(size, CHUNK)
    start = (program - first) * CHUNK
    if _is_taken(found_inf, FOUND):
        sign = _load_sign(table, grad_scale, S, SCALED)
        decay = _load_number(table, WEIGHT_DECAY).to(S)
        scalars = _load_scalars(row, KIND, S, S)
        numbers = _load_numbers(table, KIND, S)
        # fmt: off
        if start + CHUNK <= size:
            totals = _gauge_chunk(row, start, size, sign, decay, scalars, numbers, KIND, True, S, P, G, ALIGNED,
                                  ADDS_DECAY)
        else:
            totals = _gauge_chunk(row, start, size, sign, decay, scalars, numbers, KIND, False, S, P, G, ALIGNED,
                                  ADDS_DECAY)
        # fmt: on
        all_chunks = tl.num_programs(0)
        SUM_COUNT: tl.constexpr = KIND.sums
        for index in tl.static_range(SUM_COUNT):
            tl.store(parts + index * all_chunks + program, tl.sum(totals[index]))
        tl.debug_barrier()
        if tl.atomic_add(counters + tensor, 1) == chunks - 1:
            tl.atomic_xchg(counters + tensor, 0)
            whole = (_add_parts(parts, first, chunks),)
            for index in tl.static_range(1, SUM_COUNT):
                whole = whole + (_add_parts(parts + index * all_chunks, first, chunks),)
            if AGREED:
                for index in tl.static_range(SUM_COUNT):
                    tl.store(sums + index * tensors + tensor, whole[index].to(S))
            else:
                _weigh_tensor(whole, tensor, table, row, all_rates, statistics, tensors, lr_tensor, KIND, S, LR_TENSOR)
    elif start == 0:
        _report_nothing(tensor, statistics, tensors)


@triton.jit
def _add_parts(parts, first, chunks):
    """The sum of what the programs of a tensor have left, always in the same order."""
    total = tl.zeros((PARTS,), tl.float64)
    for begin in range(0, tl.cdiv(chunks, PARTS)):
        at = begin * PARTS + tl.arange(0, PARTS)
        total += tl.load(parts + first + at, mask=at < chunks, other=0.0, cache_modifier=".cg").to(tl.float64)
    return tl.sum(total)


@triton.jit(do_not_specialize=["tensors", "lr_tensor", "found_inf"])
def weigh(
    table,
    all_rates,
    statistics,
    sums,
    tensors,
    lr_tensor,
    found_inf,
    KIND: tl.constexpr,
    S: tl.constexpr,
    LR_TENSOR: tl.constexpr,
    FOUND: tl.constexpr,
):
    """Weigh one tensor, with sums that have been agreed."""
    tensor = tl.program_id(0)
    if _is_taken(found_inf, FOUND):
        row = table + KIND.head + tensor * KIND.row
        whole = (tl.load(sums + tensor).to(tl.float64),)
        SUM_COUNT: tl.constexpr = KIND.sums
        for index in tl.static_range(1, SUM_COUNT):
            whole = whole + (tl.load(sums + index * tensors + tensor).to(tl.float64),)
        _weigh_tensor(whole, tensor, table, row, all_rates, statistics, tensors, lr_tensor, KIND, S, LR_TENSOR)
    else:
        _report_nothing(tensor, statistics, tensors)


@triton.jit
def _move_chunk(
    row,
    start,
    size,
    rates,
    sign,
    decay,
    shrink,
    numbers,
    KIND: tl.constexpr,
    FULL: tl.constexpr,
    S: tl.constexpr,
    P: tl.constexpr,
    G: tl.constexpr,
    ALIGNED: tl.constexpr,
    ADDS_DECAY: tl.constexpr,
    SHRINKS: tl.constexpr,
    STOCHASTIC: tl.constexpr,
):
    g_pointer = _find_tensor(row, GRADIENT, G, ALIGNED)
    m_pointer = _find_tensor(row, MEAN, S, ALIGNED)
    v_pointer = _find_tensor(row, SCALE, S, ALIGNED)
    p_pointer = _find_tensor(row, PARAMETER, P, ALIGNED)
    FLAGS: tl.constexpr = KIND.flags
    for begin in range(0, CHUNK, BLOCK):
        at = start + begin + tl.arange(0, BLOCK)
        gradient = _load(g_pointer, at, size, 0.0, FULL, S)
        mean = _load(m_pointer, at, size, 0.0, FULL, S)
        scale = _load(v_pointer, at, size, 1.0, FULL, S)
        parameter = _load(p_pointer, at, size, 0.0, FULL, S)
        gradient = direct(gradient, parameter, sign, decay, ADDS_DECAY)
        if SHRINKS:
            parameter = shift(parameter, parameter, -shrink)
        mean, scale, parameter = KIND.move(gradient, mean, scale, parameter, rates, numbers, FLAGS)
        _store(m_pointer, at, size, mean, FULL)
        _store(v_pointer, at, size, scale, FULL)
        if STOCHASTIC:
            step = tl.load(_find_tensor(row, STEP, tl.float32, False)).to(tl.int64)
            parameter = _round(parameter, at, step, tl.load(row + STREAM))
        _store(p_pointer, at, size, parameter, FULL)


@triton.jit(do_not_specialize=["lr_tensor", "grad_scale", "found_inf"])
def move(
    owners,
    table,
    all_rates,
    lr_tensor,
    grad_scale,
    found_inf,
    KIND: tl.constexpr,
    S: tl.constexpr,
    P: tl.constexpr,
    G: tl.constexpr,
    ALIGNED: tl.constexpr,
    ADDS_DECAY: tl.constexpr,
    LR_TENSOR: tl.constexpr,
    SCALED: tl.constexpr,
    FOUND: tl.constexpr,
    SHRINKS: tl.constexpr,
    STOCHASTIC: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Move one chunk, from the last to the first: what was gauged last is still in the cache.

    With OVERLAP its programs may start while the last ones of `gauge` are at work, and wait for them here.
    """
    if OVERLAP:
        gdc_wait()
    if _is_taken(found_inf, FOUND):
        chunk = tl.num_programs(0) - 1 - tl.program_id(0)
        tensor = tl.load(owners + chunk)
        row = table + KIND.head + tensor * KIND.row
        size = tl.load(row + SIZE)
        start = (chunk - tl.load(row + FIRST_CHUNK)) * CHUNK
        rates = _load_rates(all_rates + tensor * KIND.rate_count, KIND)
        sign = _load_sign(table, grad_scale, S, SCALED)
        decay = _load_number(table, WEIGHT_DECAY)
        lr = tl.load(lr_tensor).to(tl.float64) if LR_TENSOR else _load_number(table, LR)
        shrink = shrinkage(lr, decay).to(S)
        decay = decay.to(S)
        numbers = _load_numbers(table, KIND, S)
        # fmt: off
        if start + CHUNK <= size:
            _move_chunk(row, start, size, rates, sign, decay, shrink, numbers, KIND, True, S, P, G, ALIGNED,
                        ADDS_DECAY, SHRINKS, STOCHASTIC)
        else:
            _move_chunk(row, start, size, rates, sign, decay, shrink, numbers, KIND, False, S, P, G, ALIGNED,
                        ADDS_DECAY, SHRINKS, STOCHASTIC)
        # fmt: on
