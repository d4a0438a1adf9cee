"""How any option is checked, and the options that every optimizer here has, in any array library."""

from dataclasses import dataclass
from math import inf
from numbers import Real
from typing import Any


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
class Basics:
    """The options that do not depend on the rule, nor on the array library, which checks what it takes as `lr`."""

    lr: Any = 1e-3
    weight_decay: float = 0.0
    decoupled_weight_decay: bool = False
    maximize: bool = False
    stochastic_rounding: bool = False

    def __post_init__(self) -> None:
        require_number("weight_decay", self.weight_decay, 0.0, inf, "a non-negative number")
        require_bools(self, "decoupled_weight_decay", "maximize", "stochastic_rounding")

    @property
    def adds_decay(self) -> bool:
        """Whether weight decay is added to the gradient: L2."""
        return bool(self.weight_decay) and not self.decoupled_weight_decay

    @property
    def shrinks(self) -> bool:
        """Whether weight decay shrinks the parameter itself, as AdamW's does."""
        return bool(self.weight_decay) and self.decoupled_weight_decay
