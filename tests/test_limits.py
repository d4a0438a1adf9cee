"""Gradients that are infinite, absurd, zero, empty, scalar or complex."""

from math import inf, nan

import pytest
import torch
from catalogue import ENGINES, JUDGING, MAIN, RULES, SEPARATE, assert_close, give_gradients, make, parameters, train

import adaterm

BAD = {"NaN": nan, "infinite": inf, "minus infinite": -inf, "absurd": 1e30}
every_engine = pytest.mark.parametrize("engine", ENGINES)
every_rule = pytest.mark.parametrize("rule", RULES)


def snapshot(optimizer, parameter):
    return {key: value.clone() for key, value in optimizer.state[parameter].items()}


def assert_sound(optimizer, params):
    """Every number is finite, but for what windows do not know yet: that is infinite."""
    for parameter in params:
        assert parameter.isfinite().all()
        for name, value in optimizer.state[parameter].items():
            known = value[value != inf] if name in ("log_distances", "batches") else value
            assert known.isfinite().all(), name


@pytest.mark.parametrize("bad", BAD)
@every_engine
@pytest.mark.parametrize("rule", SEPARATE)
def test_a_bad_gradient_is_excluded(rule, engine, bad):
    """Mean and scale keep every bit, the parameter moves by the old mean, and other tensors do not notice."""
    params, twins = parameters(), parameters()
    optimizer, twin = (make(rule, p, **ENGINES[engine]) for p in (params, twins))
    for tested, tensors in ((optimizer, params), (twin, twins)):
        train(tested, tensors, 10)
        give_gradients(tensors, 10)
    victim, position = params[0], (2, 3)
    victim.grad[position] = BAD[bad]
    before, old = snapshot(optimizer, victim), victim.detach().clone()
    optimizer.step()
    twin.step()
    after = optimizer.state[victim]
    for key in ("exp_avg", "exp_scale", "bias_correction"):
        if key in before:
            assert torch.equal(after[key], before[key]), key
    assert after["step"] == before["step"] + 1
    assert victim.isfinite().all()
    assert not torch.equal(victim, old)
    assert all(value.isfinite().all() for value in after.values())
    assert optimizer.statistics()[victim].trust == 0.0
    for parameter, other in zip(params[1:], twins[1:], strict=True):
        assert torch.equal(parameter, other)
        assert all(torch.equal(value, twin.state[other][key]) for key, value in optimizer.state[parameter].items())


@pytest.mark.parametrize("bad", BAD)
@every_engine
@pytest.mark.parametrize("rule", JUDGING)
def test_a_bad_gradient_is_excluded_from_the_judgement_too(rule, engine, bad):
    """The tensor and all that is known of it keep every bit, and the others step as if it had no gradient."""
    params, twins = parameters(), parameters()
    optimizer, twin = (make(rule, p, **ENGINES[engine]) for p in (params, twins))
    for tested, tensors in ((optimizer, params), (twin, twins)):
        train(tested, tensors, 12)
        give_gradients(tensors, 12)
    victim = params[1]
    victim.grad[2], twins[1].grad = BAD[bad], None
    before, old = snapshot(optimizer, victim), victim.detach().clone()
    optimizer.step()
    twin.step()
    after = optimizer.state[victim]
    assert torch.equal(victim, old)
    assert all(torch.equal(after[key], value) for key, value in before.items() if key != "step")
    assert after["step"] == before["step"] + 1
    assert optimizer.statistics()[victim].trust == 0.0
    assert_sound(optimizer, params)
    for parameter, other in zip(params, twins, strict=True):
        if parameter is not victim:
            assert_close(parameter, other, 1e-6)
            for key, value in twin.state[other].items():
                assert_close(optimizer.state[parameter][key], value, 1e-5, key)


@every_engine
@every_rule
def test_a_bad_first_gradient_does_no_harm(rule, engine):
    params = parameters()
    optimizer = make(rule, params, **ENGINES[engine])
    for parameter in params:
        parameter.grad = torch.full_like(parameter, nan)
    optimizer.step()
    train(optimizer, params, 10)
    assert_sound(optimizer, params)


@every_engine
def test_the_excess_dof_takes_its_step_to_the_limit(engine):
    """What a distance without bounds does to the dof, a NaN does too."""
    ends = []
    for value in (1e17, nan):  # in float64 the first is finite and the second not
        parameter = torch.zeros(5, dtype=torch.float64, requires_grad=True)
        optimizer = adaterm.AdaTerm([parameter], **ENGINES[engine], init_dof=3.0)
        parameter.grad = torch.full_like(parameter, value)
        optimizer.step()
        ends.append(optimizer.state[parameter]["excess_dof"])
    assert_close(*ends, 1e-12)


@every_engine
@pytest.mark.parametrize("name", MAIN)
def test_huge_gradients_do_not_overflow_the_scale(name, engine):
    """A square just below the largest float32 is still a number: the scale must stay one."""
    parameter = torch.zeros(3, requires_grad=True)
    optimizer = getattr(adaterm, name)([parameter], **ENGINES[engine])
    parameter.grad = torch.full_like(parameter, 1e9)
    for _ in range(300):
        optimizer.step()
    parameter.grad = torch.full_like(parameter, 1.7e19)
    optimizer.step()
    assert_sound(optimizer, [parameter])


@every_engine
@pytest.mark.parametrize("dof", [1e-3, 1e6, 1e29])
def test_extreme_degrees_of_freedom_stay_numbers(dof, engine):
    params = parameters()
    for rule, options in (
        ("AdaTerm", {"init_dof": max(1.0, dof)}),
        ("AdaTerm", {"min_dof": dof}),
        ("AdaTerm2", {"min_dof": dof}),
        ("RobustAdamW, soon judging", {"dof": dof}),
    ):
        optimizer = make(rule, params, **options, **ENGINES[engine])
        train(optimizer, params, 300)
        assert_sound(optimizer, params)


@every_engine
@pytest.mark.parametrize("name", MAIN)
def test_a_zero_gradient_on_fresh_state_is_harmless(name, engine):
    """Checkpointing code takes such a step, with lr 0, to make the state exist."""
    params = parameters()
    optimizer = getattr(adaterm, name)(params, lr=0.0, **ENGINES[engine])
    least, scalar, value = {
        "AdaTerm": (1e-5**2, "excess_dof", 1e-5),
        "RobustAdamW": (0.0, "scale_correction", 0.0),
    }[name]
    for parameter in params:
        parameter.grad = torch.zeros_like(parameter)
    before = [parameter.detach().clone() for parameter in params]
    optimizer.step()
    for parameter, old in zip(params, before, strict=True):
        state = optimizer.state[parameter]
        assert torch.equal(parameter, old)
        assert torch.equal(state["exp_avg"], torch.zeros_like(parameter))
        assert torch.equal(state[optimizer.scale_name], torch.full_like(parameter, least))
        assert state[scalar].item() == pytest.approx(value, rel=0.01)


@every_engine
@every_rule
def test_empty_tensors_are_left_alone(rule, engine):
    empty, full = torch.empty(0, 3, requires_grad=True), torch.ones(4, requires_grad=True)
    optimizer = make(rule, [empty, full], **ENGINES[engine])
    for _ in range(3):
        empty.grad, full.grad = torch.empty(0, 3), torch.ones(4)
        optimizer.step()
    assert empty not in optimizer.statistics()
    assert optimizer.state[full]["step"] == 3


@pytest.mark.parametrize("engine", ["reference", "foreach"])
@every_rule
def test_a_complex_tensor_is_a_tensor_of_pairs(rule, engine):
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(3, 4, 2, dtype=torch.float64, generator=generator)
    pairs, whole = start.clone().requires_grad_(), torch.view_as_complex(start.clone()).requires_grad_()
    optimizers = [make(rule, [p], **ENGINES[engine]) for p in (pairs, whole)]
    for _ in range(20):
        pairs.grad = torch.randn(3, 4, 2, dtype=torch.float64, generator=generator)
        whole.grad = torch.view_as_complex(pairs.grad.clone())
        for optimizer in optimizers:
            optimizer.step()
    assert torch.equal(torch.view_as_real(whole), pairs)
    assert optimizers[1].state[whole]["exp_avg"].is_complex()


@pytest.mark.parametrize("engine", ENGINES)
def test_the_first_gradient_can_set_the_scale(engine):
    params = parameters()
    optimizer = adaterm.AdaTerm(params, lr=0.0, init_scale="gradient", beta=0.9, min_dof=inf, **ENGINES[engine])
    give_gradients(params, 0)
    params[1].grad = torch.full_like(params[1], nan)
    params[2].grad = torch.zeros_like(params[2])
    optimizer.step()
    power = params[0].grad.square().mean()
    wanted = 0.9 * power + 0.1 * (params[0].grad.square() + 1e-10)
    assert_close(optimizer.state[params[0]]["exp_scale"], wanted, 1e-6)
    for parameter in params[1:3]:
        assert_close(optimizer.state[parameter]["exp_scale"], torch.full_like(parameter, 1e-10), 1e-6)


def test_an_uncentered_step_stays_below_the_learning_rate():
    """Whatever the gradients: nearly equal ones, which take AdaTerm itself far beyond it, and wild ones."""
    draws = torch.Generator().manual_seed(0)
    wild = torch.randn(200, 50, generator=draws, dtype=torch.float64) / torch.rand(200, 1, generator=draws)
    equal = 1.0 + 1e-3 * torch.randn(200, 50, generator=draws, dtype=torch.float64)
    for gradients, bounded in ((wild, True), (equal, True), (equal, False)):
        parameter = torch.zeros(50, dtype=torch.float64, requires_grad=True)
        optimizer, largest = adaterm.AdaTerm([parameter], lr=0.1, init_dof=100.0, uncentered=bounded), 0.0
        for gradient in gradients:
            before, parameter.grad = parameter.detach().clone(), gradient
            optimizer.step()
            largest = max(largest, (parameter.detach() - before).abs().max().item())
        assert (largest < 0.1) == bounded, largest
