"""A step repeats the last one; whatever a user changes in between must be noticed."""

import gc
import weakref

import pytest
import torch
from catalogue import ENGINES, assert_close, give_gradients, parameters
from changes import CHANGES, compare, is_allowed

import adaterm
from adaterm.engines import group_step
from adaterm.engines.choice import make_engine


@pytest.mark.parametrize(
    ("engine", "change"),
    [(engine, change) for engine in ("fused", "foreach") for change in CHANGES if is_allowed(change, engine)],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_every_change_is_noticed(engine, change):
    assert compare(change, "cpu", **ENGINES[engine]) < 1e-5


def test_a_list_of_betas_may_change_in_place():
    ends = []
    for flags in ({"fused": True}, {"foreach": False}):
        params, betas = parameters(), [0.9, 0.99]
        optimizer = adaterm.TAdam(params, betas=betas, **flags)
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


def test_alternating_gradients_do_not_make_new_engines(made_engines):
    params = parameters()
    optimizer = adaterm.AdaTerm(params, fused=True)
    for step in range(8):
        give_gradients(params, step)
        for parameter in params[step % 2 :: 2]:
            parameter.grad = None
        optimizer.step()
    assert len(made_engines) == 2


def test_many_groups_are_remembered(made_engines):
    params = parameters([(3,)] * 100)
    optimizer = adaterm.AdaTerm([{"params": [p]} for p in params], fused=True)
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


def test_a_shared_gradient_and_an_empty_group_are_remembered_too(made_engines):
    params, empty = parameters(), torch.empty(0, requires_grad=True)
    optimizer = adaterm.AdaTerm([{"params": params}, {"params": [empty]}], fused=True)
    for step in range(5):
        give_gradients([*params, empty], step)
        params[1].grad = params[0].grad[0, :3].clone()
        params[2].grad = params[3].grad.reshape(1)
        params[3].grad = params[2].grad.reshape(())
        optimizer.step()
    twins = [torch.zeros(3, requires_grad=True) for _ in range(2)]
    shared = adaterm.AdaTerm(twins, fused=True)
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


def test_gradients_are_not_kept_alive():
    params = parameters()
    optimizer = adaterm.AdaTerm(params, fused=True)
    for step in range(3):
        give_gradients(params, step)
        kept = [weakref.ref(p.grad) for p in params]
        optimizer.step()
        optimizer.zero_grad()
        gc.collect()
        assert all(reference() is None for reference in kept)


def test_a_bad_option_is_refused_before_anything_changes():
    params = parameters()
    optimizer = adaterm.AdaTerm(params, fused=True)
    for step in range(2):
        give_gradients(params, step)
        optimizer.step()
    before = [p.detach().clone() for p in params]
    optimizer.param_groups[0]["lr"] = -1.0
    with pytest.raises(ValueError, match=r"lr=-1.0 is not possible"):
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(params, before, strict=True))
