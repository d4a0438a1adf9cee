"""The options that every optimizer here shares, and how any option is checked."""

import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from math import inf
from numbers import Real
from typing import Any, TypedDict

import torch
from torch import Tensor

Number = float | Tensor

FOREIGN_OPTIONS = (
    *("beta", "betas", "amsgrad", "momentum", "dampening", "nesterov", "rho", "alpha", "centered", "lambd", "t0"),
    *("lr_decay", "etas", "step_sizes", "momentum_decay", "initial_accumulator_value", "max_iter", "ns_steps"),
    *("min_dof", "dof", "beta_dof", "as_published"),
)
"""Options by which groups of another optimizer are known."""
_KEYS_OF_OTHERS = (
    *("params", "param_names", "name", "initial_lr", "max_lr", "min_lr", "swa_lr", "lr_scale", "lr_mult"),
    *("base_momentum", "max_momentum"),
)
"""What schedulers and frameworks keep in parameter groups."""


def require(satisfied: bool, option: str, value: object, allowed: str) -> None:
    """Raise an error that names the option, its value and what is allowed."""
    if not satisfied:
        raise ValueError(f"{option}={value!r} is not possible: {option} must be {allowed}")


def is_number(value: object) -> bool:
    """Whether a value is a number; True and False are not."""
    return isinstance(value, Real) and not isinstance(value, bool)


def require_number(option: str, value: Any, low: float, high: float, allowed: str) -> None:
    """Raise unless `low <= value < high`."""
    require(is_number(value) and low <= value < high, option, value, allowed)


def require_bools(options: object, *names: str) -> None:
    """Raise unless each of these options is True or False."""
    for name in names:
        value = getattr(options, name)
        require(isinstance(value, bool), name, value, "True or False")


def require_choice(option: str, value: object, *choices: str) -> None:
    """Raise unless the value is one of the choices."""
    require(value in choices, option, value, " or ".join(map(repr, choices)))


class Modes(TypedDict, total=False):
    """The options that seldom change: those of every optimizer here, beside learning rate and weight decay."""

    decoupled_weight_decay: bool
    maximize: bool
    stochastic_rounding: bool
    foreach: bool | None
    fused: bool | None
    capturable: bool
    differentiable: bool


@dataclass(frozen=True)
class Common:
    """The options that every optimizer here shares."""

    lr: Number = 1e-3
    weight_decay: float = 0.0
    decoupled_weight_decay: bool = False
    maximize: bool = False
    stochastic_rounding: bool = False
    foreach: bool | None = None
    fused: bool | None = None
    capturable: bool = False
    differentiable: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.lr, Tensor):
            if self.lr.numel() != 1:
                raise ValueError(f"Tensor lr must be 1-element, not of shape {tuple(self.lr.shape)}")
            if self.foreach and not self.capturable:
                raise ValueError("lr as a Tensor is not supported for capturable=False and foreach=True")
        if not isinstance(self.lr, Tensor) or (self.lr.is_cpu and not torch.compiler.is_compiling()):
            lr = self.lr.item() if isinstance(self.lr, Tensor) else self.lr
            require_number("lr", lr, 0.0, inf, "a non-negative number or a 1-element tensor")
        require_number("weight_decay", self.weight_decay, 0.0, inf, "a non-negative number")
        require_bools(self, "decoupled_weight_decay", "maximize", "stochastic_rounding", "capturable", "differentiable")
        for option in ("foreach", "fused"):
            value = getattr(self, option)
            require(value is None or isinstance(value, bool), option, value, "None, True or False")
        if self.fused and self.differentiable:
            raise RuntimeError("`fused` does not support `differentiable`")
        if self.fused and self.foreach:
            raise RuntimeError("`fused` and `foreach` cannot be `True` together.")
        if self.differentiable and self.stochastic_rounding:
            raise RuntimeError(
                "stochastic_rounding=True is not possible with differentiable=True: it has no derivative"
            )
        if self.differentiable and self.foreach:
            raise RuntimeError("foreach=True is not possible with differentiable=True; foreach must be None or False")

    @property
    def adds_decay(self) -> bool:
        """Whether weight decay is added to the gradient: L2."""
        return bool(self.weight_decay) and not self.decoupled_weight_decay

    @property
    def shrinks(self) -> bool:
        """Whether weight decay shrinks the parameter itself, as AdamW's does."""
        return bool(self.weight_decay) and self.decoupled_weight_decay


def name_options(options: type) -> tuple[str, ...]:
    """The names of the options that a dataclass holds."""
    return tuple(field.name for field in fields(options))


def warn_of_unknown_keys(optimizer: str, group: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Warn of keys of a parameter group that have no effect: another optimizer's options, or misspelt ones."""
    for key in group:
        if key not in known and key not in _KEYS_OF_OTHERS:
            close = get_close_matches(str(key), known, 1)
            advice = f": did you mean {close[0]!r}?" if close else ""
            warn_user(f"{key!r} in a parameter group has no effect on {optimizer}{advice}")


def warn_user(message: str) -> None:
    """Warn, and show the line of the user's that led here."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("adaterm", "torch"):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)
