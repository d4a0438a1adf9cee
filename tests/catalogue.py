"""What the tests range over: rules, engines, precisions, and how closely results must agree."""

from functools import lru_cache
from math import inf

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import adaterm
from adaterm_bench.methods import OUR_METHODS, PAPER_METHODS

PUBLISHED = {name: method for name, method in PAPER_METHODS.items() if hasattr(adaterm, method.optimizer)}
"""Every method of the paper that is ours, by its name."""

METHODS = {**PUBLISHED, **OUR_METHODS}
"""Every method, by its name."""

COMBINED = {
    "AdaTerm2 + AdaBias": ("AdaTerm", {"scale_update": "analytic", "adaptive_bias_correction": True}),
    "Uncentered + no adaptiveness": ("AdaTerm", {"uncentered": True, "adaptive_dof": False}),
    "No robustness + AdaBias": ("AdaTerm", {"min_dof": inf, "adaptive_bias_correction": True}),
    "AdaTerm + L2 decay": ("AdaTerm", {"weight_decay": 0.1}),
    "AdaTerm + decoupled decay": ("AdaTerm", {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    "AdaTerm + maximize": ("AdaTerm", {"maximize": True, "weight_decay": 0.1}),
    "At-Adam + L2 decay": ("AtAdam", {"weight_decay": 0.1, "dof": 3.0}),
    "t-Adam, Gaussian": ("TAdam", {"dof": inf}),
    "Gradient init + AdaTerm2": ("AdaTerm", {"init_scale": "gradient", "scale_update": "analytic"}),
    "Gradient init + AdaBias": ("AdaTerm", {"init_scale": "gradient", "adaptive_bias_correction": True}),
    "RobustAdamW, soon judging": ("RobustAdamW", {"window": 10, "weight_decay": 0.1}),
    "RobustAdamW, usual norm": ("RobustAdamW", {"window": 10, "max_norm": "auto"}),
    "RobustAdamW, no weights": ("RobustAdamW", {"window": 10, "dof": inf, "maximize": True, "weight_decay": 0.1}),
    "RobustAdamW, no batch excluded": ("RobustAdamW", {"window": 10, "threshold": inf}),
}
RULES = {**METHODS, **COMBINED}
"""The methods, and options of theirs combined."""

JUDGING = [rule for rule, (optimizer, _) in RULES.items() if optimizer == "RobustAdamW"]
"""The rules that judge whole batches; they have windows, and keep their second average as `exp_avg_sq`."""

SEPARATE = [rule for rule in RULES if rule not in JUDGING]
"""The rules for which every tensor is a matter of its own."""

OPTIMIZERS = ["AdaTerm", "TAdam", "AtAdam", "TAdaBelief", "AtAdaBelief", "AdaBelief", "RobustAdamW"]
MAIN = ["AdaTerm", "RobustAdamW"]
"""The optimizers for daily use: what people do to one is tested with both."""

ENGINES = {"reference": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
"""On a CPU; test_gpu has the kernels for GPUs."""

ENGINE_TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}
"""How far an engine may be from the reference engine, relative to the largest entry; half precisions to a rounding."""

SHAPES = [(7, 5), (3,), (1,), (), (2, 3, 4)]


def make(rule, params, **flags):
    """The optimizer of a rule's name."""
    optimizer, options = RULES[rule]
    return getattr(adaterm, optimizer)(params, **{**options, **flags})


def parameters(shapes=SHAPES, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]


@lru_cache
def draw_noise(step, shapes):
    """The same noise for the same step and shapes; every fifth step is a hundredfold outlier."""
    generator = torch.Generator().manual_seed(1000 + step)
    size = 100.0 if step % 5 == 4 else 1.0
    return [size * torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def give_gradients(params, step, scale=1.0):
    """The same gradients for the same step, in any precision."""
    for parameter, noise in zip(params, draw_noise(step, tuple(p.shape for p in params)), strict=True):
        parameter.grad = (noise * scale).to(parameter)


def train(optimizer, params, steps, start=0):
    for step in range(start, start + steps):
        give_gradients(params, step)
        optimizer.step()


def measure_error(actual, wanted):
    """The largest difference, relative to the largest finite entry wanted; equal infinities do not differ."""
    actual, wanted = actual.detach().double(), wanted.detach().double()
    differences = torch.where(actual == wanted, 0.0, (actual - wanted).abs())
    largest = torch.where(wanted.isfinite(), wanted, 0.0).abs().max()
    return (differences.max() / largest.clamp_min(1e-300)).item()


def assert_close(actual, wanted, tolerance, what=""):
    """Within a tolerance relative to the largest entry wanted."""
    error = measure_error(actual, wanted)
    assert error <= tolerance, f"{what}: off by {error:.2e}, allowed {tolerance:.0e}"


class Operations(TorchDispatchMode):
    """The names of torch's operations that run while this mode is on."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))
