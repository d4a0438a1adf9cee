"""Check on a CUDA device what a CPU cannot show, and write the findings to results/gpu_check/.

    python benchmarks/gpu_check.py            # needs torch and the package only

No step after the first waits for the device (torch's sync debug mode raises if one does), a CUDA graph replays what
eager steps do, the engines agree in every precision, foreach launches as many kernels for 30 tensors as for one (torch
splits longer lists: those counts are only reported), memory stays within two scratch lists, torch.compile makes one
graph that a new learning rate does not break, and GradScaler skips bad steps.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import adaterm
from adaterm import PAPER

sys.path.insert(0, str(Path(__file__).parent))
from provenance import provenance

DEVICE = "cuda"
ENGINES = {"reference": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
METHODS = {name: method for name, method in PAPER.items() if hasattr(adaterm, method.optimizer)}


def optimizer(method: str, params: list[Tensor], **flags: Any) -> torch.optim.Optimizer:
    chosen = PAPER[method]
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
    for method in METHODS:
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
                    torch.cuda.set_sync_debug_mode("default")
    yield "steps that waited for the device", 0


def engines_agree() -> Iterator[tuple[str, Any]]:
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        worst = 0.0
        for method in METHODS:
            ends = []
            for flags in ENGINES.values():
                params = parameters(dtype=dtype)
                tested = optimizer(method, params, **flags)
                for step in range(100):
                    give_gradients(params, step)
                    tested.step()
                ends.append([tested.state[p]["exp_scale"] for p in params] + [p.detach().double() for p in params])
            for end in ends[1:]:
                for a, b in zip(end, ends[0], strict=True):
                    worst = max(worst, ((a - b).abs().max() / b.abs().max()).item())
        bound = {torch.float64: 1e-11, torch.float32: 1e-4}.get(dtype, 2e-2)
        assert worst < bound, (dtype, worst)
        yield f"largest relative difference of the engines after 100 steps, {str(dtype).removeprefix('torch.')}", worst


def graphs_replay() -> Iterator[tuple[str, Any]]:
    worst = 0.0
    for method in METHODS:
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
    assert worst == 0.0, worst
    yield "largest difference of graph replay and eager steps", worst


def kernels(step: Callable[[], Any]) -> int:
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        step()
        torch.cuda.synchronize()
    return sum(event.count for event in recorded.key_averages() if event.device_type == torch.autograd.DeviceType.CUDA)


def few_kernels() -> Iterator[tuple[str, Any]]:
    for method in ("AdaTerm", "At-Adam"):
        least = sys.maxsize
        for count in (1, 30, 148, 2000):
            params = parameters(count)
            tested = optimizer(method, params, foreach=True)
            rival = torch.optim.Adam(params, foreach=True)
            for step in range(2):
                give_gradients(params, step)
                tested.step()
                rival.step()
            ours, adams = kernels(tested.step), kernels(rival.step)
            least = min(least, ours)
            # torch itself splits a launch of many tensors, Adam's as ours
            assert ours == least or count > 30, (method, count, ours)
            yield f"kernels a step, {method}, {count} tensors", ours
            yield f"kernels a step, Adam(foreach=True), {count} tensors", adams


def memory() -> Iterator[tuple[str, Any]]:
    for name in ("AdaTerm", "At-Adam", "Adam"):
        params = [torch.randn(4096, 1024, device=DEVICE) for _ in range(16)]
        model = sum(p.numel() * p.element_size() for p in params)
        tested = torch.optim.Adam(params, foreach=True) if name == "Adam" else optimizer(name, params, foreach=True)
        for p in params:
            p.grad = torch.randn_like(p)
        tested.step()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        tested.step()
        scratch = (torch.cuda.max_memory_allocated() - before) / model
        assert scratch < 2.01, (name, scratch)
        yield f"scratch memory of a step, in models, {name}", scratch


def state_moves_between_devices() -> Iterator[tuple[str, Any]]:
    for capturable in (False, True):
        host = [p.detach().cpu().requires_grad_() for p in parameters()]
        device = [p.detach().to(DEVICE).requires_grad_() for p in host]
        one, other = adaterm.AdaTerm(host, capturable=capturable), adaterm.AdaTerm(device)
        for p in host:
            p.grad = torch.ones_like(p)
        one.step()
        other.load_state_dict(one.state_dict())
        assert all(other.state[p]["exp_avg"].is_cuda and other.state[p]["excess_dof"].is_cuda for p in device)
        assert all(other.state[p]["step"].is_cuda == capturable for p in device)
        for p in device:
            p.grad = torch.ones_like(p)
        other.step()
    yield "a host's state steps on the device", True


def compiles() -> Iterator[tuple[str, Any]]:
    from torch._dynamo.utils import counters

    for flags in ENGINES.values():
        torch._dynamo.reset()
        counters.clear()
        params = parameters()
        tested = optimizer("AdaTerm", params, lr=torch.tensor(1e-3), **flags, capturable=True)
        step = torch.compile(tested.step, fullgraph=True)
        for count in range(6):
            give_gradients(params, count)
            step()
            tested.param_groups[0]["lr"].mul_(0.5)
        graphs = counters["stats"]["unique_graphs"]
        assert graphs == 1, graphs
    yield "graphs compiled for six learning rates", graphs


def scaler_skips() -> Iterator[tuple[str, Any]]:
    model = torch.nn.Linear(8, 4, device=DEVICE)
    tested = adaterm.AdaTerm(model.parameters())
    scaler = torch.amp.GradScaler(DEVICE, init_scale=2.0**10)
    taken = []
    for poison in (1.0, float("inf"), 1.0):
        tested.zero_grad()
        with torch.autocast(DEVICE, dtype=torch.float16):
            loss = model(torch.randn(16, 8, device=DEVICE)).square().mean() * poison
        scaler.scale(loss).backward()
        scaler.step(tested)
        scaler.update()
        taken.append(int(tested.state[model.weight]["step"]))
    assert taken == [1, 1, 2], taken
    yield "steps taken after a good, an infinite and a good loss under GradScaler", taken


def speed() -> Iterator[tuple[str, Any]]:
    shapes = [(64, 3, 7, 7), *[(256, 256, 3, 3)] * 16, *[(256,)] * 44, (100, 512)]
    params = [torch.randn(shape, device=DEVICE) for shape in shapes]
    for p in params:
        p.grad = torch.randn_like(p)
    rivals = {
        "Adam(foreach=True)": torch.optim.Adam(params, foreach=True),
        "Adam(fused=True)": torch.optim.Adam(params, fused=True),
        "AdaTerm(foreach=True)": adaterm.AdaTerm(params, foreach=True),
        "AdaTerm(foreach=False)": adaterm.AdaTerm(params, foreach=False),
    }
    for name, tested in rivals.items():
        times = []
        for _ in range(60):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            tested.step()
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end))
        yield f"milliseconds a step, {len(shapes)} tensors, 10 M, {name}", sorted(times)[len(times) // 2]


CHECKS = (
    no_synchronisation,
    engines_agree,
    graphs_replay,
    state_moves_between_devices,
    few_kernels,
    memory,
    compiles,
    scaler_skips,
    speed,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/gpu_check"))
    out = parser.parse_args().out
    if not torch.cuda.is_available():
        sys.exit("gpu_check needs a CUDA device; there is none")
    found: dict[str, Any] = {}
    for check in CHECKS:
        for name, value in check():
            print(f"{name}: {value}", flush=True)
            found[name] = value
    out.mkdir(parents=True, exist_ok=True)
    record = {"findings": found, **provenance(torch.cuda.get_device_name())}
    (out / "gpu_check.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
