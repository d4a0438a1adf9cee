"""Stable-Baselines3's PPO on the same tasks, with and without its gradient clipping: what practitioners would run.

Beyond the paper. All settings are SB3's own, for continuous control: 2,048 steps a rollout, batches of 64, 10 epochs,
lr 3e-4, normalised observations and rewards; clipping is to a norm of 0.5, its default.
"""

import time
from dataclasses import dataclass
from math import inf, nan
from typing import Any, ClassVar

import numpy as np
import torch

from adaterm_bench.core import scratch
from adaterm_bench.core.experiment import Experiment, Progress, grid, setting
from adaterm_bench.core.section import Section
from adaterm_bench.core.trial import Result, Trial
from adaterm_bench.datasets import environments
from adaterm_bench.datasets.environments import TASKS, MissingSimulatorError
from adaterm_bench.methods import make_optimizer

CLIPPING = {"clipped": 0.5, "not clipped": inf}
EVERY = 120.0  # seconds between checkpoints


@dataclass(frozen=True)
class Ppo(Experiment):
    """PPO with one optimizer or another."""

    name: ClassVar[str] = "ppo"
    title: ClassVar[str] = "Stable-Baselines3's PPO"
    version: ClassVar[int] = 1
    digits: ClassVar[dict[str, int]] = {"episodes": 5}
    methods: ClassVar[tuple[str, ...]] = ("Adam", "AdaTerm", "AdaTerm (gradient init)", "RobustAdamW")
    on_gpu: ClassVar[bool] = False
    resumes: ClassVar[bool] = True
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "smoke": {"seeds": 1, "tasks": ("Hopper (MuJoCo)",), "steps": 512, "rollout": 256, "test_episodes": 1},
        "quick": {"seeds": 1, "tasks": ("Hopper (MuJoCo)",), "steps": 20_480, "test_episodes": 5},
        "paper": {},
    }

    seeds: int = grid(3, "number of seeds", least=1)
    tasks: tuple[str, ...] = grid(
        ("Hopper", "Ant"), "what is to be learnt", tuple(task for task in TASKS if TASKS[task])
    )
    clipping: tuple[str, ...] = grid(tuple(CLIPPING), "of gradients", tuple(CLIPPING))
    steps: int = setting(1_000_000, "steps in the environment", least=1)
    rollout: int = setting(2048, "steps between updates", least=64)
    lr: float = setting(3e-4, "learning rate", least=0)
    test_episodes: int = setting(20, "episodes to test the final policy in, without exploration", least=1)

    def conditions(self) -> list[dict[str, Any]]:
        """A task, and whether gradients are clipped."""
        return [{"task": task, "clipping": clipping} for task in self.tasks for clipping in self.clipping]

    def prepare(self) -> None:
        """Find out now whether all is there."""
        _import_sb3()
        for task in self.tasks:
            environments.make(task).close()

    def run(self, trials: list[Trial], device: str, progress: Progress) -> list[dict[str, Any]]:
        """One agent; what a crash interrupts goes on from the last checkpoint, and draws other numbers than it had.

        One whose weights are not finite any more has no return.
        """
        (trial,) = trials
        agent, world = self.make_agent(trial)
        begun, episodes = time.monotonic(), []
        if (saved := scratch.load()) is not None:
            restore_agent(agent, world, saved)
            agent.set_random_seed(trial.seed + saved["steps"])
            begun, episodes = begun - saved["seconds"], saved["episodes"]
        watch = _make_callback(begun, episodes, self.steps, progress)
        try:
            agent.learn(self.steps - agent.num_timesteps, callback=watch, reset_num_timesteps=False)
        except ValueError:  # of torch, whose Gaussian wants numbers
            if _is_finite(agent):
                raise
        world.close()
        seconds = round(time.monotonic() - begun, 3)
        task = environments.make(trial.condition["task"])
        numbers = range(10_000, 10_000 + self.test_episodes)
        tests = [_test_agent(agent, world, task, number) if _is_finite(agent) else nan for number in numbers]
        task.close()
        return [{"return": float(np.mean(tests)), "test_returns": tests, "episodes": episodes, "seconds": seconds}]

    def make_agent(self, trial: Trial) -> tuple[Any, Any]:
        """An agent of a trial, and the environment it learns in."""
        sb3, monitor, vectors = _import_sb3()
        single = vectors.DummyVecEnv([lambda: monitor.Monitor(environments.make(trial.condition["task"]))])
        world = vectors.VecNormalize(single)
        world.seed(trial.seed)

        def make(params: Any, lr: float) -> torch.optim.Optimizer:
            parameters = list(params)
            return (
                torch.optim.Adam(parameters, lr, eps=1e-5)
                if trial.method == "Adam"
                else make_optimizer(trial.method, parameters, lr)
            )

        agent = sb3.PPO(
            "MlpPolicy",
            world,
            learning_rate=self.lr,
            n_steps=self.rollout,
            max_grad_norm=CLIPPING[trial.condition["clipping"]],
            seed=trial.seed,
            device="cpu",
            policy_kwargs={"optimizer_class": make},
        )
        return agent, world

    def section(self, results: list[Result]) -> Section:
        """Learning curves, and returns with each optimizer."""
        from adaterm_bench.experiments.ppo.report import section

        return section(results)


def _import_sb3() -> tuple[Any, Any, Any]:
    """Stable-Baselines3, and its modules of monitors and of vectorised environments."""
    try:
        import stable_baselines3
        from stable_baselines3.common import monitor, vec_env
    except ImportError as error:
        raise MissingSimulatorError(
            f"This needs {error.name}, which is not installed; in a clone: pip install '.[rl]'"
        ) from error
    return stable_baselines3, monitor, vec_env


def _make_callback(begun: float, episodes: list[list[float]], steps: int, progress: Progress) -> Any:
    """What keeps returns of episodes, and writes checkpoints when an update is done and the next rollout begins."""
    from stable_baselines3.common.callbacks import BaseCallback

    class Watch(BaseCallback):  # type: ignore[misc]
        last = time.monotonic()

        def _on_step(self) -> bool:
            if "episode" in self.locals["infos"][0]:
                episodes.append([self.num_timesteps, self.locals["infos"][0]["episode"]["r"]])
            return True

        def _on_rollout_start(self) -> None:
            progress(self.num_timesteps / steps)
            if time.monotonic() - self.last > EVERY:
                self.last = time.monotonic()
                state = _describe_state(self.model, self.training_env)
                scratch.save({**state, "episodes": episodes, "seconds": self.last - begun})

    return Watch()


def _describe_state(agent: Any, world: Any) -> dict[str, Any]:
    moments = [
        [torch.as_tensor(np.asarray(part)) for part in (moments_of.mean, moments_of.var, moments_of.count)]
        for moments_of in _list_moments(world)
    ]
    return {"parameters": agent.get_parameters(), "moments": moments, "steps": agent.num_timesteps}


def restore_agent(agent: Any, world: Any, saved: dict[str, Any]) -> None:
    """Let the agent and its environment go on from a checkpoint."""
    agent.set_parameters(saved["parameters"])
    agent.num_timesteps = saved["steps"]
    for moments, values in zip(_list_moments(world), saved["moments"], strict=True):
        moments.mean, moments.var, moments.count = values[0].numpy(), values[1].numpy(), float(values[2])


def _is_finite(agent: Any) -> bool:
    return all(bool(parameter.isfinite().all()) for parameter in agent.policy.parameters())


def _list_moments(world: Any) -> tuple[Any, Any]:
    return world.obs_rms, world.ret_rms


def _test_agent(agent: Any, world: Any, task: Any, seed: int) -> float:
    """The return of an episode, with observations normalised as they were in training."""
    state, done, total = task.reset(seed=seed)[0], False, 0.0
    while not done:
        action, _ = agent.predict(world.normalize_obs(state), deterministic=True)
        state, reward, terminated, truncated, _ = task.step(action)
        total, done = total + float(reward), terminated or truncated
    return total
