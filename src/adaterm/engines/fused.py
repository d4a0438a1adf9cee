"""The fused engines behind one door: each parameter goes to the kernels of its device, with those of its precision."""

from collections import defaultdict
from math import nan
from typing import Any, NoReturn

import torch
from torch import Tensor

from adaterm.engines import cpu, foreach, gpu
from adaterm.engines.job import Job, Report


def supports(parameter: Tensor) -> bool:
    """Whether a fused engine can step this parameter."""
    return gpu.supports(parameter) or cpu.supports(parameter)


def refuse(params: list[Tensor]) -> NoReturn:
    """Say what `fused=True` would need."""
    kinds = {f"{p.dtype} on {p.device.type}" for p in params if not supports(p)}
    needs = [] if gpu.available else ["on a GPU it needs triton and a C compiler"]
    needs += [] if cpu.available() else ["on a CPU it needs numba: pip install 'adaterm[cpu]'"]
    raise RuntimeError(
        "`fused=True` requires all the params to be floating point Tensors of supported devices: "
        f"['cuda', 'cpu'] but there is {', '.join(sorted(kinds))}" + "".join(f"; {need}" for need in needs)
    )


def run(job: Job) -> list[Report]:
    """Take one step with every parameter of the job."""
    if "buckets" not in job.scratch:
        job.scratch["buckets"] = _buckets(job)
    reports = []
    for indices, bucket in job.scratch["buckets"]:
        if bucket is None:
            reports += _left_over(job, indices)
        else:
            whole = len(indices) == len(job.grads)
            grads = job.grads if whole else [job.grads[index] for index in indices]
            reports.append(Report(indices, bucket.step(job, grads)))
    return reports


def _left_over(job: Job, indices: list[int]) -> list[Report]:
    """Step parameters with gaps between their elements; foreach knows nothing of GradScaler."""
    some = job.select(indices)
    if some.found_inf is not None and some.found_inf.item():
        return [Report(indices, torch.full((3, len(indices)), nan, device=some.params[0].device))]
    if some.grad_scale is not None:
        scale = some.grad_scale
        some.grads = [grad / scale.to(grad.device, grad.dtype) for grad in some.grads]
    return [Report([indices[index] for index in known], statistics) for known, statistics in foreach.run(some)]


def _buckets(job: Job) -> list[tuple[list[int], Any]]:
    """Parameters that go together, with what steps them; those with gaps between their elements are left to foreach."""
    found = defaultdict(list)
    for index, (parameter, gradient, mean) in enumerate(zip(job.params, job.grads, job.means, strict=True)):
        dense = torch.ops.aten.is_non_overlapping_and_dense(parameter)
        home = None if not dense else gpu.Bucket if gpu.supports(parameter) else cpu.Bucket
        found[home, parameter.device, parameter.dtype, gradient.dtype, mean.dtype].append(index)
    return [(indices, home and home(job.select(indices))) for (home, *_), indices in found.items()]
