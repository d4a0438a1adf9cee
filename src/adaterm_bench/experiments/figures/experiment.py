"""The paper's explanatory figures, computed with the library's own equations; each figure is one trial."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, lgamma, log, pi
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaterm.equations import LARGEST_DOF_WEIGHT, Pace
from adaterm.rules import AdaTermRule, measure
from adaterm.torch_primitives import TORCH
from adaterm_bench.core.experiment import Experiment, Progress, setting
from adaterm_bench.core.section import Section
from adaterm_bench.core.trial import Result, Trial
from adaterm_bench.steppers import initial_scalars, update_averages

Data = dict[str, Any]
Values = NDArray[np.float64]


@dataclass(frozen=True)
class Explanatory(Experiment):
    """What the method does with one gradient, or ten: nothing is trained."""

    name: ClassVar[str] = "figures"
    title: ClassVar[str] = "Explanatory figures"
    version: ClassVar[int] = 1
    digits: ClassVar[dict[str, int]] = dict.fromkeys(("distance", "increment", "rate", "densities"), 5)
    methods: ClassVar[tuple[str, ...]] = ("AdaTerm",)
    takes_methods: ClassVar[bool] = False
    presets: ClassVar[dict[str, dict[str, Any]]] = {"smoke": {"points": 41}, "quick": {}, "paper": {}}

    points: int = setting(241, "points of a curve, or of each side of a plane", least=1)
    beta: float = setting(0.9, "decay of the averages", least=0)
    eps: float = setting(1e-5, "root of the least scale", least=0)

    def conditions(self) -> list[dict[str, Any]]:
        """A figure."""
        return [{"figure": name} for name in FIGURES]

    def run(self, trials: list[Trial], device: str, progress: Progress) -> list[dict[str, Any]]:
        """The data of figures, in float64 and on the CPU."""
        return [FIGURES[trial.condition["figure"]](self, np.random.default_rng(trial.seed)) for trial in trials]

    def section(self, results: list[Result]) -> Section:
        """The figures."""
        from adaterm_bench.experiments.figures.report import section

        return section(results)


def robust_fit(settings: Explanatory, rng: np.random.Generator) -> Data:
    """Maximum-likelihood fits of a Gaussian and of a Student's t to a sample with outliers (fig. robust_tdist)."""
    sample = np.concatenate([rng.normal(0.0, 1.0, 90), rng.normal(9.0, 0.7, 10)])
    fits = [(*_fit(sample, dof), dof) for dof in np.geomspace(0.5, 50.0, 40).tolist()]
    mean, scale, dof = max(fits, key=lambda fit: float(np.log(density(sample, *fit)).sum()))
    x = np.linspace(-6.0, 13.0, settings.points)
    curves = {
        "true": density(x, 0.0, 1.0, inf),
        "gaussian": density(x, float(sample.mean()), float(sample.var()), inf),
        "student": density(x, mean, scale, dof),
    }
    return {"x": x.tolist(), "sample": sample.tolist(), "dof": dof, **{k: v.tolist() for k, v in curves.items()}}


def _fit(sample: Values, dof: float) -> tuple[float, float]:
    """Location and scale of a t-distribution: averages with the library's weights, until they stay."""
    values, mean, scale = torch.from_numpy(sample), torch.tensor(float(np.median(sample))), torch.tensor(1.0)
    for _ in range(200):
        distance = TORCH.surprise(values, mean, scale)
        weight = TORCH.weigh(distance, torch.zeros_like(values), 0.0, 0.0, dof)[0]
        mean = (weight * values).sum() / weight.sum()
        scale = (weight * (values - mean).square()).mean()
    return float(mean), float(scale)


def density(x: Values, mean: float, scale: float, dof: float) -> Values:
    """The density of a t-distribution in one dimension; of a Gaussian for an infinite dof."""
    squared = (x - mean) ** 2 / scale
    if dof == inf:
        return np.asarray(np.exp(-squared / 2.0) / np.sqrt(2.0 * pi * scale))
    constant = lgamma((dof + 1.0) / 2.0) - lgamma(dof / 2.0) - 0.5 * log(dof * pi * scale)
    return np.asarray(np.exp(constant - (dof + 1.0) / 2.0 * np.log1p(squared / dof)))


def measure_central(share: float, dof: float) -> float:
    """How far from the middle the central share of a standard t-distribution reaches."""
    x = np.concatenate([[0.0], np.geomspace(1e-3, 1e6, 20_000)])
    height = density(x, 0.0, 1.0, dof)
    mass = np.concatenate([[0.0], np.cumsum(np.diff(x) * (height[1:] + height[:-1]))])
    return float(np.interp(share, mass, x))


def gaussian_limit(settings: Explanatory, rng: np.random.Generator) -> Data:
    """Densities of growing degrees of freedom (fig. tdistribution)."""
    x = np.linspace(-6.0, 6.0, settings.points)
    dofs = (1.0, 2.0, 5.0, 30.0, inf)
    return {"x": x.tolist(), "dofs": list(dofs), "densities": [density(x, 0.0, 1.0, dof).tolist() for dof in dofs]}


def digamma_bound(settings: Explanatory, rng: np.random.Generator) -> Data:
    """psi((nu + d)/2) - psi(nu/2) and its upper bound, for nu = dof d (fig. digamma_bound)."""
    dof = torch.linspace(1.0, 10.0, settings.points, dtype=torch.float64)
    sizes = [1, 10, 100]
    exact, bound = [], []
    for size in sizes:
        nu = dof * size
        exact.append((torch.digamma((nu + size) / 2.0) - torch.digamma(nu / 2.0)).tolist())
        bound.append((torch.log((nu + size) / nu) - 1.0 / (nu + size) + 2.0 / nu).tolist())
    return {"dof": dof.tolist(), "sizes": sizes, "exact": exact, "bound": bound}


def surrogate_gradient(settings: Explanatory, rng: np.random.Generator) -> Data:
    """The surrogate gradient of nu against the weight, for nu = d (fig. grad_nu)."""
    weight = torch.linspace(0.01, 2.0, settings.points, dtype=torch.float64)
    dof = torch.ones_like(weight)
    scaled = (dof + 1.0) / weight - dof  # the distance with this weight
    following = TORCH.weigh(scaled, dof, 0.0, 0.0, 0.0)[3]
    # The library's increment is tau_nu (lambda' - excess) = 2 excess / (d bound) times the gradient of the dof per
    # dimension, in which 1/dof stands for 1/nu; its bound is the constant at this dof.
    of_one = (following - dof) / dof * LARGEST_DOF_WEIGHT / 2.0
    sizes = [1, 10, 100, 10_000]
    curves = [(of_one - 0.5 * (dof + 2.0) / (dof + 1.0) / dof * (1.0 - 1.0 / size)).tolist() for size in sizes]
    return {"weight": weight.tolist(), "sizes": sizes, "gradients": curves}


def coupled_scales(settings: Explanatory, rng: np.random.Generator) -> Data:
    """Scales after one observed point, from mean 0 and scale 1 (fig. adaterm_scale_viz)."""
    seen = [[4.5, 0.0], [0.0, 4.5], [3.6, 3.6], [1.0, 0.6]]
    point = torch.tensor(seen, dtype=torch.float64)
    scales = {}
    for name, rule in _rules(settings).items():
        start = torch.zeros_like(point)
        scalars = initial_scalars(rule, point)
        _, scale, _ = update_averages(rule, point, start, torch.ones_like(point), scalars)
        scales[name] = scale.tolist()
    return {"points": seen, **scales}


def dof_and_distance(settings: Explanatory, rng: np.random.Generator) -> Data:
    """How near and far observations change nu, in two dimensions (fig. adaterm_dof_viz)."""
    start, repeats = 2.0, 4_000
    axis = torch.linspace(-6.0, 6.0, settings.points, dtype=torch.float64)
    plane = torch.stack(torch.meshgrid(axis, axis, indexing="xy"), dim=-1)
    distance = TORCH.surprise(plane, torch.zeros(2), torch.ones(2)).mean(-1)
    seen = torch.tensor([[0.4, 0.3], [5.2, 4.6]], dtype=torch.float64)
    at = TORCH.surprise(seen, torch.zeros(2), torch.ones(2)).mean(-1)
    excess = torch.full_like(at, start - 1.0)
    for _ in range(repeats):
        excess = TORCH.weigh(at, excess, settings.beta, settings.eps, 1.0)[3]
    x = np.linspace(-6.0, 6.0, settings.points)
    after = [2.0 * (1.0 + value) for value in excess.tolist()]
    return {
        "axis": axis.tolist(),
        "distance": distance.tolist(),
        "increment": _increment(distance, torch.full_like(distance, start), settings).tolist(),
        "points": seen.tolist(),
        "repeats": repeats,
        "dofs": [2.0 * start, *after],
        "x": x.tolist(),
        "densities": [density(x, 0.0, 1.0, dof).tolist() for dof in (2.0 * start, *after)],
        "central": [measure_central(0.9, dof) for dof in (2.0 * start, *after)],
    }


def first_moment(settings: Explanatory, rng: np.random.Generator) -> Data:
    """Means after ten noisy gradients of x^2 + y^2, at several places (fig. ag_m)."""
    side, steps, noise = np.linspace(-2.0, 2.0, 5), 10, 0.5
    places = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
    true = torch.from_numpy(2.0 * places)
    drawn = rng.normal(0.0, noise, (steps, *places.shape))
    wrong = rng.uniform(size=(steps, len(places), 1)) < 0.15
    gradients = true + torch.from_numpy(np.where(wrong, rng.normal(0.0, 10.0, drawn.shape), drawn))
    means = {}
    for name, rule in _rules(settings).items():
        # From the true gradient and the true noise: a start at 0 would show the slow start and not the robustness.
        mean, scale, scalars = true.clone(), torch.full_like(true, noise**2), initial_scalars(rule, true)
        for gradient in gradients:
            mean, scale, scalars = update_averages(rule, gradient, mean, scale, scalars)
        means[name] = mean.tolist()
    return {"places": places.tolist(), "true": true.tolist(), "share": 0.15, "steps": steps, **means}


def rates(settings: Explanatory, rng: np.random.Generator) -> Data:
    """tau and the increment of the dof over dof and distance (figs. adaterm_algo_vis and its dofIncrease)."""
    dof = torch.linspace(1.0, 10.0, settings.points, dtype=torch.float64)
    distance = torch.logspace(-2.0, 3.0, settings.points, dtype=torch.float64)
    rows, columns = torch.meshgrid(distance, dof, indexing="ij")
    rule = AdaTermRule(settings.beta, settings.eps)
    scalars = rule.Scalars(columns - 1.0, 0.0)
    pace = Pace(lr=0.0, weight_decay=0.0, step=1)
    weights, *_ = TORCH.adaterm_weigh([rows], measure(1), scalars, None, None, pace, rule.numbers, rule.flags)
    increment = _increment(rows, columns, settings)
    return {
        "dof": dof.tolist(),
        "distance": distance.tolist(),
        "rate": weights.rate.tolist(),
        "increment": increment.tolist(),
    }


def _increment(distance: Tensor, dof: Tensor, settings: Explanatory) -> Tensor:
    """What a step adds to the dof, for a least dof of 1, without the eps that keeps it from stopping."""
    following: Tensor = TORCH.weigh(distance, dof - 1.0, settings.beta, 0.0, 1.0)[3]
    return following - (dof - 1.0)


def _rules(settings: Explanatory) -> dict[str, AdaTermRule]:
    return {
        "student": AdaTermRule(settings.beta, settings.eps),
        "gaussian": AdaTermRule(settings.beta, settings.eps, min_dof=inf),
    }


FIGURES: dict[str, Callable[[Explanatory, np.random.Generator], Data]] = {
    "robust_fit": robust_fit,
    "gaussian_limit": gaussian_limit,
    "digamma_bound": digamma_bound,
    "surrogate_gradient": surrogate_gradient,
    "coupled_scales": coupled_scales,
    "dof_and_distance": dof_and_distance,
    "first_moment": first_moment,
    "rates": rates,
}
"""What computes the data of each figure, in the paper's order."""
