"""Check on a CUDA device what a CPU cannot show, and write the findings to results/gpu_check/.

    python benchmarks/gpu_check.py --jobs 8   # needs torch and the package only

No step after the first waits for the device (torch's sync debug mode raises if one does), a CUDA graph replays what
eager steps do, also between them, the engines agree in every precision, and repeat themselves bit for bit. The fused
engine launches two kernels (four where it judges batches) and copies one table however many tensors there are, needs no
more memory than fused Adam, and takes a tensor of more than 2^31 elements; foreach launches as many kernels for 30
tensors as for one (torch splits longer lists: those counts are only reported) and stays within two scratch lists.
torch.compile makes one graph that a new learning rate does not break, GradScaler skips bad steps, and stochastic
rounding keeps what plain bfloat16 loses. Ranks that share parameters follow a single process.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from math import inf
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import adaterm
from adaterm.engines.cpu import engine as cpu
from adaterm_bench.methods import OUR_METHODS, PAPER_METHODS, Method

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parent))
from catalogue import measure_error
from changes import CHANGES, CHANGES_OF_JUDGEMENT, compare, is_allowed
from provenance import provenance

DEVICE = "cuda"
ENGINES = {"reference": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
JUDGING = {
    **OUR_METHODS,
    "RobustAdamW, usual norm": Method("RobustAdamW", {"window": 12, "max_norm": "auto", "weight_decay": 0.1}),
    "RobustAdamW, no weights": Method("RobustAdamW", {"window": 12, "dof": inf, "maximize": True}),
}
METHODS = {name: method for name, method in PAPER_METHODS.items() if hasattr(adaterm, method.optimizer)} | JUDGING
FEW = [
    name
    for name in METHODS
    if name not in ("Large init", "AdaTerm (Uncentered)", "AdaTerm (AdaBias)", "t-AdaBelief", "At-AdaBelief")
    and "as published" not in name
]
"""The methods without those whose kernels are near duplicates of others'."""
MAIN: list[type[Any]] = [adaterm.AdaTerm, adaterm.RobustAdamW]


def optimizer(method: str, params: list[Tensor], **flags: Any) -> Any:
    chosen = METHODS[method]
    return getattr(adaterm, chosen.optimizer)(params, **(chosen.options | flags))


def parameters(count: int = 6, dtype: torch.dtype = torch.float32, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(64, 33), (64,), (1,), (3, 5, 7), (16, 8), (257,)]
    made = [torch.randn(shapes[i % len(shapes)], generator=generator) for i in range(count)]
    return [tensor.to(DEVICE, dtype).requires_grad_() for tensor in made]


def give_gradients(params: list[Tensor], seed: int) -> None:
    generator = torch.Generator(DEVICE).manual_seed(seed)
    for parameter in params:
        noise = torch.randn(parameter.shape, generator=generator, device=DEVICE)
        parameter.grad = noise.to(parameter.dtype) * (100.0 if seed % 25 == 24 else 1.0)


def no_synchronisation() -> Iterator[tuple[str, Any]]:
    for method in FEW:
        for flags in ENGINES.values():
            for capturable in (False, True):
                params = parameters()
                tested = optimizer(method, params, **flags, capturable=capturable)
                for step in range(4):
                    give_gradients(params, step)
                    torch.cuda.synchronize()
                    torch.cuda.set_sync_debug_mode("error" if step else "default")
                    tested.step()
                    tested.statistics()
                    if method in JUDGING:
                        tested.batch_statistics()
                    torch.cuda.set_sync_debug_mode("default")
    yield "steps that waited for the device", 0


TOLERANCE = {torch.float64: 1e-11, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-2}
"""Relative to the largest entry; parameters in half precision differ by a rounding, their state by STATE_TOLERANCE."""
STATE_TOLERANCE = {torch.float64: 1e-11, torch.float32: 1e-5, torch.bfloat16: 2e-4, torch.float16: 2e-4}


def engines_agree() -> Iterator[tuple[str, Any]]:
    steps = 200
    for dtype, bound in TOLERANCE.items():
        worst = {(name, what): 0.0 for name in ENGINES for what in ("parameters", "state")}
        for method in METHODS if dtype == torch.float32 else FEW:
            ends = {}
            for name, flags in ENGINES.items():
                params = parameters(dtype=dtype)
                tested = optimizer(method, params, **flags)
                for step in range(steps):
                    give_gradients(params, step)
                    tested.step()
                ends[name] = params, tested
            wanted, right = ends["reference"]
            for name, (params, tested) in ends.items():
                for a, b in zip(params, wanted, strict=True):
                    worst[name, "parameters"] = max(worst[name, "parameters"], measure_error(a, b))
                for key in right.state[wanted[0]]:
                    # relative to the largest of all tensors: the mean of a tensor of one element may be all but 0
                    states = gather_state(tested, params, key), gather_state(right, wanted, key)
                    worst[name, "state"] = max(worst[name, "state"], measure_error(*states))
        for (name, what), found in worst.items():
            if name != "reference":
                short = str(dtype).removeprefix("torch.")
                yield f"largest relative difference after {steps} steps, {name}, {what}, {short}", found
                assert found < (bound if what == "parameters" else STATE_TOLERANCE[dtype]), (dtype, name, what, found)


def gather_state(tested: Any, params: list[Tensor], key: str) -> Tensor:
    """A state of all parameters that have it: what batches were like is in that of the first alone."""
    states = (tested.state[parameter] for parameter in params)
    return torch.cat([state[key].to(DEVICE).flatten() for state in states if key in state])


def devices_agree() -> Iterator[tuple[str, Any]]:
    """The fused engines of GPU and CPU, for the same gradients; with those of a model, half precisions would differ."""
    for dtype in TOLERANCE if cpu.is_available() else ():
        worst = 0.0
        for method in (
            "AdaTerm",
            "AdaTerm2",
            "At-Adam",
            "RobustAdamW, usual norm",
        ):  # every one is compiled for the CPU
            params = parameters(dtype=dtype)
            others = [p.detach().cpu().requires_grad_() for p in params]
            tested, right = optimizer(method, params, fused=True), optimizer(method, others, fused=True)
            for step in range(50):
                give_gradients(params, step)
                for a, b in zip(params, others, strict=True):
                    b.grad = a.grad.cpu()
                tested.step()
                right.step()
            for a, b in zip(params, others, strict=True):
                for key, value in right.state[b].items():
                    worst = max(worst, measure_error(tested.state[a][key].cpu(), value))
        assert worst < STATE_TOLERANCE[dtype], (dtype, worst)
        yield f"largest relative difference of the states on GPU and CPU, {str(dtype).removeprefix('torch.')}", worst


def changes_are_noticed() -> Iterator[tuple[str, Any]]:
    """Whatever a user does between two steps, on the GPU's engines."""
    for tested, changes in (("AdaTerm", CHANGES), ("RobustAdamW", CHANGES + CHANGES_OF_JUDGEMENT)):
        for name in ("fused", "foreach"):
            allowed = [change for change in changes if is_allowed(change, name)]
            found = max(compare(change, DEVICE, tested, **ENGINES[name]) for change in allowed)
            yield (
                f"largest relative difference after one of {len(changes)} changes between steps, {tested}, {name}",
                found,
            )
            assert found < 1e-5, (tested, name, found)


def complex_beside_real() -> Iterator[tuple[str, Any]]:
    """One group with real and complex parameters, default options."""
    for kind in MAIN:
        ends = []
        for flags in ({}, ENGINES["reference"]):
            flat = [p.detach().reshape(-1, 2) for p in parameters(1)]
            params = [*parameters(3), *(torch.view_as_complex(pairs).clone() for pairs in flat)]
            params = [parameter.detach().requires_grad_() for parameter in params]
            tested = kind(params, lr=0.1, **flags)
            for step in range(20):
                give_gradients([torch.view_as_real(p.detach()) if p.is_complex() else p for p in params], step)
                for p in params:
                    if p.is_complex():
                        p.grad = torch.ones_like(p) * (step + 1j)
                tested.step()
            ends.append(params)
        pairs = [map(torch.view_as_real, pair) if pair[0].is_complex() else pair for pair in zip(*ends, strict=True)]
        found = max(measure_error(*pair) for pair in pairs)
        yield f"largest relative difference, real and complex parameters in one group, {kind.__name__}", found
        assert found < 1e-5, found


def runs_repeat() -> Iterator[tuple[str, Any]]:
    for method in ("AdaTerm", "RobustAdamW, usual norm"):
        ends = []
        for _ in range(3):
            generator = torch.Generator(DEVICE).manual_seed(0)
            params = [torch.randn(size, generator=generator, device=DEVICE) for size in (3_000_001, 5, 70_000)]
            tested = optimizer(method, params, fused=True)
            for step in range(50):
                give_gradients(params, step)
                tested.step()
            ends.append([tensor for p in params for tensor in (p, *tested.state[p].values())])
        assert all(torch.equal(a, b) for end in ends[1:] for a, b in zip(end, ends[0], strict=True))
        yield f"runs that were equal bit for bit, fused, {method}", len(ends)


def graphs_replay() -> Iterator[tuple[str, Any]]:
    worst = 0.0
    for method in FEW:
        for flags in ENGINES.values():
            lr = torch.tensor(1e-3, device=DEVICE)
            replayed, eager = parameters(), parameters()
            one, other = (optimizer(method, p, lr=lr, **flags, capturable=True) for p in (replayed, eager))
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                give_gradients(replayed, 0)
                one.step()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                one.step()
            give_gradients(eager, 0)
            other.step()
            for step in range(1, 30):
                lr.mul_(0.99)
                give_gradients(eager, step)
                for a, b in zip(replayed, eager, strict=True):
                    a.grad.copy_(b.grad)
                graph.replay()
                other.step()
            worst = max(worst, *((a - b).abs().max().item() for a, b in zip(replayed, eager, strict=True)))
            for a, b in zip(replayed, eager, strict=True):
                worst = max(worst, *(measure_error(one.state[a][key], value) for key, value in other.state[b].items()))
    assert worst == 0.0, worst
    yield "largest difference of graph replay and eager steps", worst


def graphs_last() -> Iterator[tuple[str, Any]]:
    """A graph still replays what it recorded after eager steps with other gradients and another learning rate."""
    for method in FEW:
        for flags in ENGINES.values():
            mixed, eager = parameters(), parameters()
            one, other = (optimizer(method, p, lr=1e-3, **flags, capturable=True) for p in (mixed, eager))
            with torch.cuda.stream(torch.cuda.Stream()):
                give_gradients(mixed, 0)
                one.step()
            torch.cuda.synchronize()
            graph, recorded = torch.cuda.CUDAGraph(), [p.grad for p in mixed]
            with torch.cuda.graph(graph):
                one.step()
            give_gradients(eager, 0)
            other.step()
            for step in range(1, 19):
                give_gradients(eager, step)
                rate = 1e-3 if step % 3 else 1e-2
                one.param_groups[0]["lr"] = other.param_groups[0]["lr"] = rate
                if step % 3:
                    for a, b in zip(recorded, eager, strict=True):
                        a.copy_(b.grad)
                    graph.replay()
                else:
                    give_gradients(mixed, step)
                    one.step()
                other.step()
            assert all(torch.equal(a, b) for a, b in zip(mixed, eager, strict=True)), (method, flags)
    yield "graphs replay as recorded between eager steps", True


def monitor_watches() -> Iterator[tuple[str, Any]]:
    """A monitor never waits, and remembers replayed steps as it does eager ones, with their marks."""
    for method in ("AdaTerm", "RobustAdamW, usual norm"):
        for flags in ENGINES.values():
            replayed, eager = parameters(), parameters()
            one, other = (optimizer(method, p, lr=1e-3, **flags, capturable=True) for p in (replayed, eager))
            watching, beside = (adaterm.Monitor(each, length=16) for each in (one, other))
            with torch.cuda.stream(torch.cuda.Stream()):
                give_gradients(replayed, 0)
                watching.mark(0)
                one.step()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                one.step()
            give_gradients(eager, 0)
            beside.mark(0)
            other.step()
            for step in range(1, 30):
                torch.cuda.set_sync_debug_mode("default")
                give_gradients(eager, step)
                torch.cuda.set_sync_debug_mode("error")
                for a, b in zip(replayed, eager, strict=True):
                    a.grad.copy_(b.grad)
                watching.mark(step)
                beside.mark(step)
                graph.replay()
                other.step()
            torch.cuda.set_sync_debug_mode("default")
            rows, wanted = (each._ring.read(100) for each in (watching, beside))
            assert all(torch.equal(a.nan_to_num(-1.0), b.nan_to_num(-1.0)) for a, b in zip(rows, wanted, strict=True))
            assert rows.steps.tolist() == list(range(15, 31)), rows.steps
            assert rows.marks.tolist() == rows.steps.tolist()
            assert watching.aberrant(3) == beside.aberrant(3)
    yield "a monitor remembers replays as it does eager steps, and never waits", True
    for method in ("AdaTerm", "RobustAdamW"):
        params = parameters(148)
        watched = optimizer(method, params, fused=True)
        monitor = adaterm.Monitor(watched)
        for step in range(2):
            give_gradients(params, step)
            watched.step()
        launches = activity(monitor._observe)
        assert launches == (2, 0), (method, launches)
    yield "kernels and copies of a monitor in a step, 148 tensors", list(launches)


def kernels(step: Callable[[], Any]) -> int:
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        step()
        torch.cuda.synchronize()
    return sum(event.count for event in recorded.key_averages() if event.device_type == torch.autograd.DeviceType.CUDA)


def activity(step: Callable[[], Any]) -> tuple[int, int]:
    """The number of kernels and of copies."""
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        step()
        torch.cuda.synchronize()
    events = [e for e in recorded.key_averages() if e.device_type == torch.autograd.DeviceType.CUDA]
    copies = sum(event.count for event in events if event.key.lower().startswith("mem"))
    return sum(event.count for event in events) - copies, copies


def few_kernels() -> Iterator[tuple[str, Any]]:
    for method, most in (("AdaTerm", 2), ("At-Adam", 2), ("RobustAdamW", 4), ("RobustAdamW (clipped)", 4)):
        least = sys.maxsize
        for count in (1, 30, 148, 2000):
            params = parameters(count)
            tested = optimizer(method, params, foreach=True)
            rival = torch.optim.Adam(params, foreach=True)
            single = optimizer(method, params, fused=True)
            for step in range(2):
                give_gradients(params, step)
                for each in (tested, rival, single):
                    each.step()
            ours, adams = kernels(tested.step), kernels(rival.step)
            least = min(least, ours)
            # torch itself splits a launch of many tensors, Adam's as ours
            assert ours == least or count > 30, (method, count, ours)
            yield f"kernels a step, {method}(foreach=True), {count} tensors", ours
            yield f"kernels a step, Adam(foreach=True), {count} tensors", adams
            held = [p.grad for p in params]  # so that new gradients have new addresses
            give_gradients(params, 2)
            launches, copies = activity(single.step)
            assert (launches, copies) == (most, 1), (method, count, launches, copies)
            yield f"kernels and copies a step, {method}(fused=True), {count} tensors", [launches, copies]
            del held


def memory() -> Iterator[tuple[str, Any]]:
    peaks = {}
    rivals: dict[str, Callable[[list[Tensor]], torch.optim.Optimizer]] = {
        "Adam(foreach=True)": lambda params: torch.optim.Adam(params, foreach=True),
        "AdamW(fused=True)": lambda params: torch.optim.AdamW(params, fused=True),
        "Adam(fused=True)": lambda params: torch.optim.Adam(params, fused=True),
        "AdaTerm(foreach=True)": lambda params: adaterm.AdaTerm(params, foreach=True),
        "AdaTerm(fused=True)": lambda params: adaterm.AdaTerm(params, fused=True),
        "AtAdam(fused=True)": lambda params: adaterm.AtAdam(params, fused=True),
        "RobustAdamW(foreach=True)": lambda params: adaterm.RobustAdamW(params, foreach=True),
        "RobustAdamW(fused=True)": lambda params: adaterm.RobustAdamW(params, fused=True),
        "RobustAdamW(fused=True), clipped": lambda params: adaterm.RobustAdamW(params, max_norm="auto", fused=True),
    }
    for name, make in rivals.items():
        torch.cuda.empty_cache()
        start = torch.cuda.memory_allocated()
        params = [torch.randn(4096, 1024, device=DEVICE) for _ in range(16)]
        model = sum(p.numel() * p.element_size() for p in params)
        tested = make(params)
        for _ in range(3):
            for p in params:
                p.grad = torch.randn_like(p)
            tested.step()
            tested.zero_grad()
        for p in params:
            p.grad = torch.randn_like(p)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        tested.step()
        scratch = (torch.cuda.max_memory_allocated() - before) / model
        peaks[name] = torch.cuda.max_memory_allocated() - start
        yield f"scratch memory of a step, in models, {name}", scratch
        assert scratch < (0.01 if "fused" in name else 2.01), (name, scratch)
        del params, tested
    for name, rival in {
        "AdaTerm(fused=True)": "Adam(fused=True)",
        "AtAdam(fused=True)": "Adam(fused=True)",
        "RobustAdamW(fused=True)": "AdamW(fused=True)",
        "RobustAdamW(fused=True), clipped": "AdamW(fused=True)",
    }.items():
        ratio = peaks[name] / peaks[rival]
        yield f"peak memory relative to {rival}, {name}", ratio
        assert ratio < 1.01, (name, ratio)


def huge_tensor() -> Iterator[tuple[str, Any]]:
    size = 2**31 + 12_345
    for method in ("AdaTerm (gradient init)", "RobustAdamW (clipped)"):
        ends = []
        for flags in ({"fused": True}, {"foreach": False}):
            generator = torch.Generator(DEVICE).manual_seed(0)
            parameter = torch.zeros(size, device=DEVICE)
            tested = optimizer(method, [parameter], lr=0.1, **flags)
            for _ in range(2):
                parameter.grad = torch.randn(size, generator=generator, device=DEVICE)
                tested.step()
            ends.append(parameter)
            del tested
            parameter.grad = None
            torch.cuda.empty_cache()
        worst = max(
            ((a - b).abs().max() / b.abs().max()).item() for a, b in zip(*(e.split(2**28) for e in ends), strict=True)
        )
        assert worst < 1e-5, worst
        yield f"largest relative difference of fused and reference, a tensor of {size} elements, {method}", worst
        del ends, parameter


def rounding() -> Iterator[tuple[str, Any]]:
    """Updates of a thousandth of the parameter's unit in the last place: lost by plain rounding."""
    for method in ("AdaTerm (gradient init)", "RobustAdamW, usual norm"):
        ends = {}
        for name, flags in ENGINES.items():
            for stochastic in (False, True):
                parameter = torch.ones(100_000, device=DEVICE, dtype=torch.bfloat16)
                tested = optimizer(method, [parameter], lr=1e-5, stochastic_rounding=stochastic, **flags)
                for step in range(200):
                    parameter.grad = torch.ones_like(parameter) * (1.0 + 0.1 * (step % 3))
                    tested.step()
                ends[name, stochastic] = parameter
        exact = torch.ones(1, device=DEVICE)
        tested = optimizer(method, [exact], lr=1e-5, foreach=False)
        for step in range(200):
            exact.grad = torch.ones_like(exact) * (1.0 + 0.1 * (step % 3))
            tested.step()
        wanted = 1.0 - exact.item()
        for (name, stochastic), found in ends.items():
            moved = 1.0 - found.double().mean().item()
            what = f"{method}, {name}, stochastic rounding {stochastic}"
            yield f"path in bfloat16, of that in float32, {what}", moved / wanted
            assert (abs(moved / wanted - 1.0) < 0.05) if stochastic else moved == 0.0, (what, moved, wanted)
        same = (ends["fused", True] == ends["reference", True]).double().mean().item()
        yield f"parameters that fused and reference round alike, {method}", same


def state_moves_between_devices() -> Iterator[tuple[str, Any]]:
    for kind, capturable in ((kind, capturable) for kind in MAIN for capturable in (False, True)):
        host = [p.detach().cpu().requires_grad_() for p in parameters()]
        device = [p.detach().to(DEVICE).requires_grad_() for p in host]
        one, other = kind(host, capturable=capturable), kind(device)
        for p in host:
            p.grad = torch.ones_like(p)
        one.step()
        other.load_state_dict(one.state_dict())
        assert all(value.is_cuda for p in device for key, value in other.state[p].items() if key != "step")
        for p in device:
            p.grad = torch.ones_like(p)
        other.step()
    yield "a host's state steps on the device", True


def compiles() -> Iterator[tuple[str, Any]]:
    from torch._dynamo.utils import counters

    for method in ("AdaTerm", "RobustAdamW, usual norm"):
        for flags in ENGINES.values():
            torch._dynamo.reset()
            counters.clear()
            params = parameters()
            tested = optimizer(method, params, lr=torch.tensor(1e-3), **flags, capturable=True)
            step = torch.compile(tested.step, fullgraph=True)
            for count in range(6):
                give_gradients(params, count)
                step()
                tested.param_groups[0]["lr"].mul_(0.5)
            graphs = counters["stats"]["unique_graphs"]
            assert graphs == 1, graphs
        yield f"graphs compiled for six learning rates, {method}", graphs


def scaler_skips() -> Iterator[tuple[str, Any]]:
    for kind, fused in ((kind, fused) for kind in MAIN for fused in (None, True, False)):
        model = torch.nn.Linear(8, 4, device=DEVICE)
        tested = kind(model.parameters(), fused=fused)
        scaler = torch.amp.GradScaler(DEVICE, init_scale=2.0**10)
        taken = []
        for poison in (1.0, float("inf"), 1.0):
            tested.zero_grad()
            with torch.autocast(DEVICE, dtype=torch.float16):
                loss = model(torch.randn(16, 8, device=DEVICE)).square().mean() * poison
            scaler.scale(loss).backward()
            before = [value.clone() for entry in tested.state.values() for value in entry.values()]
            scaler.step(tested)
            scaler.update()
            after = [value for entry in tested.state.values() for value in entry.values()]
            assert poison == 1.0 or all(torch.equal(a, b) for a, b in zip(after, before, strict=True))
            taken.append(int(tested.state[model.weight]["step"]))
        assert taken == [1, 1, 2], taken
        what = f"{kind.__name__}, fused={fused}"
        yield f"steps taken after a good, an infinite and a good loss under GradScaler, {what}", taken


def shards_follow() -> Iterator[tuple[str, Any]]:
    """Two ranks that share this device, over gloo, against whole tensors on it."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from on_ranks import LAYOUTS, follow
    from ranks import Ranks

    ranks = Ranks(2)
    few = ["AdaTerm", "AdaTerm2", "At-Adam", "AdaTerm + L2 decay", "AdaTerm (gradient init)", "RobustAdamW, usual norm"]
    for layout in ("fsdp", "tensor parallel", "with plain tensors"):
        assert layout in LAYOUTS
        for engine in ENGINES:
            for dtype in (torch.float64, torch.float32):
                ranks.run(2, follow, layout, engine, few, dtype, 20, 7, DEVICE)
    ranks.stop()
    yield "two ranks follow one process, all engines, with a gradient of NaN", True


CHECKS = (
    huge_tensor,
    no_synchronisation,
    engines_agree,
    changes_are_noticed,
    complex_beside_real,
    devices_agree,
    runs_repeat,
    graphs_replay,
    graphs_last,
    monitor_watches,
    state_moves_between_devices,
    few_kernels,
    memory,
    rounding,
    compiles,
    scaler_skips,
    shards_follow,
)
ALONE = (huge_tensor, few_kernels, memory)
"""They need the whole device, or measure it."""


def run_check(check: Callable[[], Iterator[tuple[str, Any]]]) -> tuple[dict[str, Any], list[str]]:
    """What a check finds, and why it failed if it did."""
    found: dict[str, Any] = {}
    try:
        for name, value in check():
            print(f"{name}: {value}", flush=True)
            found[name] = value
    except Exception as error:  # the others go on
        print(f"FAILED {check.__name__}: {error}", flush=True)
        return found, [f"{check.__name__}: {error}"]
    return found, []


def run_apart(name: str) -> tuple[dict[str, Any], list[str]]:
    """The same in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.run([sys.executable, __file__, "--only", name, "--out", folder], check=False)
        file = Path(folder) / "gpu_check.json"
        if not file.is_file():
            return {}, [f"{name}: its process ended with code {process.returncode}"]
        record = json.loads(file.read_text())
    return record["findings"], record["failed"]


class Record:
    """All that is found, in a file that is written after every check: one that is stopped loses no other."""

    def __init__(self, file: Path, planned: list[str]) -> None:
        self.file, self.found, self.failed = file, dict[str, Any](), list[str]()
        self.missing = list(planned)
        self._write()

    def add(self, name: str, outcome: tuple[dict[str, Any], list[str]]) -> None:
        """Add a check's findings and failures."""
        self.found |= outcome[0]
        self.failed += outcome[1]
        self.missing.remove(name)
        self._write()

    def _write(self) -> None:
        record = {"findings": self.found, "failed": self.failed, "not finished": self.missing}
        self.file.parent.mkdir(parents=True, exist_ok=True)
        whole = record | provenance(torch.cuda.get_device_name())
        self.file.write_text(json.dumps(whole, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/gpu_check"))
    parser.add_argument("--only", nargs="+", choices=[check.__name__ for check in CHECKS], help="default: all")
    parser.add_argument(
        "--jobs", type=int, default=1, help="checks at a time; those that measure run alone, at the end"
    )
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("gpu_check needs a CUDA device; there is none")
    chosen = {check.__name__: check for check in CHECKS if not args.only or check.__name__ in args.only}
    record = Record(args.out / "gpu_check.json", list(chosen))
    if args.jobs > 1:
        with ThreadPoolExecutor(args.jobs) as pool:
            together = {pool.submit(run_apart, name): name for name, check in chosen.items() if check not in ALONE}
            for future in as_completed(together):
                record.add(together[future], future.result())
        chosen = {name: check for name, check in chosen.items() if check in ALONE}
    for name, check in chosen.items():
        record.add(name, run_check(check))
    sys.exit(bool(record.failed))


if __name__ == "__main__":
    main()
