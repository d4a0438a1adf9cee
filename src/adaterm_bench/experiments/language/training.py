"""Training of one network again and again, from other weights, with other optimizers: it is compiled only once.

On a GPU a whole step (batch, loss, gradients, what corrupts them, optimizer, records) is one CUDA graph.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import cos, pi
from typing import Any, NamedTuple

import torch
from torch import Tensor

from adaterm import RobustAdamW
from adaterm_bench.datasets.sources import Sources
from adaterm_bench.experiments.language.course import Condition, Course, draw_course, draw_windows
from adaterm_bench.models.transformer import BYTES, Sizes, make_transformer, measure_loss

Factory = Callable[[list[Tensor], Tensor], torch.optim.Optimizer]
"""Makes an optimizer from parameters and a learning rate, a tensor on their device that is filled before each step."""
_WARM_UPS = 3  # steps before a capture, as PyTorch asks for; they count


@dataclass(frozen=True)
class Settings:
    """Of every run."""

    sizes: Sizes = BYTES
    steps: int = 2000
    batch: int = 64
    lr: float = 3e-3
    warm_up: int = 200
    last: float = 0.1  # the learning rate at the end, in parts of the largest
    validation_batches: int = 64
    settled: int = 500  # steps after which levels are compared


class Verdicts(NamedTuple):
    """How an optimizer judged the batches of a run; None where there were none of a kind."""

    bad_excluded: float | None
    good_excluded: float | None
    bad_excluded_later: float | None
    good_excluded_later: float | None
    auroc_later: float | None


class Outcome(NamedTuple):
    """What a run comes to."""

    loss: float
    losses: list[float]  # of training, in twenty parts of the run
    verdicts: Verdicts | None
    captured: bool
    seconds: float


class CaptureError(Exception):
    """A step could not be captured; the run has to begin anew without."""


class Trainer:
    """One network on a device, its data, and the buffers of a run."""

    def __init__(self, settings: Settings, sources: Sources, device: str, compiled: bool) -> None:
        self.settings, self.device = settings, torch.device(device)
        self.sources = sources.to(self.device)
        self.network = make_transformer(settings.sizes, 0, self.device)
        self.params: list[Tensor] = list(self.network.parameters())
        self.bf16 = self.device.type == "cuda"
        self.measure: Callable[..., Tensor] = measure_loss
        if compiled:
            self.measure = torch.compile(measure_loss, fullgraph=True, dynamic=False)
        generator = torch.Generator().manual_seed(0)
        self.held_out = draw_windows(
            self.sources.validation, settings.validation_batches, settings.batch, settings.sizes.context, generator
        )
        self.rates = torch.tensor(list_rates(settings), device=self.device)
        self.lr = torch.zeros((), device=self.device)
        self.position = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.losses = torch.zeros(settings.steps, device=self.device)
        self.notes = torch.zeros(settings.steps, 3, device=self.device)  # level, z-score and trust
        # All steps run on one stream, warm-ups, capture and replays: autograd and the allocator have nothing to order.
        self.stream: torch.cuda.Stream | None = None
        if self.device.type == "cuda":
            self.stream = torch.cuda.Stream(self.lr.device)  # type: ignore[no-untyped-call]

    def count_parameters(self) -> int:
        """Of the network."""
        return sum(parameter.numel() for parameter in self.params)

    def draw(self, condition: Condition, seed: int) -> Course:
        """What all methods meet in this condition with this seed."""
        settings, sizes = self.settings, [parameter.numel() for parameter in self.params]
        shape = (settings.sizes.vocabulary, settings.steps, settings.batch, settings.sizes.context)
        return draw_course(self.sources.training, *shape, condition, seed, sizes)

    def prepare(self) -> None:
        """Let the compiler do its work: forwards and backwards once."""
        inputs, targets = self.held_out[0, :, :-1].contiguous(), self.held_out[0, :, 1:].contiguous()
        with self._on_stream():
            self.measure(self.network, inputs, targets, self.bf16).backward()  # type: ignore[no-untyped-call]
        self.network.zero_grad()

    def train(self, make_optimizer: Factory, course: Course, seed: int, captured: bool) -> Outcome:
        """Train from the weights of the seed, and measure the loss on held-out batches."""
        self._wait()
        begin = time.perf_counter()
        self.network.begin(seed)
        for buffer in (self.position, self.losses, self.notes):
            buffer.zero_()
        optimizer = make_optimizer(self.params, self.lr)
        with self._on_stream():
            if captured and self.stream is not None:
                self._repeat_graph(optimizer, course)
            else:
                for _ in range(self.settings.steps):
                    self._step(optimizer, course)
            loss = self.validate()
        self.network.zero_grad()  # the graph's memory is gone
        assert int(self.position) == self.settings.steps
        parts = self.losses.cpu().double().tensor_split(20)
        losses = [float(part.mean()) for part in parts if len(part)]
        verdicts = None
        if isinstance(optimizer, RobustAdamW):
            verdicts = judge_verdicts(self.notes.cpu(), course.bad, self.settings.settled)
        return Outcome(loss, losses, verdicts, captured, time.perf_counter() - begin)

    @torch.no_grad()
    def validate(self) -> float:
        """The mean loss on the held-out batches; not compiled, for which it is too short."""
        batches = [(window[:, :-1], window[:, 1:]) for window in self.held_out]
        return float(torch.stack([measure_loss(self.network, *batch, self.bf16) for batch in batches]).mean())

    def _repeat_graph(self, optimizer: torch.optim.Optimizer, course: Course) -> None:
        """Take a few steps as they are, capture the next one, and replay it to the end."""
        for _ in range(_WARM_UPS):
            self._step(optimizer, course)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=self.stream):
                self._step(optimizer, course)
        except Exception as error:
            self.network.zero_grad()
            raise CaptureError(f"{type(error).__name__}: {error}") from error
        for _ in range(self.settings.steps - _WARM_UPS):
            graph.replay()
        self._wait()  # before anything is let go of
        self.network.zero_grad()
        graph.reset()

    def _step(self, optimizer: torch.optim.Optimizer, course: Course) -> None:
        """One step, of which the host decides nothing; gradients are made anew, in a graph from the graph's memory."""
        optimizer.zero_grad(set_to_none=True)
        self.lr.copy_(self.rates.index_select(0, self.position)[0])
        inputs, targets = course.select_batch(self.position)
        loss = self.measure(self.network, inputs, targets, self.bf16)
        loss.backward()  # type: ignore[no-untyped-call]
        grads = [parameter.grad for parameter in self.params if parameter.grad is not None]
        course.corrupt_gradients(grads, self.position)
        optimizer.step()
        self.losses.index_copy_(0, self.position, loss.detach().reshape(1))
        if isinstance(optimizer, RobustAdamW):
            note = torch.stack(list(optimizer.batch_statistics())).to(self.notes)
            self.notes.index_copy_(0, self.position, note[None])
        self.position += 1

    def _on_stream(self) -> AbstractContextManager[Any]:
        if self.stream is None:
            return nullcontext()
        self._wait()
        return torch.cuda.stream(self.stream)

    def _wait(self) -> None:
        if self.stream is not None:
            torch.cuda.synchronize(self.device)


def list_rates(settings: Settings) -> list[float]:
    """The learning rate of every step: a straight line up, then a cosine down."""
    rates = []
    for step in range(settings.steps):
        along = max(0, step - settings.warm_up) / max(1, settings.steps - 1 - settings.warm_up)
        down = settings.last + (1.0 - settings.last) * 0.5 * (1.0 + cos(pi * along))
        rates.append(settings.lr * min((step + 1) / settings.warm_up, down))
    return rates


def judge_verdicts(notes: Tensor, bad: Tensor, settled: int) -> Verdicts:
    """Shares of bad and of good batches that were excluded, in the whole run and later, and how well levels told."""
    excluded, later = notes[:, 2] < 0.5, torch.arange(len(bad)) >= settled
    levels = notes[:, 0].double()
    levels = torch.where(levels.isfinite(), levels, torch.inf)  # an infinite gradient could not be more suspicious
    return Verdicts(
        _find_share(excluded[bad]),
        _find_share(excluded[~bad]),
        _find_share(excluded[bad & later]),
        _find_share(excluded[~bad & later]),
        measure_auroc(levels[bad & later], levels[~bad & later]),
    )


def measure_auroc(bad: Tensor, good: Tensor) -> float | None:
    """The probability that a bad batch has a higher level than a good one; a tie counts half."""
    if not len(bad) or not len(good):
        return None
    higher = (bad[:, None] > good).double() + 0.5 * (bad[:, None] == good).double()
    return float(higher.mean())


def _find_share(values: Tensor) -> float | None:
    return float(values.double().mean()) if len(values) else None
