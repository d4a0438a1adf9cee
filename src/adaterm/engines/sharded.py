"""Sharded parameters: each rank steps its own part of a tensor, and the ranks add up what they gauged.

Elements of a tensor meet only in the mean that is its distance, so one small all-reduce for all tensors that share
their ranks makes the result that of a single process. It takes place over the mesh dimensions that shard a tensor, not
over those that replicate it. Every parameter of the optimizer has its place in the message, gradient or not: no rank
waits for a message of another length.
"""

import sys
from collections import defaultdict
from operator import is_
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter

from adaterm.engines import fused
from adaterm.engines.job import Job, Report, skipped, unscaled

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def is_sharded(tensor: Tensor) -> bool:
    """Whether this is a DTensor, of which the ranks of a device mesh hold parts or copies."""
    return type(tensor) not in (Tensor, Parameter) and hasattr(tensor, "device_mesh")


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor on this rank; no other than the tensor itself, unless it is sharded."""
    if not is_sharded(tensor):
        return tensor
    found: Any = tensor._local_tensor  # type: ignore[attr-defined]  # what `to_local` gives without autograd, faster
    return found.wait() if hasattr(found, "wait") else found  # type: ignore[no-any-return]


def local_gradient(parameter: Any, gradient: Any) -> Tensor:
    """The part of a gradient on this rank: the same elements as of the parameter."""
    if is_sharded(parameter) and gradient.placements != parameter.placements:
        gradient = gradient.redistribute(parameter.device_mesh, parameter.placements)
    return local(gradient)


def part(parameter: Any) -> int:
    """Which part of a parameter this rank has; ranks with the same part have the same number."""
    if not is_sharded(parameter):
        return 0
    mesh, number = parameter.device_mesh, 0
    for dimension, placement in enumerate(parameter.placements):
        if not placement.is_replicate():
            number = number * mesh.size(dimension) + mesh.get_local_rank(dimension)
    return number


def refuse_flat(stepped: list[Tensor], all_params: list[Tensor], given: set[int]) -> None:
    """Raise if a framework has merged tensors into flat buffers, and these are pieces of them: means would be wrong."""
    if any(getattr(parameter, "_is_flat_param", False) for parameter in stepped):
        raise RuntimeError(
            "this is a flat parameter of FSDP1, into which it merges tensors, and a distance is the mean over one "
            "tensor: shard the model with torch.distributed.fsdp.fully_shard (FSDP2) instead, or, where nothing is "
            "sharded (ShardingStrategy.NO_SHARD), use use_orig_params=True"
        )
    cut = [parameter for parameter in all_params if getattr(parameter, "_fsdp_flattened", False)]
    if cut and all(parameter.dim() < 2 for parameter in cut):  # what FSDP1 cuts is 1-D, and the rest has its shape
        raise RuntimeError(
            "FSDP1 shows this rank pieces of tensors (use_orig_params=True), and a distance is the mean over a whole "
            "tensor: shard the model with torch.distributed.fsdp.fully_shard (FSDP2), or use ShardingStrategy.NO_SHARD"
        )
    alone = len(stepped) == 1 and stepped[0].dim() == 1 and not is_sharded(stepped[0])
    if alone and "deepspeed" in sys.modules and id(stepped[0]) not in given:
        raise RuntimeError(
            "this looks like a flat partition of DeepSpeed's ZeRO, into which it merges tensors, and a distance is "
            "the mean over one tensor: use ZeRO stage 0, or torch.distributed.fsdp.fully_shard (FSDP2) instead"
        )


class _Meeting(NamedTuple):
    """Ranks that add up the sums of some parameters, in one message."""

    group: "ProcessGroup"
    positions: list[int]
    home: torch.device  # where the sums are
    device: str  # where the ranks exchange
    dtype: torch.dtype


class Exchange:
    """How the ranks make sums over parts of an optimizer's parameters into sums over whole tensors."""

    def __init__(self, params: list[Any]) -> None:
        self.params = params
        self.specs = [getattr(parameter, "_spec", None) for parameter in params]
        found: dict[Any, list[int]] = defaultdict(list)
        for position, parameter in enumerate(params):
            if is_sharded(parameter):
                for group in _groups(parameter):
                    found[group, parameter.device, parameter.device_mesh.device_type].append(position)
        self.meetings = []
        for (group, home, device), positions in found.items():
            dtype = torch.float32
            for position in positions:
                dtype = torch.promote_types(dtype, params[position].dtype.to_real())
            self.meetings.append(_Meeting(group, positions, home, device, dtype))

    def fits(self, params: list[Any]) -> bool:
        """Whether it was made for these parameters, sharded as they are."""
        specs = [getattr(parameter, "_spec", None) for parameter in params]
        same = len(params) == len(self.params) and all(map(is_, params, self.params))
        return same and all(map(is_, specs, self.specs))

    def __call__(self, sums: dict[int, Tensor]) -> dict[int, Tensor]:
        """The sums of whole tensors, by the parameters' positions, from those of this rank's parts."""
        whole = dict(sums)
        for group, positions, home, device, dtype in self.meetings:
            nothing = torch.zeros((), dtype=dtype, device=home)
            message = torch.stack([whole.get(position, nothing).to(dtype) for position in positions])
            message = message if home.type == device else message.to(device)
            dist.all_reduce(message, group=group)
            for position, total in zip(positions, message.to(home).unbind(), strict=True):
                if position in whole:
                    whole[position] = total.to(sums[position].dtype)
        return whole


def _groups(parameter: Any) -> "list[ProcessGroup]":
    """The process groups over which, one after the other, a parameter's sum is to be added up."""
    mesh, sharding = parameter.device_mesh, enumerate(parameter.placements)
    if any(placement.is_partial() for placement in parameter.placements):
        raise RuntimeError(f"a parameter with placements {parameter.placements} has no values yet: redistribute it")
    dimensions = [number for number, placement in sharding if not placement.is_replicate() and mesh.size(number) > 1]
    ranks = 1
    for number in dimensions:
        ranks *= mesh.size(number)
    if len(dimensions) > 1 and ranks == dist.get_world_size():
        return [dist.group.WORLD]  # type: ignore[list-item]
    return [mesh.get_group(number) for number in dimensions]


@torch.no_grad()
def run(jobs: list[tuple[ModuleType, Job]], exchange: Exchange) -> list[list[Report]]:
    """Take one step with the parameters of all jobs."""
    live = [job if engine is fused or not job.params else unscaled(job) for engine, job in jobs]
    sums: dict[int, Tensor] = {}
    for (engine, _), job in zip(jobs, live, strict=True):
        if job is not None and job.params:
            sums |= zip(job.positions, engine.gauge(job), strict=True)
    whole = exchange(sums)
    reports = []
    for (engine, given), job in zip(jobs, live, strict=True):
        if job is None:
            reports.append([skipped(given)])
        else:
            reports.append(engine.finish(job, [whole[at] for at in job.positions]) if job.params else [])
    return reports
