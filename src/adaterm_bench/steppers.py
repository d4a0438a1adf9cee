"""How many trials of a method step at once, in tensors with a leading dimension of trials.

Statistics belong to a trial: AdaTerm's distance is a mean over the elements of one trial's tensor. Optimizers that
treat elements alone need nothing for that; others step trial by trial.
"""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from adaterm.binding import stages_of
from adaterm.equations import Size
from adaterm.rules import Rule, measure


class Stepper(Protocol):
    """What steps the tensors of many trials: their gradients are in `.grad`."""

    def step(self) -> None:
        """Take one step with every trial."""

    def dof(self) -> Tensor | None:
        """The degrees of freedom of the last step, of every trial and tensor, where there are any."""

    def state(self) -> list[Tensor]:
        """The tensors that a step changes, apart from the parameters."""


class Step(NamedTuple):
    """What a rule makes of one tensor of many trials; rates and degrees of freedom are one number for each trial."""

    mean: Tensor
    scale: Tensor
    parameter: Tensor
    scalars: dict[str, Tensor]
    rate: Tensor
    dof: Tensor


def apply_rule(
    rule: Rule,
    gradient: Tensor,
    mean: Tensor,
    scale: Tensor,
    parameter: Tensor,
    scalars: dict[str, Tensor],
    lr: float,
    count: Tensor | float,
) -> Step:
    """One step by the library's equations; nothing is changed in place."""
    stages, options = stages_of(rule.family), (rule.numbers, rule.flags)
    numbers = rule.Scalars(**{name: scalars.get(name, 0.0) for name in rule.Scalars._fields})
    wide = rule.Scalars(*(_broadcast_tensor(value, gradient) for value in numbers))
    sums = [term.flatten(1).sum(1) for term in stages.gauge(gradient, mean, scale, wide, *options)]
    size = _measure_size(gradient[0].numel())
    rates, following, statistics = stages.weigh(sums, size, numbers, lr, count, *options)
    broadcast = rule.Rates(*(_broadcast_tensor(value, gradient) for value in rates))
    mean, scale, parameter = stages.move(gradient, mean, scale, parameter, broadcast, *options)
    next_scalars = {name: getattr(following, name) for name in scalars}
    return Step(mean, scale, parameter, next_scalars, rates.rate, statistics.dof)


def _broadcast_tensor(value: Tensor | float, like: Tensor) -> Tensor | float:
    return _broadcast(value, like) if isinstance(value, Tensor) and value.dim() else value


def initial_scalars(rule: Rule, like: Tensor) -> dict[str, Tensor]:
    """The numbers that a rule keeps for each trial of a tensor, apart from mean and scale, before the first step."""
    start = rule.initial_scalars(_measure_size(like[0].numel()))
    return {name: like.new_full((len(like),), value) for name, value in start.items()}


class RuleStepper:
    """One of our rules on the tensors of many trials; all of it is on the device: a CUDA graph can repeat it."""

    def __init__(self, rule: Rule, params: list[Tensor], lr: float) -> None:
        self.rule, self.params, self.lr = rule, params, lr
        self.count = torch.zeros((), dtype=params[0].dtype, device=params[0].device)
        self.means = [torch.zeros_like(parameter) for parameter in params]
        self.scales = [torch.full_like(parameter, rule.initial_scale) for parameter in params]
        self.scalars = [initial_scalars(rule, parameter.detach()) for parameter in params]
        self.dofs = params[0].new_full((len(params), len(params[0])), float("nan"))
        self.rates = [torch.empty(0)] * len(params)  # of the last step
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
                self.scales[index].copy_(_broadcast(power, parameter).expand_as(parameter))
            self._step_tensor(index, parameter, gradient)
        self.fresh = False

    def _step_tensor(self, index: int, parameter: Tensor, gradient: Tensor) -> None:
        mean, scale, scalars = self.means[index], self.scales[index], self.scalars[index]
        step = apply_rule(self.rule, gradient, mean, scale, parameter, scalars, self.lr, self.count)
        for old, new in ((mean, step.mean), (scale, step.scale), (parameter, step.parameter)):
            old.copy_(new)
        for name, values in scalars.items():
            values.copy_(step.scalars[name])
        self.dofs[index].copy_(step.dof)
        self.rates[index] = step.rate

    def dof(self) -> Tensor | None:
        """The degrees of freedom of the last step: trials by tensors."""
        return self.dofs.T if self.rule.robust else None

    def state(self) -> list[Tensor]:
        """The tensors that a step changes, apart from the parameters."""
        scalars = [values for scalars_of_tensor in self.scalars for values in scalars_of_tensor.values()]
        return [self.count, self.dofs, *self.means, *self.scales, *scalars]


class ElementwiseStepper:
    """An optimizer for which many trials are only more elements."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def step(self) -> None:
        """Take one step with every trial."""
        self.optimizer.step()

    def dof(self) -> Tensor | None:
        """There are none."""
        return None

    def state(self) -> list[Tensor]:
        """The optimizer's tensors."""
        return list_state(self.optimizer)


class SeparateSteppers:
    """An optimizer for each trial."""

    def __init__(
        self, factory: Callable[[list[Tensor], float], torch.optim.Optimizer], params: list[Tensor], lr: float
    ) -> None:
        self.params = params
        self.slices = [[parameter.detach()[trial] for parameter in params] for trial in range(len(params[0]))]
        self.optimizers = [factory(tensors, lr) for tensors in self.slices]

    def step(self) -> None:
        """Take one step with every trial."""
        for trial, (tensors, optimizer) in enumerate(zip(self.slices, self.optimizers, strict=True)):
            for tensor, parameter in zip(tensors, self.params, strict=True):
                tensor.grad = None if parameter.grad is None else parameter.grad[trial]
            optimizer.step()

    def dof(self) -> Tensor | None:
        """There are none."""
        return None

    def state(self) -> list[Tensor]:
        """The tensors of all optimizers."""
        return [tensor for optimizer in self.optimizers for tensor in list_state(optimizer)]


def list_state(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """The tensors of an optimizer's state."""
    return [value for entry in optimizer.state.values() for value in entry.values() if isinstance(value, Tensor)]


@cache
def _measure_size(count: int) -> Size:
    return measure(count)


def _broadcast(values: Tensor, like: Tensor) -> Tensor:
    """A number for each trial, in a shape that goes with the trials' tensors."""
    return values.reshape(-1, *(1,) * (like.dim() - 1))
