"""What is called regret is regret, for every method and problem; and all trials at once are each trial alone."""

import io
import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import adaterm
from adaterm_bench.core.trial import Result
from adaterm_bench.experiments.regret import growth
from adaterm_bench.experiments.regret.bounds import Run, corollary, theorem, trivial
from adaterm_bench.experiments.regret.experiment import AMSGRAD, Regret
from adaterm_bench.experiments.regret.growth import Runs, find_fastest, fit_exponent
from adaterm_bench.experiments.regret.problems import PROBLEMS, Losses, cut_steps, space_evenly
from adaterm_bench.methods import PAPER_METHODS, make_rule

SMALL = Regret(seeds=2, steps=70, marks=6, dimension=3)


def results_of(experiment, methods):
    found = []
    trials = sorted(experiment.trials(methods), key=lambda it: str(experiment.together(it)))
    for _, batch in itertools.groupby(trials, key=experiment.together):
        batch = list(batch)
        found += [Result(*it, {}) for it in zip(batch, experiment.run(batch, "cpu", lambda _: None), strict=True)]
    return found


def real_optimizer(method, problem, point):
    if method in AMSGRAD:
        return torch.optim.Adam([point], betas=PROBLEMS[problem].betas, amsgrad=AMSGRAD[method])
    return getattr(adaterm, PAPER_METHODS[method].optimizer)([point], fused=False, **PAPER_METHODS[method].options)


def next_rate(rule, state, gradient):
    """tau of the paper's algorithm, from an optimizer's state before the step."""
    if rule.min_dof == math.inf:
        return 1.0 - rule.beta
    start = max(rule.eps**2, gradient.square().mean().item()) if rule.init_scale == "gradient" else rule.eps**2
    mean, scale = state.get("exp_avg", 0.0), state.get("exp_scale", start)
    dof = rule.min_dof + float(state.get("excess_dof", rule.eps))
    return (1.0 - rule.beta) * dof / (dof + ((gradient - mean) ** 2 / scale).mean().item())


def played_alone(experiment, trial):
    """One trial with the real optimizer: points, gradients, scales and rates of all steps, and the losses' slopes."""
    losses = Losses([(trial.condition["problem"], trial.seed)], experiment.dimension, experiment.radius)
    slopes = losses.slopes(1, experiment.steps)[:, 0]
    point = torch.from_numpy(losses.start[0].copy())
    optimizer = real_optimizer(trial.method, trial.condition["problem"], point)
    points, gradients, scales, rates = [], [], [], []
    for step, slope in enumerate(slopes, 1):
        points.append(point.numpy().copy())
        point.grad = torch.from_numpy(slope) + losses.curvature[0, 0] * point
        gradients.append(point.grad.numpy().copy())
        if trial.method not in AMSGRAD:
            rates.append(next_rate(make_rule(trial.method), optimizer.state[point], point.grad))
        optimizer.param_groups[0]["lr"] = experiment.alpha / math.sqrt(step)
        optimizer.step()
        point.clamp_(-experiment.radius, experiment.radius)
        if trial.method not in AMSGRAD:
            scales.append(optimizer.state[point]["exp_scale"].numpy().copy())
    return (*map(np.array, (points, gradients, scales, rates)), slopes, losses.curvature[0, 0])


def least_loss(slopes, curvature, radius):
    """The best fixed point's loss, by trying: a fine grid in each coordinate, the ends included."""
    x = np.linspace(-radius, radius, 20_001)[:, None]
    return sum((0.5 * curvature * len(slopes) * x**2 + slopes.sum(0) * x).min(axis=0))


@pytest.mark.parametrize("method", Regret.methods)
def test_outcomes_are_those_of_real_optimizers_and_brute_force(method):
    """Distances are each trial's own, so a batch of all problems must give what each trial gives alone."""
    for result in results_of(SMALL, [method]):
        trial, outcome = result.trial, result.outcome
        points, gradients, scales, rates, slopes, curvature = played_alone(SMALL, trial)
        for at, steps in enumerate(outcome["time"]):
            paid = (0.5 * curvature * points[:steps] ** 2 + slopes[:steps] * points[:steps]).sum()
            best = least_loss(slopes[:steps], curvature, SMALL.radius)
            scale = np.abs(gradients[:steps]).sum()
            assert outcome["regret"][at] == pytest.approx(paid - best, abs=1e-8 * scale)
            assert outcome["trivial"][at] == pytest.approx(trivial(gradients[:steps], 2.0), rel=1e-9)
            if method not in AMSGRAD:
                rule, bound = make_rule(method), corollary if method == "No robustness" else theorem
                run = Run.of(gradients[:steps], scales[:steps], rates[:steps])
                expected = bound(run, SMALL.alpha, rule.beta, rule.eps, 2.0)
                assert [outcome[name][at] for name in expected._fields] == pytest.approx(
                    [*expected], rel=1e-7, abs=1e-9
                )
                assert outcome["least_rate"][at] == pytest.approx(min(rates[:steps]), rel=1e-9)


@pytest.mark.parametrize("method", Regret.methods)
def test_a_batch_gives_what_each_trial_gives_alone(method):
    for result in results_of(SMALL, [method]):
        (alone,) = SMALL.run([result.trial], "cpu", lambda _: None)
        for name, values in alone.items():
            assert result.outcome[name] == pytest.approx(values, rel=1e-9, abs=1e-9), name


@pytest.mark.parametrize("problem", PROBLEMS)
def test_losses_do_not_depend_on_how_they_are_cut(problem):
    whole = Losses([(problem, 3)], 4, 1.0).slopes(1, 30)
    parts = Losses([(problem, 3)], 4, 1.0)
    assert np.array_equal(whole, np.concatenate([parts.slopes(1, 7), parts.slopes(8, 1), parts.slopes(9, 22)]))


def test_best_point_is_clipped_to_the_box():
    losses = Losses([("quadratic", 0)], 2, 0.5)
    assert losses.best(4, np.array([[-1.0, 8.0]])) == pytest.approx(np.array([[-0.125, 4 * 0.125 - 4.0]]))


def test_every_step_is_in_one_piece():
    cut = list(cut_steps([1, 4, 20], 6))
    steps = [first + index for first, count, _ in cut for index in range(count)]
    assert steps == list(range(1, 21))
    assert [first + count - 1 for first, count, marked in cut if marked] == [1, 4, 20]
    assert space_evenly(1000, 4) == [1, 10, 100, 1000]


def test_adaterm_and_adam_stay_at_the_worst_end_and_the_others_do_not():
    """Two of three gradients point the wrong way; AMSGrad and the moving average add up all three."""
    experiment = Regret(seeds=1, steps=3_000, problems=("one in 3",), dimension=1)
    last = {it.trial.method: it.outcome["regret"][-1] / 3_000 for it in results_of(experiment, Regret.methods)}
    assert min(last["AdaTerm"], last["Adam"]) > 0.5  # 2/3 at x = 1
    assert max(last["AMSGrad"], last["No robustness"]) < 0.2


def test_exponent_of_a_power_law():
    times, seeds = np.geomspace(10, 1000, 12), np.random.default_rng(0).uniform(1, 2, 20)
    found = fit_exponent(times, np.outer(times**0.7, seeds))
    assert found[:3] == pytest.approx((0.7, 0.7, 0.7))
    assert math.isnan(fit_exponent(times, -np.outer(times, seeds)).estimate)


def test_the_worst_of_many_problems_is_seldom_found_better_or_worse_than_it_is(monkeypatch):
    """Each grows like T^0.55.

    Better is found where the worst is one alone, and its interval's upper end is below; worse where all are equal, and
    the highest of the lower ends is above. An end of one interval is wrong in a fortieth of all draws.
    """
    monkeypatch.setattr(growth, "USUAL", replace(growth.USUAL, resamples=2_000))
    times, draws = np.geomspace(100, 1000, 3), np.random.default_rng(0)

    def find_wrong(comparisons, groups=150, problems=8, seeds=12):
        scatter = draws.lognormal(0.0, 0.4, (groups * problems, len(times), seeds))
        fitted = [fit_exponent(times, times[:, None] ** 0.55 * noise, comparisons) for noise in scatter]
        lows = np.array([interval.low for interval in fitted]).reshape(groups, problems)
        return np.mean([interval.high < 0.55 for interval in fitted]), np.mean(lows.max(axis=1) > 0.55)

    (better, worse), (seldom_better, seldom_worse) = find_wrong(1), find_wrong(8)
    assert seldom_better <= 0.01 < better <= 0.04
    assert seldom_worse <= 0.05 < worse


def test_the_worst_problem_decides_and_those_beside_it_widen_its_interval():
    times, draws = np.geomspace(100, 1000, 3), np.random.default_rng(0)
    noise = draws.lognormal(0.0, 0.4, (2, 3, 12))
    slow, fast = (
        Runs(times, {"regret": times[:, None] ** power * it}) for power, it in zip((0.1, 0.9), noise, strict=True)
    )
    alone, together = find_fastest([fast], "regret"), find_fastest([slow, fast], "regret")
    assert alone == fit_exponent(*fast.late("regret"))
    assert together.estimate == alone.estimate
    assert together.low < alone.low < alone.high < together.high


def test_smoke_preset_has_a_report():
    experiment = Regret(**Regret.presets["smoke"])
    results = results_of(experiment, Regret.methods)
    assert all(json.loads(json.dumps(it.outcome)) == it.outcome for it in results)
    section = experiment.section(results)
    assert len(section.tables[0].rows) == len(PROBLEMS)
    verdicts = {claim.text: claim.verdict for claim in section.claims}
    assert verdicts["AdaTerm: the regret is below the theorem's bound."] == "reproduced"
    assert verdicts["No robustness: the corollary's bound says more than that the box is bounded."] == "not reproduced"
    for figure in section.figures:
        figure.draw().savefig(io.BytesIO())


def test_report_of_some_methods_and_problems():
    experiment = Regret(seeds=1, steps=60, problems=("sparse",))
    for methods in (["Adam"], ["AdaTerm"]):
        section = experiment.section(results_of(experiment, methods))
        for figure in section.figures:
            figure.draw().savefig(io.BytesIO())
