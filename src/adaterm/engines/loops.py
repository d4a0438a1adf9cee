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

from adaterm import equations, rounding
from adaterm.engines import intrinsics
from adaterm.engines import table as layout
from adaterm.engines.intrinsics import UNITS, call, cast, fetch_add, load, narrow, noisy, pointer, wide
from adaterm.engines.table import (
    BETA1,
    BETA2,
    BETA_DOF,
    DECAY,
    DOF,
    EPS,
    FIRST_SCALAR,
    GRADIENT,
    HEAD,
    LR,
    MEAN,
    PARAMETER,
    POSITION,
    ROW,
    SCALE,
    SECOND_SCALAR,
    SIGN,
    STEP,
    THIRD_SCALAR,
    TRIGAMMA,
    WHOLE_SIZE,
)

PIECE = 1 << 16  # elements whose part of a distance is added up on its own, whoever does it
_PATIENCE = 1000  # looks at a counter before other programs may run
_BLOCK = 1 << 10  # elements that are added up in the state's precision
# What to do with the elements of an item; tensors that ranks share are added up in one call and moved in another.
WHOLE, GAUGE, MOVE, ADD_UP, WEIGH = range(5)
VALID, RATE, SCALE_RATE, DISTANCE, TENSOR_DOF, WEIGHT, STEP_SIZE, CORRECTION = range(8)
COEFFICIENTS = 8
ITEM = 7  # columns of an item: kind, tensor, begin, end, the tensor's first piece, its pieces, and whose item it is
# What a thread is told: addresses, and numbers of things.
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
    ALL_COEFFICIENTS,
    STATISTICS,
    GRAD_SCALE,
    TOTALS,
) = range(14)
CONTEXT = 14
LINE = 64  # bytes from one tensor's counter to the next: what one thread writes must not slow another


def _compiled(function: Callable[..., Any], **options: Any) -> Any:
    return njit(error_model="numpy", inline="always", **options)(function)


_PER_TENSOR = {"adaterm_weigh", "adaterm_step_size", "t_family_weigh", "weigh", "t_weigh", "spread", "dof_of_spread"}
"""The equations that are needed once for a tensor: not made part of the loops, they are compiled but once."""


def _compiled_equations() -> dict[str, Any]:
    """The equations as functions that become part of the loops that call them."""
    primitives: dict[str, Callable[..., Any]] = {
        "where": lambda condition, value, other: value if condition else cast(other, value),
        "at_least": lambda value, bound: cast(bound, value) if value < bound else value,
        "ratio": lambda value, number: value * (cast(1.0, number) / number),
        "square": lambda value: value * value,
        "sqrt": lambda value: np.sqrt(value),
        "log": lambda value: np.log(value),
    }
    constants = ("inf", "TINY", "LARGEST_DOF_WEIGHT")
    scope: dict[str, Any] = {name: getattr(equations, name) for name in constants} | {"__name__": __name__}
    scope |= {name: _compiled(function) for name, function in primitives.items()}
    for name, function in vars(equations).items():
        if isinstance(function, FunctionType) and name not in scope:
            rebuilt = FunctionType(function.__code__, scope, name)
            scope[name] = njit(rebuilt, error_model="numpy") if name in _PER_TENSOR else _compiled(rebuilt)
    return scope


_EQUATIONS = _compiled_equations()
_adaterm_weigh, _adaterm_step_size, _adaterm_move = (
    _EQUATIONS[name] for name in ("adaterm_weigh", "adaterm_step_size", "adaterm_move")
)
_t_family_weigh, _t_family_move, _power = (_EQUATIONS[name] for name in ("t_family_weigh", "t_family_move", "power"))
_noise = _compiled(rounding.noise)
_surprise, _square, _shift = (_EQUATIONS[name] for name in ("surprise", "square", "shift"))


@_compiled
def _array(table: Any, tensor: Any, column: Any, begin: Any, end: Any, zero: Any) -> Any:
    """Elements of a tensor; their indices begin at 0, without which the loops would not be vectorised."""
    return carray(pointer(table[HEAD + ROW * tensor + column], zero), (end,))[begin:]


@_compiled
def _scalar(table: Any, tensor: Any, column: Any, zero: Any) -> Any:
    """A number of a tensor's state, or 0 if there is none."""
    address = table[HEAD + ROW * tensor + column]
    return np.float64(carray(pointer(address, zero), (1,))[0]) if address != 0 else 0.0


@_compiled
def _keep(table: Any, tensor: Any, column: Any, value: Any, zero: Any) -> Any:
    address = table[HEAD + ROW * tensor + column]
    if address != 0:
        carray(pointer(address, zero), (1,))[0] = value


def _summed(robust: bool, l2: bool) -> Any:
    """The function that adds up a block's part of the distance, in an order that the processor likes."""

    def total(g: Any, m: Any, v: Any, p: Any, sign: Any, decay: Any, eps: Any) -> Any:
        found = sign - sign  # a bare 0 would be added up in double precision
        for i in range(len(g)):
            gradient = sign * wide(g[i], sign)
            if l2:
                gradient += decay * wide(p[i], sign)
            found += _surprise(gradient, m[i], v[i] + eps) if robust else _square(gradient - m[i])
        return found

    return njit(error_model="numpy", nogil=True, fastmath={"reassoc", "nsz"})(total)


_sum, _sum_l2, _sum_robust, _sum_robust_l2 = (_summed(robust, l2) for robust in (False, True) for l2 in (False, True))


@_compiled
def _gauge(table, tensor, begin, end, sign, decay, eps, zero, g_unit, p_unit, robust, l2):
    """A piece's part of the distance."""
    total = 0.0
    for start in range(begin, end, _BLOCK):
        stop = min(end, start + _BLOCK)
        g = _array(table, tensor, GRADIENT, start, stop, g_unit)
        m = _array(table, tensor, MEAN, start, stop, zero)
        v = _array(table, tensor, SCALE, start, stop, zero)
        p = _array(table, tensor, PARAMETER, start, stop, p_unit)
        if robust:
            part = _sum_robust_l2(g, m, v, p, sign, decay, eps) if l2 else _sum_robust(g, m, v, p, sign, decay, eps)
        else:
            part = _sum_l2(g, m, v, p, sign, decay, eps) if l2 else _sum(g, m, v, p, sign, decay, eps)
        total += part
    return total


@_compiled
def _count(table, tensor):
    """The step count, as an array of one element."""
    return carray(pointer(table[HEAD + ROW * tensor + STEP], np.float32(0)), (1,))


@_compiled
def _counted(table, tensor):
    """The step count, with this step."""
    count = _count(table, tensor)
    count[0] += np.float32(1)
    return np.float64(count[0])


@_compiled
def _weigh_adaterm(table, numbers, tensor, total, mine, zero, robust, adaptive, analytically, adabias):
    """Weigh a tensor whose distance has been added up; what to report of it."""
    distance = total / np.float64(table[HEAD + ROW * tensor + WHOLE_SIZE])
    step, beta = _counted(table, tensor), numbers[BETA1]
    rate, scale_rate, dof, weight, excess, memory, trust, reported = _adaterm_weigh(
        distance,
        _scalar(table, tensor, FIRST_SCALAR, zero),
        _scalar(table, tensor, SECOND_SCALAR, zero),
        beta,
        numbers[EPS],
        numbers[DOF],
        robust,
        adaptive,
        analytically,
        adabias,
    )
    _keep(table, tensor, FIRST_SCALAR, excess, zero)
    _keep(table, tensor, SECOND_SCALAR, memory, zero)
    mine[VALID], mine[DISTANCE] = distance < np.inf, distance if distance < np.inf else 0.0
    mine[RATE], mine[SCALE_RATE], mine[TENSOR_DOF], mine[WEIGHT] = rate, scale_rate, dof, weight
    mine[STEP_SIZE] = _adaterm_step_size(numbers[LR], step, memory, beta, adabias)
    return distance, trust, reported


@_compiled
def _weigh_t_family(table, numbers, tensor, total, mine, zero, robust, adaptive, keep):
    """Weigh a tensor whose distance has been added up; what to report of it."""
    row = HEAD + ROW * tensor
    size = np.float64(table[row + WHOLE_SIZE])
    distance = total / size
    step, beta, beta2 = _counted(table, tensor), numbers[BETA1], numbers[BETA2]
    rate, scale_rate, weight_sum, average, variance, seen, trust, reported = _t_family_weigh(
        distance,
        size,
        numbers[row + TRIGAMMA],
        _scalar(table, tensor, FIRST_SCALAR, zero),
        _scalar(table, tensor, SECOND_SCALAR, zero),
        _scalar(table, tensor, THIRD_SCALAR, zero),
        beta,
        beta2,
        numbers[EPS],
        numbers[DOF],
        numbers[BETA_DOF],
        robust,
        adaptive,
        keep,
    )
    _keep(table, tensor, FIRST_SCALAR, weight_sum, zero)
    _keep(table, tensor, SECOND_SCALAR, average, zero)
    _keep(table, tensor, THIRD_SCALAR, variance, zero)
    mine[VALID], mine[RATE], mine[SCALE_RATE] = distance < np.inf, rate, scale_rate
    mine[STEP_SIZE], mine[CORRECTION] = numbers[LR] / (1.0 - _power(beta, step)), 1.0 - _power(beta2, step)
    return seen, trust, reported


@_compiled
def _decayed(gradient, parameter, decay, shrink, l2, decoupled):
    """Gradient and parameter after weight decay of either kind."""
    if l2:
        gradient += decay * parameter
    if decoupled:
        parameter = _shift(parameter, parameter, -shrink)
    return gradient, parameter


@_compiled
def _stored(value, unit, index, step, position, stochastic):
    """A parameter as it is stored."""
    if stochastic and abs(value) < np.inf:
        value = noisy(value, _noise(index, step, position))
    return narrow(value, unit)


@_compiled
def _move_adaterm(g, m, v, p, mine, place, sign, decay, shrink, floor, flags, l2, decoupled, stochastic):
    """Move some elements of a tensor that has been weighed."""
    valid, rate, scale_rate, distance = mine[VALID] > 0, mine[RATE], mine[SCALE_RATE], mine[DISTANCE]
    dof, weight, step_size = mine[TENSOR_DOF], mine[WEIGHT], mine[STEP_SIZE]
    robust, analytically, uncentered = flags
    begin, step, position = place
    for i in range(len(g)):
        gradient, parameter = _decayed(sign * wide(g[i], sign), wide(p[i], sign), decay, shrink, l2, decoupled)
        m[i], v[i], parameter = _adaterm_move(
            gradient,
            m[i],
            v[i],
            parameter,
            valid,
            rate,
            scale_rate,
            distance,
            dof,
            weight,
            step_size,
            floor,
            robust,
            analytically,
            uncentered,
        )
        p[i] = _stored(parameter, p[i], begin + i, step, position, stochastic)


@_compiled
def _move_t_family(g, m, v, p, mine, place, sign, decay, shrink, floor, eps, belief, l2, decoupled, stochastic):
    """Move some elements of a tensor that has been weighed."""
    valid, rate, scale_rate = mine[VALID] > 0, mine[RATE], mine[SCALE_RATE]
    step_size, correction = mine[STEP_SIZE], mine[CORRECTION]
    begin, step, position = place
    for i in range(len(g)):
        gradient, parameter = _decayed(sign * wide(g[i], sign), wide(p[i], sign), decay, shrink, l2, decoupled)
        m[i], v[i], parameter = _t_family_move(
            gradient, m[i], v[i], parameter, valid, rate, scale_rate, step_size, correction, floor, eps, belief
        )
        p[i] = _stored(parameter, p[i], begin + i, step, position, stochastic)


def has_half() -> bool:
    """Whether this processor converts float16; x86 has learnt it in 2012."""
    return "x86" not in platform.machine().lower() or bool(llvm.get_host_cpu_features().get("f16c"))


def _fingerprint() -> str:
    """Changes with what the loops are made of; of other files than this one Numba's cache would not know."""
    files = [Path(module.__file__) for module in (equations, rounding, layout, intrinsics)]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


@lru_cache
def worker(
    state: str,
    parameter: str,
    gradient: str,
    adaterm: bool,
    robust: bool,
    adaptive: bool,
    analytically: bool,
    adabias: bool,
    keep: bool,
    uncentered: bool,
    belief: bool,
    l2: bool,
    decoupled: bool,
    stochastic: bool,
) -> Any:
    """The function that every thread runs, for precisions and one kind of rule: it does its own items, in order."""
    version = _fingerprint()
    zero, p_unit, g_unit = UNITS[state], UNITS[parameter], UNITS[gradient]

    def work(context):
        len(version)  # makes it part of what Numba's cache looks at
        known = carray(pointer(context, 0), (CONTEXT,))
        threads = call(known[NUM_THREADS]) if known[NUM_THREADS] != 0 else 1
        thread = call(known[THREAD_NUM]) if known[THREAD_NUM] != 0 else 0
        count = known[TENSORS]
        table = carray(pointer(known[TABLE], 0), (HEAD + ROW * count,))
        numbers = carray(pointer(known[TABLE], 0.0), (HEAD + ROW * count,))
        items = carray(pointer(known[ITEMS], 0), (known[ITEM_COUNT], ITEM))
        parts = carray(pointer(known[PARTS], 0.0), (known[PART_COUNT],))
        coefficients = carray(pointer(known[ALL_COEFFICIENTS], zero), (count, COEFFICIENTS))
        statistics = carray(pointer(known[STATISTICS], zero), (3, count))
        scale = carray(pointer(known[GRAD_SCALE], 0.0), (1,))[0]
        totals = carray(pointer(known[TOTALS], 0.0), (count,))
        sign, decay, eps = cast(numbers[SIGN] / scale, zero), cast(numbers[DECAY], zero), cast(numbers[EPS], zero)
        shrink = cast(1.0 - (1.0 - numbers[LR] * numbers[DECAY]), zero)  # the part that AdamW's factor takes away
        floor = cast(numbers[EPS] ** 2 if adaterm else numbers[EPS] / (1.0 - numbers[BETA2]) if belief else 0.0, zero)
        for index in range(known[ITEM_COUNT]):
            if items[index, 6] % threads != thread:
                continue
            kind, tensor, begin, end = items[index, 0], items[index, 1], items[index, 2], items[index, 3]
            first, pieces = items[index, 4], items[index, 5]
            mine, done = coefficients[tensor], known[COUNTERS] + LINE * tensor
            if kind != MOVE:
                for start in range(begin, begin if kind == WEIGH else end, PIECE):
                    stop, added = min(end, start + PIECE), zero if adaterm else eps
                    part = _gauge(table, tensor, start, stop, sign, decay, added, zero, g_unit, p_unit, robust, l2)
                    parts[first + start // PIECE] = part
                gauged = (end - begin + PIECE - 1) // PIECE
                if fetch_add(done, gauged) + gauged == pieces:
                    total = totals[tensor] if kind == WEIGH else 0.0
                    for piece in range(first, first if kind == WEIGH else first + pieces):
                        total += parts[piece]
                    if kind == ADD_UP:
                        totals[tensor] = total
                        continue
                    if adaterm:
                        seen = _weigh_adaterm(
                            table, numbers, tensor, total, mine, zero, robust, adaptive, analytically, adabias
                        )
                    else:
                        seen = _weigh_t_family(table, numbers, tensor, total, mine, zero, robust, adaptive, keep)
                    statistics[0, tensor], statistics[1, tensor], statistics[2, tensor] = seen
                    fetch_add(done, 1)
            if kind in (WHOLE, MOVE):
                waited = 0
                while load(done) <= pieces:  # other threads have yet to gauge, or one is weighing
                    waited += 1
                    if waited > _PATIENCE and known[YIELD] != 0:
                        call(known[YIELD])
                last = begin + (end - begin - 1) // PIECE * PIECE
                for start in range(last, begin - 1, -PIECE):  # what was gauged last is still in the cache
                    stop = min(end, start + PIECE)
                    g = _array(table, tensor, GRADIENT, start, stop, g_unit)
                    m = _array(table, tensor, MEAN, start, stop, zero)
                    v = _array(table, tensor, SCALE, start, stop, zero)
                    p = _array(table, tensor, PARAMETER, start, stop, p_unit)
                    place = (start, np.int64(_count(table, tensor)[0]), table[HEAD + ROW * tensor + POSITION])
                    if adaterm:
                        flags = (robust, analytically, uncentered)
                        _move_adaterm(
                            g, m, v, p, mine, place, sign, decay, shrink, floor, flags, l2, decoupled, stochastic
                        )
                    else:
                        # fmt: off
                        _move_t_family(g, m, v, p, mine, place, sign, decay, shrink, floor, eps, belief,
                                       l2, decoupled, stochastic)
                        # fmt: on

    signature, options = types.void(types.int64), {"error_model": "numpy"}
    try:
        return cfunc(signature, cache=True, **options)(work)
    except RuntimeError:  # there is nowhere to write to: every process compiles for itself
        return cfunc(signature, **options)(work)
