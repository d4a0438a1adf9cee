"""The optimizer tells what it made of the gradients."""

from math import inf

import pytest
import torch
from catalogue import ENGINES, METHODS, Operations, give_gradients, make, parameters, train

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


@pytest.mark.parametrize("rule", ["AdaTerm", "RobustAdamW"])
def test_asking_for_them_is_one_copy_however_many_tensors(rule):
    """A small part of a step; what is read later is read from this copy."""
    for count in (2, 50):
        params = parameters([(3,)] * count)
        optimizer = make(rule, params)
        train(optimizer, params, 1)
        with Operations() as operations:
            optimizer.statistics()
        assert operations.names == ["aten.clone.default"]


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
