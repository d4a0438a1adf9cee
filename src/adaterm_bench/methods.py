"""The methods under comparison, by name: those of the paper, a few others, and those that users register."""

from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any, NamedTuple

import torch
from torch import Tensor

import adaterm
from adaterm.optimizer import RobustOptimizer
from adaterm.rules import Rule
from adaterm_bench.core.experiment import CHANGING
from adaterm_bench.equations import hash_equations
from adaterm_bench.steppers import ElementwiseStepper, RuleStepper, SeparateSteppers, Stepper

Factory = Callable[[list[Tensor], float], torch.optim.Optimizer]
"""Makes an optimizer from parameters and a learning rate."""


class Method(NamedTuple):
    """The class in `adaterm` (or `torch.optim`) and the options that make a method of the paper."""

    optimizer: str
    options: dict[str, Any]


PAPER_METHODS: dict[str, Method] = {
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

OUR_METHODS: dict[str, Method] = {
    "RobustAdamW": Method("RobustAdamW", {}),
    "RobustAdamW (clipped)": Method("RobustAdamW", {"max_norm": 1.0}),
}
"""What is not the paper's, under its name in reports and legends."""


GROUPS: dict[str, tuple[str, ...]] = {
    "six": tuple(PAPER_METHODS)[:6],
    "paper": tuple(PAPER_METHODS),
    "ours": tuple(OUR_METHODS),
}
"""Words for many methods: those of the paper's main table, all of the paper and its appendices, and ours."""


class ClippedAdamW(torch.optim.AdamW):
    """AdamW after clipping all gradients to a norm of 1: what many use against wild gradients."""

    def step(self, closure: Any = None) -> Any:
        """Clip, then step."""
        torch.nn.utils.clip_grad_norm_([param for group in self.param_groups for param in group["params"]], 1.0)
        return super().step(closure)


_REGISTERED: dict[str, tuple[Factory, bool]] = {
    "Adam": (lambda params, lr: torch.optim.Adam(params, lr, **_fused(params)), True),
    "RAdam": (lambda params, lr: torch.optim.RAdam(params, lr, foreach=True, capturable=params[0].is_cuda), True),
    "AdamW (clipped)": (lambda params, lr: ClippedAdamW(params, lr, **_fused(params)), False),
}


def register(name: str, factory: Factory, elementwise: bool = False) -> None:
    """Add a method; `elementwise` if it treats every element alone, so that one optimizer can step all trials."""
    if name in list_methods():
        raise ValueError(f"there is a method {name!r} already")
    if "," in name:
        raise ValueError(f"the name {name!r} has a comma, which would end it in --methods: leave it out")
    _REGISTERED[name] = (factory, elementwise)


def unregister(name: str) -> None:
    """Remove a method that was registered."""
    if name in PAPER_METHODS or name in OUR_METHODS or name not in _REGISTERED:
        raise ValueError(f"the method {name!r} was not registered")
    del _REGISTERED[name]


def list_methods() -> list[str]:
    """The names of all methods, the paper's first."""
    return list(dict.fromkeys([*PAPER_METHODS, *OUR_METHODS, *_REGISTERED]))


def make_stepper(method: str, params: list[Tensor], lr: float) -> Stepper:
    """What steps these tensors of many trials by a method; their first dimension is the trial."""
    if method in _REGISTERED:
        factory, elementwise = _REGISTERED[method]
        return ElementwiseStepper(factory(params, lr)) if elementwise else SeparateSteppers(factory, params, lr)
    optimizer = _make(method, [torch.zeros(1)])
    decay = optimizer.defaults["weight_decay"]
    if decay and not optimizer.defaults["decoupled_weight_decay"]:
        raise ValueError(f"{method}: many trials at once know decoupled weight decay only, not L2")
    return RuleStepper(optimizer.rule_of(0), params, lr, decay)


def make_optimizer(method: str, params: list[Tensor], lr: float) -> torch.optim.Optimizer:
    """The optimizer itself, as a user would make it, in a form that a CUDA graph can capture; for one trial."""
    if method in _REGISTERED:
        return _REGISTERED[method][0](params, lr)
    return _make(method, params, lr=lr, capturable=params[0].is_cuda)


def make_rule(method: str) -> Rule:
    """The rule of one of our methods."""
    return _make(method, [torch.zeros(1)]).rule_of(0)


def _make(method: str, params: list[Tensor], **options: Any) -> RobustOptimizer:
    if method not in PAPER_METHODS | OUR_METHODS:
        raise ValueError(f"there is no method {method!r}: choose from {', '.join(list_methods())}")
    name, chosen = (PAPER_METHODS | OUR_METHODS)[method]
    optimizer: RobustOptimizer = getattr(adaterm, name)(params, **chosen, **options)
    return optimizer


def _name_equations(method: str) -> str:
    return hash_equations(_make(method, [torch.zeros(1)]))


def _fused(params: list[Tensor]) -> dict[str, Any]:
    return {"fused": True, "capturable": params[0].is_cuda}


CHANGING.update({method: partial(_name_equations, method) for method in OUR_METHODS})
