"""What tensors and ranks tell each other between gauge and finish.

Elements of a tensor meet only in the sums that `gauge` leaves, so one small all-reduce for all tensors that share their
ranks makes the result that of a single process. It takes place over the mesh dimensions that shard a tensor, not over
those that replicate it. Every parameter of the optimizer has its place in the message, gradient or not: no rank waits
for a message of another length. With GradScaler a last place is for its `found_inf`: all ranks skip a step, or none.

A rule that judges whole batches does so then, from the sums of all tensors of all groups; ranks that have the same sums
come to the same verdict without another message.
"""

import sys
from collections import defaultdict
from math import inf
from operator import is_
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter

from adaterm.engines.base import Engine, Evidence, Scaling

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def is_sharded(tensor: Tensor) -> bool:
    """Whether this is a DTensor, of which the ranks of a device mesh hold parts or copies."""
    return type(tensor) not in (Tensor, Parameter) and hasattr(tensor, "device_mesh")


def get_local(tensor: Tensor) -> Tensor:
    """The part of a tensor on this rank; the tensor itself, unless it is sharded."""
    if not is_sharded(tensor):
        return tensor
    part: Any = tensor._local_tensor  # type: ignore[attr-defined]  # what `to_local` gives without autograd, faster
    return part.wait() if hasattr(part, "wait") else part  # type: ignore[no-any-return]


def get_local_gradient(parameter: Any) -> Tensor:
    """The part of a parameter's gradient on this rank: the same elements as of the parameter."""
    gradient = parameter.grad
    if is_sharded(parameter) and gradient.placements != parameter.placements:
        gradient = gradient.redistribute(parameter.device_mesh, parameter.placements)
    return get_local(gradient)


def number_part(parameter: Any) -> int:
    """Which part of a parameter this rank has; ranks with the same part have the same number."""
    if not is_sharded(parameter):
        return 0
    mesh, number = parameter.device_mesh, 0
    for dimension, placement in enumerate(parameter.placements):
        if not placement.is_replicate():
            number = number * mesh.size(dimension) + mesh.get_coordinate()[dimension]
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


class Sums(NamedTuple):
    """Sums of some parameters' elements: a column for each parameter, whose positions in the optimizer are known."""

    positions: list[int]
    values: Tensor


class _Meeting(NamedTuple):
    """Ranks that add up the sums of some parameters, in one message."""

    group: "ProcessGroup"
    positions: list[int]
    home: torch.device  # where the sums are
    device: str  # where the ranks exchange
    dtype: torch.dtype


class Agreement:
    """How the ranks make sums over parts of an optimizer's parameters into sums over whole tensors."""

    def __init__(self, params: list[Any]) -> None:
        self._params = params
        self._specs = [getattr(parameter, "_spec", None) for parameter in params]
        members: dict[Any, list[int]] = defaultdict(list)
        for position, parameter in enumerate(params):
            if is_sharded(parameter):
                for group in _find_groups(parameter):
                    members[group, parameter.device, parameter.device_mesh.device_type].append(position)
        self._common: dict[tuple[int, ...], tuple[Any, Any]] = {}
        self._meetings = []
        for (group, home, device), positions in members.items():
            wide = any(params[position].dtype in (torch.float64, torch.complex128) for position in positions)
            dtype = torch.float64 if wide else torch.float32
            self._meetings.append(_Meeting(group, positions, home, device, dtype))

    def fits(self, params: list[Any]) -> bool:
        """Whether it was made for these parameters, sharded as they are."""
        specs = [getattr(parameter, "_spec", None) for parameter in params]
        same = len(params) == len(self._params) and all(map(is_, params, self._params))
        return same and all(map(is_, specs, self._specs))

    def reach(
        self, parts: list[Sums], rows: int, found_inf: Tensor | None = None
    ) -> tuple[list[Tensor], Tensor | None]:
        """Sums over whole tensors from those over this rank's parts, and what all ranks together have found."""
        values = [part.values for part in parts]
        for number, meeting in enumerate(self._meetings):
            length = len(meeting.positions) + (found_inf is not None)
            message = torch.zeros(rows, length, dtype=meeting.dtype, device=meeting.home)
            taking_part = [self._find_common(part.positions, number) for part in parts]
            for sums, (columns, slots) in zip(values, taking_part, strict=True):
                if columns:
                    message[: len(sums), slots] = sums[:, columns].to(meeting.dtype)
            if found_inf is not None:
                message[0, -1] = found_inf.reshape(()).to(meeting.home)
            message = message if meeting.home.type == meeting.device else message.to(meeting.device)
            dist.all_reduce(message, group=meeting.group)
            message = message.to(meeting.home)
            for index, (columns, slots) in enumerate(taking_part):
                if columns:
                    whole = values[index].clone()
                    whole[:, columns] = message[: len(whole), slots].to(whole.dtype)
                    values[index] = whole
            found_inf = None if found_inf is None else message[0, -1]
        return values, found_inf

    def _find_common(self, positions: list[int], number: int) -> tuple[Any, Any]:
        """The columns of sums, and the slots of a meeting's message, that have the same parameters."""
        key = (number, *positions)
        if key in self._common and not torch.compiler.is_compiling():
            return self._common[key]
        places = {position: place for place, position in enumerate(self._meetings[number].positions)}
        columns = [column for column, position in enumerate(positions) if position in places]
        slots = [places[positions[column]] for column in columns]
        common = _as_slice(columns), _as_slice(slots)
        if not torch.compiler.is_compiling():
            self._common[key] = common
        return common


class Judgement:
    """How the tensors of all groups together judge a batch."""

    def __init__(self, engines: list[list[Engine]], history: Tensor) -> None:
        """The engines are those of each group's step; the history is that of one optimizer."""
        self.engines = engines
        self.history = history
        blocks = [engine.block for engines_of_group in engines for engine in engines_of_group]
        wide = any(block.means[0].dtype == torch.float64 for block in blocks)
        self._dtype = torch.float64 if wide else torch.float32
        sizes = [size for block in blocks for size in block.sizes]
        self._sizes = torch.tensor(sizes, dtype=self._dtype, device="cpu").to(history.device, non_blocking=True)
        self._sums = torch.empty(blocks[0].rule.sum_count, len(sizes), dtype=self._dtype, device=history.device)

    def reach(self, sums: list[Tensor], scaling: Scaling) -> list[Tensor]:
        """The verdict of each group, from the sums of all blocks; groups with the same options share one."""
        eager = not torch.compiler.is_compiling()
        if eager and self.history.is_cuda and torch.cuda.is_current_stream_capturing():
            self.engines[0][0].block.captured.append(self)  # a graph writes into its tensors at every replay
        if len(sums) > 1 or sums[0].device != self.history.device:
            together = [values.to(self.history.device, self._dtype) for values in sums]
            reuses = eager and not any(values.requires_grad for values in together)
            sums = [torch.cat(together, dim=1, out=self._sums) if reuses else torch.cat(together, dim=1)]
        judges: dict[Any, Engine] = {}
        keys = []
        for engine, *_ in self.engines:
            keys.append((engine.block.rule.numbers, engine.block.rule.flags))
            judges.setdefault(keys[-1], engine)
        # What is far is noted by the least threshold, whatever the order of the groups, and after all have judged.
        thresholds = [getattr(numbers, "threshold", inf) for numbers, _ in judges]
        noting = list(judges)[thresholds.index(min(thresholds))]
        verdicts = {}
        for key in [*(key for key in judges if key != noting), noting]:
            judges[key].block.scaling = scaling
            verdicts[key] = judges[key].judge(Evidence(sums[0], self._sizes, self.history, key == noting))
        return [verdicts[key] for key in keys]


def _as_slice(numbers: list[int]) -> Any:
    """A slice instead of numbers that follow each other: it costs no copy of indices."""
    run = bool(numbers) and numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    return slice(numbers[0], numbers[-1] + 1) if run else numbers


def _find_groups(parameter: Any) -> "list[ProcessGroup]":
    """The process groups over which, one after the other, a parameter's sums are to be added up."""
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
