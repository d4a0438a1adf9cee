"""How many trials of a method step at once, in tensors with a leading dimension of trials.

Statistics belong to a trial: AdaTerm's distance is a mean over the elements of one trial's tensor. Optimizers that
treat elements alone need nothing for that; others step trial by trial.
"""

from collections.abc import Callable
from functools import cache
from math import inf
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from adaterm.binding import bind, stages_of
from adaterm.equations import Batch, Notes, Pace, Size, Totals
from adaterm.rules import Rule, measure
from adaterm.torch_primitives import PRIMITIVES, TORCH, push

_TRIALS = bind(PRIMITIVES | {"add_up": lambda terms: terms.flatten(1).sum(1)})  # sums of each trial


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
    note: Tensor
    rate: Tensor
    dof: Tensor


def gauge(rule: Rule, gradient: Tensor, mean: Tensor, scale: Tensor, scalars: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """The sums of one tensor of many trials."""
    wide = {name: _broadcast_tensor(value, gradient) for name, value in scalars.items()}
    stage = stages_of(rule.family, _TRIALS).gauge
    sums: tuple[Tensor, ...] = stage(gradient, mean, scale, _name(rule, wide), rule.numbers, rule.flags)
    return sums[: rule.sum_count]


def apply_rule(
    rule: Rule,
    gradient: Tensor,
    mean: Tensor,
    scale: Tensor,
    parameter: Tensor,
    scalars: dict[str, Tensor],
    lr: float,
    count: Tensor | float,
    sums: tuple[Tensor, ...] | None = None,
    window: Tensor | None = None,
    batch: Batch | None = None,
    weight_decay: float = 0.0,
) -> Step:
    """One step by the library's equations; nothing is changed in place. A rule that judges batches needs all of it."""
    stages, options = stages_of(rule.family, TORCH), (rule.numbers, rule.flags)
    sums = gauge(rule, gradient, mean, scale, scalars) if sums is None else sums
    size, pace = _measure_size(gradient[0].numel()), Pace(lr, weight_decay, count)
    rates, following, note, statistics = stages.weigh(sums, size, _name(rule, scalars), window, batch, pace, *options)
    if weight_decay:
        parameter = parameter - _broadcast_tensor(rates.shrinkage, parameter) * parameter
    broadcast = rule.Rates(*(_broadcast_tensor(value, gradient) for value in rates))
    mean, scale, parameter = stages.move(gradient, mean, scale, parameter, broadcast, *options)
    next_scalars = {name: getattr(following, name) for name in scalars}
    return Step(mean, scale, parameter, next_scalars, note, rates.rate, statistics.dof)


def _name(rule: Rule, scalars: dict[str, Any]) -> Any:
    return rule.Scalars(**{name: scalars.get(name, 0.0) for name in rule.Scalars._fields})


def _broadcast_tensor(value: Tensor | float, like: Tensor) -> Tensor | float:
    return _broadcast(value, like) if isinstance(value, Tensor) and value.dim() else value


def initial_scalars(rule: Rule, like: Tensor) -> dict[str, Tensor]:
    """The numbers that a rule keeps for each trial of a tensor, apart from mean and scale, before the first step."""
    start = rule.initial_scalars(_measure_size(like[0].numel()))
    return {name: like.new_full((len(like),), value) for name, value in start.items()}


class RuleStepper:
    """One of our rules on the tensors of many trials; all of it is on the device: a CUDA graph can repeat it."""

    def __init__(self, rule: Rule, params: list[Tensor], lr: float, weight_decay: float = 0.0) -> None:
        self.rule, self.params, self.lr, self.weight_decay = rule, params, lr, weight_decay
        self.count = torch.zeros((), dtype=params[0].dtype, device=params[0].device)
        self.means = [torch.zeros_like(parameter) for parameter in params]
        self.scales = [torch.full_like(parameter, rule.initial_scale) for parameter in params]
        self.scalars = [initial_scalars(rule, parameter.detach()) for parameter in params]
        self.dofs = params[0].new_full((len(params), len(params[0])), float("nan"))
        self.rates = [torch.empty(0)] * len(params)  # of the last step
        self.fresh = rule.init_scale == "gradient"
        trials = len(params[0])
        self.windows = [params[0].new_full((trials, rule.window), inf) for _ in params if rule.window]
        self.history = params[0].new_full((len(Notes._fields), trials, rule.window), inf)

    @torch.no_grad()
    def step(self) -> None:
        """Take one step with every trial."""
        self.count += 1.0
        sums, batch = self._judge() if self.rule.window else ([None] * len(self.params), None)
        for index, parameter in enumerate(self.params):
            gradient = parameter.grad
            assert gradient is not None
            if self.fresh:
                power = gradient.square().flatten(1).mean(1)
                power = torch.where(power.isfinite(), power, 0.0).clamp_min(self.rule.initial_scale)
                self.scales[index].copy_(_broadcast(power, parameter).expand_as(parameter))
            self._step_tensor(index, parameter, gradient, sums[index], batch)
        self.fresh = False

    def _judge(self) -> tuple[list[Any], Batch]:
        """The sums of all tensors, and the judgement of each trial's batch."""
        rule, stages = self.rule, stages_of(self.rule.family, TORCH)
        sums, summaries = [], []
        for parameter, mean, scale, scalars in zip(self.params, self.means, self.scales, self.scalars, strict=True):
            assert parameter.grad is not None
            sums.append(gauge(rule, parameter.grad, mean, scale, scalars))
            summaries.append(stages.summarize(sums[-1], _measure_size(parameter[0].numel()), rule.flags))
        totals = Totals(*(torch.stack(values).sum(0) for values in zip(*summaries, strict=True)))
        batch, _, notes = stages.judge(totals, *self.history, rule.numbers, rule.flags)
        self.history.copy_(push(self.history, torch.stack(list(notes))))
        return sums, batch

    def _step_tensor(self, index: int, parameter: Tensor, gradient: Tensor, sums: Any, batch: Batch | None) -> None:
        mean, scale, scalars = self.means[index], self.scales[index], self.scalars[index]
        window = self.windows[index] if self.windows else None
        given = (self.lr, self.count, sums, window, batch, self.weight_decay)
        step = apply_rule(self.rule, gradient, mean, scale, parameter, scalars, *given)
        if window is not None:
            window.copy_(push(window, step.note))
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
        return [self.count, self.dofs, self.history, *self.windows, *self.means, *self.scales, *scalars]


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
