"""Regret on online convex problems with a known best point, beside the bounds of the theorem and the corollary."""

from dataclasses import dataclass
from math import inf, sqrt
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor

from adaterm.rules import AdaTermRule
from adaterm_bench.core.experiment import Experiment, Progress, grid, setting
from adaterm_bench.core.section import Section
from adaterm_bench.core.trial import Result, Trial
from adaterm_bench.experiments.regret.bounds import Bound, Run, corollary, discounted, theorem
from adaterm_bench.experiments.regret.problems import PROBLEMS, Array, Losses, cut_steps, space_evenly
from adaterm_bench.methods import make_rule
from adaterm_bench.steppers import RuleStepper

OURS = ("AdaTerm", "AdaTerm (gradient init)", "No robustness")
AMSGRAD = {"Adam": False, "AMSGrad": True}
LONGEST = 500  # steps whose gradients are held at once


@dataclass(frozen=True)
class Regret(Experiment):
    """What a method pays more than the best fixed point of a box, with step sizes alpha / sqrt(t) as in the theorem."""

    name: ClassVar[str] = "regret"
    title: ClassVar[str] = "Regret and its bounds"
    version: ClassVar[int] = 1
    digits: ClassVar[dict[str, int]] = dict.fromkeys(("regret", "trivial", "least_rate", "bound", *Bound._fields), 6)
    methods: ClassVar[tuple[str, ...]] = (*OURS, *AMSGRAD)
    takes_methods: ClassVar[bool] = False
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "smoke": {"seeds": 3, "steps": 200},
        "quick": {"seeds": 10, "steps": 20_000},
        "paper": {},
    }

    seeds: int = grid(30, "number of seeds", least=1)
    problems: tuple[str, ...] = grid(tuple(PROBLEMS), "problems", tuple(PROBLEMS))
    steps: int = setting(100_000, "number of losses", least=1)
    alpha: float = setting(0.1, "step size of the first step", least=0)
    dimension: int = setting(10, "number of coordinates", least=1)
    radius: float = setting(1.0, "every coordinate lies between minus this and this", least=0)
    marks: int = setting(
        40, "about so many times, evenly spaced on a logarithmic scale, at which the regret is kept", least=1
    )

    def conditions(self) -> list[dict[str, Any]]:
        """A problem."""
        return [{"problem": problem} for problem in self.problems]

    def together(self, trial: Trial) -> Any:
        """All problems and seeds of a method, but Adam has other betas for some problems."""
        return trial.method, PROBLEMS[trial.condition["problem"]].betas if trial.method in AMSGRAD else None

    def run(self, trials: list[Trial], device: str, progress: Progress) -> list[dict[str, Any]]:
        """Play all trials at once, in float64."""
        losses = Losses([(trial.condition["problem"], trial.seed) for trial in trials], self.dimension, self.radius)
        learner = _make_learner(trials[0], torch.from_numpy(losses.start.copy()).to(device), self.alpha)
        ledger = _Ledger(self, losses, learner)
        for first, count, marked in cut_steps(space_evenly(self.steps, self.marks), LONGEST):
            ledger.add(first, losses.slopes(first, count))
            if marked:
                ledger.mark(first + count - 1)
                progress((first + count - 1) / self.steps)
        return ledger.outcomes(len(trials))

    def section(self, results: list[Result]) -> Section:
        """Growth of regret and bounds, and the claims on them."""
        from adaterm_bench.experiments.regret.report import section

        return section(results)


class _Learner:
    """A method on the points of many trials, with step sizes alpha / sqrt(t); the points stay in the box."""

    def __init__(self, points: Tensor, alpha: float) -> None:
        self.points, self.alpha, self.count = points, alpha, 0

    def step(self, gradient: Tensor, radius: float) -> None:
        """Move all points by their gradients, and back into the box."""
        self.count += 1
        self.points.grad = gradient
        self._move(self.alpha / sqrt(self.count))
        self.points.clamp_(-radius, radius)  # the nearest point of a box, in every diagonal metric

    def _move(self, lr: float) -> None:
        raise NotImplementedError


class _Torch(_Learner):
    """Adam or AMSGrad, which treat every element alone."""

    def __init__(self, points: Tensor, alpha: float, betas: tuple[float, float], amsgrad: bool) -> None:
        super().__init__(points, alpha)
        self.optimizer = torch.optim.Adam([points], alpha, betas, amsgrad=amsgrad)

    def _move(self, lr: float) -> None:
        self.optimizer.param_groups[0]["lr"] = lr
        self.optimizer.step()


class _Ours(_Learner):
    """AdaTerm in all trials at once, each with statistics of its own."""

    def __init__(self, points: Tensor, alpha: float, method: str) -> None:
        super().__init__(points, alpha)
        self.rule = cast(AdaTermRule, make_rule(method))
        self.stepper = RuleStepper(self.rule, [points], alpha)

    def _move(self, lr: float) -> None:
        self.stepper.lr = lr
        self.stepper.step()


def _make_learner(trial: Trial, points: Tensor, alpha: float) -> _Learner:
    if trial.method in AMSGRAD:
        return _Torch(points, alpha, PROBLEMS[trial.condition["problem"]].betas, AMSGRAD[trial.method])
    return _Ours(points, alpha, trial.method)


class _Ledger:
    """Sums over the steps of many trials, and what they say at the marks."""

    def __init__(self, settings: Regret, losses: Losses, learner: _Learner) -> None:
        self.settings, self.losses, self.learner = settings, losses, learner
        shape = losses.start.shape
        self.paid, self.slope, self.absolute, self.fourth, self.roots = (np.zeros(shape) for _ in range(5))
        self.squares: list[Array] = []  # sum_i g_t,i^2 of every step: the least rate that discounts them may still fall
        self.last: tuple[Array, ...] = ()
        self.least_rate = np.full(shape[0], inf)
        self.marks: list[dict[str, Any]] = []

    def add(self, first: int, slopes: Array) -> None:
        """Play the next losses."""
        learner, radius = self.learner, self.settings.radius
        device = learner.points.device
        curvature, slopes_here = torch.from_numpy(self.losses.curvature).to(device), torch.from_numpy(slopes).to(device)
        points, gradients, scales = (torch.empty_like(slopes_here) for _ in range(3))
        rates = torch.ones_like(slopes_here[:, :, 0])
        for index, slope in enumerate(slopes_here):
            points[index] = learner.points
            gradients[index] = slope + curvature * learner.points
            learner.step(gradients[index], radius)
            if isinstance(learner, _Ours):
                scales[index], rates[index] = learner.stepper.scales[0], learner.stepper.rates[0]
        self.paid += self.losses.paid(points.cpu().numpy(), slopes)
        self.slope += slopes.sum(axis=0)
        self.absolute += gradients.abs().sum(0).cpu().numpy()
        if isinstance(learner, _Ours):
            self._add_sums(first, gradients.cpu().numpy(), scales.sqrt().cpu().numpy(), rates.cpu().numpy())

    def _add_sums(self, first: int, gradients: Array, roots: Array, rates: Array) -> None:
        """Add to the sums of the bounds, which leave out a step until there is a later one."""
        times = np.arange(first, first + len(rates))[:, None, None]
        self.fourth += (gradients**4).sum(axis=0)
        self.roots += (np.sqrt(times) * roots).sum(axis=0)
        self.squares.append(np.square(gradients).sum(axis=2))
        self.least_rate = np.minimum(self.least_rate, rates.min(axis=0))
        self.last = gradients[-1], roots[-1], rates[-1]

    def mark(self, steps: int) -> None:
        """Keep what the sums say after so many steps."""
        best = self.losses.best(steps, self.slope)
        diameter = 2.0 * self.settings.radius
        marks = {"regret": (self.paid - best).sum(axis=1), "trivial": diameter * self.absolute.sum(axis=1)}
        if isinstance(self.learner, _Ours):
            bound = self._compute_bound(steps)
            marks |= {"least_rate": self.least_rate, "bound": bound.total, **bound._asdict()}
        self.marks.append({"time": np.full(len(best), steps), **marks})

    def _compute_bound(self, steps: int) -> Bound:
        assert isinstance(self.learner, _Ours)
        gradient, root, rate = self.last
        run = Run(
            steps=steps,
            rate=rate,
            least_rate=self.least_rate,
            last_root=root.sum(axis=1),
            roots=(self.roots - sqrt(steps) * root).sum(axis=1),
            recent=discounted(np.concatenate(self.squares), self.least_rate),
            fourth=np.sqrt(np.maximum(self.fourth - gradient**4, 0.0)).sum(axis=1),
        )
        rule, settings = self.learner.rule, self.settings
        bound = theorem if rule.robust else corollary
        return bound(run, settings.alpha, rule.beta, rule.eps, 2.0 * settings.radius)

    def outcomes(self, trials: int) -> list[dict[str, Any]]:
        """For each trial, lists over the marks."""
        lists = {name: np.stack([mark[name] for mark in self.marks], axis=1).tolist() for name in self.marks[0]}
        return [{name: values[index] for name, values in lists.items()} for index in range(trials)]
