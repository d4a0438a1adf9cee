"""What the fused engines for CPUs and GPUs share: which tensors they take, and in which order elements lie."""

import torch
from torch import Tensor
from torch.nn import Parameter

PRECISIONS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def is_plain(tensor: Tensor) -> bool:
    """Whether kernels can read a tensor: a strided one of a precision they know, or of pairs of such numbers."""
    known = type(tensor) in (Tensor, Parameter) and tensor.layout == torch.strided
    return known and tensor.dtype.to_real() in PRECISIONS


def is_dense(tensor: Tensor) -> bool:
    """Whether a tensor has no gaps between its elements, which kernels could not skip."""
    return tensor.is_contiguous() or bool(torch.ops.aten.is_non_overlapping_and_dense(tensor))


def match_order(state: Tensor, parameter: Tensor) -> None:
    """Give a state the parameter's order of elements in memory, which may have changed, or the state was loaded."""
    if state.shape != parameter.shape:
        raise RuntimeError(
            f"a parameter of shape {tuple(parameter.shape)} has state of shape {tuple(state.shape)}: "
            "the state that was loaded is of another model"
        )
    if state.stride() != parameter.stride():
        state.data = torch.empty_like(parameter, dtype=state.dtype).copy_(state)
