"""What the exchange of sums costs a sharded model of 70 billion parameters: counted here, and reckoned on paper.

    python benchmarks/exchange.py             # seconds; writes results/exchange/exchange.json

The optimizer really steps the model's tensors, one element of each on this rank, in a process group that pretends to
have 8, 256 or 4,096 ranks; the number of collectives and their bytes are those it asks for. Times are estimates from
the assumptions that the file names, and none was measured: a ring or tree among GPUs waits for hops, not for 3 KB.
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

ASSUMED = {
    "ranks of a node": 8,
    "seconds of a small all-reduce in a node": 15e-6,
    "seconds of a hop between nodes": 6e-6,
    "bytes a second and rank in a node": 450e9,
    "bytes a second and rank between nodes": 50e9,
    "bytes of a parameter that is gathered, and of a gradient that is reduced": 2,
    "gathers of the parameters in a step": 2,
}


def counted(ranks: int) -> tuple[int, int]:
    """The collectives of a step, and their bytes."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        mesh = init_device_mesh("cpu", (ranks,))
        params = []
        for _ in MODEL:
            parameter = DTensor.from_local(torch.zeros(1), mesh, [Shard(0)], run_check=False).requires_grad_()
            parameter.grad = DTensor.from_local(torch.ones(1), mesh, [Shard(0)], run_check=False)
            params.append(parameter)
        optimizer = adaterm.AdaTerm(params, foreach=False)
        optimizer.step()
        with mock.patch.object(dist, "all_reduce", wraps=dist.all_reduce) as asked:
            optimizer.step()
        messages = [call.args[0] for call in asked.call_args_list]
        return len(messages), sum(message.numel() * message.element_size() for message in messages)
    finally:
        dist.destroy_process_group()


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
    print(f"{'ranks':>6}{'collectives':>13}{'bytes':>7}{'exchange, us':>14}{'other traffic, ms':>19}{'share':>9}")
    for ranks in (8, 256, 4096):
        (collectives, size), (exchange, traffic) = counted(ranks), reckoned(ranks)
        rows[str(ranks)] = {
            "collectives": collectives,
            "bytes": size,
            "exchange, microseconds": exchange * 1e6,
            "traffic of FSDP, milliseconds": traffic * 1e3,
            "share": exchange / traffic,
        }
        print(f"{ranks:6}{collectives:13}{size:7}{exchange * 1e6:14.0f}{traffic * 1e3:19.0f}{exchange / traffic:9.4%}")
    out.mkdir(parents=True, exist_ok=True)
    record = {"tensors": len(MODEL), "ranks": rows, "assumed": ASSUMED, **provenance("cpu, a pretended process group")}
    (out / "exchange.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
