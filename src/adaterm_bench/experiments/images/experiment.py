"""Classification of CIFAR-100 with the arena's arms, on clean data and with bad batches."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import nan
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional

from adaterm_bench.arena.arm import NamedParameters, Recipe
from adaterm_bench.arena.arms import find_arm, find_unavailable, is_variant, list_available
from adaterm_bench.arena.equations import mark_equations
from adaterm_bench.arena.loop import Course, Loop, compile_loss, list_schedule, run_captured
from adaterm_bench.arena.protocol import RATES
from adaterm_bench.arena.selection import keep_chosen
from adaterm_bench.arena.verdicts import judge_run
from adaterm_bench.core.experiment import Experiment, Progress, grid, list_checks, setting
from adaterm_bench.core.section import Section
from adaterm_bench.core.trial import Result, Trial
from adaterm_bench.datasets import cifar, data
from adaterm_bench.datasets.cifar import CLASSES, Labelled
from adaterm_bench.experiments.classification.experiment import (
    PAD,
    cut_batch,
    draw_batches,
    load_human_labels,
    load_images,
    measure_share,
    predict,
)
from adaterm_bench.experiments.images.course import NOISES, draw_course, swap_nibbles
from adaterm_bench.models.resnet import ResNet18, make_network

MODEL = "resnet18"
HUMAN = "human"


@dataclass(frozen=True)
class Images(Experiment):
    """A ResNet-18 learns from batches of which some are bad, and is tested on good images with right labels."""

    name: ClassVar[str] = "images"
    title: ClassVar[str] = "Images with bad batches"
    version: ClassVar[int] = 1
    digits: ClassVar[dict[str, int]] = {"losses": 4}
    takes_methods: ClassVar[bool] = False  # only arms say what a training loop must know of them
    unavailable: ClassVar[dict[str, str]] = find_unavailable()
    methods: ClassVar[tuple[str, ...]] = tuple(
        name for name in list_available() if not name.startswith("Muon")
    )  # no hidden matrices
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "smoke": {
            "seeds": 1,
            "lrs": (1e-3,),
            "source": "synthetic",
            "images": 192,
            "held_out": 64,
            "epochs": 2,
            "batch_size": 32,
            "width": 2,
            "precision": "float32",
            "settled": 2,
        },
        "quick": {
            "seeds": 1,
            "noises": ("clean", "labels 20 %"),
            "lrs": (1e-3,),
            "images": 1280,
            "held_out": 256,
            "epochs": 4,
            "batch_size": 64,
            "width": 8,
            "precision": "float32",
            "checks": 2,
            "settled": 16,
        },
        "full": {},
    }

    seeds: int = grid(3, "number of seeds", least=1)
    models: tuple[str, ...] = grid((MODEL,), "the network", (MODEL,))
    noises: tuple[str, ...] = grid(tuple(NOISES), "what is wrong with batches", tuple(NOISES))
    lrs: tuple[float, ...] = grid(RATES, "learning rates to choose from", least=0)
    tuned: str = grid("", "directory with results that choose the learning rates; all are run if not given")
    track: Literal["clean", "noise"] = grid("clean", "whether rates are chosen on clean data, or for each noise")
    data: str = grid("", f"folder of CIFAR-100's binary version; that in {cifar.VARIABLE} if not given")
    source: Literal["cifar100", "synthetic"] = setting("cifar100", "the images")
    images: int = setting(50_000, "training images, the first so many", least=1, most=50_000)
    held_out: int = setting(5_000, "the last of them, on which learning rates are chosen", least=1)
    epochs: int = setting(30, "passes over the training images", least=1)
    batch_size: int = setting(256, "images of a step", least=1)
    warm_up: int = setting(1, "epochs in which the learning rate rises", least=0)
    last: float = setting(0.1, "the learning rate at the end, in parts of the largest", least=0, most=1)
    betas: tuple[float, ...] = setting((0.9, 0.999), "of methods whose authors publish no others", least=0, most=1)
    weight_decay: float = setting(0.05, "likewise; decoupled", least=0)
    smoothing: float = setting(0.2, "label smoothing", least=0, most=1)
    width: int = setting(64, "channels of the first stage", least=1)
    precision: Literal["bfloat16", "float32"] = setting("bfloat16", "of convolutions; weights are float32")
    checks: int = setting(10, "times that the test accuracy is looked at", least=1)
    calibration: int = setting(50, "good batches that normalisation is measured on before that", least=1)
    settled: int = setting(500, "steps after which what methods make of batches is compared", least=0)

    def __post_init__(self) -> None:
        """Refuse batches that there are no images for."""
        super().__post_init__()
        if self.images - self.held_out < self.batch_size:
            raise ValueError(
                f"images={self.images}: without {self.held_out} that are held out, this must be at least a batch of "
                f"{self.batch_size}"
            )
        if len(self.betas) != 2:
            raise ValueError(f"betas={self.betas}: these must be two")

    def conditions(self) -> list[dict[str, Any]]:
        """Noises and learning rates."""
        return [
            {"model": model, "noise": noise, "lr": lr}
            for model in self.models
            for noise in self.noises
            for lr in self.lrs
        ]

    def trials(self, methods: Sequence[str], seeds: Sequence[int] | None = None) -> list[Trial]:
        """The grid, or what tuning leaves of it; seed by seed and noise by noise, so that all methods come early."""
        trials = mark_equations(super().trials(methods, seeds))
        if self.tuned:
            trials = keep_chosen(trials, self.tuned, self.track, "validation_accuracy", -1.0)
        return sorted(trials, key=lambda trial: (trial.seed, self.noises.index(trial.condition["noise"])))

    @classmethod
    def accepts(cls, method: str) -> bool:
        """Arms, and those of ours with other options."""
        return super().accepts(method) or is_variant(method)

    def prepare(self) -> None:
        """Look at the data once, and not in every trial."""
        if self.source == "cifar100":
            cifar.load(cifar.find_folder(self.data))
            if HUMAN in self.noises:
                cifar.load_human_labels(cifar.find_folder(self.data))

    def run(self, trials: list[Trial], device: str, progress: Progress) -> list[dict[str, Any]]:
        """Train one network; the next trial in this process finds it compiled."""
        (trial,) = trials
        trainer = _make_trainer(self, device)
        return [run_captured(trial.method, trainer.uncaptured, lambda capture: trainer.train(trial, progress, capture))]

    def section(self, results: list[Result]) -> Section:
        """Accuracies with every noise, and what they cost."""
        from adaterm_bench.experiments.images.report import section

        return section(results)


class Trainer:
    """One network on a device, and its images, for one run after another."""

    def __init__(self, settings: Images, device: str) -> None:
        self.settings, self.device = settings, torch.device(device)
        train, test = load_images(settings.source, settings.data, settings.images)
        self.fingerprint = data.fingerprint(tensor.numpy() for tensor in (*train, *test))
        self.count = settings.images - settings.held_out
        self.right = train.labels
        self.held_out = Labelled(train.pixels[self.count :].to(self.device), train.labels[self.count :])
        self.test = Labelled(test.pixels.to(self.device), test.labels)
        pixels = train.pixels[: self.count].to(self.device)
        self.colours = torch.stack(torch.std_mean(pixels.reshape(-1, 3).float(), 0))
        self.images = functional.pad(swap_nibbles(pixels), (0, 0, PAD, PAD, PAD, PAD))  # with a black margin
        self.network = make_network(0, CLASSES, settings.width).to(self.device)
        self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.bf16 = settings.precision == "bfloat16"
        self.measure: Callable[..., Tensor] = measure_loss
        if self.device.type == "cuda":
            self._compile()
        self.uncaptured: set[str] = set()

    def train(self, trial: Trial, progress: Progress, capture: bool = True) -> dict[str, Any]:
        """The outcomes of a run from the weights of the seed; accuracies are NaN if these are lost."""
        settings, noise = self.settings, NOISES[trial.condition["noise"]]
        self.network.load_state_dict(make_network(trial.seed, CLASSES, settings.width).state_dict())
        draws = draw_course(noise, self.count, settings.epochs, settings.batch_size, trial.seed)
        batches, labels = draws.batches.to(self.device), self._choose_labels(noise.kind).to(self.device)

        def measure(position: Tensor) -> Tensor:
            batch = batches.index_select(0, position)[0]
            fixed = (settings.smoothing, self.bf16)
            return self.measure(self.network, self.images, labels, self.colours, batch, *fixed)

        steps = self.count // settings.batch_size
        schedule = list_schedule(len(batches), settings.warm_up * steps, settings.last)
        recipe = Recipe(
            (settings.betas[0], settings.betas[1]), settings.weight_decay, settings.warm_up * steps, len(batches)
        )
        parameters: NamedParameters = list(self.network.named_parameters())
        arm, course = find_arm(trial.method), Course(measure, draws.bad)
        loop = Loop(arm, parameters, recipe, trial.condition["lr"], schedule, course, capture)
        accuracies = []
        for epoch in range(1, settings.epochs + 1):
            self.network.train()
            loop.advance(steps)
            if epoch in list_checks(settings.epochs, settings.checks):
                accuracies.append(self._measure_accuracies(loop, trial.seed))
            progress(epoch / settings.epochs)
        loop.close()
        return {
            "accuracy": accuracies[-1][0],
            "validation_accuracy": accuracies[-1][1],
            "accuracies": [accuracy for accuracy, _ in accuracies],
            **judge_run(loop.losses, loop.notes if loop.observes else None, draws.bad, settings.settled),
            "step_seconds": loop.step_seconds,
            "captured": loop.is_captured,
            "parameters": sum(parameter.numel() for _, parameter in parameters),
            "data": self.fingerprint,
        }

    def _compile(self) -> None:
        """Let the compiler do its work; what it does to the network's statistics does not last."""
        torch.backends.cudnn.benchmark = True
        batch = draw_course(NOISES["clean"], self.count, 1, self.settings.batch_size, 0).batches[0].to(self.device)
        labels = self._choose_labels("none").to(self.device)
        fixed = (self.settings.smoothing, self.bf16)
        self.network.train()
        self.measure = compile_loss(measure_loss, self.network, self.images, labels, self.colours, batch, *fixed)
        self.network.zero_grad()

    def _choose_labels(self, kind: str) -> Tensor:
        settings = self.settings
        given = load_human_labels(settings.source, settings.data, self.right) if kind == HUMAN else self.right
        return given[: self.count]

    def _measure_accuracies(self, loop: Loop, seed: int) -> tuple[float, ...]:
        """Shares of test images and of those held out that are recognised.

        Running statistics of normalisation are measured again before, on good images: what bad ones did to them is no
        doing of the optimizer's, and weights that are means of others have none of their own.
        """
        steps = min(self.settings.calibration, self.count // self.settings.batch_size)
        draws = draw_batches(self.count, steps, self.settings.batch_size, [seed, self.settings.epochs])
        with loop.evaluate(), torch.no_grad():
            self.network.train()
            for batch in draws.to(self.device):
                with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
                    self.network(cut_batch(self.images, self.colours, batch))
            shares = [
                measure_share(predict(self.network, part.pixels, self.colours, self.bf16), part.labels)
                for part in (self.test, self.held_out)
            ]
            is_lost = not all(bool(parameter.isfinite().all()) for parameter in self.network.parameters())
        return tuple(nan if is_lost or share is None else share for share in shares)


def measure_loss(
    network: ResNet18, images: Tensor, labels: Tensor, colours: Tensor, batch: Tensor, smoothing: float, bf16: bool
) -> Tensor:
    """The loss of a batch, a row of a course."""
    inputs = cut_batch(images, colours, batch[:, :4])
    with torch.autocast(batch.device.type, torch.bfloat16, enabled=bf16):
        logits = network(inputs)
    return functional.cross_entropy(logits.float(), labels[batch[:, 4]], label_smoothing=smoothing)


@lru_cache(maxsize=1)
def _make_trainer(settings: Images, device: str) -> Trainer:
    return Trainer(settings, device)
