"""Policy distillation by behavioural cloning (section 6.1, appendix D): teachers, an amateur, and their students."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import log, pi
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from adaterm_bench.core import scratch
from adaterm_bench.core.experiment import Experiment, Progress, grid, setting
from adaterm_bench.core.section import Section
from adaterm_bench.core.trial import Result, Trial
from adaterm_bench.datasets import demonstrations, environments
from adaterm_bench.datasets.data import DataError, check_same_data
from adaterm_bench.datasets.demonstrations import VARIABLE, Demonstrations
from adaterm_bench.methods import OUR_METHODS, PAPER_METHODS, make_stepper
from adaterm_bench.models.networks import make_repeatable, make_weights

LEAST = 1e-3  # of a standard deviation
EVERY = 60.0  # seconds between checkpoints
LEARNING = 0.8  # of the time, as progress is told; the rest is for tests
AMATEUR = {"without": False, "with": True}


@dataclass(frozen=True)
class Distillation(Experiment):
    """Small networks learn what teachers do, and are then tested in the teachers' task."""

    name: ClassVar[str] = "distillation"
    title: ClassVar[str] = "Policy distillation"
    version: ClassVar[int] = 2
    former: ClassVar[dict[int, str]] = {
        1: "actions were recorded as the simulator clipped them, so that half of the teachers' were ±1; the amateur "
        "was of another variant of the algorithm than the teachers; ten test episodes."
    }
    digits: ClassVar[dict[str, int]] = {"losses": 5}
    methods: ClassVar[tuple[str, ...]] = (*PAPER_METHODS, *OUR_METHODS)
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "smoke": {"seeds": 2, "source": "synthetic", "epochs": 2, "test_episodes": 2},
        "quick": {"seeds": 2, "epochs": 5, "test_episodes": 2},
        "paper": {},
    }

    seeds: int = grid(24, "number of seeds", least=1)
    amateur: tuple[str, ...] = grid(tuple(AMATEUR), "teachers alone, or with the amateur", tuple(AMATEUR))
    data: str = grid("", f"folder of demonstrations; that in {VARIABLE} if not given")
    source: Literal["demonstrations", "synthetic"] = setting("demonstrations", "what is learnt from")
    epochs: int = setting(200, "passes over the steps", least=1)
    batch_size: int = setting(32, "steps of a batch", least=1)
    lr: float = setting(1e-3, "learning rate", least=0)
    weight_decay: float = setting(1e-4, "L2, added to the gradient", least=0)
    hidden: tuple[int, ...] = setting((32, 32), "widths of the hidden layers", least=1)
    test_episodes: int = setting(50, "episodes to test a student in", least=1)

    def conditions(self) -> list[dict[str, Any]]:
        """With the amateur, or without."""
        return [{"amateur": name} for name in self.amateur]

    def together(self, trial: Trial) -> Any:
        """All seeds of a method."""
        return trial.condition["amateur"]

    def prepare(self) -> None:
        """Look at the data, and for the simulator, before anything runs."""
        environments.make(self._load_data().task).close()

    def check(self, results: Sequence[Result]) -> None:
        """The demonstrations that are named, if any are, must be those of the results."""
        named = self.data or os.environ.get(VARIABLE, "") if self.source == "demonstrations" else ""
        check_same_data(results, self.source, named, lambda: self._load_data().fingerprint)

    def run(self, trials: list[Trial], device: str, progress: Progress) -> list[dict[str, Any]]:
        """One student for each trial, all at once; then every student in the task."""
        data = self._load_data()
        chosen = ~data.amateur | AMATEUR[trials[0].condition["amateur"]]
        centre, scale = data.states[chosen].mean(0), np.maximum(data.states[chosen].std(0), 1e-2)
        states = torch.from_numpy(_normalise(data.states[chosen], centre, scale)).to(device)
        actions = torch.from_numpy(data.actions[chosen]).to(device)
        if len(states) < self.batch_size:
            raise DataError(f"{len(states)} steps do not fill a batch of {self.batch_size}.")
        params, losses = self._learn(trials, states, actions, progress)
        returns = self._test_students(params, data.task, centre, scale, progress)
        return [
            {
                "return": float(np.mean(returns[:, place])),
                "test_returns": returns[:, place].tolist(),
                "losses": losses[:, place].tolist(),
                "steps": int(chosen.sum()),
                "policies": list(data.policies),
                "data": data.fingerprint,
            }
            for place in range(len(trials))
        ]

    def _load_data(self) -> Demonstrations:
        if self.source == "synthetic":
            return demonstrations.make_synthetic()
        named = self.data or os.environ.get(VARIABLE, "")
        if not named:
            raise DataError(
                f"Where are the demonstrations? Give --data DIR or set {VARIABLE}. They are made from what `rl` has "
                f"learnt: {demonstrations.COMMAND}"
            )
        return demonstrations.load(Path(named).expanduser())

    def _learn(
        self, trials: list[Trial], states: Tensor, actions: Tensor, progress: Progress
    ) -> tuple[list[Tensor], Tensor]:
        widths = (states.shape[1], *self.hidden, 2 * actions.shape[1])
        params = make_weights([trial.seed for trial in trials], widths, torch.float32, str(states.device))
        tested = make_stepper(trials[0].method, params, self.lr)
        batch = torch.zeros(len(trials), self.batch_size, dtype=torch.int64, device=states.device)
        total = torch.zeros(len(trials), device=states.device)

        def step() -> None:
            loss = measure_surprise(apply_student(params, states[batch]), actions[batch]).mean(1)
            for parameter, gradient in zip(params, torch.autograd.grad(loss.sum(), params), strict=True):
                parameter.grad = gradient + self.weight_decay * parameter.detach()
            tested.step()
            total.add_(loss.detach())

        draws = [torch.Generator().manual_seed(trial.seed) for trial in trials]
        steps, losses, repeated = len(states) // self.batch_size, list[Tensor](), None
        last = time.monotonic()
        if (saved := scratch.load()) is not None:
            step()  # makes state, to be replaced
            with torch.no_grad():
                for tensor, value in zip([*params, *tested.state()], saved["tensors"], strict=True):
                    tensor.copy_(value)
            for generator, state in zip(draws, saved["draws"], strict=True):
                generator.set_state(state)
            losses, repeated = saved["losses"], make_repeatable(step, [*params, *tested.state(), total])
        for epoch in range(len(losses), self.epochs):
            total.zero_()
            order = torch.stack([torch.randperm(len(states), generator=draw) for draw in draws]).to(states.device)
            for index in range(steps):
                batch.copy_(order[:, index * self.batch_size : (index + 1) * self.batch_size])
                if repeated is None:
                    step()  # what a first step does may differ: it makes state
                    repeated = make_repeatable(step, [*params, *tested.state(), total])
                else:
                    repeated()
            losses.append((total / steps).cpu())
            progress(LEARNING * (epoch + 1) / self.epochs)
            if time.monotonic() - last > EVERY or epoch + 1 == self.epochs:  # tests take minutes too
                last = time.monotonic()
                tensors = [tensor.detach().cpu() for tensor in (*params, *tested.state())]
                scratch.save({"tensors": tensors, "draws": [draw.get_state() for draw in draws], "losses": losses})
        return [tensor.detach().cpu() for tensor in params], torch.stack(losses)

    def _test_students(
        self, params: list[Tensor], task: str, centre: Any, scale: Any, progress: Progress
    ) -> np.ndarray[Any, np.dtype[Any]]:
        """The returns of every student in the same episodes: episodes by students."""
        worlds = [environments.make(task) for _ in range(len(params[0]))]
        returns = np.zeros((self.test_episodes, len(worlds)))
        for number in range(self.test_episodes):
            states = np.stack([world.reset(seed=20_000 + number)[0] for world in worlds]).astype(np.float32)
            running = list(range(len(worlds)))
            while running:
                with torch.inference_mode():
                    seen = torch.from_numpy(_normalise(states, centre, scale))[:, None]
                    means = apply_student(params, seen)[0][:, 0].numpy()
                for place in list(running):
                    action = np.clip(np.nan_to_num(means[place]), -1.0, 1.0)
                    states[place], reward, terminated, truncated, _ = worlds[place].step(action)
                    returns[number, place] += reward
                    if terminated or truncated:
                        running.remove(place)
            progress(LEARNING + (1.0 - LEARNING) * (number + 1) / self.test_episodes)
        for world in worlds:
            world.close()
        whole = np.all([parameter.flatten(1).isfinite().all(1).numpy() for parameter in params], 0)
        return np.where(whole, returns, np.nan)  # a student of NaN has no return, though standing still has one

    def section(self, results: list[Result]) -> Section:
        """Returns next to the paper's, and its claims."""
        from adaterm_bench.experiments.distillation.report import section

        return section(results)


def _normalise(states: Any, centre: Any, scale: Any) -> Any:
    """States of about mean 0 and variance 1, as the reinforcement learning would have them."""
    return np.clip((states - centre) / scale, -10.0, 10.0).astype(np.float32)


def apply_student(params: list[Tensor], states: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the action, of every trial's network: trials by samples by numbers."""
    for place in range(0, len(params) - 2, 2):
        states = torch.tanh(torch.baddbmm(params[place + 1], states, params[place]))
    mean, std = torch.baddbmm(params[-1], states, params[-2]).chunk(2, -1)
    return mean, functional.softplus(std) + LEAST


def measure_surprise(policy: tuple[Tensor, Tensor], actions: Tensor) -> Tensor:
    """The negative log-likelihood of actions."""
    mean, std = policy
    return (((actions - mean) / std).square() / 2 + std.log() + log(2 * pi) / 2).sum(-1)
