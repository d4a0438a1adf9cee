"""What fused kernels know of a job: one table of numbers and addresses, kept up to date with little work."""

from array import array
from collections.abc import Sequence
from itertools import accumulate
from math import ceil

import torch
from torch import Tensor

from adaterm.engines.job import Job
from adaterm.equations import trigamma
from adaterm.rules import TRule

# First come numbers for all tensors, as the bits of float64 ...
HEAD = 8
LR, BETA1, BETA2, EPS, DOF, BETA_DOF, DECAY, SIGN = range(HEAD)
# ... and then a row for each tensor: addresses, and what is known of it.
ROW = 13
PARAMETER, GRADIENT, MEAN, SCALE, STEP, FIRST_SCALAR, SECOND_SCALAR, THIRD_SCALAR = range(8)
SIZE, WHOLE_SIZE, TRIGAMMA, CHUNKS_BEFORE, POSITION = range(8, ROW)  # sizes: of this rank's part, and of all parts

_SLOTS = {
    "excess_dof": FIRST_SCALAR,
    "bias_correction": SECOND_SCALAR,
    "weight_sum": FIRST_SCALAR,
    "log_distance_avg": SECOND_SCALAR,
    "log_distance_var": THIRD_SCALAR,
}


class Table:
    """The table of a job whose tensors share device and precisions, and whose order of elements in memory is known."""

    def __init__(self, job: Job, chunk: int) -> None:
        self.sizes = [parameter.numel() for parameter in job.params]
        self.chunks = [ceil(size / chunk) for size in self.sizes]
        self.values = array("q", bytes(8 * (HEAD + ROW * len(self.sizes))))
        self._numbers: list[float] = []
        self._addresses: list[int] = []
        self._params = job.params
        self._on_host = job.params[0].is_cpu
        self._contiguous = all(parameter.is_contiguous() for parameter in job.params)
        columns = {PARAMETER: job.params, MEAN: job.means, SCALE: job.scales, STEP: job.steps}
        columns |= {_SLOTS[name]: scalars for name, scalars in job.scalars.items()}
        for column, tensors in columns.items():
            self._set(column, _addresses(tensors))
        trigammas = [trigamma(size / 2.0) for size in job.sizes] if job.rule.needs_size else [0.0] * len(self.sizes)
        self._set(SIZE, self.sizes)
        self._set(WHOLE_SIZE, job.sizes)
        self._set(TRIGAMMA, _bits(trigammas))
        self._set(CHUNKS_BEFORE, [0, *accumulate(self.chunks)][:-1])
        self._set(POSITION, job.streams)
        self._state_aligned = _aligned(_addresses([*job.params, *job.means, *job.scales]))
        self.aligned = False

    def arranged(self, grads: list[Tensor]) -> list[Tensor]:
        """The gradients with the parameters' order of elements in memory."""
        if any(map(Tensor.is_neg, grads)):
            grads = [grad.resolve_neg() for grad in grads]
        if self._contiguous and all(map(Tensor.is_contiguous, grads)):
            return grads
        return [_like(grad, parameter) for grad, parameter in zip(grads, self._params, strict=True)]

    def update(self, job: Job, grads: list[Tensor]) -> bool:
        """Write the addresses of arranged gradients and the numbers; whether anything is not as it was."""
        changed = False
        addresses = _addresses(grads)
        if addresses != self._addresses:
            self._set(GRADIENT, addresses)
            self._addresses = addresses
            self.aligned = self._state_aligned and _aligned(addresses)
            changed = True
        numbers = _numbers(job, self._on_host)
        if numbers != self._numbers:
            self.values[:HEAD] = _bits(numbers)
            self._numbers = numbers
            changed = True
        return changed

    def forget(self) -> None:
        """Let the next update count as a change."""
        self._addresses, self._numbers = [], []

    def _set(self, column: int, values: Sequence[int]) -> None:
        self.values[HEAD + column :: ROW] = array("q", values)


def _addresses(tensors: list[Tensor]) -> list[int]:
    return list(map(Tensor.data_ptr, tensors))


def _aligned(addresses: list[int]) -> bool:
    return not any(address % 16 for address in addresses)


def _bits(numbers: Sequence[float]) -> "array[int]":
    return array("q", array("d", numbers).tobytes())


def _numbers(job: Job, on_host: bool) -> list[float]:
    """The numbers for all tensors, in their order in the table."""
    rule, options = job.rule, job.options
    lr = options.lr
    if isinstance(lr, Tensor):
        lr = lr.item() if lr.is_cpu or on_host else 0.0
    sign = -1.0 if options.maximize else 1.0
    if isinstance(rule, TRule):
        own = [*rule.betas, rule.eps, rule.dof, rule.beta_dof or 0.0]
    else:
        own = [rule.beta, 0.0, rule.eps, rule.min_dof, 0.0]
    return [lr, *own, options.weight_decay, sign]


def _like(gradient: Tensor, parameter: Tensor) -> Tensor:
    """The gradient with the parameter's order of elements in memory."""
    if gradient.stride() == parameter.stride() or (gradient.is_contiguous() and parameter.is_contiguous()):
        return gradient
    return torch.empty_like(parameter, dtype=gradient.dtype).copy_(gradient)
