"""Training of one network again and again, from other weights, with other optimizers: it is compiled only once."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite, nan
from typing import Any

import torch
from torch import Tensor

from adaterm_bench.arena.arm import Arm, Recipe
from adaterm_bench.arena.loop import Course as Steps
from adaterm_bench.arena.loop import Loop, compile_loss, list_schedule, run_captured
from adaterm_bench.arena.protocol import is_tuning
from adaterm_bench.arena.verdicts import judge_run
from adaterm_bench.core.experiment import Progress
from adaterm_bench.datasets import sources
from adaterm_bench.datasets.sources import Sources
from adaterm_bench.experiments.language.course import NOISES, Course, draw_course, draw_windows, rename_tokens
from adaterm_bench.models.transformer import BYTES, Sizes, make_transformer, measure_loss

BETAS, DECAY = (0.9, 0.95), 0.1
PARTS = 20  # of a run, after which its progress is told


@dataclass(frozen=True)
class Settings:
    """Of every run of a network."""

    sizes: Sizes = BYTES
    steps: int = 2000
    batch: int = 64
    warm_up: int = 200
    last: float = 0.1  # the learning rate at the end, in parts of the largest
    validation_batches: int = 64
    settled: int = 500  # steps after which signals are compared
    bf16: bool = True


class Trainer:
    """One network on a device, its data, and what the last run was given."""

    def __init__(self, settings: Settings, text: Sources, device: str) -> None:
        self.settings, self.device = settings, torch.device(device)
        if self.device.type == "cuda":
            torch.set_float32_matmul_precision("high")  # nothing but what autocast leaves, and the compiler asks for it
        self.text = text.to(self.device)
        self.network = make_transformer(settings.sizes, 0, self.device)
        shape = (settings.validation_batches, settings.batch, settings.sizes.context)
        self.held_out, self.held_out_for_tuning = (
            draw_windows(self.text.validation, *shape, torch.Generator().manual_seed(seed)) for seed in (0, 1)
        )
        self.schedule = list_schedule(settings.steps, settings.warm_up, settings.last)
        self.measure: Callable[..., Tensor] = measure_loss
        if self.device.type == "cuda":
            self._compile()
        self.drawn: tuple[tuple[str, int], Course] | None = None
        self.uncaptured: set[str] = set()

    def count_parameters(self) -> int:
        """Of the network."""
        return sum(parameter.numel() for parameter in self.network.parameters())

    def draw(self, noise: str, seed: int) -> Course:
        """What all methods meet under this noise with this seed."""
        if self.drawn is None or self.drawn[0] != (noise, seed):
            self.drawn = None  # so that its memory is free
            settings, elements = self.settings, [parameter.numel() for parameter in self.network.parameters()]
            shape = (settings.sizes.vocabulary, settings.steps, settings.batch, settings.sizes.context)
            course = draw_course(self.text.training, *shape, NOISES[noise], seed, elements)
            self.drawn = (noise, seed), course
        return self.drawn[1]

    def train(
        self, method: str, arm: Arm, noise: str, seed: int, lr: float, progress: Progress = lambda fraction: None
    ) -> dict[str, Any]:
        """The outcomes of a run; a method whose steps cannot be captured runs without, from then on."""
        return run_captured(
            method, self.uncaptured, lambda capture: self._train(arm, noise, seed, lr, progress, capture)
        )

    def _train(self, arm: Arm, noise: str, seed: int, lr: float, progress: Progress, capture: bool) -> dict[str, Any]:
        settings, course = self.settings, self.draw(noise, seed)
        self.network.begin(seed)

        def measure(position: Tensor) -> Tensor:
            loss = self.measure(self.network, *course.select_batch(position), settings.bf16)
            return course.weigh_loss(loss, position)

        steps = Steps(measure, course.bad, course.corrupt_gradients)
        recipe = Recipe(BETAS, DECAY, settings.warm_up, settings.steps)
        loop = Loop(arm, list(self.network.named_parameters()), recipe, lr, self.schedule, steps, capture)
        for part in range(PARTS):
            end = (part + 1) * settings.steps // PARTS
            loop.advance(end - loop.done)
            progress(end / settings.steps)
        held_out = self.held_out_for_tuning if is_tuning(seed) else self.held_out  # nothing is chosen by the latter
        with loop.evaluate():
            loss, second_loss = self.validate(held_out), None
            if course.second is not None:
                second_loss = self.validate(rename_tokens(held_out, settings.sizes.vocabulary))
        loop.close()
        return {
            "loss": loss,
            "second_loss": second_loss,
            **judge(loop.losses, loop.notes if loop.observes else None, course, settings.settled),
            "step_seconds": loop.step_seconds,
            "captured": loop.is_captured,
            "parameters": self.count_parameters(),
            "data": self.text.fingerprint,
        }

    @torch.no_grad()
    def validate(self, windows: Tensor) -> float:
        """The mean loss on batches, NaN if it is lost; not compiled, for which it is too short."""
        batches = [(window[:, :-1], window[:, 1:]) for window in windows]
        losses = [measure_loss(self.network, *batch, self.settings.bf16) for batch in batches]
        loss = float(torch.stack(losses).mean())
        return loss if isfinite(loss) else nan

    def _compile(self) -> None:
        """Let the compiler do its work."""
        inputs, targets = self.held_out[0, :, :-1].contiguous(), self.held_out[0, :, 1:].contiguous()
        self.measure = compile_loss(measure_loss, self.network, inputs, targets, self.settings.bf16)
        self.network.zero_grad()


@lru_cache(maxsize=1)
def find_trainer(settings: Settings, limit: int | None, device: str) -> Trainer:
    """The trainer of these settings: the last one again, if it is the same."""
    is_bytes = settings.sizes.vocabulary == sources.VOCABULARY
    text = sources.load(limit=limit) if is_bytes else sources.load_words(settings.sizes.vocabulary, limit=limit)
    return Trainer(settings, text, device)


def judge(losses: Tensor, notes: Tensor | None, course: Course, settled: int) -> dict[str, Any]:
    """What records of steps say of a run; in a trap, shares of bad batches are those of the second task.

    There no batch is bad: nothing is to be told from anything, and nothing to recover from.
    """
    if course.second is None or course.weights is None:
        return judge_run(losses, notes, course.bad, settled)
    judgement = judge_run(losses / course.weights, notes, course.second, settled)
    return judgement | {"auroc": None, "auroc_loss": None, "steps_lost": None}
