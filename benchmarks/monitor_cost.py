"""What a Monitor costs: the time of a training step with it and without, in turns; writes results/monitor_cost.

    python benchmarks/monitor_cost.py --device cpu     # the demo's network
    python benchmarks/monitor_cost.py --device cuda    # also ResNet-18 (batches of 256 images of 32 x 32) and GPT-2

Steps are whole ones: forward, backward, optimizer. Every batch is marked. A turn is a few steps of each kind, and
numbers are medians over turns, as other programs disturb a host. On a GPU the time is that of the device and the host
together: a turn ends when the device is done.
"""

import argparse
import json
import runpy
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from provenance import provenance
from torch import Tensor, nn
from torch.nn import functional

import adaterm
from adaterm_bench.models.resnet import make_network
from adaterm_bench.models.transformer import Sizes, make_transformer, measure_loss

STEPS = {"demo": 1, "resnet18": 20, "gpt2": 5}  # of a turn
TURNS = {"demo": 1000, "resnet18": 41, "gpt2": 41}


def make_demo(device: torch.device) -> tuple[nn.Module, Callable[[], Tensor]]:
    demo = runpy.run_path(str(Path(__file__).parents[1] / "examples/demo.py"))
    network, text = demo["Model"]().to(device), demo["load_text"]()[0]
    inputs, targets = demo["cut"](text, demo["SEQUENCES"], torch.Generator().manual_seed(0))
    inputs, targets = inputs.to(device), targets.to(device)
    return network, lambda: functional.cross_entropy(network(inputs), targets)


def make_resnet(device: torch.device) -> tuple[nn.Module, Callable[[], Tensor]]:
    network = make_network(0, 100, 64).to(device)
    images, labels = torch.randn(256, 3, 32, 32, device=device), torch.randint(100, (256,), device=device)

    def measure() -> Tensor:
        with torch.autocast(device.type, torch.bfloat16):
            return functional.cross_entropy(network(images).float(), labels)

    return network, measure


def make_gpt2(device: torch.device) -> tuple[nn.Module, Callable[[], Tensor]]:
    sizes = Sizes(50257, 1024, 768, 12, 12)
    network = make_transformer(sizes, 0, device)
    tokens = torch.randint(sizes.vocabulary, (8, sizes.context + 1), device=device)
    return network, lambda: measure_loss(network, tokens[:, :-1], tokens[:, 1:], True)


MODELS = {"demo": make_demo, "resnet18": make_resnet, "gpt2": make_gpt2}


def measure_cost(name: str, kind: str, device: torch.device) -> dict[str, Any]:
    """The time of a step without a monitor, with one, and with one that is read at every step."""
    torch.manual_seed(0)
    network, measure = MODELS[name](device)
    optimizer = getattr(adaterm, kind)(network.parameters())
    monitor = adaterm.Monitor(optimizer, network)

    def take(steps: int, marks: bool, reads: bool) -> float:
        if device.type == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        for number in range(steps):
            if marks:
                monitor.mark(number)
            optimizer.zero_grad()
            measure().backward()
            optimizer.step()
            if reads:
                monitor.metrics()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - begin) / steps

    take(12, True, True)
    monitor.remove()
    times: dict[str, list[float]] = {"alone": [], "watched": [], "watched and read": []}
    for way, reads in (("watched", False), ("watched and read", True)):
        for _ in range(TURNS[name]):
            times["alone"] += [take(STEPS[name], False, False)] if not reads else []
            stop = optimizer.add_watcher(monitor._observe)
            times[way].append(take(STEPS[name], True, reads))
            stop()
    middle = {way: median(values) for way, values in times.items()}
    return {
        "tensors": len(list(network.parameters())),
        "memory, MB": monitor.nbytes / 1e6,
        "milliseconds": {way: 1e3 * value for way, value in middle.items()},
        "per cent more": {way: 100.0 * (middle[way] / middle["alone"] - 1.0) for way in list(times)[1:]},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--models", nargs="+", choices=MODELS, help="the demo alone on a CPU, else all")
    parser.add_argument("--out", type=Path, default=Path("results/monitor_cost"))
    args = parser.parse_args()
    device = torch.device(args.device)
    if device.type == "cpu":
        torch.set_num_threads(1)
    table: dict[str, dict[str, Any]] = {}
    for name in args.models or (["demo"] if device.type == "cpu" else list(MODELS)):
        table[name] = {kind: measure_cost(name, kind, device) for kind in ("RobustAdamW", "AdaTerm")}
        print(name, json.dumps(table[name]), flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    record = {"table": table, "settings": {"turns": TURNS, "steps of a turn": STEPS}} | provenance(args.device)
    (args.out / f"{device.type}.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
