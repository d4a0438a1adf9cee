"""Training with an arm, alike for all of them and for every task; on a GPU steps are replayed as CUDA graphs.

Of a captured arm a whole step is one graph. Of another one forwards and backwards are, and its optimizer steps after.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import cos, pi
from typing import Any, NamedTuple

import torch
from torch import Tensor

from adaterm_bench.arena.arm import Arm, NamedParameters, Recipe, inform, observe

WARM_UPS = 3
"""Steps before a capture, as PyTorch asks for; they count."""


class CaptureError(Exception):
    """A step could not be captured; the run has to begin again without."""

    @property
    def lasts(self) -> bool:
        """Whether the next run would fail alike; it may have the memory that this one had not."""
        return not isinstance(self.__cause__, torch.OutOfMemoryError)


class Course(NamedTuple):
    """What a run meets; a step is named by its position, a tensor of one element on the device."""

    measure: Callable[[Tensor], Tensor]
    """The loss of a step's batch."""
    bad: Tensor
    """Which steps are bad."""
    corrupt: Callable[[list[Tensor], Tensor], None] | None = None
    """Does to gradients, in place, what a step has in store for them."""


class Loop:
    """A run: an optimizer, where it stands, and what was recorded of its steps; all on the device."""

    def __init__(
        self,
        arm: Arm,
        params: NamedParameters,
        recipe: Recipe,
        lr: float,
        schedule: Sequence[float],
        course: Course,
        capture: bool = True,
    ) -> None:
        """`schedule` has the learning rate of every step in parts of `lr`; it is for arms that follow one."""
        self.arm, self.course = arm, course
        self.params = [parameter for _, parameter in params]
        device = self.device = self.params[0].device
        self.rates = [lr * part for part in schedule] if arm.scheduled else [lr] * len(schedule)
        self.table, self.bad = torch.tensor(self.rates, device=device), course.bad.to(device)
        self.lr = torch.tensor(lr, device=device)
        self.optimizer: Any = arm.make(params, self.lr if arm.captured else lr, recipe)
        self.position = torch.zeros(1, dtype=torch.int64, device=device)
        self.loss, self.is_bad = torch.zeros((), device=device), torch.zeros((), dtype=torch.bool, device=device)
        self.losses = torch.full((len(self.rates),), torch.nan, device=device)
        self.notes = torch.full((len(self.rates), 2), torch.nan, device=device)  # signal and trust
        self.grads: list[Tensor | None] = []
        self.done, self.timed, self.seconds = 0, 0, 0.0
        self.graph: torch.cuda.CUDAGraph | None = None
        # All steps run on one stream, warm-ups, capture and replays: autograd and the allocator have nothing to order.
        self.stream: torch.cuda.Stream | None = None
        if capture and device.type == "cuda":
            torch.cuda.set_device(device)  # graphs are those of the current device
            self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._set_mode("train")

    @property
    def is_captured(self) -> bool:
        """Whether whole steps are replayed."""
        return self.arm.captured and self.stream is not None

    @property
    def observes(self) -> bool:
        """Whether the optimizer says what it makes of batches."""
        return hasattr(self.optimizer, "observe")

    @property
    def step_seconds(self) -> float | None:
        """The mean time of a step; those before a capture, and the capture, do not count."""
        return self.seconds / self.timed if self.timed else None

    def advance(self, steps: int) -> None:
        """Take so many steps."""
        with self._on_stream():
            early = min(steps, max(0, WARM_UPS - self.done))
            for _ in range(early):
                self._step()
            if self.stream is not None and self.graph is None and steps > early:
                self._capture()
            self._wait()
            begin = time.perf_counter()
            for _ in range(steps - early):
                self._step()
            self._wait()
            self.seconds += time.perf_counter() - begin
            self.timed += steps - early

    @contextmanager
    def evaluate(self) -> Iterator[None]:
        """In this context weights are those to be used, which for some methods are not those that gradients are of."""
        with self._on_stream():
            self._set_mode("eval")
            yield
            self._set_mode("train")
            self._wait()

    def close(self) -> None:
        """Let go of gradients and of the graph, whose memory they are in; weights and records stay."""
        self._wait()
        self._drop_gradients()
        if self.graph is not None:
            self.graph.reset()

    def _step(self) -> None:
        if not self.arm.captured:
            for group in self.optimizer.param_groups:
                group["lr"] = self.rates[self.done]
        if self.graph is not None:
            self.graph.replay()
        else:
            self._differentiate()
        if self.graph is None or not self.arm.captured:
            self._move()
        self.done += 1

    def _differentiate(self) -> None:
        """New gradients of a batch, in a graph from the graph's memory."""
        self._drop_gradients()
        loss = self.course.measure(self.position)
        loss.backward()  # type: ignore[no-untyped-call]
        self.grads = [parameter.grad for parameter in self.params]
        if self.course.corrupt is not None:
            self.course.corrupt([gradient for gradient in self.grads if gradient is not None], self.position)
        self.loss.copy_(loss.detach())
        self.is_bad.copy_(self.bad.index_select(0, self.position)[0])

    def _move(self) -> None:
        """The optimizer's step, and records of it; for a captured arm, the host decides nothing."""
        for parameter, gradient in zip(self.params, self.grads, strict=True):
            parameter.grad = gradient  # an optimizer may have put another in its place
        if self.arm.captured:
            self.lr.copy_(self.table.index_select(0, self.position)[0])
        inform(self.optimizer, self.loss, self.is_bad)
        self.optimizer.step()
        self.losses.index_copy_(0, self.position, self.loss.reshape(1))
        observed = observe(self.optimizer)
        if observed is not None:
            note = torch.stack([value.detach().reshape(()).to(self.notes) for value in observed])
            self.notes.index_copy_(0, self.position, note[None])
        self.position += 1

    def _capture(self) -> None:
        """Record what is to be replayed; nothing of it is done yet."""
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=self.stream):
                self._differentiate()
                if self.arm.captured:
                    self._move()
        except Exception as error:
            self._drop_gradients()
            raise CaptureError(f"{type(error).__name__}: {error}") from error
        self.graph = graph

    def _drop_gradients(self) -> None:
        self.grads = []
        for parameter in self.params:
            parameter.grad = None

    def _set_mode(self, mode: str) -> None:
        if hasattr(self.optimizer, mode):
            getattr(self.optimizer, mode)()

    def _on_stream(self) -> AbstractContextManager[Any]:
        if self.stream is None:
            return nullcontext()
        self._wait()
        return torch.cuda.stream(self.stream)

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def run_captured(method: str, uncaptured: set[str], train: Callable[[bool], dict[str, Any]]) -> dict[str, Any]:
    """What `train` gives with steps captured, or, where that fails, without; `uncaptured` remembers the method."""
    if method not in uncaptured:
        try:
            return train(True)
        except CaptureError as error:
            print(f"{method} is not captured: {str(error)[:500]}", file=sys.stderr, flush=True)
            if error.lasts:
                uncaptured.add(method)
    return train(False)


def compile_loss(measure: Callable[..., Tensor], *example: Any) -> Callable[..., Tensor]:
    """A compiled loss, tried forwards and backwards; the loss as it is, if that fails: slower, but the same."""
    try:
        compiled: Callable[..., Tensor] = torch.compile(measure, fullgraph=True, dynamic=False)
        torch.autograd.backward(compiled(*example))
    except Exception as error:
        print(f"not compiled: {type(error).__name__}: {str(error)[:500]}", file=sys.stderr, flush=True)
        return measure
    return compiled


def list_schedule(steps: int, warm_up: int, last: float) -> list[float]:
    """The learning rate of every step in parts of the largest: a straight line up, then a cosine down to the last."""
    parts = []
    for step in range(steps):
        along = max(0, step - warm_up) / max(1, steps - 1 - warm_up)
        down = last + (1.0 - last) * 0.5 * (1.0 + cos(pi * along))
        parts.append(min((step + 1) / max(1, warm_up), down))
    return parts
