"""Regression of a curve whose samples have heavy-tailed noise (section 5.2)."""

from dataclasses import dataclass
from math import pi
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from adaterm_bench.core.experiment import Experiment, Progress, grid, setting
from adaterm_bench.core.section import Section
from adaterm_bench.core.trial import Result, Trial
from adaterm_bench.methods import OUR_METHODS, PAPER_METHODS, make_stepper
from adaterm_bench.models.networks import apply_perceptron, make_repeatable, make_weights


def curve(x: Tensor) -> Tensor:
    """What is to be learnt."""
    return x.square() + torch.log1p(x) + torch.sin(2.0 * pi * x) * torch.cos(2.0 * pi * x)


@dataclass(frozen=True)
class Regression(Experiment):
    """One pass over samples of a curve, of which a share has noise with a Student's t-distribution."""

    name: ClassVar[str] = "regression"
    title: ClassVar[str] = "Regression with noisy samples"
    version: ClassVar[int] = 1
    digits: ClassVar[dict[str, int]] = {"errors": 4}
    methods: ClassVar[tuple[str, ...]] = (*PAPER_METHODS, *OUR_METHODS)
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "smoke": {"seeds": 2, "samples": 300, "noises": (0.0, 0.5)},
        "quick": {"seeds": 10, "samples": 20_000, "noises": (0.0, 0.1, 0.5, 1.0)},
        "paper": {},
    }

    seeds: int = grid(50, "number of seeds", least=1)
    noises: tuple[float, ...] = grid(tuple(n / 10 for n in range(11)), "shares of noisy samples", least=0.0, most=1.0)
    batch_sizes: tuple[int, ...] = grid((10,), "samples of a step", least=1)
    samples: int = setting(40_000, "training samples, each used once", least=1)
    lr: float = setting(1e-3, "learning rate", least=0)
    hidden: tuple[int, ...] = setting((50, 50, 50, 50), "widths of the hidden layers", least=1)
    noise_dof: float = setting(1.0, "degrees of freedom of the noise", least=0)
    noise_scale: float = setting(0.05, "scale of the noise", least=0)
    dtype: str = setting("float32", "precision", ("float32", "float64"))
    checks: int = setting(20, "times that the test error is looked at", least=1)

    def __post_init__(self) -> None:
        """Refuse batches that there are no samples for."""
        super().__post_init__()
        if self.samples < max(self.batch_sizes, default=0):
            raise ValueError(f"samples={self.samples}: this must be at least a batch of {max(self.batch_sizes)}")

    def conditions(self) -> list[dict[str, Any]]:
        """A noise level and a batch size."""
        return [{"noise": noise, "batch_size": size} for size in self.batch_sizes for noise in self.noises]

    def together(self, trial: Trial) -> Any:
        """All noise levels and seeds of a method, at one batch size."""
        return trial.method, trial.condition["batch_size"]

    def run(self, trials: list[Trial], device: str, progress: Progress) -> list[dict[str, Any]]:
        """Train one network for each trial, all at once."""
        dtype, size = getattr(torch, self.dtype), trials[0].condition["batch_size"]
        params = make_weights([trial.seed for trial in trials], (1, *self.hidden, 1), dtype, device)
        tested = make_stepper(trials[0].method, params, self.lr)
        data = self.draw_samples(trials, dtype, device)
        inputs, targets = (torch.empty_like(column[:, :size]) for column in data)

        def step() -> None:
            loss = (apply_perceptron(params, inputs) - targets).square().mean((1, 2)).sum()
            for parameter, gradient in zip(params, torch.autograd.grad(loss, params), strict=True):
                parameter.grad = gradient
            tested.step()

        grid_points = torch.linspace(0.0, 1.0, 1001, dtype=torch.float64, device=device)
        test = [
            column.to(dtype).view(1, -1, 1).expand(len(trials), -1, -1) for column in (grid_points, curve(grid_points))
        ]
        steps, errors, repeated = self.samples // size, [], None
        for index in range(steps):
            for static, column in zip((inputs, targets), data, strict=True):
                static.copy_(column[:, index * size : (index + 1) * size])
            if index == 0:
                step()  # what a first step does may differ: it makes state
                repeated = make_repeatable(step, [*params, *tested.state()])
            else:
                assert repeated is not None
                repeated()
            if (index + 1) % max(1, steps // self.checks) == 0 or index + 1 == steps:
                with torch.no_grad():
                    errors.append((apply_perceptron(params, test[0]) - test[1]).square().mean((1, 2)))
                progress((index + 1) / steps)
        curves, last_dofs = torch.stack(errors, 1).tolist(), tested.dof()
        dofs = [None] * len(trials) if last_dofs is None else last_dofs.median(1).values.tolist()
        return [{"error": curve[-1], "errors": curve, "dof": dof} for curve, dof in zip(curves, dofs, strict=True)]

    def draw_samples(self, trials: list[Trial], dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
        """Samples of all trials; the same for a seed, whatever the method, and more of them noisy at higher levels."""
        drawn = {}
        for seed in {trial.seed for trial in trials}:
            generator = np.random.default_rng([seed, 1])
            x, chance = generator.uniform(size=(2, self.samples))
            drawn[seed] = x, chance, generator.standard_t(self.noise_dof, self.samples)
        x = torch.from_numpy(np.stack([drawn[trial.seed][0] for trial in trials]))
        noise = np.stack(
            [
                np.where(drawn[t.seed][1] < t.condition["noise"], self.noise_scale * drawn[t.seed][2], 0.0)
                for t in trials
            ]
        )
        y = curve(x) + torch.from_numpy(noise)
        return x.to(device, dtype).unsqueeze(2), y.to(device, dtype).unsqueeze(2)

    def section(self, results: list[Result]) -> Section:
        """Errors against noise, and the paper's claims."""
        from adaterm_bench.experiments.regression.report import section

        return section(results)
