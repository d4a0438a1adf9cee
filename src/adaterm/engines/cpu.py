"""The fused engine on CPUs: one call for all tensors of a precision, in compiled loops over the same equations.

A small tensor belongs to one thread, which gauges and moves it while it is in the cache. Of a large one each thread has
a part, always the same, which it moves from the end for the same reason. Parts of a distance are those of the same
pieces, and are added up in the same order, however many threads there are.
"""

import ctypes
import os
from functools import lru_cache
from importlib import import_module
from itertools import pairwise
from math import nan
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from adaterm.engines.job import Job
from adaterm.engines.table import Table
from adaterm.rules import TRule

_PRECISIONS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_WORTH_THREADS = 1 << 18  # elements, of all tensors, from which other threads are worth waking
_SHARED = 1 << 18  # elements of a tensor from which threads share it


@lru_cache
def available() -> bool:
    """Whether Numba is here and fits the NumPy that is here, which it often does not at first."""
    try:
        _loops()
    except ImportError:
        return False
    return True


def supports(parameter: Tensor) -> bool:
    """Whether the engine can step this parameter."""
    plain = type(parameter) in (Tensor, Parameter) and parameter.dtype in _PRECISIONS
    return parameter.is_cpu and plain and available() and (parameter.dtype != torch.float16 or _loops().has_half())


@lru_cache
def _loops() -> ModuleType:
    """The loops; Numba is imported when the first step needs it."""
    return import_module("adaterm.engines.loops")


@lru_cache
def _team() -> tuple[Any, int, int, int]:
    """How to run a function in torch's own threads, which may still be awake from the backward pass.

    They are OpenMP's: its GNU entry point, and the addresses of functions that tell a thread who it is, and let others
    run while it waits. Where there is no such entry point, the caller's thread works alone.
    """
    names = ("GOMP_parallel", "omp_get_num_threads", "omp_get_thread_num", "sched_yield")
    try:
        parallel, *who = (getattr(ctypes.CDLL(None), name) for name in names)
    except (AttributeError, OSError, TypeError):
        return None, 0, 0, 0
    parallel.argtypes, parallel.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint), None
    count, number, rest = (ctypes.cast(function, ctypes.c_void_p).value or 0 for function in who)
    return parallel, count, number, rest


def _threads() -> int:
    """As many as torch uses, but not more than there are processors for: threads that wait for each other must run."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(torch.get_num_threads(), allowed)


class Bucket:
    """Parameters that are stepped together, and the buffers for that."""

    def __init__(self, job: Job) -> None:
        loops, count = _loops(), len(job.params)
        types = [str(tensors[0].dtype).removeprefix("torch.") for tensors in (job.means, job.params, job.grads)]
        dtype = job.means[0].dtype
        self.known = Table(job, loops.PIECE)
        self.table = torch.frombuffer(self.known.values, dtype=torch.int64)
        self.contexts: dict[tuple[str, int], tuple[Tensor, Tensor]] = {}
        self.work = loops.worker(*types, *_flags(job))
        self.statistics = torch.empty(3, count, dtype=dtype, device="cpu")
        self.counters = torch.zeros(count * loops.LINE // 8, dtype=torch.int64, device="cpu")
        self.scale = torch.ones(1, dtype=torch.float64, device="cpu")
        self.parts = torch.empty(sum(self.known.chunks), dtype=torch.float64, device="cpu")
        self.coefficients = torch.zeros(count, loops.COEFFICIENTS, dtype=dtype, device="cpu")
        self.totals = torch.zeros(count, dtype=torch.float64, device="cpu")
        self.large = sum(self.known.sizes) >= _WORTH_THREADS

    def step(self, job: Job, grads: list[Tensor]) -> Tensor:
        """Let the threads work, this one among them."""
        return self._work(job, grads, "step", self.statistics)

    def gauge(self, job: Job, grads: list[Tensor]) -> Tensor:
        """The sums of which a distance is the mean."""
        return self._work(job, grads, "gauge", self.totals)

    def finish(self, job: Job, grads: list[Tensor], totals: list[Tensor]) -> Tensor:
        """Take the rest of a step, with the sums over whole tensors."""
        self.totals.copy_(torch.stack(totals))
        return self._work(job, grads, "finish", self.statistics)

    def _work(self, job: Job, grads: list[Tensor], what: str, result: Tensor) -> Tensor:
        if job.found_inf is not None and job.found_inf.item():
            return result.fill_(nan)
        self.scale.fill_(1.0 if job.grad_scale is None else job.grad_scale.item())
        grads = self.known.arranged(grads)
        self.known.update(job, grads)
        self.counters.zero_()
        parallel, *_ = _team()
        threads = _threads() if self.large and parallel else 1
        if (what, threads) not in self.contexts:
            self.contexts[what, threads] = self._context(what, threads)
        context, _ = self.contexts[what, threads]
        if threads == 1:
            self.work.ctypes(context.data_ptr())
        else:
            parallel(self.work.address, context.data_ptr(), threads, 0)
        return result

    def _context(self, what: str, threads: int) -> tuple[Tensor, Tensor]:
        """What the threads are told, in the order of the loops' context, and the items that it refers to."""
        items = torch.tensor(_items(self.known, what, threads), device="cpu")
        told = [*(_team()[1:] if threads > 1 else (0, 0, 0)), len(self.known.sizes), self.table.data_ptr()]
        told += [len(items), items.data_ptr(), len(self.parts), self.parts.data_ptr()]
        others = (self.counters, self.coefficients, self.statistics, self.scale, self.totals)
        return torch.tensor(told + [tensor.data_ptr() for tensor in others], device="cpu"), items


def _flags(job: Job) -> tuple[bool, ...]:
    """The rule as the loops know it."""
    rule, options = job.rule, job.options
    decays, decoupled = bool(options.weight_decay), options.decoupled_weight_decay
    rounds = options.stochastic_rounding and job.params[0].dtype == torch.bfloat16
    shared = (decays and not decoupled, decays and decoupled, rounds)
    if isinstance(rule, TRule):
        robust, adaptive, keep = rule.weigh_flags
        return (False, robust, adaptive, False, False, keep, False, rule.belief, *shared)
    return (True, *rule.weigh_flags, True, rule.uncentered, False, *shared)


def _items(known: Table, what: str, threads: int) -> list[tuple[int, ...]]:
    """What to do, in the columns of an item; none waits for a later one, so that any number of threads can do them."""
    loops = _loops()
    small, shared, loads = [], [], [0] * threads
    kinds = {"step": (loops.GAUGE, loops.MOVE), "gauge": (loops.ADD_UP,), "finish": (loops.WEIGH, loops.MOVE)}[what]
    for index in sorted(range(len(known.sizes)), key=lambda it: -known.sizes[it]):
        size, pieces = known.sizes[index], (sum(known.chunks[:index]), known.chunks[index])
        if size >= _SHARED and threads > 1:
            cuts = [min(size, loops.PIECE * (pieces[1] * part // threads)) for part in range(threads + 1)]
            for kind in kinds:
                parts = enumerate([(0, size)] if kind == loops.WEIGH else pairwise(cuts))
                shared += [(kind, index, *cut, *pieces, owner) for owner, cut in parts if cut[1] > cut[0]]
        else:
            owner = loads.index(min(loads))
            loads[owner] += size
            mine = [kind for kind in kinds if size or kind != loops.MOVE]
            mine = [loops.WHOLE] if what == "step" else mine
            small += [(kind, index, 0, size, *pieces, owner) for kind in mine]
    return [*small, *shared]
