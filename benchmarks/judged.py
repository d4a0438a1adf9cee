"""Measure what judges do before other optimizers, on the demo's language model, with and without bad batches.

    python benchmarks/judged.py

Each optimizer has the learning rate, of a grid, that is best for it on clean data and one seed; other seeds then learn
without a judge, with one of gradients (BatchJudge) and with one of losses (LossJudge), from the same batches. Writes
results/judged/judged.json.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from math import inf, isfinite
from multiprocessing import get_context
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import torch
from provenance import provenance
from torch import nn

from adaterm import BatchJudge, LossJudge, RobustAdamW

sys.path.append(str(Path(__file__).parents[1] / "examples"))
from demo import SEQUENCES, TUNING_SEED, Model, cut, load_text, pace

Optimizers = list[torch.optim.Optimizer]


class Method(NamedTuple):
    """One optimizer or several that move a model, learning rates to choose from, and at which norm to clip."""

    make: Callable[[Model, float], Optimizers]
    rates: tuple[float, ...]
    clip: float | None = None


def make_sgd(model: Model, lr: float) -> Optimizers:
    return [torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)]


def make_rmsprop(model: Model, lr: float) -> Optimizers:
    return [torch.optim.RMSprop(model.parameters(), lr=lr)]


def make_adamw(model: Model, lr: float) -> Optimizers:
    return [torch.optim.AdamW(model.parameters(), lr=lr)]


def make_muon(model: Model, lr: float) -> Optimizers:
    """Muon for the matrices of hidden layers, AdamW for the rest, as Muon's authors advise."""
    hidden = [model.read.weight, model.think.weight]
    others = [parameter for parameter in model.parameters() if all(parameter is not matrix for matrix in hidden)]
    muon = torch.optim.Muon(hidden, lr=lr, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
    return [muon, torch.optim.AdamW(others, lr=lr)]


def make_robust(model: Model, lr: float) -> Optimizers:
    return [RobustAdamW(model.parameters(), lr=lr)]


ADAPTIVE = (3e-3, 1e-2, 3e-2, 1e-1)
METHODS = {
    "SGD with momentum": Method(make_sgd, (3e-2, 1e-1, 3e-1, 1.0)),
    "RMSprop": Method(make_rmsprop, (1e-3, 3e-3, 1e-2, 3e-2)),
    "AdamW, clipped at 1": Method(make_adamw, ADAPTIVE, clip=1.0),
    "Muon with AdamW": Method(make_muon, ADAPTIVE),
    "RobustAdamW": Method(make_robust, ADAPTIVE),
}
KINDS = ("alone", "judged", "judged by loss")
JUDGES_ITSELF = "RobustAdamW"
"""What a BatchJudge would tell nothing new."""


class Run(NamedTuple):
    """One run to do."""

    method: str
    lr: float
    seed: int
    share: float
    kind: str
    steps: int


class Outcome(NamedTuple):
    """The validation loss, infinite if it is lost, and the shares of bad and of good batches that were left out."""

    loss: float
    bad_excluded: float | None
    good_excluded: float | None


def train(run: Run) -> Outcome:
    torch.set_num_threads(1)  # the model is too small for more
    torch.manual_seed(run.seed)
    method, model = METHODS[run.method], Model()
    optimizers = method.make(model, run.lr)
    batch_judge = BatchJudge(model.named_parameters()) if run.kind == "judged" else None
    loss_judge = LossJudge() if run.kind == "judged by loss" else None
    text, validation = load_text()
    generator = torch.Generator().manual_seed(run.seed)
    test_inputs, test_targets = cut(validation, 128, torch.Generator().manual_seed(0))
    left_out: dict[bool, list[bool]] = {True: [], False: []}
    for step in range(run.steps):
        inputs, targets = cut(text, SEQUENCES, generator)
        bad = bool(torch.rand((), generator=generator) < run.share)
        order = torch.randperm(len(targets), generator=generator)  # drawn also if not used: the same passages follow
        model.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets[order] if bad else targets)
        accepted = loss_judge is None or loss_judge.accepts(loss)
        if accepted:
            loss.backward()
            accepted = batch_judge is None or batch_judge.accepts()
        if run.kind != "alone":
            left_out[bad].append(not accepted)
        if method.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), method.clip)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = run.lr * pace(step, run.steps)
            if accepted:
                optimizer.step()
    with torch.no_grad():
        final = nn.functional.cross_entropy(model(test_inputs), test_targets).item()
    excluded = (mean(left_out[bad]) if left_out[bad] else None for bad in (True, False))
    return Outcome(final if isfinite(final) else inf, *excluded)


def train_all(runs: Iterable[Run], jobs: int) -> dict[Run, Outcome]:
    runs = list(runs)
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        return dict(zip(runs, pool.map(train, runs), strict=True))


def choose_rates(steps: int, jobs: int) -> tuple[dict[str, float], dict[str, dict[float, float]]]:
    """The best rate of each method on clean data, and the losses that tell so."""
    runs = [Run(name, lr, TUNING_SEED, 0.0, "alone", steps) for name, method in METHODS.items() for lr in method.rates]
    losses: dict[str, dict[float, float]] = {name: {} for name in METHODS}
    for run, outcome in train_all(runs, jobs).items():
        losses[run.method][run.lr] = outcome.loss
    return {name: min(found, key=found.__getitem__) for name, found in losses.items()}, losses


def spell(value: Any) -> Any:
    """The same with None in place of losses that are lost, which JSON has no number for."""
    if isinstance(value, dict):
        return {name: spell(part) for name, part in value.items()}
    if isinstance(value, list):
        return list(map(spell, value))
    return None if value == inf else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.2, 0.3], help="of the batches that are bad")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--out", type=Path, default=Path("results/judged"))
    args = parser.parse_args()
    rates, tuning = choose_rates(args.steps, args.jobs)
    runs = [
        Run(name, rates[name], seed, share, kind, args.steps)
        for name in METHODS
        for kind in KINDS
        if (name, kind) != (JUDGES_ITSELF, "judged")
        for share in (0.0, *args.shares)
        for seed in range(args.seeds)
    ]
    table: dict[str, Any] = {}
    for run, outcome in train_all(runs, args.jobs).items():
        row = table.setdefault(run.method, {}).setdefault(run.kind, {})
        row.setdefault(f"{100.0 * run.share:g} %", []).append(outcome._asdict() | {"seed": run.seed})
    settings = {"steps": args.steps, "seeds": args.seeds}
    record = {"table": table, "settings": settings, "lr": rates, "tuning": tuning, **provenance("cpu")}
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "judged.json").write_text(json.dumps(spell(record), indent=1, allow_nan=False) + "\n")
    for name, rows in table.items():
        for kind, columns in rows.items():
            losses = "  ".join(
                f"{column} {mean(run['loss'] for run in found):.4f}" for column, found in columns.items()
            )
            print(f"{name:24} {kind:14} {losses}")


if __name__ == "__main__":
    main()
