"""The options that every torch optimizer here shares."""

import inspect
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from math import inf
from typing import Any, TypedDict

import torch
from torch import Tensor

from adaterm.checks import Basics, require, require_bools, require_number

Number = float | Tensor

FOREIGN_OPTIONS = (
    *("beta", "betas", "amsgrad", "momentum", "dampening", "nesterov", "rho", "alpha", "centered", "lambd", "t0"),
    *("lr_decay", "etas", "step_sizes", "momentum_decay", "initial_accumulator_value", "max_iter", "ns_steps"),
    *("min_dof", "dof", "beta_dof", "as_published", "judges"),
)
"""Options by which groups of another optimizer are known."""
_KEYS_OF_OTHERS = (
    *("params", "param_names", "name", "initial_lr", "max_lr", "min_lr", "swa_lr", "lr_scale", "lr_mult"),
    *("base_momentum", "max_momentum"),
)
"""What schedulers and frameworks keep in parameter groups."""

_OTHER_NAMES = {"learning_rate": "lr", "wd": "weight_decay", "clip": "max_norm", "max_grad_norm": "max_norm"}
"""What options are called elsewhere."""
_ABSENT = {
    "amsgrad": "there is no amsgrad here",
    "decoupled_weight_decay": "its weight decay is decoupled in any case",
    "init_scale": "only AdaTerm has it; other scales begin with the first gradient",
    "max_norm": "it does not clip. Call clip_grad_norm_ right before optimizer.step(), or use RobustAdamW",
    "lr": "it moves nothing. The learning rate belongs to the optimizer beside it",
    "weight_decay": "it moves nothing. Weight decay belongs to the optimizer beside it",
}
"""Why some optimizers lack an option, or what to do instead."""


class Modes(TypedDict, total=False):
    """The options of every optimizer here, except learning rate and weight decay; they seldom change."""

    decoupled_weight_decay: bool
    maximize: bool
    stochastic_rounding: bool
    foreach: bool | None
    fused: bool | None
    capturable: bool
    differentiable: bool


@dataclass(frozen=True)
class Common(Basics):
    """The options that every torch optimizer here shares."""

    lr: Number = Basics.lr
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
        super().__post_init__()
        require_bools(self, "capturable", "differentiable")
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


def name_options(options: type) -> tuple[str, ...]:
    """The names of the options that a dataclass holds."""
    return tuple(field.name for field in fields(options))


def refuse_unknown_options(optimizer: str, make: Callable[..., None], given: Iterable[str]) -> None:
    """Raise a TypeError, as Python would, that says which option may be meant and which there are."""
    known = list(inspect.signature(make).parameters)
    if "modes" in known:
        known[known.index("modes") :] = Modes.__annotations__
    offered = [name for name in known if name not in ("self", "params", "amsgrad")]  # the last is there to be refused
    for name in given:
        if name not in known:
            advice = _advise(name, offered)
            end = "" if advice.endswith("?") else "."
            raise TypeError(
                f"{optimizer} got an unexpected keyword argument {name!r}{advice}{end} "
                f"Its options are {', '.join(offered)}"
            )


def _advise(name: str, options: Iterable[str]) -> str:
    """Which option may be meant by a name that is none, or what to do without it."""
    close = [name] if name in _ABSENT else get_close_matches(name, [*options, *_OTHER_NAMES], 1)
    meant = _OTHER_NAMES.get(close[0], close[0]) if close else name
    hint = f"did you mean {meant!r}?" if meant in options else _ABSENT.get(meant, "")
    return hint and f": {hint}"


def list_parameters(optimizer: str, params: Any) -> Any:
    """Parameters or groups as a list; what cannot be one raises, or is for torch to refuse."""
    if isinstance(params, torch.nn.Module):
        raise TypeError(f"{optimizer} takes parameters, not a module: pass model.parameters()")
    if isinstance(params, torch.optim.Optimizer):
        raise TypeError(f"{optimizer} takes parameters, not another optimizer: pass model.parameters()")
    if isinstance(params, Mapping):
        raise TypeError(f"{optimizer} takes parameters, or a list of groups, not a dict: pass model.parameters()")
    if isinstance(params, Iterator):
        params = list(params)
        if not params:
            raise ValueError(
                f"optimizer got an empty parameter list: {optimizer} was given a generator that yields nothing, "
                "perhaps because it was used before. Call model.parameters() again, or keep list(model.parameters())"
            )
    return params


def warn_of_spent_generator(optimizer: str, group: dict[str, Any]) -> None:
    """Warn of a group that is empty because its generator was used before."""
    if isinstance(group.get("params"), Iterator):
        group["params"] = list(group["params"])
        if not group["params"]:
            warn_user(
                f"a parameter group of {optimizer} is empty: its generator yields nothing, perhaps because it was used "
                "before. Call model.parameters() again, or keep list(model.parameters())"
            )


def warn_of_meta_parameters(optimizer: str) -> None:
    """Warn of parameters that have no values: torch's optimizers step over them, and so do ours."""
    warn_user(
        f"{optimizer} has parameters on the meta device, which have no values, so nothing moves: make the optimizer "
        "after model.to_empty(device=...), which gives the model new parameters"
    )


def warn_of_unknown_keys(optimizer: str, group: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Warn of keys of a parameter group that have no effect: another optimizer's options, or misspelt ones."""
    for key in group:
        if key not in known and key not in _KEYS_OF_OTHERS:
            warn_user(f"{key!r} in a parameter group has no effect on {optimizer}{_advise(str(key), known)}")


def warn_user(message: str) -> None:
    """Warn, and show the line of the user's that led here."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("adaterm", "torch"):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)
