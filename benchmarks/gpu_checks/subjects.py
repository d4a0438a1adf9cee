"""The optimizers, parameters and gradients of all checks, on the device."""

from collections.abc import Callable, Iterator
from math import inf
from typing import Any

import torch
from torch import Tensor

import adaterm
from adaterm_bench.methods import OUR_METHODS, PAPER_METHODS, Method

DEVICE = "cuda"
ENGINES = {"reference": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
JUDGING = {
    **OUR_METHODS,
    "RobustAdamW, usual norm": Method("RobustAdamW", {"window": 10, "max_norm": "auto", "weight_decay": 0.1}),
    "RobustAdamW, no weights": Method("RobustAdamW", {"window": 10, "dof": inf, "maximize": True}),
}
METHODS = {name: method for name, method in PAPER_METHODS.items() if hasattr(adaterm, method.optimizer)} | JUDGING
FEW = [
    name
    for name in METHODS
    if name not in ("Large init", "AdaTerm (Uncentered)", "AdaTerm (AdaBias)", "t-AdaBelief", "At-AdaBelief")
    and "as published" not in name
]
"""The methods without those whose kernels are near duplicates of others'."""
MAIN: list[type[Any]] = [adaterm.AdaTerm, adaterm.RobustAdamW]
Findings = Iterator[tuple[str, Any]]
"""What a check finds, by name."""
Check = Callable[[], Findings]


def optimizer(method: str, params: list[Tensor], **flags: Any) -> Any:
    chosen = METHODS[method]
    return getattr(adaterm, chosen.optimizer)(params, **(chosen.options | flags))


def parameters(count: int = 6, dtype: torch.dtype = torch.float32, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(64, 33), (64,), (1,), (3, 5, 7), (16, 8), (257,)]
    made = [torch.randn(shapes[i % len(shapes)], generator=generator) for i in range(count)]
    return [tensor.to(DEVICE, dtype).requires_grad_() for tensor in made]


def give_gradients(params: list[Tensor], seed: int) -> None:
    generator = torch.Generator(DEVICE).manual_seed(seed)
    for parameter in params:
        noise = torch.randn(parameter.shape, generator=generator, device=DEVICE)
        parameter.grad = noise.to(parameter.dtype) * (100.0 if seed % 25 == 24 else 1.0)
