"""A method as a value: its options, checked once, and the numbers, flags and scalars with which the equations run."""

from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar, Literal, NamedTuple

from adaterm.checks import is_number, require, require_bools, require_choice, require_number
from adaterm.equations import (
    ENOUGH,
    AdaTermFlags,
    AdaTermNumbers,
    AdaTermRates,
    AdaTermScalars,
    RobustAdamFlags,
    RobustAdamNumbers,
    RobustAdamRates,
    RobustAdamScalars,
    Size,
    TFamilyFlags,
    TFamilyNumbers,
    TFamilyRates,
    TFamilyScalars,
    trigamma,
)


def measure(count: int, needs_trigamma: bool = True) -> Size:
    """The size of a tensor of so many elements; without trigamma for a rule that does not need it."""
    return Size(float(max(1, count)), trigamma(max(1, count) / 2.0) if needs_trigamma else 0.0)


def _is_dof(value: Any) -> bool:
    return is_number(value) and (0.0 < value < 1e30 or value == inf)


def _check_adam(rule: Any) -> None:
    """Raise unless the options of a robust Adam are possible."""
    pair = isinstance(rule.betas, (tuple, list)) and len(rule.betas) == 2
    valid = pair and all(is_number(beta) and 0.0 <= beta < 1.0 for beta in rule.betas)
    require(valid, "betas", rule.betas, "two numbers in [0, 1)")
    require_number("eps", rule.eps, 1e-30, inf, "a finite number of at least 1e-30")
    require(_is_dof(rule.dof), "dof", rule.dof, "a positive number below 1e30, or inf")


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
    scale_update: Literal["projected", "analytic"] = "projected"
    init_scale: Literal["eps", "gradient"] = "eps"

    family: ClassVar[str] = "adaterm"
    scale_name: ClassVar[str] = "exp_scale"  # in the state
    window: ClassVar[int] = 0  # notes of a tensor, and of the batch, that are remembered
    sum_count: ClassVar[int] = 1  # that `gauge` leaves of a tensor
    needs_trigamma: ClassVar[bool] = False
    Scalars: ClassVar[type[Any]] = AdaTermScalars
    Rates: ClassVar[type[Any]] = AdaTermRates

    def __post_init__(self) -> None:
        require_number("beta", self.beta, 0.0, 1.0, "one number in [0, 1), the decay of all averages")
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
    def numbers(self) -> AdaTermNumbers:
        """What the equations are given as numbers; schedules may change them."""
        return AdaTermNumbers(self.beta, self.eps, self.min_dof, self.eps**2)

    @property
    def flags(self) -> AdaTermFlags:
        """What decides the course of the equations; kernels are compiled for it."""
        return AdaTermFlags(
            robust=self.robust,
            adaptive=self.adaptive_dof,
            analytic=self.scale_update == "analytic",
            adabias=self.adaptive_bias_correction,
            uncentered=self.uncentered,
        )

    @property
    def initial_scale(self) -> float:
        """The scale before the first gradient."""
        return self.eps**2

    def initial_scalars(self, size: Size, past: float = 0.0) -> dict[str, float]:
        """The per-tensor state besides mean and scale, for averages with a past of so many steps."""
        scalars = {}
        if self.robust:
            scalars["excess_dof"] = max(self.eps, (self.init_dof or 0.0) - self.min_dof)
        if self.adaptive_bias_correction:
            scalars["bias_correction"] = 1.0 if past else 0.0  # with a past there is nothing left to correct
        return scalars


@dataclass(frozen=True)
class TRule:
    """The t-momentum over Adam or AdaBelief; with `beta_dof` the At-momentum, with `dof = inf` neither."""

    belief: bool
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    dof: float = inf
    beta_dof: float | None = None
    as_published: bool = False

    family: ClassVar[str] = "t_family"
    scale_name: ClassVar[str] = "exp_scale"
    window: ClassVar[int] = 0
    sum_count: ClassVar[int] = 1
    needs_trigamma: ClassVar[bool] = True
    Scalars: ClassVar[type[Any]] = TFamilyScalars
    Rates: ClassVar[type[Any]] = TFamilyRates
    initial_scale: ClassVar[float] = 0.0
    init_scale: ClassVar[str] = "eps"

    def __post_init__(self) -> None:
        _check_adam(self)
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

    @property
    def numbers(self) -> TFamilyNumbers:
        """What the equations are given as numbers; schedules may change them."""
        beta1, beta2 = self.betas
        floor = self.eps / (1.0 - beta2) if self.belief else 0.0
        beta_dof = 0.0 if self.beta_dof is None else self.beta_dof
        return TFamilyNumbers(beta1, beta2, self.eps, self.dof, beta_dof, floor)

    @property
    def flags(self) -> TFamilyFlags:
        """What decides the course of the equations; kernels are compiled for it."""
        return TFamilyFlags(
            robust=self.robust,
            adaptive=self.beta_dof is not None,
            keeps=not self.as_published,
            belief=self.belief,
        )

    def initial_scalars(self, size: Size, past: float = 0.0) -> dict[str, float]:
        """The per-tensor state besides mean and scale."""
        if not self.robust:
            return {}
        scalars = {"weight_sum": self.betas[0] / (1.0 - self.betas[0])}
        if self.beta_dof is not None:
            scalars["log_distance_avg"] = 0.0
            scalars["log_distance_var"] = 2.0 * (self.dof + 2.0) / self.dof**2 + size.trigamma
        return scalars


@dataclass(frozen=True)
class RobustAdamRule:
    """AdamW with weights per tensor and a judgement of whole batches, by what was usual in a window of steps."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    dof: float = 3.0
    window: int = 100
    threshold: float = 3.0
    minority: float = 0.25
    max_norm: float | Literal["auto"] | None = None

    family: ClassVar[str] = "robust_adam"
    scale_name: ClassVar[str] = "exp_avg_sq"
    sum_count: ClassVar[int] = 4
    needs_trigamma: ClassVar[bool] = False
    Scalars: ClassVar[type[Any]] = RobustAdamScalars
    Rates: ClassVar[type[Any]] = RobustAdamRates
    initial_scale: ClassVar[float] = 0.0
    init_scale: ClassVar[str] = "eps"

    def __post_init__(self) -> None:
        _check_adam(self)
        # Its square is added to the scale in the gauge, so it must be a normal float32.
        require_number("eps", self.eps, 1.1e-19, inf, "a finite number of at least 1.1e-19")
        whole = isinstance(self.window, int) and not isinstance(self.window, bool)
        require(whole and ENOUGH <= self.window <= 4096, "window", self.window, f"a whole number from {ENOUGH} to 4096")
        positive = is_number(self.threshold) and self.threshold > 0.0
        require(positive, "threshold", self.threshold, "a positive number, or inf to exclude no batch")
        share = is_number(self.minority) and 0.0 < self.minority <= 1.0
        require(share, "minority", self.minority, "a share of the batches: a number above 0, up to 1")
        norm = 1.0 if self.max_norm in (None, "auto") else self.max_norm
        possible = not isinstance(norm, str) and is_number(norm) and norm > 0.0
        require(possible, "max_norm", self.max_norm, 'None, a positive number, or "auto" for the usual norm')

    @property
    def robust(self) -> bool:
        """Whether the dof is finite."""
        return self.dof < inf

    @property
    def numbers(self) -> RobustAdamNumbers:
        """What the equations are given as numbers; schedules may change them."""
        max_norm = inf if self.max_norm is None or isinstance(self.max_norm, str) else self.max_norm
        return RobustAdamNumbers(*self.betas, self.eps, self.dof, self.threshold, self.minority, max_norm, self.window)

    @property
    def flags(self) -> RobustAdamFlags:
        """What decides the course of the equations; kernels are compiled for it."""
        scales = self.max_norm is not None or self.threshold < inf
        return RobustAdamFlags(self.robust, scales, follows=self.max_norm == "auto")

    def initial_scalars(self, size: Size, past: float = 0.0) -> dict[str, float]:
        """The corrections of mean and scale: 0 at first, and those of Adam for averages with a past."""
        names = RobustAdamScalars._fields
        return {name: 1.0 - beta**past for name, beta in zip(names, self.betas, strict=True)}


Rule = AdaTermRule | TRule | RobustAdamRule

# The methods, with the defaults of their options.
ADATERM = AdaTermRule()
T_ADAM = TRule(belief=False, dof=1.0)
AT_ADAM = TRule(belief=False, dof=1.0, beta_dof=0.999)
T_ADABELIEF = TRule(belief=True, eps=1e-16, dof=1.0)
AT_ADABELIEF = TRule(belief=True, eps=1e-16, dof=1.0, beta_dof=0.999)
ADABELIEF = TRule(belief=True, eps=1e-16)
ROBUST_ADAM = RobustAdamRule()


class RuleKind(NamedTuple):
    """What a kernel is compiled for: the equations of a family, and how many numbers go in and out of them."""

    family: str
    flags: Any
    sum_count: int
    window: int
    numbers: type[Any]
    scalars: type[Any]
    rates: type[Any]


def kind_of(rule: Rule) -> RuleKind:
    """The kind of a rule."""
    numbers = type(rule.numbers)
    return RuleKind(rule.family, rule.flags, rule.sum_count, rule.window, numbers, rule.Scalars, rule.Rates)


WINDOW = "log_distances"
"""The name of a tensor's window in its state."""
HISTORY = "batches"
"""The name of what was noted of the last batches, in the state of one of the parameters."""


def name_scalars(rule: Rule) -> tuple[str, ...]:
    """The names of a tensor's numbers in its state, besides mean and scale."""
    return tuple(rule.initial_scalars(Size(1.0, 0.0)))


def name_state(rule: Rule) -> tuple[str, ...]:
    """The names of a parameter's state: step, mean and scale, then numbers, and the window if there is one."""
    return ("step", "exp_avg", rule.scale_name, *name_scalars(rule), *((WINDOW,) if rule.window else ()))
