"""Which learning rate AdaTerm and RobustAdamW want beside Adam, and what helps against which bad data.

A small network learns a function ("regression") or its classes ("classification") from samples that are drawn anew for
every batch. Rates are chosen for each arm on clean data, from one grid, by the mean of two tuning seeds. With these
rates the regression is learnt from bad data, and judged by its error on clean data. Within a seed all arms have the
same initial weights, samples and accidents. Writes results/from_adam/from_adam.json: about five minutes on two cores.
"""

import argparse
import json
import math
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import torch
from provenance import provenance
from torch import Tensor, nn
from torch.nn import functional

import adaterm

GRID = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
TUNING_SEEDS, SEEDS = (1000, 1001), tuple(range(5))
INPUTS, WIDTH, CLASSES, BATCH, WARM_UP = 8, 64, 10, 16, 50
MARKS = (10, 100, 300, 1000)
BAD_DATA = {
    "clean": "nothing",
    "bad batches": "the targets of a batch are permuted, in 20 % of the batches",
    "bad samples": "5 % of the samples of all batches have targets with an error of standard deviation 20",
    "spikes": "all gradients are 1,000 times as large, in 1 % of the steps",
    "heavy tails": "all targets have an error that follows a Student's t-distribution with 1.5 degrees of freedom",
}


class Arm(NamedTuple):
    """An optimizer, the norm at which to clip before its step, and whether the loss is Huber's, or judged."""

    make: Callable[..., torch.optim.Optimizer]
    clip: float | None = None
    robust_loss: bool = False
    judged: bool = False


ARMS = {
    "Adam": Arm(torch.optim.Adam),
    "Adam, clipped at 1": Arm(torch.optim.Adam, clip=1.0),
    "Adam, Huber's loss": Arm(torch.optim.Adam, robust_loss=True),
    "Adam, LossJudge": Arm(torch.optim.Adam, judged=True),
    "Adam, clipped at 1, LossJudge": Arm(torch.optim.Adam, clip=1.0, judged=True),
    "AdaTerm": Arm(adaterm.AdaTerm),
    "AdaTerm, init_dof=100": Arm(partial(adaterm.AdaTerm, init_dof=100.0)),
    'AdaTerm, init_scale="gradient"': Arm(partial(adaterm.AdaTerm, init_scale="gradient")),
    "RobustAdamW": Arm(partial(adaterm.RobustAdamW, weight_decay=0.0)),
    "RobustAdamW, max_norm=1": Arm(partial(adaterm.RobustAdamW, weight_decay=0.0, max_norm=1.0)),
    "RobustAdamW, Huber's loss": Arm(partial(adaterm.RobustAdamW, weight_decay=0.0), robust_loss=True),
}


class Trial(NamedTuple):
    """One run to do."""

    arm: str
    task: str
    bad: str
    lr: float
    seed: int
    steps: int


class Outcome(NamedTuple):
    """The error on clean test data, how far the parameters had moved after some steps, and AdaTerm's mean trust."""

    error: float
    moved: dict[int, float]
    trust: float | None


@cache
def make_teacher() -> tuple[nn.Module, float, float]:
    """The function to learn, with the mean and the scale of its values."""
    with torch.random.fork_rng([]), torch.no_grad():
        torch.manual_seed(7)
        teacher = nn.Sequential(nn.Linear(INPUTS, 32), nn.Tanh(), nn.Linear(32, CLASSES))
        for parameter in teacher.parameters():
            parameter.mul_(3.0)
        values = teacher(torch.randn(10_000, INPUTS))[:, 0]
    return teacher, values.mean().item(), values.std().item()


def draw_batch(task: str, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Inputs and right targets."""
    teacher, centre, scale = make_teacher()
    inputs = torch.randn(count, INPUTS, generator=generator)
    with torch.no_grad():
        values = teacher(inputs)
    return inputs, values.argmax(1) if task == "classification" else (values[:, :1] - centre) / scale


def spoil(bad: str, targets: Tensor, generator: torch.Generator) -> tuple[Tensor, float]:
    """Targets with what is bad about them, and a factor for the gradients."""
    chance, chances = torch.rand((), generator=generator), torch.rand(targets.shape, generator=generator)
    if bad == "bad batches" and chance < 0.2:
        targets = targets[torch.randperm(len(targets), generator=generator)]
    if bad == "bad samples":
        targets = targets + 20.0 * (chances < 0.05) * torch.randn(targets.shape, generator=generator)
    if bad == "heavy tails":
        normal = torch.randn(targets.shape, generator=generator)
        gammas = torch.distributions.Gamma(0.75, 0.5)  # a chi-square with 1.5 degrees of freedom
        with torch.random.fork_rng([]):
            torch.manual_seed(int(torch.randint(2**31, (), generator=generator)))
            targets = targets + 0.3 * normal / (gammas.sample(targets.shape) / 1.5).sqrt()
    return targets, 1000.0 if bad == "spikes" and chance < 0.01 else 1.0


def measure(task: str, outputs: Tensor, targets: Tensor, robust: bool = False) -> Tensor:
    """The loss; of a regression on test data also the error, in units of the targets' variance."""
    if task == "classification":
        return functional.cross_entropy(outputs, targets)
    return functional.huber_loss(outputs, targets) if robust else functional.mse_loss(outputs, targets)


def pace(step: int, steps: int) -> float:
    """The share of the learning rate at a step: a warm-up, then half a cosine down to a tenth."""
    return min(1.0, (step + 1) / WARM_UP) * (0.55 + 0.45 * math.cos(math.pi * step / steps))


def train(trial: Trial) -> Outcome:
    """Do a run."""
    torch.set_num_threads(1)
    torch.manual_seed(trial.seed)
    arm, task, generator = ARMS[trial.arm], trial.task, torch.Generator().manual_seed(trial.seed)
    outputs = CLASSES if task == "classification" else 1
    layers = [nn.Linear(INPUTS, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, outputs)]
    model = nn.Sequential(*layers)
    begin = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    optimizer = arm.make(model.parameters(), lr=trial.lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, partial(pace, steps=trial.steps))
    judge = adaterm.LossJudge() if arm.judged else None
    moved, trusts = {}, []
    for step in range(1, trial.steps + 1):
        inputs, targets = draw_batch(task, BATCH, generator)
        targets, factor = spoil(trial.bad, targets, generator)
        optimizer.zero_grad()
        loss = measure(task, model(inputs), targets, arm.robust_loss)
        if judge is None or judge.accepts(loss):
            (factor * loss).backward()
            if arm.clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), arm.clip)
            optimizer.step()
        schedule.step()
        if step in MARKS:
            place = nn.utils.parameters_to_vector(model.parameters()).detach()
            moved[step] = (place - begin).norm().item()
        if isinstance(optimizer, adaterm.AdaTerm) and step > trial.steps // 2:
            trusts.append(mean(float(seen.trust) for seen in optimizer.statistics().values()))
    inputs, targets = draw_batch(task, 4096, torch.Generator().manual_seed(10_000))
    with torch.no_grad():
        error = measure(task, model(inputs), targets).item()
    return Outcome(error if math.isfinite(error) else math.inf, moved, mean(trusts) if trusts else None)


def train_all(trials: list[Trial]) -> dict[Trial, Outcome]:
    """Do runs, side by side on all cores."""
    with ProcessPoolExecutor(min(os.cpu_count() or 1, 8), mp_context=get_context("spawn")) as pool:
        return dict(zip(trials, pool.map(train, trials, chunksize=4), strict=True))


def tune(steps: int) -> tuple[dict[tuple[str, str], float], dict[str, Any]]:
    """The best rate of each task and arm on clean data, and the losses that tell so."""
    tasks = [(task, arm) for task in ("regression", "classification") for arm in ARMS if not skips(task, arm)]
    trials = [Trial(arm, task, "clean", lr, seed, steps) for task, arm in tasks for lr in GRID for seed in TUNING_SEEDS]
    outcomes, chosen, record = train_all(trials), {}, {}
    for task, arm in tasks:
        losses = {
            lr: mean(outcomes[Trial(arm, task, "clean", lr, seed, steps)].error for seed in TUNING_SEEDS) for lr in GRID
        }
        chosen[task, arm] = best = min(losses, key=losses.__getitem__)
        shown = {f"{lr:g}": loss if math.isfinite(loss) else None for lr, loss in losses.items()}
        record.setdefault(task, {})[arm] = {"best": best, "loss by learning rate": shown}
    return chosen, record


def skips(task: str, arm: str) -> bool:
    """Whether an arm has nothing to do with a task: classes have no Huber's loss."""
    return task == "classification" and ARMS[arm].robust_loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--out", type=Path, default=Path("results/from_adam"))
    args = parser.parse_args()
    chosen, tuning = tune(args.steps)
    errors: dict[str, dict[str, Any]] = {}
    finals = {
        (arm, bad): [Trial(arm, "regression", bad, chosen["regression", arm], seed, args.steps) for seed in SEEDS]
        for arm in ARMS
        for bad in BAD_DATA
    }
    starts = {arm: [Trial(arm, "regression", "clean", 1e-3, seed, args.steps) for seed in SEEDS] for arm in ARMS}
    every = [trial for trials in (*finals.values(), *starts.values()) for trial in trials]
    outcomes = train_all(list(dict.fromkeys(every)))
    for (arm, bad), trials in finals.items():
        values = [outcomes[trial].error for trial in trials]
        errors.setdefault(arm, {})[bad] = {"mean": mean(values), "of each seed": values}
    moves = {
        arm: {str(mark): mean(outcomes[trial].moved[mark] for trial in trials) for mark in MARKS}
        for arm, trials in starts.items()
    }
    trust = {
        arm: {bad: mean(outcomes[trial].trust or 0.0 for trial in finals[arm, bad]) for bad in BAD_DATA}
        for arm in ARMS
        if outcomes[finals[arm, "clean"][0]].trust is not None
    }
    settings = {"steps": args.steps, "seeds": len(SEEDS), "batch": BATCH, "grid": GRID, "tuning seeds": TUNING_SEEDS}
    record = {
        "error on clean test data, by bad data": errors,
        "learning rates": tuning,
        "how far parameters moved, by step, lr 0.001": moves,
        "mean trust in the second half of a run, by bad data": trust,
        "bad data": BAD_DATA,
        "settings": settings,
        **provenance("cpu"),
    }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "from_adam.json").write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
