"""A step repeats the last one; whatever a user changes in between must be noticed."""

import gc
import weakref

import pytest
import torch
from catalogue import ENGINES, MAIN, assert_close, give_gradients, parameters
from changes import CHANGES, CHANGES_OF_JUDGEMENT, compare, is_allowed

import adaterm
from adaterm.engines import group_step
from adaterm.engines.choice import make_engine
from adaterm.optimizer import _CHECK_CAPTURE

either = pytest.mark.parametrize("name", MAIN)
NOTICED = {"AdaTerm": CHANGES, "RobustAdamW": CHANGES + CHANGES_OF_JUDGEMENT}


@pytest.mark.parametrize(
    ("name", "engine", "change"),
    [
        (name, engine, change)
        for name, changes in NOTICED.items()
        for engine in ("fused", "foreach")
        for change in changes
        if is_allowed(change, engine)
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_every_change_is_noticed(name, engine, change):
    assert compare(change, "cpu", name, **ENGINES[engine]) < 1e-5


@pytest.mark.parametrize("name", ["TAdam", "RobustAdamW"])
def test_a_list_of_betas_may_change_in_place(name):
    ends = []
    for flags in ({"fused": True}, {"foreach": False}):
        params, betas = parameters(), [0.9, 0.99]
        optimizer = getattr(adaterm, name)(params, betas=betas, **flags)
        for step in range(6):
            give_gradients(params, step)
            betas[0] = 0.9 if step < 3 else 0.6
            optimizer.step()
        ends.append(params)
    for a, b in zip(*ends, strict=True):
        assert_close(a, b, 1e-5)


@pytest.fixture
def made_engines(monkeypatch):
    """The engines that are made while a test runs."""
    engines = []
    monkeypatch.setattr(group_step, "make_engine", lambda *args: engines.append(make_engine(*args)) or engines[-1])
    return engines


@either
def test_alternating_gradients_do_not_make_new_engines(name, made_engines):
    params = parameters()
    optimizer = getattr(adaterm, name)(params, fused=True)
    for step in range(8):
        give_gradients(params, step)
        for parameter in params[step % 2 :: 2]:
            parameter.grad = None
        optimizer.step()
    assert len(made_engines) == 2


@either
def test_many_groups_are_remembered(name, made_engines):
    params = parameters([(3,)] * 100)
    optimizer = getattr(adaterm, name)([{"params": [p]} for p in params], fused=True)
    for step in range(3):
        give_gradients(params, step)
        optimizer.step()
    assert len(made_engines) == 100


def test_schedules_of_any_number_keep_the_engine(made_engines):
    params = parameters()
    optimizer = adaterm.AdaTerm(params, weight_decay=0.1, fused=True)
    for step in range(6):
        give_gradients(params, step)
        optimizer.param_groups[0] |= {
            "lr": 0.1 / (step + 1),
            "weight_decay": 0.1 / (step + 1),
            "beta": 0.9 - step / 100,
        }
        optimizer.step()
    assert len(made_engines) == 1


def test_schedules_of_what_judges_keep_the_engine(made_engines):
    params = parameters()
    optimizer = adaterm.RobustAdamW(params, weight_decay=0.1, max_norm=1.0, fused=True)
    for step in range(6):
        give_gradients(params, step)
        optimizer.param_groups[0] |= {
            "lr": 0.1 / (step + 1),
            "weight_decay": 0.1 / (step + 1),
            "betas": (0.9 - step / 100, 0.99),
            "dof": 3.0 + step,
            "threshold": 4.0 + step,
            "minority": 0.3 + step / 100,
            "max_norm": 1.0 + step,
        }
        optimizer.step()
    assert len(made_engines) == 1


@pytest.mark.parametrize("engine", ENGINES)
def test_a_new_window_is_that_of_the_batches_too(engine):
    """Also where the parameter that keeps them has no gradient."""
    params = parameters()
    optimizer = adaterm.RobustAdamW(params, window=30, **ENGINES[engine])
    for step in range(15):
        give_gradients(params, step)
        if step == 13:
            params[0].grad, optimizer.param_groups[0]["window"] = None, 12
        optimizer.step()
        (batches,) = (entry["batches"] for entry in optimizer.state.values() if "batches" in entry)
        assert batches.shape == (4, optimizer.param_groups[0]["window"])


@either
def test_a_shared_gradient_and_an_empty_group_are_remembered_too(name, made_engines):
    params, empty = parameters(), torch.empty(0, requires_grad=True)
    optimizer = getattr(adaterm, name)([{"params": params}, {"params": [empty]}], fused=True)
    for step in range(5):
        give_gradients([*params, empty], step)
        params[1].grad = params[0].grad[0, :3].clone()
        params[2].grad = params[3].grad.reshape(1)
        params[3].grad = params[2].grad.reshape(())
        optimizer.step()
    twins = [torch.zeros(3, requires_grad=True) for _ in range(2)]
    shared = getattr(adaterm, name)(twins, fused=True)
    for _ in range(5):
        twins[0].grad = twins[1].grad = torch.ones(3)
        shared.step()
    assert len(made_engines) == 2
    assert torch.equal(*twins)


def test_a_sparse_gradient_is_refused_also_later():
    embedding = torch.nn.Embedding(5, 2, sparse=True)
    optimizer = adaterm.AdaTerm(embedding.parameters(), fused=True)
    embedding.weight.grad = torch.ones(5, 2)
    optimizer.step()
    before = embedding.weight.detach().clone()
    embedding.weight.grad = None
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="sparse=False"):
        optimizer.step()
    assert torch.equal(embedding.weight, before)


@pytest.mark.parametrize("engine", ENGINES)
@either
def test_gradients_are_not_kept_alive(name, engine):
    gc.freeze()  # collecting is then a matter of what follows, and quick
    params = parameters()
    optimizer = getattr(adaterm, name)(params, **ENGINES[engine])
    for step in range(3):
        give_gradients(params, step)
        kept = [weakref.ref(p.grad) for p in params]
        optimizer.step()
        optimizer.zero_grad()
        gc.collect()
        assert all(reference() is None for reference in kept)


@either
def test_a_bad_option_is_refused_before_anything_changes(name):
    params = parameters()
    optimizer = getattr(adaterm, name)(params, fused=True)
    for step in range(2):
        give_gradients(params, step)
        optimizer.step()
    before = [p.detach().clone() for p in params]
    optimizer.param_groups[0]["lr"] = -1.0
    with pytest.raises(ValueError, match=r"lr=-1.0 is not possible"):
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(params, before, strict=True))


@pytest.mark.parametrize("engine", ["fused", "foreach"])
def test_torch_checks_new_steps_and_those_in_graphs(engine, monkeypatch):
    params, checked = parameters(), []
    optimizer = adaterm.AdaTerm(params, **ENGINES[engine])
    monkeypatch.setattr(optimizer, _CHECK_CAPTURE, lambda: checked.append(step), raising=False)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: step == 3)
    for step in range(5):
        give_gradients(params, step)
        optimizer.step()
    assert checked == ([0, 3] if engine == "fused" else [0, 1, 2, 3, 4])
