"""The fused engine on GPUs: few launches for all tensors of a block, and no scratch to speak of.

A program works on one chunk of one tensor. The first launch gauges: each program leaves its chunk's part of the sums,
and the one that finishes a tensor last adds the parts up, always in the same order, and weighs. The second launch
moves. What the kernels must know of the tensors lies in a table, which is copied to the device when it changes. Where
sums have to be agreed, or the batch is judged, the first launch leaves them, and small ones in between judge and weigh.
"""

import os
import re
import sys
from contextlib import suppress
from functools import lru_cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from shutil import which
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from adaterm.engines import reference
from adaterm.engines.base import VERDICT, Block, Evidence
from adaterm.engines.fused import is_plain
from adaterm.engines.layout import Table

OLDEST_TRITON = (3, 6)


def _can_compile() -> bool:
    """Whether there is a Triton that the kernels are written for, and the C compiler with which it builds launchers."""
    if sys.platform != "linux" or find_spec("triton") is None:  # elsewhere it is not Triton's authors', and not tested
        return False
    versions = []
    for name in ("triton", "pytorch-triton", "pytorch-triton-rocm", "triton-rocm"):
        with suppress(PackageNotFoundError):
            versions.append(tuple(map(int, re.findall(r"\d+", version(name))[:2])))
    return max(versions, default=OLDEST_TRITON) >= OLDEST_TRITON and any(
        map(which, (os.environ.get("CC", "cc"), "gcc", "clang"))
    )


available = _can_compile()
interpreted = os.environ.get("TRITON_INTERPRET") == "1"
_LAUNCH_OPTIONS: dict[str, dict[str, Any]] = {
    "gauge": {"num_warps": 8, "maxnreg": 128},  # so that two programs fit a multiprocessor
    "weigh": {"num_warps": 1},
    "judge": {"num_warps": 4},
    "move": {"num_warps": 16},
}


def supports(parameter: Tensor) -> bool:
    """Whether the engine can step this parameter: on a GPU, or anywhere in Triton's interpreter."""
    return available and is_plain(parameter) and (parameter.is_cuda or interpreted)


@lru_cache
def _kernels() -> ModuleType:
    """The kernels; Triton is imported when the first step needs it."""
    return import_module("adaterm.engines.gpu.kernels")


class _OnDevice(NamedTuple):
    """Numbers that kernels read from the device, where there are any."""

    lr: Tensor | None = None
    grad_scale: Tensor | None = None
    found_inf: Tensor | None = None

    def list_types(self) -> list[torch.dtype | None]:
        """The precision of each, for which kernels are compiled."""
        return [None if tensor is None else tensor.dtype for tensor in self]


_NOTHING = _OnDevice()


class GpuEngine:
    """Steps a block's tensors in Triton's kernels; a captured graph may refer to all of its buffers."""

    skips_on_device = True

    def __init__(self, block: Block) -> None:
        kernels, mean, count = _kernels(), block.means[0], len(block.params)
        self.block = block
        self._device = mean.device
        self._case = case = kernels.describe_case(block)
        self._host_table = Table(block, kernels.CHUNK.value)
        chunks = torch.tensor(self._host_table.chunks, device="cpu")
        owners = torch.repeat_interleave(torch.arange(count, dtype=torch.int32, device="cpu"), chunks)
        self._host_owners = owners.pin_memory() if mean.is_cuda else owners  # so that nothing waits for the copy

        def buffer(*shape: int, of: torch.dtype = mean.dtype) -> Tensor:
            return torch.zeros(shape, dtype=of, device=mean.device)

        self._owners = self._host_owners.to(mean.device, non_blocking=True)  # the tensor of each chunk
        self._host_values = torch.frombuffer(self._host_table.values, dtype=torch.int64)
        self._table = buffer(len(self._host_table.values), of=torch.int64)
        self._rates = buffer(count, case.rate_count)
        self._parts = buffer(case.sum_count, len(owners))
        self._counters = buffer(count, of=torch.int32)
        self._sums = buffer(case.sum_count, count)  # of this rank's parts
        self._agreed = self._sums
        self._verdict = buffer(VERDICT)
        self._evidence: Evidence | None = None
        self.statistics = buffer(3, count)
        self._captured = False
        self._aligned = False
        self._compiled: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
        self._launches: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}  # launches whose arguments do not change

    def step(self) -> None:
        """Launch the two kernels."""
        self._update_table()
        self._launch("gauge", "move")

    def gauge(self) -> Tensor:
        """The sums of every tensor: a row for each sum of the rule."""
        self._update_table()
        self._launch("sum_up")
        return self._sums

    def judge(self, evidence: Evidence) -> Tensor:
        """The verdict on a batch."""
        if any(t.device != self._device or t.dtype != self._verdict.dtype for t in (evidence.sums, evidence.history)):
            return reference.judge(self.block, evidence)
        self._evidence = evidence
        self._launch("judge")
        self._evidence = None
        return self._verdict

    def finish(self, sums: Tensor, verdict: Tensor | None) -> None:
        """Weigh and move, with the sums of whole tensors."""
        if sums is not self._sums and self._agreed is self._sums:
            self._agreed = torch.empty_like(self._sums)
            self._launches.clear()
        if sums is not self._agreed:
            self._agreed.copy_(sums)
        if verdict is not None and verdict is not self._verdict:
            self._verdict.copy_(verdict)
        self._launch("weigh", "move")

    def _update_table(self) -> None:
        """Bring the device's table up to date."""
        changed = self._host_table.update()
        capturing = self._table.is_cuda and torch.cuda.is_current_stream_capturing()
        if changed:
            self._aligned = self._host_table.is_aligned()
            if self._captured:  # a graph reads the old table at every replay
                self._table, self._captured = torch.empty_like(self._table), False
                self._launches.clear()
            host = self._host_values.pin_memory() if self._table.is_cuda else self._host_values
            self._table.copy_(host, non_blocking=True)
            if capturing:
                self.block.captured.append(host)
        if capturing:
            self._captured = True
            self.block.captured += [self, self._table]
            self._host_table.forget()  # the copy is only recorded: the next step is to make its own

    def _launch(self, *names: str) -> None:
        given = self._find_numbers()
        if self._device.type == "cuda" and self._device.index != torch.cuda.current_device():
            with torch.cuda.device(self._device):
                self._launch_kernels(names, given)
        else:
            self._launch_kernels(names, given)

    def _find_numbers(self) -> _OnDevice:
        option, scaling = self.block.options.lr, self.block.scaling
        lr = option if isinstance(option, Tensor) and not option.is_cpu else None
        if lr is None and scaling.grad_scale is None and scaling.found_inf is None:
            return _NOTHING
        tensors = (lr, scaling.grad_scale, scaling.found_inf)
        return _OnDevice(*(None if t is None else t.to(self._device, non_blocking=True) for t in tensors))

    def _launch_kernels(self, names: tuple[str, ...], given: _OnDevice) -> None:
        """Launch what was compiled before with as little work as can be, or let Triton compile and launch."""
        key: tuple[Any, ...] = (names, self._aligned, *(() if given is _NOTHING else given.list_types()))
        if self._evidence is not None:
            key += (self._evidence.remember, self._evidence.sums.shape[1], *_find_addresses(self._evidence[:3]))
        prepared = self._launches.get(key) if given is _NOTHING else None
        if prepared is None:
            arguments = [self._list_arguments(name, given) for name in names]
            if key not in self._compiled:
                compiled = [self._compile(*pair, given) for pair in zip(names, arguments, strict=True)]
                if not interpreted:
                    self._compiled[key] = compiled
                return
            prepared = [
                (run, grid, (*handle, None, None, None, *_find_addresses(chosen), case))
                for (run, grid, handle, case), chosen in zip(self._compiled[key], arguments, strict=True)
            ]
            if given is _NOTHING:
                self._launches[key] = prepared
        stream = torch._C._cuda_getCurrentRawStream(self._device.index)
        for run, grid, values in prepared:
            run(*grid, stream, *values)

    def _list_arguments(self, name: str, given: _OnDevice) -> tuple[Any, ...]:
        lr, grad_scale, found_inf = (self._rates if tensor is None else tensor for tensor in given)
        table, count = (self._table, self._rates), self._rates.shape[0]
        if name == "weigh":
            return (*table, self.statistics, self._agreed, self._verdict, count, lr, found_inf)
        if name == "move":
            return (self._owners, *table, grad_scale, found_inf)
        if name == "judge":
            assert self._evidence is not None
            sums, sizes, history, _ = self._evidence
            return (self._table, sums, sizes, history, self._verdict, sums.shape[1], found_inf)
        buffers = (self._parts, self._counters, self.statistics, self._sums)
        return (self._owners, *table, *buffers, count, lr, grad_scale, found_inf)

    def _compile(self, name: str, arguments: tuple[Any, ...], given: _OnDevice) -> tuple[Any, ...]:
        """Launch a kernel as Triton does, and keep what it compiled: its own way there costs more than all the rest."""
        kernel = getattr(_kernels(), "gauge" if name == "sum_up" else name)
        case = self._case._replace(
            aligned=self._aligned,
            lr_tensor=given.lr is not None,
            scaled=given.grad_scale is not None,
            may_skip=given.found_inf is not None,
            leaves_sums=name == "sum_up",
            remembers=name == "judge" and self._evidence is not None and self._evidence.remember,
        )
        grid = ({"weigh": self._rates.shape[0], "judge": 1}.get(name, len(self._owners)), 1, 1)
        options = dict(_LAUNCH_OPTIONS["gauge" if name == "sum_up" else name])
        if torch.version.hip is not None:
            options.pop("maxnreg", None)
        if name in ("judge", "weigh", "move"):
            options["launch_pdl"] = case.overlap
        compiled = kernel[grid](*arguments, case, **options)
        if interpreted:
            return ()
        return compiled.run, grid, (compiled.function, compiled.packed_metadata), case


def _find_addresses(arguments: tuple[Any, ...]) -> list[int]:
    return [each if isinstance(each, int) else each.data_ptr() for each in arguments]
