"""Language models on clean data and under many kinds of noise, with learning rates that are tuned on clean data."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from adaterm_bench.arena.arms import find_arm, find_unavailable, is_variant, list_available
from adaterm_bench.arena.equations import mark_equations
from adaterm_bench.arena.protocol import RATES
from adaterm_bench.arena.selection import keep_chosen
from adaterm_bench.core.experiment import Experiment, Progress, grid, setting
from adaterm_bench.core.section import Section
from adaterm_bench.core.trial import Result, Trial
from adaterm_bench.datasets import sources
from adaterm_bench.datasets.data import DataError
from adaterm_bench.experiments.language.course import NOISES
from adaterm_bench.experiments.language.training import Settings, find_trainer
from adaterm_bench.models.transformer import BYTES, LARGE, WORDS, Sizes

MODELS = {"bytes": BYTES, "words": WORDS, "large": LARGE}
PIECES = 32  # of text, at least: contexts that do not overlap


@dataclass(frozen=True)
class Language(Experiment):
    """Transformers learn the sources of torch, from batches and gradients of which some are bad, and are validated."""

    name: ClassVar[str] = "language"
    title: ClassVar[str] = "Language models on clean and on dirty data"
    version: ClassVar[int] = 2
    digits: ClassVar[dict[str, int]] = {"losses": 4}
    unavailable: ClassVar[dict[str, str]] = find_unavailable()
    methods: ClassVar[tuple[str, ...]] = tuple(list_available())
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "smoke": {
            "seeds": 1,
            "models": ("bytes",),
            "noises": ("clean", "targets 20 %"),
            "lrs": (3e-3,),
            "steps": 24,
            "batch": 4,
            "context": 16,
            "warm_up": 4,
            "settled": 8,
            "validation_batches": 2,
            "width": 16,
            "heads": 2,
            "layers": 1,
            "limit": 1 << 16,
            "precision": "float32",
        },
        "quick": {
            "seeds": 1,
            "models": ("bytes",),
            "noises": ("clean", "tokens 10 %", "targets 20 %"),
            "lrs": (3e-3,),
            "steps": 600,
            "batch": 16,
            "context": 64,
            "warm_up": 60,
            "settled": 200,
            "validation_batches": 32,
            "width": 64,
            "heads": 2,
            "layers": 2,
            "precision": "float32",
        },
        "full": {},
    }

    seeds: int = grid(5, "number of seeds", least=1)
    models: tuple[str, ...] = grid(tuple(MODELS), "of bytes, of 8,192 words, and a large one of 50,000", tuple(MODELS))
    noises: tuple[str, ...] = grid(tuple(NOISES), "what is bad, and in which share of the steps", tuple(NOISES))
    lrs: tuple[float, ...] = grid(RATES, "largest learning rates", least=0)
    tuned: str = grid("", "results directory by which one of the learning rates is chosen for each method and model")
    track: Literal["clean", "noise"] = grid("clean", "whether it is chosen on clean data, or for each noise on its own")
    steps: int = setting(2000, "batches", least=1)
    batch: int = setting(64, "pieces of text in a batch", least=1)
    context: int = setting(256, "tokens in a piece of text", least=2)
    warm_up: int = setting(200, "steps in which the learning rate rises", least=1)
    last: float = setting(0.1, "learning rate at the end, in parts of the largest", least=0, most=1)
    settled: int = setting(500, "steps after which it counts whether bad batches are told from good ones", least=0)
    validation_batches: int = setting(64, "batches to validate on", least=1)
    width: int | None = setting(None, "features of the network; the model's own if none", least=1)
    heads: int | None = setting(None, "heads of attention, likewise", least=1)
    layers: int | None = setting(None, "blocks of the network, likewise", least=1)
    limit: int | None = setting(None, "bytes of text for training, and for validation; all if none", least=1)
    precision: Literal["bfloat16", "float32"] = setting("bfloat16", "of matrix products; weights are float32")

    def __post_init__(self) -> None:
        """Refuse networks that cannot be, and too little text."""
        super().__post_init__()
        for model in self.models:
            sizes = self._choose_sizes(model)
            if sizes.width % sizes.heads:
                raise ValueError(f"width={sizes.width}: this must be a multiple of the {sizes.heads} heads")
        if self.limit is not None and self.limit < PIECES * self.context:
            raise ValueError(f"limit={self.limit}: this must be at least {PIECES} times context={self.context}")

    def conditions(self) -> list[dict[str, Any]]:
        """Models, noises and learning rates."""
        return [
            {"model": model, "noise": noise, "lr": lr}
            for model in self.models
            for noise in self.noises
            for lr in self.lrs
        ]

    def trials(self, methods: Sequence[str], seeds: Sequence[int] | None = None) -> list[Trial]:
        """The grid, or what tuning leaves of it; model by model and seed by seed, so that all methods are there early.

        One trainer, and the batches that are drawn, then serve many trials in a row.
        """
        trials = mark_equations(super().trials(methods, seeds))
        if self.tuned:
            trials = keep_chosen(trials, self.tuned, self.track, "loss")

        def find_place(trial: Trial) -> tuple[int, int, int]:
            condition = trial.condition
            return self.models.index(condition["model"]), trial.seed, self.noises.index(condition["noise"])

        return sorted(trials, key=find_place)

    @classmethod
    def accepts(cls, method: str) -> bool:
        """Arms, and those of ours with other options."""
        return super().accepts(method) or is_variant(method)

    def prepare(self) -> None:
        """Look for the sources."""
        sources.load(limit=self.limit)

    def check(self, results: Sequence[Result]) -> None:
        """The sources that are installed must be those of the results."""
        others = {result.outcome["data"] for result in results if result.trial.settings["limit"] == self.limit}
        if others and others != {installed := sources.load(limit=self.limit).fingerprint}:
            raise DataError(
                f"The sources of torch {torch.__version__}, which is installed here, are other data ({installed}) than "
                f"the results in this directory are of ({', '.join(sorted(others))}): give another --out."
            )

    def run(self, trials: list[Trial], device: str, progress: Progress) -> list[dict[str, Any]]:
        """Train one network."""
        (trial,) = trials
        condition = trial.condition
        settings = Settings(
            self._choose_sizes(condition["model"]),
            self.steps,
            self.batch,
            self.warm_up,
            self.last,
            self.validation_batches,
            self.settled,
            self.precision == "bfloat16",
        )
        trainer = find_trainer(settings, self.limit, device)
        arm = find_arm(trial.method)
        return [trainer.train(trial.method, arm, condition["noise"], trial.seed, condition["lr"], progress)]

    def section(self, results: list[Result]) -> Section:
        """Losses under every noise, ranks of methods, and how much the learning rate matters."""
        from adaterm_bench.experiments.language.report import section

        return section(results)

    def _choose_sizes(self, model: str) -> Sizes:
        chosen = {"width": self.width, "heads": self.heads, "layers": self.layers}
        given = {name: value for name, value in chosen.items() if value is not None}
        return MODELS[model]._replace(context=self.context, **given)
