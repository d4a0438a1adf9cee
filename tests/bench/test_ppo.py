"""Stable-Baselines3's PPO as an experiment: it runs, reports, and goes on after an interruption."""

import numpy as np
import pytest
import torch

from adaterm_bench.core import scratch
from adaterm_bench.core.trial import Result
from adaterm_bench.experiments.ppo import experiment as ppo
from adaterm_bench.experiments.ppo import report as ppo_report
from adaterm_bench.experiments.ppo.experiment import Ppo

TASK = "Hopper (MuJoCo)"
SETTINGS = {"tasks": (TASK,), "steps": 512, "rollout": 128, "test_episodes": 1, "seeds": 1}


@pytest.fixture(autouse=True)
def _installed():
    for name in ("stable_baselines3", "gymnasium", "mujoco"):
        pytest.importorskip(name, reason=f"{name} is not installed")


def test_it_runs_and_reports():
    experiment = Ppo(**SETTINGS)
    results = []
    for trial in experiment.trials(["Adam", "AdaTerm"]):
        (outcome,) = experiment.run([trial], "cpu", lambda fraction: None)
        assert np.isfinite(outcome["return"])
        assert outcome["episodes"]
        assert [step for step, _ in outcome["episodes"]] == sorted(step for step, _ in outcome["episodes"])
        results.append(Result(trial, outcome, {}))
    section = experiment.section(results)
    assert [row[0] for row in section.tables[0].rows] == [
        f"{method}, {clipping}" for method in ("Adam", "AdaTerm") for clipping in ("clipped", "not clipped")
    ]
    section.figures[0].draw()
    (again,) = experiment.run([results[0].trial], "cpu", lambda fraction: None)
    assert {**again, "seconds": 0.0} == {**results[0].outcome, "seconds": 0.0}


def test_clipping_is_told_from_none_seed_by_seed():
    experiment = Ppo(tasks=(TASK,), seeds=3)
    returns = {"clipped": (100.0, 200.0, 300.0), "not clipped": (90.0, 180.0, 300.0)}
    results = [
        Result(it, {"return": returns[it.condition["clipping"]][it.seed], "episodes": [[1, 1.0]]}, {})
        for it in experiment.trials(["Adam"])
        if (it.seed, it.condition["clipping"]) != (2, "not clipped")
    ]
    (table,) = (it for it in experiment.section(results).tables if "clipping" in it.title)
    assert [row[:2] for row in table.rows] == [["Adam", "2"]]
    assert table.rows[0][2].startswith("\N{MINUS SIGN}15")


def test_an_agent_that_is_not_finite_has_no_return(monkeypatch):
    def spoiled(method, params, lr):
        optimizer = torch.optim.SGD(params, lr)
        optimizer.register_step_post_hook(lambda *_: [it.data.fill_(torch.nan) for it in params])
        return optimizer

    monkeypatch.setattr(ppo, "make_optimizer", spoiled)
    experiment = Ppo(**SETTINGS, clipping=("clipped",))
    (outcome,) = experiment.run(experiment.trials(["AdaTerm"]), "cpu", lambda fraction: None)
    assert np.isnan(outcome["return"])


def test_a_curve_ends_where_the_agent_diverged():
    trial, ends = Ppo(**SETTINGS).trials(["Adam"])[0], np.array([150.0, 250.0, 350.0])
    episodes = [[100, 5.0], [200, 7.0]]
    curves = [
        ppo_report.make_curve(Result(trial, {"episodes": given, "return": value}, {}), ends)
        for given, value in ((episodes, 6.0), (episodes, np.nan), ([], np.nan))
    ]
    np.testing.assert_array_equal(curves, [[5.0, 6.0, 6.0], [5.0, np.nan, np.nan], [np.nan] * 3])


def test_the_arms_are_sb3s_clipping_and_none_and_its_adam():
    experiment = Ppo(**SETTINGS)
    agents = {
        (it.method, it.condition["clipping"]): experiment.make_agent(it)[0]
        for it in experiment.trials(["Adam", "AdaTerm"])
    }
    assert {arm[1]: it.max_grad_norm for arm, it in agents.items()} == {"clipped": 0.5, "not clipped": np.inf}
    assert agents["Adam", "clipped"].policy.optimizer.defaults["eps"] == 1e-5
    assert type(agents["AdaTerm", "clipped"].policy.optimizer).__name__ == "AdaTerm"


def test_tasks_that_are_not_gymnasiums_are_refused():
    with pytest.raises(ValueError, match="Swing"):
        Ppo(tasks=("Swing",))


def test_what_is_interrupted_goes_on(tmp_path, monkeypatch):
    experiment = Ppo(**SETTINGS, clipping=("clipped",))
    trials = experiment.trials(["AdaTerm"])
    monkeypatch.setattr(ppo, "EVERY", 0.0)

    def interrupt(fraction):
        if fraction > 0.6:
            raise KeyboardInterrupt

    with scratch.use_folder(str(tmp_path), "batch"):
        with pytest.raises(KeyboardInterrupt):
            experiment.run(trials, "cpu", interrupt)
        kept = scratch.load()
        assert kept["steps"] == 256  # with the update that follows its rollout
        agent, world = experiment.make_agent(trials[0])
        ppo.restore_agent(agent, world, kept)
        first = next(agent.policy.parameters())
        assert agent.policy.optimizer.state[first]["step"] > 0
        assert world.obs_rms.count > 200
        (outcome,) = experiment.run(trials, "cpu", lambda fraction: None)
    assert outcome["episodes"][-1][0] > 256
