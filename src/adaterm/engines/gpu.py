"""The fused engine on GPUs: two launches for all tensors of a device and precision, and no scratch to speak of.

A program works on one chunk of one tensor. The first launch gauges: each program leaves its chunk's part of the
distance, and the one that finishes a tensor last adds the parts up, always in the same order, and weighs. The second
launch moves. What the kernels must know of the tensors lies in one table of addresses and numbers, which is copied to
the device when it changes.
"""

import os
from array import array
from collections import defaultdict
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from itertools import accumulate, chain
from math import nan
from operator import is_
from shutil import which
from types import ModuleType

import torch
from torch import Tensor

from adaterm.engines import foreach
from adaterm.engines.job import Job, Report
from adaterm.equations import trigamma
from adaterm.rules import Statistics, TRule

# Triton builds its launchers with a C compiler, when it first needs them.
available = find_spec("triton") is not None and any(map(which, (os.environ.get("CC", "cc"), "gcc", "clang")))
_interpreted = os.environ.get("TRITON_INTERPRET") == "1"
_PRECISIONS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_WARPS = 16
_SLOTS = {"excess_dof": 0, "bias_correction": 1, "weight_sum": 0, "log_distance_avg": 1, "log_distance_var": 2}


def supports(parameter: Tensor) -> bool:
    """Whether the engine can step this parameter: on a GPU, or anywhere in Triton's interpreter."""
    return available and (parameter.is_cuda or _interpreted) and parameter.dtype in _PRECISIONS


@lru_cache
def _kernels() -> ModuleType:
    """The kernels; Triton is imported when the first step needs it."""
    return import_module("adaterm.engines.kernels")


@dataclass
class _Plan:
    """What stays the same from step to step for tensors of the same sizes; a captured graph may refer to all of it."""

    owners: Tensor  # the tensor of each chunk
    fixed: tuple[Sequence[int], ...]  # columns of the table: sizes, trigammas, chunks before
    unused: list[int]
    counters: Tensor
    parts: Tensor
    coefficients: Tensor
    table: Tensor
    values: "array[int]" = field(default_factory=lambda: array("q"))
    aligned: bool = False
    captured: bool = False
    kept: list[Tensor] = field(default_factory=list)


def run(job: Job) -> list[Report]:
    """Take one step with every parameter of the job."""
    buckets, odd = _buckets(job)
    whole = len(buckets) == 1 and not odd
    reports = [Report(each, _step(job if whole else job.select(each))) for each in buckets]
    if odd:  # a tensor with gaps between its elements has no chunks
        for indices, statistics in foreach.run(job.select(odd)):
            reports.append(Report([odd[index] for index in indices], statistics))
    return reports


def _buckets(job: Job) -> tuple[list[list[int]], list[int]]:
    """Which parameters can be stepped together, and which not at all; remembered for the same tensors."""
    key = ("buckets", id(job.params[0]))  # one for each group
    known = job.scratch.get(key)
    tensors = (*job.params, *job.means)
    types = [gradient.dtype for gradient in job.grads]
    places = [parameter.device for parameter in job.params]
    if (
        known is not None
        and len(known[0]) == len(tensors)
        and all(map(is_, tensors, known[0]))
        and [types, places] == known[1]
    ):
        return known[2:]  # type: ignore[no-any-return]
    buckets = defaultdict(list)
    odd = []
    for index, (parameter, mean) in enumerate(zip(job.params, job.means, strict=True)):
        if torch.ops.aten.is_non_overlapping_and_dense(parameter):
            buckets[places[index], parameter.dtype, types[index], mean.dtype].append(index)
        else:
            odd.append(index)
    job.scratch[key] = (tensors, [types, places], list(buckets.values()), odd)
    return list(buckets.values()), odd


def _step(job: Job) -> Statistics:
    kernels, mean, options = _kernels(), job.means[0], job.options
    plan = _plan(job)
    grads = [_like(grad, stored) for grad, stored in zip(job.grads, job.params, strict=True)]
    _fill(plan, job, grads)
    # NaN is what the statistics of a skipped step are
    statistics = torch.full((3, len(job.params)), nan, dtype=mean.dtype, device=mean.device)
    lr = options.lr if isinstance(options.lr, Tensor) and not options.lr.is_cpu else None
    given = (lr, job.grad_scale, job.found_inf)
    pointers = [plan.coefficients if it is None else it.to(mean.device, non_blocking=True) for it in given]
    shared = {
        "S": kernels.TYPES[mean.dtype],
        "P": kernels.TYPES[job.params[0].dtype],
        "G": kernels.TYPES[grads[0].dtype],
        "ALIGNED": plan.aligned,
        "L2": bool(options.weight_decay) and not options.decoupled_weight_decay,
        "LR_TENSOR": lr is not None,
        "SCALED": job.grad_scale is not None,
        "FOUND": job.found_inf is not None,
        "num_warps": _WARPS,
    }
    gauging, moving = _flags(job)
    grid, count = (len(plan.owners),), len(job.params)
    known = (plan.owners, plan.table)
    foreign = mean.is_cuda and mean.device.index != torch.cuda.current_device()
    with torch.cuda.device(mean.device) if foreign else nullcontext():
        between = (plan.parts, plan.counters, plan.coefficients, statistics, count)
        kernels.gauge[grid](*known, *between, *pointers, **shared, **gauging)
        kernels.move[grid](*known, plan.coefficients, *pointers, **shared, **moving)
    return Statistics(*statistics.unbind())


def _flags(job: Job) -> tuple[dict[str, bool], dict[str, bool]]:
    """The rule as the two kernels know it."""
    rule = job.rule
    gauging = {"ADATERM": False, "ROBUST": rule.robust, "ADAPTIVE": False, "ADABIAS": False, "KEEP": True}
    moving = {"ADATERM": False, "ROBUST": rule.robust, "ANALYTIC": False, "UNCENTERED": False, "BELIEF": False}
    moving["DECOUPLED"] = bool(job.options.weight_decay) and job.options.decoupled_weight_decay
    if isinstance(rule, TRule):
        gauging |= {"ADAPTIVE": rule.beta_dof is not None, "KEEP": not rule.as_published}
        moving |= {"BELIEF": rule.belief}
    else:
        gauging |= {"ADATERM": True, "ADAPTIVE": rule.adaptive_dof, "ADABIAS": rule.adaptive_bias_correction}
        moving |= {"ADATERM": True, "ANALYTIC": rule.scale_update == "analytic", "UNCENTERED": rule.uncentered}
    return gauging, moving


def _numbers(job: Job) -> list[float]:
    """The numbers for all tensors, in the order of the table's head."""
    rule, options = job.rule, job.options
    lr = options.lr
    if isinstance(lr, Tensor):
        lr = lr.item() if lr.is_cpu else 0.0
    sign = -1.0 if options.maximize else 1.0
    if isinstance(rule, TRule):
        own = [*rule.betas, rule.eps, rule.dof, rule.beta_dof or 0.0]
    else:
        own = [rule.beta, 0.0, rule.eps, rule.min_dof, 0.0]
    return [lr, *own, options.weight_decay, sign]


def _plan(job: Job) -> _Plan:
    """The plan for these sizes, made when they are first seen; it belongs to the optimizer."""
    mean = job.means[0]
    sizes = tuple([parameter.numel() for parameter in job.params])
    key = (mean.device, mean.dtype, job.params[0].dtype, job.grads[0].dtype, job.rule.needs_size, sizes)
    plan: _Plan | None = job.scratch.get(key)
    if plan is None:
        kernels = _kernels()
        chunks = [-(-size // kernels.CHUNK.value) for size in sizes]
        before = [0, *accumulate(chunks)]
        trigammas = [trigamma(size / 2.0) for size in sizes] if job.rule.needs_size else [0.0] * len(sizes)
        length = kernels.HEAD.value + len(sizes) * kernels.ROW.value
        owners = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(chunks))
        plan = job.scratch[key] = _Plan(
            owners=owners.to(mean.device, torch.int32),
            fixed=(sizes, array("q", array("d", trigammas).tobytes()), before[:-1]),
            unused=[0] * len(sizes),
            counters=torch.zeros(len(sizes), dtype=torch.int32, device=mean.device),
            parts=torch.empty(before[-1], dtype=mean.dtype, device=mean.device),
            coefficients=torch.empty(len(sizes), kernels.COEFFICIENTS.value, dtype=mean.dtype, device=mean.device),
            table=torch.empty(length, dtype=torch.int64, device=mean.device),
        )
    return plan


def _fill(plan: _Plan, job: Job, grads: list[Tensor]) -> None:
    """Bring the table up to date."""
    addresses = [[tensor.data_ptr() for tensor in tensors] for tensors in (job.params, grads, job.means, job.scales)]
    slots = [plan.unused] * 3
    for name, scalars in job.scalars.items():
        slots[_SLOTS[name]] = [scalar.data_ptr() for scalar in scalars]
    steps = [step.data_ptr() for step in job.steps]
    values = array("q", array("d", _numbers(job)).tobytes())
    values.extend(chain.from_iterable(zip(*addresses, steps, *slots, *plan.fixed, strict=True)))
    capturing = plan.table.is_cuda and torch.cuda.is_current_stream_capturing()
    if values != plan.values:
        if plan.captured:  # a graph reads the old table at every replay
            plan.kept.append(plan.table)
            plan.table = torch.empty_like(plan.table)
        host = torch.frombuffer(values, dtype=torch.int64)
        if plan.table.is_cuda:
            host = host.pin_memory()
        if capturing:
            plan.kept.append(host)
        plan.table.copy_(host, non_blocking=True)
        plan.values = values
        plan.aligned = not any(address % 16 for column in addresses for address in column)
    plan.captured = plan.captured or capturing


def _like(gradient: Tensor, parameter: Tensor) -> Tensor:
    """The gradient with the parameter's order of elements in memory."""
    if gradient.stride() == parameter.stride() or (gradient.is_contiguous() and parameter.is_contiguous()):
        return gradient
    return torch.empty_like(parameter, dtype=gradient.dtype).copy_(gradient)
