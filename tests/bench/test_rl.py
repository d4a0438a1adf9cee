"""The actor-critic: its distribution, its surrogate, its memory, that it learns, and that it can be interrupted."""

import sys

import numpy as np
import pytest
import scipy.stats
import torch

from adaterm_bench import actor_critic, environments, scratch
from adaterm_bench.actor_critic import (
    Choices,
    Learner,
    Replay,
    draw,
    episode,
    log_density,
    split,
    summed_back,
    surrogate,
)
from adaterm_bench.environments import MissingSimulatorError
from adaterm_bench.experiments import rl
from adaterm_bench.experiments.rl import Reinforcement

SMALL = Choices(hidden=(16, 16), batches=20, replay=500)


def learner(choices=SMALL, seeds=(0, 1), lr=3e-3):
    return Learner(choices, seeds, (2, 1), lambda own: torch.optim.Adam(own, lr))


@pytest.mark.parametrize("dof", [0.7, 1.0, 4.0, 300.0])
def test_the_density_is_scipys(dof):
    draws = np.random.default_rng(0)
    location, scale = draws.normal(size=3), draws.uniform(0.2, 2.0, 3)
    actions = draws.normal(size=(50, 3)) * 3.0
    wanted = scipy.stats.multivariate_t(location, np.diag(scale**2), df=dof).logpdf(actions)
    found = log_density(*(torch.tensor(it, dtype=torch.float64) for it in (actions, location, scale, [dof])))
    np.testing.assert_allclose(found, wanted, rtol=1e-9)


def test_actions_are_drawn_from_that_density_with_one_chi_square_for_all_dimensions():
    draws = np.random.default_rng(1)
    location, scale = np.array([1.0, -2.0, 0.5], np.float32), np.array([0.5, 1.0, 2.0], np.float32)
    found = np.stack([draw(location, scale, 3.0, draws) for _ in range(20_000)]).astype(np.float64)
    normal = (found - location) / scale
    assert scipy.stats.kstest(np.square(normal).sum(1) / 3, scipy.stats.f(3, 3.0).cdf).pvalue > 1e-3
    for column in normal.T:
        assert scipy.stats.kstest(column, scipy.stats.t(3.0).cdf).pvalue > 1e-3
    sizes = np.abs(normal)  # independent t's would have independent sizes
    assert scipy.stats.spearmanr(sizes[:, 0], sizes[:, 1]).statistic > 0.15


@pytest.mark.parametrize("advantage", [2.0, -0.3])
def test_nothing_is_gained_beyond_the_edge(advantage):
    epsilon = 0.2
    edge = np.sign(advantage) * epsilon  # of the relative ratio less 1
    ratio = torch.tensor([1.0, (1 + edge) / (1 - edge)], dtype=torch.float64, requires_grad=True)
    gain = surrogate(ratio, torch.tensor(advantage, dtype=torch.float64), epsilon)
    slope = torch.autograd.grad(gain.sum(), ratio)[0]
    assert gain[0].item() == pytest.approx(advantage)
    assert slope[0].item() == pytest.approx(advantage)
    assert slope[1].item() == pytest.approx(0.0, abs=1e-12)


def test_the_replay_keeps_the_last_steps():
    replay = Replay(2, 4, 1, 1)
    for number in range(6):
        replay.add(0, state=number, next=number + 1, action=0.0, log_density=0.0, reward=number, goes_on=1, last=0)
    assert replay.fields["reward"][0].tolist() == [4, 5, 2, 3]
    replay.add(1, state=9, next=9, action=0.0, log_density=0.0, reward=9, goes_on=1, last=0)
    generators = [np.random.default_rng(0), np.random.default_rng(1)]
    chosen = replay.indices(generators, 3, 5)
    assert chosen.shape == (2, 3, 5)
    assert chosen[1].max() == 0


def test_a_bounded_policy_has_bounded_scales():
    out = torch.randn(50, 2 * 3 + 1, generator=torch.Generator().manual_seed(0)) * 100.0
    location, scale, dof = split(out, bounded=True)
    assert (location.shape[-1], scale.shape[-1], dof.shape[-1]) == (3, 3, 1)
    assert scale.min() >= 0.05
    assert scale.max() <= 1.0
    assert dof.min() >= 1.0
    assert split(out, bounded=False)[1].max() > 1.0


def test_an_anchored_policy_is_held_where_it_was_when_the_episode_ended():
    """With one batch, the ratio to the anchor is 1 and that to the density of the action's time need not be."""
    found = learner(Choices(hidden=(8,), batches=1, replay=300, trace=0.9, anchored=True), (0,))
    episode(found, [environments.make("Swing")], [0], explore=True)
    found.replay.fields["log_density"][:] += 0.5  # as if the policy had drawn its actions with higher density
    ratios = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(actor_critic, "surrogate", lambda ratio, advantage, epsilon: ratios.append(ratio) or ratio)
        found.learn()
    torch.testing.assert_close(ratios[0], torch.ones_like(ratios[0]))
    filled = {name: torch.from_numpy(it) for name, it in found.replay.filled().items()}
    assert found._traced(filled)["trust"].max() < 1.0
    with pytest.raises(ValueError, match="trace"):
        Choices(anchored=True)


def test_a_time_limit_is_not_an_end():
    """The mass that is pushed out of the room ends the task; one that stays is cut off, and the task would go on."""
    found = learner(seeds=(0,))

    class Pushed(environments.Swing):
        def step(self, action):
            return super().step(np.array([5.0]))

    for world, goes_on in ((environments.Swing(), 1.0), (Pushed(), 0.0)):
        episode(found, [world], [3], explore=True)
        place = (found.replay.count[0] - 1) % 500
        assert found.replay.fields["goes_on"][0, place] == goes_on
        assert found.replay.fields["last"][0, place] == 1.0


def test_sums_go_back_through_an_episode():
    surprise = np.array([[1.0], [2.0], [3.0]], np.float32)  # the newest first
    assert summed_back(surprise, np.full((3, 1), 0.5, np.float32)).ravel().tolist() == [1.0, 2.5, 4.25]


def test_traced_targets_of_fresh_steps_are_discounted_returns():
    """With trace 1 and a policy that has not changed, the target is the discounted return, plus the value at a cut."""
    found = learner(Choices(hidden=(8,), batches=0, replay=300, trace=1.0), (0, 1))
    for number in range(3):
        episode(found, [environments.Swing(), environments.Swing()], [number, 10 + number], explore=True)
    data = {name: torch.from_numpy(it) for name, it in found.replay.filled().items()}
    target, advantage = (found._traced(data)[name] for name in ("target", "advantage"))
    with torch.no_grad():
        ahead, now = (found.both(data[it])[1] for it in ("next", "state"))
    for seed in range(2):
        wanted = np.zeros(int(found.replay.count[seed]))
        for step in reversed(range(len(wanted))):
            cut = data["last"][seed, step] > 0
            following = ahead[seed, step].item() * data["goes_on"][seed, step].item() if cut else wanted[step + 1]
            wanted[step] = data["reward"][seed, step].item() + 0.99 * following
        np.testing.assert_allclose(target[seed, : len(wanted)], wanted, rtol=2e-4, atol=2e-4)
        gained = wanted - now[seed, : len(wanted)].numpy()
        gained /= np.sqrt((gained**2).mean())
        np.testing.assert_allclose(advantage[seed, : len(wanted)], gained, atol=2e-3)


@pytest.mark.parametrize(
    "choices",
    [
        {"follow": 0.05},
        {"trace": 0.9},
        {"trace": 0.9, "anchored": True, "bounded": True, "entropy": 0.01, "decay": True},
    ],
)
def test_it_learns(choices):
    found = learner(Choices(hidden=(32, 32), batches=30, replay=2000, **choices), (0, 1, 2), 3e-3)
    worlds = [environments.Swing() for _ in range(3)]
    returns = np.stack([(episode(found, worlds, [n, n + 1, n + 2], True), found.learn())[0] for n in range(100)])
    assert (returns[-15:].mean(0) > returns[:15].mean(0) + 5.0).all(), (returns[:15].mean(0), returns[-15:].mean(0))


@pytest.mark.parametrize("variant", ["specified", "tuned"])
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


@pytest.mark.parametrize("variant", ["specified", "tuned"])
def test_what_is_interrupted_goes_on_as_if_it_were_not(tmp_path, monkeypatch, variant):
    settings = Reinforcement(
        tasks=("Swing",), variants=(variant,), episodes=6, test_episodes=2, batches=5, hidden=(8,), seeds=2
    )
    trials = settings.trials(["AdaTerm"])
    whole = settings.run(trials, "cpu", lambda fraction: None)
    monkeypatch.setattr(rl, "EVERY", 0.0)

    def interrupt(fraction):
        if fraction > 0.6:
            raise KeyboardInterrupt

    with scratch.using(str(tmp_path), "batch"):
        with pytest.raises(KeyboardInterrupt):
            settings.run(trials, "cpu", interrupt)
        assert len(scratch.saved()["returns"]) == 3
        resumed = settings.run(trials, "cpu", lambda fraction: None)
    for left, right in zip(whole, resumed, strict=True):
        assert left.pop("seconds") > 0 < right.pop("seconds")
        assert left == right
    kept = np.load(tmp_path / "kept" / f"{trials[0].key}.npz")
    assert kept["layer0"].shape == (2, 8)
    scratch.forget(str(tmp_path), "batch")
    assert not list((tmp_path / "checkpoints").iterdir())


def test_a_broken_checkpoint_counts_as_none(tmp_path):
    with scratch.using(str(tmp_path), "batch"):
        scratch.save({"returns": [1.0]})
        (tmp_path / "checkpoints" / "batch.pt").write_bytes(b"nothing")
        assert scratch.saved() is None


@pytest.mark.parametrize(("missing", "task"), [("gymnasium", "Hopper"), ("mujoco", "Ant (MuJoCo)")])
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
