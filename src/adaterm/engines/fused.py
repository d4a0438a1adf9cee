"""The fused engines behind one door: each parameter goes to the kernels of its device, with those of its precision."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NoReturn

import torch
from torch import Tensor

from adaterm.engines import cpu, foreach, gpu
from adaterm.engines.job import Job, Report, skipped, unscaled


def supports(parameter: Tensor) -> bool:
    """Whether a fused engine can step this parameter."""
    return gpu.supports(parameter) or cpu.supports(parameter)


def refuse(params: list[Tensor]) -> NoReturn:
    """Say what `fused=True` would need."""
    kinds = {f"{p.dtype} on {p.device.type}" for p in params if not supports(p)}
    missing = {
        "cuda": (gpu.available, "triton and a C compiler"),
        "cpu": (cpu.available(), "numba (pip install numba)"),
    }
    devices = [device for device, (here, _) in missing.items() if here]
    needs = [f"; on {device} it needs {what}" for device, (here, what) in missing.items() if not here]
    raise RuntimeError(
        "`fused=True` requires all the params to be floating point Tensors of supported devices: "
        f"{devices} but there is {', '.join(sorted(kinds))}{''.join(needs)}"
    )


def run(job: Job) -> list[Report]:
    """Take one step with every parameter of the job."""
    reports = []
    for indices, bucket, grads in _buckets(job):
        if bucket is None:
            some = job.select(indices)
            plain = unscaled(some)
            reports += _renumbered(indices, foreach.run(plain) if plain else [skipped(some)])
        else:
            reports.append(Report(indices, bucket.step(job, grads)))
    torch.autograd.graph.increment_version(job.params)  # the kernels write behind autograd's back
    return reports


def gauge(job: Job) -> list[Tensor]:
    """The sums, one for each parameter, of which a distance is the mean."""
    sums: dict[int, Tensor] = {}
    for indices, bucket, grads in _buckets(job):
        if bucket is None:
            some = job.select(indices)
            plain = unscaled(some)
            found = foreach.gauge(plain) if plain else [torch.zeros_like(mean).sum() for mean in some.means]
        else:
            found = bucket.gauge(job, grads).unbind()
        sums |= zip(indices, found, strict=True)
    return [sums[index] for index in range(len(job.params))]


def finish(job: Job, totals: list[Tensor]) -> list[Report]:
    """Take the rest of a step, with the sums over whole tensors."""
    reports = []
    for indices, bucket, grads in _buckets(job):
        own = [totals[index] for index in indices]
        if bucket is None:
            some = job.select(indices)
            plain = unscaled(some)
            reports += _renumbered(indices, foreach.finish(plain, own) if plain else [skipped(some)])
        else:
            reports.append(Report(indices, bucket.finish(job, grads, own)))
    torch.autograd.graph.increment_version(job.params)
    return reports


def _renumbered(indices: list[int], reports: list[Report]) -> list[Report]:
    return [Report([indices[index] for index in known], statistics) for known, statistics in reports]


def _buckets(job: Job) -> Iterator[tuple[list[int], Any, list[Tensor]]]:
    """Parameters that go together, what steps them, and their gradients."""
    if "buckets" not in job.scratch:
        with torch.inference_mode(False):  # what is made here serves later steps, in any mode
            job.scratch["buckets"] = _sorted(job)
    for indices, bucket in job.scratch["buckets"]:
        whole = len(indices) == len(job.grads)
        yield indices, bucket, job.grads if whole else [job.grads[index] for index in indices]


def _sorted(job: Job) -> list[tuple[list[int], Any]]:
    """Parameters that go together, with what steps them; those with gaps between their elements are left to foreach."""
    found = defaultdict(list)
    for index, (parameter, gradient, mean) in enumerate(zip(job.params, job.grads, job.means, strict=True)):
        plain = torch.ops.aten.is_non_overlapping_and_dense(parameter) and type(gradient) is Tensor
        home = None if not plain else gpu.Bucket if gpu.supports(parameter) else cpu.Bucket
        for state in (mean, job.scales[index]):
            _fit(state, parameter)
        found[home, parameter.device, parameter.dtype, gradient.dtype, mean.dtype].append(index)
    return [(indices, home and home(job.select(indices))) for (home, *_), indices in found.items()]


def _fit(state: Tensor, parameter: Tensor) -> None:
    """Give a state the parameter's order of elements in memory, which may have changed, or the state was loaded."""
    if state.shape != parameter.shape:
        raise RuntimeError(
            f"a parameter of shape {tuple(parameter.shape)} has state of shape {tuple(state.shape)}: "
            "the state that was loaded is of another model"
        )
    if state.stride() != parameter.stride():
        state.data = torch.empty_like(parameter, dtype=state.dtype).copy_(state)
