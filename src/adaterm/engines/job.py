"""What an engine is given: a rule, its options and the tensors of one parameter group."""

from dataclasses import dataclass, field, replace
from math import nan
from typing import Any, NamedTuple

import torch
from torch import Tensor

from adaterm.options import Common, Number
from adaterm.rules import Rule, Statistics


@dataclass
class Job:
    """Parallel lists over the parameters that have a gradient; complex tensors come as pairs of reals.

    Of a tensor that ranks share, these are this rank's part, which may be empty; `sizes` are those of whole tensors.

    An engine changes parameters and state in place; in differentiable mode it puts new tensors into the lists instead.
    A job comes again, with other gradients and perhaps another learning rate, as long as parameters and state are the
    same tensors at the same addresses: what an engine keeps for that goes into `scratch`. What a captured graph refers
    to goes into `kept`, which lives as long as the optimizer. `grad_scale` and `found_inf` are GradScaler's.
    """

    rule: Rule
    options: Common
    params: list[Tensor]
    grads: list[Tensor]
    steps: list[Tensor]
    means: list[Tensor]
    scales: list[Tensor]
    scalars: dict[str, list[Tensor]]
    sizes: list[int]  # elements, of all parts together
    positions: list[int]  # of the parameters among all of the optimizer's
    streams: list[int]  # of rounding noise: one for each part of each parameter
    scratch: dict[str, Any] = field(default_factory=dict)
    kept: list[Any] = field(default_factory=list)
    grad_scale: Tensor | None = None
    found_inf: Tensor | None = None
    on_host: bool = field(init=False)  # whether step counts may be read without waiting for a device

    def __post_init__(self) -> None:
        tracked = self.options.capturable or self.options.differentiable or torch.compiler.is_compiling()
        self.on_host = not tracked and all(step.is_cpu for step in self.steps)

    def select(self, indices: list[int]) -> "Job":
        """The job for some of the parameters."""

        def chosen(tensors: list[Any]) -> list[Any]:
            return [tensors[index] for index in indices]

        return Job(
            self.rule,
            self.options,
            params=chosen(self.params),
            grads=chosen(self.grads),
            steps=chosen(self.steps),
            means=chosen(self.means),
            scales=chosen(self.scales),
            scalars={name: chosen(tensors) for name, tensors in self.scalars.items()},
            sizes=chosen(self.sizes),
            positions=chosen(self.positions),
            streams=chosen(self.streams),
            kept=self.kept,
            grad_scale=self.grad_scale,
            found_inf=self.found_inf,
        )

    def held(self) -> list[Tensor]:
        """The tensors that stay from step to step: parameters and state."""
        columns = (self.params, self.means, self.scales, self.steps, *self.scalars.values())
        return [tensor for column in columns for tensor in column]

    def lr_on(self, device: torch.device) -> Number:
        """The learning rate: a number, or a 0-dim tensor if reading that would wait for a device or break a graph."""
        lr = self.options.lr
        if not isinstance(lr, Tensor):
            return lr
        if lr.is_cpu:
            return lr.item() if self.on_host else lr.reshape(())
        return lr.reshape(()).to(device, non_blocking=device.type != "cpu")

    def decay(self, lr: Number) -> Number:
        """The part of a parameter that decoupled decay takes away: that of AdamW's factor 1 - lr * weight_decay."""
        part = lr * self.options.weight_decay
        return part if isinstance(part, Tensor) else 1.0 - (1.0 - part)


def unscaled(job: Job) -> Job | None:
    """The job with GradScaler's part done, for an engine that knows nothing of it; None if the step is skipped."""
    if job.found_inf is not None and job.found_inf.item():
        return None
    if job.grad_scale is None:
        return job
    wide = [grad.to(torch.promote_types(grad.dtype, torch.float32)) for grad in job.grads]
    grads = [grad / job.grad_scale.to(grad.device) for grad in wide]
    return replace(job, grads=grads, grad_scale=None, found_inf=None)


def skipped(job: Job) -> "Report":
    """What there is to report of a step that is skipped."""
    return Report(list(range(len(job.params))), torch.full((3, len(job.params)), nan, device=job.params[0].device))


class Report(NamedTuple):
    """The statistics of these parameters' last step: 0-dim tensors for one, stacked vectors for several."""

    indices: list[int]
    statistics: Statistics | Tensor  # a tensor has distance, trust and dof as its rows


def effective_gradient(gradient: Tensor, parameter: Tensor, options: Common) -> Tensor:
    """The gradient as the rule sees it: in the parameter's precision, its sign, and with L2 decay; never written."""
    gradient = gradient.to(parameter.dtype)
    if options.maximize:
        gradient = -gradient
    if options.weight_decay and not options.decoupled_weight_decay:
        gradient = gradient + options.weight_decay * parameter
    return gradient
