"""Time one optimizer step, in turns with its rivals, and write results/step_time/<device>.json and .png.

    python benchmarks/step_time.py                             # everything, on a GPU if there is one
    python benchmarks/step_time.py --device cpu --shapes mlp resnet18
    python benchmarks/step_time.py --shapes gpt2 --only RobustAdamW
    python benchmarks/step_time.py --also some.package:Optimizer

Other programs disturb a host, from one minute to the next. So a method takes turns with fused Adam and its rival, in
rounds of a few steps each, and every ratio is one of medians over the same rounds; replays of CUDA graphs take turns
likewise. No more than three optimizers are alive at a time. What was measured is written after every model.

The floor is the time to move the bytes that a step must move, at the speed of a copy measured in the same run: 28 bytes
an element for Adam and AdamW, 40 for AdaTerm and RobustAdamW, of which large caches can save 12, and 40 where
`clip_grad_norm_` reads and scales the gradients before. With bfloat16 parameters AdaTerm and RobustAdamW keep their
state in float32 all the same, where Adam keeps bfloat16.
"""

import argparse
import gc
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
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from model_shapes import SHAPES
from provenance import provenance
from step_time_report import BASE, draw, show
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

import adaterm
from adaterm.engines.cpu import engine as cpu

LEAN = "AdamW(fused=True)"  # whose memory others are compared with
PAIR = "clip_grad_norm_ + AdamW(fused=True)"
RIVALS = {
    "AdaTerm(fused=True)": BASE,
    "RobustAdamW()": "AdaTerm(fused=True)",
    "RobustAdamW(max_norm=1.0)": PAIR,
}
BYTES = {
    "float32": {"Adam": 28, "AdamW": 28, "clip_grad_norm_ + AdamW": 40, "AdaTerm": 40, "RobustAdamW": 40},
    "bfloat16": {"Adam": 14, "AdamW": 14, "clip_grad_norm_ + AdamW": 20, "AdaTerm": 30, "RobustAdamW": 30},
}
ON_CPU = ("mlp", "resnet18")
SHARDED = ("resnet18", "gpt2")
IN_BF16 = ("resnet18", "gpt2", "llama")
WARM, COUNTED, FEWEST = 2, 2, 5  # steps of a turn that do not count and that do, and rounds
SECONDS = {"cuda": 0.7, "cpu": 3.0}

Makers = dict[str, Callable[[list[Tensor]], Any]]
Times = dict[str, dict[str, float]]
Turns = Callable[[dict[str, Callable[[], float]]], dict[str, float]]


class ClippedAdamW:
    """`clip_grad_norm_`, which changes gradients in place, and then fused AdamW, as people run both."""

    def __init__(self, params: list[Tensor]) -> None:
        self._optimizer = torch.optim.AdamW(params, fused=True)
        self.param_groups = self._optimizer.param_groups

    def step(self) -> None:
        """Clip and step."""
        torch.nn.utils.clip_grad_norm_(self.param_groups[0]["params"], 1.0)
        self._optimizer.step()


def list_methods(device: str, also: list[str]) -> Makers:
    """What is timed, by name; the first one is what all others are compared with."""
    makers: Makers = {
        BASE: partial(torch.optim.Adam, fused=True),
        LEAN: partial(torch.optim.AdamW, fused=True),
        PAIR: ClippedAdamW,
    }
    if device == "cuda" or cpu.is_available():
        makers["AdaTerm(fused=True)"] = partial(adaterm.AdaTerm, fused=True)
        makers["RobustAdamW()"] = adaterm.RobustAdamW
        makers["RobustAdamW(max_norm=1.0)"] = partial(adaterm.RobustAdamW, max_norm=1.0)
    for flag in (True, False):
        makers[f"Adam(foreach={flag})"] = partial(torch.optim.Adam, foreach=flag)
        makers[f"AdaTerm(foreach={flag})"] = partial(adaterm.AdaTerm, foreach=flag)
    for name in also:
        module, _, attribute = name.partition(":")
        makers[attribute] = getattr(importlib.import_module(module), attribute)
    return makers


def list_rivals(name: str) -> tuple[str, ...]:
    """The methods that take turns when this one is measured; it is the last of them."""
    return tuple(dict.fromkeys((BASE, RIVALS.get(name, BASE), name)))


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def free_memory(device: str) -> None:
    """Give back what optimizers had that are no longer used, also where they refer to themselves."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def time_call(action: Callable[[], Any], device: str) -> float:
    """The seconds of one call, everything included."""
    wait(device)
    start = time.perf_counter()
    action()
    wait(device)
    return time.perf_counter() - start


def time_step(optimizer: Any, gradients: list[list[Tensor]], device: str) -> float:
    """The seconds of a step with other gradient tensors than the last one had, as after a backward pass."""
    params = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    gradients.reverse()
    for parameter, gradient in zip(params, gradients[0], strict=True):
        parameter.grad = gradient
    return time_call(optimizer.step, device)


def time_replay(graph: torch.cuda.CUDAGraph) -> float:
    """The seconds of a replay on the GPU, without the host's part."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3


def capture(optimizer: Any) -> torch.cuda.CUDAGraph:
    """A step as a CUDA graph, which lives no longer than the optimizer; it has not stepped before."""
    for group in optimizer.param_groups:
        group["capturable"] = True
    optimizer.step()
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        optimizer.step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()
    return graph


def take_turns(steps: dict[str, Callable[[], float]], seconds: float, rounds: int) -> dict[str, float]:
    """Milliseconds of each: medians of rounds in which everyone steps a few times, and only its last steps count."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        for _ in range(WARM):
            step()
    end = time.perf_counter() + seconds
    for count in range(max(rounds, FEWEST)):
        if count >= FEWEST and time.perf_counter() > end:
            break
        for name, step in steps.items():
            times[name] += [step() for _ in range(WARM + COUNTED)][WARM:]
    return {name: 1e3 * statistics.median(row) for name, row in times.items()}


def measure_copy(device: str) -> float:
    """Bytes a second that a copy reads and writes."""
    source = torch.randn(2**28 if device == "cuda" else 2**25, device=device)
    target = torch.empty_like(source)
    # on a CPU in place: elsewhere the target would be read, too, before it is written
    target = source if device == "cpu" else target
    best = min(time_call(lambda: torch.add(source, 1.0, out=target), device) for _ in range(10))
    return 2 * source.numel() * source.element_size() / best


def compare(makers: Makers, params: list[Tensor], gradients: list[list[Tensor]], device: str, turns: Turns) -> Times:
    """Milliseconds a step of methods that take turns, eager and as graphs, over the same parameters and gradients."""
    free_memory(device)
    optimizers = {name: make(params) for name, make in makers.items()}
    eager = turns({name: partial(time_step, each, gradients, device) for name, each in optimizers.items()})
    measured = {name: {"eager": took} for name, took in eager.items()}
    if device == "cuda" and not any("foreach=False" in name for name in makers):
        optimizers.clear()
        free_memory(device)
        optimizers |= {name: make(params) for name, make in makers.items()}
        graphs = {name: capture(each) for name, each in optimizers.items()}
        for name, took in turns({name: partial(time_replay, graph) for name, graph in graphs.items()}).items():
            measured[name]["graph"] = took
    return measured


def measure_memory(make: Callable[[list[Tensor]], Any], params: list[Tensor], gradients: list[list[Tensor]]) -> int:
    """Bytes on the GPU at the peak of a step, beside parameters and gradients, when there is state already."""
    free_memory("cuda")
    before = torch.cuda.memory_allocated()
    optimizer = make(params)
    for _ in range(3):
        time_step(optimizer, gradients, "cuda")
    torch.cuda.reset_peak_memory_stats()
    time_step(optimizer, gradients, "cuda")
    return torch.cuda.max_memory_allocated() - before


def measure(
    shapes: list[tuple[int, ...]], dtype: str, device: str, makers: Makers, chosen: list[str], turns: Turns
) -> dict[str, Any]:
    """What one model's tensors show of the chosen methods, as the parts of the record."""
    params = [torch.randn(shape, device=device, dtype=getattr(torch, dtype)) for shape in shapes]
    gradients = [[torch.randn_like(parameter) for parameter in params] for _ in range(2)]
    measured: dict[str, Any] = {"elements": sum(map(math.prod, shapes))}
    if device == "cuda":
        compared = dict.fromkeys((LEAN, *chosen))
        measured["memory"] = {name: measure_memory(makers[name], params, gradients) for name in compared}
        measured["memory ratios"] = {name: size / measured["memory"][LEAN] for name, size in measured["memory"].items()}
    times: dict[str, Times] = {}
    for name in chosen:
        times[name] = compare({rival: makers[rival] for rival in list_rivals(name)}, params, gradients, device, turns)
    measured["times"] = times
    measured["ratios"] = {name: divide(rows, name, BASE) for name, rows in times.items()}
    rivals = {name: rival for name, rival in RIVALS.items() if name in times}
    measured["rivals"] = {f"{name} / {rival}": divide(times[name], name, rival) for name, rival in rivals.items()}
    return measured


def divide(times: Times, name: str, other: str) -> dict[str, float]:
    """How many times as long as the other's a method's step takes, of each kind."""
    return {kind: took / times[other][kind] for kind, took in times[name].items()}


def measure_sharded(shapes: list[tuple[int, ...]], device: str, makers: Makers, turns: Turns) -> dict[str, float]:
    """Milliseconds a step on DTensors, of which this rank has an eighth, in a process group that pretends to be eight.

    Its messages cost nothing: what is measured is the work of the host, and the kernels.
    """
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    try:
        mesh = init_device_mesh(device, (8,))
        locals_ = [torch.randn(max(1, math.ceil(shape[0] / 8)), *shape[1:], device=device) for shape in shapes]

        def shard() -> list[Tensor]:
            return [DTensor.from_local(tensor.clone(), mesh, [Shard(0)], run_check=False) for tensor in locals_]

        def step(optimizer: Any) -> float:
            return time_step(optimizer, [shard()], device)

        optimizers = {name: make([tensor.requires_grad_() for tensor in shard()]) for name, make in makers.items()}
        return turns({name: partial(step, optimizer) for name, optimizer in optimizers.items()})
    finally:
        dist.destroy_process_group()


FIRST = """
import time, torch, adaterm
parameter = torch.zeros(5, requires_grad=True)
parameter.grad = torch.ones(5)
optimizer = adaterm.AdaTerm([parameter], fused=True)
start = time.perf_counter()
optimizer.step()
print(time.perf_counter() - start)
"""


def measure_first_steps() -> dict[str, float]:
    """Seconds of the first step of a process on a CPU: when it has to compile, and when that is on disk."""
    with tempfile.TemporaryDirectory() as folder:
        command, environment = [sys.executable, "-c", FIRST], os.environ | {"NUMBA_CACHE_DIR": folder}
        runs = [subprocess.run(command, env=environment, check=True, capture_output=True, text=True) for _ in range(2)]
    return {name: float(run.stdout) for name, run in zip(("compiled", "from disk"), runs, strict=True)}


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, help="default: all on a GPU, the small ones on a CPU")
    parser.add_argument("--only", nargs="+", default=[""], metavar="TEXT", help="methods with one of these in the name")
    parser.add_argument("--also", nargs="*", default=[], metavar="MODULE:CLASS", help="other optimizers to time")
    parser.add_argument("--repetitions", type=int, default=500, help="rounds of a comparison, at most")
    parser.add_argument("--seconds", type=float, help="of a comparison, about; default: 0.7 on a GPU, 3 on a CPU")
    parser.add_argument("--out", type=Path, default=Path("results/step_time"))
    parser.add_argument("--draw", type=Path, metavar="JSON", help="only draw the figure of an earlier run")
    return parser.parse_args()


def main() -> None:
    args, start = read_arguments(), time.perf_counter()
    if args.draw:
        draw(json.loads(args.draw.read_text()), args.draw.with_suffix(".png"))
        return
    gc.freeze()  # so that looking for what can be freed takes no time
    device, makers = args.device, list_methods(args.device, args.also)
    chosen = [name for name in makers if name != BASE and any(text in name for text in args.only)]
    if not chosen:
        sys.exit(f"no method has one of these in its name: {', '.join(args.only)}")
    seconds, shapes = args.seconds or SECONDS[device], args.shapes or (SHAPES if device == "cuda" else ON_CPU)
    turns = partial(take_turns, seconds=seconds, rounds=args.repetitions)
    described = torch.cuda.get_device_name() if device == "cuda" else f"cpu, {torch.get_num_threads()} threads"
    record: dict[str, Any] = {"copy, bytes a second": measure_copy(device)}
    args.out.mkdir(parents=True, exist_ok=True)
    file = args.out / f"{device}.json"

    def keep(**parts: Any) -> None:
        """Write what there is after every part: a run that is cut off leaves that."""
        for part, values in parts.items():
            record.setdefault(part, {}).update(values)
        taken = {"seconds of the run": time.perf_counter() - start}
        file.write_text(json.dumps(record | taken | provenance(described), indent=1) + "\n")

    cases = [(shape, shape, "float32") for shape in shapes]
    if device == "cuda":
        cases += [(f"{shape}, bf16", shape, "bfloat16") for shape in shapes if shape in IN_BF16]
    for case, shape, dtype in cases:
        measured = measure(SHAPES[shape], dtype, device, makers, chosen, turns)
        scale = 1e3 * measured["elements"] / record["copy, bytes a second"]
        measured["floors"] = {name: scale * size for name, size in BYTES[dtype].items()}
        print(f"{case}: {len(SHAPES[shape])} tensors, {measured['elements'] / 1e6:.3g} M elements")
        show(measured)
        sys.stdout.flush()
        keep(**{part: {case: values} for part, values in measured.items()})
    if device == "cpu" and cpu.is_available():
        keep(**{"first step, seconds": measure_first_steps()})
        print(f"first step, seconds: {record['first step, seconds']}")
    sharded = {name: makers[name] for tested in RIVALS if tested in chosen for name in list_rivals(tested)}
    for shape in SHARDED:
        if sharded and (not args.shapes or shape in args.shapes):
            longer = partial(turns, seconds=seconds * len(sharded))
            row = measure_sharded(SHAPES[shape], device, sharded, longer)
            keep(sharded={shape: row})
            print(f"{shape} in eight shards:")
            for name, took in row.items():
                print(f"  {name:36}{took:12.4f} ms{took / row[BASE]:9.3f} x Adam", flush=True)
    print(f"{time.perf_counter() - start:.0f} seconds, written to {file}")
    try:
        draw(json.loads(file.read_text()), file.with_suffix(".png"))
    except ImportError:
        print(f"no figure, as matplotlib is missing; elsewhere: python benchmarks/step_time.py --draw {file}")


if __name__ == "__main__":
    main()
