"""Train one small language model with AdamW, AdaTerm and RobustAdamW while some batches are bad, and draw what happens.

The model predicts the next byte of the Python standard library's own sources. In a bad batch the targets are permuted,
as by a data loader that mixes up its rows. Within a seed, all methods start from the same weights and see the same
batches. Learning rates were chosen on data without bad batches, for each method from the same grid; `--tune` chooses
again. Writes `demo.png`, `levels.png` and `demo.json`.
"""

import argparse
import json
import math
import os
import sys
import sysconfig
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache, partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, quantiles
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import adaterm
from adaterm.equations import LEAST_SPREAD
from adaterm_bench.core.provenance import describe_run

try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from tqdm import tqdm
except ImportError as error:
    raise SystemExit(
        f"The demo needs {error.name}, which is not installed; in a clone: pip install '.[demo]'"
    ) from error

CONTEXT, EMBEDDING, WIDTH, SYMBOLS = 12, 12, 128, 128
SEQUENCES, LENGTH, WARM_UP, EVERY = 8, 64, 50, 50
GRID, TUNING_SEED = (3e-3, 1e-2, 3e-2, 1e-1), 1000


class Method(NamedTuple):
    """An optimizer, the learning rate that was best for it on clean data, and at which norm to clip before its step."""

    make: Callable[..., torch.optim.Optimizer]
    lr: float
    clip: float | None = None


class Trial(NamedTuple):
    """One run to do."""

    method: Method
    seed: int
    steps: int
    share: float


class Outcome(NamedTuple):
    """One run: validation loss every so many steps; of each batch whether it was bad, its level and the trust in it."""

    losses: list[float]
    bad: list[bool]
    levels: list[float]
    trust: list[float]


ADAMW, ADATERM, ROBUST, CLIPPED = "AdamW, clipped at 1", "AdaTerm", "RobustAdamW", "RobustAdamW, max_norm=1"
METHODS = {
    ADAMW: Method(torch.optim.AdamW, 1e-2, clip=1.0),
    ADATERM: Method(adaterm.AdaTerm, 1e-2),
    ROBUST: Method(adaterm.RobustAdamW, 3e-2),
    CLIPPED: Method(partial(adaterm.RobustAdamW, max_norm=1.0), 3e-2),
}
COLOURS = {ADAMW: "#5FA08F", ADATERM: "#6B8FC2", ROBUST: "#D55E00", CLIPPED: "#E69F00"}
GOOD, BAD = "#999999", "#0072B2"


class Model(nn.Module):
    """Predicts each byte from the bytes before it, as many as the context is long."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(SYMBOLS, EMBEDDING)
        self.read = nn.Linear(CONTEXT * EMBEDDING, WIDTH)
        self.think = nn.Linear(WIDTH, WIDTH)
        self.predict = nn.Linear(WIDTH, SYMBOLS)

    def forward(self, text: Tensor) -> Tensor:
        """A row of logits for each byte that has a whole context, and one for the byte that is yet to come."""
        hidden = self.read(self.embed(text.unfold(1, CONTEXT, 1)).flatten(2)).relu()
        return self.predict(hidden + self.think(hidden).relu()).flatten(0, 1)


@cache
def load_text() -> tuple[Tensor, Tensor]:
    """The library's modules as bytes, for training and for validation; every tenth file is for validation."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    parts = ([file for n, file in enumerate(files) if n % 10], files[::10])
    texts = (bytearray(b"\n".join(file.read_bytes() for file in part)) for part in parts)
    training, validation = (torch.frombuffer(text, dtype=torch.uint8).clamp_max(SYMBOLS - 1).long() for text in texts)
    return training, validation


def cut(text: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random passages of a text, and the bytes to predict in them."""
    starts = torch.randint(len(text) - CONTEXT - LENGTH, (count, 1), generator=generator)
    passages = text[starts + torch.arange(CONTEXT + LENGTH)]
    return passages[:, :-1], passages[:, CONTEXT:].flatten()


def pace(step: int, steps: int) -> float:
    """The share of the learning rate at a step: a warm-up, then half a cosine down to a tenth."""
    return min(1.0, (step + 1) / WARM_UP) * (0.55 + 0.45 * math.cos(math.pi * step / steps))


def train(trial: Trial) -> Outcome:
    """Do a run."""
    torch.set_num_threads(1)  # the model is too small for more
    (make, lr, clip), seed, steps, share = trial
    torch.manual_seed(seed)
    model = Model()
    optimizer = make(model.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, partial(pace, steps=steps))
    text, validation = load_text()
    generator = torch.Generator().manual_seed(seed)
    test_inputs, test_targets = cut(validation, 128, torch.Generator().manual_seed(0))
    outcome = Outcome([], [], [], [])
    for step in range(1, steps + 1):
        inputs, targets = cut(text, SEQUENCES, generator)
        bad = bool(torch.rand((), generator=generator) < share)
        order = torch.randperm(len(targets), generator=generator)  # drawn also if not used: the same passages follow
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets[order] if bad else targets).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        schedule.step()
        outcome.bad.append(bad)
        if isinstance(optimizer, adaterm.RobustAdamW):
            level, _, trust = optimizer.batch_statistics()
            outcome.levels.append(level.item())
            outcome.trust.append(trust.item())
        if step % EVERY == 0 or step == steps:
            with torch.no_grad():
                outcome.losses.append(nn.functional.cross_entropy(model(test_inputs), test_targets).item())
    return outcome


def train_all(trials: Iterable[Trial], name: str) -> dict[Trial, Outcome]:
    """Do runs, side by side on all cores, with a progress bar."""
    trials = list(dict.fromkeys(trials))
    context = get_context("spawn")
    with (
        ProcessPoolExecutor(min(len(trials), os.cpu_count() or 1, 8), mp_context=context) as pool,
        tqdm(total=len(trials), desc=name, unit=" runs", mininterval=0 if sys.stderr.isatty() else 10) as bar,
    ):
        futures = {pool.submit(train, trial): trial for trial in trials}
        for _ in as_completed(futures):
            bar.update()
    return {trial: future.result() for future, trial in futures.items()}


def tune(methods: dict[str, Method], steps: int) -> tuple[dict[str, Method], dict[str, Any]]:
    """The methods with the learning rates that are best for them on clean data, and the losses that tell so."""
    tried = {name: [method._replace(lr=lr) for lr in GRID] for name, method in methods.items()}
    trials = {method: Trial(method, TUNING_SEED, steps, 0.0) for ways in tried.values() for method in ways}
    outcomes = train_all(trials.values(), "learning rates")
    losses = {name: {way.lr: outcomes[trials[way]].losses[-1] for way in ways} for name, ways in tried.items()}
    best = {name: min(found, key=found.__getitem__) for name, found in losses.items()}
    record = {"loss by learning rate, no bad batches": losses, "chosen": best, "seed": TUNING_SEED}
    return {name: method._replace(lr=best[name]) for name, method in methods.items()}, record


def share_excluded(outcomes: Sequence[Outcome], bad: bool) -> float | None:
    """Of all bad batches, or of all good ones, the share that was given less than half the trust."""
    chosen = [trust < 0.5 for it in outcomes for trust, was in zip(it.trust, it.bad, strict=False) if was == bad]
    return mean(chosen) if chosen else None


def summarize(dirty: Sequence[Outcome], clean: Sequence[Outcome]) -> dict[str, Any]:
    """A method's row of the table."""
    return {
        "loss, bad batches": mean(it.losses[-1] for it in dirty),
        "loss, none bad": mean(it.losses[-1] for it in clean),
        "bad ones excluded": share_excluded(dirty, True),
        "good ones excluded": share_excluded(dirty, False),
        "excluded, none bad": share_excluded(clean, False),
        "loss of each seed, bad batches": [it.losses[-1] for it in dirty],
        "loss of each seed, none bad": [it.losses[-1] for it in clean],
    }


def print_table(table: dict[str, dict[str, Any]], seeds: int, share: float) -> None:
    """Print a row for each method."""
    names = [name for name in table[ADAMW] if "each seed" not in name]
    print(f"\n{'':24}" + "".join(f"   {name:>18}" for name in names))
    for method, row in table.items():
        cells = ["-" if row[name] is None else f"{row[name]:{'.3f' if 'loss' in name else '.1%'}}" for name in names]
        print(f"{method:24}" + "".join(f"   {cell:>18}" for cell in cells))
    print(
        f"\nValidation loss in nats a byte after the last step; means of {seeds} seeds. Bad batches: {100 * share:g} %."
    )


def find_bounds(levels: list[float]) -> list[float]:
    """The level at which a batch loses half its trust, with the optimizer's defaults; NaN while none is excluded."""
    defaults = adaterm.RobustAdamW([torch.zeros(1, requires_grad=True)]).defaults
    window, threshold = defaults["window"], defaults["threshold"]
    bounds = [math.nan] * len(levels)
    for step in range(window + 1, len(levels)):  # the first batch has no level
        last = levels[step - window : step]
        low, *_, usual = quantiles(last, n=1000, method="inclusive")[158:500]
        bounds[step] = usual + threshold * max(LEAST_SPREAD, usual - low)
    return bounds


def draw_levels(axes: Axes, outcome: Outcome) -> None:
    """The level of each batch of a run, by what the batch was and what the optimizer made of it."""
    points = list(enumerate(zip(outcome.levels, outcome.bad, outcome.trust, strict=True), start=1))
    for bad, excluded in product((False, True), repeat=2):
        chosen = [(step, level) for step, (level, was, trust) in points if was == bad and (trust < 0.5) == excluded]
        label = f"{'bad' if bad else 'good'}, {'excluded' if excluded else 'taken'}"
        style = {"marker": "x", "s": 22, "linewidth": 1.1} if excluded else {"marker": "o", "s": 16 if bad else 6}
        steps, levels = zip(*chosen, strict=True) if chosen else ([], [])
        axes.scatter(steps, levels, color=BAD if bad else GOOD, label=label, **style)
    axes.plot(range(1, len(points) + 1), find_bounds(outcome.levels), color="black", linewidth=1, label="threshold")
    axes.set(xlabel="training step", ylabel="level: how far gradients are from expected (log)")
    axes.set_ylim(top=axes.get_ylim()[1] * 1.3)  # room for the legend
    axes.legend(loc="upper right", frameon=False, ncols=3, columnspacing=1, handletextpad=0.4, markerscale=1.3)


def draw(outcomes: dict[tuple[str, bool], list[Outcome]], steps: int, share: float, out: Path) -> None:
    """Learning curves and the levels of one run side by side, and the levels alone."""
    figure = Figure(figsize=(12, 4.8), dpi=150, layout="constrained")
    left, right = figure.subplots(1, 2, gridspec_kw={"wspace": 0.05})
    measured = sorted({*range(EVERY, steps + 1, EVERY), steps})
    for method, dirty in [*((name, True) for name in COLOURS), (ADAMW, False)]:
        style = {"color": COLOURS[method], "linewidth": 2.2} if dirty else {"color": "black", "linestyle": "--"}
        curve = [mean(losses) for losses in zip(*(run.losses for run in outcomes[method, dirty]), strict=True)]
        left.plot(measured, curve, label=method if dirty else f"{method}, no bad batches", **style)
    final = [run.losses[-1] for runs in outcomes.values() for run in runs]
    left.set(xlabel="training step", ylabel="validation loss, nats a byte", ylim=(min(final) - 0.05, max(final) + 0.6))
    left.legend(frameon=False, loc="upper right")
    run = outcomes[ROBUST, True][0]
    draw_levels(right, run)
    left.set_title(f"Learning while {100 * share:g} % of the batches are bad")
    right.set_title("What RobustAdamW makes of each batch, in one run")
    alone = Figure(figsize=(11, 4.2), dpi=150, layout="constrained")
    draw_levels(alone.subplots(), run)
    for each, name in ((figure, "demo.png"), (alone, "levels.png")):
        for axes in each.axes:
            axes.spines[["top", "right"]].set_visible(False)
            axes.set_xlim(0, steps)
            axes.xaxis.set_major_formatter("{x:,.0f}")
        each.savefig(out / name, backend="agg")


def main() -> None:
    """Train, print the table, write the figures and the numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000, help="training steps of each run (%(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="number of paired runs (%(default)s)")
    parser.add_argument("--corrupt", type=float, default=0.2, help="share of bad batches, 0 to 1 (%(default)s)")
    parser.add_argument("--tune", action="store_true", help="first choose the learning rates again: a minute more")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="output folder (%(default)s)")
    args = parser.parse_args()
    if min(args.steps, args.seeds) < 1:
        parser.error("--steps and --seeds must be at least 1")
    if not 0 <= args.corrupt <= 1:
        parser.error("--corrupt must be between 0 and 1")
    methods, tuning = tune(METHODS, args.steps) if args.tune else (METHODS, None)
    trials = {
        (name, dirty): [Trial(method, seed, args.steps, args.corrupt * dirty) for seed in range(args.seeds)]
        for name, method in methods.items()
        for dirty in (True, False)
    }
    done = train_all((trial for some in trials.values() for trial in some), "training")
    outcomes = {key: [done[trial] for trial in some] for key, some in trials.items()}
    table = {name: summarize(outcomes[name, True], outcomes[name, False]) for name in methods}
    print_table(table, args.seeds, args.corrupt)
    args.out.mkdir(parents=True, exist_ok=True)
    draw(outcomes, args.steps, args.corrupt, args.out)
    settings = {"steps": args.steps, "seeds": args.seeds, "share of bad batches": args.corrupt}
    sizes = {"parameters": sum(it.numel() for it in Model().parameters()), "bytes in a batch": SEQUENCES * LENGTH}
    rates = {name: method.lr for name, method in methods.items()}
    record = {"table": table, "settings": settings | sizes | {"lr": rates}, "tuning": tuning} | describe_run("cpu")
    (args.out / "demo.json").write_text(json.dumps(record, indent=1) + "\n")
    print("\n" + "\n".join(f"{args.out / name}" for name in ("demo.png", "levels.png", "demo.json")))


if __name__ == "__main__":
    main()
