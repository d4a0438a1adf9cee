"""Time one optimizer step, side by side with torch's Adam, and write results/step_time/<device>.json and .png.

    python benchmarks/step_time.py                             # everything, on a GPU if there is one
    python benchmarks/step_time.py --device cpu --shapes mlp resnet18
    python benchmarks/step_time.py --also some.package:Optimizer

Medians of repetitions; on a CPU the methods take turns, because other programs disturb them. The floor is the time to
move the bytes that a step must move, at the speed of a copy measured in the same run: 28 bytes an element for Adam, 40
for AdaTerm, of which large caches can save 12. With bfloat16 parameters AdaTerm keeps its state in float32 all the
same, where Adam keeps bfloat16: 14 bytes against 30.
"""

import argparse
import importlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from provenance import provenance
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

import adaterm
from adaterm.engines.cpu import engine as cpu

BYTES = {"float32": {"Adam": 28, "AdaTerm": 40}, "bfloat16": {"Adam": 14, "AdaTerm": 30}}


def resnet18() -> list[tuple[int, ...]]:
    shapes: list[tuple[int, ...]] = [(64, 3, 7, 7), (64,), (64,)]
    before = 64
    for width in (64, 128, 256, 512):
        for block in range(2):
            shapes += [(width, before if block == 0 else width, 3, 3), (width,), (width,), (width, width, 3, 3)]
            shapes += [(width,), (width,)]
            if block == 0 and before != width:
                shapes += [(width, before, 1, 1), (width,), (width,)]
        before = width
    return [*shapes, (1000, 512), (1000,)]


def gpt2() -> list[tuple[int, ...]]:
    layer = [
        (768,),
        (768,),
        (2304, 768),
        (2304,),
        (768, 768),
        (768,),
        (768,),
        (768,),
        (3072, 768),
        (3072,),
        (768, 3072),
    ]
    return [(50257, 768), (1024, 768), *([*layer, (768,)] * 12), (768,), (768,)]


def vit() -> list[tuple[int, ...]]:
    norm = [(768,), (768,)]
    layer = [*norm, (2304, 768), (2304,), (768, 768), (768,), *norm, (3072, 768), (3072,), (768, 3072), (768,)]
    return [(1, 1, 768), (1, 197, 768), (768, 3, 16, 16), (768,), *(layer * 12), *norm, (1000, 768), (1000,)]


def llama() -> list[tuple[int, ...]]:
    layer = [(2048, 2048), (512, 2048), (512, 2048), (2048, 2048), *[(8192, 2048)] * 2, (2048, 8192), (2048,), (2048,)]
    return [(128256, 2048), *(layer * 16), (2048,)]


def mlp(outputs: int) -> list[tuple[int, ...]]:
    return [(128, 33), (128,), (128, 128), (128,), (outputs, 128), (outputs,)]


SHAPES: dict[str, list[tuple[int, ...]]] = {
    "mlp": [*mlp(8), *mlp(1)],  # an actor and a critic
    "resnet18": resnet18(),
    "vit": vit(),
    "gpt2": gpt2(),
    "llama": llama(),
    "one": [(16384, 16384)],
}
ON_CPU = ("mlp", "resnet18")
SHARDED = ("resnet18", "gpt2")
IN_BF16 = ("resnet18", "gpt2", "llama")


def methods(device: str, also: list[str]) -> dict[str, Callable[[list[Tensor]], torch.optim.Optimizer]]:
    """What is timed, by name; the first one is what the others are compared with."""
    found: dict[str, Callable[[list[Tensor]], torch.optim.Optimizer]] = {
        "Adam(fused=True)": lambda params: torch.optim.Adam(params, fused=True),
        "Adam(foreach=True)": lambda params: torch.optim.Adam(params, foreach=True),
        "Adam(foreach=False)": lambda params: torch.optim.Adam(params, foreach=False),
        "AdaTerm(foreach=True)": lambda params: adaterm.AdaTerm(params, foreach=True),
        "AdaTerm(foreach=False)": lambda params: adaterm.AdaTerm(params, foreach=False),
    }
    if device == "cuda" or cpu.is_available():
        found["AdaTerm(fused=True)"] = lambda params: adaterm.AdaTerm(params, fused=True)
    for name in also:
        module, _, attribute = name.partition(":")
        found[attribute] = getattr(importlib.import_module(module), attribute)
    return found


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def seconds(action: Callable[[], Any], device: str) -> float:
    """The wall time of one call, everything included."""
    wait(device)
    start = time.perf_counter()
    action()
    wait(device)
    return time.perf_counter() - start


def replayed(step: Callable[[], Any]) -> float:
    """The time of a step as a CUDA graph, without the host's part."""
    with torch.cuda.stream(torch.cuda.Stream()):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    times = []
    for _ in range(30):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return statistics.median(times)


def stepped(optimizer: torch.optim.Optimizer, gradients: list[list[Tensor]], device: str) -> float:
    """The wall time of a step with other gradient tensors than the last one had, as after a backward pass."""
    params = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    gradients.reverse()
    for parameter, gradient in zip(params, gradients[0], strict=True):
        parameter.grad = gradient
    return seconds(optimizer.step, device)


def copy_speed(device: str) -> float:
    """Bytes a second that a copy reads and writes."""
    source = torch.randn(2**28 if device == "cuda" else 2**25, device=device)
    target = torch.empty_like(source)
    # on a CPU in place: elsewhere the target would be read, too, before it is written
    target = source if device == "cpu" else target
    best = min(seconds(lambda: torch.add(source, 1.0, out=target), device) for _ in range(10))
    return 2 * source.numel() * source.element_size() / best


def measure(
    shapes: list[tuple[int, ...]], device: str, dtype: torch.dtype, also: list[str], repetitions: int
) -> dict[str, dict[str, float]]:
    """Milliseconds a step of each method, eager and replayed as a graph, over the same parameters and gradients."""
    params = [torch.randn(shape, device=device, dtype=dtype) for shape in shapes]
    gradients = [[torch.randn_like(parameter) for parameter in params] for _ in range(2)]
    makers = methods(device, also)
    if device == "cpu":
        return taking_turns({name: make(params) for name, make in makers.items()}, gradients, repetitions)
    found = {}
    for name, make in makers.items():
        optimizer = make(params)
        for _ in range(3):
            stepped(optimizer, gradients, device)
        count = max(5, min(repetitions, math.ceil(2.0 / stepped(optimizer, gradients, device))))
        row = {"eager": 1e3 * statistics.median(stepped(optimizer, gradients, device) for _ in range(count))}
        if "foreach=False" not in name:
            for group in optimizer.param_groups:
                group["capturable"] = True
            optimizer.state.clear()
            optimizer.step()
            row["graph"] = 1e3 * replayed(optimizer.step)
        found[name] = row
        del optimizer
    return found


def taking_turns(
    optimizers: dict[str, torch.optim.Optimizer], gradients: list[list[Tensor]], repetitions: int
) -> dict[str, dict[str, float]]:
    """Each method's median, of rounds in which every method steps a few times and its last step counts."""
    times: dict[str, list[float]] = {name: [] for name in optimizers}
    once = sum(stepped(optimizer, gradients, "cpu") for optimizer in optimizers.values() for _ in range(3)) / 3
    for _ in range(max(repetitions, min(10 * repetitions, int(3.0 / once)))):
        for name, optimizer in optimizers.items():
            for _ in range(3):
                stepped(optimizer, gradients, "cpu")
            times[name].append(stepped(optimizer, gradients, "cpu"))
    return {name: {"eager": 1e3 * statistics.median(row)} for name, row in times.items()}


def measure_sharded(shapes: list[tuple[int, ...]], device: str, repetitions: int) -> dict[str, float]:
    """Milliseconds a step on DTensors, of which this rank has an eighth, in a process group that pretends to be eight.

    Its messages cost nothing: what is measured is the work of the host, and the kernels.
    """
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    try:
        mesh = init_device_mesh(device, (8,))
        locals_ = [torch.randn(max(1, math.ceil(shape[0] / 8)), *shape[1:], device=device) for shape in shapes]

        def shard(tensor: Tensor) -> Tensor:
            return DTensor.from_local(tensor.clone(), mesh, [Shard(0)], run_check=False)

        makers = methods(device, [])
        chosen = {name: makers[name] for name in ("Adam(fused=True)", "AdaTerm(fused=True)") if name in makers}
        optimizers = {name: make([shard(t).requires_grad_() for t in locals_]) for name, make in chosen.items()}
        times: dict[str, list[float]] = {name: [] for name in optimizers}
        for count in range(repetitions + 5):
            for name, optimizer in optimizers.items():
                for parameter, tensor in zip(optimizer.param_groups[0]["params"], locals_, strict=True):
                    parameter.grad = shard(tensor)
                took = seconds(optimizer.step, device)
                if count >= 5:
                    times[name].append(took)
        return {name: 1e3 * statistics.median(row) for name, row in times.items()}
    finally:
        dist.destroy_process_group()


def show(times: dict[str, dict[str, float]], ratios: dict[str, dict[str, float]], floors: dict[str, float]) -> None:
    """A table: milliseconds, multiples of fused Adam, and how much of the floor's speed is reached."""
    kinds = [kind for kind in ("eager", "graph") if kind in times["Adam(fused=True)"]]
    print(f"  {'':24}" + "".join(f"{kind + ', ms':>12}{'x Adam':>9}" for kind in kinds) + f"{'of floor':>10}")
    for name, row in times.items():
        cells = "".join(f"{row[k]:12.4f}{ratios[name][k]:9.3f}" if k in row else " " * 21 for k in kinds)
        floor = floors.get(name.partition("(")[0])
        best = row.get("graph", row["eager"])
        print(f"  {name:24}{cells}" + (f"{floor / best:10.0%}" if floor else ""), flush=True)


FIRST = """
import time, torch, adaterm
parameter = torch.zeros(5, requires_grad=True)
parameter.grad = torch.ones(5)
optimizer = adaterm.AdaTerm([parameter], fused=True)
start = time.perf_counter()
optimizer.step()
print(time.perf_counter() - start)
"""


def first_steps() -> dict[str, float]:
    """Seconds of the first step of a process on a CPU: when it has to compile, and when that is on disk."""
    with tempfile.TemporaryDirectory() as folder:
        command, environment = [sys.executable, "-c", FIRST], os.environ | {"NUMBA_CACHE_DIR": folder}
        runs = [subprocess.run(command, env=environment, check=True, capture_output=True, text=True) for _ in range(2)]
    return {name: float(run.stdout) for name, run in zip(("compiled", "from disk"), runs, strict=True)}


def draw(record: dict[str, Any], path: Path) -> None:
    """Each method's time as a multiple of fused Adam's."""
    from matplotlib.figure import Figure

    ratios = record["ratios"]
    first = next(iter(ratios.values()))
    kinds = [kind for kind in ("graph", "eager") if kind in first["Adam(fused=True)"]]
    shades = dict(zip(first, ("black", "#E69F00", "#D55E00", "#56B4E9", "#999999", "#0072B2"), strict=False))
    figure = Figure(figsize=(7.5 * len(kinds), 4.2), dpi=150, layout="constrained")
    for axes, kind in zip(figure.subplots(1, len(kinds), squeeze=False)[0], kinds, strict=True):
        names = [name for name in first if name != "Adam(fused=True)" and kind in first[name]]
        for place, name in enumerate(names):
            at = [index + 0.8 * ((place + 0.5) / len(names) - 0.5) for index in range(len(ratios))]
            heights = [row[name][kind] for row in ratios.values()]
            bars = axes.bar(at, heights, 0.75 / len(names), label=name, color=shades.get(name))
            axes.bar_label(
                bars, [f"{height:.0f}" if height > 9.95 else f"{height:.2f}" for height in heights], fontsize=5
            )
        axes.axhline(1.0, color="black", linewidth=0.8)
        axes.set(yscale="log", title={"graph": "replayed as a CUDA graph", "eager": "eager, everything included"}[kind])
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_ylabel("times Adam(fused=True)")
        axes.set_xticks(range(len(ratios)), [name.replace(", ", "\n") for name in ratios])
        axes.spines[["top", "right"]].set_visible(False)
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    figure.suptitle(f"Time of a step relative to Adam(fused=True), {record['device']}: lower is better")
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, help="default: all on a GPU, the small ones on a CPU")
    parser.add_argument("--also", nargs="*", default=[], metavar="MODULE:CLASS", help="other optimizers to time")
    parser.add_argument("--repetitions", type=int, default=50)
    parser.add_argument("--out", type=Path, default=Path("results/step_time"))
    parser.add_argument("--draw", type=Path, metavar="JSON", help="only draw the figure of an earlier run")
    args = parser.parse_args()
    if args.draw:
        draw(json.loads(args.draw.read_text()), args.draw.with_suffix(".png"))
        return
    chosen = args.shapes or (SHAPES if args.device == "cuda" else ON_CPU)
    name = torch.cuda.get_device_name() if args.device == "cuda" else f"cpu, {torch.get_num_threads()} threads"
    speed = copy_speed(args.device)
    record: dict[str, Any] = {"copy, bytes a second": speed, "times": {}, "elements": {}, "ratios": {}, "floors": {}}
    cases = [(shape, shape, "float32") for shape in chosen]
    if args.device == "cuda":
        cases += [(f"{shape}, bf16", shape, "bfloat16") for shape in chosen if shape in IN_BF16]
    for case, shape, dtype in cases:
        elements = sum(math.prod(size) for size in SHAPES[shape])
        print(f"{case}: {len(SHAPES[shape])} tensors, {elements / 1e6:.3g} M elements", flush=True)
        times = measure(SHAPES[shape], args.device, getattr(torch, dtype), args.also, args.repetitions)
        base = times["Adam(fused=True)"]
        record["elements"][case], record["times"][case] = elements, times
        record["ratios"][case] = {n: {k: v / base[k] for k, v in row.items()} for n, row in times.items()}
        record["floors"][case] = {n: 1e3 * elements * size / speed for n, size in BYTES[dtype].items()}
        show(times, record["ratios"][case], record["floors"][case])
    if args.device == "cpu" and cpu.is_available():
        record["first step, seconds"] = first_steps()
        print(f"first step, seconds: {record['first step, seconds']}")
    record["sharded"] = {}
    for shape in SHARDED:
        row = record["sharded"][shape] = measure_sharded(SHAPES[shape], args.device, args.repetitions)
        text = ", ".join(f"{method} {time:.3f} ms" for method, time in row.items())
        print(f"{shape} in eight shards: {text}: {row['AdaTerm(fused=True)'] / row['Adam(fused=True)']:.3f} x Adam")
    args.out.mkdir(parents=True, exist_ok=True)
    record |= provenance(name)
    (args.out / f"{args.device}.json").write_text(json.dumps(record, indent=1) + "\n")
    draw(record, args.out / f"{args.device}.png")


if __name__ == "__main__":
    main()
