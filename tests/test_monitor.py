"""A monitor tells which batches were bad, in which tensors, and what they were called; it costs little until read."""

import csv
import importlib
import json
import os
import sys
import warnings
import weakref
from math import inf, nan
from pathlib import Path

import numpy as np
import pytest
import torch
from catalogue import ENGINES, MAIN, METHODS, Operations, give_gradients, make, parameters, train
from on_ranks import monitor_shards
from torch import nn

import adaterm
from adaterm.monitor.drawing import group_names

either = pytest.mark.parametrize("name", MAIN)
EARLY = {"AdaTerm": {"init_scale": "gradient"}, "RobustAdamW": {}}
"""Options with which there is something to see after few steps."""


def watch(name, model, window=None, **options):
    given = EARLY[name] if window is None else {**EARLY[name], "window": window}
    optimizer = getattr(adaterm, name)(model.named_parameters(), **given)
    return optimizer, adaterm.Monitor(optimizer, model, **options)


def give(model, step, **factors):
    """Gradients of a step, with those of some tensors multiplied."""
    generator = torch.Generator().manual_seed(step)
    for name, parameter in model.named_parameters():
        gradient = torch.randn(parameter.shape, generator=generator) * factors.get(name, factors.get("all", 1.0))
        parameter.grad = gradient.to(parameter.dtype)


def run(name, steps, bad=(), **options):
    """A run in which all gradients of some batches are a thousand times as large; batches are marked by their step."""
    model = nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 10))
    optimizer, monitor = watch(name, model, **options)
    for step in range(1, steps + 1):
        monitor.mark(f"batch {step}")
        give(model, step, all=1e3 if step in bad else 1.0)
        optimizer.step()
    return model, optimizer, monitor


@pytest.mark.parametrize("name", ["AdaTerm", "TAdam", "AtAdaBelief", "RobustAdamW"])
def test_the_worst_batches_come_back_with_their_marks(name):
    EARLY.setdefault(name, {})
    bad = (360, 393, 397)
    _, _, monitor = run(name, 420, bad)
    worst = monitor.aberrant(3)
    assert {batch.step for batch in worst} == set(bad)
    assert {batch.mark for batch in worst} == {f"batch {step}" for step in bad}
    for batch in worst:
        assert batch.trust < 0.1
        assert batch.nonfinite == 0
        assert list(batch.tensors.values()) == sorted(batch.tensors.values(), reverse=True)
        if name in MAIN:  # the first bad batch widens what is usual for the others
            assert batch.score > 10
            assert batch.zscore > 4
            assert len(batch.tensors) == 3


@either
def test_a_tensor_that_stood_out_is_named(name):
    model, optimizer, monitor = run(name, 100)
    give(model, 101, **{"1.weight": 1e3})
    optimizer.step()
    (batch,) = monitor.aberrant(1)
    assert (batch.step, list(batch.tensors)) == (101, ["1.weight"])


@either
def test_gradients_that_are_not_finite_come_first(name):
    model, optimizer, monitor = run(name, 60, bad=(50,))
    give(model, 61)
    model[0].bias.grad[3] = nan
    optimizer.step()
    first, second = monitor.aberrant(2)
    assert (first.step, first.nonfinite, first.tensors["0.bias"]) == (61, 1, inf)
    assert second.step == 50
    assert monitor.layers()["0.bias"].nonfinite == 1
    assert monitor.layers()["1.bias"].nonfinite == 0


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("rule", METHODS)
def test_the_history_is_what_the_optimizer_says_of_each_step(rule, engine):
    params = parameters()
    optimizer = make(rule, params, **ENGINES[engine])
    monitor = adaterm.Monitor(optimizer, length=7)
    said, judged, norms = [], [], []
    for step in range(12):
        give_gradients(params, step)
        params[1].grad = None if step == 9 else params[1].grad
        norms.append(torch.stack([p.grad.norm() for p in params if p.grad is not None]).norm().item())
        optimizer.step()
        seen = optimizer.statistics()
        said.append([torch.stack(list(seen[p])) if p in seen else torch.full((3,), nan) for p in params])
        verdict = optimizer.tell_last_step()[2]
        judged.append([nan] * 6 if verdict is None else verdict.tolist())
    rows = monitor._ring.read(100)
    assert rows.steps.tolist() == list(range(6, 13))
    wanted = torch.stack([torch.stack(row, dim=1) for row in said[-7:]]).float()
    assert torch.equal(rows.tensors.nan_to_num(-1.0), wanted.nan_to_num(-1.0))
    assert torch.equal(rows.batches.nan_to_num(-1.0), torch.tensor(judged[-7:]).float().nan_to_num(-1.0))
    known = norms[-7:] if hasattr(optimizer, "batch_statistics") else [nan] * 7
    assert monitor.columns()["norm"] == pytest.approx(known, rel=1e-5, nan_ok=True)


VIEWS = ("detach", "select", "slice", "unsqueeze", "view", "as_strided")


def count_operations(rule, shapes, work, on_device):
    """The operations, but for views, of what a monitor does with a step, where the host knows where rows go or not."""
    params = parameters(shapes)
    half = len(params) // 2
    optimizer = make(rule, [{"params": params[:half]}, {"params": params[half:]}])
    monitor = adaterm.Monitor(optimizer, length=10)
    monitor._ring.counted = None if on_device else 0
    monitor._ring._on_host = False
    train(optimizer, params, 3)
    with Operations() as counted:
        work(monitor)
    names = [name.split(".")[1] for name in counted.names]
    assert not [name for name in names if "item" in name or "local_scalar" in name]
    return [name for name in names if name not in VIEWS]


@pytest.mark.parametrize("rule", ["AdaTerm", "RobustAdamW"])
def test_watching_takes_two_operations_however_many_tensors_and_never_waits(rule):
    for count in (4, 100):
        assert count_operations(rule, [(3,)] * count, lambda monitor: monitor._observe(), False) == ["add_", "cat"]
        assert count_operations(rule, [(3,)] * count, lambda monitor: monitor.mark(7), False) == ["fill_"]
        captured = count_operations(rule, [(3,)] * count, lambda monitor: monitor._observe(), True)
        assert captured == ["cat", "add_", "cat", "_to_copy", "remainder", "index_copy_"]


def test_metrics_read_only_what_is_new():
    _, optimizer, monitor = run("RobustAdamW", 35)
    monitor.metrics()
    optimizer.step()
    with Operations() as counted:
        monitor.metrics()
    assert len(counted.names) <= 10
    with Operations() as counted:
        monitor.metrics()
    assert not counted.names


@pytest.mark.parametrize("rule", ["AdaTerm", "RobustAdamW, usual norm"])
def test_rows_are_the_same_whether_host_or_device_counts_them(rule):
    rows, metrics = [], []
    for on_host, on_device in ((True, False), (False, False), (False, True)):
        params = parameters()
        optimizer = make(rule, params)
        monitor = adaterm.Monitor(optimizer, length=6)
        monitor._ring._on_host = on_host  # memory is copied; else operations are those of a GPU
        for step in range(14):
            monitor.mark(step)
            train(optimizer, params, 1, start=step)
            if on_device and step == 3:
                monitor._ring.counted = None  # as a graph does
        assert (monitor._ring.counted is None) == on_device
        rows.append(monitor._ring.read(100))
        metrics.append(monitor.metrics())
    for several in zip(*rows, strict=True):
        one, *others = (table.nan_to_num(-1.0) for table in several)
        assert all(torch.equal(one, other) for other in others)
    assert rows[0].marks.tolist() == [9, 10, 11, 12, 13, 14]
    assert metrics[0] == metrics[1] == metrics[2]


def test_several_marks_before_a_step_are_its_micro_batches():
    model = nn.Linear(3, 2)
    optimizer, monitor = watch("RobustAdamW", model)
    ids = torch.arange(4)
    for step in range(30):
        for _ in range(2 if step % 2 else 0):  # every other step has no mark
            monitor.mark(ids)
            ids += 4  # a mark is what the tensor was
        give(model, step, all=100.0 if step >= 28 else 1.0)
        optimizer.step()
    marks = {batch.step: batch.mark for batch in monitor.aberrant(2)}
    assert marks[29] is None
    assert [part.tolist() for part in marks[30]] == [[112, 113, 114, 115], [116, 117, 118, 119]]
    samples = [sample.sample for sample in monitor.aberrant_samples(8)]
    assert sorted(samples) == list(range(112, 120))


SHARD = {"file": "a", "lines": [1, 2]}


@pytest.mark.parametrize(
    ("mark", "samples", "restored"),
    [
        (SHARD, [SHARD], SHARD),
        (torch.tensor([[1, 2], [3, 4]]), [[1, 2], [3, 4]], [[1, 2], [3, 4]]),
        ([np.int64(5), torch.tensor(6)], [5, 6], [5, 6]),
        ([("a", [1]), ("b", [2])], [("a", [1]), ("b", [2])], [("a", [1]), ("b", [2])]),
        ({"ids": np.arange(2)}, [{"ids": np.arange(2)}], {"ids": [0, 1]}),
        (range(2), [0, 1], [0, 1]),
        (Path("a"), [Path("a")], "a"),
        (np.datetime64("2026-01-01"), [np.datetime64("2026-01-01").tolist()], "2026-01-01"),
    ],
)
def test_marks_may_be_any_objects(mark, samples, restored, tmp_path):
    model = nn.Linear(3, 2)
    optimizer, monitor = watch("RobustAdamW", model)
    for step in range(30):
        monitor.mark(mark)
        give(model, step)
        optimizer.step()
    ranked = monitor.aberrant_samples()
    assert sorted(map(repr, (sample.sample for sample in ranked))) == sorted(map(repr, samples))
    assert {sample.batches for sample in ranked} == {10}  # that have a score
    torch.save(monitor.state_dict(), tmp_path / "monitor.pt")
    monitor.load_state_dict(torch.load(tmp_path / "monitor.pt"))
    assert monitor.aberrant(1)[0].mark == restored
    assert len(monitor.aberrant_samples()) == len(samples)


def test_samples_that_recur_in_bad_batches_are_ranked_first():
    model = nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 10))
    optimizer, monitor = watch("RobustAdamW", model, window=20)
    broken, step = {3, 50, 77}, 0
    for epoch in range(6):
        order = torch.randperm(100, generator=torch.Generator().manual_seed(epoch))
        for indices in order.split(4):
            monitor.mark(indices)
            give(model, step, all=20.0 if broken & set(indices.tolist()) else 1.0)
            optimizer.step()
            step += 1
    ranked = monitor.aberrant_samples(None)
    assert len(ranked) == 100
    assert {sample.sample for sample in ranked[:3]} == broken
    assert all(sample.excluded >= 5 and sample.batches >= 5 for sample in ranked[:3])
    assert ranked[2].zscore > ranked[3].zscore


@either
def test_layers_tell_who_is_distrusted_how_often(name):
    model, optimizer, monitor = run(name, 100)
    for step in range(101, 151):
        give(model, step, **({"0.weight": 5.0} if step % 5 == 0 else {}))
        if step == 120:
            model[1].bias.grad = None
        optimizer.step()
    layers = monitor.layers()
    assert list(layers) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert layers["0.weight"].distrusted >= 9
    assert layers["1.weight"].distrusted <= 3
    assert (layers["0.weight"].steps, layers["1.bias"].steps) == (150, 149)
    assert layers["0.weight"].least_trust < layers["0.weight"].mean_trust < layers["1.weight"].mean_trust


@either
def test_metrics_are_those_of_the_last_step(name):
    _, _, monitor = run(name, 4)
    assert "adaterm/zscore" not in monitor.metrics()  # nothing is usual yet
    assert adaterm.Monitor(monitor.optimizer).metrics() == {}
    _, optimizer, monitor = run(name, 437, bad=(430, 437))
    metrics = monitor.metrics(prefix="")
    known = ["level", "zscore", "score", "trust", "nonfinite"] + ["norm"] * (name == "RobustAdamW")
    assert set(metrics) == {*known, "least_trust", "excluded"}
    worst = next(batch for batch in monitor.aberrant(2) if batch.step == 437)
    for field in known:
        assert metrics[field] == pytest.approx(getattr(worst, field), rel=1e-5)
    assert (worst.norm is None) == (name != "RobustAdamW")
    assert metrics["excluded"] == pytest.approx(0.02)
    if name == "RobustAdamW":
        assert metrics["zscore"] == pytest.approx(optimizer.batch_statistics().zscore.item())


@either
def test_metrics_do_not_depend_on_how_often_they_are_asked_for(name):
    often, seldom = [], {}
    for pause in (1, 37):
        model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
        optimizer, monitor = watch(name, model)
        for step in range(1, 250):
            give(model, step, all=1e3 if step in (100, 101, 185, 222) else 1.0)
            if step in (120, 222):
                model[0].bias.grad[1] = nan
            if step in (60, 200):
                model[1].bias.grad = None
            optimizer.step()
            if pause == 1:
                often.append(monitor.metrics())
            elif step % pause == 0:
                seldom[step] = monitor.metrics()
    columns = monitor.columns()
    assert seldom
    for step, metrics in seldom.items():
        assert metrics == pytest.approx(often[step - 1], rel=1e-6)
        for field in ("level", "zscore", "score", "trust", "norm", "nonfinite"):
            assert metrics.get(f"adaterm/{field}", nan) == pytest.approx(
                columns[field][step - 1], rel=1e-4, nan_ok=True
            )
        assert metrics["adaterm/excluded"] == pytest.approx(sum(columns["excluded"][:step][-100:]) / min(step, 100))


def test_names_are_the_models_or_the_optimizers_or_numbers():
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    wrapped = nn.ModuleDict({"module": model})  # as DDP does
    groups = [{"params": layer.parameters()} for layer in model]
    for optimizer, named, wanted in (
        (adaterm.TAdam(groups), model, ["0.weight", "0.bias", "1.weight", "1.bias"]),
        (adaterm.TAdam(model.parameters()), wrapped, ["0.weight", "0.bias", "1.weight", "1.bias"]),
        (adaterm.TAdam(model.named_parameters()), None, ["0.weight", "0.bias", "1.weight", "1.bias"]),
        (adaterm.TAdam([{"params": list(layer.parameters())} for layer in model]), None, ["0.0", "0.1", "1.0", "1.1"]),
        (adaterm.TAdam([{"params": list(m.named_parameters())} for m in model]), None, ["0.0", "0.1", "1.0", "1.1"]),
    ):
        monitor = adaterm.Monitor(optimizer, named)
        train(optimizer, list(model.parameters()), 2)
        assert list(monitor.layers()) == wanted


@either
def test_a_checkpoint_brings_the_history_back(name, tmp_path):
    bad = (140, 170)
    _, _, straight = run(name, 190, bad)
    model, optimizer, first = run(name, 160, bad)
    torch.save((model.state_dict(), optimizer.state_dict(), first.state_dict()), tmp_path / "checkpoint.pt")
    saved = torch.load(tmp_path / "checkpoint.pt")
    resumed, monitor = watch(name, model)
    model.load_state_dict(saved[0])
    resumed.load_state_dict(saved[1])
    monitor.load_state_dict(saved[2])
    for step in range(161, 191):
        monitor.mark(f"batch {step}")
        give(model, step, all=1e3 if step in bad else 1.0)
        resumed.step()
    assert monitor.aberrant(5) == straight.aberrant(5)
    assert sum(monitor.columns()["excluded"]) == 2
    short = adaterm.Monitor(resumed, model, length=10)
    short.load_state_dict(straight.state_dict())
    assert short._ring.read(100).steps.tolist() == list(range(181, 191))


@pytest.mark.parametrize("captured", [False, True])
def test_a_history_that_is_loaded_takes_the_place_of_what_was_there(captured):
    _, _, saved = run("RobustAdamW", 20)
    model, optimizer, monitor = run("RobustAdamW", 30, length=50)
    written, memory = monitor._ring, monitor.nbytes
    if captured:
        written.counted = None  # as a CUDA graph does, which goes on writing where it did
    for _ in range(3):
        monitor.load_state_dict(saved.state_dict())
    optimizer.step()
    assert monitor._ring is written
    assert monitor.nbytes == memory
    assert monitor.columns()["step"] == list(range(1, 22))
    assert monitor.metrics()["adaterm/trust"] == pytest.approx(monitor.columns()["trust"][-1])
    monitor.load_state_dict(adaterm.Monitor(adaterm.RobustAdamW(model.parameters())).state_dict())
    optimizer.step()
    assert monitor.columns()["step"] == [1]


@pytest.mark.parametrize("captured", [False, True])
def test_only_a_ring_that_a_graph_may_write_outlives_a_change(captured):
    params = parameters()
    optimizer = adaterm.AdaTerm(params[:2])
    monitor = adaterm.Monitor(optimizer, length=10)
    train(optimizer, params[:2], 1)
    if captured:
        monitor._ring.counted = None
    before, memory = weakref.ref(monitor._ring), monitor.nbytes
    optimizer.add_param_group({"params": params[2:]})
    train(optimizer, params, 1, start=1)
    assert (before() is None) == (not captured)
    assert monitor.nbytes == adaterm.Monitor(optimizer, length=10).nbytes + captured * memory


@either
def test_a_history_of_an_older_version_has_no_norms(name):
    _, optimizer, monitor = run(name, 60, bad=(40,))
    saved = monitor.state_dict()
    saved["rows"]["batches"] = saved["rows"]["batches"][:, :3]
    restored = adaterm.Monitor(optimizer)
    restored.load_state_dict(saved)
    assert restored.metrics() == {key: value for key, value in monitor.metrics().items() if key != "adaterm/norm"}
    assert restored.aberrant(1) == [monitor.aberrant(1)[0]._replace(norm=None)]
    optimizer.step()
    assert ("adaterm/norm" in restored.metrics()) == (name == "RobustAdamW")


def test_a_history_of_another_model_is_refused():
    _, _, monitor = run("AdaTerm", 3)
    with pytest.raises(ValueError, match="4 tensors, and the optimizer has 5"):
        adaterm.Monitor(adaterm.AdaTerm(parameters())).load_state_dict(monitor.state_dict())


def test_a_monitor_that_comes_late_counts_as_the_optimizer_does():
    model, optimizer, monitor = run("RobustAdamW", 25)
    late = adaterm.Monitor(optimizer, model)
    give(model, 26)
    optimizer.step()
    assert late._ring.read(10).steps.tolist() == [26]
    assert monitor._ring.read(1).steps.tolist() == [26]
    late.remove()
    late.remove()
    optimizer.step()
    assert late._ring.read(10).steps.tolist() == [26]


def test_groups_may_be_added_and_steps_begin_in_inference_mode():
    params = parameters()
    optimizer = adaterm.AdaTerm(params[:2])
    monitor = adaterm.Monitor(optimizer)
    train(optimizer, params[:2], 3)
    optimizer.add_param_group({"params": params[2:]})
    with torch.inference_mode():
        train(optimizer, params, 1, start=3)
    train(optimizer, params, 1, start=4)
    assert [layer.steps for layer in monitor.layers().values()] == [5, 5, 2, 2, 2]


@either
def test_the_first_group_may_be_empty(name):
    params = parameters()
    optimizer = getattr(adaterm, name)([{"params": []}, {"params": params}])
    monitor = adaterm.Monitor(optimizer)
    train(optimizer, params, 3)
    assert [layer.steps for layer in monitor.layers().values()] == [3] * len(params)
    assert adaterm.Monitor(getattr(adaterm, name)([{"params": []}])).metrics() == {}


def test_the_window_may_change():
    model, optimizer, monitor = run("RobustAdamW", 60, bad=(40,), window=30)
    assert monitor.metrics()["adaterm/excluded"] == pytest.approx(1 / 30)
    optimizer.param_groups[0]["window"] = 15
    give(model, 61)
    optimizer.step()
    assert monitor.metrics()["adaterm/excluded"] == 0.0
    again = adaterm.Monitor(optimizer)
    again.load_state_dict(monitor.state_dict())
    assert again.metrics() == monitor.metrics()
    assert again.columns()["score"] == pytest.approx(monitor.columns()["score"], nan_ok=True)


def test_precisions_may_differ():
    params = [nn.Parameter(torch.zeros(4, dtype=dtype)) for dtype in (torch.float32, torch.float64, torch.float32)]
    optimizer = adaterm.RobustAdamW(params)
    monitor = adaterm.Monitor(optimizer)
    for step in range(3):
        give_gradients(params, step)
        optimizer.step()
    wanted = [optimizer.statistics()[parameter].distance.item() for parameter in params]
    assert monitor._ring.read(1).tensors[0, 0].tolist() == pytest.approx(wanted, rel=1e-6)


@either
def test_steps_may_be_differentiated(name):
    params = [parameter.clone() for parameter in parameters()]
    optimizer = getattr(adaterm, name)(params, differentiable=True)
    monitor = adaterm.Monitor(optimizer)
    for step in range(3):
        for parameter in params:
            parameter.grad = torch.full(parameter.shape, step + 1.0, requires_grad=True)
        optimizer.step()
    assert {layer.steps for layer in monitor.layers().values()} == {3}
    assert not monitor._ring.read(1).tensors.requires_grad


def test_tables_of_all_steps(tmp_path):
    _, _, monitor = run("RobustAdamW", 30, bad=(28,), window=20)
    text = monitor.table()
    assert "batch 28; " in text
    assert text.startswith("RobustAdamW: 30 steps, 1 excluded\n\n1 stood out: ")
    assert repr(text) == text
    monitor.to_csv(tmp_path / "trust.csv")
    with open(tmp_path / "trust.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 30
    assert (rows[27]["mark"], rows[27]["excluded"], float(rows[27]["trust 0.weight"]) < 0.1) == (
        "batch 28",
        "True",
        True,
    )
    assert float(rows[27]["norm"]) > 1e4 > float(rows[26]["norm"])
    assert "room for 10,000 steps" in repr(monitor)
    assert monitor.nbytes == 10_000 * (12 * 4 + 36)


def test_a_batch_that_stands_out_before_the_window_is_full_is_listed_and_was_not_excluded():
    _, _, monitor = run("RobustAdamW", 60, bad=(50,))
    (batch,) = monitor.aberrant(1)
    assert (batch.step, batch.trust) == (50, 1.0)
    assert batch.score > 10
    assert batch.zscore > 10
    assert monitor.metrics()["adaterm/excluded"] == 0.0
    assert monitor.table().startswith(
        "RobustAdamW: 60 steps, 0 excluded\n1 had a z-score above 3 before a window of 100 levels was full, and "
    )


def test_what_stands_out_early_is_listed_whatever_its_score():
    """By its level alone, as it would be excluded later; the table tells it from what was excluded."""
    model = nn.Sequential(*(nn.Linear(20, 20) for _ in range(8)))
    optimizer, monitor = watch("RobustAdamW", model, window=40)
    for step in range(1, 91):
        give(model, step, all=2.0 if step in (30, 80) else 1.0)
        optimizer.step()
    early, late = sorted(monitor.aberrant(2), key=lambda batch: batch.step)
    assert (early.step, late.step) == (30, 80)
    assert early.score < 3.0 < min(early.zscore, late.zscore)
    assert (early.trust, late.trust < 0.5) == (1.0, True)
    lines = monitor.table().splitlines()
    assert lines[:2] == [
        "RobustAdamW: 90 steps, 1 excluded",
        "1 had a z-score above 3 before a window of 40 levels was full, and was used.",
    ]
    assert lines[3].startswith("2 stood out: excluded, used early, not finite, or")


def test_a_table_says_why_none_was_excluded_after_a_checkpoint_of_adamw():
    """Steps were counted before, but no levels."""
    model = nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 10))
    adamw = torch.optim.AdamW(model.parameters())
    for step in range(1, 201):
        give(model, step)
        adamw.step()
    optimizer, monitor = watch("RobustAdamW", model)
    optimizer.load_state_dict(adamw.state_dict())
    for step in range(201, 261):
        give(model, step, **({"all": 1e3} if step == 250 else {}))
        optimizer.step()
    assert monitor.aberrant(1)[0].trust == 1.0
    assert "0 excluded\n1 had a z-score above 3 before a window of 100 levels was full" in monitor.table()


def test_a_short_record_of_another_optimizer_says_what_stood_out():
    """It may be shorter than RobustAdamW's window, and begin late; table and metrics agree."""
    _, _, monitor = run("AdaTerm", 200, bad=(195,), length=90)
    assert monitor.table().startswith("AdaTerm: 90 steps up to step 200, 1 aberrant\n")
    assert monitor.metrics()["adaterm/excluded"] == pytest.approx(1 / 90)
    assert sum(monitor.columns()["excluded"]) == 1


@either
def test_a_table_says_when_nothing_stood_out(name):
    model, optimizer, monitor = run(name, 60, length=50)
    text = monitor.table()
    early = "No batch with a finite gradient is excluded before a window of 100 levels is full.\n"
    known = f"excluded\n{early}" if name == "RobustAdamW" else "aberrant\n"  # others exclude none anyway
    assert text.startswith(f"{name}: 50 steps up to step 60, 0 {known}\nNo batch stood out: ")
    assert "batch 5" not in text
    assert len(monitor.aberrant(10)) == 10  # ranks are there all the same
    give(model, 61, **{"0.bias": 100.0})  # a fault in one tensor of four
    optimizer.step()
    assert "1 stood out: " in monitor.table()
    assert "  0.bias " in monitor.table()
    assert adaterm.Monitor(optimizer).table() == f"{name}: no step was seen yet"


@either
def test_ranks_begin_with_what_the_table_lists(name):
    model, optimizer, monitor = run(name, 110)
    for step, factors in ((111, {"all": 1e3}), (112, {"1.weight": 3.0}), (113, {"all": nan}), (114, {})):
        give(model, step, **factors)
        optimizer.step()
    listed = monitor.table(100).split("\n\n")[1].splitlines()[2:]
    ranked = [f"{batch.step}" for batch in monitor.aberrant(None)]
    assert ranked[: len(listed)] == [line.split()[0] for line in listed]
    assert ranked[:2] == ["113", "111"]
    assert "nan" not in listed[0]
    assert "4 tensors had gradients; the 2 least trusted\n" in monitor.table(2)


def test_an_excluded_batch_ranks_before_all_that_did_not_stand_out():
    """Its score may be the lower one."""
    model = nn.Linear(20, 10)
    optimizer = adaterm.RobustAdamW(model.parameters(), threshold=1.0, window=25)
    monitor = adaterm.Monitor(optimizer)
    for step in range(200):
        give(model, step)
        optimizer.step()
    ranked = [batch for batch in monitor.aberrant(None) if batch.score < 3.0]
    excluded = [batch.trust < 0.5 for batch in ranked]
    assert excluded == sorted(excluded, reverse=True)
    count = sum(excluded)
    assert 0 < count < len(ranked)
    assert ranked[count - 1].score < ranked[count].score
    for part in (ranked[:count], ranked[count:]):
        assert [batch.score for batch in part] == sorted([batch.score for batch in part], reverse=True)


@pytest.mark.parametrize("name", ["AdaTerm", "TAdam", "AtAdaBelief", "RobustAdamW"])
def test_gradients_of_zero_are_no_fault_and_those_that_are_all_broken_are(name):
    EARLY.setdefault(name, {})
    model, optimizer, monitor = run(name, 30)
    for step, factor in ((31, 0.0), (32, nan)):
        give(model, step, all=factor)
        optimizer.step()
        monitor.metrics()
    assert monitor.columns()["excluded"][-2:] == [False, True]
    assert monitor.metrics()["adaterm/excluded"] == pytest.approx(1 / 32)
    assert [batch.step for batch in monitor.aberrant(1)] == [32]


@pytest.mark.parametrize("layers", [3, 75])
@either
def test_pictures_of_few_and_of_many_tensors(name, layers, tmp_path):
    pytest.importorskip("matplotlib")
    model = nn.Sequential(*[nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)) for _ in range(layers)])
    optimizer, monitor = watch(name, model)
    for step in range(30):
        give(model, step)
        if step == 20:
            model[0][0].bias.grad[0] = inf
        optimizer.step()
    figure = monitor.plot(tmp_path / "trust.png")
    assert (tmp_path / "trust.png").stat().st_size > 10_000
    labels = figure.axes[1].get_yticklabels()
    assert 12 <= len(labels) <= 40
    assert monitor.plot()._repr_png_().startswith(b"\x89PNG")  # what a notebook shows without pyplot


def test_rows_of_a_picture_are_as_deep_as_there_is_room_for():
    names = [f"h.{block}.{part}.{kind}" for block in range(12) for part in "abc" for kind in ("weight", "bias")]
    groups = group_names(["embed.weight", *names])
    assert list(groups)[:3] == ["embed.weight", "h.0.a", "h.0.b"]
    assert groups["h.0.a"] == [1, 2]
    assert len(group_names([f"p{number}" for number in range(300)])) == 300
    assert len(group_names([f"{number // 250}.{number}" for number in range(300)])) == 300  # two rows would hide them
    deep = [f"model.layers.{layer}.{part}.weight" for layer in range(80) for part in ("attention", "mlp")]
    assert len(group_names(["model.embed.weight", *deep, "head.weight"])) == 82
    assert len(group_names([])) == 0


def warned(name, steps, factor=lambda step: 1.0, broken=(), **options):
    """The warnings of a run, read twice, in which gradients of some steps are larger, or some never finite."""
    model = nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 10))
    optimizer = getattr(adaterm, name)(model.named_parameters(), **EARLY[name], **options)
    monitor = adaterm.Monitor(optimizer)
    for step in range(1, steps + 1):
        give(model, step, all=factor(step))
        for tensor in broken:
            model.get_parameter(tensor).grad[0] = nan
        optimizer.step()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        monitor.metrics()
        monitor.layers()
    return [str(warning.message) for warning in caught]


def test_warnings_come_once_and_say_what_to_do():
    assert warned("RobustAdamW", 700) == []
    assert warned("AdaTerm", 700) == []
    (share,) = warned("RobustAdamW", 200, factor=lambda step: 1e3 if step > 20 and step % 4 == 0 else 1.0)
    assert "of the last 100 batches were distrusted" in share
    assert "threshold" in share
    (in_a_row,) = warned("RobustAdamW", 320, factor=lambda step: 1e3 ** (step > 260), minority=0.9)
    assert "50 batches in a row, up to step 310, lay far beyond those before" in in_a_row
    assert "aberrant()" in in_a_row
    (every,) = warned("AdaTerm", 150, broken=["0.bias"])
    assert "0.bias (1 tensors in all)" in every
    every, layer = warned("AdaTerm", 600, broken=["0.bias"])
    assert "0.bias was never trusted" in layer


@pytest.mark.parametrize(
    "read",
    [
        lambda monitor: monitor.metrics(),
        lambda monitor: monitor.table(),
        lambda monitor: monitor.to_csv(os.devnull),
        lambda monitor: monitor.warn_of_clipping("Someone clips", "Stop that"),
    ],
)
def test_warnings_show_the_line_that_reads(read):
    model, optimizer, monitor = run("RobustAdamW", 100)
    for step in range(101, 202):
        give(model, step, all=nan)
        optimizer.step()
    with pytest.warns(UserWarning, match=r"adaterm\.Monitor: ") as caught:
        read(monitor)
    assert {warning.filename for warning in caught} == {__file__}


@pytest.mark.parametrize("name", ["AdaTerm", "TAdam", "AtAdaBelief", "RobustAdamW"])
def test_warnings_are_the_same_for_all_optimizers(name):
    EARLY.setdefault(name, {})
    assert warned(name, 700) == []
    (share,) = warned(name, 200, factor=lambda step: 1e3 if step > 20 and step % 4 == 0 else 1.0)
    assert "25 of the last 100 batches were distrusted" in share
    (every,) = warned(name, 150, broken=["0.weight", "0.bias", "1.weight", "1.bias"])
    assert "(4 tensors in all)" in every


def train_clipped(name, max_norm, dtype=torch.float32, draw=lambda step: (step, 0.5 + step % 7)):
    """The warnings of a run whose gradients, of a seed and a size, are clipped before each step if there is a limit.

    The monitor's table repeats them.
    """
    model = nn.Linear(200, 20, dtype=dtype)
    optimizer = getattr(adaterm, name)(model.named_parameters())
    monitor = adaterm.Monitor(optimizer)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(1, 301):
            seed, size = draw(step)
            give(model, seed, all=size)
            if max_norm:
                nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            monitor.metrics()
    messages = [str(warning.message) for warning in caught]
    assert ("Gradients seem to be clipped before the step" in monitor.table()) == bool(messages)
    return messages


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("max_norm", [1.0, 0.25, 120.0])  # two sevenths of the norms are below the last
def test_clipping_before_steps_is_noticed(max_norm, dtype):
    (message,) = train_clipped("RobustAdamW", max_norm, dtype)
    assert message.startswith("adaterm.Monitor: at least ")
    assert f"to a norm of {max_norm:g} before optimizer.step(), which hides" in message
    assert f"pass max_norm={max_norm:g} to RobustAdamW" in message


def test_clipping_that_only_bad_batches_meet_is_noticed():
    """A tenth of the norms are at the limit, which is where the evidence is lost."""
    (message,) = train_clipped("RobustAdamW", 100.0, draw=lambda step: (step, 9.0 if step % 10 == 0 else 1.0))
    assert "to a norm of 100 before" in message


def test_what_is_not_clipping_is_not_taken_for_it():
    assert train_clipped("RobustAdamW", None) == []
    assert train_clipped("RobustAdamW", 1e9) == []
    assert train_clipped("AdaTerm", 1.0) == []
    assert train_clipped("RobustAdamW", None, draw=lambda step: (0, 1.0)) == []  # the same gradient all the time
    assert train_clipped("RobustAdamW", None, draw=lambda step: (step, 0.0)) == []


def test_two_ranks_have_the_whole_picture(ranks):
    for rule in ("AdaTerm", "RobustAdamW, soon judging"):
        ranks.run(2, monitor_shards, rule)


def test_the_cost_is_measured_for_all_networks(monkeypatch, tmp_path):
    """In small, by what also measures on a GPU."""
    pytest.importorskip("matplotlib")  # of the demo
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "benchmarks")
    benchmark = importlib.import_module("monitor_cost")
    monkeypatch.setattr(sys, "argv", ["monitor_cost.py", "--device", "cpu", "--small", "--out", str(tmp_path)])
    benchmark.main()
    record = json.loads((tmp_path / "cpu.json").read_text())
    assert set(record["table"]) == {"resnet18", "gpt2", "demo"}
    for by_optimizer in record["table"].values():
        for row in by_optimizer.values():
            assert list(row["milliseconds"]) == ["alone", "watched", "watched and read"]
            assert set(row["per cent more"]) == {"watched", "watched and read"}


def test_only_ours_are_watched_also_in_a_wrapper():
    with pytest.raises(TypeError, match="not Adam"):
        adaterm.Monitor(torch.optim.Adam(parameters()))
    for length in (0, True, 2.5):
        with pytest.raises(ValueError, match=f"length={length} is not possible: length must be a whole number"):
            adaterm.Monitor(adaterm.AdaTerm(parameters()), length=length)

    class Wrapper:
        def __init__(self, optimizer):
            self.optimizer = optimizer

    assert adaterm.Monitor(Wrapper(Wrapper(adaterm.AdaTerm(parameters())))).optimizer.param_groups
