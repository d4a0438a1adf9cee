"""Reinforcement learning of Hopper and Ant (section 6.1, appendix D)."""

import io
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from adaterm_bench.core import scratch
from adaterm_bench.core.experiment import Experiment, Progress, grid, setting
from adaterm_bench.core.section import Section
from adaterm_bench.core.trial import Result, Trial
from adaterm_bench.datasets import environments
from adaterm_bench.datasets.environments import TASKS
from adaterm_bench.methods import OUR_METHODS, PAPER_METHODS, make_optimizer
from adaterm_bench.models.actor_critic import Choices, Learner, run_episode

VARIANTS = {
    "specified": Choices(),
    "traced": Choices(lr=3e-4, trace=0.95, epsilon=0.05),  # this and the next: steps between the two
    "anchored": Choices(lr=3e-4, trace=0.95, epsilon=0.05, anchored=True),
    "tuned": Choices(lr=3e-4, trace=0.95, epsilon=0.05, anchored=True, bounded=True, entropy=0.01, decay=True),
    "adaptive": Choices(adaptive=1e-3),  # this and the next: at the paper's learning rate
    "adaptive-tuned": Choices(trace=0.95, adaptive=1e-3, anchored=True, bounded=True, entropy=0.01, decay=True),
}
EVERY = 60.0  # seconds between checkpoints
LOOK, FINAL = 10_000_000, 20_000_000  # numbers of test episodes, beyond those of training


@dataclass(frozen=True)
class Reinforcement(Experiment):
    """An actor-critic learns to walk, from a replay of its last steps, after each episode."""

    name: ClassVar[str] = "rl"
    title: ClassVar[str] = "Reinforcement learning"
    version: ClassVar[int] = 1
    methods: ClassVar[tuple[str, ...]] = (*PAPER_METHODS, *OUR_METHODS)
    on_gpu: ClassVar[bool] = False
    resumes: ClassVar[bool] = True
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "smoke": {"seeds": 2, "tasks": ("Swing",), "episodes": 3, "test_episodes": 2, "batches": 4, "hidden": (8, 8)},
        "quick": {"seeds": 2, "tasks": ("Hopper (MuJoCo)",), "episodes": 60, "checks": 6, "test_episodes": 5},
        "paper": {},
    }

    seeds: int = grid(24, "number of seeds", least=1)
    tasks: tuple[str, ...] = grid(("Hopper", "Ant"), "what is to be learnt", tuple(TASKS))
    variants: tuple[str, ...] = grid(("specified",), "of the algorithm", tuple(VARIANTS))
    side_by_side: int = grid(3, "seeds that learn side by side in one process", least=1)
    episodes: int = setting(2000, "episodes to learn from", least=1)
    checks: int = setting(40, "times that the policy is tested while it learns", least=1)
    check_episodes: int = setting(3, "episodes of such a test, without exploration", least=1)
    test_episodes: int = setting(20, "episodes to test the final policy in, likewise", least=1)
    batches: int = setting(128, "batches of 32 to learn from after each episode", least=1)
    hidden: tuple[int, ...] = setting((100,) * 5, "widths of the hidden layers", least=1)

    def conditions(self) -> list[dict[str, Any]]:
        """A task, and a variant of the algorithm."""
        return [
            {"task": task, "variant": variant, "choices": _adapt_choices(VARIANTS[variant], self, task).describe()}
            for task in self.tasks
            for variant in self.variants
        ]

    def together(self, trial: Trial) -> Any:
        """Some seeds of a method on a task."""
        return trial.condition["task"], trial.condition["variant"], trial.seed // self.side_by_side

    def prepare(self) -> None:
        """Find out now whether the simulators are there."""
        for task in self.tasks:
            environments.make(task).close()

    def run(self, trials: list[Trial], device: str, progress: Progress) -> list[dict[str, Any]]:
        """All trials side by side, episode by episode; what a crash interrupts goes on from the last checkpoint."""
        task, variant, method = trials[0].condition["task"], trials[0].condition["variant"], trials[0].method
        worlds = [environments.make(task) for _ in trials]
        spaces = worlds[0].observation_space.shape[0], worlds[0].action_space.shape[0]
        choices = _adapt_choices(VARIANTS[variant], self, task)
        learner = Learner(choices, [trial.seed for trial in trials], spaces, partial(make_optimizer, method))
        returns: list[list[float]] = []
        checks: list[tuple[int, list[float]]] = []
        last, busy = time.monotonic(), 0.0
        if (saved := scratch.load()) is not None:
            learner.load_state_dict(saved["learner"])
            returns, checks, busy = saved["returns"], saved["checks"], saved["busy"]

        def tested(first: int, count: int) -> list[list[float]]:
            resets = [_list_resets(trials, first + number) for number in range(count)]
            return [run_episode(learner, worlds, reset, explore=False).tolist() for reset in resets]

        for number in range(len(returns), self.episodes):
            start = time.process_time()
            returns.append(run_episode(learner, worlds, _list_resets(trials, number), explore=True).tolist())
            learner.learn(1.0 - number / self.episodes)
            busy += time.process_time() - start
            if (number + 1) * self.checks // self.episodes > number * self.checks // self.episodes:
                checks.append((number + 1, np.mean(tested(LOOK + number, self.check_episodes), 0).tolist()))
            progress((number + 1) / self.episodes)
            if time.monotonic() - last > EVERY:
                last = time.monotonic()
                scratch.save({"learner": learner.state_dict(), "returns": returns, "checks": checks, "busy": busy})
        tests = tested(FINAL, self.test_episodes)
        for world in worlds:
            world.close()
        for place, trial in enumerate(trials):
            scratch.keep(f"{trial.key}.npz", encode_policy(learner, place))
        return [
            {
                "return": float(np.mean([test[place] for test in tests])),
                "test_returns": [test[place] for test in tests],
                "checked": [number for number, _ in checks],
                "checks": [round(means[place], 2) for _, means in checks],
                "returns": [round(value[place], 2) for value in returns],
                "steps": int(learner.replay.count[place]),
                "measured": {  # what was timed; CPU seconds are the trial's share of its batch's
                    "episodes": self.episodes,
                    "steps": int(learner.replay.count[place]),
                    "seconds": round(busy / len(trials), 3),
                    "together": len(trials),
                },
            }
            for place in range(len(trials))
        ]

    def section(self, results: list[Result]) -> Section:
        """Learning curves, returns next to the paper's, and its claims."""
        from adaterm_bench.experiments.rl.report import section

        return section(results)


def _adapt_choices(choices: Choices, settings: Reinforcement, task: str) -> Choices:
    """MuJoCo's observations have no common scale; PyBullet's are scaled already."""
    return replace(choices, batches=settings.batches, hidden=settings.hidden, normalise="MuJoCo" in task)


def _list_resets(trials: list[Trial], number: int) -> list[int]:
    """The seeds from which an episode's worlds begin."""
    return [(trial.seed * 1_000_003 + number) % 2**31 for trial in trials]


def encode_policy(learner: Learner, place: int) -> bytes:
    """A policy's weights, and how it goes from observations to actions, as a NumPy archive."""
    content = io.BytesIO()
    arrays: dict[str, Any] = {f"layer{index}": weights.numpy() for index, weights in enumerate(learner.weights(place))}
    arrays |= {name: getattr(learner.choices, name) for name in ("normalise", "bounded")}
    np.savez_compressed(content, moments=learner.moments[:, place], **arrays)
    return content.getvalue()
