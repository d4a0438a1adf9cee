"""The fused engine on CPUs: one call for all tensors of a block, in compiled loops over the same equations.

A small tensor belongs to one thread, which gauges and moves it while it is in the cache. Of a large one each thread has
a part, always the same, which it moves from the end for the same reason. Sums are those of the same pieces, and are
added up in the same order, however many threads there are.
"""

import ctypes
import os
from array import array
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from itertools import chain, pairwise
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from adaterm.engines import reference
from adaterm.engines.base import VERDICT, Block, Evidence
from adaterm.engines.cpu.orders import GAUGE, LINE, MOVE, PIECE, SUM_UP, WEIGH, WHOLE, Context, Item, Question
from adaterm.engines.fused import is_plain
from adaterm.engines.layout import Table
from adaterm.equations import Notes
from adaterm.rules import kind_of

_WORTH_THREADS = 1 << 18  # elements, of all tensors, from which other threads are worth waking
_SHARED = 1 << 16  # elements of a tensor from which threads share it: what each has of it then fits its own cache


@lru_cache
def is_available() -> bool:
    """Whether Numba is here and fits the NumPy that is here, which it often does not at first."""
    try:
        _loops()
    except ImportError:
        return False
    return True


def supports(parameter: Tensor) -> bool:
    """Whether the engine can step this parameter."""
    if not (parameter.is_cpu and is_plain(parameter) and is_available()):
        return False
    return parameter.dtype != torch.float16 or bool(_loops().has_half())


@lru_cache
def _loops() -> ModuleType:
    """The loops; Numba is imported when the first step needs it."""
    return import_module("adaterm.engines.cpu.loops")


@dataclass(frozen=True, eq=False)
class Team:
    """How to run a function in torch's own threads, which may still be awake from the backward pass.

    They are OpenMP's: its GNU entry point, and the addresses of functions that tell a thread how many there are and
    which it is, and that let others run while it waits.
    """

    run: Any
    num_threads: int
    thread_num: int
    give_way: int


@lru_cache
def find_team() -> Team | None:
    """The team of torch's threads, or None where there is none: the caller's thread then works alone."""
    names = ("GOMP_parallel", "omp_get_num_threads", "omp_get_thread_num", "sched_yield")
    try:
        run, *functions = (getattr(ctypes.CDLL(None), name) for name in names)
    except (AttributeError, OSError, TypeError):
        return None
    run.argtypes, run.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint), None
    return Team(run, *(ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions))


@lru_cache
def _gives_threads(team: Team, threads: int) -> bool:
    """Whether OpenMP gives as many threads as it is asked for, tried once: threads that wait for others need them."""
    seen = torch.zeros(threads, dtype=torch.int64)
    _loops().count_threads(team, threads, seen)
    return bool((seen == threads).all())


@lru_cache
def count_processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def count_threads() -> int:
    """As many as torch uses, but not more than there are processors for: threads that wait for each other must run."""
    threads, team = min(torch.get_num_threads(), count_processors()), find_team()
    return threads if threads > 1 and team and _gives_threads(team, threads) else 1


class CpuEngine:
    """Steps a block's tensors in compiled loops."""

    skips_on_device = False

    def __init__(self, block: Block) -> None:
        loops, count, dtype = _loops(), len(block.params), block.means[0].dtype
        kind = kind_of(block.rule)
        kind = kind._replace(window=min(1, kind.window))  # its length is not compiled
        self.block = block
        self._table = Table(block, PIECE)
        self._values = torch.frombuffer(self._table.values, dtype=torch.int64)
        dtypes = tuple(str(each[0].dtype).removeprefix("torch.") for each in (block.means, block.params, block.grads))
        rounds = block.options.stochastic_rounding and block.params[0].dtype == torch.bfloat16
        decay = (block.options.adds_decay, block.options.shrinks)
        self._stages = loops.compile_stages(kind, dtypes, decay, rounds)
        self._worker = loops.compile_worker()

        def buffer(*shape: int, of: torch.dtype = dtype) -> Tensor:
            return torch.zeros(shape, dtype=of, device="cpu")

        self.statistics = buffer(3, count)
        self._sums = buffer(kind.sum_count, count, of=torch.float64)
        self._parts = buffer(sum(self._table.chunks), kind.sum_count, of=torch.float64)
        self._counters = buffer(count * LINE // 8, of=torch.int64)
        self._rates = buffer(count, len(kind.rates._fields))
        self._grad_scale = torch.ones(1, dtype=torch.float64, device="cpu")
        self._scaled = False
        self._verdict = buffer(VERDICT)
        self._judge = loops.compile_judge(kind, dtypes[0]) if kind.window else None
        self._large = sum(self._table.sizes) >= _WORTH_THREADS
        self._contexts: dict[tuple[str, int], tuple[int, Any]] = {}

    def step(self) -> None:
        """Let the threads work, this one among them."""
        self._update()
        self._work("step")

    def gauge(self) -> Tensor:
        """The sums of every tensor: a row for each sum of the rule."""
        self._update()
        self._work("gauge")
        return self._sums

    def judge(self, evidence: Evidence) -> Tensor:
        """The verdict on a batch."""
        sums, sizes, history, remember = evidence
        readable = history.is_cpu and history.is_contiguous() and len(history) == len(Notes._fields)
        if self._judge is None or not readable or {sizes.dtype, history.dtype} != {self._verdict.dtype}:
            return reference.judge(self.block, evidence)
        sums = sums.to(torch.float64)
        question = Question(
            table=self._values.data_ptr(),
            tensors=sums.shape[1],
            sums=sums.data_ptr(),
            sizes=sizes.data_ptr(),
            history=history.data_ptr(),
            window=history.shape[1],
            verdict=self._verdict.data_ptr(),
            remember=int(remember),
        )
        memory = array("q", question)
        self._judge.ctypes(memory.buffer_info()[0])
        return self._verdict

    def finish(self, sums: Tensor, verdict: Tensor | None) -> None:
        """Weigh and move, with the sums of whole tensors."""
        if sums is not self._sums:
            self._sums.copy_(sums)
        if verdict is not None and verdict is not self._verdict:
            self._verdict.copy_(verdict)
        self._work("finish")

    def _update(self) -> None:
        """Read what may be another in every step."""
        scale = self.block.scaling.grad_scale
        if scale is not None or self._scaled:
            self._grad_scale[0], self._scaled = 1.0 if scale is None else scale.item(), scale is not None
        self._table.update()

    def _work(self, stage: str) -> None:
        self._counters.zero_()
        threads = count_threads() if self._large else 1
        if (stage, threads) not in self._contexts:
            self._contexts[stage, threads] = self._make_context(stage, threads)
        context, _ = self._contexts[stage, threads]
        if threads == 1:
            self._worker.ctypes(context)
        else:
            team = find_team()
            assert team is not None
            team.run(self._worker.address, context, threads, 0)

    def _make_context(self, stage: str, threads: int) -> tuple[int, Any]:
        """The address of what the threads are given, and what must live for it."""
        items = torch.tensor(_list_items(self._table, stage, threads), device="cpu")
        team = find_team() if threads > 1 else None
        who = (team.num_threads, team.thread_num, team.give_way) if team else (0, 0, 0)
        given = Context(
            *who,
            gauge=self._stages.gauge,
            weigh=self._stages.weigh,
            move=self._stages.move,
            tensors=len(self._table.sizes),
            table=self._values.data_ptr(),
            item_count=len(items),
            items=items.data_ptr(),
            sum_count=len(self._sums),
            parts=self._parts.data_ptr(),
            counters=self._counters.data_ptr(),
            rates=self._rates.data_ptr(),
            statistics=self.statistics.data_ptr(),
            grad_scale=self._grad_scale.data_ptr(),
            sums=self._sums.data_ptr(),
            verdict=self._verdict.data_ptr(),
            window=self.block.rule.window,
        )
        context = torch.tensor(given, device="cpu")
        return context.data_ptr(), (context, items)


def _list_items(table: Table, stage: str, threads: int) -> list[Item]:
    """What to do; no item waits for a later one, so that any number of threads can do them."""
    small: list[list[Item]] = []  # of each tensor
    shared: list[list[Item]] = []
    loads = [0] * threads
    kinds = {"step": (GAUGE, MOVE), "gauge": (SUM_UP,), "finish": (WEIGH, MOVE)}[stage]
    for index in sorted(range(len(table.sizes)), key=lambda index: -table.sizes[index]):
        size, pieces = table.sizes[index], (sum(table.chunks[:index]), table.chunks[index])
        if size >= _SHARED and threads > 1:
            cuts = [min(size, PIECE * (pieces[1] * part // threads)) for part in range(threads + 1)]
            shared.append([])
            for kind in kinds:
                parts = enumerate([(0, size)] if kind == WEIGH else pairwise(cuts))
                shared[-1] += [Item(kind, index, *cut, *pieces, owner) for owner, cut in parts if cut[1] > cut[0]]
        else:
            owner = loads.index(min(loads))
            loads[owner] += size
            chosen = [WHOLE] if stage == "step" else [kind for kind in kinds if size or kind != MOVE]
            small.append([Item(kind, index, 0, size, *pieces, owner) for kind in chosen])
    tensors = small + shared
    if stage == "finish":
        tensors.reverse()  # what was gauged last is still in the cache
    return list(chain.from_iterable(tensors))
