"""The fused engine's kernels, in Triton, over the same equations as every other engine."""

from types import FunctionType
from typing import Any

import torch
import triton
import triton.language as tl

from adaterm import equations

TYPES = {getattr(torch, name): getattr(tl, name) for name in ("float32", "float64", "bfloat16", "float16")}
CHUNK = tl.constexpr(8192)  # elements of a program; a power of two
BLOCK = tl.constexpr(4096)  # elements at a time
PARTS = tl.constexpr(1024)  # partial sums at a time

# The table: numbers for all tensors, as the bits of float64, and then a row for each tensor.
HEAD = tl.constexpr(8)
LR, BETA1, BETA2, EPS, DOF, BETA_DOF, DECAY, SIGN = (tl.constexpr(column) for column in range(8))
ROW = tl.constexpr(11)
PARAMETER, GRADIENT, MEAN, SCALE, STEP, FIRST_SCALAR, SECOND_SCALAR, THIRD_SCALAR, SIZE, TRIGAMMA, CHUNKS_BEFORE = (
    tl.constexpr(column) for column in range(11)
)
# What weighing a tensor leaves for moving it.
COEFFICIENTS = tl.constexpr(8)
VALID, RATE, SCALE_RATE, DISTANCE, TENSOR_DOF, WEIGHT, STEP_SIZE, CORRECTION = (tl.constexpr(c) for c in range(8))


# Primitives are functions of ours, not aliases of Triton's: its interpreter replaces `tl.where` and the like in place.


@triton.jit
def where(condition, value, other):
    return tl.where(condition, value, other)


@triton.jit
def log(value):
    return tl.log(value)


@triton.jit
def _square(value):
    return value * value


@triton.jit
def _at_least(value, bound):
    exact = bound * (value == value).to(value.dtype)  # a bare number would be rounded to a float32
    return tl.maximum(value, exact, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _sqrt(value):
    if value.dtype == tl.float64:
        return tl.sqrt(value)
    else:
        return tl.sqrt_rn(value)


def _compiled_equations() -> dict[str, Any]:
    """The equations as functions that a kernel can call; an option that is a bool is decided when it is compiled."""
    constants = {"inf": float("inf"), "TINY": equations.TINY, "LARGEST_DOF_WEIGHT": equations.LARGEST_DOF_WEIGHT}
    scope: dict[str, Any] = {name: tl.constexpr(value) for name, value in constants.items()}
    scope |= {"square": _square, "at_least": _at_least, "where": where, "log": log, "sqrt": _sqrt}
    scope |= {"Array": tl.constexpr(None), "bool": tl.constexpr, "tl": tl, "__name__": __name__}
    for name, function in vars(equations).items():
        if isinstance(function, FunctionType) and name not in scope:
            scope[name] = triton.jit(FunctionType(function.__code__, scope, name))
    return scope


_EQUATIONS = _compiled_equations()
weigh, granted, shift, surprise, residual = (
    _EQUATIONS[name] for name in ("weigh", "granted", "shift", "surprise", "residual")
)
projected, analytic, gaussian, descend = (_EQUATIONS[name] for name in ("projected", "analytic", "gaussian", "descend"))
spread, dof_of_spread, t_weigh, t_descend = (
    _EQUATIONS[name] for name in ("spread", "dof_of_spread", "t_weigh", "t_descend")
)
INF = tl.constexpr(float("inf"))
TINY = tl.constexpr(equations.TINY)


@triton.jit
def _number(table, column):
    return tl.load(table + column).to(tl.float64, bitcast=True)


@triton.jit
def _tensor(row, column, DTYPE: tl.constexpr, ALIGNED: tl.constexpr):
    pointer = tl.load(row + column).to(tl.pointer_type(DTYPE))
    if ALIGNED:
        pointer = tl.multiple_of(pointer, 16)
    return pointer


@triton.jit
def _values(pointer, offsets, size, other, FULL: tl.constexpr, S: tl.constexpr):
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
def _sign(table, grad_scale, S: tl.constexpr, SCALED: tl.constexpr):
    """What gradients are multiplied with: -1 to maximize, and the inverse of GradScaler's scale."""
    sign = _number(table, SIGN)
    if SCALED:
        sign = sign / tl.load(grad_scale).to(tl.float64)
    return sign.to(S)


@triton.jit
def _part(
    row,
    start,
    size,
    sign,
    weight_decay,
    eps,
    FULL: tl.constexpr,
    S: tl.constexpr,
    P: tl.constexpr,
    G: tl.constexpr,
    ALIGNED: tl.constexpr,
    ADATERM: tl.constexpr,
    ROBUST: tl.constexpr,
    L2: tl.constexpr,
):
    """A chunk's share of the sum whose mean is the distance."""
    g_pointer = _tensor(row, GRADIENT, G, ALIGNED)
    m_pointer = _tensor(row, MEAN, S, ALIGNED)
    v_pointer = _tensor(row, SCALE, S, ALIGNED)
    p_pointer = _tensor(row, PARAMETER, P, ALIGNED)
    total = tl.zeros((BLOCK,), S)
    for begin in tl.static_range(0, CHUNK, BLOCK):
        at = start + begin + tl.arange(0, BLOCK)
        gradient = sign * _values(g_pointer, at, size, 0.0, FULL, S)
        mean = _values(m_pointer, at, size, 0.0, FULL, S)
        if L2:
            gradient += weight_decay * _values(p_pointer, at, size, 0.0, FULL, S)
        if ROBUST:
            scale = _values(v_pointer, at, size, 1.0, FULL, S)
            total += surprise(gradient, mean, scale if ADATERM else scale + eps)
        else:
            total += (gradient - mean) * (gradient - mean)
    return tl.sum(total)


@triton.jit
def _weigh_adaterm(
    row,
    distance,
    step,
    table,
    lr,
    coefficients,
    ROBUST: tl.constexpr,
    ADAPTIVE: tl.constexpr,
    ADABIAS: tl.constexpr,
    S: tl.constexpr,
):
    beta = _number(table, BETA1)
    eps = _number(table, EPS)
    min_dof = _number(table, DOF)
    if ROBUST:
        pointer = _tensor(row, FIRST_SCALAR, S, False)
        excess = tl.load(pointer).to(tl.float64)
        weight, bound, dof, following = weigh(distance, excess, beta, eps, min_dof)
        trust = weight / bound
        tl.store(coefficients + SCALE_RATE, (granted(1.0 - beta, distance) / bound).to(S))
        tl.store(coefficients + TENSOR_DOF, dof.to(S))
        tl.store(coefficients + WEIGHT, weight.to(S))
        if ADAPTIVE:
            tl.store(pointer, following.to(S))
            excess = following
        reported = min_dof + excess
    else:
        trust = granted(1.0, distance)
        reported = where(distance < INF, distance + INF, INF)
    rate = (1.0 - beta) * trust
    if ADABIAS:
        pointer = _tensor(row, SECOND_SCALAR, S, False)
        correction = tl.load(pointer).to(tl.float64)
        correction = shift(correction, 1.0 - correction, rate)
        tl.store(pointer, correction.to(S))
        correction = tl.maximum(correction, TINY)
    else:
        correction = 1.0 - tl.exp(step * log(beta))
    tl.store(coefficients + RATE, rate.to(S))
    tl.store(coefficients + STEP_SIZE, (lr / _sqrt(correction)).to(S))
    return distance, trust, reported


@triton.jit
def _weigh_t(
    row,
    distance,
    size,
    step,
    table,
    lr,
    coefficients,
    ROBUST: tl.constexpr,
    ADAPTIVE: tl.constexpr,
    KEEP: tl.constexpr,
    S: tl.constexpr,
):
    beta = _number(table, BETA1)
    beta2 = _number(table, BETA2)
    eps = _number(table, EPS)
    if ROBUST:
        dof = _number(table, DOF)
        if ADAPTIVE:
            average_pointer = _tensor(row, SECOND_SCALAR, S, False)
            variance_pointer = _tensor(row, THIRD_SCALAR, S, False)
            average = tl.load(average_pointer).to(tl.float64)
            variance = tl.load(variance_pointer).to(tl.float64)
            next_average, next_variance = spread(
                log(size * distance + eps), average, variance, _number(table, BETA_DOF)
            )
            average = where(distance < INF, next_average, average)
            variance = where(distance < INF, next_variance, variance)
            dof = dof_of_spread(variance, _number(row, TRIGAMMA), eps)
            if KEEP:
                tl.store(average_pointer, average.to(S))
                tl.store(variance_pointer, variance.to(S))
        pointer = _tensor(row, FIRST_SCALAR, S, False)
        trust, rate, weight_sum = t_weigh(distance, tl.load(pointer).to(tl.float64), dof, beta)
        if KEEP:
            tl.store(pointer, weight_sum.to(S))
        reported = size * dof
        distance_reported = size * distance
    else:
        trust = granted(1.0, distance)
        rate = granted(1.0 - beta, distance)
        reported = where(distance < INF, distance + INF, INF)
        distance_reported = distance
    tl.store(coefficients + RATE, rate.to(S))
    tl.store(coefficients + SCALE_RATE, granted(1.0 - beta2, distance).to(S))
    tl.store(coefficients + STEP_SIZE, (lr / (1.0 - tl.exp(step * log(beta)))).to(S))
    tl.store(coefficients + CORRECTION, (1.0 - tl.exp(step * log(beta2))).to(S))
    return distance_reported, trust, reported


@triton.jit
def gauge(
    owners,
    table,
    parts,
    counters,
    coefficients,
    statistics,
    tensors,
    lr_tensor,
    grad_scale,
    found_inf,
    S: tl.constexpr,
    P: tl.constexpr,
    G: tl.constexpr,
    ALIGNED: tl.constexpr,
    ADATERM: tl.constexpr,
    ROBUST: tl.constexpr,
    ADAPTIVE: tl.constexpr,
    ADABIAS: tl.constexpr,
    KEEP: tl.constexpr,
    L2: tl.constexpr,
    LR_TENSOR: tl.constexpr,
    SCALED: tl.constexpr,
    FOUND: tl.constexpr,
):
    """Gauge one chunk; the program that completes a tensor weighs it."""
    live = True
    if FOUND:
        live = tl.load(found_inf) == 0.0
    if live:
        program = tl.program_id(0)
        tensor = tl.load(owners + program)
        row = table + HEAD + tensor * ROW
        size = tl.load(row + SIZE)
        first = tl.load(row + CHUNKS_BEFORE)
        start = (program - first) * CHUNK
        sign = _sign(table, grad_scale, S, SCALED)
        weight_decay = _number(table, DECAY).to(S)
        eps = _number(table, EPS).to(S)
        if start + CHUNK <= size:
            part = _part(row, start, size, sign, weight_decay, eps, True, S, P, G, ALIGNED, ADATERM, ROBUST, L2)
        else:
            part = _part(row, start, size, sign, weight_decay, eps, False, S, P, G, ALIGNED, ADATERM, ROBUST, L2)
        tl.store(parts + program, part)
        tl.debug_barrier()
        chunks = tl.cdiv(size, CHUNK)
        if tl.atomic_add(counters + tensor, 1) == chunks - 1:
            tl.atomic_xchg(counters + tensor, 0)
            total = tl.zeros((PARTS,), tl.float64)
            for begin in range(0, tl.cdiv(chunks, PARTS)):
                at = begin * PARTS + tl.arange(0, PARTS)
                total += tl.load(parts + first + at, mask=at < chunks, other=0.0, cache_modifier=".cg").to(tl.float64)
            count = size.to(tl.float64)
            distance = tl.sum(total) / count
            step_pointer = _tensor(row, STEP, tl.float32, False)
            step = tl.load(step_pointer) + 1.0
            tl.store(step_pointer, step)
            lr = tl.load(lr_tensor).to(tl.float64) if LR_TENSOR else _number(table, LR)
            mine = coefficients + tensor * COEFFICIENTS
            tl.store(mine + VALID, (distance < INF).to(S))
            tl.store(mine + DISTANCE, where(distance < INF, distance, 0.0).to(S))
            if ADATERM:
                seen, trust, dof = _weigh_adaterm(
                    row, distance, step.to(tl.float64), table, lr, mine, ROBUST, ADAPTIVE, ADABIAS, S
                )
            else:
                seen, trust, dof = _weigh_t(
                    row, distance, count, step.to(tl.float64), table, lr, mine, ROBUST, ADAPTIVE, KEEP, S
                )
            tl.store(statistics + tensor, seen.to(S))
            tl.store(statistics + tensors + tensor, trust.to(S))
            tl.store(statistics + 2 * tensors + tensor, dof.to(S))


@triton.jit
def _moved(
    row,
    start,
    size,
    mine,
    sign,
    weight_decay,
    shrink,
    eps,
    floor,
    FULL: tl.constexpr,
    S: tl.constexpr,
    P: tl.constexpr,
    G: tl.constexpr,
    ALIGNED: tl.constexpr,
    ADATERM: tl.constexpr,
    ROBUST: tl.constexpr,
    ANALYTIC: tl.constexpr,
    UNCENTERED: tl.constexpr,
    BELIEF: tl.constexpr,
    L2: tl.constexpr,
    DECOUPLED: tl.constexpr,
):
    g_pointer = _tensor(row, GRADIENT, G, ALIGNED)
    m_pointer = _tensor(row, MEAN, S, ALIGNED)
    v_pointer = _tensor(row, SCALE, S, ALIGNED)
    p_pointer = _tensor(row, PARAMETER, P, ALIGNED)
    valid = tl.load(mine + VALID) > 0.0
    rate = tl.load(mine + RATE)
    step_size = tl.load(mine + STEP_SIZE)
    for begin in range(0, CHUNK, BLOCK):
        at = start + begin + tl.arange(0, BLOCK)
        gradient = sign * _values(g_pointer, at, size, 0.0, FULL, S)
        mean = _values(m_pointer, at, size, 0.0, FULL, S)
        scale = _values(v_pointer, at, size, 1.0, FULL, S)
        parameter = _values(p_pointer, at, size, 0.0, FULL, S)
        if L2:
            gradient += weight_decay * parameter
        if DECOUPLED:
            parameter = shift(parameter, parameter, -shrink)
        rest = residual(gradient, mean, valid)
        mean = shift(mean, rest, rate)
        if ADATERM:
            if not ROBUST:
                scale = gaussian(scale, rest * rest, rate, floor)
            elif ANALYTIC:
                scale = analytic(scale, rest * rest, tl.load(mine + SCALE_RATE), tl.load(mine + WEIGHT), floor)
            else:
                scale = projected(scale, rest * rest, rate, tl.load(mine + DISTANCE), tl.load(mine + TENSOR_DOF), floor)
            parameter = descend(parameter, mean, scale, step_size, UNCENTERED)
        else:
            if BELIEF:
                seen = residual(gradient, mean, valid)
            else:
                seen = where(valid, gradient, 0.0)
            scale = gaussian(scale, seen * seen, tl.load(mine + SCALE_RATE), floor)
            parameter = t_descend(parameter, mean, scale, step_size, tl.load(mine + CORRECTION), eps)
        _store(m_pointer, at, size, mean, FULL)
        _store(v_pointer, at, size, scale, FULL)
        _store(p_pointer, at, size, parameter, FULL)


@triton.jit
def move(
    owners,
    table,
    coefficients,
    lr_tensor,
    grad_scale,
    found_inf,
    S: tl.constexpr,
    P: tl.constexpr,
    G: tl.constexpr,
    ALIGNED: tl.constexpr,
    ADATERM: tl.constexpr,
    ROBUST: tl.constexpr,
    ANALYTIC: tl.constexpr,
    UNCENTERED: tl.constexpr,
    BELIEF: tl.constexpr,
    L2: tl.constexpr,
    DECOUPLED: tl.constexpr,
    LR_TENSOR: tl.constexpr,
    SCALED: tl.constexpr,
    FOUND: tl.constexpr,
):
    """Move one chunk, from the last to the first: what was gauged last is still in the cache."""
    live = True
    if FOUND:
        live = tl.load(found_inf) == 0.0
    if live:
        chunk = tl.num_programs(0) - 1 - tl.program_id(0)
        tensor = tl.load(owners + chunk)
        row = table + HEAD + tensor * ROW
        size = tl.load(row + SIZE)
        start = (chunk - tl.load(row + CHUNKS_BEFORE)) * CHUNK
        mine = coefficients + tensor * COEFFICIENTS
        sign = _sign(table, grad_scale, S, SCALED)
        weight_decay = _number(table, DECAY)
        lr = tl.load(lr_tensor).to(tl.float64) if LR_TENSOR else _number(table, LR)
        shrink = (1.0 - (1.0 - lr * weight_decay)).to(S)  # the part that AdamW's factor takes away
        eps = _number(table, EPS)
        if ADATERM:
            floor = eps * eps
        elif BELIEF:
            floor = eps / (1.0 - _number(table, BETA2))
        else:
            floor = eps * 0.0
        if start + CHUNK <= size:
            _moved(
                row,
                start,
                size,
                mine,
                sign,
                weight_decay.to(S),
                shrink,
                eps.to(S),
                floor.to(S),
                True,
                S,
                P,
                G,
                ALIGNED,
                ADATERM,
                ROBUST,
                ANALYTIC,
                UNCENTERED,
                BELIEF,
                L2,
                DECOUPLED,
            )
        else:
            _moved(
                row,
                start,
                size,
                mine,
                sign,
                weight_decay.to(S),
                shrink,
                eps.to(S),
                floor.to(S),
                False,
                S,
                P,
                G,
                ALIGNED,
                ADATERM,
                ROBUST,
                ANALYTIC,
                UNCENTERED,
                BELIEF,
                L2,
                DECOUPLED,
            )
