"""Checkpoints: what was saved comes back, exactly, whatever trains on with it."""

import copy
import io
from itertools import permutations
from math import inf

import pytest
import torch
from catalogue import ENGINES, RULES, give_gradients, make, parameters, train

import adaterm

SWITCHES = [
    ({"min_dof": inf}, {"min_dof": 1.0}),
    ({"init_scale": "gradient"}, {"adaptive_bias_correction": True}),
]
HALF_AND_FULL = [torch.bfloat16, torch.float16, torch.float32, torch.float64]


def saved_and_loaded(state_dict):
    file = io.BytesIO()
    torch.save(state_dict, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def copies(params):
    return [parameter.detach().clone().requires_grad_() for parameter in params]


@pytest.mark.parametrize("dtype", HALF_AND_FULL, ids=str)
@pytest.mark.parametrize("rule", RULES)
def test_training_goes_on_after_a_round_trip(rule, dtype):
    """Also from one engine to the other's checkpoint; values and precisions of the state survive to the bit."""
    params = parameters(dtype=dtype)
    optimizer = make(rule, params, foreach=False)
    train(optimizer, params, 7)
    twins = copies(params)
    loaded = make(rule, twins, foreach=False)
    loaded.load_state_dict(saved_and_loaded(optimizer.state_dict()))
    for parameter, twin in zip(params, twins, strict=True):
        for key, value in optimizer.state[parameter].items():
            assert loaded.state[twin][key].dtype == value.dtype, key
            assert torch.equal(loaded.state[twin][key], value), key
    train(optimizer, params, 5, start=7)
    train(loaded, twins, 5, start=7)
    assert all(torch.equal(a, b) for a, b in zip(params, twins, strict=True))


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize(("first", "second"), list(permutations(ENGINES, 2)))
def test_engines_read_each_other(first, second, capturable):
    params = parameters(dtype=torch.float64)
    optimizer = adaterm.AdaTerm(params, **ENGINES[first])
    train(optimizer, params, 6)
    twins = copies(params)
    state_dict = saved_and_loaded(optimizer.state_dict())
    state_dict["param_groups"][0] |= {"foreach": None, "fused": None, "capturable": capturable, **ENGINES[second]}
    other = adaterm.AdaTerm(twins)
    other.load_state_dict(state_dict)
    for tested, tensors in ((optimizer, params), (other, twins)):
        train(tested, tensors, 6, start=6)
    for a, b in zip(params, twins, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9)


def test_a_float32_state_loads_into_a_float64_model():
    params = parameters()
    optimizer = adaterm.AdaTerm(params)
    train(optimizer, params, 3)
    doubled = [p.detach().double().requires_grad_() for p in params]
    loaded = adaterm.AdaTerm(doubled)
    loaded.load_state_dict(optimizer.state_dict())
    train(loaded, doubled, 1)
    assert loaded.state[doubled[0]]["exp_avg"].dtype == torch.float64


def test_a_state_dict_from_before_an_option_existed():
    params = parameters()
    optimizer = adaterm.AdaTerm(params, lr=0.5, init_dof=3.0)
    train(optimizer, params, 2)
    old = copy.deepcopy(optimizer.state_dict())
    for option in ("init_scale", "adaptive_bias_correction", "capturable", "fused", "foreach", "differentiable"):
        del old["param_groups"][0][option]
    for entry in old["state"].values():
        entry["step"] = entry["step"].item()
    loaded = adaterm.AdaTerm(copies(params))
    loaded.load_state_dict(old)
    assert loaded.param_groups[0]["init_dof"] == 3.0
    assert loaded.param_groups[0]["init_scale"] == "eps"
    twins = loaded.param_groups[0]["params"]
    for tested, tensors in ((optimizer, params), (loaded, twins)):
        train(tested, tensors, 3, start=2)
    assert all(torch.equal(a, b) for a, b in zip(params, twins, strict=True))


def test_loading_leaves_the_given_dict_alone_and_runs_the_hooks():
    params = parameters(dtype=torch.bfloat16)
    optimizer = adaterm.AdaTerm(params)
    train(optimizer, params, 2)
    given = optimizer.state_dict()
    before = copy.deepcopy(given)
    loaded, seen = adaterm.AdaTerm(copies(params)), []

    def halve(_, state_dict):
        changed = copy.deepcopy(state_dict)
        for entry in changed["state"].values():
            entry["exp_avg"] = entry["exp_avg"] / 2
        return changed

    loaded.register_load_state_dict_pre_hook(halve)
    loaded.register_load_state_dict_post_hook(
        lambda it: seen.append(it.state[it.param_groups[0]["params"][0]]["exp_avg"])
    )
    loaded.load_state_dict(state_dict=given)
    assert seen[0].dtype == torch.float32
    assert torch.equal(seen[0], optimizer.state[params[0]]["exp_avg"] / 2)
    for key, entry in before["state"].items():
        assert all(torch.equal(given["state"][key][name], value) for name, value in entry.items())


def test_complex_state_survives():
    parameter = torch.randn(4, dtype=torch.complex64, requires_grad=True)
    optimizer = adaterm.AdaTerm([parameter])
    parameter.grad = torch.randn(4, dtype=torch.complex64)
    optimizer.step()
    loaded = adaterm.AdaTerm([parameter])
    loaded.load_state_dict(saved_and_loaded(optimizer.state_dict()))
    assert {key: value.dtype for key, value in loaded.state[parameter].items()} == {
        "step": torch.float32,
        "exp_avg": torch.complex64,
        "exp_scale": torch.complex64,
        "excess_dof": torch.float32,
    }
    loaded.step()


@pytest.mark.parametrize("other", ["Adam", "TAdam"])
def test_another_optimizers_state_is_refused_before_anything_changes(other):
    params = parameters()
    foreign = (getattr(adaterm, other, None) or getattr(torch.optim, other))(params, lr=0.5)
    train(foreign, params, 1)
    optimizer = adaterm.AdaTerm(params)
    with pytest.raises(ValueError, match="not of AdaTerm"):
        optimizer.load_state_dict(foreign.state_dict())
    assert optimizer.param_groups[0]["lr"] == 1e-3
    assert not optimizer.state


@pytest.mark.parametrize("other", ["Adam", "AdamW", "SGD", "TAdam"])
def test_another_optimizers_options_are_refused_too(other):
    """A checkpoint of an untrained Adam has no state by which it is known, but its eps would slow AdaTerm down."""
    foreign = (getattr(adaterm, other, None) or getattr(torch.optim, other))(parameters())
    optimizer = adaterm.AdaTerm(parameters())
    with pytest.raises(ValueError, match=r"not of AdaTerm.*begin with a new AdaTerm"):
        optimizer.load_state_dict(foreign.state_dict())
    assert optimizer.param_groups[0]["eps"] == 1e-5


def test_a_users_own_entries_are_kept():
    params = parameters(dtype=torch.bfloat16)
    optimizer = adaterm.AdaTerm(params)
    train(optimizer, params, 2)
    optimizer.state[params[0]] |= {"ema": params[0].detach().float(), "count": torch.tensor(3)}
    loaded = adaterm.AdaTerm(copies(params))
    loaded.load_state_dict(saved_and_loaded(optimizer.state_dict()))
    entry = loaded.state[loaded.param_groups[0]["params"][0]]
    assert torch.equal(entry["ema"], params[0].detach().float())
    assert entry["count"].dtype == torch.int64
    train(loaded, loaded.param_groups[0]["params"], 1)


def test_what_is_missing_is_named_in_a_stable_order():
    params = parameters()
    optimizer = adaterm.AdaTerm(params)
    train(optimizer, params, 1)
    broken = optimizer.state_dict()
    broken["state"] = {key: {"step": entry["step"]} for key, entry in broken["state"].items()}
    with pytest.raises(ValueError, match="holds step, and exp_avg, exp_scale is missing"):
        optimizer.load_state_dict(broken)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("before", "after"), SWITCHES)
def test_an_option_that_needs_more_state_can_be_switched_on(before, after, engine):
    params = parameters()
    optimizer = adaterm.AdaTerm(params, **before, **ENGINES[engine])
    train(optimizer, params, 20)
    old = [parameter.detach().clone() for parameter in params]
    optimizer.param_groups[0] |= after
    train(optimizer, params, 1, start=20)
    for parameter, earlier in zip(params, old, strict=True):
        assert 0 < (parameter - earlier).abs().max() < 5e-3


def test_state_dict_hooks_run():
    params = parameters()
    optimizer = adaterm.AdaTerm(params)
    train(optimizer, params, 1)
    optimizer.register_state_dict_post_hook(lambda _, state_dict: state_dict | {"note": "kept"})
    assert optimizer.state_dict()["note"] == "kept"


def test_an_old_checkpoint_has_the_old_defaults():
    """What it does not say was not there yet: it does not become what this optimizer was given."""
    params = parameters()
    optimizer = adaterm.AdaTerm(params)
    train(optimizer, params, 2)
    old = saved_and_loaded(optimizer.state_dict())
    del old["param_groups"][0]["adaptive_bias_correction"]
    loaded = adaterm.AdaTerm(copies(params), adaptive_bias_correction=True)
    loaded.load_state_dict(old)
    assert loaded.param_groups[0]["adaptive_bias_correction"] is False


def test_an_empty_parameter_has_state_for_those_who_look_for_it():
    empty = torch.empty(0, requires_grad=True)
    optimizer = adaterm.AtAdam([empty])
    empty.grad = torch.empty(0)
    optimizer.step()
    assert optimizer.state[empty]["exp_avg"].shape == (0,)


def test_another_models_state_is_refused():
    optimizer, other = adaterm.AdaTerm(parameters()), adaterm.AdaTerm(parameters([(2,)]))
    with pytest.raises(ValueError, match="doesn't match the size"):
        other.load_state_dict(optimizer.state_dict())


def test_a_step_works_on_gradients_that_were_swapped_for_others():
    """Frameworks replace gradients, and parameters' data, between steps: nothing about them is remembered."""
    params = parameters()
    optimizer = adaterm.AdaTerm(params, foreach=True, lr=0.1)
    train(optimizer, params, 2)
    with torch.no_grad():
        params[0].data = params[0].data.clone()
    give_gradients(params, 5)
    before = params[0].detach().clone()
    optimizer.step()
    assert not torch.equal(before, params[0])
