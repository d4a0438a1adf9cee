"""Measure how long AdaTerm takes to trust gradients, and to adapt its degrees of freedom, when nothing is wrong.

Gradients are standard normal times a scale, the same for every arm. Writes results/slow_start/slow_start.json.
"""

import argparse
import json
from pathlib import Path

import torch
from provenance import provenance

import adaterm

SCALES = (1e-4, 1e-2, 1.0, 1e2)
TRUST = 0.3
DOFS = (1.1, 2.0)


def steps_until_trusted(scale: float, init_scale: str, limit: int = 1000) -> int | None:
    parameter = torch.zeros(1000, requires_grad=True)
    optimizer = adaterm.AdaTerm([parameter], init_scale=init_scale)
    generator = torch.Generator().manual_seed(0)
    for step in range(1, limit + 1):
        parameter.grad = scale * torch.randn(1000, generator=generator)
        optimizer.step()
        if optimizer.statistics()[parameter].trust >= TRUST:
            return step
    return None


def steps_until_adapted(limit: int = 20_000) -> dict[str, int | None]:
    parameter = torch.zeros(1000, requires_grad=True)
    optimizer = adaterm.AdaTerm([parameter])
    generator = torch.Generator().manual_seed(0)
    passed: dict[str, int | None] = {str(dof): None for dof in DOFS}
    for step in range(1, limit + 1):
        parameter.grad = torch.randn(1000, generator=generator)
        optimizer.step()
        dof = optimizer.statistics()[parameter].dof.item()
        passed |= {key: step for key, at in passed.items() if at is None and dof > float(key)}
    return passed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/slow_start"))
    out = parser.parse_args().out
    trusted = {
        init_scale: {f"{scale:g}": steps_until_trusted(scale, init_scale) for scale in SCALES}
        for init_scale in ("eps", "gradient")
    }
    record = {
        f"steps until trust reaches {TRUST}, by init_scale and scale of the gradients": trusted,
        "steps until the dof passes a value, without outliers": steps_until_adapted(),
        **provenance("cpu"),
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "slow_start.json").write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
