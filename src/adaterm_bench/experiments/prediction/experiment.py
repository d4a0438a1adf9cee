"""Long-term prediction of a walking hexapod (section 6.1, appendix D).

Two layers of gated recurrent units walk along a trajectory, with a hidden state that runs on from its first to its last
step. Time is cut into intervals of 1 or 30 steps: at the begin of one the network sees the true state, then samples of
its own predictions, through which gradients flow. The loss is the negative log-likelihood of the true next state,
summed over its numbers and over steps, and averaged over a batch of trajectories.

Back-propagation is truncated at random, 30 steps apart on average, with compensation (see `training.py`). The paper is
silent on much else. Ours: states are standardised, and errors are in these units; an optimizer steps after each
segment; truncation points are the same for all trials, whereas the order of trajectories and the noise of samples go
with the seed; what fills no batch, or no ten steps at the end of a trajectory, is not learnt from. Which network the
paper tested it does not say: ours are tested after the last epoch, and as they were when they validated best.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from adaterm_bench.core import scratch
from adaterm_bench.core.experiment import Experiment, Progress, grid, list_checks, setting
from adaterm_bench.core.section import Section
from adaterm_bench.core.trial import Result, Trial
from adaterm_bench.datasets import trajectories
from adaterm_bench.datasets.data import DataError, check_same_data
from adaterm_bench.datasets.hexapod.robot import JOINTS
from adaterm_bench.datasets.trajectories import Trajectories
from adaterm_bench.experiments.prediction.training import Training, make_generator, predict
from adaterm_bench.methods import OUR_METHODS, PAPER_METHODS

VALIDATION, TEST, EXAMPLE = (2**32 - number for number in (1, 2, 3))  # what random numbers are for, beside epochs
EVERY = 60.0  # seconds between checkpoints
EXAMPLE_STEPS, EXAMPLE_PATHS = 90, 64
EXAMPLE_JOINTS = slice(3, 5)  # coxa and femur of a middle leg, which swing in every walk


@dataclass(frozen=True)
class Prediction(Experiment):
    """A recurrent network predicts the states of a walking hexapod from its own predictions."""

    name: ClassVar[str] = "prediction"
    title: ClassVar[str] = "Long-term prediction"
    version: ClassVar[int] = 2
    former: ClassVar[dict[int, str]] = {
        1: "walks on flat ground, which are easier to predict; segments of 15 to 45 steps with equal chances, without "
        "compensation; networks tested after the last epoch alone."
    }
    digits: ClassVar[dict[str, int]] = {"losses": 4, "mses": 5}
    methods: ClassVar[tuple[str, ...]] = (*PAPER_METHODS, *OUR_METHODS)
    resumes: ClassVar[bool] = True
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "smoke": {
            "seeds": 2,
            "source": "synthetic",
            "trajectories": 16,
            "batch_size": 8,
            "hidden": 8,
            "epochs": 2,
            "long_epochs": 3,
        },
        "quick": {
            "seeds": 2,
            "trajectories": 64,
            "batch_size": 8,
            "hidden": 64,
            "epochs": 6,
            "long_epochs": 10,
            "lr": 3e-3,
            "checks": 5,
        },
        "paper": {},
    }

    seeds: int = grid(24, "number of seeds", least=1)
    horizons: tuple[int, ...] = grid((1, 30), "steps from a true state to the last that is predicted from it", least=1)
    data: str = grid(
        "", f"folder of the hexapod's data set; that in {trajectories.VARIABLE}, or a newly made one, if not given"
    )
    source: Literal["hexapod", "synthetic"] = setting("hexapod", "the trajectories")
    trajectories: int = setting(150, "training trajectories, the first so many", least=1)
    epochs: int = setting(100, "passes over them to learn one step", least=1)
    long_epochs: int = setting(300, "passes over them to learn more steps than one", least=1)
    batch_size: int = setting(32, "trajectories of a batch", least=1)
    hidden: int = setting(128, "units of each of the two layers", least=1)
    lr: float = setting(1e-3, "learning rate", least=0)
    dtype: str = setting("float32", "precision", ("float32", "float64"))
    checks: int = setting(100, "times that the validation error is looked at", least=1)

    def conditions(self) -> list[dict[str, Any]]:
        """How far to predict."""
        return [{"horizon": horizon} for horizon in self.horizons]

    def together(self, trial: Trial) -> Any:
        """All seeds of a method."""
        return trial.method, trial.condition["horizon"]

    def prepare(self) -> None:
        """Look at the data once, and make it if there is none, before every worker would."""
        for horizon in self.horizons:
            self._load_data(horizon)

    def check(self, results: Sequence[Result]) -> None:
        """The data set that is named, or has been made, must be that of the results."""
        place = trajectories.locate(self.data)
        named = str(place) if self.source == "hexapod" and place.is_dir() else ""
        check_same_data(results, self.source, named, lambda: trajectories.load(place).fingerprint)

    def run(self, trials: list[Trial], device: str, progress: Progress) -> list[dict[str, Any]]:
        """Train one network for each trial, all at once; what diverges has NaN for its numbers."""
        horizon = trials[0].condition["horizon"]
        data = self._load_data(horizon)
        train, validation, test = (array.to(device, getattr(torch, self.dtype)) for array in data[:3])
        seeds, size = [trial.seed for trial in trials], self.batch_size
        training = Training(trials[0].method, seeds, train, horizon, self.hidden, size, self.lr)
        checks, tests = _draw_noise(seeds, validation, VALIDATION), _draw_noise(seeds, test, TEST)
        epochs = self.epochs if horizon == 1 else self.long_epochs
        checked = list_checks(epochs, self.checks)
        first, mses, losses, best = 0, list[Tensor](), list[Tensor](), Best(training.params)
        if (saved := scratch.load()) is not None:
            training.restore(saved["tensors"])
            best.restore(saved["best"])
            first, mses, losses = saved["epoch"], saved["mses"], saved["losses"]
        last = time.monotonic()
        for epoch in range(first, epochs):
            losses.append(training.epoch(epoch).cpu())
            if epoch + 1 in checked:
                error = training.error(validation, checks)
                best.note(error, epoch + 1, training.params)
                mses.append(error.cpu())
            progress((epoch + 1) / epochs)
            if time.monotonic() - last > EVERY:
                last = time.monotonic()
                tensors = [tensor.detach().cpu() for tensor in training.state()]
                saved = {"tensors": tensors, "best": best.state(), "epoch": epoch + 1, "mses": mses, "losses": losses}
                scratch.save(saved)
        dofs, means = training.stepper.dof(), torch.zeros_like(tests)
        columns = {
            "mse": training.error(test, tests).tolist(),
            "mse_mean": training.error(test, means).tolist(),
            "best_mse": training.error(test, tests, best.params).tolist(),
            "best_mse_mean": training.error(test, means, best.params).tolist(),
            "best_epoch": [int(epoch) for epoch in best.epoch],
            "mses": torch.stack(mses, 1).tolist(),
            "losses": torch.stack(losses, 1).tolist(),
            "dof": [None] * len(trials) if dofs is None else dofs.median(1).values.tolist(),
            "example": [
                None
                if seed
                else _make_example([parameter[place : place + 1] for parameter in training.params], data, horizon)
                for place, seed in enumerate(seeds)
            ],
        }
        same = {"checked": checked, "held": _measure_held(test, horizon), "data": data.fingerprint}
        return [{**same, **{name: column[place] for name, column in columns.items()}} for place in range(len(trials))]

    def _load_data(self, horizon: int) -> Trajectories:
        if self.source == "synthetic":
            data = trajectories.make_synthetic(self.trajectories)
        else:
            data = trajectories.load(trajectories.find_folder(self.data))
        train = data.train[:, : self.trajectories]
        if train.shape[1] < self.trajectories:
            raise DataError(f"There are {train.shape[1]} training trajectories, not {self.trajectories}.")
        if train.shape[1] < self.batch_size:
            raise DataError(f"{train.shape[1]} training trajectories do not fill a batch of {self.batch_size}.")
        if not 1 <= horizon < len(train):
            raise DataError(f"A horizon of {horizon} steps does not go with trajectories of {len(train)} states.")
        return data._replace(train=train)

    def section(self, results: list[Result]) -> Section:
        """Errors next to the paper's, learning curves, predictions, and its claims."""
        from adaterm_bench.experiments.prediction.report import section

        return section(results)


class Best:
    """The networks of many trials as they were when each validated best; before the first look, as they began."""

    def __init__(self, params: Sequence[Tensor]) -> None:
        self.params = [parameter.detach().clone() for parameter in params]
        self.error = params[0].new_full((len(params[0]),), inf).detach()
        self.epoch = torch.zeros_like(self.error)

    def note(self, error: Tensor, epoch: int, params: Sequence[Tensor]) -> None:
        """Keep the networks that are better now; nothing is read back from the device."""
        better = error < self.error  # which nothing that diverged is
        self.error, self.epoch = torch.where(better, error, self.error), torch.where(better, epoch, self.epoch)
        for best, parameter in zip(self.params, params, strict=True):
            best.copy_(torch.where(better.view(-1, *(1,) * (best.dim() - 1)), parameter.detach(), best))

    def state(self) -> list[Tensor]:
        """All that has to be kept to go on."""
        return [tensor.cpu() for tensor in (*self.params, self.error, self.epoch)]

    def restore(self, saved: Sequence[Tensor]) -> None:
        """Go on from such a state."""
        for tensor, value in zip((*self.params, self.error, self.epoch), saved, strict=True):
            tensor.copy_(value)


def _make_example(params: list[Tensor], data: Trajectories, horizon: int) -> dict[str, Any]:
    """Two angles of the first test trajectory, and mean and standard deviation of paths that were sampled for it."""
    states = data.test[: EXAMPLE_STEPS + 1, :1].to(params[0]).expand(-1, EXAMPLE_PATHS, -1)
    noise = torch.randn((len(states) - 1, 1, *states.shape[1:]), generator=make_generator(0, EXAMPLE)).to(states)
    std, mean = torch.std_mean(predict(params, states, noise, horizon)[:, 0].to(data.std), 1)
    series = {
        "true": data.test[1 : len(states), 0] * data.std + data.mean,
        "mean": mean * data.std + data.mean,
        "std": std * data.std,
    }
    lists = {name: each[:, EXAMPLE_JOINTS].T.round(decimals=5).tolist() for name, each in series.items()}
    return {"joints": JOINTS[EXAMPLE_JOINTS], **lists}


def _draw_noise(seeds: list[int], states: Tensor, purpose: int) -> Tensor:
    """What makes samples of predictions: the same for a seed at every look."""
    drawn = [torch.randn(states.shape, generator=make_generator(seed, purpose)) for seed in seeds]
    return torch.stack(drawn, 1).to(states)


def _measure_held(states: Tensor, horizon: int) -> float:
    """The error of predicting that nothing changes."""
    begins = states[::horizon]
    return float((begins[1:] - begins[:-1]).square().mean())
