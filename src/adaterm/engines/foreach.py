"""The foreach engine: the equations on lists of tensors, as many list operations for many tensors as for one.

On a GPU torch splits an operation on a long list into several launches, as it does for its own foreach optimizers.

Per-tensor numbers lie in stacked vectors, on which `weigh` runs as it does on one tensor. `gauge` and `move` run on
`Tensors`: lists with operators, which need no more than two scratch lists besides parameters, gradients and state.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from adaterm.binding import bind, stages_of
from adaterm.engines.base import Block, read_verdict
from adaterm.engines.reference import ReferenceEngine
from adaterm.equations import Size
from adaterm.options import Number
from adaterm.rules import measure
from adaterm.torch_primitives import TORCH, push, round_stochastically

_ALIGNMENT = 16  # elements: every tensor of a flat buffer starts where vectorised loads can


class Tensors:
    """A list of tensors as one operand.

    Operators and primitives use up a scratch list that they are given, by writing into it, and copy any other;
    only `shift` writes into a list that is kept.
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

    def __mul__(self, factor: Number) -> "Tensors":
        if isinstance(factor, Tensor):
            return self.take().each(lambda tensor: tensor.mul_(factor))
        return self if factor == 1.0 else self.take().each(lambda tensor: tensor.mul_(factor))

    def __truediv__(self, other: "Tensors") -> "Tensors":
        if other.scratch and not self.scratch:
            taken = other.take().each(Tensor.reciprocal_)
            torch._foreach_mul_(taken.items, self.items)
            return taken
        taken = self.take()
        torch._foreach_div_(taken.items, other.items)
        return taken


class _Gradients(Tensors):
    """The gradients as the rule sees them: in its precision, with its sign, and with L2 decay; never written."""

    def __init__(self, block: Block, parameters: Tensors) -> None:
        super().__init__(block.grads)
        self.block = block
        self.parameters = parameters

    def copy(self) -> Tensors:
        options, sign = self.block.options, self.block.read_sign()
        copied = _copy(self.items, self.parameters.items, self.parameters.items[0].dtype)
        return _LISTS.direct(copied, self.parameters, sign, options.weight_decay, options.adds_decay)  # type: ignore[no-any-return]


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


def _where(valid: Tensor, value: Any, other: float) -> Any:
    if not isinstance(value, Tensors):  # but numbers, one for each tensor
        return torch.where(valid, value, other)
    assert other == 0.0, "an excluded gradient counts as zero"
    taken = value.take().each(lambda tensor: tensor.nan_to_num_(0.0, 0.0, 0.0))
    return taken.accumulate(taken, valid.to(taken.items[0].dtype) - 1.0)


_LISTS = bind(
    {
        "shift": _shift,
        "ratio": _ratio,
        "scaled": lambda value, number: value.__mul__(number),  # torch.compile does not find the operator by itself
        "where": _where,
        "sqrt": lambda value: value.take().each(Tensor.sqrt_),
        "square": lambda value: value.take().each(lambda tensor: tensor.mul_(tensor)),
        "add_up": lambda value: _add_up(value.items),
        "at_least": lambda value, bound: value.take().each(lambda tensor: tensor.clamp_min_(bound)),
    }
)


class _Operands(NamedTuple):
    """A block's tensors as operands of the equations."""

    gradients: Tensors
    means: Tensors
    scales: Tensors
    parameters: Tensors
    scalars: Any


class ForeachEngine(ReferenceEngine):
    """Steps a block's tensors as lists; batches are judged as in the reference engine."""

    def step(self) -> None:
        """Take a whole step."""
        operands = self._read()
        self._finish(operands, self._gauge(operands), None)

    def gauge(self) -> Tensor:
        """The sums of every tensor: a row for each sum of the rule."""
        return self._gauge(self._read())

    def finish(self, sums: Tensor, verdict: Tensor | None) -> None:
        """Weigh and move, with the sums of whole tensors."""
        self._finish(self._read(), sums, verdict)

    def _read(self) -> _Operands:
        block, dtype = self.block, self.block.means[0].dtype
        exact = block.params[0].dtype == dtype
        parameters = Tensors(block.params if exact else _copy(block.params, block.params, dtype).items)
        scalars = block.gather_scalars({name: torch.stack(values) for name, values in block.scalars.items()})
        return _Operands(
            _Gradients(block, parameters), Tensors(block.means), Tensors(block.scales), parameters, scalars
        )

    def _gauge(self, operands: _Operands) -> Tensor:
        gradients, means, scales, _, scalars = operands
        rule = self.block.rule
        sums = stages_of(rule.family, _LISTS).gauge(gradients, means, scales, scalars, rule.numbers, rule.flags)
        return torch.stack(sums[: rule.sum_count])

    def _finish(self, operands: _Operands, sums: Tensor, verdict: Tensor | None) -> None:
        gradients, means, scales, parameters, scalars = operands
        block, rule, batch = self.block, self.block.rule, read_verdict(verdict)
        torch._foreach_add_(block.steps, 1.0)
        weigh, move = stages_of(rule.family, TORCH).weigh, stages_of(rule.family, _LISTS).move
        pace, windows = block.read_pace(_read_counts(block)), torch.stack(block.windows) if rule.window else None
        rates, scalars, notes, statistics = weigh(
            sums.unbind(), _measure(block), scalars, windows, batch, pace, rule.numbers, rule.flags
        )
        if windows is not None:
            torch._foreach_copy_(block.windows, push(windows, notes).unbind())
            del windows  # before the largest lists of the step are made
        if block.options.shrinks:
            parameters.accumulate(parameters, -rates.shrinkage)
        move(gradients, means, scales, parameters, rates, rule.numbers, rule.flags)

        if parameters.items[0].dtype != block.params[0].dtype:  # they are copies
            torch._foreach_copy_(block.params, _round(block, parameters.items))
        for name, values in block.scalars.items():
            torch._foreach_copy_(values, getattr(scalars, name).unbind())
        self.statistics = torch.stack(list(statistics))


def _measure(block: Block) -> Size:
    """The sizes of a block's tensors, as vectors."""
    sizes = [measure(size, block.rule.needs_trigamma) for size in block.sizes]
    return Size(*(_vector(column, block.means[0]) for column in zip(*sizes, strict=True)))


def _add_up(terms: list[Tensor]) -> Tensor:
    """The sums of terms that are not negative; off a GPU a sum is more exact than the norm, and no slower."""
    return torch.stack(list(torch._foreach_norm(terms, 1)) if terms[0].is_cuda else [term.sum() for term in terms])


def _round(block: Block, values: list[Tensor]) -> list[Tensor]:
    """What to store; stochastic rounding goes tensor by tensor."""
    if not (block.options.stochastic_rounding and block.params[0].dtype == torch.bfloat16):
        return values
    each = zip(values, block.steps, block.streams, strict=True)
    return [round_stochastically(value, step.long(), stream) for value, step, stream in each]


def _read_counts(block: Block) -> Number:
    """One number where all tensors have taken equally many steps, and else a vector."""
    if not block.on_host:
        return torch.stack(block.steps).to(block.means[0])
    counts = [step.item() for step in block.steps]
    return counts[0] if len(set(counts)) == 1 else _vector(counts, block.means[0])


def _vector(numbers: Sequence[float], like: Tensor) -> Tensor:
    """A vector of numbers, which reach the device as arguments of a launch: copying them there could wait for it."""
    if torch.compiler.is_compiling():
        return torch.tensor(numbers, dtype=like.dtype, device=like.device)
    vector = torch.ones(len(numbers), dtype=like.dtype, device=like.device)
    torch._foreach_mul_(vector.unbind(), numbers)
    return vector
