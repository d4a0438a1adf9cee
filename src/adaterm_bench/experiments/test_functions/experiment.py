"""Three functions of two variables whose gradients are now and then taken beside the point (appendix C)."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, pi
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaterm_bench.core.experiment import Experiment, Progress, grid, setting
from adaterm_bench.core.section import Section
from adaterm_bench.core.trial import Result, Trial
from adaterm_bench.methods import OUR_METHODS, PAPER_METHODS, make_stepper

VARIED = "varied"
NEAR = 0.1  # the distance at which a search has arrived


class Function(NamedTuple):
    """A function's gradient, where the search starts, and where it should end."""

    gradient: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    start: tuple[float, float]
    optimum: tuple[float, float]


def _rosenbrock(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    beside = y - x * x
    return -400.0 * x * beside + 2.0 * (x - 1.0), 200.0 * beside


def _mccormick(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    slope, apart = torch.cos(x + y), 2.0 * (x - y)
    return slope + apart - 1.5, slope - apart + 2.5


def _ridge(value: Tensor, number: float) -> Tensor:
    """The derivative of -sin(x) sin(number x^2 / pi)^20."""
    angle = number * value * value / pi
    sine = torch.sin(angle)
    steep = sine**19
    return -(torch.cos(value) * sine + torch.sin(value) * 40.0 * number * value / pi * torch.cos(angle)) * steep


def _michalewicz(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return _ridge(x, 1.0), _ridge(y, 2.0)


FUNCTIONS = {
    "Rosenbrock": Function(_rosenbrock, (-2.0, 2.0), (1.0, 1.0)),
    "McCormick": Function(_mccormick, (4.0, -3.0), (-0.54719755, -1.54719755)),
    "Michalewicz": Function(_michalewicz, (1.0, 1.0), (2.20290552, 1.57079633)),
}


@dataclass(frozen=True)
class NoisySearch(Experiment):
    """The search for a minimum with gradients of which a share is wrong."""

    name: ClassVar[str] = "test_functions"
    title: ClassVar[str] = "Test functions"
    version: ClassVar[int] = 2
    digits: ClassVar[dict[str, int]] = {"path": 4}
    methods: ClassVar[tuple[str, ...]] = (*PAPER_METHODS, *OUR_METHODS)
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "smoke": {"seeds": 3, "steps": 200, "noises": (0.0, 0.15)},
        "quick": {"seeds": 20, "steps": 15_000},
        "paper": {},
    }

    seeds: int = grid(100, "number of seeds", least=1)
    functions: tuple[str, ...] = grid(tuple(FUNCTIONS), "functions to search", tuple(FUNCTIONS))
    noises: tuple[float, ...] = grid(
        (0.0, 0.01, 0.025, 0.05, 0.1, 0.15), "shares of steps with a wrong gradient", most=1.0
    )
    vary: bool = grid(True, "search without noise from other starts, too: one for each seed")
    steps: int = setting(15_000, "updates", least=1)
    lr: float = setting(0.01, "learning rate", least=0)
    width: float = setting(0.1, "wrong gradients are taken at most so far away, in each variable", least=0)
    kept: int = setting(
        400, "at most so many points of the first seed's path are kept, most of them early ones", least=1
    )

    def conditions(self) -> list[dict[str, Any]]:
        """A function and a noise level; without noise there are also starts that vary, else all seeds are the same."""
        fixed = [{"function": function, "noise": noise} for function in self.functions for noise in self.noises]
        varied = [{"function": function, "noise": 0.0, "start": VARIED} for function in self.functions]
        return [*fixed, *(varied if self.vary else ())]

    def together(self, trial: Trial) -> Any:
        """All noise levels and seeds of a method on a function."""
        return trial.method, trial.condition["function"]

    def run(self, trials: list[Trial], device: str, progress: Progress) -> list[dict[str, Any]]:
        """Search from the same start, in all trials at once, in float64."""
        gradient, start, optimum = FUNCTIONS[trials[0].condition["function"]]
        point = torch.from_numpy(np.array(start) + self.draw_starts(trials)).to(device)
        tested = make_stepper(trials[0].method, [point], self.lr)
        shifts = self.draw_shifts(trials, device)
        goal, arrivals = point.new_tensor(optimum), point.new_full((len(trials),), inf)
        marks, path = set(np.geomspace(1, self.steps, self.kept).round().astype(int).tolist()), [point.clone()]
        for step in range(self.steps):
            at = point + shifts[step]
            point.grad = torch.stack(gradient(at[:, 0], at[:, 1]), 1)
            tested.step()
            arrivals.clamp_(max=torch.where((point - goal).norm(dim=1) < NEAR, step + 1.0, inf))
            if step + 1 in marks:
                path.append(point.clone())
                progress((step + 1) / self.steps)
        distances = (point - goal).norm(dim=1).tolist()
        last_dofs = tested.dof()
        dofs = [None] * len(trials) if last_dofs is None else last_dofs[:, 0].tolist()
        outcomes = [{"distance": distance, "dof": dof} for distance, dof in zip(distances, dofs, strict=True)]
        for index, (trial, outcome) in enumerate(zip(trials, outcomes, strict=True)):
            if "start" in trial.condition:
                outcome["arrival"] = float(arrivals[index])
            elif trial.seed == 0:
                outcome["path"] = [place[index].tolist() for place in path]
        return outcomes

    def draw_starts(self, trials: list[Trial]) -> NDArray[np.float64]:
        """How far each search starts from the paper's start: as far as wrong gradients may be, or not at all."""
        starts = np.zeros((len(trials), 2))
        for place, trial in enumerate(trials):
            if trial.condition.get("start") == VARIED:
                starts[place] = np.random.default_rng([trial.seed, 2]).uniform(-self.width, self.width, 2)
        return starts

    def draw_shifts(self, trials: list[Trial], device: str) -> Tensor:
        """How far from the point each step's gradient is taken; the same for a seed, whatever the method."""
        noises = np.array([trial.condition["noise"] for trial in trials])
        drawn = {
            seed: np.random.default_rng(seed).uniform(size=(self.steps, 3)) for seed in {trial.seed for trial in trials}
        }
        draws = np.stack([drawn[trial.seed] for trial in trials], axis=1)
        wrong = draws[:, :, :1] < noises[None, :, None]
        return torch.from_numpy(np.where(wrong, self.width * (2.0 * draws[:, :, 1:] - 1.0), 0.0)).to(device)

    def section(self, results: list[Result]) -> Section:
        """Errors and degrees of freedom against noise, paths, and the paper's claims."""
        from adaterm_bench.experiments.test_functions.report import section

        return section(results)
