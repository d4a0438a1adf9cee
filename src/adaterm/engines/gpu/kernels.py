"""The fused engine's kernels, in Triton, over the same equations as every other engine.

A kernel is compiled for a `Case`: what is known before it runs. Functions that take one decide by it, without a branch.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from adaterm.engines import base, layout
from adaterm.engines.gpu.access import (
    FIRST_CHUNK,
    INF,
    SIZE,
    STEP,
    STREAM,
    TRIGAMMA,
    WHOLE_SIZE,
    WINDOW,
    find_tensor,
    find_tensors,
    load_elements,
    load_number,
    load_numbers,
    load_rates,
    load_scalars,
    load_wide,
    round_elements,
    store_elements,
    store_scalars,
)
from adaterm.engines.gpu.case import EQUATIONS, describe_case
from adaterm.equations import Notes, Totals

__all__ = ["CHUNK", "describe_case", "gauge", "judge", "move", "weigh"]

CHUNK = tl.constexpr(8192)  # elements of a program; a power of two
BLOCK = tl.constexpr(2048)  # elements at a time
PARTS = tl.constexpr(1024)  # partial sums at a time
TENSORS = tl.constexpr(256)  # tensors at a time, in a judgement
TOTALS, NOTES = tl.constexpr(len(Totals._fields)), tl.constexpr(len(Notes._fields))

LR, WEIGHT_DECAY, SIGN = (tl.constexpr(getattr(layout, name)) for name in ("LR", "WEIGHT_DECAY", "SIGN"))
TRUST, CLIP, EXCESS, NORM, VERDICT = (
    tl.constexpr(getattr(base, name)) for name in ("TRUST", "CLIP", "EXCESS", "NORM", "VERDICT")
)

direct, shift = EQUATIONS.direct, EQUATIONS.shift


@triton.jit
def _load_lr(table, lr_tensor, CASE: tl.constexpr):
    return tl.load(lr_tensor).to(tl.float64) if CASE.lr_tensor else load_number(table, LR)


@triton.jit
def _load_sign(table, grad_scale, CASE: tl.constexpr):
    """What gradients are multiplied with: -1 to maximize, and the inverse of GradScaler's scale."""
    sign = load_number(table, SIGN)
    if CASE.scaled:
        sign = sign / tl.load(grad_scale).to(tl.float64)
    return sign.to(CASE.state)


@triton.jit
def _is_taken(found_inf, CASE: tl.constexpr):
    """Whether the step is to be taken: GradScaler has found no infinity."""
    if CASE.may_skip:
        return tl.load(found_inf) == 0.0
    else:
        return True


@triton.jit
def _begin_totals(COUNT: tl.constexpr, LENGTH: tl.constexpr, DTYPE: tl.constexpr):
    totals = (tl.zeros((LENGTH,), DTYPE),)
    for _ in tl.static_range(1, COUNT):
        totals = totals + (tl.zeros((LENGTH,), DTYPE),)
    return totals


@triton.jit
def _add_terms(totals, terms, at, size, FULL: tl.constexpr, COUNT: tl.constexpr):
    """Totals with the terms of some elements, or of some tensors, added."""
    sums = (totals[0] + (terms[0] if FULL else tl.where(at < size, terms[0], 0.0)),)
    for index in tl.static_range(1, COUNT):
        sums = sums + (totals[index] + (terms[index] if FULL else tl.where(at < size, terms[index], 0.0)),)
    return sums


@triton.jit
def _gauge_chunk(row, start, size, sign, decay, scalars, numbers, CASE: tl.constexpr, FULL: tl.constexpr):
    """A chunk's share of each sum."""
    FLAGS: tl.constexpr = CASE.flags
    COUNT: tl.constexpr = CASE.sum_count
    S: tl.constexpr = CASE.state
    ADDS_DECAY: tl.constexpr = CASE.adds_decay
    gradients, means, scales, parameters = find_tensors(row, CASE)
    totals = _begin_totals(COUNT, BLOCK, S)
    for begin in tl.static_range(0, CHUNK, BLOCK):
        at = start + begin + tl.arange(0, BLOCK)
        gradient = load_elements(gradients, at, size, 0.0, FULL, S)
        mean = load_elements(means, at, size, 0.0, FULL, S)
        scale = load_elements(scales, at, size, 1.0, FULL, S)
        parameter = load_elements(parameters, at, size, 0.0, FULL, S) if ADDS_DECAY else gradient
        gradient = direct(gradient, parameter, sign, decay, ADDS_DECAY)
        terms = CASE.gauge(gradient, mean, scale, scalars, numbers, FLAGS)
        totals = _add_terms(totals, terms, at, size, FULL, COUNT)
    return totals


@triton.jit
def _load_sums(sums, at, tensors, CASE: tl.constexpr):
    """The sums of one tensor, or of some."""
    COUNT: tl.constexpr = CASE.sum_count
    values = (tl.load(sums + at, mask=at < tensors, other=0.0).to(tl.float64),)
    for index in tl.static_range(1, COUNT):
        values = values + (tl.load(sums + index * tensors + at, mask=at < tensors, other=0.0).to(tl.float64),)
    return values


@triton.jit
def _add_parts(parts, first, chunks):
    """The sum of what the programs of a tensor have left, always in the same order."""
    total = tl.zeros((PARTS,), tl.float64)
    for begin in range(0, tl.cdiv(chunks, PARTS)):
        at = begin * PARTS + tl.arange(0, PARTS)
        total += tl.load(parts + first + at, mask=at < chunks, other=0.0, cache_modifier=".cg").to(tl.float64)
    return tl.sum(total)


@triton.jit
def _load_window(pointer, CASE: tl.constexpr):
    """The values of a window, and infinity beyond its end: its length is made a power of two."""
    LENGTH: tl.constexpr = CASE.window
    places = tl.arange(0, CASE.width)
    return tl.load(pointer + places, mask=places < LENGTH, other=INF)


@triton.jit
def _push(pointer, window, note, CASE: tl.constexpr):
    """Make a note the first value of a window in memory; an infinite note is none."""
    LENGTH: tl.constexpr = CASE.window
    places = tl.arange(0, CASE.width)
    tl.debug_barrier()  # all of it must have been read
    if note < INF:
        tl.store(pointer + places + 1, window, mask=places + 1 < LENGTH)
        tl.store(pointer, note.to(window.dtype))


@triton.jit
def _weigh_tensor(sums, tensor, table, row, all_rates, statistics, verdict, tensors, lr_tensor, CASE: tl.constexpr):
    """Weigh a tensor whose sums are whole."""
    FLAGS: tl.constexpr = CASE.flags
    COUNT: tl.constexpr = CASE.rate_count
    LENGTH: tl.constexpr = CASE.window
    steps = find_tensor(row, STEP, tl.float32, False)
    step = tl.load(steps) + 1.0
    tl.store(steps, step)
    pace = (_load_lr(table, lr_tensor, CASE), load_number(table, WEIGHT_DECAY), step.to(tl.float64))
    size = (tl.load(row + WHOLE_SIZE).to(tl.float64), load_number(row, TRIGAMMA))
    scalars = load_scalars(row, CASE, tl.float64)
    numbers = load_numbers(table, CASE, tl.float64)
    if LENGTH > 0:
        memory = find_tensor(row, WINDOW, CASE.state, False)
        window = _load_window(memory, CASE)
        batch = (load_wide(verdict + TRUST), load_wide(verdict + CLIP), load_wide(verdict + EXCESS))
        rates, scalars, note, report = CASE.weigh(sums, size, scalars, window, batch, pace, numbers, FLAGS)
        _push(memory, window, note, CASE)
    else:
        rates, scalars, note, report = CASE.weigh(sums, size, scalars, 0.0, (1.0, 1.0, 0.0), pace, numbers, FLAGS)
    store_scalars(row, scalars, CASE)
    for index in tl.static_range(COUNT):
        tl.store(all_rates + tensor * COUNT + index, rates[index].to(CASE.state))
    for line in tl.static_range(3):
        tl.store(statistics + line * tensors + tensor, report[line].to(CASE.state))


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
    CASE: tl.constexpr,
):
    """Gauge one chunk; the program that completes a tensor weighs it, or leaves its sums if they are to be agreed."""
    if CASE.overlap:
        gdc_launch_dependents()
    COUNT: tl.constexpr = CASE.sum_count
    program = tl.program_id(0)
    all_chunks = tl.num_programs(0)
    tensor = tl.load(owners + program)
    row = table + CASE.head + tensor * CASE.row
    size = tl.load(row + SIZE)
    first = tl.load(row + FIRST_CHUNK)
    chunks = tl.cdiv(size, CHUNK)
    start = (program - first) * CHUNK
    if _is_taken(found_inf, CASE):
        sign = _load_sign(table, grad_scale, CASE)
        decay = load_number(table, WEIGHT_DECAY).to(CASE.state)
        scalars = load_scalars(row, CASE, CASE.state)
        numbers = load_numbers(table, CASE, CASE.state)
        if start + CHUNK <= size:
            totals = _gauge_chunk(row, start, size, sign, decay, scalars, numbers, CASE, True)
        else:
            totals = _gauge_chunk(row, start, size, sign, decay, scalars, numbers, CASE, False)
        for index in tl.static_range(COUNT):
            tl.store(parts + index * all_chunks + program, tl.sum(totals[index]))
        tl.debug_barrier()
        if tl.atomic_add(counters + tensor, 1) == chunks - 1:
            tl.atomic_xchg(counters + tensor, 0)
            whole = (_add_parts(parts, first, chunks),)
            for index in tl.static_range(1, COUNT):
                whole = whole + (_add_parts(parts + index * all_chunks, first, chunks),)
            if CASE.leaves_sums:
                for index in tl.static_range(COUNT):
                    tl.store(sums + index * tensors + tensor, whole[index].to(CASE.state))
            else:
                _weigh_tensor(whole, tensor, table, row, all_rates, statistics, sums, tensors, lr_tensor, CASE)
    elif start == 0:
        _report_nothing(tensor, statistics, tensors)


@triton.jit(do_not_specialize=["tensors", "lr_tensor", "found_inf"])
def weigh(table, all_rates, statistics, sums, verdict, tensors, lr_tensor, found_inf, CASE: tl.constexpr):
    """Weigh one tensor, with sums that have been agreed."""
    if CASE.overlap:
        gdc_wait()
        gdc_launch_dependents()
    tensor = tl.program_id(0)
    if _is_taken(found_inf, CASE):
        row, whole = table + CASE.head + tensor * CASE.row, _load_sums(sums, tensor, tensors, CASE)
        _weigh_tensor(whole, tensor, table, row, all_rates, statistics, verdict, tensors, lr_tensor, CASE)
    else:
        _report_nothing(tensor, statistics, tensors)


@triton.jit(do_not_specialize=["tensors", "found_inf"])
def judge(table, sums, sizes, history, verdict, tensors, found_inf, CASE: tl.constexpr):
    """Judge a batch, in one program, by the sums of all tensors."""
    if CASE.overlap:
        gdc_wait()
        gdc_launch_dependents()
    FLAGS: tl.constexpr = CASE.flags
    if _is_taken(found_inf, CASE):
        totals = _begin_totals(TOTALS, TENSORS, tl.float64)
        for begin in range(0, tl.cdiv(tensors, TENSORS)):
            at = begin * TENSORS + tl.arange(0, TENSORS)
            size = (tl.load(sizes + at, mask=at < tensors, other=1.0).to(tl.float64), 0.0)
            parts = CASE.summarize(_load_sums(sums, at, tensors, CASE), size, FLAGS)
            totals = _add_terms(totals, parts, at, tensors, False, TOTALS)
        summed = (tl.sum(totals[0]), tl.sum(totals[1]), tl.sum(totals[2]), tl.sum(totals[3]))
        windows = (_load_window(history, CASE),)
        for index in tl.static_range(1, NOTES):
            windows = windows + (_load_window(history + index * CASE.window, CASE),)
        batch, report, notes = CASE.judge(summed, windows, load_numbers(table, CASE, tl.float64), FLAGS)
        for line in tl.static_range(3):
            tl.store(verdict + line, report[line].to(CASE.state))
        tl.store(verdict + CLIP, batch.clip.to(CASE.state))
        tl.store(verdict + EXCESS, batch.excess.to(CASE.state))
        tl.store(verdict + NORM, notes.norm.to(CASE.state))
        if CASE.remembers:
            for index in tl.static_range(NOTES):
                _push(history + index * CASE.window, windows[index], notes[index], CASE)
    else:
        for line in tl.static_range(VERDICT):
            tl.store(verdict + line, tl.full((), float("nan"), CASE.state))


@triton.jit
def _move_chunk(row, start, size, rates, shrink, sign, decay, numbers, CASE: tl.constexpr, FULL: tl.constexpr):
    FLAGS: tl.constexpr = CASE.flags
    S: tl.constexpr = CASE.state
    ADDS_DECAY: tl.constexpr = CASE.adds_decay
    gradients, means, scales, parameters = find_tensors(row, CASE)
    for begin in range(0, CHUNK, BLOCK):
        at = start + begin + tl.arange(0, BLOCK)
        gradient = load_elements(gradients, at, size, 0.0, FULL, S)
        mean = load_elements(means, at, size, 0.0, FULL, S)
        scale = load_elements(scales, at, size, 1.0, FULL, S)
        parameter = load_elements(parameters, at, size, 0.0, FULL, S)
        gradient = direct(gradient, parameter, sign, decay, ADDS_DECAY)
        if CASE.shrinks:
            parameter = shift(parameter, parameter, -shrink)
        mean, scale, parameter = CASE.move(gradient, mean, scale, parameter, rates, numbers, FLAGS)
        store_elements(means, at, size, mean, FULL)
        store_elements(scales, at, size, scale, FULL)
        if CASE.stochastic:
            step = tl.load(find_tensor(row, STEP, tl.float32, False)).to(tl.int64)
            parameter = round_elements(parameter, at, step, tl.load(row + STREAM))
        store_elements(parameters, at, size, parameter, FULL)


@triton.jit(do_not_specialize=["grad_scale", "found_inf"])
def move(owners, table, all_rates, grad_scale, found_inf, CASE: tl.constexpr):
    """Move one chunk, from the last to the first: what was gauged last is still in the cache.

    With `overlap` a kernel's programs may start while the last ones of the kernel before it are at work, and wait here.
    """
    if CASE.overlap:
        gdc_wait()
    if _is_taken(found_inf, CASE):
        chunk = tl.num_programs(0) - 1 - tl.program_id(0)
        tensor = tl.load(owners + chunk)
        row = table + CASE.head + tensor * CASE.row
        size = tl.load(row + SIZE)
        start = (chunk - tl.load(row + FIRST_CHUNK)) * CHUNK
        rates = load_rates(all_rates + tensor * CASE.rate_count, CASE)
        sign = _load_sign(table, grad_scale, CASE)
        shrink = rates[CASE.shrinkage]
        decay = load_number(table, WEIGHT_DECAY).to(CASE.state)
        numbers = load_numbers(table, CASE, CASE.state)
        if start + CHUNK <= size:
            _move_chunk(row, start, size, rates, shrink, sign, decay, numbers, CASE, True)
        else:
            _move_chunk(row, start, size, rates, shrink, sign, decay, numbers, CASE, False)
