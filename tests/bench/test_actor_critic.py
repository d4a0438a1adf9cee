"""The actor-critic: its distribution, its surrogate, its memory, its targets, and that it learns."""

from typing import ClassVar

import numpy as np
import pytest
import scipy.stats
import torch

from adaterm_bench.datasets import demonstrations, environments
from adaterm_bench.experiments.rl import experiment as rl
from adaterm_bench.models import actor_critic
from adaterm_bench.models.actor_critic import (
    Choices,
    Learner,
    run_episode,
    sum_back,
    surrogate,
)
from adaterm_bench.models.replay import Replay
from adaterm_bench.models.t_policy import apply_head, apply_trunk, draw_action, log_density, split_policy

SMALL = Choices(hidden=(16, 16), batches=20, replay=500, lr=3e-3)


def learner(choices=SMALL, seeds=(0, 1), make=torch.optim.Adam):
    return Learner(choices, seeds, (2, 1), make)


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
    found = np.stack([draw_action(location, scale, 3.0, draws) for _ in range(20_000)]).astype(np.float64)
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


@pytest.mark.parametrize("advantage", [3.0, -2.0])
def test_an_adaptive_edge_is_half_as_far_as_ratios_go(advantage):
    """Of each seed on its own; what is fixed stays fixed, and the edge does not fall to nothing."""
    fixed = learner(Choices(hidden=(8,)), (0, 1))
    assert fixed.choose_epsilon(torch.full((2, 32), 3.0)) == 0.2
    found = learner(Choices(hidden=(8,), adaptive=0.01), (0, 1))
    torch.testing.assert_close(found.choose_epsilon(torch.ones(2, 32)), torch.full((2, 1), 0.99 * 0.2))
    far = torch.tensor([[1.0, 1 / 3] * 16, [1.0] * 32])  # relative ratios that are off by a half, and by nothing
    for _ in range(2000):
        epsilon = found.choose_epsilon(far)
    torch.testing.assert_close(epsilon, torch.tensor([[0.25], [0.1]]))
    ratio = torch.tensor([[(1 + edge) / (1 - edge)] for edge in (np.sign(advantage) * epsilon).ravel().tolist()])
    ratio.requires_grad_()
    slope = torch.autograd.grad(surrogate(ratio, torch.full((2, 1), advantage), epsilon).sum(), ratio)[0]
    torch.testing.assert_close(slope, torch.zeros(2, 1), rtol=0.0, atol=1e-5)


def test_trials_of_a_fixed_threshold_are_those_that_were_before_there_was_another():
    assert "adaptive" not in Choices().describe()
    assert Choices(adaptive=1e-3).describe() == {**Choices().describe(), "adaptive": 1e-3}


def test_the_replay_keeps_the_last_steps():
    replay = Replay(2, 4, 1, 1)
    for numbers in ([[0], [1, 2, 3], [4, 5]], [[0, 1, 2, 3, 4, 5]]):
        replay.count[0] = 0
        for part in map(np.array, numbers):
            state, none = part[:, None], np.zeros(len(part))
            same = {"action": none[:, None], "log_density": none, "goes_on": none + 1, "last": none}
            replay.add(0, state=state, next=state + 1, reward=part, **same)
        assert replay.fields["reward"][0].tolist() == [4, 5, 2, 3]
        assert replay.fields["next"][0, :, 0].tolist() == [5, 6, 3, 4]
    one = {name: np.zeros((1, 1)) for name in ("state", "next", "action")}
    replay.add(1, **one, log_density=[0.0], reward=[9.0], goes_on=[True], last=[False])
    generators = [np.random.default_rng(0), np.random.default_rng(1)]
    chosen = replay.indices(generators, 3, 5)
    assert chosen.shape == (2, 3, 5)
    assert chosen[1].max() == 0


def test_a_bounded_policy_has_bounded_scales():
    out = torch.randn(50, 2 * 3 + 1, generator=torch.Generator().manual_seed(0)) * 100.0
    location, scale, dof = split_policy(out, bounded=True)
    assert (location.shape[-1], scale.shape[-1], dof.shape[-1]) == (3, 3, 1)
    assert scale.min() >= 0.05
    assert scale.max() <= 1.0
    assert dof.min() >= 1.0
    assert split_policy(out, bounded=False)[1].max() > 1.0


def test_an_anchored_policy_is_held_where_it_was_when_the_episode_ended():
    """With one batch, the ratio to the anchor is 1 and that to the density of the action's time need not be."""
    found = learner(Choices(hidden=(8,), batches=1, replay=300, trace=0.9, anchored=True), (0,))
    run_episode(found, [environments.make("Swing")], [0], explore=True)
    found.replay.fields["log_density"][:] += 0.5  # as if the policy had drawn its actions with higher density
    ratios = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(actor_critic, "surrogate", lambda ratio, advantage, epsilon: ratios.append(ratio) or ratio)
        found.learn()
    torch.testing.assert_close(ratios[0], torch.ones_like(ratios[0]))
    filled = {name: torch.from_numpy(it) for name, it in found.replay.filled().items()}
    assert found.trace_targets(filled)["trust"].max() < 1.0
    with pytest.raises(ValueError, match="trace"):
        Choices(anchored=True)


def test_a_time_limit_is_not_an_end():
    """The mass that is pushed out of the room ends the task; one that stays is cut off, and the task would go on."""
    found = learner(seeds=(0,))

    class Pushed(environments.Swing):
        def step(self, action):
            return super().step(np.array([5.0]))

    for world, goes_on in ((environments.Swing(), 1.0), (Pushed(), 0.0)):
        run_episode(found, [world], [3], explore=True)
        place = (found.replay.count[0] - 1) % 500
        assert found.replay.fields["goes_on"][0, place] == goes_on
        assert found.replay.fields["last"][0, place] == 1.0


def test_sums_go_back_through_an_episode():
    surprise = np.array([[1.0], [2.0], [3.0]], np.float32)  # the newest first
    assert sum_back(surprise, np.full((3, 1), 0.5, np.float32)).ravel().tolist() == [1.0, 2.5, 4.25]


class Cut(environments.Swing):
    """Episodes of given lengths, every other of which ends the task."""

    def __init__(self, lengths):
        self.lengths, self.number = lengths, 0

    def reset(self, seed=0):
        self.number += 1
        return super().reset(seed)

    def step(self, action):
        state, reward, *_ = super().step(action)
        over = self.steps >= self.lengths[self.number % len(self.lengths)]
        return state, reward, over and self.number % 2 == 0, over and self.number % 2 == 1, {}


@pytest.mark.parametrize("normalise", [False, True])
def test_traces_are_those_of_a_loop(normalise):
    """Seeds with more steps than the replay holds and with fewer, old policies, ends and time limits."""
    choices = Choices(hidden=(16,), batches=5, replay=120, trace=0.8, anchored=True, normalise=normalise, lr=3e-3)
    found, worlds = learner(choices, (0, 1, 2)), [Cut(it) for it in ((5, 17), (40,), (9, 3, 10))]
    for number in range(9):
        run_episode(found, worlds, [number, number + 50, number + 90], explore=True)
        if number % 3 == 2 and number < 8:
            found.learn()
    assert found.replay.count[1] > 120 > found.replay.count[2]
    fields = found.replay.filled()
    data = {name: torch.from_numpy(it.copy()) for name, it in fields.items()}
    data["state"], data["next"] = (torch.from_numpy(found.normal(fields[it])) for it in ("state", "next"))
    got = {name: it.double().numpy() for name, it in found.trace_targets(data).items()}
    with torch.no_grad():
        out, now = found.both(data["state"])
        ahead = found.both(data["next"])[1].double().numpy()
        density = log_density(data["action"], *split_policy(out, bounded=False)).double().numpy()
    now, trust = now.double().numpy(), np.minimum(np.exp(density - fields["log_density"]), 1.0)
    assert 0.0 < trust.min() < 0.9
    for seed in range(3):
        count = int(found.replay.count[seed])
        places = [step % 120 for step in range(max(0, count - 120), count)]
        correction, target, advantage = 0.0, {}, {}
        for place in reversed(places):
            reward, goes_on, last = (fields[it][seed, place] for it in ("reward", "goes_on", "last"))
            following = 0.0 if last else correction
            advantage[place] = reward + 0.99 * goes_on * (ahead[seed, place] + following) - now[seed, place]
            weight = trust[seed, place]
            correction = weight * (reward + 0.99 * goes_on * ahead[seed, place] - now[seed, place])
            correction += 0.99 * 0.8 * weight * following
            target[place] = now[seed, place] + correction
        unit = np.sqrt(np.mean([(trust[seed, it] * advantage[it]) ** 2 for it in places]))
        for place in places:
            assert got["target"][seed, place] == pytest.approx(target[place], abs=1e-4)
            assert got["advantage"][seed, place] == pytest.approx(advantage[place] / unit, abs=1e-4)
            assert got["trust"][seed, place] == pytest.approx(trust[seed, place], abs=1e-5)
            assert got["anchor"][seed, place] == pytest.approx(density[seed, place], abs=1e-5)


def _one_step(found, batch):
    """What the surrogate and the loss of the value were given in one update."""
    seen = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(actor_critic, "surrogate", lambda *words: seen.update(gain=words) or words[0])
        real = torch.nn.functional.smooth_l1_loss
        patch.setattr(
            actor_critic.functional, "smooth_l1_loss", lambda v, t, **rest: seen.update(target=t) or real(v, t, **rest)
        )
        found.step(batch)
    return seen


def test_the_one_step_target_has_no_value_after_an_end():
    found = learner(Choices(hidden=(8,), follow=0.1), (0,))
    with torch.no_grad():
        for it in found.slow:
            it.add_(0.3)  # the slow copy is another network
    states = torch.randn(1, 4, 2, generator=torch.Generator().manual_seed(0))
    ends = torch.tensor([[1.0, 0.0, 1.0, 0.0]])
    batch = {"state": states, "next": states + 1.0, "action": torch.zeros(1, 4, 1), "log_density": torch.zeros(1, 4)}
    with torch.no_grad():
        ahead = apply_head(found.slow[-2:], apply_trunk(found.slow[:-2], states + 1.0)).squeeze(-1)
        value = found.both(states)[1]
    before = [it.clone() for it in found.slow]
    seen = _one_step(found, {**batch, "reward": torch.ones(1, 4), "goes_on": ends, "last": 1.0 - ends})
    torch.testing.assert_close(seen["target"], 1.0 + 0.99 * ends * ahead)
    torch.testing.assert_close(seen["gain"][1], seen["target"] - value)
    for slow, old, own in zip(found.slow, before, found.value_params(), strict=True):
        torch.testing.assert_close(slow, torch.lerp(old, own.detach(), 0.1))


def test_an_anchored_step_is_weighed_and_wide_scales_are_worth_something():
    """Where nothing is trusted, the policy moves by its entropy alone, and that makes it wider."""
    choices = Choices(hidden=(8,), trace=0.9, anchored=True, bounded=True, entropy=0.1, lr=1e-2)
    found = learner(choices, (0,))
    states, none = torch.randn(1, 32, 2, generator=torch.Generator().manual_seed(0)), torch.zeros(1, 32)
    batch = {"state": states, "action": torch.zeros(1, 32, 1), "target": none, "advantage": none + 1.0}
    scale = split_policy(found.both(states)[0], bounded=True)[1]
    for _ in range(5):
        found.step({**batch, "anchor": none, "trust": none, "log_density": none})
    after = split_policy(found.both(states)[0], bounded=True)
    assert (after[1] > scale).all()
    found.step({**batch, "anchor": none, "trust": none + 1.0, "log_density": none})
    assert not torch.equal(split_policy(found.both(states)[0], bounded=True)[0], after[0])


def test_the_learning_rate_ends_with_the_episodes():
    found = learner(Choices(hidden=(8,), batches=1, lr=3e-3, decay=True), (0,))
    run_episode(found, [environments.make("Swing")], [0], explore=True)
    found.learn(0.25)
    assert found.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.25 * 3e-3)


@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("normalise", [False, True])
def test_a_kept_policy_acts_as_its_learner(tmp_path, bounded, normalise):
    found = learner(Choices(hidden=(8,), batches=3, bounded=bounded, normalise=normalise, lr=3e-2), (0, 1))
    run_episode(found, [environments.Swing(), environments.Swing()], [0, 1], explore=True)
    found.learn()
    (tmp_path / "policy.npz").write_bytes(rl.encode_policy(found, 1))
    policy, state = demonstrations.Policy(tmp_path / "policy.npz"), np.array([0.4, -2.0], np.float32)
    wanted = [it[1] for it in found.act(np.stack([state, state]))]
    for mine, own in zip(policy.distribution(state), wanted, strict=True):
        np.testing.assert_allclose(mine, own, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        policy.location(state.astype(np.float64)), np.clip(wanted[0], -1.0, 1.0), rtol=1e-5, atol=1e-6
    )


def test_a_policy_that_is_not_finite_has_no_return_and_harms_no_other():
    found, sound = learner(seeds=(0, 1)), learner(seeds=(0, 1))
    with torch.no_grad():
        found.policy_head[1][0] = torch.nan
    returns, beside = (run_episode(it, [Picky(), Picky()], [0, 1], explore=True) for it in (found, sound))
    assert np.isnan(returns[0])
    assert returns[1] == beside[1]
    for it in (found, sound):
        it.learn(1.0)
    for left, right in zip(found.weights(1), sound.weights(1), strict=True):
        torch.testing.assert_close(left, right, rtol=0.0, atol=0.0)
    assert not torch.equal(sound.weights(1)[0], learner(seeds=(0, 1)).weights(1)[0])


class Picky(environments.Swing):
    """Refuses what is not finite, as PyBullet does."""

    def step(self, action):
        assert np.isfinite(action).all()
        return super().step(action)


def test_traced_targets_of_fresh_steps_are_discounted_returns():
    """With trace 1 and a policy that has not changed, the target is the discounted return, plus the value at a cut."""
    found = learner(Choices(hidden=(8,), batches=0, replay=300, trace=1.0), (0, 1))
    for number in range(3):
        run_episode(found, [environments.Swing(), environments.Swing()], [number, 10 + number], explore=True)
    data = {name: torch.from_numpy(it) for name, it in found.replay.filled().items()}
    target, advantage = (found.trace_targets(data)[name] for name in ("target", "advantage"))
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
        {"follow": 0.05, "adaptive": 1e-3},
        {"trace": 0.9},
        {"trace": 0.9, "anchored": True, "bounded": True, "entropy": 0.01, "decay": True},
    ],
)
def test_it_learns(choices):
    found = learner(Choices(hidden=(16, 16), batches=20, replay=2000, lr=1e-2, **choices), (0, 1))
    worlds = [environments.Swing() for _ in range(2)]
    returns = np.stack([(run_episode(found, worlds, [n, n + 1], True), found.learn())[0] for n in range(40)])
    assert (returns[-10:].mean(0) > returns[:10].mean(0) + 5.0).all(), (returns[:10].mean(0), returns[-10:].mean(0))


def test_actions_are_clipped_for_the_environment_alone():
    class Watched(environments.Swing):
        seen: ClassVar[list[float]] = []

        def step(self, action):
            self.seen.append(float(action[0]))
            return super().step(action)

    found = learner(seeds=(0,))
    with torch.no_grad():
        found.policy_head[1][0, ..., 1] += 3.0  # a wide scale
    run_episode(found, [Watched()], [0], explore=True)
    drawn = found.replay.fields["action"][0, : found.replay.count[0], 0]
    assert np.abs(drawn).max() > 1.0
    np.testing.assert_array_equal(Watched.seen, np.clip(drawn, -1.0, 1.0))
