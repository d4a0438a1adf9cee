"""Stochastic rounding of bfloat16 parameters: unbiased, repeatable, and the same in every engine."""

import pytest
import torch
from catalogue import ENGINES, MAIN, make, parameters, train

import adaterm
from adaterm.rounding import noise
from adaterm.torch_primitives import round_stochastically

every_rule = pytest.mark.parametrize("rule", ["AdaTerm (gradient init)", "RobustAdamW, usual norm"])


def moved(rule, engine, stochastic, steps=100, size=4000):
    """How far updates of about a hundredth of a unit in the last place have moved a parameter."""
    parameter = torch.ones(size, dtype=torch.bfloat16, requires_grad=True)
    optimizer = make(rule, [parameter], lr=1e-5, stochastic_rounding=stochastic, **ENGINES[engine])
    for step in range(steps):
        parameter.grad = torch.full_like(parameter, 1.0 + 0.1 * (step % 3))
        optimizer.step()
    return parameter.detach()


@pytest.mark.parametrize("engine", ENGINES)
@every_rule
def test_small_updates_are_not_lost(rule, engine):
    exact = torch.ones(1)
    optimizer = make(rule, [exact], lr=1e-5)
    for step in range(100):
        exact.grad = torch.full((1,), 1.0 + 0.1 * (step % 3))
        optimizer.step()
    assert torch.equal(moved(rule, engine, False), torch.ones(4000, dtype=torch.bfloat16))
    path = 1.0 - moved(rule, engine, True).double().mean()
    assert path.item() == pytest.approx(1.0 - exact.item(), rel=0.1)


@every_rule
def test_engines_round_alike(rule):
    ends = [moved(rule, engine, True) for engine in ENGINES]
    assert all(torch.equal(end, ends[0]) for end in ends[1:])
    assert torch.equal(moved(rule, "reference", True), ends[0])


def test_the_noise_is_uniform_and_does_not_repeat():
    index = torch.arange(1 << 16)
    drawn = [noise(index, step, position).double() for step in (1, 2) for position in (0, 1)]
    for each in drawn:
        assert abs(each.mean() / 65536 - 0.5) < 0.01
        assert abs(each.std() / 65536 - 12**-0.5) < 0.01
    for other in drawn[1:]:
        assert abs(torch.corrcoef(torch.stack([drawn[0], other]))[0, 1]) < 0.02


def test_what_bfloat16_holds_stays_and_so_does_what_is_not_finite():
    values = torch.tensor([1.0, -2.5, 0.0, float("inf"), -float("inf"), float("nan")])
    torch.testing.assert_close(round_stochastically(values, torch.tensor(3), 0), values, rtol=0, atol=0, equal_nan=True)


def test_a_rounding_is_one_of_the_two_neighbours():
    values = torch.randn(10_000, generator=torch.Generator().manual_seed(0))
    found = round_stochastically(values, torch.tensor(1), 0)
    assert torch.equal(found, found.bfloat16().float())
    assert ((found - values).abs() <= values.abs() * 2.0**-7).all()
    assert abs((found - values).mean()) < 1e-4


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", MAIN)
def test_other_precisions_are_left_alone(name, engine):
    ends = []
    for stochastic in (False, True):
        params = [*parameters(), *parameters(dtype=torch.float16)]
        train(getattr(adaterm, name)(params, stochastic_rounding=stochastic, **ENGINES[engine]), params, 5)
        ends.append(params)
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def test_it_has_no_derivative():
    with pytest.raises(RuntimeError, match="stochastic_rounding=True is not possible with differentiable=True"):
        adaterm.AdaTerm(parameters(), stochastic_rounding=True, differentiable=True)


def test_layouts_round_like_their_memory():
    values = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    found = round_stochastically(values, torch.tensor(1), 0)
    in_memory = values.permute(0, 2, 3, 1).flatten()
    assert torch.equal(found.permute(0, 2, 3, 1).flatten(), round_stochastically(in_memory, torch.tensor(1), 0))


@every_rule
def test_tensors_of_all_groups_round_differently(rule):
    params = [torch.ones(5000, dtype=torch.bfloat16, requires_grad=True) for _ in range(2)]
    groups = [{"params": [p]} for p in params]
    optimizer = make(rule, groups, lr=1e-2, stochastic_rounding=True)
    for parameter in params:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert 0.0 < (params[0] != params[1]).double().mean() < 0.9
