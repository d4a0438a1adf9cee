"""What the fused engines for CPUs and GPUs share: which tensors they take, and in which order elements lie."""

import hashlib
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor
from torch.nn import Parameter

PRECISIONS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def fingerprint(*modules: ModuleType) -> str:
    """Changes with the sources of modules and packages, of which the compilers' caches on disk do not know."""
    files = [Path(str(module.__file__)) for module in modules]
    sources = [
        source for file in files for source in (sorted(file.parent.glob("*.py")) if file.stem == "__init__" else [file])
    ]
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()


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
