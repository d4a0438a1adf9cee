"""benchmarks/step_time.py takes turns, and its way on a GPU runs to its end, here with CUDA's calls pretended."""

import gc
import importlib
import json
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

ROOT = Path(__file__).parents[1]


@pytest.fixture
def step_time(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    yield importlib.import_module("step_time")
    gc.unfreeze()


def test_methods_take_turns_and_only_their_last_steps_count(step_time):
    calls = []

    def step(name):
        calls.append(name)
        return 1.0 if calls[-4:] == [name] * 4 or calls[-3:] == [name] * 3 else 100.0

    found = step_time.take_turns({name: partial(step, name) for name in "ab"}, seconds=0.0, rounds=50)
    assert "".join(calls) == "aabb" + "aaaabbbb" * step_time.FEWEST
    assert found == {"a": 1e3, "b": 1e3}


def pretend_cuda(monkeypatch):
    """Let graphs and events do nothing, and tensors be on the CPU; returns what was replayed."""
    replayed, captured = [], []

    class Graph:
        def replay(self):
            assert self in captured
            replayed.append(self)

    def capture(graph):
        captured.append(graph)
        return nullcontext()

    event = SimpleNamespace(record=lambda: None, elapsed_time=lambda other: 1.0 + len(replayed) % 3)
    pretended = {
        "synchronize": lambda: None,
        "empty_cache": lambda: None,
        "memory_allocated": lambda: 10,
        "max_memory_allocated": lambda: 30,
        "reset_peak_memory_stats": lambda: None,
        "get_device_name": lambda: "a pretended GPU",
        "Stream": object,
        "stream": lambda stream: nullcontext(),
        "CUDAGraph": Graph,
        "graph": capture,
        "Event": lambda enable_timing: event,
    }
    for name, value in pretended.items():
        monkeypatch.setattr(torch.cuda, name, value)
    randn = torch.randn
    monkeypatch.setattr(torch, "randn", lambda *size, device, **options: randn(*size, **options))
    return replayed


def test_a_run_on_a_pretended_gpu_compares_rivals_in_the_same_rounds(step_time, monkeypatch, tmp_path):
    replayed = pretend_cuda(monkeypatch)
    names = list(step_time.list_methods("cuda", []))
    assert set(step_time.RIVALS) | set(step_time.RIVALS.values()) <= set(names)
    methods = {name: partial(torch.optim.AdamW, fused=True) for name in names if "foreach" not in name}
    methods |= {"Adam(foreach=False)": torch.optim.Adam, step_time.PAIR: step_time.ClippedAdamW}
    monkeypatch.setattr(step_time, "list_methods", lambda device, also: methods)
    monkeypatch.setattr(step_time, "measure_copy", lambda device: 1e12)
    monkeypatch.setattr(step_time, "IN_BF16", ("mlp",))
    monkeypatch.setitem(step_time.SHAPES, "mlp", [(3, 5), (5,)])
    options = ["--shapes", "mlp", "--repetitions", "6", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["step_time.py", "--device", "cuda", *options])
    step_time.main()

    assert replayed
    assert (tmp_path / "cuda.png").stat().st_size > 10_000
    record = json.loads((tmp_path / "cuda.json").read_text())
    assert {"command", "commit", "versions", "device", "date", "seconds of the run"} <= set(record)
    assert list(record["times"]) == ["mlp", "mlp, bf16"]
    times, ratios, rivals = (record[part]["mlp"] for part in ("times", "ratios", "rivals"))
    assert set(times) == set(methods) - {step_time.BASE}
    for name, rival in step_time.RIVALS.items():
        assert set(times[name]) == {step_time.BASE, rival, name}
        for kind in ("eager", "graph"):
            took = times[name][name][kind]
            assert ratios[name][kind] == took / times[name][step_time.BASE][kind]
            assert rivals[f"{name} / {rival}"][kind] == took / times[name][rival][kind]
    assert set(ratios["Adam(foreach=False)"]) == {"eager"}
    assert record["memory ratios"]["mlp"]["RobustAdamW()"] == 1.0
