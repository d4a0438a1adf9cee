"""What fused kernels know of a block: one table of numbers and addresses, kept up to date with little work."""

from array import array
from collections.abc import Sequence
from functools import reduce
from itertools import accumulate
from math import ceil
from operator import or_
from typing import Any

import torch
from torch import Tensor

from adaterm.engines.base import Block
from adaterm.rules import RuleKind, kind_of, measure

# First come numbers for all tensors, as the bits of float64: these, and then the rule's own ...
LR, WEIGHT_DECAY, SIGN = range(3)
SHARED_NUMBERS = 3
# ... and then a row for each tensor: addresses, and what is known of it, and then the addresses of its scalars.
PARAMETER, GRADIENT, MEAN, SCALE, STEP, WINDOW, SIZE, WHOLE_SIZE, TRIGAMMA, FIRST_CHUNK, STREAM = range(11)
SHARED_COLUMNS = 11  # SIZE is that of this rank's part, WHOLE_SIZE that of all parts


def measure_table(kind: RuleKind) -> tuple[int, int]:
    """How many numbers stand before the rows of a table, for a kind of rule, and how many columns a row has."""
    return SHARED_NUMBERS + len(kind.numbers._fields), SHARED_COLUMNS + len(kind.scalars._fields)


class Table:
    """The table of a block of dense tensors, cut into chunks of elements."""

    def __init__(self, block: Block, chunk: int) -> None:
        rule, count = block.rule, len(block.params)
        self.sizes = [parameter.numel() for parameter in block.params]
        self.chunks = [ceil(size / chunk) for size in self.sizes]
        self._head, self._row = measure_table(kind_of(rule))
        self.values = array("q", bytes(8 * (self._head + self._row * count)))
        self._block = block
        self._gradients: list[int] = []
        self._given: tuple[Any, Any] = (None, None)  # the rule and the options that the numbers are of
        self._arranged = [_is_arranged(*pair) for pair in zip(block.grads, block.params, strict=True)]
        self._all_arranged = all(self._arranged)
        columns = {PARAMETER: block.params, MEAN: block.means, SCALE: block.scales, STEP: block.steps}
        columns[WINDOW] = block.windows
        for place, name in enumerate(rule.Scalars._fields, SHARED_COLUMNS):
            columns[place] = block.scalars.get(name, [])
        for column, tensors in columns.items():
            self._set(column, find_addresses(tensors) or [0] * count)
        self._set(SIZE, self.sizes)
        self._set(WHOLE_SIZE, block.sizes)
        self._set(TRIGAMMA, _as_bits([measure(size, rule.needs_trigamma).trigamma for size in block.sizes]))
        self._set(FIRST_CHUNK, [0, *accumulate(self.chunks)][:-1])
        self._set(STREAM, block.streams)
        self._address_bits = reduce(or_, find_addresses([*block.params, *block.means, *block.scales]), 0)

    def _arrange_gradients(self) -> list[Tensor]:
        """The gradients with the parameters' order of elements in memory; copies must live until the step has ended."""
        if self._all_arranged:
            return self._block.grads
        triples = zip(self._block.grads, self._block.params, self._arranged, strict=True)
        return [
            gradient if arranged else torch.empty_like(parameter, dtype=gradient.dtype).copy_(gradient)
            for gradient, parameter, arranged in triples
        ]

    def update(self) -> bool:
        """Write the numbers and the addresses of the gradients; whether anything is not as it was."""
        block = self._block
        block.arranged = self._arrange_gradients()
        addresses = find_addresses(block.arranged)
        changed = addresses != self._gradients
        if changed:
            self._set(GRADIENT, addresses)
            self._gradients = addresses
        rule, options = self._given
        if block.rule is not rule or block.options is not options or isinstance(options.lr, Tensor):
            numbers = _as_bits(self._read_numbers())
            changed = changed or numbers != self.values[: self._head]
            self.values[: self._head], self._given = numbers, (block.rule, block.options)
        return changed

    def forget(self) -> None:
        """Let the next update count as a change."""
        self._gradients = []

    def is_aligned(self) -> bool:
        """Whether all tensors begin where kernels can read many elements at a time."""
        return reduce(or_, self._gradients, self._address_bits) % 16 == 0

    def _set(self, column: int, values: Sequence[int]) -> None:
        self.values[self._head + column :: self._row] = array("q", values)

    def _read_numbers(self) -> list[float]:
        options, lr = self._block.options, self._block.options.lr
        if isinstance(lr, Tensor):
            lr = lr.item() if lr.is_cpu or self._block.params[0].is_cpu else 0.0  # a GPU's kernels read it themselves
        return [lr, options.weight_decay, -1.0 if options.maximize else 1.0, *self._block.rule.numbers]


def find_addresses(tensors: list[Tensor]) -> list[int]:
    """Where tensors begin in memory."""
    return list(map(Tensor.data_ptr, tensors))


def _as_bits(numbers: Sequence[float]) -> "array[int]":
    return array("q", array("d", numbers).tobytes())


def _is_arranged(gradient: Tensor, parameter: Tensor) -> bool:
    if gradient.is_neg():
        return False
    contiguous = gradient.is_contiguous() and parameter.is_contiguous()
    return contiguous or gradient.stride() == parameter.stride()
