"""The actor-critic of the paper's reinforcement learning; many seeds learn side by side.

The paper names an algorithm (PPO-RPE, Kobayashi 2023) without its details, so this is "PPO-RPE-like". It learns only
after each episode, from batches out of a small replay. Where the paper is silent:

- The advantage is r + gamma V(s') - V(s), with a slow copy of the value network for V(s'). It is without V(s') after
  a termination, but not at a time limit, after which the task would go on. With `trace` above 0 it looks further ahead:
  V-trace (Espeholt et al., 2018), which trusts old actions only as far as the policy would still take them. Targets and
  advantages are then made once, at the episode's end, by the value network as it is: there is no use for a slow copy.
- The ratio of densities is taken against that with which the action was drawn. With the relative ratio
  rho / (rho / 2 + 1 / 2), its penalty is (C / 4) (rho - 1)^2 / (rho + 1), C = 4 |A| / (eps (2 - sign(A) eps)): at the
  edge of the range that eps allows, nothing more can be gained. A replay holds actions of policies long gone, and the
  penalty draws the new one back to them. If `anchored` the ratio is taken against the policy at the episode's end, and
  old steps only tell what is good, with V-trace's weight (the decoupled objective of Hilton et al., 2022).
- How large eps should be depends on how far ratios are from 1 at all, which depends on what they are taken against. The
  relative ratio less 1, (rho - 1) / (rho + 1), is symmetric and between -1 and 1, so that its size is easy to estimate,
  and PPO-RPE's abstract says that eps is adapted to it. How, we do not know. If `adaptive`, ours is half of the largest
  size lately seen. A typical size in its place, a root mean square, falls with eps, which holds it down, to nothing.
- Actions are clipped to -1 and 1 for the environment alone; the policy's density is that of the action before. Nothing
  holds such a policy's scale: it can grow far beyond that range, or shrink until an update moves the location by many
  scales. If `bounded`, it stays between 0.05 and 1. `entropy` rewards its logarithm, so that exploration ends later.

Every tensor has a leading dimension of seeds (those of hidden layers: the policies', then the values'), and every seed
has its own optimizer, generator, replay and environment.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from adaterm_bench.models.replay import Replay
from adaterm_bench.models.t_policy import (
    Array,
    apply_head,
    apply_trunk,
    draw_action,
    log_density,
    make_layers,
    normalise,
    split_policy,
)

MakeOptimizer = Callable[[list[Tensor], float], torch.optim.Optimizer]  # of tensors and a learning rate
LEAST_EPSILON = 0.1  # of an adaptive one


@dataclass(frozen=True)
class Choices:
    """What the paper says, and what it does not."""

    hidden: tuple[int, ...] = (100,) * 5
    lr: float = 1e-4
    gamma: float = 0.99
    replay: int = 10_000  # the last so many steps
    batches: int = 128  # after each episode
    batch_size: int = 32
    epsilon: float = 0.2  # how far the relative density ratio may go
    follow: float = 0.005  # how fast the slow copy of the value network follows
    trace: float = 0.0  # 0: one step ahead; towards 1: further
    anchored: bool = False  # penalise leaving the policy of the episode's end, not that which drew the action
    bounded: bool = False  # the policy's scales lie between 0.05 and 1
    entropy: float = 0.0  # reward for the logarithms of scales, in units of the advantages
    decay: bool = False  # the learning rate falls linearly to nothing at the last episode
    normalise: bool = False  # observations, by their running mean and standard deviation
    adaptive: float = 0.0  # how fast the largest relative ratio is forgotten, of which eps is half; 0: eps is fixed

    def __post_init__(self) -> None:
        if (self.anchored or self.entropy) and not self.trace:
            raise ValueError("`anchored` and `entropy` go with V-trace's weights and units: `trace` must be above 0")

    def describe(self) -> dict[str, Any]:
        """All of it as plain data, as trials are told apart by it; what came later is left out where it is not used."""
        return {name: value for name, value in asdict(self).items() if name != "adaptive" or value}


def sum_back(surprise: Array, carried: Array) -> Array:
    """Each step's surprise and what the steps after it carry back; the newest step comes first."""
    sums = np.empty_like(surprise)
    following = np.zeros_like(surprise[0])
    for place in range(len(surprise)):
        following = surprise[place] + carried[place] * following
        sums[place] = following
    return sums


def surrogate(ratio: Tensor, advantage: Tensor, epsilon: float | Tensor) -> Tensor:
    """What the policy maximises: the advantage at the ratio of densities, less the penalty on leaving 1."""
    limit = 4.0 * advantage.abs() / (epsilon * (2.0 - advantage.sign() * epsilon))
    return ratio * advantage - limit / 4.0 * (ratio - 1.0).square() / (ratio + 1.0)


class Learner:
    """Policies and values of many seeds, and how they learn."""

    def __init__(self, choices: Choices, seeds: Sequence[int], spaces: tuple[int, int], make: MakeOptimizer) -> None:
        self.choices, self.seeds, (observation, self.dimension) = choices, list(seeds), spaces
        policy = make_layers(seeds, (observation, *choices.hidden, 2 * self.dimension + 1), 0)
        value = make_layers(seeds, (observation, *choices.hidden, 1), 1)
        # The hidden layers of both networks lie one behind the other, so that one pass goes through both.
        self.hidden = [torch.cat(pair).requires_grad_() for pair in zip(policy[:-2], value[:-2], strict=True)]
        self.policy_head, self.value_head = (
            [tensor.requires_grad_() for tensor in tensors[-2:]] for tensors in (policy, value)
        )
        self.params = [*self.hidden, *self.policy_head, *self.value_head]
        self.slow = [tensor.detach().clone() for tensor in self.value_params()]
        self.slices = [
            self._slice([parameter.detach() for parameter in self.params], place) for place in range(len(seeds))
        ]
        self.optimizers = [make(tensors, choices.lr) for tensors in self.slices]
        self.replay = Replay(len(seeds), choices.replay, observation, self.dimension)
        self.generators = [np.random.default_rng([seed, 11]) for seed in seeds]
        self.moments = np.zeros((3, len(seeds), observation))  # count, mean and sum of squares of the observations
        self.reach = torch.full((len(seeds),), 2.0 * choices.epsilon)  # the largest relative ratio less 1 lately seen

    def _policy_params(self) -> list[Tensor]:
        return [*(layer[: len(self.seeds)] for layer in self.hidden), *self.policy_head]

    def value_params(self) -> list[Tensor]:
        """The layers of the value network."""
        return [*(layer[len(self.seeds) :] for layer in self.hidden), *self.value_head]

    def _slice(self, stacked: Sequence[Tensor], place: int) -> list[Tensor]:
        """What belongs to one seed of tensors such as `params`: the layers of its policy, then of its value."""
        hidden, heads = stacked[:-4], stacked[-4:]
        both = [[layer[place + shift] for layer in hidden] for shift in (0, len(self.seeds))]
        return [*both[0], *(tensor[place] for tensor in heads[:2]), *both[1], *(tensor[place] for tensor in heads[2:])]

    def weights(self, place: int) -> list[Tensor]:
        """One seed's policy, layer by layer."""
        return [tensor.detach()[place] for tensor in self._policy_params()]

    def both(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """What the policy network gives, and the values."""
        hidden = apply_trunk(self.hidden, torch.cat([states, states]))
        policy, value = hidden.chunk(2)
        return apply_head(self.policy_head, policy), apply_head(self.value_head, value).squeeze(-1)

    @torch.inference_mode()
    def act(self, states: Array) -> tuple[Array, Array, Array]:
        """Location, scale and degrees of freedom in one state of every seed."""
        policy = self._policy_params()
        out = apply_head(policy[-2:], apply_trunk(policy[:-2], torch.from_numpy(self.normal(states))[:, None]))
        location, scale, dof = (part[:, 0].numpy() for part in split_policy(out, self.choices.bounded))
        return location, scale, dof

    def seen(self, seed: int, state: Array) -> None:
        """Let an observation into the running moments."""
        count, mean, squares = self.moments[:, seed]
        count += 1.0
        before = state - mean
        mean += before / count
        squares += before * (state - mean)

    def normal(self, states: Array) -> Array:
        """Observations (seeds first) as the networks see them."""
        return normalise(states, self.moments) if self.choices.normalise else states

    def learn(self, left: float = 1.0) -> None:
        """All batches that follow an episode; `left` is the share of learning that is still to come."""
        for optimizer in self.optimizers:
            optimizer.param_groups[0]["lr"] = self.choices.lr * (left if self.choices.decay else 1.0)
        fields = self.replay.filled()
        data = {name: torch.from_numpy(each) for name, each in fields.items()}
        data["state"], data["next"] = (torch.from_numpy(self.normal(fields[name])) for name in ("state", "next"))
        if self.choices.trace:
            data |= self.trace_targets(data)
        chosen = self.replay.indices(self.generators, self.choices.batches, self.choices.batch_size)
        rows = torch.arange(len(self.seeds))[:, None]
        for batch in torch.from_numpy(chosen).unbind(1):
            self.step({name: array[rows, batch] for name, array in data.items()})

    def step(self, batch: dict[str, Tensor]) -> None:
        """Learn from one batch."""
        out, value = self.both(batch["state"])
        with torch.no_grad():
            if "target" in batch:
                target, advantage = batch["target"], batch["advantage"]
            else:
                ahead = apply_head(self.slow[-2:], apply_trunk(self.slow[:-2], batch["next"])).squeeze(-1)
                target = batch["reward"] + self.choices.gamma * batch["goes_on"] * ahead
                advantage = target - value
        location, scale, dof = split_policy(out, self.choices.bounded)
        density = log_density(batch["action"], location, scale, dof)
        anchor, weight = (batch["anchor"], batch["trust"]) if self.choices.anchored else (batch["log_density"], 1.0)
        ratio = (density - anchor).clamp(-10.0, 10.0).exp()
        gain = weight * surrogate(ratio, advantage, self.choose_epsilon(ratio.detach()))
        loss = functional.smooth_l1_loss(value, target, reduction="none") - gain
        if self.choices.entropy:
            loss = loss - self.choices.entropy * scale.log().sum(-1)
        gradients = torch.autograd.grad(loss.mean(1).sum(), self.params)
        for place, (parameters, optimizer) in enumerate(zip(self.slices, self.optimizers, strict=True)):
            for parameter, gradient in zip(parameters, self._slice(gradients, place), strict=True):
                parameter.grad = gradient
            optimizer.step()
        if not self.choices.trace:
            with torch.no_grad():
                torch._foreach_lerp_(self.slow, self.value_params(), self.choices.follow)

    def choose_epsilon(self, ratio: Tensor) -> float | Tensor:
        """How far relative ratios may go from 1: a fixed size, or for each seed theirs, which this batch changes."""
        if not self.choices.adaptive:
            return self.choices.epsilon
        largest = ((ratio - 1.0) / (ratio + 1.0)).abs().amax(1)
        torch.maximum(self.reach * (1.0 - self.choices.adaptive), largest, out=self.reach)
        return (0.5 * self.reach).clamp_min(LEAST_EPSILON)[:, None]

    @torch.no_grad()
    def trace_targets(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        """V-trace's targets of the value and advantages, for the whole memory, as the networks are now.

        Advantages are in units of their root mean square, each with its weight.
        """
        gamma, trace = self.choices.gamma, self.choices.trace
        out, now = self.both(data["state"])
        density = log_density(data["action"], *split_policy(out, self.choices.bounded))
        trust = (density - data["log_density"]).clamp(-10.0, 10.0).exp().clamp_max(1.0)
        rows = torch.arange(len(now))[:, None]
        filled = now.shape[1]
        order = (torch.from_numpy(self.replay.count[:, None]) - 1 - torch.arange(filled)) % filled  # the newest first
        ahead = self._find_values_ahead(data, now, rows, order)
        surprise = trust * (data["reward"] + gamma * data["goes_on"] * ahead - now)
        carried = gamma * trace * trust * (1.0 - data["last"])
        corrections = sum_back(*(column[rows, order].T.numpy() for column in (surprise, carried))).T
        correction, after = torch.zeros(2, *now.shape)
        correction[rows, order] = torch.from_numpy(corrections)
        after[rows, order[:, 1:]] = torch.from_numpy(corrections[:, :-1])  # the correction of the step that follows
        bootstrap = ahead + after * (1.0 - data["last"])
        advantage = data["reward"] + gamma * data["goes_on"] * bootstrap - now
        counts = torch.from_numpy(self.replay.count[:, None]).clamp_max(filled)
        weighed = (trust * advantage).where(torch.arange(filled) < counts, 0.0)  # others have more steps by now
        advantage /= (weighed.square().sum(1, keepdim=True) / counts).sqrt().clamp_min(1e-6)
        return {"target": now + correction, "advantage": advantage, "anchor": density, "trust": trust}

    def _find_values_ahead(self, data: dict[str, Tensor], now: Tensor, rows: Tensor, order: Tensor) -> Tensor:
        """The value after each step: it is that of the step that follows, which is known, but at an episode's end.

        The newest step is such an end: nothing is learnt before.
        """
        ahead = torch.empty_like(now)
        ahead[rows, order[:, 1:]] = now[rows, order[:, :-1]]
        ends = data["last"].int()
        places = ends.topk(int(ends.sum(1).max())).indices  # more than a seed's ends do no harm
        value = self.value_params()
        ahead[rows, places] = apply_head(value[-2:], apply_trunk(value[:-2], data["next"][rows, places])).squeeze(-1)
        return ahead

    def state_dict(self) -> dict[str, Any]:
        """All that a later run needs to go on."""
        return {
            "params": [parameter.detach() for parameter in self.params],
            "slow": self.slow,
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "replay": {name: torch.from_numpy(each) for name, each in self.replay.fields.items()},
            "count": torch.from_numpy(self.replay.count),
            "moments": torch.from_numpy(self.moments),
            "reach": self.reach,
            "generators": [generator.bit_generator.state for generator in self.generators],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        with torch.no_grad():
            for tensor, saved in zip([*self.params, *self.slow], [*state["params"], *state["slow"]], strict=True):
                tensor.copy_(saved)
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        for name, each in self.replay.fields.items():
            each[...] = state["replay"][name].numpy()
        self.replay.count[...] = state["count"].numpy()
        self.moments[...] = state["moments"].numpy()
        self.reach.copy_(state.get("reach", self.reach))
        for generator, saved in zip(self.generators, state["generators"], strict=True):
            generator.bit_generator.state = saved


def run_episode(
    learner: Learner, environments: Sequence[Any], resets: Sequence[int], explore: bool
) -> NDArray[np.float64]:
    """One episode of every seed, in step with each other, and its return; with `explore` it is remembered.

    A policy that is not finite any more does nothing, and its return is NaN.
    """
    states = np.stack(
        [environment.reset(seed=seed)[0] for environment, seed in zip(environments, resets, strict=True)]
    ).astype(np.float32)
    returns, running = np.zeros(len(environments)), list(range(len(environments)))
    episodes: list[dict[str, list[Any]]] = [defaultdict(list) for _ in environments]
    while running:
        location, scale, dof = learner.act(states)
        actions = location.copy()
        for place in list(running):
            if explore:  # an ended episode draws no more, or its seed would depend on its neighbours
                distribution = location[place], scale[place], dof[place]
                actions[place] = draw_action(*distribution[:2], float(distribution[2][0]), learner.generators[place])
            action = np.clip(np.nan_to_num(actions[place]), -1.0, 1.0)
            after, reward, terminated, truncated, _ = environments[place].step(action)
            returns[place] += reward if np.isfinite(actions[place]).all() else np.nan
            if explore:
                if learner.choices.normalise:
                    learner.seen(place, states[place])
                step = {
                    "state": states[place].copy(),
                    "next": np.array(after),
                    "action": actions[place],
                    "reward": reward,
                }
                step |= {"goes_on": not terminated, "last": terminated or truncated, "distribution": distribution}
                for name, value in step.items():
                    episodes[place][name].append(value)
            states[place] = after
            if terminated or truncated:
                running.remove(place)
    for place, steps in enumerate(episodes):
        if explore:
            columns = [np.array(column) for column in zip(*steps.pop("distribution"), strict=True)]
            densities = _compute_densities(np.array(steps["action"]), *columns)
            learner.replay.add(place, log_density=densities, **steps)
    return returns


@torch.inference_mode()
def _compute_densities(*columns: Array) -> Array:
    densities: Array = log_density(*(torch.from_numpy(column) for column in columns)).numpy()
    return densities
