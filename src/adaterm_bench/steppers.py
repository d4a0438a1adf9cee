"""How many trials of a method step at once, in tensors with a leading dimension of trials.

Statistics belong to a trial: AdaTerm's distance is a mean over the elements of one trial's tensor. Optimizers that
treat elements alone need nothing for that; others step trial by trial.
"""

from collections.abc import Callable
from math import inf, nan
from typing import Any, Protocol

import torch
from torch import Tensor

from adaterm.binding import bind, stages_of
from adaterm.equations import Batch, Notes, Pace, Size, Totals
from adaterm.rules import Rule, measure
from adaterm.torch_primitives import PRIMITIVES, TORCH, push

LONG = 1000  # steps on a CPU, after which it pays to compile them
_TRIALS = bind(PRIMITIVES | {"add_up": lambda terms: terms.flatten(1).sum(1)})  # sums of each trial


class Stepper(Protocol):
    """What steps the tensors of many trials: their gradients are in `.grad`."""

    def step(self) -> None:
        """Take one step with every trial."""

    def dof(self) -> Tensor | None:
        """The degrees of freedom of the last step, of every trial and tensor, where there are any."""

    def state(self) -> list[Tensor]:
        """The tensors that a step changes, apart from the parameters."""


def gauge(rule: Rule, gradient: Tensor, mean: Tensor, scale: Tensor, scalars: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """The sums of one tensor of many trials."""
    wide = {name: _broadcast_tensor(value, gradient) for name, value in scalars.items()}
    stage = stages_of(rule.family, _TRIALS).gauge
    sums: tuple[Tensor, ...] = stage(gradient, mean, scale, _name(rule, wide), rule.numbers, rule.flags)
    return sums[: rule.sum_count]


def update_averages(
    rule: Rule, gradient: Tensor, mean: Tensor, scale: Tensor, scalars: dict[str, Tensor]
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """The next mean, scale and scalars of one tensor by the library's equations; nothing is changed in place."""
    sums, size = gauge(rule, gradient, mean, scale, scalars), measure(gradient[0].numel())
    weigh = stages_of(rule.family, TORCH).weigh
    pace = Pace(0.0, 0.0, 1)
    rates, following, *_ = weigh(sums, size, _name(rule, scalars), None, None, pace, rule.numbers, rule.flags)
    mean, scale, _ = move(rule, gradient, mean, scale, mean, rates)
    return mean, scale, {name: getattr(following, name) for name in scalars}


def move(
    rule: Rule, gradient: Tensor, mean: Tensor, scale: Tensor, parameter: Tensor, rates: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """The next mean, scale and parameter of one tensor; rates are one number for each trial."""
    wide = rule.Rates(*(_broadcast_tensor(value, gradient) for value in rates))
    stage = stages_of(rule.family, TORCH).move
    moved: tuple[Tensor, Tensor, Tensor] = stage(gradient, mean, scale, parameter, wide, rule.numbers, rule.flags)
    return moved


def _name(rule: Rule, scalars: dict[str, Any]) -> Any:
    return rule.Scalars(**{name: scalars.get(name, 0.0) for name in rule.Scalars._fields})


def _broadcast_tensor(value: Tensor | float, like: Tensor) -> Tensor | float:
    return _broadcast(value, like) if isinstance(value, Tensor) and value.dim() else value


def initial_scalars(rule: Rule, like: Tensor) -> dict[str, Tensor]:
    """The numbers that a rule keeps for each trial of a tensor, apart from mean and scale, before the first step."""
    start = rule.initial_scalars(measure(like[0].numel()))
    return {name: like.new_full((len(like),), value) for name, value in start.items()}


class RuleStepper:
    """One of our rules on the tensors of many trials; all of it is on the device: a CUDA graph can repeat it.

    Numbers of a tensor and a trial are kept and weighed in one array, a row for each tensor.
    """

    def __init__(self, rule: Rule, params: list[Tensor], lr: float, weight_decay: float = 0.0) -> None:
        self.rule, self.params, self.lr, self.weight_decay = rule, params, lr, weight_decay
        like, rows = params[0].detach(), (len(params), len(params[0]))
        sizes = [measure(parameter[0].numel()) for parameter in params]
        self.sizes = Size(*(like.new_tensor(column).unsqueeze(1) for column in zip(*sizes, strict=True)))
        self.count = like.new_zeros(())
        self.means = [torch.zeros_like(parameter) for parameter in params]
        self.scales = [torch.full_like(parameter, rule.initial_scale) for parameter in params]
        starts = [initial_scalars(rule, parameter.detach()) for parameter in params]
        self.scalars = {name: torch.stack([start[name] for start in starts]) for name in starts[0]}
        self.dofs = like.new_full(rows, nan)
        self.rates = like.new_full(rows, nan)  # of the last step
        self.fresh = rule.init_scale == "gradient"
        self.windows = like.new_full((*rows, rule.window), inf)
        self.history = like.new_full((len(Notes._fields), rows[1], rule.window), inf)
        self._advance: Callable[[], None] = self._step_all
        self._compiles_later = like.device.type == "cpu"

    def step(self) -> None:
        """Take one step with every trial; in a long run on a CPU it is compiled, and several times as fast."""
        if not self._compiles_later or self.count < LONG:
            self._advance()
            return
        self._compiles_later = False
        torch.compiler.reset()  # the step of trials before these; only so many versions of a function are kept
        self._advance = torch.compile(self._advance)
        with torch._dynamo.config.patch(suppress_errors=True):  # without a C++ compiler it stays as it is
            self._advance()

    @torch.no_grad()
    def _step_all(self) -> None:
        self.count += 1.0
        gradients = [parameter.grad for parameter in self.params if parameter.grad is not None]
        if self.fresh:
            self._begin_scales(gradients)
        rule, stages, options = self.rule, stages_of(self.rule.family, TORCH), (self.rule.numbers, self.rule.flags)
        sums = self._gauge(gradients)
        batch = self._judge(sums) if rule.window else None
        scalars, pace = _name(rule, self.scalars), Pace(self.lr, self.weight_decay, self.count)
        rates, following, note, statistics = stages.weigh(
            sums, self.sizes, scalars, self.windows, batch, pace, *options
        )
        tensors = zip(gradients, self.means, self.scales, self.params, strict=True)
        for row, (gradient, mean, scale, parameter) in enumerate(tensors):
            own = rule.Rates(*(_take_row(value, row) for value in rates))
            if self.weight_decay:
                parameter -= _broadcast_tensor(own.shrinkage, parameter) * parameter
            moved = move(rule, gradient, mean, scale, parameter, own)
            for old, new in zip((mean, scale, parameter), moved, strict=True):
                old.copy_(new)
        for name, values in self.scalars.items():
            values.copy_(getattr(following, name))
        if rule.window:
            self.windows.copy_(push(self.windows, note))
        self.dofs.copy_(statistics.dof)
        self.rates.copy_(rates.rate)

    def _begin_scales(self, gradients: list[Tensor]) -> None:
        """Scales begin as the mean squares of first gradients."""
        for scale, gradient in zip(self.scales, gradients, strict=True):
            power = gradient.square().flatten(1).mean(1)
            power = torch.where(power.isfinite(), power, 0.0).clamp_min(self.rule.initial_scale)
            scale.copy_(_broadcast(power, scale).expand_as(scale))
        self.fresh = False

    def _gauge(self, gradients: list[Tensor]) -> tuple[Tensor, ...]:
        """The sums of all tensors: of each kind a row for each tensor."""
        rows = [
            gauge(self.rule, gradient, mean, scale, {name: values[row] for name, values in self.scalars.items()})
            for row, (gradient, mean, scale) in enumerate(zip(gradients, self.means, self.scales, strict=True))
        ]
        return tuple(torch.stack(kind) for kind in zip(*rows, strict=True))

    def _judge(self, sums: tuple[Tensor, ...]) -> Batch:
        """The judgement of each trial's batch, which is noted."""
        rule, stages = self.rule, stages_of(self.rule.family, TORCH)
        totals = Totals(*(values.sum(0) for values in stages.summarize(sums, self.sizes, rule.flags)))
        batch, _, notes = stages.judge(totals, *self.history, rule.numbers, rule.flags)
        self.history.copy_(push(self.history, torch.stack(list(notes))))
        judgement: Batch = batch
        return judgement

    def dof(self) -> Tensor | None:
        """The degrees of freedom of the last step: trials by tensors."""
        return self.dofs.T if self.rule.robust else None

    def state(self) -> list[Tensor]:
        """The tensors that a step changes, apart from the parameters."""
        return [self.count, self.dofs, self.history, self.windows, *self.means, *self.scales, *self.scalars.values()]


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


def _take_row(values: Any, row: int) -> Any:
    """The numbers of one tensor; what all tensors share, one for each trial or one for all, is left as it is."""
    return values[row] if isinstance(values, Tensor) and values.dim() == 2 else values


def _broadcast(values: Tensor, like: Tensor) -> Tensor:
    """A number for each trial, in a shape that goes with the trials' tensors."""
    return values.reshape(-1, *(1,) * (like.dim() - 1))
