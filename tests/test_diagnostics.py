"""The optimizer tells what it made of the gradients."""

from math import inf, nan

import pytest
import torch
from catalogue import ENGINES, METHODS, give_gradients, make, parameters, train

import adaterm


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("rule", METHODS)
def test_statistics_are_those_of_the_last_step(rule, engine):
    params = parameters(dtype=torch.float64)
    optimizer = make(rule, params, **ENGINES[engine])
    assert optimizer.statistics() == {}
    train(optimizer, params, 3)
    give_gradients(params, 3)
    params[2].grad = None
    optimizer.step()
    found = optimizer.statistics()
    assert set(found) == {p for p in params if p is not params[2]}
    for distance, trust, dof in found.values():
        assert distance.shape == trust.shape == dof.shape == ()
        assert 0 < distance < inf
        assert 0 < trust <= 1
        assert dof > 0


@pytest.mark.parametrize("engine", ENGINES)
def test_the_numbers_mean_what_they_say(engine):
    parameter = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    optimizer = adaterm.AdaTerm([parameter], **ENGINES[engine], min_dof=2.0)
    parameter.grad = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    optimizer.step()
    distance, trust, dof = optimizer.statistics()[parameter]
    assert distance.item() == pytest.approx(30 / 4 / 1e-10)
    before = 2.0 + 1e-5
    assert trust.item() == pytest.approx(before / (before + distance.item()))
    assert dof.item() == pytest.approx(2.0 + optimizer.state[parameter]["excess_dof"].item(), rel=1e-12)


def test_an_outlier_is_trusted_less_than_what_is_usual():
    parameter = torch.zeros(64, requires_grad=True)
    optimizer = adaterm.AdaTerm([parameter])
    generator = torch.Generator().manual_seed(0)
    trust = []
    for step in range(400):
        parameter.grad = torch.randn(64, generator=generator) * (30.0 if step == 399 else 1.0)
        optimizer.step()
        trust.append(optimizer.statistics()[parameter].trust.item())
    assert min(trust[300:399]) > 0.3
    assert trust[399] < 0.01


def test_a_monitor_counts_what_was_excluded():
    model = torch.nn.Linear(3, 2)
    optimizer = adaterm.AdaTerm(model.named_parameters())
    monitor = adaterm.Monitor(optimizer)
    for step in range(10):
        give_gradients(list(model.parameters()), step)
        if step in (3, 7):
            model.weight.grad[0, 0] = nan
        if step == 5:
            model.bias.grad = None
        optimizer.step()
    summary = monitor.summary()
    assert list(summary) == ["weight", "bias"]
    assert summary["weight"][:2] == (10, 2)
    assert summary["bias"][:2] == (9, 0)
    assert summary["weight"].least_trust == 0.0
    assert 0 < summary["bias"].mean_trust <= 1
    assert summary["bias"].dof == pytest.approx(1 + optimizer.state[model.bias]["excess_dof"].item())
    monitor.remove()
    optimizer.step()
    assert monitor.summary() == summary


def test_a_monitor_sees_the_trust_in_batches():
    """What has an ordinary distance is distrusted with its batch, but only what is not finite is excluded."""
    model = torch.nn.Linear(3, 2)
    optimizer = adaterm.RobustAdamW(model.named_parameters(), window=12)
    monitor = adaterm.Monitor(optimizer)
    for step in range(20):
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(step))
        if step == 3:
            model.weight.grad[0, 0] = nan
        if step == 15:
            model.weight.grad *= 1e6
        optimizer.step()
    summary = monitor.summary()
    assert summary["weight"][:2] == (20, 1)
    assert summary["bias"][:2] == (20, 0)
    for each in summary.values():
        assert each.least_trust < 1e-6
        assert each.mean_trust > 0.5
        assert each.dof == 3.0


def test_a_monitor_names_what_has_no_name():
    params = parameters()
    optimizer = adaterm.TAdam([{"params": params[:2]}, {"params": params[2:]}])
    monitor = adaterm.Monitor(optimizer)
    train(optimizer, params, 2)
    assert list(monitor.summary()) == ["0.0", "0.1", "1.0", "1.1", "1.2"]


def test_names_that_two_groups_share_do_not_hide_a_parameter():
    layers = [torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)]
    optimizer = adaterm.AdaTerm([{"params": list(layer.named_parameters())} for layer in layers])
    monitor = adaterm.Monitor(optimizer)
    train(optimizer, [p for layer in layers for p in layer.parameters()], 1)
    assert list(monitor.summary()) == ["0.0", "0.1", "1.0", "1.1"]


def test_a_monitor_watches_ours_only():
    with pytest.raises(TypeError, match="not Adam"):
        adaterm.Monitor(torch.optim.Adam(parameters()))
