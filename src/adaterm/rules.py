"""A method as a value: its options, checked once, and how its three stages are put together from the equations."""

from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from adaterm import equations
from adaterm.equations import Array, trigamma
from adaterm.options import Number, is_number, require, require_bools, require_choice, require_number

Scalars = dict[str, Array]


class Statistics(NamedTuple):
    """What one step made of one gradient: its distance, the trust in it, from 0 to 1, and the degrees of freedom.

    Distance and dof are per dimension for AdaTerm and totals over the tensor for the t-family, as they are published. A
    distance that is not finite means that the gradient was excluded; its trust is 0.
    """

    distance: Tensor
    trust: Tensor
    dof: Tensor


class Size(NamedTuple):
    """The number d of a tensor's elements, and trigamma(d / 2)."""

    count: Array
    trigamma: Array

    @classmethod
    def of(cls, count: int) -> "Size":
        """The size of a tensor of so many elements."""
        return cls(float(max(1, count)), trigamma(max(1, count) / 2.0))


class Weights(NamedTuple):
    """The per-tensor numbers that `move` needs; what a rule does not use stays 0."""

    valid: Array
    rate: Array
    scale_rate: Array
    distance: Array = 0.0
    dof: Array = 0.0
    weight: Array = 0.0
    memory: Array = 0.0


def _is_dof(value: Any) -> bool:
    return is_number(value) and (0.0 < value < 1e30 or value == inf)


@dataclass(frozen=True)
class AdaTermRule:
    """AdaTerm, its ablations (appendix E) and variants (appendices G and H)."""

    beta: float = 0.9
    eps: float = 1e-5
    min_dof: float = 1.0
    init_dof: float | None = None
    adaptive_dof: bool = True
    uncentered: bool = False
    adaptive_bias_correction: bool = False
    scale_update: str = "projected"
    init_scale: str = "eps"

    all_scalar_names: ClassVar[tuple[str, ...]] = ("excess_dof", "bias_correction")
    needs_size: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require_number("beta", self.beta, 0.0, 1.0, "a number in [0, 1)")
        # eps^2 is the least scale, so it must be a normal float32.
        require_number("eps", self.eps, 1.1e-19, inf, "a finite number of at least 1.1e-19")
        require(_is_dof(self.min_dof), "min_dof", self.min_dof, "a positive number below 1e30, or inf")
        if self.init_dof is not None:
            least = self.min_dof
            allowed = f"None or a number in [min_dof={least}, 1e30)" if self.robust else "None where min_dof is inf"
            require_number("init_dof", self.init_dof, least, 1e30, allowed)
        require_bools(self, "adaptive_dof", "uncentered", "adaptive_bias_correction")
        require_choice("scale_update", self.scale_update, "projected", "analytic")
        require_choice("init_scale", self.init_scale, "eps", "gradient")

    @property
    def robust(self) -> bool:
        """Whether the dof is finite; if not, the rule is a moving average and has no dof to adapt."""
        return self.min_dof < inf

    @property
    def initial_scale(self) -> float:
        """The scale before the first gradient."""
        return self.eps**2

    def initial_scalars(self, size: Size) -> dict[str, float]:
        """The per-tensor state beside mean and scale."""
        scalars = {}
        if self.robust:
            scalars["excess_dof"] = max(self.eps, (self.init_dof or 0.0) - self.min_dof)
        if self.adaptive_bias_correction:
            scalars["bias_correction"] = 0.0
        return scalars

    @property
    def scalar_names(self) -> tuple[str, ...]:
        """The names of the per-tensor state beside mean and scale."""
        return tuple(self.initial_scalars(Size(1.0, 0.0)))

    def gauge(self, lib: Any, gradient: Array, mean: Array, scale: Array) -> Array:
        """The elementwise terms whose mean is the distance, which without robustness only has to be finite."""
        return lib.surprise(gradient, mean, scale) if self.robust else lib.square(gradient - mean)

    def weigh(self, lib: Any, distance: Array, scalars: Scalars, size: Size) -> tuple[Weights, Scalars, Statistics]:
        """Rates, the next per-tensor state, and what to report."""
        rate, scale_rate, dof, weight, excess, memory, trust, reported = lib.adaterm_weigh(
            distance,
            scalars.get("excess_dof", 0.0),
            scalars.get("bias_correction", 0.0),
            self.beta,
            self.eps,
            self.min_dof,
            *self.weigh_flags,
        )
        valid = distance < inf
        new = {"excess_dof": excess, "bias_correction": memory}
        weights = Weights(valid, rate, scale_rate, lib.where(valid, distance, 0.0), dof, weight, memory)
        return weights, {name: new[name] for name in scalars}, Statistics(distance, trust, reported)

    def move(
        self,
        lib: Any,
        gradient: Array,
        mean: Array,
        scale: Array,
        parameter: Array,
        weights: Weights,
        lr: Number,
        step: Number,
    ) -> tuple[Array, Array, Array]:
        """The next mean, scale and parameter."""
        *numbers, memory = weights
        step_size = equations.adaterm_step_size(lr, step, memory, self.beta, self.adaptive_bias_correction)
        tensors = (gradient, mean, scale, parameter)
        return lib.adaterm_move(*tensors, *numbers, step_size, self.eps**2, *self.move_flags)  # type: ignore[no-any-return]

    @property
    def weigh_flags(self) -> tuple[bool, bool, bool, bool]:
        """The options that decide how to weigh: the last arguments of `adaterm_weigh`."""
        return self.robust, self.adaptive_dof, self.scale_update == "analytic", self.adaptive_bias_correction

    @property
    def move_flags(self) -> tuple[bool, bool, bool]:
        """The options that decide how to move: the last arguments of `adaterm_move`."""
        return self.robust, self.scale_update == "analytic", self.uncentered


@dataclass(frozen=True)
class TRule:
    """The t-momentum over Adam or AdaBelief; with `beta_dof` the At-momentum, with `dof = inf` neither."""

    belief: bool
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    dof: float = inf
    beta_dof: float | None = None
    as_published: bool = False

    needs_size: ClassVar[bool] = True
    all_scalar_names: ClassVar[tuple[str, ...]] = ("weight_sum", "log_distance_avg", "log_distance_var")
    initial_scale: ClassVar[float] = 0.0
    init_scale: ClassVar[str] = "eps"

    def __post_init__(self) -> None:
        pair = isinstance(self.betas, tuple | list) and len(self.betas) == 2
        valid = pair and all(is_number(beta) and 0.0 <= beta < 1.0 for beta in self.betas)
        require(valid, "betas", self.betas, "two numbers in [0, 1)")
        require_number("eps", self.eps, 1e-30, inf, "a finite number of at least 1e-30")
        require(_is_dof(self.dof), "dof", self.dof, "a positive number below 1e30, or inf")
        require_bools(self, "as_published")
        if self.robust:
            allowed = "two numbers, the first in [0.5, 1): below, the t-momentum's sum of weights can turn negative"
            require(self.betas[0] >= 0.5, "betas", self.betas, allowed)
        if self.beta_dof is not None:
            require_number("beta_dof", self.beta_dof, 0.0, 1.0, "a number in [0, 1)")
            require(self.robust, "dof", self.dof, "finite where it adapts")

    @property
    def robust(self) -> bool:
        """Whether the dof is finite; if not, the rule is a moving average."""
        return self.dof < inf

    def initial_scalars(self, size: Size) -> dict[str, float]:
        """The per-tensor state beside mean and scale."""
        if not self.robust:
            return {}
        scalars = {"weight_sum": self.betas[0] / (1.0 - self.betas[0])}
        if self.beta_dof is not None:
            scalars["log_distance_avg"] = 0.0
            scalars["log_distance_var"] = 2.0 * (self.dof + 2.0) / self.dof**2 + size.trigamma
        return scalars

    @property
    def scalar_names(self) -> tuple[str, ...]:
        """The names of the per-tensor state beside mean and scale."""
        return tuple(self.initial_scalars(Size(1.0, 0.0)))

    def gauge(self, lib: Any, gradient: Array, mean: Array, scale: Array) -> Array:
        """The elementwise terms whose mean over the tensor is the distance per dimension."""
        return lib.surprise(gradient, mean, scale + self.eps) if self.robust else lib.square(gradient - mean)

    def weigh(self, lib: Any, distance: Array, scalars: Scalars, size: Size) -> tuple[Weights, Scalars, Statistics]:
        """Rates, the next per-tensor state (none is kept `as_published`), and what to report."""
        rate, scale_rate, *new, total, trust, reported = lib.t_family_weigh(
            distance,
            *size,
            *(scalars.get(name, 0.0) for name in self.all_scalar_names),
            *self.betas,
            self.eps,
            self.dof,
            self.beta_dof or 0.0,
            *self.weigh_flags,
        )
        known = dict(zip(self.all_scalar_names, new, strict=True))
        weights = Weights(distance < inf, rate, scale_rate)
        return weights, {name: known[name] for name in scalars}, Statistics(total, trust, reported)

    def move(
        self,
        lib: Any,
        gradient: Array,
        mean: Array,
        scale: Array,
        parameter: Array,
        weights: Weights,
        lr: Number,
        step: Number,
    ) -> tuple[Array, Array, Array]:
        """The next mean, scale and parameter."""
        beta1, beta2 = self.betas
        floor = self.eps / (1.0 - beta2) if self.belief else 0.0
        step_size, correction = lr / (1.0 - beta1**step), 1.0 - beta2**step
        tensors, rates = (gradient, mean, scale, parameter), weights[:3]
        return lib.t_family_move(*tensors, *rates, step_size, correction, floor, self.eps, *self.move_flags)  # type: ignore[no-any-return]

    @property
    def weigh_flags(self) -> tuple[bool, bool, bool]:
        """The options that decide how to weigh: the last arguments of `t_family_weigh`."""
        return self.robust, self.beta_dof is not None, not self.as_published

    @property
    def move_flags(self) -> tuple[bool]:
        """The options that decide how to move: the last arguments of `t_family_move`."""
        return (self.belief,)


Rule = AdaTermRule | TRule


class Method(NamedTuple):
    """A method of the paper: the class in `adaterm` (or `torch.optim`) and the options that make it."""

    optimizer: str
    options: dict[str, Any]


PAPER: dict[str, Method] = {
    "Adam": Method("Adam", {}),
    "AdaBelief": Method("AdaBelief", {}),
    "RAdam": Method("RAdam", {}),
    "t-Adam": Method("TAdam", {}),
    "At-Adam": Method("AtAdam", {}),
    "AdaTerm": Method("AdaTerm", {}),
    "No adaptiveness": Method("AdaTerm", {"adaptive_dof": False}),
    "No robustness": Method("AdaTerm", {"min_dof": inf}),
    "Large init": Method("AdaTerm", {"init_dof": 100.0}),
    "t-AdaBelief": Method("TAdaBelief", {}),
    "At-AdaBelief": Method("AtAdaBelief", {}),
    "AdaTerm (Uncentered)": Method("AdaTerm", {"uncentered": True}),
    "AdaTerm (AdaBias)": Method("AdaTerm", {"adaptive_bias_correction": True}),
    "AdaTerm (Uncentered + AdaBias)": Method("AdaTerm", {"uncentered": True, "adaptive_bias_correction": True}),
    "AdaTerm2": Method("AdaTerm", {"scale_update": "analytic"}),
    "t-Adam (as published)": Method("TAdam", {"as_published": True}),
    "At-Adam (as published)": Method("AtAdam", {"as_published": True}),
    "t-AdaBelief (as published)": Method("TAdaBelief", {"as_published": True}),
    "At-AdaBelief (as published)": Method("AtAdaBelief", {"as_published": True}),
    "AdaTerm (gradient init)": Method("AdaTerm", {"init_scale": "gradient"}),
}
"""Every method under its name in reports and legends, in their order; the last one is ours, not the paper's."""
