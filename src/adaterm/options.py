"""The options that every optimizer here shares, and how any option is checked."""

from dataclasses import dataclass, fields
from math import inf
from numbers import Real
from typing import Any

import torch
from torch import Tensor

Number = float | Tensor


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


def option_names(options: type) -> tuple[str, ...]:
    """The names of the options that a dataclass holds."""
    return tuple(field.name for field in fields(options))
