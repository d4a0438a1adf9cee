"""A step never waits for the device, and runs in a CUDA graph, compiled, watched, and under GradScaler."""

from typing import Any

import torch
from catalogue import measure_error
from torch import Tensor
from torch._dynamo.utils import counters

import adaterm
from gpu_checks.subjects import DEVICE, ENGINES, FEW, JUDGING, MAIN, Findings, give_gradients, optimizer, parameters


def no_synchronisation() -> Findings:
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


def capture_second_step(tested: Any, params: list[Tensor]) -> torch.cuda.CUDAGraph:
    """A graph of a step, after a first step that was taken eagerly, with gradients that stay in place."""
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        give_gradients(params, 0)
        tested.step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tested.step()
    return graph


def graphs_replay() -> Findings:
    worst = 0.0
    for method in FEW:
        for flags in ENGINES.values():
            lr = torch.tensor(1e-3, device=DEVICE)
            replayed, eager = parameters(), parameters()
            one, other = (optimizer(method, p, lr=lr, **flags, capturable=True) for p in (replayed, eager))
            graph = capture_second_step(one, replayed)
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


def graphs_last() -> Findings:
    """A graph still replays what it recorded after eager steps with other gradients and another learning rate."""
    for method in FEW:
        for flags in ENGINES.values():
            mixed, eager = parameters(), parameters()
            one, other = (optimizer(method, p, lr=1e-3, **flags, capturable=True) for p in (mixed, eager))
            graph = capture_second_step(one, mixed)
            recorded = [p.grad for p in mixed]
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


def monitor_watches() -> Findings:
    """A monitor never waits, and remembers replayed steps as it does eager ones, with their marks."""
    for method in ("AdaTerm", "RobustAdamW, usual norm"):
        for flags in ENGINES.values():
            replayed, eager = parameters(), parameters()
            one, other = (optimizer(method, p, lr=1e-3, **flags, capturable=True) for p in (replayed, eager))
            watching, beside = (adaterm.Monitor(tested, length=16) for tested in (one, other))
            watching.mark(0)
            graph = capture_second_step(one, replayed)
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
            rows, wanted = (monitor._ring.read(100) for monitor in (watching, beside))
            assert all(torch.equal(a.nan_to_num(-1.0), b.nan_to_num(-1.0)) for a, b in zip(rows, wanted, strict=True))
            assert rows.steps.tolist() == list(range(15, 31)), rows.steps
            assert rows.marks.tolist() == rows.steps.tolist()
            assert repr(watching.aberrant(3)) == repr(beside.aberrant(3))  # NaN is not itself
    yield "a monitor remembers replays as it does eager steps, and never waits", True


def compiles() -> Findings:
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


def scaler_skips() -> Findings:
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
        name = f"{kind.__name__}, fused={fused}"
        yield f"steps taken after a good, an infinite and a good loss under GradScaler, {name}", taken
