"""Which engine steps which parameters."""

from types import ModuleType

import torch
from torch import Tensor
from torch.optim.optimizer import _default_to_fused_or_foreach

from adaterm.engines import foreach, fused, gpu, reference
from adaterm.options import Common


def engine_for(params: list[Tensor], options: Common) -> ModuleType:
    """The engine that the options ask for, or else the best there is for these parameters."""
    plain = len(params) > 0 and not (options.differentiable or torch.compiler.is_compiling())
    if options.fused and plain:
        if not all(map(fused.supports, params)):
            fused.refuse(params)
        return fused
    if options.foreach is not None:
        return foreach if options.foreach else reference
    if options.fused is None and plain and not gpu.interpreted and all(map(fused.supports, params)):
        return fused
    if isinstance(options.lr, Tensor) and not options.capturable:
        return reference
    return foreach if _default_to_fused_or_foreach(params, options.differentiable)[1] else reference
