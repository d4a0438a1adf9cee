"""The reinforcement learning as an experiment: its trials, its report, and that it can be interrupted."""

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from adaterm_bench.core import scratch
from adaterm_bench.core.trial import Result
from adaterm_bench.core.work import Order, attempt
from adaterm_bench.datasets import environments
from adaterm_bench.datasets.data import DataError
from adaterm_bench.datasets.environments import MissingSimulatorError
from adaterm_bench.experiments.rl import experiment as rl
from adaterm_bench.experiments.rl.claims import FAILED, make_claims, tabulate_returns_checks
from adaterm_bench.experiments.rl.experiment import Reinforcement
from adaterm_bench.reporting.text import format_number


def test_the_report_has_tables_curves_and_claims():
    settings = Reinforcement(tasks=("Swing",), episodes=4, checks=2, test_episodes=1, batches=2, hidden=(8,), seeds=2)
    results = []
    for method in ("Adam", "AdaTerm"):
        trials = settings.trials([method])
        outcomes = settings.run(trials, "cpu", lambda fraction: None)
        results += [Result(trial, outcome, {}) for trial, outcome in zip(trials, outcomes, strict=True)]
    assert results[0].outcome["checked"] == [2, 4]
    section = settings.section(results)
    assert [row[:2] for row in section.tables[0].rows] == [["Adam", "2"], ["AdaTerm", "2"]]
    published = [
        Result(replace(it.trial, method=name), it.outcome, {})
        for it in results[:2]
        for name in ("t-Adam (as published)", "At-Adam (as published)")
    ]
    on_ant = [
        Result(replace(it.trial, condition={**it.trial.condition, "task": "Ant"}), it.outcome, {})
        for it in [*results, *published]
    ]
    claims = settings.section(on_ant).claims
    assert {it.text.removeprefix("On Ant (specified), ") for it in claims} == {
        "t-Adam (as published) has a higher return than Adam.",
        "At-Adam (as published) has a higher return than Adam.",
        "AdaTerm has a higher return than Adam.",
        "t-Adam (as published) has a higher return than At-Adam (as published).",
        "At-Adam (as published) has a higher return than AdaTerm.",
        "t-Adam (as published) has a higher return than AdaTerm.",
        "Adam fails: it has less than half of AdaTerm's return.",
    }
    assert {it.verdict for it in claims} == {"undecided"}  # two seeds
    traced = [
        Result(replace(it.trial, condition={**it.trial.condition, "variant": "traced"}), it.outcome, {})
        for it in results
    ]
    beside = settings.section([*traced[:2], *results])  # Adam's
    assert beside.tables[-2].title == "Swing: variants of the algorithm"
    assert [[row[0], bool(row[2])] for row in beside.tables[-2].rows] == [["specified", True], ["traced", False]]
    assert [it.title for it in beside.figures if "variants" in it.title] == []
    drawn = settings.section([*traced, *results]).figures[-1]
    assert drawn.title == "Swing: variants, tests with AdaTerm"
    assert [it.get_text() for it in drawn.draw().axes[0].texts] == ["specified", "traced"]
    gone = {"return": np.nan, "returns": [np.nan] * 4, "checks": [np.nan] * 2}
    lost = [Result(results[0].trial, {**results[0].outcome, **gone}, {}), *results[1:]]
    row = settings.section(lost).tables[0].rows[0]
    assert "1 diverged" in row[2]
    assert [float(it.replace("\N{MINUS SIGN}", "-")) for it in row[-3:]] == pytest.approx(
        [*(results[1].outcome["returns"][it] for it in (0, -1)), max(results[1].outcome["checks"])], rel=0.01
    )
    for figure in section.figures:
        figure.draw()
    other = replace(results[0].trial, condition={**results[0].trial.condition, "choices": {"lr": 1.0}}, seed=9)
    with pytest.raises(DataError, match="variants that differ"):
        settings.section([*results, Result(other, results[0].outcome, {})])


def test_every_seed_is_drawn_where_curves_have_bands():
    settings = Reinforcement(tasks=("Swing",), seeds=6)
    measured = {"episodes": 8, "steps": 10, "seconds": 1.0, "together": 1}
    results = [
        Result(
            trial,
            {
                **{"return": 1.0, "returns": [1.0] * 8, "checked": [4, 8], "checks": [float(trial.seed), 2.0]},
                **{"steps": 10, "measured": measured},
            },
            {},
        )
        for trial in settings.trials(["Adam", "AdaTerm"])
    ]
    (figure,) = (it for it in settings.section(results).figures if "every seed" in it.title)
    panels = figure.draw().axes
    assert [panel.get_title("left") for panel in panels] == ["Adam", "AdaTerm"]
    assert [len(panel.lines) for panel in panels] == [7, 7]
    few = settings.section([it for it in results if it.trial.seed < 3]).figures
    assert not [it for it in few if "every seed" in it.title]


def test_checks_test_the_statistics_of_the_claims_on_returns():
    """Once there are six seeds: the difference of means, and on Ant the ratio, too; whose bound a failure is."""
    draws = np.random.default_rng(1)
    few, enough = (
        {
            method: dict(enumerate(draws.normal(mean, 300.0, seeds)))
            for method, mean in (("Adam", 800), ("AdaTerm", 2000))
        }
        for seeds in (3, 8)
    )
    (table,) = tabulate_returns_checks(
        {("Ant", "adaptive"): enough, ("Hopper", "tuned"): enough, ("Ant", "tuned"): few}
    )
    assert [row[:2] for row in table.rows] == [
        ["mean returns, Ant, adaptive", "8"],
        ["their ratio, Ant, adaptive", "8"],
        ["mean returns, Hopper, tuned", "8"],
    ]
    assert tabulate_returns_checks({("Ant", "tuned"): few, ("Swing", "tuned"): enough}) == []
    claims = {claim.text: claim for claim in make_claims({("Ant", "adaptive"): enough})}
    failed = claims["On Ant (adaptive), Adam fails: it has less than half of AdaTerm's return."]
    assert (failed.bound, failed.note) == (FAILED, "That less than half is a failure is ours.")


def test_the_speed_tells_trials_that_shared_a_core_from_those_that_did_not():
    settings = Reinforcement(tasks=("Swing",), seeds=4)
    trials = settings.trials(["Adam"])
    shared = {"episodes": 2000, "steps": 1_000_000, "seconds": 1000.0, "together": 3}
    alone = {"episodes": 1000, "steps": 500_000, "seconds": 1000.0, "together": 1}  # timed over its second half
    common = {"return": 1.0, "returns": [1.0] * 2000, "checks": [1.0], "checked": [2000], "steps": 1_000_000}
    results = [
        Result(trial, {**common, "measured": measured}, {})
        for trial, measured in zip(trials, [shared, shared, shared, alone], strict=True)
    ]
    speed = settings.section(results).tables[-1]
    assert speed.title == "Speed"
    hours = [format_number(it * 2000 / 3600) for it in (1, 144, 72)]
    assert speed.rows[0] == ["Swing, specified", "1", "500", "128", *hours]
    hours = [format_number(it * 1000 / 3600) for it in (1, 144, 72)]
    assert speed.rows[1] == ["Swing, specified", "3", format_number(1000), "256", *hours]
    assert "too low" in speed.note
    assert "too low" not in settings.section(results[:3]).tables[-1].note


@pytest.mark.parametrize("variant", ["specified", "tuned", "adaptive"])
def test_seeds_side_by_side_do_what_they_do_alone(monkeypatch, variant):
    def reset(self, seed=0):
        found = swing_reset(self, seed)
        self.steps = 11 * (seed % 5)  # episodes of unequal lengths
        return found

    swing_reset = environments.Swing.reset
    monkeypatch.setattr(environments.Swing, "reset", reset)
    tiny = {"tasks": ("Swing",), "variants": (variant,), "episodes": 4, "batches": 5, "hidden": (8,), "seeds": 3}
    together, alone = Reinforcement(**tiny, side_by_side=3), Reinforcement(**tiny, side_by_side=1)
    trials = together.trials(["AdaTerm"])
    assert len({together.together(it) for it in trials}) == 1
    assert len({alone.together(it) for it in trials}) == 3
    side = together.run(trials, "cpu", lambda fraction: None)
    assert len({it["steps"] for it in side}) > 1
    for trial, found in zip(trials, side, strict=True):
        (one,) = alone.run([trial], "cpu", lambda fraction: None)
        np.testing.assert_allclose(one["test_returns"], found["test_returns"], rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(one["returns"], found["returns"], rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("method", ["Adam", "RAdam", "t-Adam", "AdaTerm", "AdaTerm (gradient init)", "RobustAdamW"])
@pytest.mark.parametrize("variant", ["specified", "tuned", "adaptive"])
def test_what_is_interrupted_goes_on_as_if_it_were_not(tmp_path, monkeypatch, variant, method):
    settings = Reinforcement(
        tasks=("Swing",), variants=(variant,), episodes=6, test_episodes=2, batches=5, hidden=(8,), seeds=2
    )
    trials = settings.trials([method])
    whole = settings.run(trials, "cpu", lambda fraction: None)
    monkeypatch.setattr(rl, "EVERY", 0.0)

    def interrupt(fraction):
        if fraction > 0.6:
            raise KeyboardInterrupt

    with scratch.use_folder(str(tmp_path), "batch"):
        with pytest.raises(KeyboardInterrupt):
            settings.run(trials, "cpu", interrupt)
        assert len(scratch.load()["returns"]) == 3
        busy = scratch.load()["busy"]
        resumed = settings.run(trials, "cpu", lambda fraction: None)
    for left, right in zip(whole, resumed, strict=True):
        assert left["measured"].pop("seconds") > 0.0
        assert right["measured"].pop("seconds") > busy / len(trials)
        assert left == right
    kept = np.load(tmp_path / "kept" / f"{trials[0].key}.npz")
    assert kept["layer0"].shape == (2, 8)
    scratch.forget(str(tmp_path), "batch")
    assert not list((tmp_path / "checkpoints").iterdir())


KILLED = """
import os, signal, sys
from test_rl import run_saving
def progress(fraction):
    if fraction > 0.5:
        os.kill(os.getpid(), signal.SIGKILL)
run_saving(sys.argv[1], sys.argv[2], progress)
"""


def run_saving(task, out, progress):
    """Returns, test returns and steps of two trials that write a checkpoint after every episode."""
    rl.EVERY = 0.0
    torch.set_num_threads(1)
    short = {"episodes": 5, "checks": 1, "test_episodes": 1, "batches": 4, "hidden": (16,), "seeds": 2}
    settings = Reinforcement(tasks=(task,), variants=("tuned",), **short)
    with scratch.use_folder(out, "batch"):
        outcomes = settings.run(settings.trials(["AdaTerm"]), "cpu", progress)
    return [[it["returns"], it["test_returns"], it["steps"]] for it in outcomes]


@pytest.mark.parametrize("task", ["Swing", "Ant"])
def test_what_is_killed_goes_on_in_another_process(tmp_path, task, monkeypatch):
    if task == "Ant":
        pytest.importorskip("pybullet_envs_gymnasium", reason="no simulator")
    monkeypatch.setattr(rl, "EVERY", rl.EVERY)  # restored when the test ends
    code = [sys.executable, "-W", "ignore", "-c", KILLED, task, str(tmp_path / "killed")]
    killed = subprocess.run(code, capture_output=True, text=True, timeout=300, check=False, cwd=Path(__file__).parent)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert list((tmp_path / "killed/checkpoints").iterdir())
    resumed, whole = (run_saving(task, str(tmp_path / out), lambda fraction: None) for out in ("killed", "whole"))
    assert resumed == whole


@pytest.mark.parametrize("task", ["Swing", "Hopper"])
def test_tests_leave_what_is_learnt_alone(task):
    if task == "Hopper":
        pytest.importorskip("pybullet_envs_gymnasium", reason="no simulator")
    found = [
        Reinforcement(tasks=(task,), episodes=4, checks=checks, batches=4, hidden=(8,), seeds=1, test_episodes=1)
        for checks in (1, 4)
    ]
    few, many = (it.run(it.trials(["Adam"]), "cpu", lambda fraction: None)[0] for it in found)
    assert few["returns"] == many["returns"]
    assert few["test_returns"] == many["test_returns"]


def test_the_specified_variant_is_that_of_the_paper_and_our_page():
    wanted = {"lr": 1e-4, "gamma": 0.99, "replay": 10_000, "batch_size": 32, "epsilon": 0.2, "follow": 0.005}
    for condition in Reinforcement().conditions():
        choices = condition["choices"]
        assert wanted.items() <= choices.items()
        assert (choices["batches"], tuple(choices["hidden"])) == (128, (100,) * 5)
        assert not any(choices[it] for it in ("trace", "anchored", "bounded", "entropy", "decay", "normalise"))
    assert Reinforcement().episodes == 2000


def test_a_broken_checkpoint_counts_as_none(tmp_path):
    with scratch.use_folder(str(tmp_path), "batch"):
        scratch.save({"returns": [1.0]})
        (tmp_path / "checkpoints" / "batch.pt").write_bytes(b"nothing")
        assert scratch.load() is None


def test_a_checkpoint_that_does_not_fit_is_named(tmp_path):
    settings = Reinforcement(tasks=("Swing",), episodes=1, test_episodes=1, batches=2, hidden=(8,), seeds=1)
    order = Order("adaterm_bench.experiments.rl.experiment", settings, ["Adam"], None, "smoke")
    (batch,) = order.batches((), {}, str(tmp_path))
    with scratch.use_folder(str(tmp_path), batch.key):
        scratch.save({"learner": {}, "returns": [], "looks": []})
    assert f"checkpoints/{batch.key}.pt; delete that" in attempt(batch, "cpu", lambda fraction: None).error
    scratch.forget(str(tmp_path), batch.key)
    assert attempt(batch, "cpu", lambda fraction: None).outcomes


@pytest.mark.parametrize(
    ("missing", "task"), [("gymnasium", "Hopper"), ("mujoco", "Ant (MuJoCo)"), ("pybullet_envs_gymnasium", "Ant")]
)
def test_a_missing_simulator_is_named(monkeypatch, missing, task):
    if missing != "gymnasium":
        pytest.importorskip("gymnasium", reason="gymnasium is not installed")
    for name in [it for it in sys.modules if it.startswith("gymnasium.envs.mujoco")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MissingSimulatorError, match=r"pip install '.\[rl\]'"):
        environments.make(task)


@pytest.mark.parametrize("task", ["Hopper", "Ant", "Hopper (MuJoCo)", "Ant (MuJoCo)"])
def test_the_simulators_run(task, capfd):
    pytest.importorskip("gymnasium", reason="gymnasium is not installed")
    pytest.importorskip("mujoco" if "MuJoCo" in task else "pybullet_envs_gymnasium", reason="no simulator")
    settings = Reinforcement(tasks=(task,), episodes=1, test_episodes=1, batches=2, hidden=(8,), seeds=1)
    settings.prepare()
    (outcome,) = settings.run(settings.trials(["Adam"]), "cpu", lambda fraction: None)
    assert np.isfinite(outcome["return"])
    assert outcome["steps"] > 0
    assert "argv" not in capfd.readouterr().out
