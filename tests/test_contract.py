"""Each optimizer is a torch optimizer: one battery for all of them."""

import copy
import inspect
import pickle
import sys
from types import SimpleNamespace

import pytest
import torch
from catalogue import ENGINES, JUDGING, MAIN, OPTIMIZERS, RULES, assert_close, give_gradients, make, parameters, train
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import adaterm
from adaterm.engines.choice import choose_engine
from adaterm.engines.cpu import engine as cpu
from adaterm.engines.gpu import engine as gpu
from adaterm.options import Common

every_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)
either = pytest.mark.parametrize("name", MAIN)
every_engine = pytest.mark.parametrize("engine", ENGINES)

SCHEDULERS = {
    "StepLR": {"step_size": 2},
    "MultiStepLR": {"milestones": [2]},
    "ConstantLR": {},
    "LinearLR": {},
    "ExponentialLR": {"gamma": 0.9},
    "PolynomialLR": {},
    "CosineAnnealingLR": {"T_max": 5},
    "CosineAnnealingWarmRestarts": {"T_0": 2},
    "CyclicLR": {"base_lr": 1e-3, "max_lr": 1e-2, "cycle_momentum": False},
    "OneCycleLR": {"max_lr": 1e-2, "total_steps": 10, "cycle_momentum": False},
    "LambdaLR": {"lr_lambda": lambda epoch: 0.9**epoch},
    "MultiplicativeLR": {"lr_lambda": lambda epoch: 0.9},
    "ReduceLROnPlateau": {"patience": 0},
}


def build(name, params, **options):
    return getattr(adaterm, name)(params, **options)


def loss_of(model):
    return model(torch.linspace(-1, 1, 12).view(4, 3)).square().mean()


@every_optimizer
def test_the_signature_begins_as_adam_does(name):
    ours, adam = (list(inspect.signature(cls).parameters) for cls in (getattr(adaterm, name), torch.optim.Adam))
    wanted = [option.replace("betas", "beta") if name == "AdaTerm" else option for option in adam[:5]]
    assert ours[:5] == wanted
    options = {"maximize": True, "foreach": False, "fused": False, "capturable": True, "differentiable": False}
    options |= {"stochastic_rounding": True}
    options |= {} if name == "RobustAdamW" else {"decoupled_weight_decay": True}  # whose decay always is
    optimizer = build(name, parameters(), **options)
    assert {option: optimizer.param_groups[0][option] for option in options} == options


@every_optimizer
def test_the_state_has_the_documented_names(name):
    params = parameters()
    optimizer = build(name, params)
    train(optimizer, params, 1)
    own = {
        "AdaTerm": {"exp_scale", "excess_dof"},
        "AdaBelief": {"exp_scale"},
        "TAdam": {"exp_scale", "weight_sum"},
        "TAdaBelief": {"exp_scale", "weight_sum"},
        "RobustAdamW": {"exp_avg_sq", "mean_correction", "scale_correction", "log_distances"},
    }.get(name, {"exp_scale", "weight_sum", "log_distance_avg", "log_distance_var"})
    history = {"batches"} if name == "RobustAdamW" else set()  # one for all parameters
    assert set(optimizer.state[params[0]]) == {"step", "exp_avg"} | own | history
    assert all(set(optimizer.state[parameter]) == {"step", "exp_avg"} | own for parameter in params[1:])


@every_engine
@every_optimizer
def test_groups_have_their_own_options(name, engine):
    """Two groups with different options equal two optimizers, as long as no batch is judged."""
    together, apart = parameters(), parameters()
    second = {"lr": 0.1, "weight_decay": 0.2, "eps": 1e-4, "maximize": True}
    optimizer = build(name, together[:2], **ENGINES[engine])
    optimizer.add_param_group({"params": together[2:], **second})
    others = [build(name, apart[:2], **ENGINES[engine]), build(name, apart[2:], **second, **ENGINES[engine])]
    for step in range(8):
        give_gradients(together, step)
        give_gradients(apart, step)
        for tested in (optimizer, *others):
            tested.step()
    for a, b in zip(together, apart, strict=True):
        assert torch.equal(a, b)


@every_optimizer
def test_named_parameters(name):
    model = nn.Linear(3, 2)
    optimizer = build(name, model.named_parameters())
    loss_of(model).backward()
    optimizer.step()
    assert optimizer.state_dict()["param_groups"][0]["param_names"] == ["weight", "bias"]


@every_optimizer
def test_the_closure_runs_with_gradients_and_its_loss_comes_back(name):
    model = nn.Linear(3, 1)
    optimizer = build(name, model.parameters())

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    with torch.no_grad():
        loss = optimizer.step(closure)
    assert loss.requires_grad
    assert optimizer.step() is None


@every_optimizer
def test_hooks_run_in_order(name):
    params = parameters()
    optimizer = build(name, params)
    seen = []
    handles = [
        register_optimizer_step_pre_hook(lambda *_: seen.append("global before")),
        optimizer.register_step_pre_hook(lambda *_: seen.append("before")),
        optimizer.register_step_post_hook(lambda *_: seen.append("after")),
        register_optimizer_step_post_hook(lambda *_: seen.append("global after")),
    ]
    train(optimizer, params, 1)
    for handle in handles:
        handle.remove()
    train(optimizer, params, 1)
    assert seen == ["global before", "before", "after", "global after"]


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@every_optimizer
def test_schedulers(name, scheduler):
    params = parameters()
    optimizer = build(name, params, lr=0.05)
    schedule = getattr(lr_scheduler, scheduler)(optimizer, **SCHEDULERS[scheduler])
    rates = []
    for step in range(8):
        train(optimizer, params, 1, start=step)
        schedule.step(*([1.0] if scheduler == "ReduceLROnPlateau" else []))
        rates.append(optimizer.param_groups[0]["lr"])
    assert len(set(rates)) > 1


@every_optimizer
def test_schedulers_of_schedulers(name):
    params = parameters()
    optimizer = build(name, params, lr=0.05)
    parts = [lr_scheduler.ConstantLR(optimizer, total_iters=2), lr_scheduler.ExponentialLR(optimizer, 0.5)]
    sequence = lr_scheduler.SequentialLR(optimizer, parts, milestones=[2])
    for step in range(4):
        train(optimizer, params, 1, start=step)
        sequence.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05 * 0.5**2)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)], ids=str)
@every_engine
@every_optimizer
def test_a_tensor_learning_rate_equals_a_number(name, engine, shape):
    numbers, tensors = parameters(dtype=torch.float64), parameters(dtype=torch.float64)
    lr = torch.full(shape, 0.5)
    flags = ENGINES[engine] | {"capturable": engine == "foreach"}
    optimizers = build(name, numbers, lr=0.5, **flags), build(name, tensors, lr=lr, **flags)
    for optimizer, params in zip(optimizers, (numbers, tensors), strict=True):
        train(optimizer, params, 5)
    lr.mul_(0.5)
    optimizers[0].param_groups[0]["lr"] = 0.25
    for optimizer, params in zip(optimizers, (numbers, tensors), strict=True):
        train(optimizer, params, 5, start=5)
    for a, b in zip(tensors, numbers, strict=True):
        assert_close(a, b, 1e-6)


@every_engine
@pytest.mark.parametrize("rule", RULES)
def test_gradients_are_never_written(rule, engine):
    params = parameters()
    optimizer = make(rule, params, **ENGINES[engine])
    give_gradients(params, 0)
    before = [(parameter.grad.clone(), parameter.grad._version) for parameter in params]
    optimizer.step()
    for parameter, (values, version) in zip(params, before, strict=True):
        assert torch.equal(parameter.grad, values)
        assert parameter.grad._version == version


@every_optimizer
def test_parameters_without_gradient_are_left_alone(name):
    params = parameters()
    optimizer = build(name, params)
    optimizer.step()
    give_gradients(params, 0)
    params[1].grad = None
    before = params[1].detach().clone()
    optimizer.step()
    assert torch.equal(params[1], before)
    assert params[1] not in optimizer.state
    optimizer.zero_grad()
    assert all(parameter.grad is None for parameter in params)


@every_optimizer
@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))], ids=["deepcopy", "pickle"]
)
def test_copies_go_on_as_the_original(name, copied):
    params = parameters()
    optimizer = build(name, params, lr=0.1)
    train(optimizer, params, 3)
    twin = copied(optimizer)
    twins = twin.param_groups[0]["params"]
    assert repr(twin) == repr(optimizer)
    assert twin.statistics() == {}
    train(optimizer, params, 3, start=3)
    train(twin, twins, 3, start=3)
    assert all(torch.equal(a, b) for a, b in zip(params, twins, strict=True))


@pytest.mark.parametrize("rule", [rule for rule in RULES if "gradient init" not in rule.lower()])
def test_autograd_goes_through_a_differentiable_step(rule):
    """The gradient of a step by its gradient, mean and scale is the numerical one."""
    generator = torch.Generator().manual_seed(0)
    values = torch.rand(3, 4, dtype=torch.float64, generator=generator) + 0.5
    leaves = [value.clone().requires_grad_() for value in values]

    def step(gradient, mean, scale):
        parameter = torch.linspace(0.0, 1.0, 4, dtype=torch.float64, requires_grad=True).clone()
        parameter.grad = gradient
        optimizer = make(rule, [parameter], lr=0.5, eps=1e-2, differentiable=True)
        optimizer.state[parameter].update(make_state(rule, mean.clone(), scale.clone()))
        optimizer.step()
        state = optimizer.state[parameter]
        return parameter, state["exp_avg"], state[optimizer.scale_name]

    def make_state(rule, mean, scale):
        blank = torch.zeros(4, dtype=torch.float64, requires_grad=True)
        blank.grad = torch.ones_like(blank)
        filled = make(rule, [blank], eps=1e-2, foreach=False)
        filled.step()
        past = {}
        if rule in JUDGING:  # as if it had seen enough to judge by
            past = {name: filled.state[blank][name] for name in ("log_distances", "batches")}
            past = {name: torch.linspace(-1, 1, value.shape[-1]).expand_as(value) for name, value in past.items()}
            past = {name: value.double() for name, value in past.items()}
        return filled.state[blank] | {"exp_avg": mean, filled.scale_name: scale} | past

    assert torch.autograd.gradcheck(step, leaves)


@either
def test_a_differentiable_step_keeps_complex_state_complex(name):
    parameter = torch.randn(3, dtype=torch.complex128, requires_grad=True).clone()
    gradient = torch.randn(3, dtype=torch.complex128, requires_grad=True)
    parameter.grad = gradient.clone()
    optimizer = build(name, [parameter], differentiable=True)
    optimizer.step()
    assert optimizer.state[parameter]["exp_avg"].is_complex()
    assert not optimizer.statistics()[parameter].trust.requires_grad
    parameter.abs().sum().backward()
    assert gradient.grad.abs().sum() > 0


@either
def test_a_grad_scaler_skips_what_it_must(name):
    model = nn.Linear(3, 2)
    optimizer = build(name, model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for poison, steps in ((1.0, 1), (float("inf"), 1), (1.0, 2)):
        optimizer.zero_grad()
        scaler.scale(loss_of(model) * poison).backward()
        scaler.step(optimizer)
        scaler.update()
        assert optimizer.state[model.weight]["step"] == steps


FUSED = ["AdaTerm", "AdaTerm2", "AdaTerm + L2 decay", "At-Adam", "t-AdaBelief (as published)", "AdaBelief"]
FUSED += ["RobustAdamW, usual norm"]
"""The rules whose loops are compiled for half precisions too, which takes seconds each."""


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("rule", "engine"), [(rule, engine) for engine in ENGINES for rule in (FUSED if engine == "fused" else RULES)]
)
def test_half_precision_parameters_have_float32_state(rule, engine, dtype):
    params = parameters(dtype=dtype)
    optimizer = make(rule, params, **ENGINES[engine])
    train(optimizer, params, 3)
    assert all(p.dtype == dtype for p in params)
    assert {value.dtype for p in params for value in optimizer.state[p].values()} == {torch.float32}


def test_the_default_engine_is_the_best_there_is(monkeypatch):
    params = parameters()
    accelerator = {"is_cuda": True, "is_cpu": False, "device": torch.device("cuda"), "is_contiguous": lambda: True}
    on_accelerator = [SimpleNamespace(dtype=torch.float32, grad=None, **accelerator)]
    tensor_lr = {"lr": torch.tensor(1.0)}
    assert choose_engine(params, Common()) == "fused"
    assert choose_engine(params, Common(foreach=True)) == "foreach"
    assert choose_engine(params, Common(foreach=False)) == "reference"
    assert choose_engine(params, Common(fused=False)) == "reference"
    assert choose_engine(params, Common(differentiable=True)) == "reference"
    with monkeypatch.context() as patched:
        patched.setattr(gpu, "supports", lambda parameter: parameter.is_cuda)
        assert choose_engine(on_accelerator, Common()) == "fused"
        assert choose_engine(on_accelerator, Common(foreach=False)) == "reference"
        assert choose_engine(on_accelerator, Common(fused=True, capturable=True)) == "fused"
    monkeypatch.setattr(gpu, "available", False)
    monkeypatch.setattr(cpu, "is_available", lambda: False)
    with pytest.warns(UserWarning, match="fused engine for cpu is missing.*Numba"):
        assert choose_engine(params, Common()) == "reference"
    monkeypatch.setattr(sys.modules["torch.optim.optimizer"], "_get_foreach_kernels_supported_devices", lambda: ["cpu"])
    assert choose_engine(params, Common()) == "foreach"
    assert choose_engine(params, Common(**tensor_lr)) == "reference"
    assert choose_engine(params, Common(**tensor_lr, capturable=True)) == "foreach"
    with pytest.raises(RuntimeError, match=r"`fused=True` requires .* torch.float32 on cpu.*on cpu it needs Numba"):
        choose_engine(params, Common(fused=True))


def test_the_engine_can_be_seen():
    params = parameters()
    assert all("Engines: fused" in repr(build(name, params)) for name in OPTIMIZERS)
    assert "Engines: foreach, reference" in repr(
        adaterm.AdaTerm([{"params": params[:1], "foreach": True}, {"params": params[1:], "foreach": False}])
    )
    assert "Engines: none" in repr(adaterm.AdaTerm([torch.zeros(2, device="meta")], fused=True))


def test_statistics_are_shown_without_values():
    params = [torch.ones(size, 2, requires_grad=True) for size in range(1, 7)]
    optimizer = adaterm.AdaTerm(params)
    assert repr(optimizer.statistics()) == "ParameterStatistics(0 parameters of shapes [])"
    train(optimizer, params, 1)
    shown = "ParameterStatistics(6 parameters of shapes [(1, 2), (2, 2), (3, 2), (4, 2), ...])"
    assert repr(optimizer.statistics()) == shown


@every_engine
@pytest.mark.parametrize("rule", ["AdaTerm + decoupled decay", "RobustAdamW, soon judging"])
def test_real_and_complex_parameters_in_one_group(rule, engine):
    ends = []
    for flags in (ENGINES[engine], {"foreach": False}):
        params = [*parameters(), torch.ones(3, 2, dtype=torch.complex64, requires_grad=True)]
        optimizer = make(rule, params, lr=0.1, **flags)
        for step in range(16):
            give_gradients(params[:-1], step)
            params[-1].grad = torch.full((3, 2), step - 1j).conj()
            optimizer.step()
        ends.append(params)
    for a, b in zip(*ends, strict=True):
        assert_close(
            torch.view_as_real(a.detach()) if a.is_complex() else a,
            torch.view_as_real(b.detach()) if b.is_complex() else b,
            1e-5,
        )


@every_engine
@either
def test_nothing_changes_before_all_that_can_be_refused_was(name, engine):
    params, embedding = parameters(), nn.Embedding(5, 2, sparse=True)
    decay = {"weight_decay": 0.1, "decoupled_weight_decay": True}
    optimizer = build(name, [{"params": params, **decay}, {"params": embedding.parameters()}], **ENGINES[engine])
    give_gradients(params, 0)
    embedding(torch.tensor([1])).sum().backward()
    before = [parameter.detach().clone() for parameter in params]
    with pytest.raises(RuntimeError, match="sparse=False"):
        optimizer.step()
    assert not optimizer.state
    assert all(torch.equal(a, b) for a, b in zip(params, before, strict=True))


class WithItsOwnOption(adaterm.AdaTerm):
    def __init__(self, params, lr=1e-3, temperature=2.0, **options):
        super().__init__(params, lr, **options)
        self.temperature = temperature


def test_a_subclass_keeps_its_own_option_to_itself():
    optimizer = WithItsOwnOption(parameters(), temperature=3.0)
    optimizer.load_state_dict(optimizer.state_dict())
    copied = copy.deepcopy(optimizer)
    assert "temperature" not in optimizer.param_groups[0] | copied.param_groups[0] | copied.defaults


def test_one_decay_is_called_beta():
    with pytest.raises(TypeError, match=r"beta=0\.9, not betas"):
        adaterm.AdaTerm(parameters(), betas=(0.9, 0.999))
    adaterm.TAdam(parameters(), betas=(0.9, 0.999))


@pytest.mark.parametrize(("key", "hint"), [("betas", "beta"), ("weight_dacay", "weight_decay"), ("amsgrad", "")])
def test_a_key_without_effect_is_warned_of(key, hint):
    with pytest.warns(UserWarning, match=rf"'{key}' in a parameter group has no effect on AdaTerm.*{hint}"):
        adaterm.AdaTerm([{"params": parameters(), key: 0.5}])


def test_hooks_and_profilers_see_every_step():
    params, seen = parameters(), []
    optimizer = adaterm.AdaTerm(params)
    train(optimizer, params, 2)
    optimizer.register_step_post_hook(lambda *args: seen.append("post"))
    optimizer.register_step_pre_hook(lambda *args: seen.append("pre"))
    with torch.profiler.profile() as profiler:
        train(optimizer, params, 1)
    assert seen == ["pre", "post"]
    assert "Optimizer.step#AdaTerm.step" in {event.key for event in profiler.key_averages()}


@every_optimizer
def test_it_learns(name):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = build(name, model.parameters(), lr=1e-2)
    first = loss_of(model).item()
    for _ in range(300):
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.05 * first
