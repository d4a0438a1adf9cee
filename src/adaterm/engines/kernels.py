"""The fused engine's kernels, in Triton, over the same equations as every other engine."""

from types import FunctionType
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from adaterm import equations
from adaterm.engines import table as layout
from adaterm.rounding import noise

TYPES = {getattr(torch, name): getattr(tl, name) for name in ("float32", "float64", "bfloat16", "float16")}
CHUNK = tl.constexpr(8192)  # elements of a program; a power of two
BLOCK = tl.constexpr(4096)  # elements at a time
PARTS = tl.constexpr(1024)  # partial sums at a time

HEAD, ROW = tl.constexpr(layout.HEAD), tl.constexpr(layout.ROW)
LR, BETA1, BETA2, EPS, DOF, BETA_DOF, DECAY, SIGN = (tl.constexpr(column) for column in range(layout.HEAD))
PARAMETER, GRADIENT, MEAN, SCALE, STEP, FIRST_SCALAR, SECOND_SCALAR, THIRD_SCALAR = map(tl.constexpr, range(8))
SIZE, WHOLE_SIZE, TRIGAMMA, CHUNKS_BEFORE, POSITION = map(tl.constexpr, range(8, layout.ROW))
# What weighing a tensor leaves for moving it.
COEFFICIENTS = tl.constexpr(8)
VALID, RATE, SCALE_RATE, DISTANCE, TENSOR_DOF, WEIGHT, STEP_SIZE, CORRECTION = map(tl.constexpr, range(8))
INF = tl.constexpr(float("inf"))


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
def _power(base, exponent):
    return tl.exp(exponent * tl.log(base))


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
    scope |= {"square": _square, "power": _power, "at_least": _at_least, "where": where, "log": log, "sqrt": _sqrt}
    scope |= {"Array": tl.constexpr(None), "Any": tl.constexpr(None), "bool": tl.constexpr}
    scope |= {"tl": tl, "__name__": __name__}
    for name, function in (vars(equations) | {"noise": noise}).items():
        if isinstance(function, FunctionType) and name not in scope:
            scope[name] = triton.jit(FunctionType(function.__code__, scope, name))
    return scope


_EQUATIONS = _compiled_equations()
adaterm_weigh, adaterm_step_size, adaterm_move, t_family_weigh, t_family_move, surprise, shift = (
    _EQUATIONS[name]
    for name in (
        "adaterm_weigh",
        "adaterm_step_size",
        "adaterm_move",
        "t_family_weigh",
        "t_family_move",
        "surprise",
        "shift",
    )
)
_noise = _EQUATIONS["noise"]


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
def _scalar(row, column, S: tl.constexpr, PRESENT: tl.constexpr):
    if PRESENT:
        return tl.load(_tensor(row, column, S, False)).to(tl.float64)
    else:
        return tl.full((), 0.0, tl.float64)


@triton.jit
def _keep(row, column, value, S: tl.constexpr, PRESENT: tl.constexpr):
    if PRESENT:
        tl.store(_tensor(row, column, S, False), value.to(S))


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
def _rounded(values, offsets, step, position):
    """Values that bfloat16 can hold, above or below by chance; what is not finite stays."""
    bits = values.to(tl.int32, bitcast=True)
    moved = (bits + _noise(offsets, step, position).to(tl.int32)) & -65536
    return tl.where(tl.abs(values) < INF, moved.to(tl.float32, bitcast=True), values)


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
def _weigh(
    total,
    tensor,
    table,
    row,
    coefficients,
    statistics,
    tensors,
    lr_tensor,
    S: tl.constexpr,
    LR_TENSOR: tl.constexpr,
    ADATERM: tl.constexpr,
    ROBUST: tl.constexpr,
    ADAPTIVE: tl.constexpr,
    ANALYTIC: tl.constexpr,
    ADABIAS: tl.constexpr,
    KEEP: tl.constexpr,
):
    """Weigh a tensor whose distance has been added up."""
    count = tl.load(row + WHOLE_SIZE).to(tl.float64)
    distance = total / count
    step_pointer = _tensor(row, STEP, tl.float32, False)
    step = tl.load(step_pointer) + 1.0
    tl.store(step_pointer, step)
    step = step.to(tl.float64)
    lr = tl.load(lr_tensor).to(tl.float64) if LR_TENSOR else _number(table, LR)
    beta = _number(table, BETA1)
    exact_eps = _number(table, EPS)
    dof = _number(table, DOF)
    mine = coefficients + tensor * COEFFICIENTS
    a = _scalar(row, FIRST_SCALAR, S, ROBUST)
    b = _scalar(row, SECOND_SCALAR, S, ADABIAS or (ADAPTIVE and not ADATERM))
    if ADATERM:
        rate, scale_rate, dof, weight, a, b, trust, reported = adaterm_weigh(
            distance, a, b, beta, exact_eps, dof, ROBUST, ADAPTIVE, ANALYTIC, ADABIAS
        )
        seen = distance
        tl.store(mine + STEP_SIZE, adaterm_step_size(lr, step, b, beta, ADABIAS).to(S))
        tl.store(mine + TENSOR_DOF, dof.to(S))
        tl.store(mine + WEIGHT, weight.to(S))
    else:
        beta2 = _number(table, BETA2)
        c = _scalar(row, THIRD_SCALAR, S, ADAPTIVE)
        rate, scale_rate, a, b, c, seen, trust, reported = t_family_weigh(
            distance,
            count,
            _number(row, TRIGAMMA),
            a,
            b,
            c,
            beta,
            beta2,
            exact_eps,
            dof,
            _number(table, BETA_DOF),
            ROBUST,
            ADAPTIVE,
            KEEP,
        )
        _keep(row, THIRD_SCALAR, c, S, ADAPTIVE)
        tl.store(mine + STEP_SIZE, (lr / (1.0 - _power(beta, step))).to(S))
        tl.store(mine + CORRECTION, (1.0 - _power(beta2, step)).to(S))
    _keep(row, FIRST_SCALAR, a, S, ROBUST)
    _keep(row, SECOND_SCALAR, b, S, ADABIAS or (ADAPTIVE and not ADATERM))
    tl.store(mine + VALID, (distance < INF).to(S))
    tl.store(mine + DISTANCE, where(distance < INF, distance, 0.0).to(S))
    tl.store(mine + RATE, rate.to(S))
    tl.store(mine + SCALE_RATE, scale_rate.to(S))
    tl.store(statistics + tensor, seen.to(S))
    tl.store(statistics + tensors + tensor, trust.to(S))
    tl.store(statistics + 2 * tensors + tensor, reported.to(S))


@triton.jit
def _report_nothing(tensor, statistics, tensors):
    """A step that is skipped has no statistics."""
    for line in tl.static_range(3):
        tl.store(statistics + line * tensors + tensor, float("nan"))


@triton.jit(do_not_specialize=["tensors", "lr_tensor", "grad_scale", "found_inf"])
def gauge(
    owners,
    table,
    coefficients,
    parts,
    counters,
    statistics,
    totals,
    tensors,
    lr_tensor,
    grad_scale,
    found_inf,
    S: tl.constexpr,
    P: tl.constexpr,
    G: tl.constexpr,
    ALIGNED: tl.constexpr,
    L2: tl.constexpr,
    LR_TENSOR: tl.constexpr,
    SCALED: tl.constexpr,
    FOUND: tl.constexpr,
    ADATERM: tl.constexpr,
    ROBUST: tl.constexpr,
    ADAPTIVE: tl.constexpr,
    ANALYTIC: tl.constexpr,
    ADABIAS: tl.constexpr,
    KEEP: tl.constexpr,
    OVERLAP: tl.constexpr,
    SHARED: tl.constexpr,
):
    """Gauge one chunk; the program that completes a tensor weighs it, or leaves the sum if other ranks share it."""
    if OVERLAP:
        gdc_launch_dependents()
    program = tl.program_id(0)
    tensor = tl.load(owners + program)
    row = table + HEAD + tensor * ROW
    size = tl.load(row + SIZE)
    first = tl.load(row + CHUNKS_BEFORE)
    chunks = tl.cdiv(size, CHUNK)
    start = (program - first) * CHUNK
    live = True
    if FOUND:
        live = tl.load(found_inf) == 0.0
    if live:
        sign = _sign(table, grad_scale, S, SCALED)
        weight_decay = _number(table, DECAY).to(S)
        eps = _number(table, EPS).to(S)
        if start + CHUNK <= size:
            part = _part(row, start, size, sign, weight_decay, eps, True, S, P, G, ALIGNED, ADATERM, ROBUST, L2)
        else:
            part = _part(row, start, size, sign, weight_decay, eps, False, S, P, G, ALIGNED, ADATERM, ROBUST, L2)
        tl.store(parts + program, part)
        tl.debug_barrier()
        if tl.atomic_add(counters + tensor, 1) == chunks - 1:
            tl.atomic_xchg(counters + tensor, 0)
            total = tl.zeros((PARTS,), tl.float64)
            for begin in range(0, tl.cdiv(chunks, PARTS)):
                at = begin * PARTS + tl.arange(0, PARTS)
                total += tl.load(parts + first + at, mask=at < chunks, other=0.0, cache_modifier=".cg").to(tl.float64)
            if SHARED:
                tl.store(totals + tensor, tl.sum(total).to(S))
            else:
                # fmt: off
                _weigh(tl.sum(total), tensor, table, row, coefficients, statistics, tensors, lr_tensor, S, LR_TENSOR,
                       ADATERM, ROBUST, ADAPTIVE, ANALYTIC, ADABIAS, KEEP)
                # fmt: on
    elif start == 0:
        _report_nothing(tensor, statistics, tensors)


@triton.jit(do_not_specialize=["tensors", "lr_tensor", "found_inf"])
def weigh(
    table,
    coefficients,
    statistics,
    totals,
    tensors,
    lr_tensor,
    found_inf,
    S: tl.constexpr,
    LR_TENSOR: tl.constexpr,
    FOUND: tl.constexpr,
    ADATERM: tl.constexpr,
    ROBUST: tl.constexpr,
    ADAPTIVE: tl.constexpr,
    ANALYTIC: tl.constexpr,
    ADABIAS: tl.constexpr,
    KEEP: tl.constexpr,
):
    """Weigh one tensor, with the sum over all ranks' parts."""
    tensor = tl.program_id(0)
    live = True
    if FOUND:
        live = tl.load(found_inf) == 0.0
    if live:
        row = table + HEAD + tensor * ROW
        total = tl.load(totals + tensor).to(tl.float64)
        # fmt: off
        _weigh(total, tensor, table, row, coefficients, statistics, tensors, lr_tensor, S, LR_TENSOR, ADATERM,
               ROBUST, ADAPTIVE, ANALYTIC, ADABIAS, KEEP)
        # fmt: on
    else:
        _report_nothing(tensor, statistics, tensors)


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
    L2: tl.constexpr,
    DECOUPLED: tl.constexpr,
    STOCHASTIC: tl.constexpr,
    ADATERM: tl.constexpr,
    ROBUST: tl.constexpr,
    ANALYTIC: tl.constexpr,
    UNCENTERED: tl.constexpr,
    BELIEF: tl.constexpr,
):
    g_pointer = _tensor(row, GRADIENT, G, ALIGNED)
    m_pointer = _tensor(row, MEAN, S, ALIGNED)
    v_pointer = _tensor(row, SCALE, S, ALIGNED)
    p_pointer = _tensor(row, PARAMETER, P, ALIGNED)
    valid = tl.load(mine + VALID) > 0.0
    rate = tl.load(mine + RATE)
    scale_rate = tl.load(mine + SCALE_RATE)
    distance = tl.load(mine + DISTANCE)
    dof = tl.load(mine + TENSOR_DOF)
    weight = tl.load(mine + WEIGHT)
    step_size = tl.load(mine + STEP_SIZE)
    correction = tl.load(mine + CORRECTION)
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
        if ADATERM:
            mean, scale, parameter = adaterm_move(
                gradient,
                mean,
                scale,
                parameter,
                valid,
                rate,
                scale_rate,
                distance,
                dof,
                weight,
                step_size,
                floor,
                ROBUST,
                ANALYTIC,
                UNCENTERED,
            )
        else:
            mean, scale, parameter = t_family_move(
                gradient, mean, scale, parameter, valid, rate, scale_rate, step_size, correction, floor, eps, BELIEF
            )
        _store(m_pointer, at, size, mean, FULL)
        _store(v_pointer, at, size, scale, FULL)
        if STOCHASTIC:
            step = tl.load(_tensor(row, STEP, tl.float32, False)).to(tl.int64)
            parameter = _rounded(parameter, at, step, tl.load(row + POSITION))
        _store(p_pointer, at, size, parameter, FULL)


@triton.jit(do_not_specialize=["lr_tensor", "grad_scale", "found_inf"])
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
    L2: tl.constexpr,
    LR_TENSOR: tl.constexpr,
    SCALED: tl.constexpr,
    FOUND: tl.constexpr,
    DECOUPLED: tl.constexpr,
    STOCHASTIC: tl.constexpr,
    ADATERM: tl.constexpr,
    ROBUST: tl.constexpr,
    ANALYTIC: tl.constexpr,
    UNCENTERED: tl.constexpr,
    BELIEF: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Move one chunk, from the last to the first: what was gauged last is still in the cache.

    With OVERLAP its programs may start while the last ones of `gauge` are at work, and wait for them here.
    """
    if OVERLAP:
        gdc_wait()
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
        decay = _number(table, DECAY)
        lr = tl.load(lr_tensor).to(tl.float64) if LR_TENSOR else _number(table, LR)
        shrink = (1.0 - (1.0 - lr * decay)).to(S)  # the part that AdamW's factor takes away
        decay = decay.to(S)
        eps = _number(table, EPS)
        if ADATERM:
            floor = eps * eps
        elif BELIEF:
            floor = eps / (1.0 - _number(table, BETA2))
        else:
            floor = eps * 0.0
        eps = eps.to(S)
        floor = floor.to(S)
        # fmt: off
        if start + CHUNK <= size:
            _moved(row, start, size, mine, sign, decay, shrink, eps, floor, True, S, P, G, ALIGNED, L2,
                   DECOUPLED, STOCHASTIC, ADATERM, ROBUST, ANALYTIC, UNCENTERED, BELIEF)
        else:
            _moved(row, start, size, mine, sign, decay, shrink, eps, floor, False, S, P, G, ALIGNED, L2,
                   DECOUPLED, STOCHASTIC, ADATERM, ROBUST, ANALYTIC, UNCENTERED, BELIEF)
        # fmt: on
