"""A step repeats the last one; whatever a user changes in between must be noticed."""

import gc
import weakref

import pytest
import torch
from catalogue import assert_close, give_gradients, parameters

import adaterm
from adaterm.engines import group_step
from adaterm.engines.choice import make_engine


def nothing(optimizer, params):
    pass


def new_lr(optimizer, params):
    optimizer.param_groups[0]["lr"] = 0.5


def tensor_lr(optimizer, params):
    optimizer.param_groups[0]["lr"] = torch.tensor(0.5)


def weight_decay(optimizer, params):
    optimizer.param_groups[0]["weight_decay"] = 0.3


def another_rule(optimizer, params):
    optimizer.param_groups[0]["min_dof"] = 7.0


def a_missing_gradient(optimizer, params):
    params[1].grad = None


def state_cleared(optimizer, params):
    optimizer.state.clear()


def an_entry_replaced(optimizer, params):
    optimizer.state[params[0]] = {name: value.clone() for name, value in optimizer.state[params[0]].items()}


def a_state_tensor_replaced(optimizer, params):
    optimizer.state[params[0]]["exp_avg"] = optimizer.state[params[0]]["exp_avg"] * 2.0


def a_state_tensors_data_swapped(optimizer, params):
    mean = optimizer.state[params[0]]["exp_avg"]
    mean.data = mean.data * 2.0


def a_parameters_data_swapped(optimizer, params):
    params[0].data = params[0].data * 2.0


def a_parameter_in_another_precision(optimizer, params):
    params[0].data = params[0].data.half()
    params[0].grad = params[0].grad.half()


def a_gradient_in_another_order(optimizer, params):
    params[0].grad = params[0].grad.mT.contiguous().mT


def a_group_added(optimizer, params):
    more = parameters([(4, 4)], seed=5)
    params += more
    optimizer.add_param_group({"params": more, "lr": 0.2})


def state_loaded(optimizer, params):
    optimizer.load_state_dict(optimizer.state_dict())


CHANGES = [
    nothing,
    new_lr,
    tensor_lr,
    weight_decay,
    another_rule,
    a_missing_gradient,
    state_cleared,
    an_entry_replaced,
    a_state_tensor_replaced,
    a_state_tensors_data_swapped,
    a_parameters_data_swapped,
    a_parameter_in_another_precision,
    a_gradient_in_another_order,
    a_group_added,
    state_loaded,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_every_change_is_noticed(change):
    ends = []
    for flags in ({"fused": True}, {"foreach": False}):
        params = parameters()
        optimizer = adaterm.AdaTerm(params, lr=0.1, **flags)
        for step in range(9):
            give_gradients(params, step)
            if step in (3, 6):
                change(optimizer, params)
            optimizer.step()
        ends.append((params, optimizer))
    (params, tested), (others, wanted) = ends
    for a, b in zip(params, others, strict=True):
        assert_close(a, b, 2e-3 if a.dtype == torch.float16 else 1e-5)
        for name, value in wanted.state[b].items():
            assert_close(tested.state[a][name], value, 1e-5, name)


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
