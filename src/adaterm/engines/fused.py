"""What the fused engines for CPUs and GPUs share: which tensors they take, and in which order elements lie."""

import torch
from torch import Tensor
from torch.nn import Parameter

from adaterm.engines.base import Block

PRECISIONS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def is_plain(tensor: Tensor) -> bool:
    """Whether kernels can read a tensor: a strided one of a precision they know, or of pairs of such numbers."""
    known = type(tensor) in (Tensor, Parameter) and tensor.layout == torch.strided
    return known and tensor.dtype.to_real() in PRECISIONS


def match_order(state: Tensor, parameter: Tensor) -> None:
    """Give a state the parameter's order of elements in memory, which may have changed, or the state was loaded."""
    if state.shape != parameter.shape:
        raise RuntimeError(
            f"a parameter of shape {tuple(parameter.shape)} has state of shape {tuple(state.shape)}: "
            "the state that was loaded is of another model"
        )
    if state.stride() != parameter.stride():
        ordered = torch.empty_like(parameter, dtype=state.dtype)
        if state.stride() != ordered.stride():  # as for a parameter with gaps, which a state has not
            state.data = ordered.copy_(state)


class GapFiller:
    """Steps parameters with gaps between their elements as dense copies, which take their place in the block."""

    def __init__(self, block: Block) -> None:
        self._pairs = []
        for index, parameter in enumerate(block.params):
            if not torch.ops.aten.is_non_overlapping_and_dense(parameter):
                block.params[index] = torch.empty_like(parameter.detach())
                self._pairs.append((parameter, block.params[index]))

    def __bool__(self) -> bool:
        return bool(self._pairs)

    @torch.no_grad()
    def read(self) -> None:
        """Copy the parameters."""
        for parameter, copy in self._pairs:
            copy.copy_(parameter)

    @torch.no_grad()
    def write(self) -> None:
        """Copy them back."""
        for parameter, copy in self._pairs:
            parameter.copy_(copy)
