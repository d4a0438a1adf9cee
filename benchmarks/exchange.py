"""What the exchange of sums costs a sharded model of 70 billion parameters: counted here, and reckoned on paper.

    python benchmarks/exchange.py             # seconds; writes results/exchange/exchange.json

RobustAdamW and AdaTerm really step the model's tensors, one element of each on this rank, in a process group that
pretends to have 8, 256 or 4,096 ranks; the number of collectives and their bytes are those they ask for. Times are
estimates from the assumptions that the file names, and none was measured: a ring or tree among GPUs waits for hops, not
for a few KB, so they are the same for both.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from provenance import provenance
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

import adaterm

LAYERS = 80
LAYER = [(8192, 8192), (1024, 8192), (1024, 8192), (8192, 8192), (28672, 8192), (28672, 8192), (8192, 28672)]
MODEL = [
    (128256, 8192),
    *[shape for _ in range(LAYERS) for shape in (*LAYER, (8192,), (8192,))],
    (8192,),
    (128256, 8192),
]
"""A Llama 3 of 70 B."""

OPTIMIZERS = {"RobustAdamW": adaterm.RobustAdamW, "AdaTerm": adaterm.AdaTerm}

ASSUMED = {
    "ranks of a node": 8,
    "seconds of a small all-reduce in a node": 15e-6,
    "seconds of a hop between nodes": 6e-6,
    "bytes a second and rank in a node": 450e9,
    "bytes a second and rank between nodes": 50e9,
    "bytes of a parameter that is gathered, and of a gradient that is reduced": 2,
    "gathers of the parameters in a step": 2,
}


def counted(ranks: int, name: str) -> dict[str, int]:
    """The collectives of an optimizer's step and their bytes, also of a step with GradScaler."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        mesh = init_device_mesh("cpu", (ranks,))
        params = []
        for _ in MODEL:
            parameter = DTensor.from_local(torch.zeros(1), mesh, [Shard(0)], run_check=False).requires_grad_()
            parameter.grad = DTensor.from_local(torch.ones(1), mesh, [Shard(0)], run_check=False)
            params.append(parameter)
        optimizer = OPTIMIZERS[name](params, foreach=False)
        optimizer.step()
        messages = list_messages(optimizer)
        optimizer.grad_scale, optimizer.found_inf = torch.ones(()), torch.zeros(())  # what GradScaler leaves there
        scaled = list_messages(optimizer)
        if len(scaled) != len(messages):
            raise RuntimeError("with GradScaler there is another number of collectives")
        return {"collectives": len(messages), "bytes": sum(messages), "bytes with GradScaler": sum(scaled)}
    finally:
        dist.destroy_process_group()


def list_messages(optimizer: torch.optim.Optimizer) -> list[int]:
    """The bytes of each collective of a step."""
    with mock.patch.object(dist, "all_reduce", wraps=dist.all_reduce) as asked:
        optimizer.step()
    messages = [call.args[0] for call in asked.call_args_list]
    return [message.numel() * message.element_size() for message in messages]


def reckoned(ranks: int) -> tuple[float, float]:
    """Seconds of the exchange, and of the gathers and the reduction that fully sharded training does in any case."""
    node = ASSUMED["ranks of a node"]
    nodes = ranks / node
    hops = 2 * math.ceil(math.log2(nodes)) if nodes > 1 else 0
    exchange = ASSUMED["seconds of a small all-reduce in a node"] + hops * ASSUMED["seconds of a hop between nodes"]
    moved = (ASSUMED["gathers of the parameters in a step"] + 1) * sum(map(math.prod, MODEL)) * (ranks - 1) / ranks
    moved *= ASSUMED["bytes of a parameter that is gathered, and of a gradient that is reduced"]
    speed = ASSUMED[f"bytes a second and rank {'in a node' if nodes <= 1 else 'between nodes'}"]
    return exchange, moved / speed


def main() -> None:
    """Count, reckon, show and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/exchange"))
    out = parser.parse_args().out
    rows: dict[str, dict[str, Any]] = {}
    print(f"{len(MODEL)} tensors, {sum(map(math.prod, MODEL)) / 1e9:.1f} B parameters")
    print(f"{'ranks':>6}{'exchange, us':>14}{'other traffic, ms':>19}{'share':>9}  collectives and bytes")
    for ranks in (8, 256, 4096):
        exchange, traffic = reckoned(ranks)
        counts = {name: counted(ranks, name) for name in OPTIMIZERS}
        rows[str(ranks)] = {
            **counts,
            "exchange, microseconds": exchange * 1e6,
            "traffic of FSDP, milliseconds": traffic * 1e3,
            "share": exchange / traffic,
        }
        shown = ", ".join(f"{name} {count['collectives']}, {count['bytes']}" for name, count in counts.items())
        print(f"{ranks:6}{exchange * 1e6:14.0f}{traffic * 1e3:19.0f}{exchange / traffic:9.4%}  {shown}")
    out.mkdir(parents=True, exist_ok=True)
    record = {"tensors": len(MODEL), "ranks": rows, "assumed": ASSUMED, **provenance("cpu, a pretended process group")}
    (out / "exchange.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
