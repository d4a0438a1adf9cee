"""What a Monitor costs: the time of a training step with it and without, in turns; writes results/monitor_cost.

    python benchmarks/monitor_cost.py --device cpu     # the demo's network
    python benchmarks/monitor_cost.py --device cuda    # also ResNet-18 (batches of 256 images of 32 x 32) and GPT-2

Steps are whole ones: forward, backward, optimizer. Every batch is marked. A turn is a few steps without a monitor, with
one, and with one that is read at every step, and numbers are medians over turns. On a GPU the time is that of the
device and the host together: a turn ends when the device is done. On a CPU it is the processor's time, of one thread,
as other programs disturb a host. The file is written after each model; it takes a GPU about a minute.
"""

import argparse
import json
import runpy
import time
from collections.abc import Callable
from operator import truediv
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

STEPS = {"resnet18": 20, "gpt2": 5, "demo": 100}  # of each kind, in a turn
TURNS = 11


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


MODELS = {"resnet18": make_resnet, "gpt2": make_gpt2, "demo": make_demo}


def measure_cost(name: str, kind: str, device: torch.device) -> dict[str, Any]:
    """The time of a step without a monitor, with one, and with one that is read at every step."""
    torch.manual_seed(0)
    network, measure = MODELS[name](device)
    optimizer = getattr(adaterm, kind)(network.parameters())
    monitors = {way: adaterm.Monitor(optimizer, network) for way in ("watched", "watched and read")}
    for monitor in monitors.values():
        monitor.remove()
    clock = time.process_time if device.type == "cpu" else time.perf_counter

    def take(steps: int, way: str) -> float:
        monitor = monitors.get(way)
        stop = optimizer.add_watcher(monitor._observe) if monitor else lambda: None
        if device.type == "cuda":
            torch.cuda.synchronize()
        begin = clock()
        for number in range(steps):
            if monitor:
                monitor.mark(number)
            optimizer.zero_grad()
            measure().backward()
            optimizer.step()
            if monitor and way == "watched and read":
                monitor.metrics()
        if device.type == "cuda":
            torch.cuda.synchronize()
        end = clock()
        stop()
        return end - begin

    ways = ["alone", *monitors]
    for way in ways:
        take(12, way)
    times: dict[str, list[float]] = {way: [] for way in ways}
    steps = STEPS[name]
    rounds = steps if device.type == "cpu" else 1  # ways change after every step where nothing runs on
    for turn in range(TURNS):
        spent = dict.fromkeys(ways, 0.0)
        for part in range(rounds):
            for place in range(len(ways)):
                way = ways[(turn + part + place) % len(ways)]
                spent[way] += take(steps // rounds, way)
        for way in ways:
            times[way].append(spent[way] / steps)
    return {
        "tensors": len(list(network.parameters())),
        "memory, MB": monitors["watched"].nbytes / 1e6,
        "milliseconds": {way: 1e3 * median(values) for way, values in times.items()},
        "per cent more": {way: 100.0 * (median(map(truediv, times[way], times["alone"])) - 1.0) for way in monitors},
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
    args.out.mkdir(parents=True, exist_ok=True)
    table: dict[str, dict[str, Any]] = {}
    for name in args.models or (["demo"] if device.type == "cpu" else list(MODELS)):
        table[name] = {kind: measure_cost(name, kind, device) for kind in ("RobustAdamW", "AdaTerm")}
        print(name, json.dumps(table[name]), flush=True)
        record = {"table": table, "settings": {"turns": TURNS, "steps of a turn": STEPS}} | provenance(args.device)
        (args.out / f"{device.type}.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
