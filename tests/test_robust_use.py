"""What users do around a step: the default engine must bear it as torch's default Adam does."""

import gc
import weakref

import pytest
import torch
from catalogue import ENGINES, MAIN, assert_close, give_gradients, parameters, train
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

import adaterm

either = pytest.mark.parametrize("name", MAIN)
QUICK = {"AdaTerm": {"init_scale": "gradient"}, "RobustAdamW": {}}
"""Options with which the first step is as good as any."""


def build(name, params, **options):
    return getattr(adaterm, name)(params, **options)


@either
def test_a_model_may_change_its_memory_format(name):
    ends = []
    for flags in ({}, {"foreach": False}):
        torch.manual_seed(0)
        model = nn.Conv2d(3, 8, 3)
        optimizer = build(name, model.parameters(), lr=0.1, **flags)
        for step in range(6):
            if step == 3:
                model.to(memory_format=torch.channels_last)
            give_gradients(list(model.parameters()), step)
            optimizer.step()
        ends.append((model, optimizer))
    assert_close(ends[0][0].weight, ends[1][0].weight, 1e-5)


@either
def test_a_checkpoint_may_have_another_memory_format(name):
    ends = []
    for flags in ({}, {"foreach": False}):
        torch.manual_seed(0)
        first, second = nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last), nn.Conv2d(3, 8, 3)
        second.load_state_dict(first.state_dict())
        optimizer = build(name, first.parameters(), lr=0.1, **flags)
        give_gradients(list(first.parameters()), 0)
        optimizer.step()
        second.load_state_dict(first.state_dict())
        other = build(name, second.parameters(), lr=0.1, **flags)
        other.load_state_dict(optimizer.state_dict())
        give_gradients(list(second.parameters()), 1)
        other.step()
        ends.append(second)
    assert_close(ends[0].weight, ends[1].weight, 1e-5)


@either
def test_the_state_of_another_model_is_refused(name):
    small, large = [torch.zeros(10, requires_grad=True)], [torch.zeros(20_000, requires_grad=True)]
    optimizer = build(name, small)
    give_gradients(small, 0)
    optimizer.step()
    other = build(name, large)
    other.load_state_dict(optimizer.state_dict())
    give_gradients(large, 0)
    with pytest.raises(RuntimeError, match=r"shape \(20000,\) has state of shape \(10,\)"):
        other.step()


@either
def test_a_parameter_may_shrink_in_place(name):
    parameter = torch.ones(16, requires_grad=True)
    optimizer = build(name, [parameter])
    give_gradients([parameter], 0)
    optimizer.step()
    whole = parameter.data
    parameter.data = whole[:4]
    parameter.grad = torch.ones(4)
    with pytest.raises(RuntimeError, match="shape"):
        optimizer.step()


@either
def test_tensor_subclasses_take_the_plain_way(name):
    parameter = TwoTensor(torch.ones(3), torch.ones(3)).requires_grad_()
    optimizer = build(name, [parameter], lr=0.1, **QUICK[name])
    parameter.grad = TwoTensor(torch.ones(3), torch.ones(3))
    for _ in range(3):
        optimizer.step()
    assert (parameter.a < 1.0).all()


@either
def test_the_default_device_does_not_matter(name):
    params = parameters()
    optimizer = build(name, params)
    give_gradients(params, 0)
    torch.set_default_device("meta")
    try:
        optimizer.step()
    finally:
        torch.set_default_device(None)
    assert all(p.isfinite().all() for p in params)


@pytest.mark.parametrize("engine", ENGINES)
@either
def test_autograd_notices_that_parameters_changed(name, engine):
    parameter = torch.ones(3, requires_grad=True)
    optimizer = build(name, [parameter], **ENGINES[engine])
    loss = parameter.square().sum()
    parameter.grad = torch.ones(3)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("fused", [None, True, False])
@either
def test_gradscaler_and_a_scale_from_the_first_gradient(name, fused):
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = build(name, model.parameters(), **QUICK[name], fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    for poison in (float("inf"), 1.0, 1.0):
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(2, 4)).square().mean() * poison).backward()
        scaler.step(optimizer)
        scaler.update()
        assert poison == 1.0 or not optimizer.state
    state = optimizer.state[model.weight]
    assert state["step"] == 2
    assert 1e-6 < state[optimizer.scale_name].mean() < 10.0


@either
def test_gradscaler_and_a_group_that_is_not_fused(name):
    model = nn.Linear(4, 4)
    groups = [{"params": [model.weight]}, {"params": [model.bias], "fused": False}]
    optimizer = build(name, groups, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    for poison in (1.0, float("inf"), 1.0):
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(2, 4)).square().mean() * poison).backward()
        scaler.step(optimizer)
        scaler.update()
    assert [float(optimizer.state[p]["step"]) for p in model.parameters()] == [2.0, 2.0]
    assert optimizer.state[model.bias]["exp_avg"].abs().max() < 10.0


@either
def test_a_skipped_step_is_none_for_the_monitor(name):
    params = parameters()
    optimizer = build(name, params, fused=True)
    monitor = adaterm.Monitor(optimizer)
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(1.0), torch.tensor(0.0)
    for step in range(4):
        optimizer.found_inf.fill_(float(step == 2))
        give_gradients(params, step)
        optimizer.step()
    for layer in monitor.layers().values():
        assert (layer.steps, layer.nonfinite) == (3, 0)
        assert layer.mean_trust == layer.mean_trust
        assert layer.dof == layer.dof


@either
def test_a_step_may_begin_in_inference_mode(name):
    params = parameters()
    optimizer = build(name, params)
    for step in range(4):
        give_gradients(params, step)
        with torch.inference_mode(step == 1):
            optimizer.step()
    assert optimizer.state[params[0]]["step"] == 4


@either
def test_a_negative_view_is_a_negative_gradient(name):
    ends = []
    for negative in (False, True):
        params = parameters()
        optimizer = build(name, params)
        for p in params:
            p.grad = torch._neg_view(torch.ones_like(p)) if negative else -torch.ones_like(p)
        optimizer.step()
        ends.append(params)
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("AdaTerm", {}),
        ("AdaTerm", {"adaptive_bias_correction": True}),
        ("RobustAdamW", {}),
        ("RobustAdamW", {"max_norm": "auto"}),
    ],
)
def test_a_model_in_another_precision_takes_its_state_along(engine, name, more):
    ends = []
    for flags in (ENGINES[engine], {"foreach": False}):
        model = nn.Linear(4, 3)
        nn.init.constant_(model.weight, 1 / 3)
        optimizer = build(name, model.parameters(), **flags)
        for step in range(14):
            if step == 3:
                model.double()
                optimizer.param_groups[0] |= {"lr": 0.0, **more}
            give_gradients(list(model.parameters()), step)
            before = model.weight.detach().clone()
            optimizer.step()
        assert torch.equal(model.weight, before)  # in full precision, though the state began in less
        ends.append([value for key, value in optimizer.state[model.weight].items() if key != "step"])
        assert {value.dtype for value in ends[-1]} == {torch.float64}
    for ours, wanted in zip(*ends, strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-5, atol=0.0)


@either
def test_a_scale_in_another_precision(name):
    params = parameters()
    optimizer = build(name, params, fused=True)
    train(optimizer, params, 2)
    optimizer.state[params[0]][optimizer.scale_name] = optimizer.state[params[0]][optimizer.scale_name].double()
    train(optimizer, params, 2, start=2)
    assert all(parameter.isfinite().all() for parameter in params)


@either
def test_differentiable_may_be_switched_on(name):
    params = parameters()
    optimizer = build(name, params, foreach=False)
    train(optimizer, params, 2)
    others = [parameter.detach().clone().requires_grad_() for parameter in params]
    plain = build(name, others, foreach=False)
    plain.load_state_dict(optimizer.state_dict())
    optimizer.param_groups[0]["differentiable"] = True
    optimizer.param_groups[0]["params"] = leaves = [parameter.detach().clone() for parameter in params]
    for parameter, leaf in zip(params, leaves, strict=True):
        optimizer.state[leaf] = optimizer.state.pop(parameter)
    train(optimizer, leaves, 3, start=2)
    train(plain, others, 3, start=2)
    for leaf, other in zip(leaves, others, strict=True):
        torch.testing.assert_close(optimizer.state[leaf]["exp_avg"], plain.state[other]["exp_avg"])


class Wrapped(adaterm.AdaTerm):
    step = torch.no_grad()(adaterm.AdaTerm.step)


class Overridden(adaterm.AdaTerm):
    def step(self, closure=None):
        return super().step(closure)


@pytest.mark.parametrize("kind", [adaterm.AdaTerm, Wrapped, Overridden])
def test_hooks_run_once(kind):
    params, calls = parameters(), []
    optimizer = kind(params)
    optimizer.register_step_pre_hook(lambda *args: calls.append("pre"))
    optimizer.register_step_post_hook(lambda *args: calls.append("post"))
    train(optimizer, params, 2)
    assert calls == ["pre", "post"] * 2


@either
def test_a_hook_may_bring_a_closure(name):
    params = parameters()
    optimizer = build(name, params)
    optimizer.register_step_pre_hook(lambda _, args, kwargs: (args, {"closure": lambda: 7.0}))
    give_gradients(params, 0)
    assert optimizer.step() == 7.0


@either
def test_what_was_skipped_is_not_counted_and_keeps_nothing(name):
    params = parameters()
    optimizer = build(name, params[:1], fused=True)
    monitor = adaterm.Monitor(optimizer)
    train(optimizer, params[:1], 1)
    optimizer.add_param_group({"params": params[1:]})
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(1.0), torch.tensor(1.0)
    train(optimizer, params, 3, start=1)  # the first gradients of some are not finite
    assert {layer.steps for layer in monitor.layers().values()} == {1}
    optimizer.found_inf.fill_(0.0)
    train(optimizer, params, 1, start=4)
    optimizer.found_inf.fill_(1.0)
    give_gradients(params, 5)
    grads = [weakref.ref(parameter.grad) for parameter in params]
    optimizer.step()
    optimizer.zero_grad()
    gc.collect()
    assert all(gradient() is None for gradient in grads)


def test_a_skipped_step_has_no_verdict():
    """Also where the step ends before it began, as the gradients of a new group are not finite."""
    params = parameters()
    optimizer = adaterm.RobustAdamW(params[:1], fused=True)
    train(optimizer, params[:1], 20)
    assert not optimizer.batch_statistics().trust.isnan()
    optimizer.add_param_group({"params": params[1:]})
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(1.0), torch.tensor(1.0)
    train(optimizer, params, 1, start=20)
    assert optimizer.batch_statistics().trust.isnan()


def test_a_refused_checkpoint_changes_nothing():
    """It is found wrong while it is restored; training goes on as if nobody had asked."""
    params = parameters()
    optimizer = adaterm.RobustAdamW(params)
    train(optimizer, params, 3)
    wrong = optimizer.state_dict()
    wrong["state"][1]["exp_avg"] = wrong["state"][1]["exp_avg"].to(torch.float8_e4m3fn)
    kept, groups = dict(optimizer.state), optimizer.param_groups
    with pytest.raises(RuntimeError, match="Float8"):
        optimizer.load_state_dict(wrong)
    assert all(optimizer.state[parameter] is entry for parameter, entry in kept.items())
    assert optimizer.param_groups is groups
    train(optimizer, params, 1, start=3)
    assert optimizer.state[params[0]]["step"] == 4


def test_a_new_group_takes_the_window_of_the_others():
    """Of a checkpoint, too, whose window is not the constructor's."""
    params = parameters()
    first = adaterm.RobustAdamW(params[:1], window=50)
    train(first, params[:1], 3)
    second = adaterm.RobustAdamW(params[:1])
    second.load_state_dict(first.state_dict())
    second.add_param_group({"params": params[1:]})
    assert [group["window"] for group in second.param_groups] == [50, 50]
    train(second, params, 2, start=3)
    groups = [{"params": params[:1], "window": 20}, {"params": params[1:]}]
    assert adaterm.RobustAdamW(groups).param_groups[1]["window"] == 20


@pytest.mark.parametrize("flags", [{"fused": True}, {"foreach": False}], ids=str)
def test_groups_with_the_same_options_share_a_verdict(flags, monkeypatch):
    """As judging each alone would give; the verdict has the precision of the state, with every engine."""
    params = parameters()
    groups = [{"params": [parameter], "threshold": 2.0 + place % 2} for place, parameter in enumerate(params)]
    optimizer = adaterm.RobustAdamW(groups, **flags)
    train(optimizer, params, 1)
    (engine, *_), verdicts = optimizer._memory.list_engines(), []
    judge = type(engine).judge
    monkeypatch.setattr(type(engine), "judge", lambda *args: verdicts.append(judge(*args)) or verdicts[-1])
    train(optimizer, params, 1, start=1)
    assert len(verdicts) == 2 < len(groups)
    assert {verdict.dtype for verdict in verdicts} == {torch.float32}


@pytest.mark.parametrize("conjugated", ["gradient", "parameter"])
@either
def test_lazy_conjugates(name, conjugated):
    value = torch.randn(4, dtype=torch.complex64)
    parameter = (value.conj() if conjugated == "parameter" else value.clone()).requires_grad_()
    optimizer = build(name, [parameter], lr=0.1, **QUICK[name])
    parameter.grad = torch.ones(4, dtype=torch.complex64)
    parameter.grad = parameter.grad.conj() if conjugated == "gradient" else parameter.grad
    before = parameter.detach().clone()
    if conjugated == "parameter":
        with pytest.raises(RuntimeError, match="conj"):
            optimizer.step()
    else:
        optimizer.step()
        assert not torch.equal(parameter, before)
