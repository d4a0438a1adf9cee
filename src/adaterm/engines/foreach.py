"""The foreach engine: the equations on lists of tensors, as many list operations for many tensors as for one.

On a GPU torch splits an operation on a long list into several launches, as it does for its own foreach optimizers.

Per-tensor numbers lie in stacked vectors, on which `weigh` runs as it does on one tensor. `gauge` and `move` run on
`Tensors`: lists with operators, which need no more than two scratch lists beside parameters, gradients and state.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from adaterm import equations
from adaterm.binding import bind
from adaterm.engines.job import Job, Report
from adaterm.options import Number
from adaterm.rounding import rounded
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
        if tensor.is_contiguous() or torch.ops.aten.is_non_overlapping_and_dense(tensor)
        else piece[: tensor.numel()].view(tensor.shape)
        for piece, tensor in zip(pieces, like, strict=True)
    ]
    torch._foreach_copy_(items, source)
    return Tensors(items, flat, scratch=True)


def _shift(value: Tensors, direction: Tensors, rate: Number) -> Tensors:
    return (value.take() if value.scratch else value).accumulate(direction, rate)


def _ratio(value: Tensors, number: Number) -> Tensors:
    """A quotient in a list of its own, so that the value may be used again."""
    copied = value.copy()
    return copied.accumulate(copied, 1.0 / number - 1.0)  # only addcmul has one launch for a vector of numbers


def _where(valid: Tensor, value: Tensors, other: float) -> Tensors:
    assert other == 0.0, "an excluded gradient counts as zero"
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


class _Bucket:
    """Parameters that share device and precision, as lists."""

    def __init__(self, job: Job) -> None:
        dtype = job.means[0].dtype
        self.job = job
        self.exact = job.params[0].dtype == dtype
        self.parameters = Tensors(job.params if self.exact else _copy(job.params, job.params, dtype).items)
        self.gradients = _Gradients(job, self.parameters)
        self.means, self.scales = Tensors(job.means), Tensors(job.scales)

    def gauge(self) -> list[Tensor]:
        """The sums, of terms that are not negative, of which a distance is the mean."""
        terms = self.job.rule.gauge(_LISTS, self.gradients, self.means, self.scales).items
        on_gpu = terms[0].is_cuda  # elsewhere a sum is more exact than the norm, and no slower
        return list(torch._foreach_norm(terms, 1)) if on_gpu else [tensor.sum() for tensor in terms]

    def finish(self, totals: list[Tensor]) -> Statistics:
        """Weigh and move, with the sums over whole tensors."""
        job, parameters = self.job, self.parameters
        rule, options, lr = job.rule, job.options, job.lr_on(job.means[0].device)
        if options.weight_decay and options.decoupled_weight_decay:
            parameters.accumulate(parameters, -job.decay(lr))
        torch._foreach_add_(job.steps, 1.0)
        size = Size(1.0, 0.0)
        if rule.needs_size:
            sizes = map(Size.of, job.sizes)
            size = Size(*(_vector(column, job.means[0]) for column in zip(*sizes, strict=True)))
        distance = torch.stack(torch._foreach_div(totals, list(map(float, job.sizes))))
        scalars = {name: torch.stack(values) for name, values in job.scalars.items()}
        weights, new_scalars, statistics = rule.weigh(equations, distance, scalars, size)
        rule.move(_LISTS, self.gradients, self.means, self.scales, parameters, weights, lr, _step_counts(job))

        if not self.exact:
            torch._foreach_copy_(job.params, _rounded(job, parameters.items))
        for name, values in job.scalars.items():
            torch._foreach_copy_(values, new_scalars[name].unbind())
        return statistics


def _buckets(job: Job) -> Iterator[tuple[list[int], _Bucket]]:
    found = defaultdict(list)
    for index, (parameter, mean) in enumerate(zip(job.params, job.means, strict=True)):
        found[parameter.device, parameter.dtype, mean.dtype].append(index)
    for indices in found.values():
        yield indices, _Bucket(job.select(indices))


def run(job: Job) -> list[Report]:
    """Take one step with every parameter of the job, all that share device and precision at once."""
    return [Report(indices, bucket.finish(bucket.gauge())) for indices, bucket in _buckets(job)]


def gauge(job: Job) -> list[Tensor]:
    """The sums, one for each parameter, of which a distance is the mean."""
    sums = {
        index: total for indices, bucket in _buckets(job) for index, total in zip(indices, bucket.gauge(), strict=True)
    }
    return [sums[index] for index in range(len(job.params))]


def finish(job: Job, totals: list[Tensor]) -> list[Report]:
    """Take the rest of a step, with the sums over whole tensors."""
    return [Report(indices, bucket.finish([totals[index] for index in indices])) for indices, bucket in _buckets(job)]


def _rounded(job: Job, values: list[Tensor]) -> list[Tensor]:
    """What to store; rounding by chance goes tensor by tensor."""
    if not (job.options.stochastic_rounding and job.params[0].dtype == torch.bfloat16):
        return values
    each = zip(values, job.steps, job.streams, strict=True)
    return [rounded(value, step.long(), position) for value, step, position in each]


def _step_counts(job: Job) -> Number:
    """One number where all tensors have taken equally many steps, and else a vector."""
    if not job.on_host:
        return torch.stack(job.steps).to(job.means[0])
    counts = [step.item() for step in job.steps]
    return counts[0] if len(set(counts)) == 1 else _vector(counts, job.means[0])


def _vector(numbers: Sequence[float], like: Tensor) -> Tensor:
    """A vector of numbers, which reach the device as arguments of a launch: copying them there could wait for it."""
    if torch.compiler.is_compiling():
        return torch.tensor(numbers, dtype=like.dtype, device=like.device)
    vector = torch.ones(len(numbers), dtype=like.dtype, device=like.device)
    torch._foreach_mul_(vector.unbind(), numbers)
    return vector
