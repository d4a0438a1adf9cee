"""What every engine is given, and what it must be able to do."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from adaterm.equations import Batch, Pace
from adaterm.options import Common, Number
from adaterm.rules import Rule, kind_of


class Scaling(NamedTuple):
    """What GradScaler leaves for an optimizer that unscales by itself; `found_inf` is 0 if the step is to be taken."""

    grad_scale: Tensor | None = None
    found_inf: Tensor | None = None


def is_capturing() -> bool:
    """Whether a CUDA graph is being captured."""
    return bool(torch.cuda.is_initialized()) and torch.cuda.is_current_stream_capturing()  # type: ignore[no-untyped-call]


@dataclass
class Block:
    """Tensors of one parameter group that share device and precisions, as parallel lists.

    Complex tensors come as pairs of reals. If ranks share a tensor, the lists have this rank's part, which may be
    empty; `sizes` are those of whole tensors. Gradients, rule, options and scaling are those of the current step.
    """

    rule: Rule
    options: Common
    params: list[Tensor]
    grads: list[Tensor]
    steps: list[Tensor]
    means: list[Tensor]
    scales: list[Tensor]
    scalars: dict[str, list[Tensor]]
    windows: list[Tensor]  # empty if the rule remembers nothing
    sizes: list[int]
    owners: list[Tensor]  # the parameters as the optimizer has them
    positions: list[int]  # of these among all of its parameters
    streams: list[int]  # of rounding noise: one for each part of each parameter
    arranged: list[Tensor] = field(default_factory=list)  # gradients in the order of memory that a fused engine needs
    captured: list[Any] = field(default_factory=list)  # what CUDA graphs refer to; lives as long as the optimizer
    scaling: Scaling = field(default_factory=Scaling)
    on_host: bool = field(init=False)  # whether step counts may be read without waiting for a device

    def __post_init__(self) -> None:
        tracked = self.options.capturable or self.options.differentiable or torch.compiler.is_compiling()
        self.on_host = not tracked and all(step.is_cpu for step in self.steps)

    def read_lr(self) -> Number:
        """The learning rate: a number, or a 0-dim tensor if reading that would wait for a device or break a graph."""
        lr, device = self.options.lr, self.params[0].device
        if not isinstance(lr, Tensor):
            return lr
        if lr.is_cpu:
            return lr.item() if self.on_host else lr.reshape(())
        return lr.reshape(()).to(device, non_blocking=device.type != "cpu")

    def read_sign(self) -> Number:
        """What gradients are multiplied with: -1 to maximize, and the inverse of GradScaler's scale."""
        sign = -1.0 if self.options.maximize else 1.0
        scale = self.scaling.grad_scale
        return sign if scale is None else sign / scale.reshape(()).to(self.params[0].device)

    def read_pace(self, step: Number) -> Pace:
        """What the equations are told of the step."""
        return Pace(self.read_lr(), self.options.weight_decay, step)

    def gather_scalars(self, values: dict[str, Any]) -> Any:
        """A rule's scalars by name; those that it does not have are 0."""
        return self.rule.Scalars(**{name: values.get(name, 0.0) for name in self.rule.Scalars._fields})


def describe_variant(rule: Rule, options: Common) -> tuple[Any, ...]:
    """What the course of a step depends on; other options are numbers, which may change from step to step."""
    decay, lr = (options.adds_decay, options.shrinks), options.lr
    modes = (options.stochastic_rounding, options.capturable, options.differentiable, options.foreach, options.fused)
    return kind_of(rule), decay, modes, lr.device if isinstance(lr, Tensor) else None


class Evidence(NamedTuple):
    """By what a batch is judged: the sums and sizes of all tensors, and what was noted of the last, newest first."""

    sums: Tensor
    sizes: Tensor
    history: Tensor
    remember: bool  # whether what is noted of this batch is to be added to the history


# A verdict is a vector: what is reported of a batch, the rest of `Batch`, and the norm that is noted.
LEVEL, ZSCORE, TRUST, CLIP, EXCESS, NORM = range(6)
VERDICT = 6


def read_verdict(verdict: Tensor | None) -> Batch | None:
    """The judgement of a batch."""
    return None if verdict is None else Batch(verdict[TRUST], verdict[CLIP], verdict[EXCESS])


class Engine(Protocol):
    """Steps the tensors of a block, and owns all that is remembered for the next step; only engines change state."""

    block: Block
    statistics: Tensor
    """Distance, trust and dof of the last step, as rows; NaN if GradScaler had it skipped."""
    skips_on_device: bool
    """Whether it reads GradScaler's `found_inf` on the device, and skips the step there."""

    def __init__(self, block: Block) -> None: ...

    def step(self) -> None:
        """Take a whole step, where nothing has to be agreed between its stages."""

    def gauge(self) -> Tensor:
        """The sums of every tensor: a row for each sum of the rule."""

    def judge(self, evidence: Evidence) -> Tensor:
        """The verdict on a batch, by the options of this engine's group; only for rules that judge."""

    def finish(self, sums: Tensor, verdict: Tensor | None) -> None:
        """Weigh and move, with the sums of whole tensors, and with the verdict of a rule that judges."""
