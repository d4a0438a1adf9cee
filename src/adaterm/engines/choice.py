"""Which engine steps the parameters of a group: reference, foreach or fused."""

from functools import lru_cache
from types import NoneType
from typing import NoReturn

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim.optimizer import _default_to_fused_or_foreach

from adaterm.engines.agreement import get_local, is_sharded
from adaterm.engines.base import Block, Engine
from adaterm.engines.cpu import engine as cpu
from adaterm.engines.foreach import ForeachEngine
from adaterm.engines.fused import is_dense
from adaterm.engines.gpu import engine as gpu
from adaterm.engines.reference import ReferenceEngine
from adaterm.options import Common, warn_user

_NEEDS = {
    "cuda": "Linux, Triton 3.6 or newer, as torch has it from 2.10 on, and a C compiler",
    "cpu": "Numba (pip install numba)",
}


def choose_engine(params: list[Tensor], options: Common, quiet: bool = False) -> str:
    """The engine that the options ask for, or else the best there is for these parameters, which must have gradients.

    It is the same for all of a group's parameters.
    """
    usable = len(params) > 0 and not (options.differentiable or torch.compiler.is_compiling())
    if options.fused and usable:
        unsupported = [parameter for parameter in params if not _supports(parameter)]
        if unsupported:
            _refuse_fused(unsupported)
        return "fused" if all(map(_is_readable, params)) else "foreach"
    if options.foreach is not None:
        return "foreach" if options.foreach else "reference"
    if options.fused is None and usable and not gpu.interpreted:
        if all(map(_supports, params)) and all(map(_is_readable, params)):
            return "fused"
        for device in {parameter.device.type for parameter in params} & _find_missing():
            if not quiet:
                _warn_of_missing(device)
    if isinstance(options.lr, Tensor) and not options.capturable:
        return "reference"
    return "foreach" if _default_to_fused_or_foreach(params, options.differentiable)[1] else "reference"


def refuse_gradients(optimizer: str, stepped: list[Tensor]) -> None:
    """Raise if there are gradients that no engine can use."""
    for parameter in stepped:
        assert parameter.grad is not None
        if is_sharded(parameter) != is_sharded(parameter.grad):
            kinds = ["a DTensor" if is_sharded(tensor) else "a plain tensor" for tensor in (parameter, parameter.grad)]
            raise RuntimeError(f"a parameter is {kinds[0]} but its gradient is {kinds[1]}: both must be the same")
        if parameter.grad.layout != torch.strided:
            raise RuntimeError(
                f"{optimizer} does not support gradients of layout {parameter.grad.layout}, only of torch.strided: "
                "build the layer with sparse=False, or give its parameters to torch.optim.SparseAdam"
            )


def make_engine(name: str, block: Block) -> Engine:
    """An engine for a block; the fused one is that of the block's device."""
    if name == "fused":
        return gpu.GpuEngine(block) if gpu.supports(block.params[0]) else cpu.CpuEngine(block)
    return ForeachEngine(block) if name == "foreach" else ReferenceEngine(block)


def _supports(parameter: Tensor) -> bool:
    """Whether a fused engine can step this parameter."""
    local = get_local(parameter)
    return gpu.supports(local) or cpu.supports(local)


def _is_readable(parameter: Tensor) -> bool:
    """Whether kernels can read a parameter, which may have gaps, and its gradient, which may be of a subclass."""
    plain = is_sharded(parameter) or type(parameter.grad) in (Tensor, NoneType)
    return plain and is_dense(get_local(parameter))


def _find_missing() -> set[str]:
    """The devices whose fused engine needs a package that is missing."""
    here = {"cuda": gpu.available, "cpu": cpu.is_available()}
    return {device for device, available in here.items() if not available}


def _refuse_fused(unsupported: list[Tensor]) -> NoReturn:
    """Say what `fused=True` would need."""
    for kind in map(type, map(get_local, unsupported)):
        if kind not in (Tensor, Parameter):
            raise RuntimeError(
                f"`fused=True` requires all the params to be plain Tensors, but one is a {kind.__name__}, a subclass: "
                "use fused=False"
            )
    kinds = sorted({f"{parameter.dtype} on {parameter.device.type}" for parameter in unsupported})
    missing = _find_missing()
    needs = "".join(f"; on {device} it needs {_NEEDS[device]}" for device in _NEEDS if device in missing)
    raise RuntimeError(
        "`fused=True` requires all the params to be floating point Tensors of supported devices: "
        f"{[device for device in _NEEDS if device not in missing]} but there is {', '.join(kinds)}{needs}"
    )


@lru_cache
def _warn_of_missing(device: str) -> None:
    """Say once why steps are slow."""
    warn_user(
        f"adaterm's fused engine for {device} is missing, so steps are slow: it needs {_NEEDS[device]}. "
        "Pass fused=False to do without it."
    )
