"""The fused engine on CPUs: one call for all tensors of a precision, in compiled loops over the same equations.

A thread gauges and moves a small tensor while it is in the cache. A large one is cut into pieces, which all threads
gauge, and then move in the opposite order, for the same reason. Parts of a distance are those of the same pieces, and
are added up in the same order, however many threads there are.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from math import nan
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from adaterm.engines.job import Job
from adaterm.engines.table import PARAMETER, Table
from adaterm.rounding import rounded
from adaterm.rules import TRule

available = find_spec("numba") is not None
_PRECISIONS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_WORTH_THREADS = 1 << 18  # elements, of all tensors, from which other threads are worth waking
_SHARED = 1 << 18  # elements of a tensor from which threads share it


def supports(parameter: Tensor) -> bool:
    """Whether the engine can step this parameter."""
    return available and parameter.is_cpu and parameter.dtype in _PRECISIONS


@lru_cache
def _loops() -> ModuleType:
    """The loops; Numba is imported when the first step needs it."""
    return import_module("adaterm.engines.loops")


@lru_cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="adaterm")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # a child has none of its parent's threads


class Bucket:
    """Parameters that are stepped together, and the buffers for that."""

    def __init__(self, job: Job) -> None:
        loops, count = _loops(), len(job.params)
        self.params, self.steps, self.positions = job.params, job.steps, job.positions
        self.dtype, stored = job.means[0].dtype, job.params[0].dtype
        self.exact = stored == job.grads[0].dtype == self.dtype
        self.rounds = stored == torch.bfloat16 and job.options.stochastic_rounding
        self.known = Table(job, loops.PIECE)
        self.table = torch.frombuffer(self.known.values, dtype=torch.int64).numpy()
        self.items: dict[int, Any] = {}
        self.work = loops.worker(*_flags(job))
        self.statistics = torch.empty(3, count, dtype=self.dtype)
        self.counters = torch.zeros(1 + count, dtype=torch.int64).numpy()
        parts = torch.empty(sum(self.known.chunks), dtype=torch.float64)
        coefficients = torch.zeros(count, loops.COEFFICIENTS, dtype=self.dtype)
        others = (parts, coefficients, self.statistics, torch.zeros(1, dtype=self.dtype))
        self.shared = (self.counters, *(tensor.numpy() for tensor in others))
        self.numbers = self.table.view("float64")
        self.large = sum(self.known.sizes) >= _WORTH_THREADS

    def step(self, job: Job, grads: list[Tensor]) -> Tensor:
        """Let the threads work, this one among them."""
        if job.found_inf is not None and job.found_inf.item():
            return self.statistics.fill_(nan)
        scale = 1.0 if job.grad_scale is None else job.grad_scale.item()
        if not self.exact:  # the loops know the state's precision only
            grads = [grad.to(self.dtype) for grad in grads]
            values = [parameter.to(self.dtype) for parameter in self.params]
            self.known.place(PARAMETER, values)
        grads = self.known.arranged(grads)
        self.known.update(job, grads)
        threads = torch.get_num_threads() if self.large else 1
        if threads not in self.items:
            self.items[threads] = _items(self.known, threads)
        self.counters.fill(0)
        args: tuple[Any, ...] = (self.table, self.numbers, scale, self.items[threads], *self.shared)
        helpers = [_pool(threads - 1).submit(self.work, *args) for _ in range(threads - 1)]
        self.work(*args)
        for helper in helpers:
            if not helper.cancel():
                helper.result()
        if not self.exact:
            self._store(values)
        return self.statistics

    def _store(self, values: list[Tensor]) -> None:
        for parameter, value, step, position in zip(self.params, values, self.steps, self.positions, strict=True):
            parameter.copy_(rounded(value, step.long(), position) if self.rounds else value)


def _flags(job: Job) -> tuple[bool, ...]:
    """The rule as the loops know it."""
    rule, options = job.rule, job.options
    decays, decoupled = bool(options.weight_decay), options.decoupled_weight_decay
    decay = (decays and not decoupled, decays and decoupled)
    if isinstance(rule, TRule):
        robust, adaptive, keep = rule.weigh_flags
        return (False, robust, adaptive, False, False, keep, False, rule.belief, *decay)
    return (True, *rule.weigh_flags, True, rule.uncentered, False, *decay)


def _items(known: Table, threads: int) -> Any:
    """What to do, in order: kind, tensor, first and last element, first piece and number of pieces."""
    loops = _loops()
    whole, shared = [], []
    for index in sorted(range(len(known.sizes)), key=lambda it: -known.sizes[it]):
        size, pieces = known.sizes[index], (sum(known.chunks[:index]), known.chunks[index])
        if size <= _SHARED or threads == 1:
            whole.append((loops.WHOLE, index, 0, size, *pieces))
            continue
        cuts = [(begin, min(size, begin + loops.PIECE)) for begin in range(0, size, loops.PIECE)]
        shared += [(loops.GAUGE, index, *cut, *pieces) for cut in cuts]
        shared += [(loops.MOVE, index, *cut, *pieces) for cut in reversed(cuts)]
    return torch.tensor([*shared, *whole]).numpy()
