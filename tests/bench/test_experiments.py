"""Trials that run as one batch are what they would be alone, with the real optimizers."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import adaterm
from adaterm_bench import equations, methods, steppers
from adaterm_bench.core.flags import restore_experiment
from adaterm_bench.core.registry import load, load_built_in
from adaterm_bench.core.store import Store
from adaterm_bench.experiments.batch_size.experiment import BatchSize
from adaterm_bench.experiments.regression.experiment import Regression, curve
from adaterm_bench.experiments.test_functions.experiment import FUNCTIONS, NoisySearch
from adaterm_bench.methods import OUR_METHODS, PAPER_METHODS
from adaterm_bench.models.networks import apply_perceptron, make_weights

VALUES = {
    "Rosenbrock": lambda x, y: 100 * (y - x**2) ** 2 + (x - 1) ** 2,
    "McCormick": lambda x, y: torch.sin(x + y) + (x - y) ** 2 - 1.5 * x + 2.5 * y + 1,
    "Michalewicz": lambda x, y: (
        -torch.sin(x) * torch.sin(x**2 / np.pi) ** 20 - torch.sin(y) * torch.sin(2 * y**2 / np.pi) ** 20
    ),
}
METHODS = PAPER_METHODS | OUR_METHODS
SMOKE = NoisySearch(**NoisySearch.presets["smoke"] | {"steps": 80})
NETWORK = Regression(**Regression.presets["smoke"] | {"dtype": "float64", "samples": 200})


def quiet(_):
    """No progress."""


def real(method, params, lr):
    name, options = METHODS[method]
    return getattr(adaterm, name, None) and getattr(adaterm, name)(params, lr=lr, foreach=False, **options)


def alone(method, params, lr):
    return real(method, params, lr) or getattr(torch.optim, method)(params, lr=lr)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_and_optima(name):
    gradient, start, optimum = FUNCTIONS[name]
    points = torch.randn(50, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + torch.tensor(start)
    points.requires_grad_()
    (wanted,) = torch.autograd.grad(VALUES[name](points[:, 0], points[:, 1]).sum(), points)
    found = torch.stack(gradient(*points.detach().unbind(1)), 1)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
    best = torch.stack(gradient(*torch.tensor(optimum, dtype=torch.float64)))
    assert best.abs().max() < 1e-6


@pytest.mark.parametrize("method", METHODS)
def test_searches_are_what_they_are_alone(method):
    trials = [trial for trial in SMOKE.trials([method]) if trial.condition["function"] == "McCormick"]
    together = SMOKE.run(trials, "cpu", quiet)
    for trial, outcome in list(zip(trials, together, strict=True))[1::2]:
        (one,) = SMOKE.run([trial], "cpu", quiet)
        assert outcome["distance"] == pytest.approx(one["distance"], rel=1e-9)
        gradient, start, optimum = FUNCTIONS["McCormick"]
        point = torch.tensor(start, dtype=torch.float64) + torch.from_numpy(SMOKE.draw_starts([trial])[0])
        optimizer = alone(method, [point], SMOKE.lr)
        for shift in SMOKE.draw_shifts([trial], "cpu"):
            at = point + shift[0]
            point.grad = torch.stack(gradient(at[0], at[1]))
            optimizer.step()
        assert outcome["distance"] == pytest.approx((point - point.new_tensor(optimum)).norm().item(), rel=1e-6)


def test_starts_vary_without_noise_alone_and_the_others_keep_their_keys():
    trials = SMOKE.trials(["AdaTerm"])
    varied = [trial for trial in trials if "start" in trial.condition]
    assert {trial.condition["noise"] for trial in varied} == {0.0}
    assert len(varied) == 3 * len(FUNCTIONS)
    starts = SMOKE.draw_starts(trials)
    moved = np.array(["start" in trial.condition for trial in trials])
    assert not starts[~moved].any()
    assert (np.abs(starts[moved]) <= SMOKE.width).all()
    assert len({tuple(start) for start in starts[moved]}) == 3  # one for each seed
    assert {trial.key for trial in replace(SMOKE, vary=False).trials(["AdaTerm"])} < {trial.key for trial in trials}
    near = [outcome["arrival"] for outcome in SMOKE.run(varied[:3], "cpu", quiet)]
    assert all(arrival > 0 for arrival in near)


def take_steps(method, count=20):
    """Three trials with two tensors each, after so many steps."""
    draws = torch.Generator().manual_seed(0)
    shapes = ((3, 4, 5), (3, 1, 5))
    params = [torch.randn(shape, dtype=torch.float64, generator=draws).requires_grad_() for shape in shapes]
    tested = methods.make_stepper(method, params, 0.01)
    for _ in range(count):
        for parameter in params:
            parameter.grad = parameter.detach() + torch.randn(parameter.shape, dtype=torch.float64, generator=draws)
        tested.step()
    return [*params, *tested.state()]


@pytest.mark.parametrize("method", ["t-Adam", pytest.param("RobustAdamW", marks=pytest.mark.slow)])
def test_long_runs_are_compiled_to_the_same_steps(method, monkeypatch):
    wanted, compiled = take_steps(method), []
    monkeypatch.setattr(steppers, "LONG", 5)
    monkeypatch.setattr(torch, "compile", lambda step, compile_=torch.compile: compiled.append(step) or compile_(step))
    for found, value in zip(take_steps(method), wanted, strict=True):
        torch.testing.assert_close(found, value, rtol=1e-12, atol=1e-14, equal_nan=True)
    assert len(compiled) == 1


def test_long_runs_go_on_without_a_compiler(monkeypatch):
    wanted = take_steps("t-Adam")
    monkeypatch.setattr(steppers, "LONG", 5)
    # Patched by torch itself: an alias that pytest sets and takes back is gone, and nothing compiles any more.
    missing = torch._inductor.config.patch({"cpp.cxx": (None, "no-such-compiler")})
    with missing, torch.compiler.config.patch(force_disable_caches=True):
        found = take_steps("t-Adam")
    for each, value in zip(found, wanted, strict=True):
        torch.testing.assert_close(each, value, rtol=0, atol=0, equal_nan=True)
    assert not torch._inductor.config.force_disable_caches


@pytest.mark.parametrize("method", METHODS)
def test_networks_are_what_they_are_alone(method):
    trials = NETWORK.trials([method])
    together = NETWORK.run(trials, "cpu", quiet)
    trial, outcome = trials[-1], together[-1]
    params = [
        p[0].detach().requires_grad_() for p in make_weights([trial.seed], (1, 50, 50, 50, 50, 1), torch.float64, "cpu")
    ]
    optimizer = alone(method, params, NETWORK.lr)
    inputs, targets = (column[0] for column in NETWORK.draw_samples([trial], torch.float64, "cpu"))
    for begin in range(0, NETWORK.samples, 10):
        optimizer.zero_grad()
        found = apply_perceptron([p[None] for p in params], inputs[None, begin : begin + 10])[0]
        (found - targets[begin : begin + 10]).square().mean().backward()
        optimizer.step()
    x = torch.linspace(0, 1, 1001, dtype=torch.float64)
    error = (apply_perceptron([p[None] for p in params], x.view(1, -1, 1))[0, :, 0] - curve(x)).square().mean().item()
    assert outcome["error"] == pytest.approx(error, rel=1e-6)


def test_paired_seeds_share_data_and_more_noise_includes_less():
    low, high = replace(NETWORK, noises=(0.3, 0.7)).trials(["Adam"], [5])
    (x, y), (same, other) = (NETWORK.draw_samples([trial], torch.float64, "cpu") for trial in (low, high))
    assert torch.equal(x, same)
    clean = curve(x)
    assert ((y != clean) <= (other != clean)).all()
    assert 0.5 < (other != clean).double().mean() < 0.9


def test_batch_sizes_have_trials_of_their_own():
    study = BatchSize(**BatchSize.presets["smoke"])
    trials = study.trials(["AdaTerm"])
    assert {trial.condition["batch_size"] for trial in trials} == {8, 16, 32, 64}
    assert len({study.together(trial) for trial in trials}) == 4
    small = [trial for trial in trials if trial.condition["batch_size"] == 64]
    assert all(np.isfinite(outcome["error"]) for outcome in study.run(small, "cpu", quiet))


def test_an_optimizer_of_ones_own(request):
    methods.register("SGD", lambda params, lr: torch.optim.SGD(params, lr), elementwise=True)
    methods.register("SGD one by one", lambda params, lr: torch.optim.SGD(params, lr))
    for name in ("SGD", "SGD one by one"):
        request.addfinalizer(partial(methods.unregister, name))
    ends = []
    for method in ("SGD", "SGD one by one"):
        trials = replace(SMOKE, functions=("McCormick",)).trials([method])
        ends.append([outcome["distance"] for outcome in SMOKE.run(trials, "cpu", quiet)])
    assert ends[0] == pytest.approx(ends[1], rel=1e-12)
    with pytest.raises(ValueError, match="already"):
        methods.register("Adam", torch.optim.SGD)
    with pytest.raises(ValueError, match="has a comma"):
        methods.register("Adam (0.9, 0.9)", torch.optim.SGD)
    with pytest.raises(ValueError, match="choose from"):
        methods.make_stepper("nothing", [torch.zeros(1, 2)], 0.1)


def test_new_equations_of_ours_are_new_trials_in_every_experiment(monkeypatch):
    chosen = ["Adam", "AdaTerm", *OUR_METHODS]
    entries, missing = load_built_in()
    assert not missing
    for entry in entries.values():
        experiment = entry.experiment(**entry.experiment.presets["smoke"])
        if not experiment.accepts("RobustAdamW"):
            continue
        names = [method for method in chosen if experiment.accepts(method)]
        before = experiment.trials(names)
        with monkeypatch.context() as patch:
            patch.setattr(equations, "write_equations", lambda family: "other")
            after = experiment.trials(names)
        changed = {it.method for it, other in zip(before, after, strict=True) if it.key != other.key}
        assert changed - {"AdaTerm"} == set(OUR_METHODS) & set(names), experiment.name  # the arena marks AdaTerm, too
        assert before == experiment.trials(names)


def test_trials_that_are_done_count_as_done():
    """The committed results of the paper's methods: each plan, made again, has the trials that it had."""
    store = Store(Path(__file__).parents[2] / "results/bench")
    plans, done = store.plans(), store.done()
    assert plans
    for plan in plans:
        kind = load(plan["source"], plan["experiment"])
        methods_of_paper = [method for method in plan["methods"] if method not in OUR_METHODS]
        trials = restore_experiment(kind, plan["settings"]).trials(methods_of_paper, plan["seeds"])
        keys = {key for method in methods_of_paper for key in plan["keys"][method]}
        if keys and all(group["version"] == kind.version for group in plan["trials"]):
            assert keys <= {trial.key for trial in trials}, plan["label"]
            assert keys & done
