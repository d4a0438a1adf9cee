"""The methods under comparison, by name, and how many trials of one run at once.

Every tensor has a leading dimension of trials. Statistics are each trial's own: AdaTerm's distance is a mean over the
elements of one trial's tensor. Optimizers that treat elements alone need nothing for that; others may be registered
too, and then step trial by trial.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

import adaterm
from adaterm import PAPER, equations
from adaterm.rules import Rule, Size, Weights

Factory = Callable[[list[Tensor], float], torch.optim.Optimizer]
"""Makes an optimizer from parameters and a learning rate."""


class Stepper(Protocol):
    """What steps the tensors of many trials: their gradients are in `.grad`."""

    def step(self) -> None:
        """Take one step with every trial."""

    def dof(self) -> Tensor | None:
        """The degrees of freedom of the last step, of every trial and tensor, where there are any."""

    def state(self) -> list[Tensor]:
        """The tensors that a step changes, beside the parameters."""


_REGISTERED: dict[str, tuple[Factory, bool]] = {
    "Adam": (lambda params, lr: torch.optim.Adam(params, lr, **_fused(params)), True),
    "RAdam": (lambda params, lr: torch.optim.RAdam(params, lr, foreach=True, capturable=params[0].is_cuda), True),
    "AdamW (clipped)": (lambda params, lr: _Clipped(params, lr, **_fused(params)), False),
}


def register(name: str, factory: Factory, elementwise: bool = False) -> None:
    """Add a method; `elementwise` if it treats every element alone, so that one optimizer can step all trials."""
    if name in PAPER or name in _REGISTERED:
        raise ValueError(f"there is a method {name!r} already")
    if "," in name:
        raise ValueError(f"the name {name!r} has a comma, which would end it in --methods: leave it out")
    _REGISTERED[name] = (factory, elementwise)


def known() -> list[str]:
    """The names of all methods, the paper's first."""
    return [*PAPER, *(name for name in _REGISTERED if name not in PAPER)]


def stepper(method: str, params: list[Tensor], lr: float) -> Stepper:
    """What steps these tensors of many trials by a method."""
    if method in _REGISTERED:
        factory, elementwise = _REGISTERED[method]
        return _Elementwise(factory(params, lr)) if elementwise else _OneByOne(factory, params, lr)
    if method not in PAPER:
        raise ValueError(f"there is no method {method!r}: choose from {', '.join(known())}")
    return Batched(rule_of(method), params, lr)


def optimizer_for(method: str, params: list[Tensor], lr: float) -> torch.optim.Optimizer:
    """The optimizer itself, as a user would make it, in a form that a CUDA graph can capture; for one trial."""
    if method in _REGISTERED:
        return _REGISTERED[method][0](params, lr)
    if method not in PAPER:
        raise ValueError(f"there is no method {method!r}: choose from {', '.join(known())}")
    name, options = PAPER[method]
    made: torch.optim.Optimizer = getattr(adaterm, name)(params, lr=lr, capturable=params[0].is_cuda, **options)
    return made


def rule_of(method: str) -> Rule:
    """The rule of one of our methods."""
    name, options = PAPER[method]
    optimizer = getattr(adaterm, name)([torch.zeros(1)], **options)
    rule: Rule = optimizer._checked(optimizer.defaults)[0]
    return rule


class Batched:
    """The equations on tensors of many trials; all of it happens on the device, so that a CUDA graph can repeat it."""

    def __init__(self, rule: Rule, params: list[Tensor], lr: float) -> None:
        self.rule, self.params, self.lr = rule, params, lr
        self.count = torch.zeros((), dtype=params[0].dtype, device=params[0].device)
        self.sizes = [Size.of(parameter[0].numel()) for parameter in params]
        self.means = [torch.zeros_like(parameter) for parameter in params]
        self.scales = [torch.full_like(parameter, rule.initial_scale) for parameter in params]
        trials = len(params[0])
        self.scalars = [
            {name: parameter.new_full((trials,), value) for name, value in rule.initial_scalars(size).items()}
            for parameter, size in zip(params, self.sizes, strict=True)
        ]
        self.dofs = params[0].new_full((len(params), trials), float("nan"))
        self.fresh = rule.init_scale == "gradient"

    @torch.no_grad()
    def step(self) -> None:
        """Take one step with every trial."""
        self.count += 1.0
        for index, parameter in enumerate(self.params):
            gradient = parameter.grad
            assert gradient is not None
            if self.fresh:
                power = gradient.square().flatten(1).mean(1)
                power = torch.where(power.isfinite(), power, 0.0).clamp_min(self.rule.initial_scale)
                self.scales[index].copy_(_wide(power, parameter).expand_as(parameter))
            self._step_one(index, parameter, gradient)
        self.fresh = False

    def _step_one(self, index: int, parameter: Tensor, gradient: Tensor) -> None:
        mean, scale, scalars = self.means[index], self.scales[index], self.scalars[index]
        distance = self.rule.gauge(equations, gradient, mean, scale).flatten(1).mean(1)
        weights, new, statistics = self.rule.weigh(equations, distance, scalars, self.sizes[index])
        broadcast = Weights(*(_wide(it, parameter) if isinstance(it, Tensor) else it for it in weights))
        moved = self.rule.move(equations, gradient, mean, scale, parameter, broadcast, self.lr, self.count)
        for old, value in zip((mean, scale, parameter), moved, strict=True):
            old.copy_(value)
        for name, values in scalars.items():
            values.copy_(new[name])
        self.dofs[index].copy_(statistics.dof)

    def dof(self) -> Tensor | None:
        """The degrees of freedom of the last step: trials by tensors."""
        return self.dofs.T if self.rule.robust else None

    def state(self) -> list[Tensor]:
        """The tensors that a step changes, beside the parameters."""
        scalars = [values for each in self.scalars for values in each.values()]
        return [self.count, self.dofs, *self.means, *self.scales, *scalars]


class _Elementwise:
    """An optimizer for which many trials are only more elements."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def step(self) -> None:
        self.optimizer.step()

    def dof(self) -> Tensor | None:
        return None

    def state(self) -> list[Tensor]:
        return tensors_of(self.optimizer)


class _OneByOne:
    """An optimizer for each trial."""

    def __init__(self, factory: Factory, params: list[Tensor], lr: float) -> None:
        self.params = params
        self.own = [[parameter.detach()[trial] for parameter in params] for trial in range(len(params[0]))]
        self.optimizers = [factory(own, lr) for own in self.own]

    def step(self) -> None:
        for trial, (own, optimizer) in enumerate(zip(self.own, self.optimizers, strict=True)):
            for mine, parameter in zip(own, self.params, strict=True):
                mine.grad = None if parameter.grad is None else parameter.grad[trial]
            optimizer.step()

    def dof(self) -> Tensor | None:
        return None

    def state(self) -> list[Tensor]:
        return [tensor for optimizer in self.optimizers for tensor in tensors_of(optimizer)]


class _Clipped(torch.optim.AdamW):
    """AdamW after clipping all gradients to a norm of 1: what many use against wild gradients."""

    def step(self, closure: Any = None) -> Any:
        torch.nn.utils.clip_grad_norm_([it for group in self.param_groups for it in group["params"]], 1.0)
        return super().step(closure)


def tensors_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """The tensors of an optimizer's state."""
    return [value for entry in optimizer.state.values() for value in entry.values() if isinstance(value, Tensor)]


def _fused(params: list[Tensor]) -> dict[str, Any]:
    return {"fused": True, "capturable": params[0].is_cuda}


def _wide(values: Tensor, like: Tensor) -> Tensor:
    """A number for each trial, in a shape that goes with the trials' tensors."""
    return values.reshape(-1, *(1,) * (like.dim() - 1))
