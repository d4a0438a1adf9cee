"""The reference engine: the equations on one tensor after the other."""

import torch
from torch import Tensor

from adaterm import equations
from adaterm.binding import bind
from adaterm.engines.job import Job, Report, effective_gradient
from adaterm.options import Number
from adaterm.rounding import rounded
from adaterm.rules import Size, Statistics


def _shift_in_place(value: Tensor, direction: Tensor, rate: Number) -> Tensor:
    return value.add_(direction * rate) if isinstance(rate, Tensor) else value.add_(direction, alpha=rate)


_IN_PLACE = bind(shift=_shift_in_place)


def run(job: Job) -> list[Report]:
    """Take one step with every parameter of the job."""
    return [Report([index], _finish(job, index, _gauge(job, index))) for index in range(len(job.params))]


def gauge(job: Job) -> list[Tensor]:
    """The sums, one for each parameter, of which a distance is the mean."""
    return [_gauge(job, index) for index in range(len(job.params))]


def finish(job: Job, totals: list[Tensor]) -> list[Report]:
    """Take the rest of a step, with the sums over whole tensors."""
    return [Report([index], _finish(job, index, total)) for index, total in enumerate(totals)]


def _gauge(job: Job, index: int) -> Tensor:
    mean, scale = job.means[index], job.scales[index]
    gradient = effective_gradient(job.grads[index], job.params[index].to(mean.dtype), job.options)
    terms: Tensor = job.rule.gauge(equations, gradient, mean, scale)
    return terms.sum()


def _finish(job: Job, index: int, total: Tensor) -> Statistics:
    rule, options, size = job.rule, job.options, job.sizes[index]
    stored, mean, scale, step = job.params[index], job.means[index], job.scales[index], job.steps[index]
    lr = job.lr_on(stored.device)
    lib = equations if options.differentiable else _IN_PLACE

    parameter = stored.to(mean.dtype)
    gradient = effective_gradient(job.grads[index], parameter, options)
    if options.weight_decay and options.decoupled_weight_decay:
        parameter = lib.shift(parameter, parameter, -job.decay(lr))

    step += 1
    scalars = {name: values[index] for name, values in job.scalars.items()}
    weights, new_scalars, statistics = rule.weigh(equations, total / size, scalars, Size.of(size))
    count = step.item() if job.on_host else step.to(mean.dtype)
    mean, scale, parameter = rule.move(lib, gradient, mean, scale, parameter, weights, lr, count)

    if options.stochastic_rounding and stored.dtype == torch.bfloat16:
        stored.copy_(rounded(parameter, step.long(), job.streams[index]))
    elif parameter is not stored:
        stored.copy_(parameter)
    if options.differentiable:
        job.means[index], job.scales[index] = mean, scale
        statistics = Statistics(*(value.detach() for value in statistics))
    for name, values in job.scalars.items():
        if options.differentiable:
            values[index] = new_scalars[name]
        else:
            values[index].copy_(new_scalars[name])
    return statistics
