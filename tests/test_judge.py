"""BatchJudge: what it says of batches, that it moves nothing, and what other optimizers get from it."""

from copy import deepcopy

import pytest
import torch
from catalogue import ENGINES, SHAPES, measure_error, parameters
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

from adaterm import BatchJudge, Monitor, RobustAdamW

DTYPES = (torch.float64, torch.float32, torch.bfloat16)
BAD = (30, 45)


def give(params, step, size=100.0):
    """Ordinary gradients, and two steps with far larger ones."""
    generator = torch.Generator().manual_seed(step)
    for parameter in params:
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.grad = (noise * (size if step in BAD else 1.0)).to(parameter)


def ask(judge, params, steps):
    """The steps whose batches are not accepted."""
    refused = []
    for step in steps:
        give(params, step)
        if not judge.accepts():
            refused.append(step)
    return refused


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("engine", ENGINES)
def test_it_refuses_what_is_far_and_moves_nothing(engine, dtype):
    params = parameters(dtype=dtype)
    before = [parameter.detach().clone() for parameter in params]
    judge = BatchJudge(params, window=20, **ENGINES[engine])
    assert ask(judge, params, range(60)) == list(BAD)
    assert all(map(torch.equal, params, before))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_batch_with_any_gradient_that_is_not_finite_is_refused(engine, value):
    """SGD would take it: nothing but the judge stands between. RobustAdamW leaves out the tensor alone."""
    params = parameters()
    judge = BatchJudge(params, window=20, **ENGINES[engine])
    refused = []
    for step in range(30):
        give(params, step)
        if step in (3, 25):
            params[0].grad[0, 0] = value
        if step in (4, 26):
            for parameter in params:
                parameter.grad.fill_(value)
        if not judge.accepts():
            refused.append(step)
    assert refused == [3, 4, 25, 26]
    assert all(parameter.isfinite().all() for parameter in params)


def test_it_says_what_robust_adamw_does():
    """On the same gradients, where a batch that is not accepted is one that RobustAdamW excludes."""
    ours, theirs = parameters(), parameters()
    judge, optimizer = BatchJudge(ours, window=20), RobustAdamW(theirs, window=20)
    between = 0
    for step in range(60):
        give(ours, step, size=2.0)
        give(theirs, step, size=2.0)
        accepted = judge.accepts()
        optimizer.step()
        for said, done in zip(judge.batch_statistics(), optimizer.batch_statistics(), strict=True):
            torch.testing.assert_close(said, done, equal_nan=True)
        trust = optimizer.batch_statistics().trust.item()
        assert accepted == (trust >= 0.5)
        between += 0.05 < trust < 0.5
    assert between  # else any limit would do


def test_without_gradients_there_is_nothing_to_refuse():
    judge = BatchJudge(parameters())
    with pytest.warns(UserWarning, match="found no gradients to judge: ask after backward, and before zero_grad"):
        assert judge.accepts()


def test_it_takes_no_steps_but_calls_hooks():
    """`if judge.step():` would never train, and say nothing."""
    params, seen = parameters(), []
    judge = BatchJudge(params)
    judge.register_step_post_hook(lambda *_: seen.append(1))
    give(params, 0)
    with pytest.raises(RuntimeError, match=r"ask judge\.accepts\(\)"):
        judge.step()
    assert judge.accepts()
    assert seen == [1]


OTHERS = {
    "SGD": lambda params: [torch.optim.SGD(params, lr=0.05, momentum=0.9)],
    "RMSprop": lambda params: [torch.optim.RMSprop(params, lr=0.01)],
    "Muon and AdamW": lambda params: [
        torch.optim.Muon([p for p in params if p.dim() == 2], lr=0.02),
        torch.optim.AdamW([p for p in params if p.dim() != 2], lr=0.01),
    ],
}


@pytest.mark.parametrize("name", [name for name in OTHERS if "Muon" not in name or hasattr(torch.optim, "Muon")])
def test_a_bad_batch_leaves_no_trace_in_another_optimizer(name):
    """The run is the same to the bit as one that never met the bad batches."""

    def train(steps):
        params = parameters([(7, 5), (5,)])
        judge, optimizers = BatchJudge(params, window=20), OTHERS[name](params)
        for step in steps:
            give(params, step)
            if judge.accepts():
                for optimizer in optimizers:
                    optimizer.step()
        return params

    met, spared = train(range(60)), train(step for step in range(60) if step not in BAD)
    assert all(map(torch.equal, met, spared))


def test_it_goes_on_from_a_checkpoint_to_the_bit():
    params = parameters()
    judge = BatchJudge(params, window=20)
    ask(judge, params, range(40))
    resumed = BatchJudge(parameters(), window=20)
    resumed.load_state_dict(deepcopy(judge.state_dict()))
    others = [parameter for group in resumed.param_groups for parameter in group["params"]]
    assert ask(judge, params, range(40, 60)) == ask(resumed, others, range(40, 60)) == [45]
    assert torch.equal(judge.batch_statistics().level, resumed.batch_statistics().level)


def test_torchs_checkpoints_bring_it_back():
    """They step a fresh optimizer with gradients of 0, to have state to load into."""
    models = [torch.nn.Linear(4, 3) for _ in range(2)]
    judges = [BatchJudge(model.parameters(), window=20) for model in models]
    params = [list(model.parameters()) for model in models]
    ask(judges[0], params[0], range(40))
    saved = deepcopy(get_optimizer_state_dict(models[0], judges[0]))  # as from a file
    set_optimizer_state_dict(models[1], judges[1], saved)
    assert ask(judges[0], params[0], range(40, 60)) == ask(judges[1], params[1], range(40, 60)) == [45]
    assert torch.equal(judges[0].batch_statistics().level, judges[1].batch_statistics().level)


def test_a_monitor_watches_it():
    model = torch.nn.Linear(3, 2)
    judge = BatchJudge(model.named_parameters(), window=20)
    monitor = Monitor(judge, model)
    for step in range(60):
        monitor.mark(f"batch {step}")
        give(list(model.parameters()), step)
        judge.accepts()
    assert {batch.mark for batch in monitor.aberrant(2)} == {f"batch {step}" for step in BAD}
    assert "weight" in monitor.table()


def test_a_monitor_says_when_gradients_are_clipped_too_soon():
    params = parameters()
    judge = BatchJudge(params, window=20)
    monitor = Monitor(judge)
    for step in range(60):
        give(params, step)
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        judge.accepts()
    with pytest.warns(UserWarning, match=r"before judge\.accepts\(\), which hides .* Clip after judge\.accepts\(\)\.$"):
        monitor.aberrant()


def test_scaled_gradients_are_judged_after_unscaling():
    """As the page on it says: a change of the scaler's scale is no aberrant batch, an overflow is one."""
    params = parameters([(7, 5), (5,)])
    optimizer, judge = torch.optim.SGD(params, lr=0.01), BatchJudge(params, window=20)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=5)
    refused = []
    for step in range(60):
        scaler.scale(torch.zeros(()))
        give(params, step)
        for parameter in params:
            parameter.grad *= scaler.get_scale() if step != 50 else torch.inf
        scaler.unscale_(optimizer)
        if judge.accepts():
            scaler.step(optimizer)
        else:
            refused.append(step)
        scaler.update()
    assert refused == [*BAD, 50]
    assert scaler.get_scale() > 16.0


MOVES = "a BatchJudge moves no parameters"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda params: BatchJudge(params, lr=0.1), "'lr': it moves nothing"),
        (lambda params: BatchJudge(torch.optim.SGD(params)), "takes parameters, not another optimizer"),
        (lambda params: BatchJudge([{"params": params, "lr": 0.1}]), f"lr must be 0: {MOVES}"),
        (lambda params: BatchJudge([{"params": params, "weight_decay": 0.1}]), f"weight_decay must be 0: {MOVES}"),
        (lambda params: BatchJudge([{"params": params, "max_norm": 1.0}]), f"max_norm must be None: {MOVES}"),
        (
            lambda params: BatchJudge([{"params": params, "differentiable": True}]),
            f"differentiable must be False: {MOVES}",
        ),
        (
            lambda params: BatchJudge([{"params": params[:1], "threshold": 2.0}, {"params": params[1:]}]),
            "threshold must be 2.0 as in the other groups: a batch gets one answer",
        ),
        (lambda params: BatchJudge(params, eps=0.0), "eps"),
        (lambda params: BatchJudge(params, window=3), "window"),
    ],
)
def test_it_refuses_what_a_judge_cannot_have(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make(parameters())


@pytest.mark.parametrize("kind", [torch.optim.AdamW, RobustAdamW])
def test_the_state_of_an_optimizer_is_refused_and_changes_nothing(kind):
    params = parameters()
    give(params, 0)
    optimizer = kind(params)
    optimizer.step()
    judge = BatchJudge(params, window=20)
    ask(judge, params, range(40))
    with pytest.raises(ValueError, match=r"lr must be 0: this is the state of an optimizer, and not of a BatchJudge"):
        judge.load_state_dict(optimizer.state_dict())
    assert ask(judge, params, range(40, 50)) == [45]


def test_an_optimizer_refuses_a_judges_state():
    """It would take over a learning rate of 0, and learn no more."""
    params = parameters()
    judge, optimizer = BatchJudge(params, window=20), RobustAdamW(params, window=20)
    ask(judge, params, range(30))
    with pytest.raises(ValueError, match=r"not of RobustAdamW: its parameter groups have the options judges\."):
        optimizer.load_state_dict(judge.state_dict())
    assert optimizer.param_groups[0]["lr"] == 1e-3


def test_a_schedule_by_mistake_is_refused():
    params = parameters()
    judge = BatchJudge(params)
    torch.optim.lr_scheduler.OneCycleLR(judge, max_lr=0.1, total_steps=10, cycle_momentum=False)
    give(params, 0)
    with pytest.raises(ValueError, match=MOVES):
        judge.accepts()


def test_its_averages_are_those_of_robust_adamw():
    ours, theirs = parameters(dtype=torch.float64), parameters(dtype=torch.float64)
    judge, optimizer = BatchJudge(ours, window=20), RobustAdamW(theirs, window=20)
    for step in range(40):
        give(ours, step)
        give(theirs, step)
        judge.accepts()
        optimizer.step()
    assert [parameter.shape for parameter in ours] == [torch.Size(shape) for shape in SHAPES]
    for mine, other in zip(ours, theirs, strict=True):
        for name in ("exp_avg", "exp_avg_sq"):
            assert measure_error(judge.state[mine][name], optimizer.state[other][name]) < 1e-12
