"""RobustAdamW is what its specification says, on every engine, and keeps what it promises."""

from math import inf, nan

import pytest
import torch
from catalogue import ENGINES, assert_close, give_gradients, parameters
from on_ranks import Messages, assert_part, mesh_of, spread
from robust_checks import CHECKS, draw_gradients, list_params, reload, train
from robust_scenarios import SCENARIOS, check_the_transcription, transcribe
from test_state import saved_and_loaded

from adaterm import RobustAdamW

every_engine = pytest.mark.parametrize("engine", ENGINES)


@every_engine
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_step_is_the_transcriptions(name, engine):
    check_the_transcription(name, ENGINES[engine], torch.float64)


@every_engine
@pytest.mark.parametrize("name", [name for name, scenario in SCENARIOS.items() if scenario.single])
def test_every_step_is_the_transcriptions_in_float32(name, engine):
    check_the_transcription(name, ENGINES[engine], torch.float32)


def test_the_scenarios_go_through_everything():
    """Otherwise agreement would show little."""
    seen = {name: transcribe(name) for name in SCENARIOS}
    assert min(batch[2] for _, batch in seen["accidents"]) == 0.0
    trusts = [batch[2] for records in seen.values() for _, batch in records]
    assert sum(0.01 < trust < 0.8 for trust in trusts) >= 3, trusts
    known = [tensor for records in seen.values() for tensors, _ in records for tensor in tensors]
    assert any(tensor.lam == -inf for tensor in known)
    assert any(tensor.w and tensor.w > 1.2 for tensor in known)
    assert any(tensor.w and 0 < tensor.w < 0.5 for tensor in known)
    loud = [batch for step, (_, batch) in enumerate(seen["a kind of their own"]) if step >= 45 and step % 5 < 2]
    assert any(zscore > 4.0 and trust > 0.5 for _, zscore, trust in loud), loud
    row = [batch[2] > 0.5 for _, batch in seen["many in a row"][45:65]]
    assert row == [position % 8 == 7 for position in range(20)]


@every_engine
@pytest.mark.parametrize("check", CHECKS)
def test_property(check, engine):
    CHECKS[check](ENGINES[engine])


def test_groups_may_have_different_engines():
    """The batch is judged as one all the same."""
    ends = []
    for engines in (["reference"] * 3, list(ENGINES)):
        params = parameters(dtype=torch.float64)
        parts = params[:1], params[1:3], params[3:]
        groups = [{"params": part, **ENGINES[engine]} for part, engine in zip(parts, engines, strict=True)]
        tested = RobustAdamW(groups, window=12, max_norm="auto")
        for step in range(30):
            train(tested, params, 1, step, {15: 2.0, 20: 1e4, 25: 3.0}.get(step, 1.0))
        ends.append(params)
    for a, b in zip(*ends, strict=True):
        assert_close(a, b, 1e-12)


@pytest.mark.parametrize("first", ENGINES)
def test_engines_read_each_other(first):
    params = parameters(dtype=torch.float64)
    optimizer = RobustAdamW(params, window=15, max_norm="auto", **ENGINES[first])
    train(optimizer, params, 20)
    others = []
    for engine in ENGINES:
        state_dict = saved_and_loaded(optimizer.state_dict())
        state_dict["param_groups"][0] |= {"foreach": None, "fused": None} | ENGINES[engine]
        others.append(reload(optimizer, state_dict))
    for tested in (optimizer, *others):
        train(tested, list_params(tested), 20, 20, 1.5)
    for tested in others:
        for a, b in zip(list_params(tested), params, strict=True):
            assert_close(a, b, 1e-12)


def step_on_ranks(layout, engine, steps=26):
    """Train shards beside whole tensors; on one rank only, a part of a gradient is NaN."""
    mesh, shapes = mesh_of(layout), [(7, 5), (3,), (1,), (), (2, 3, 4), (9, 2)]
    params = parameters(shapes, torch.float64)
    shards = [shard.requires_grad_() for shard in spread(params, mesh, layout)]
    optimizers = []
    for tensors, flags in ((shards, ENGINES[engine]), (params, {"foreach": False})):
        groups = [{"params": tensors[:3], "max_norm": 4.0}, {"params": tensors[3:], "max_norm": "auto", "dof": 10.0}]
        optimizers.append(RobustAdamW(groups, lr=1e-2, window=12, **flags))
    tested, right = optimizers
    for step in range(steps):
        scale = {12: 2.0, 14: 1e3, 19: 2.5, 23: 3.0}.get(step, 1.0)
        for parameter, gradient in zip(params, draw_gradients(step, shapes, scale=scale), strict=True):
            parameter.grad = gradient
        if step in (5, 16):
            params[0].grad[-1, -1] = nan
        if step == 17:
            params[1].grad = params[5].grad = None
        given = [p.grad if p.grad is not None else torch.zeros_like(p) for p in params]
        for shard, parameter, gradient in zip(shards, params, spread(given, mesh, layout), strict=True):
            shard.grad = None if parameter.grad is None else gradient
        right.step()
        with Messages() as counted:
            tested.step()
        messages = {"fsdp and tensor parallel": 2}.get(layout, 1)  # however many tensors and groups
        assert step == 0 or len(counted.names) == messages, counted.names
        for found, wanted in zip(tested.batch_statistics(), right.batch_statistics(), strict=True):
            assert found.item() == pytest.approx(wanted.item(), rel=1e-9, nan_ok=True), f"step {step}"
    for shard, parameter in zip(shards, params, strict=True):
        assert_part(shard, parameter, 1e-12, "parameter")
        for name in ("exp_avg", "exp_avg_sq"):
            assert_part(tested.state[shard][name], right.state[parameter][name], 1e-12, name)


@pytest.mark.parametrize(
    ("world", "layout", "engine"),
    [(2, "fsdp", "reference"), (4, "fsdp and tensor parallel", "foreach"), (2, "with plain tensors", "fused")],
)
def test_ranks_follow_one_process(ranks, world, layout, engine):
    ranks.run(world, step_on_ranks, layout, engine)


BAD = [
    *(("dof", value) for value in (0.0, -1.0, nan, "high", None)),
    *(("window", value) for value in (0, -5, 9, 20.5, "long", None)),
    *(("threshold", value) for value in (0.0, -4.0, nan, "high", None)),
    *(("minority", value) for value in (0.0, -0.1, 1.1, nan, None)),
    *(("max_norm", value) for value in (-1.0, nan, "median", False)),
    *(("betas", value) for value in ((0.9, 1.0), (-0.1, 0.9), 0.9)),
    *(("weight_decay", value) for value in (-0.1, nan)),
    *(("lr", value) for value in (-1.0, nan)),
    ("eps", -1e-8),
]


@pytest.mark.parametrize(("option", "value"), BAD)
def test_an_impossible_option_is_named(option, value):
    """At construction and in an added group."""
    params = parameters()
    with pytest.raises(ValueError, match=option):
        RobustAdamW(params, **{option: value})
    optimizer = RobustAdamW(params[:2])
    with pytest.raises(ValueError, match=option):
        optimizer.add_param_group({"params": params[2:], option: value})
    assert len(optimizer.param_groups) == 1


def test_what_cannot_be_is_refused():
    params = parameters()
    with pytest.raises((TypeError, ValueError), match="amsgrad") as error:
        RobustAdamW(params, amsgrad=True)
    assert "unexpected keyword" not in str(error.value), "there is a reason, and it is said"
    with pytest.raises(ValueError, match="window"):
        RobustAdamW([{"params": params[:2], "window": 20}, {"params": params[2:], "window": 30}])
    optimizer = RobustAdamW(params[:2], window=20)
    with pytest.raises(ValueError, match="window"):
        optimizer.add_param_group({"params": params[2:], "window": 30})
    adamw = torch.optim.AdamW(params, amsgrad=True)
    train(adamw, params, 1)
    with pytest.raises(ValueError, match="amsgrad"):
        RobustAdamW(params).load_state_dict(adamw.state_dict())
    with pytest.raises((TypeError, ValueError)):
        RobustAdamW(params, 1e-3, (0.9, 0.999), 1e-8, 1e-2, 3.0)  # what is not AdamW's has a name


@pytest.mark.parametrize("options", [{"dof": inf}, {"threshold": inf}, {"minority": 1.0}, {"max_norm": 1}], ids=str)
def test_the_limits_are_allowed(options):
    params = parameters()
    train(RobustAdamW(params, **options), params, 15)
    assert all(parameter.isfinite().all() for parameter in params)


@every_engine
def test_the_batchs_statistics(engine):
    """Three numbers on the device, of the last step; later steps leave them alone."""
    params = parameters()
    optimizer = RobustAdamW(params, window=12, **ENGINES[engine])
    train(optimizer, params, 1)
    first = optimizer.batch_statistics()
    assert first._fields == ("level", "zscore", "trust")
    for value in first:
        assert value.shape == ()
        assert value.device == params[0].device
        assert value.is_floating_point()
        assert not value.requires_grad
    assert first.level.isnan()
    assert first.zscore.isnan()
    assert first.trust == 1.0
    train(optimizer, params, 1, 1)
    level = optimizer.batch_statistics().level
    kept = level.item()
    assert optimizer.batch_statistics().zscore.isnan()
    train(optimizer, params, 10, 2)  # ten levels were known before the last of them
    assert optimizer.batch_statistics().zscore.isfinite()
    assert level.item() == kept
    assert first.level.isnan()


def test_autograd_goes_through_differentiable_steps():
    """As through AdamW's."""
    found = []
    options = {"dof": inf, "threshold": inf}
    for optimizer_class, flags in ((RobustAdamW, options), (torch.optim.AdamW, {})):
        parameter = torch.ones(4, dtype=torch.float64, requires_grad=True).clone()
        gradient = torch.linspace(0.5, 2, 4, dtype=torch.float64, requires_grad=True)
        optimizer = optimizer_class([parameter], eps=1e-2, differentiable=True, **flags)
        for step in range(12):
            parameter.grad = (gradient * (1 + step % 3)).clone()
            optimizer.step()
        parameter.sum().backward()
        found.append(gradient.grad)
    assert_close(*found, 1e-4)  # a differentiable AdamW corrects its averages in float32


def test_the_state_has_adamws_names():
    params, others = parameters(), parameters()
    optimizer, adamw = RobustAdamW(params), torch.optim.AdamW(others)
    train(optimizer, params, 1)
    train(adamw, others, 1)
    for parameter, other in zip(params, others, strict=True):
        assert set(adamw.state[other]) <= set(optimizer.state[parameter])
        assert_close(optimizer.state[parameter]["exp_avg_sq"], adamw.state[other]["exp_avg_sq"], 1e-6)
    assert optimizer.param_groups[0]["weight_decay"] == adamw.param_groups[0]["weight_decay"]


def test_an_adamw_checkpoint_goes_on_where_its_first_parameter_is_frozen():
    params = parameters()
    adamw = torch.optim.AdamW(params)
    train(adamw, params, 3)
    optimizer = RobustAdamW(params)
    optimizer.load_state_dict(adamw.state_dict())
    give_gradients(params, 3)
    params[0].grad = None
    optimizer.step()
    assert optimizer.state[params[1]]["step"] == 4
    assert "batches" in optimizer.state[params[1]]
