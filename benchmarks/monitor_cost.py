"""What a Monitor costs: the time of a training step with it and without, in turns; writes results/monitor_cost.

    python benchmarks/monitor_cost.py --device cpu     # the demo's network
    python benchmarks/monitor_cost.py --device cuda    # ResNet-18 (batches of 256 images of 32 x 32) and GPT-2
    python benchmarks/monitor_cost.py --small          # all of them, tiny and for a few steps: does it run?

Steps are whole ones: forward, backward, optimizer. Every batch is marked. A turn is a few steps without a monitor, with
one, and with one that is read at every step, and numbers are medians over turns. On a GPU the time is that of the
device and the host together: a turn ends when the device is done. On a CPU it is the processor's time, of one thread,
as other programs disturb a host. The file is written after each optimizer; it takes a GPU about a minute. What is small
is written only where `--out` says.
"""

import argparse
import json
import runpy
import time
from collections.abc import Callable
from itertools import product
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

STEPS = {"resnet18": 20, "gpt2": 5, "demo": 100}  # of each way, in a turn
TURNS, WARM_UP = 11, 12
KINDS = ("RobustAdamW", "AdaTerm")

Task = tuple[nn.Module, Callable[[], Tensor]]


def make_demo(device: torch.device, small: bool) -> Task:
    demo = runpy.run_path(str(Path(__file__).parents[1] / "examples/demo.py"))
    network, text = demo["Model"]().to(device), demo["load_text"]()[0]
    inputs, targets = demo["cut"](text, demo["SEQUENCES"], torch.Generator().manual_seed(0))
    inputs, targets = inputs.to(device), targets.to(device)
    return network, lambda: functional.cross_entropy(network(inputs), targets)


def make_resnet(device: torch.device, small: bool) -> Task:
    network, batch = make_network(0, 100, 4 if small else 64).to(device), 4 if small else 256
    images, labels = torch.randn(batch, 3, 32, 32, device=device), torch.randint(100, (batch,), device=device)

    def measure() -> Tensor:
        with torch.autocast(device.type, torch.bfloat16):
            return functional.cross_entropy(network(images).float(), labels)

    return network, measure


def make_gpt2(device: torch.device, small: bool) -> Task:
    sizes = Sizes(64, 16, 16, 2, 2) if small else Sizes(50257, 1024, 768, 12, 12)
    network = make_transformer(sizes, 0, device)
    tokens = torch.randint(sizes.vocabulary, (8, sizes.context + 1), device=device)
    return network, lambda: measure_loss(network, tokens[:, :-1], tokens[:, 1:], True)


MODELS = {"resnet18": make_resnet, "gpt2": make_gpt2, "demo": make_demo}


def measure_cost(name: str, kind: str, device: torch.device, small: bool) -> dict[str, Any]:
    """The time of a step without a monitor, with one, and with one that is read at every step."""
    torch.manual_seed(0)
    network, measure = MODELS[name](device, small)
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
    steps, turns, warm_up = (2, 2, 2) if small else (STEPS[name], TURNS, WARM_UP)
    for way in ways:
        take(warm_up, way)
    times: dict[str, list[float]] = {way: [] for way in ways}
    rounds = steps if device.type == "cpu" else 1  # ways change after every step where nothing runs on
    for turn in range(turns):
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
    parser.add_argument("--models", nargs="+", choices=MODELS, help="on a CPU the demo, else all but the demo")
    parser.add_argument("--small", action="store_true", help="tiny networks, all of them, and few steps")
    parser.add_argument("--out", type=Path, help="results/monitor_cost")
    args = parser.parse_args()
    device = torch.device(args.device)
    if device.type == "cpu":
        torch.set_num_threads(1)
    out = args.out or (None if args.small else Path("results/monitor_cost"))
    chosen = list(MODELS) if args.small else ["demo"] if device.type == "cpu" else ["resnet18", "gpt2"]
    table: dict[str, dict[str, Any]] = {}
    for name, kind in product(args.models or chosen, KINDS):
        table.setdefault(name, {})[kind] = measure_cost(name, kind, device, args.small)
        print(name, kind, json.dumps(table[name][kind]), flush=True)
        record = {"table": table, "settings": {"turns": TURNS, "steps of a turn": STEPS}} | provenance(args.device)
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            (out / f"{device.type}.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
