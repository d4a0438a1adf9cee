"""The fused engine on GPUs: two launches for all tensors of a device and precision, and no scratch to speak of.

A program works on one chunk of one tensor. The first launch gauges: each program leaves its chunk's part of the
distance, and the one that finishes a tensor last adds the parts up, always in the same order, and weighs. The second
launch moves. What the kernels must know of the tensors lies in a table, which is copied to the device when it changes.
Where ranks share tensors, the first launch leaves the sums, and a third one, after they were exchanged, weighs.
"""

import os
from contextlib import nullcontext
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from shutil import which
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from adaterm.engines.job import Job
from adaterm.engines.table import Table
from adaterm.rules import Rule, TRule

# Triton builds its launchers with a C compiler, when it first needs them.
available = find_spec("triton") is not None and any(map(which, (os.environ.get("CC", "cc"), "gcc", "clang")))
interpreted = os.environ.get("TRITON_INTERPRET") == "1"
_PRECISIONS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_WARPS = 16


def supports(parameter: Tensor) -> bool:
    """Whether the engine can step this parameter: on a GPU, or anywhere in Triton's interpreter."""
    plain = type(parameter) in (Tensor, Parameter) and parameter.dtype in _PRECISIONS
    return available and plain and (parameter.is_cuda or interpreted)


@lru_cache
def _kernels() -> ModuleType:
    """The kernels; Triton is imported when the first step needs it."""
    return import_module("adaterm.engines.kernels")


class Bucket:
    """Parameters that are stepped together, and the buffers for that; a captured graph may refer to all of them."""

    def __init__(self, job: Job) -> None:
        kernels, mean, count = _kernels(), job.means[0], len(job.params)
        self.device, dtype = mean.device, mean.dtype
        self.known = Table(job, kernels.CHUNK.value)
        chunks = torch.tensor(self.known.chunks, device="cpu")
        owners = torch.repeat_interleave(torch.arange(count, dtype=torch.int32, device="cpu"), chunks)
        self.host_owners = owners.pin_memory() if mean.is_cuda else owners  # so that nothing waits for the copy
        self.owners = self.host_owners.to(self.device, non_blocking=True)  # the tensor of each chunk
        self.table = torch.empty(len(self.known.values), dtype=torch.int64, device=self.device)
        self.coefficients = torch.empty(count, kernels.COEFFICIENTS.value, dtype=dtype, device=self.device)
        self.parts = torch.empty(len(owners), dtype=dtype, device=self.device)
        self.counters = torch.zeros(count, dtype=torch.int32, device=self.device)
        self.statistics = torch.empty(3, count, dtype=dtype, device=self.device)
        self.totals = torch.zeros(count, dtype=dtype, device=self.device)  # of this rank's parts
        self.whole = torch.zeros_like(self.totals)  # of all ranks'
        self.types = {
            "S": kernels.TYPES[dtype],
            "P": kernels.TYPES[job.params[0].dtype],
            "G": kernels.TYPES[job.grads[0].dtype],
        }
        self.rounds = job.params[0].dtype == torch.bfloat16
        # Hopper and later can start a kernel's programs before all of the last kernel's have ended.
        nvidia = self.device.type == "cuda" and torch.version.hip is None
        self.overlaps = nvidia and torch.cuda.get_device_capability(self.device) >= (9, 0)
        self.captured = False
        self.launches: dict[tuple[Any, ...], list[tuple[Any, Any]]] = {}

    def step(self, job: Job, grads: list[Tensor]) -> Tensor:
        """Launch the two kernels."""
        self._launch(job, grads, "gauge", "move")
        return self.statistics

    def gauge(self, job: Job, grads: list[Tensor]) -> Tensor:
        """The sums of which a distance is the mean."""
        self._launch(job, grads, "add_up")
        return self.totals

    def finish(self, job: Job, grads: list[Tensor], totals: list[Tensor]) -> Tensor:
        """Take the rest of a step, with the sums over whole tensors."""
        torch.stack(totals, out=self.whole)
        self._launch(job, grads, "weigh", "move")
        return self.statistics

    def _update(self, job: Job, grads: list[Tensor]) -> None:
        """Bring the device's table up to date."""
        changed = self.known.update(job, grads)
        capturing = self.table.is_cuda and torch.cuda.is_current_stream_capturing()
        if changed:
            if self.captured:  # a graph reads the old table at every replay
                self.table, self.captured = torch.empty_like(self.table), False
            host = torch.frombuffer(self.known.values, dtype=torch.int64)
            host = host.pin_memory() if self.table.is_cuda else host
            self.table.copy_(host, non_blocking=True)
            if capturing:
                job.kept.append(host)
        if capturing:
            self.captured = True
            job.kept += [self, self.table]
            self.known.forget()  # the copy is only recorded: the next step is to make its own

    def _launch(self, job: Job, grads: list[Tensor], *names: str) -> None:
        grads = self.known.arranged(grads)  # these may be copies, which must live until the launch
        self._update(job, grads)
        lr = job.options.lr if isinstance(job.options.lr, Tensor) and not job.options.lr.is_cpu else None
        given = [
            None if it is None else it.to(self.device, non_blocking=True) for it in (lr, job.grad_scale, job.found_inf)
        ]
        foreign = self.device.type == "cuda" and self.device.index != torch.cuda.current_device()
        with torch.cuda.device(self.device) if foreign else nullcontext():
            self._launch_with(job, given, names)

    def _launch_with(self, job: Job, given: list[Tensor | None], names: tuple[str, ...]) -> None:
        options = job.options
        decays, decoupled = bool(options.weight_decay), options.decoupled_weight_decay
        variant = (
            self.known.aligned,
            decays and not decoupled,
            *(it is not None for it in given),
            decays and decoupled,
            self.rounds and options.stochastic_rounding,
        )
        key = (names, variant, *(it if it is None else it.dtype for it in given))
        lr, scale, found = (self.coefficients if it is None else it for it in given)
        count = self.coefficients.shape[0]
        table, seen = (self.table, self.coefficients), self.statistics
        arguments = {
            "gauge": (self.owners, *table, self.parts, self.counters, seen, self.totals, count, lr, scale, found),
            "weigh": (*table, seen, self.whole, count, lr, found),
            "move": (self.owners, *table, lr, scale, found),
        }
        arguments["add_up"] = arguments["gauge"]
        if key in self.launches:
            for name, (launch, flags) in zip(names, self.launches[key], strict=True):
                launch(*(it if isinstance(it, int) else it.data_ptr() for it in arguments[name]), *flags)
            return
        compiled = [self._compiled(job, name, variant, arguments[name]) for name in names]
        if not interpreted:
            self.launches[key] = compiled

    def _compiled(self, job: Job, name: str, variant: tuple[bool, ...], arguments: tuple[Any, ...]) -> tuple[Any, Any]:
        """Launch a kernel as Triton does, and keep what it compiled: its own way there costs more than all the rest."""
        kernels = _kernels()
        kernel = getattr(kernels, "gauge" if name == "add_up" else name)
        names = ("ALIGNED", "L2", "LR_TENSOR", "SCALED", "FOUND", "DECOUPLED", "STOCHASTIC")
        flags = {**self.types, **dict(zip(names, variant, strict=True)), **_flags(job.rule), "OVERLAP": self.overlaps}
        flags["SHARED"] = name == "add_up"
        own = {it: flags[it] for it in kernel.arg_names if it in flags}
        grid = (len(self.owners) if name != "weigh" else self.coefficients.shape[0], 1, 1)
        overlap = {"launch_pdl": self.overlaps} if name == "move" else {}
        warps = 1 if name == "weigh" else _WARPS
        compiled = kernel[grid](*arguments, **own, num_warps=warps, **overlap)
        return (None if interpreted else compiled[grid]), tuple(own.values())


def _flags(rule: Rule) -> dict[str, bool]:
    """The rule as the kernels know it."""
    names: tuple[str, ...] = ("ROBUST", "ADAPTIVE", "ANALYTIC", "ADABIAS")
    own: tuple[str, ...] = ("ROBUST", "ANALYTIC", "UNCENTERED")
    if isinstance(rule, TRule):
        names, own = ("ROBUST", "ADAPTIVE", "KEEP"), ("BELIEF",)
    unused = dict.fromkeys(("ADAPTIVE", "ANALYTIC", "ADABIAS", "KEEP", "UNCENTERED", "BELIEF"), False)
    told = dict(zip(names, rule.weigh_flags, strict=True)) | dict(zip(own, rule.move_flags, strict=True))
    return {"ADATERM": not isinstance(rule, TRule)} | unused | told
