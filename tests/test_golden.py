"""The trajectories are those of the published methods."""

import json
from math import inf
from pathlib import Path

import numpy
import pytest
import torch
from catalogue import ENGINES, assert_close

import adaterm

FOLDER = Path(__file__).parent / "golden"
CASES = json.loads((FOLDER / "manifest.json").read_text())
NAMES = {
    "nu_min": "min_dof",
    "nu_init": "init_dof",
    "adaptive": "adaptive_dof",
    "adabias": "adaptive_bias_correction",
    "decoupled": "decoupled_weight_decay",
}
TOLERANCE = {torch.float64: (1e-12, 1e-8), torch.float32: (1e-4, 1e-3)}
"""For each precision: of parameter, mean and scale, relative to the largest entry; of the (excess) dof, relative."""


def method(case):
    options = {key: inf if value == "inf" else value for key, value in case["options"].items()}
    if case["family"] == "adaterm":
        chosen = {"scale_update": "analytic"} if options.pop("alt_v", False) else {}
        return adaterm.AdaTerm, chosen | {NAMES.get(key, key): value for key, value in options.items()}
    if options.get("k") == inf:
        return adaterm.AdaBelief, {}
    name = ("At" if options.get("adaptive") else "T") + ("AdaBelief" if options.get("belief") else "Adam")
    return getattr(adaterm, name), {"as_published": options.get("frozen", False)}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", CASES)
def test_trajectory(name, engine, dtype):
    case = CASES[name]
    data = {key: torch.tensor(values) for key, values in numpy.load(FOLDER / f"{name}.npz").items()}
    optimizer, options = method(case)
    kept = data["kept_steps"].tolist()
    # Without weight decay the path does not depend on where it starts. Starting a float32 path at 0 keeps the rounding
    # of the parameters themselves, which no method can avoid, out of the comparison.
    at_zero = dtype == torch.float32 and "weight_decay" not in options
    origins = [torch.zeros(shape) if at_zero else data[f"p0_{j}"] for j, shape in enumerate(case["shapes"])]
    params = [origin.to(dtype, copy=True).requires_grad_() for origin in origins]
    tested = optimizer(params, **options, **ENGINES[engine])
    tolerance, dof_tolerance = TOLERANCE[dtype]
    for step in range(1, case["steps"] + 1):
        for j, parameter in enumerate(params):
            parameter.grad = data[f"grad_{j}"][step - 1].to(dtype)
        tested.step()
        if step not in kept:
            continue
        at, statistics = kept.index(step), tested.statistics()
        for j, parameter in enumerate(params):
            path = data[f"p_{j}"] - data[f"p0_{j}"]
            moved = parameter.detach().double() - origins[j].to(dtype)
            rounded = dtype == torch.float32 and not at_zero
            rounding = step * origins[j].abs().max() * torch.finfo(dtype).eps if rounded else 0.0
            bound = tolerance * path.abs().max() + rounding
            assert (moved - path[at]).abs().max() <= bound, f"parameter {j}, step {step}"
            for key, state in (("m", "exp_avg"), ("v", "exp_scale")):
                wanted = data[f"{key}_{j}"]
                error = (tested.state[parameter][state] - wanted[at]).abs().max()
                assert error <= tolerance * wanted.abs().max(), f"{state} {j}, step {step}"
            dof = data[f"nu_{j}"][at]
            if dof < inf:
                if f"D_{j}" in data and dtype == torch.float64:
                    assert_close(
                        statistics[parameter].distance, data[f"D_{j}"][at], 1e-10, f"distance {j}, step {step}"
                    )
                least = options.get("min_dof", 1.0) if case["family"] == "adaterm" else 0.0
                found = tested.state[parameter]["excess_dof"] if least else statistics[parameter].dof
                assert_close(found, dof - least, dof_tolerance, f"dof {j}, step {step}")


def follow_the_dof(*arms):
    """Compare the dof of engines and precisions with those of the first, over 20,000 steps."""
    params = [torch.zeros(16, dtype=dtype, requires_grad=True) for _, dtype in arms]
    optimizers = [adaterm.AdaTerm([p], **ENGINES[engine]) for p, (engine, _) in zip(params, arms, strict=True)]
    generator = torch.Generator().manual_seed(0)
    gradients = torch.randn(20_000, 16, generator=generator)
    gradients[::50] *= 30.0
    for step, gradient in enumerate(gradients):
        for parameter, optimizer in zip(params, optimizers, strict=True):
            parameter.grad = gradient.to(parameter.dtype)
            optimizer.step()
        if step % 1000 == 999:
            exact, *singles = (o.state[p]["excess_dof"].item() for p, o in zip(params, optimizers, strict=True))
            assert singles == pytest.approx([exact] * len(singles), rel=1e-3)
    assert exact > 1.0, "the dof never adapted, so this shows nothing"


def test_float32_follows_the_dof_for_20000_steps():
    """The paper's adaptiveness lives in increments of 1e-9, which a float32 dof (rather than its excess) would lose."""
    follow_the_dof(("fused", torch.float64), ("fused", torch.float32))


@pytest.mark.slow
def test_other_engines_follow_the_dof_for_20000_steps():
    follow_the_dof(("fused", torch.float64), ("reference", torch.float32), ("foreach", torch.float32))
