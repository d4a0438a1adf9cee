"""Checkpoints: what was saved comes back, exactly, whatever trains on with it."""

import copy
import io
from itertools import permutations
from math import inf

import pytest
import torch
import torch.distributed.checkpoint as dcp
from catalogue import ENGINES, MAIN, RULES, give_gradients, make, parameters, train
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import adaterm

SWITCHES = [
    ("AdaTerm", {"min_dof": inf}, {"min_dof": 1.0}),
    ("AdaTerm", {"init_scale": "gradient"}, {"adaptive_bias_correction": True}),
    ("RobustAdamW", {"dof": inf}, {"dof": 3.0}),
    ("RobustAdamW", {}, {"max_norm": "auto"}),
    ("RobustAdamW", {"window": 12}, {"window": 30}),
    ("RobustAdamW", {"window": 30}, {"window": 12}),
]
either = pytest.mark.parametrize("name", MAIN)
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
@pytest.mark.parametrize("rule", ["AdaTerm", "RobustAdamW, usual norm"])
def test_engines_read_each_other(rule, first, second, capturable):
    params = parameters(dtype=torch.float64)
    optimizer = make(rule, params, **ENGINES[first])
    train(optimizer, params, 10)
    twins = copies(params)
    state_dict = saved_and_loaded(optimizer.state_dict())
    state_dict["param_groups"][0] |= {"foreach": None, "fused": None, "capturable": capturable, **ENGINES[second]}
    other = make(rule, twins)
    other.load_state_dict(state_dict)
    for tested, tensors in ((optimizer, params), (other, twins)):
        train(tested, tensors, 6, start=10)
    for a, b in zip(params, twins, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9)


@either
def test_a_float32_state_loads_into_a_float64_model(name):
    params = parameters()
    optimizer = getattr(adaterm, name)(params)
    train(optimizer, params, 3)
    doubled = [p.detach().double().requires_grad_() for p in params]
    loaded = getattr(adaterm, name)(doubled)
    loaded.load_state_dict(optimizer.state_dict())
    train(loaded, doubled, 1)
    assert {value.dtype for key, value in loaded.state[doubled[0]].items() if key != "step"} == {torch.float64}


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


def test_a_state_dict_from_before_an_option_of_the_judgement_existed():
    params = parameters()
    optimizer = adaterm.RobustAdamW(params, lr=0.5, dof=5.0)
    train(optimizer, params, 2)
    old = copy.deepcopy(optimizer.state_dict())
    for option in ("minority", "max_norm", "stochastic_rounding", "decoupled_weight_decay", "fused", "foreach"):
        del old["param_groups"][0][option]
    loaded = adaterm.RobustAdamW(copies(params))
    loaded.load_state_dict(old)
    assert loaded.param_groups[0]["dof"] == 5.0
    assert loaded.param_groups[0]["minority"] == 0.25
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


@either
def test_complex_state_survives(name):
    parameter = torch.randn(4, dtype=torch.complex64, requires_grad=True)
    optimizer = getattr(adaterm, name)([parameter])
    parameter.grad = torch.randn(4, dtype=torch.complex64)
    optimizer.step()
    loaded = getattr(adaterm, name)([parameter])
    loaded.load_state_dict(saved_and_loaded(optimizer.state_dict()))
    found = {key: value.dtype for key, value in loaded.state[parameter].items()}
    averages = ("exp_avg", optimizer.scale_name)
    assert found == {key: torch.complex64 if key in averages else torch.float32 for key in found}
    assert found.keys() == optimizer.state[parameter].keys()
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


unknown = pytest.mark.xfail(strict=True, reason="its groups have no option by which they are known")


@pytest.mark.parametrize(
    ("other", "steps"),
    [
        *((other, steps) for other in ("AdaTerm", "TAdam", "AtAdam", "SGD") for steps in (0, 1)),
        pytest.param("AdaBelief", 0, marks=unknown),
        ("AdaBelief", 1),
    ],
)
def test_what_is_not_adams_is_refused_by_robust_adamw(other, steps):
    """Which takes AdamW's state; also without any state, by which the others would be known."""
    params = parameters()
    foreign = (getattr(adaterm, other, None) or getattr(torch.optim, other))(params, lr=0.5)
    train(foreign, params, steps)
    optimizer = adaterm.RobustAdamW(params)
    with pytest.raises(ValueError, match="not of RobustAdamW"):
        optimizer.load_state_dict(foreign.state_dict())
    assert optimizer.param_groups[0]["lr"] == 1e-3
    assert not optimizer.state


@pytest.mark.parametrize("name", ["AdaTerm", "TAdam", "AdaBelief"])
def test_robust_adamws_state_is_refused_by_others(name):
    params = parameters()
    foreign = adaterm.RobustAdamW(params)
    train(foreign, params, 1)
    with pytest.raises(ValueError, match=f"not of {name}"):
        getattr(adaterm, name)(params).load_state_dict(foreign.state_dict())


@either
def test_a_users_own_entries_are_kept(name):
    params = parameters(dtype=torch.bfloat16)
    optimizer = getattr(adaterm, name)(params)
    train(optimizer, params, 2)
    optimizer.state[params[0]] |= {"ema": params[0].detach().float(), "count": torch.tensor(3)}
    loaded = getattr(adaterm, name)(copies(params))
    loaded.load_state_dict(saved_and_loaded(optimizer.state_dict()))
    entry = loaded.state[loaded.param_groups[0]["params"][0]]
    assert torch.equal(entry["ema"], params[0].detach().float())
    assert entry["count"].dtype == torch.int64
    train(loaded, loaded.param_groups[0]["params"], 1)


@either
def test_what_is_missing_is_named_in_a_stable_order(name):
    params = parameters()
    optimizer = getattr(adaterm, name)(params)
    train(optimizer, params, 1)
    broken = optimizer.state_dict()
    broken["state"] = {key: {"step": entry["step"]} for key, entry in broken["state"].items()}
    with pytest.raises(ValueError, match=f"holds step, and exp_avg, {optimizer.scale_name} is missing"):
        optimizer.load_state_dict(broken)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("name", "before", "after"), SWITCHES)
def test_an_option_that_needs_more_state_can_be_switched_on(name, before, after, engine):
    params = parameters()
    optimizer = getattr(adaterm, name)(params, **before, **ENGINES[engine])
    train(optimizer, params, 20)
    old = [parameter.detach().clone() for parameter in params]
    optimizer.param_groups[0] |= after
    train(optimizer, params, 1, start=20)
    for parameter, earlier in zip(params, old, strict=True):
        assert 0 < (parameter - earlier).abs().max() < 5e-3


@pytest.mark.filterwarnings("ignore")  # there is no process group
@either
def test_a_distributed_checkpoint_of_what_was_thawed_later(name, tmp_path):
    """Whichever parameter had the first gradient: torch's checkpoints begin with a state that has all of them."""

    def begin():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
        return model, getattr(adaterm, name)(model.parameters(), lr=0.1)

    def go_on(model, optimizer, steps):
        for step in steps:
            optimizer.zero_grad()
            model[0].weight.requires_grad_(step > 0)
            model(torch.randn(5, 3, generator=torch.Generator().manual_seed(step))).square().mean().backward()
            optimizer.step()

    model, optimizer = begin()
    go_on(model, optimizer, range(4))
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=tmp_path)
    other, loaded = begin()
    weights, state = get_state_dict(other, loaded)
    dcp.load({"model": weights, "optimizer": state}, checkpoint_id=tmp_path)
    set_state_dict(other, loaded, model_state_dict=weights, optim_state_dict=state)
    for tested, optimizer_of_it in ((model, optimizer), (other, loaded)):
        go_on(tested, optimizer_of_it, range(4, 16))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


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


@either
def test_a_step_works_on_gradients_that_were_swapped_for_others(name):
    """Frameworks replace gradients, and parameters' data, between steps: nothing about them is remembered."""
    params = parameters()
    optimizer = getattr(adaterm, name)(params, foreach=True, lr=0.1)
    train(optimizer, params, 2)
    with torch.no_grad():
        params[0].data = params[0].data.clone()
    give_gradients(params, 5)
    before = params[0].detach().clone()
    optimizer.step()
    assert not torch.equal(before, params[0])


@pytest.mark.parametrize("engine", ENGINES)
def test_what_an_older_version_noted_of_batches_goes_on(engine):
    """It had two rows, levels and norms, which go on; what it did not note begins empty."""
    params = parameters()
    optimizer = adaterm.RobustAdamW(params, window=15, **ENGINES[engine])
    for step in range(20):
        give_gradients(params, step)
        optimizer.step()
    saved = optimizer.state_dict()
    (holder,) = (entry for entry in saved["state"].values() if "batches" in entry)
    holder["batches"] = holder["batches"][:2]
    holder["batches"][1] = inf  # norms were noted for `max_norm` only
    loaded = adaterm.RobustAdamW(params, **ENGINES[engine])
    loaded.load_state_dict(saved)
    give_gradients(params, 20)
    loaded.step()
    (batches,) = (entry["batches"] for entry in loaded.state.values() if "batches" in entry)
    assert (batches < inf).sum(1).tolist() == [15, 1, 1, 1]
    assert batches[3, 0] == 1.0
