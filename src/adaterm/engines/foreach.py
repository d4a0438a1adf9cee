"""The foreach engine: the equations on lists of tensors, with as many launches for two thousand tensors as for one.

Per-tensor numbers lie in stacked vectors, on which `weigh` runs as it does on one tensor. `gauge` and `move` run on
`Tensors`: lists with operators, which need no more than one scratch list beside parameters, gradients and state.
"""

from collections import defaultdict
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from adaterm import equations
from adaterm.binding import bind
from adaterm.engines.job import Job, Report
from adaterm.equations import trigamma
from adaterm.options import Number
from adaterm.rules import Size, Statistics

_ALIGNMENT = 16  # elements: every tensor of a flat buffer starts where vectorised loads can


class Tensors:
    """A list of tensors as one operand.

    Operators and primitives write into a scratch list that they are given, which is thereby used up, and copy any
    other; only `shift` writes into a list that is kept.
    """

    def __init__(self, items: list[Tensor], flat: Tensor | None = None, scratch: bool = False) -> None:
        self.items = items
        self.flat = flat
        self.scratch = scratch

    def take(self) -> "Tensors":
        """A scratch list of these values: this one, used up, if it is scratch, and else a copy."""
        if not self.scratch:
            return self.copy()
        taken = Tensors(self.items, self.flat, scratch=True)
        del self.items, self.flat
        return taken

    def copy(self) -> "Tensors":
        """A scratch list of these values."""
        return _copy(self.items, self.items, self.items[0].dtype)

    def each(self, operation: Callable[[Tensor], Any]) -> "Tensors":
        """Apply an in-place operation on elements: one launch if the list lies in one buffer."""
        for tensor in self.items if self.flat is None else [self.flat]:
            operation(tensor)
        return self

    def accumulate(self, direction: "Tensors", rate: Number) -> "Tensors":
        """Add `rate * direction` in place; the rate is a number, or a vector with one number for each tensor."""
        if isinstance(rate, Tensor):
            rates = rate.to(self.items[0].dtype).expand(len(self.items)).unbind()
            torch._foreach_addcmul_(self.items, rates, direction.items)
        else:
            torch._foreach_add_(self.items, direction.items, alpha=rate)
        return self

    def __sub__(self, other: "Tensors | float") -> "Tensors":
        taken = self.take()
        torch._foreach_sub_(taken.items, _plain(other))
        return taken

    def __add__(self, other: "Tensors | float") -> "Tensors":
        taken = self.take()
        torch._foreach_add_(taken.items, _plain(other))
        return taken

    def __truediv__(self, other: "Tensors") -> "Tensors":
        if other.scratch and not self.scratch:
            taken = other.take().each(Tensor.reciprocal_)
            torch._foreach_mul_(taken.items, self.items)
            return taken
        taken = self.take()
        torch._foreach_div_(taken.items, other.items)
        return taken


class _Gradients(Tensors):
    """The gradients as the rule sees them: in its precision, its sign, and with L2 decay; never written."""

    def __init__(self, job: Job, parameters: Tensors) -> None:
        super().__init__(job.grads)
        self.options = job.options
        self.parameters = parameters

    def copy(self) -> Tensors:
        copied = _copy(self.items, self.parameters.items, self.parameters.items[0].dtype)
        if self.options.maximize:
            copied.each(Tensor.neg_)
        if self.options.weight_decay and not self.options.decoupled_weight_decay:
            copied.accumulate(self.parameters, self.options.weight_decay)
        return copied


def _plain(operand: Tensors | float) -> Any:
    return operand.items if isinstance(operand, Tensors) else operand


def _copy(source: list[Tensor], like: list[Tensor], dtype: torch.dtype) -> Tensors:
    """A scratch list with the source's values and the strides of `like`, in one buffer unless compiled."""
    if torch.compiler.is_compiling():
        return Tensors(
            [torch.empty_like(a, dtype=dtype).copy_(b) for a, b in zip(like, source, strict=True)], scratch=True
        )
    room = [-(-tensor.numel() // _ALIGNMENT) * _ALIGNMENT for tensor in like]
    flat = torch.empty(sum(room), dtype=dtype, device=like[0].device)
    pieces = torch.split(flat, room)
    items = [
        piece.as_strided(tensor.shape, tensor.stride())
        if torch.ops.aten.is_non_overlapping_and_dense(tensor)
        else piece[: tensor.numel()].view(tensor.shape)
        for piece, tensor in zip(pieces, like, strict=True)
    ]
    torch._foreach_copy_(items, source)
    return Tensors(items, flat, scratch=True)


def _shift(value: Tensors, direction: Tensors, rate: Number) -> Tensors:
    return (value.take() if value.scratch else value).accumulate(direction, rate)


def _ratio(value: Tensors, number: Number) -> Tensors:
    taken = value.take()
    return taken.accumulate(taken, 1.0 / number - 1.0)  # only addcmul has one launch for a vector of numbers


def _where(valid: Tensor, value: Tensors, other: float) -> Tensors:
    assert other == 0.0
    taken = value.take().each(lambda tensor: tensor.nan_to_num_(0.0, 0.0, 0.0))
    return taken.accumulate(taken, valid.to(taken.items[0].dtype) - 1.0)


_LISTS = bind(
    shift=_shift,
    ratio=_ratio,
    where=_where,
    sqrt=lambda value: value.take().each(Tensor.sqrt_),
    square=lambda value: value.take().each(lambda tensor: tensor.mul_(tensor)),
    at_least=lambda value, bound: value.take().each(lambda tensor: tensor.clamp_min_(bound)),
)


def run(job: Job) -> list[Report]:
    """Take one step with every parameter of the job, all that share device, precision and step count at once."""
    buckets = defaultdict(list)
    for index, (parameter, mean, step) in enumerate(zip(job.params, job.means, job.steps, strict=True)):
        buckets[parameter.device, parameter.dtype, mean.dtype, step.item() if job.on_host else None].append(index)
    return [Report(indices, _step(job.select(indices))) for indices in buckets.values()]


def _step(job: Job) -> Statistics:
    rule, options, lr = job.rule, job.options, job.lr
    means, scales = Tensors(job.means), Tensors(job.scales)
    dtype, device = job.means[0].dtype, job.means[0].device
    if isinstance(lr, Tensor) and not lr.is_cpu:
        lr = lr.to(device, non_blocking=True)

    exact = job.params[0].dtype == dtype
    parameters = Tensors(job.params if exact else _copy(job.params, job.params, dtype).items)
    gradients = _Gradients(job, parameters)
    if options.weight_decay and options.decoupled_weight_decay:
        torch._foreach_mul_(parameters.items, 1.0 - lr * options.weight_decay)

    torch._foreach_add_(job.steps, 1.0)
    sizes = (_sizes.__wrapped__ if torch.compiler.is_compiling() else _sizes)(
        tuple(tensor.numel() for tensor in job.params), dtype, device
    )
    distance = _sums(rule.gauge(_LISTS, gradients, means, scales)) / sizes.count
    scalars = {name: torch.stack(values) for name, values in job.scalars.items()}
    weights, new_scalars, statistics = rule.weigh(equations, distance, scalars, sizes)
    step = job.steps[0].item() if job.on_host else torch.stack(job.steps).to(dtype)
    rule.move(_LISTS, gradients, means, scales, parameters, weights, lr, step)

    if not exact:
        torch._foreach_copy_(job.params, parameters.items)
    for name, values in job.scalars.items():
        torch._foreach_copy_(values, new_scalars[name].unbind())
    return statistics


def _sums(terms: Tensors) -> Tensor:
    """The sum of each tensor, of terms that are not negative."""
    if terms.items[0].is_cuda:
        return torch.stack(torch._foreach_norm(terms.items, 1))
    return torch.stack([tensor.sum() for tensor in terms.items])  # more exact than the norm is there, and no slower


@lru_cache(maxsize=64)
def _sizes(counts: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Size:
    """Kept between steps, since making it copies numbers to the device."""
    columns = (counts, [trigamma(count / 2.0) for count in counts])
    return Size(*(torch.tensor(column, dtype=dtype, device=device) for column in columns))
