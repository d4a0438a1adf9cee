"""Classification of CIFAR-100 with wrong labels (section 6.1, appendix D), and with the labels people gave."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional

from adaterm.optimizer import RobustOptimizer
from adaterm_bench.core.experiment import Experiment, Progress, grid, list_checks, setting
from adaterm_bench.core.section import Section
from adaterm_bench.core.trial import Result, Trial
from adaterm_bench.datasets import cifar
from adaterm_bench.datasets.cifar import CLASSES, SIDE, Labelled
from adaterm_bench.methods import OUR_METHODS, PAPER_METHODS, make_optimizer
from adaterm_bench.models.networks import make_repeatable
from adaterm_bench.models.resnet import ResNet18, make_network
from adaterm_bench.steppers import list_state

PAD = 4
LEADING = (*list(PAPER_METHODS)[:6], "t-Adam (as published)", "At-Adam (as published)", "Large init")
"""What the paper says most of, and what it ran, as far as we know."""
LABELS = {"0 %": 0.0, "10 %": 0.1, "human": None}  # shares of wrong labels, or those of CIFAR-100N


@dataclass(frozen=True)
class Classification(Experiment):
    """A ResNet-18 learns from images of which some have a wrong label, and is tested on right ones."""

    name: ClassVar[str] = "classification"
    title: ClassVar[str] = "Classification with wrong labels"
    version: ClassVar[int] = 1
    digits: ClassVar[dict[str, int]] = {"losses": 4}
    methods: ClassVar[tuple[str, ...]] = (*PAPER_METHODS, "AdamW (clipped)", *OUR_METHODS)
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "smoke": {
            "seeds": 1,
            "source": "synthetic",
            "images": 128,
            "epochs": 1,
            "batch_size": 64,
            "width": 2,
            "precision": "float32",
        },
        "quick": {
            "seeds": 1,
            "images": 1024,
            "epochs": 4,
            "batch_size": 64,
            "width": 8,
            "precision": "float32",
            "checks": 2,
        },
        "paper": {},
    }

    seeds: int = grid(24, "number of seeds", least=1)
    labels: tuple[str, ...] = grid(tuple(LABELS), "training labels: shares of wrong ones, or human", tuple(LABELS))
    fewer: int = grid(0, f"seeds of all methods but {', '.join(LEADING)}; 0: as many as of these", least=0)
    data: str = grid("", f"folder of CIFAR-100's binary version; that in {cifar.VARIABLE} if not given")
    source: Literal["cifar100", "synthetic"] = setting("cifar100", "the images")
    images: int = setting(50_000, "training images, the first so many", least=1, most=50_000)
    epochs: int = setting(100, "passes over the training images", least=1)
    batch_size: int = setting(256, "images of a step", least=1)
    lr: float = setting(1e-3, "learning rate", least=0)
    smoothing: float = setting(0.2, "label smoothing", least=0, most=1)
    width: int = setting(64, "channels of the first stage", least=1)
    precision: Literal["bfloat16", "float32"] = setting("bfloat16", "of convolutions; weights are float32")
    checks: int = setting(20, "times that the test accuracy is looked at", least=1)

    def __post_init__(self) -> None:
        """Refuse batches that there are no images for."""
        super().__post_init__()
        if self.images < self.batch_size:
            raise ValueError(f"images={self.images}: this must be at least a batch of {self.batch_size}")

    def conditions(self) -> list[dict[str, Any]]:
        """The labels."""
        return [{"labels": labels} for labels in self.labels]

    def trials(self, methods: Sequence[str], seeds: Sequence[int] | None = None) -> list[Trial]:
        """The grid, with fewer seeds of what is told apart with less effort."""
        every = super().trials(methods, seeds)
        return [trial for trial in every if not self.fewer or trial.method in LEADING or trial.seed < self.fewer]

    def prepare(self) -> None:
        """Look at the data once, and not in every trial."""
        if self.source == "cifar100":
            cifar.load(cifar.find_folder(self.data))
            if "human" in self.labels:
                cifar.load_human_labels(cifar.find_folder(self.data))

    def run(self, trials: list[Trial], device: str, progress: Progress) -> list[dict[str, Any]]:
        """Train one network."""
        (trial,) = trials
        train, test = load_images(self.source, self.data, self.images)
        labels = self._choose_labels(train.labels, trial)
        training = Training(self, trial.method, Labelled(train.pixels, labels), trial.seed, device)
        accuracies, losses = [], []
        for epoch in range(self.epochs):
            losses.append(training.epoch(epoch))
            if epoch + 1 in list_checks(self.epochs, self.checks):
                accuracies.append(measure_share(training.predicted(test.pixels), test.labels))
            progress((epoch + 1) / self.epochs)
        wrong = labels != train.labels
        memorised = measure_share(training.predicted(train.pixels)[wrong], labels[wrong])
        return [
            {
                "accuracy": accuracies[-1],
                "accuracies": accuracies,
                "losses": losses,
                "wrong": int(wrong.sum()),
                "memorised": memorised,
                "labels": cifar.fingerprint(labels),
                "dof": _find_median_dof(training.optimizer),
            }
        ]

    def _choose_labels(self, labels: Tensor, trial: Trial) -> Tensor:
        """The labels to learn from."""
        share = LABELS[trial.condition["labels"]]
        if share is not None:
            return cifar.corrupt_labels(labels, share, CLASSES, trial.seed)
        return load_human_labels(self.source, self.data, labels)

    def section(self, results: list[Result]) -> Section:
        """Accuracies next to the paper's, learning curves, and its claims."""
        from adaterm_bench.experiments.classification.report import section

        return section(results)


class Training:
    """A network, what trains it, and its data on the device, where batches are made too."""

    def __init__(self, settings: Classification, method: str, data: Labelled, seed: int, device: str) -> None:
        self.settings, self.seed, self.device = settings, seed, torch.device(device)
        self.network = make_network(seed, CLASSES, settings.width).to(self.device)
        self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.params: list[Tensor] = list(self.network.parameters())
        self.optimizer = make_optimizer(method, self.params, settings.lr)
        pixels = data.pixels.to(self.device)
        self.images = functional.pad(pixels, (0, 0, PAD, PAD, PAD, PAD))  # with a black margin
        self.labels = data.labels.to(self.device)
        self.colours = torch.stack(torch.std_mean(pixels.reshape(-1, 3).float(), 0))
        self.steps = len(data.labels) // settings.batch_size
        self.draws = torch.zeros(settings.batch_size, 4, dtype=torch.int64, device=self.device)
        self.total = torch.zeros((), device=self.device)
        self.objective = _compile_objective() if self.device.type == "cuda" else objective
        self.repeated: Callable[[], None] | None = None

    def epoch(self, number: int) -> float:
        """One pass over the data, in an order and with crops that seed and number decide; the mean loss."""
        self.network.train()
        self.total.zero_()
        table = draw_batches(len(self.labels), self.steps, self.settings.batch_size, [self.seed, number]).to(
            self.device
        )
        for index in range(self.steps):
            self.draws.copy_(table[index])
            if self.repeated is None:
                self._step()  # a first step makes state
                total = self.total.clone()
                changed = [*self.params, *self.network.buffers(), *list_state(self.optimizer)]
                self.repeated = make_repeatable(self._step, changed)
                self.total.copy_(total)
            else:
                self.repeated()
        return float(self.total) / self.steps

    def _step(self) -> None:
        self.optimizer.zero_grad()
        loss = self.objective(
            self.network, self.images, self.labels, self.colours, self.draws, self.settings.smoothing, self._uses_bf16
        )
        torch.autograd.backward(loss)
        self.optimizer.step()
        self.total += loss.detach()

    @property
    def _uses_bf16(self) -> bool:
        return self.settings.precision == "bfloat16"

    def predicted(self, pixels: Tensor) -> Tensor:
        """The classes of images, which are not cropped."""
        return predict(self.network, pixels, self.colours, self._uses_bf16)


def load_images(source: str, data: str, count: int) -> tuple[Labelled, Labelled]:
    """The first so many images for training, and those for tests; `data` names the folder, if that is not known."""
    if source == "synthetic":
        return cifar.make_synthetic(count, CLASSES, 0), cifar.make_synthetic(count, CLASSES, 1)
    train, test = cifar.load(cifar.find_folder(data))
    return Labelled(train.pixels[:count], train.labels[:count]), test


def load_human_labels(source: str, data: str, labels: Tensor) -> Tensor:
    """What people said of the first images, whose right labels are given; for synthetic ones, labels as wrong."""
    if source == "synthetic":
        return cifar.corrupt_labels(labels, 0.4, CLASSES, 0)
    return cifar.load_human_labels(cifar.find_folder(data))[: len(labels)]


def objective(
    network: ResNet18, images: Tensor, labels: Tensor, colours: Tensor, draws: Tensor, smoothing: float, bf16: bool
) -> Tensor:
    """The loss of a batch: images drawn, cropped and flipped here, so that a compiler can do it in one pass."""
    batch = cut_batch(images, colours, draws)
    with torch.autocast(draws.device.type, torch.bfloat16, enabled=bf16):
        logits = network(batch)
    return functional.cross_entropy(logits.float(), labels[draws[:, 0]], label_smoothing=smoothing)


def cut_batch(images: Tensor, colours: Tensor, draws: Tensor) -> Tensor:
    """What a network sees of a step's images, which have a margin: crops, some of them flipped."""
    index, top, left, flip = draws.unbind(1)
    along = torch.arange(SIDE, device=draws.device)
    rows = top[:, None] + along
    columns = left[:, None] + torch.where(flip[:, None] > 0, SIDE - 1 - along, along)
    return _normalise(images[index[:, None, None], rows[:, :, None], columns[:, None, :]], colours)


@torch.no_grad()
def predict(network: ResNet18, pixels: Tensor, colours: Tensor, bf16: bool) -> Tensor:
    """The classes of whole images, which may be on another device than the network and its colours are."""
    network.eval()
    classes = []
    for part in torch.split(pixels, 1000):
        with torch.autocast(colours.device.type, torch.bfloat16, enabled=bf16):
            classes.append(network(_normalise(part.to(colours.device), colours)).argmax(1))
    return torch.cat(classes).cpu()


@cache
def _compile_objective() -> Callable[..., Tensor]:
    torch.backends.cudnn.benchmark = True
    compiled: Callable[..., Tensor] = torch.compile(objective, fullgraph=True)
    return compiled


def draw_batches(count: int, steps: int, size: int, seed: list[int]) -> Tensor:
    """Which images each step takes, and how it crops and flips them; those that fill no batch are left out."""
    generator = torch.Generator().manual_seed(seed[0] * 1_000_003 + seed[1])
    order = torch.randperm(count, generator=generator)[: steps * size].view(steps, size, 1)
    crops = torch.randint(0, 2 * PAD + 1, (steps, size, 2), generator=generator)
    flips = torch.randint(0, 2, (steps, size, 1), generator=generator)
    return torch.cat([order, crops, flips], 2)


def _normalise(pixels: Tensor, colours: Tensor) -> Tensor:
    """Bytes with colours last as numbers with colours second, of mean 0 and variance 1; in memory colours stay last."""
    return ((pixels.float() - colours[1]) / colours[0]).permute(0, 3, 1, 2)


def measure_share(predictions: Tensor, labels: Tensor) -> float | None:
    """The share of predictions that are right, if there are any."""
    return float((predictions == labels).double().mean()) if len(labels) else None


def _find_median_dof(optimizer: torch.optim.Optimizer) -> float | None:
    """The median over tensors of the last step's degrees of freedom."""
    if not isinstance(optimizer, RobustOptimizer):
        return None
    values = torch.tensor([float(value.dof) for value in optimizer.statistics().values()], dtype=torch.float64)
    return float(values.median()) if values.isfinite().all() else None
