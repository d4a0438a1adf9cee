"""Train one small network with Adam and with AdaTerm while some batches are corrupt, and draw what happens.

A corrupt batch, as from a sensor that glitches for a while, has heavy-tailed noise on all its targets. Within a seed,
all methods start from the same weights and see the same batches. Writes `demo.png` and `demo.json`.
"""

import argparse
import json
import math
import platform
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import adaterm

try:
    from matplotlib.figure import Figure
    from tqdm import tqdm
except ImportError as error:
    raise SystemExit(
        f"The demo needs {error.name}, which is not installed; in a clone: pip install '.[demo]'"
    ) from error

LR, BATCH_SIZE, WIDTHS = 1e-3, 10, (1, 50, 50, 50, 50, 1)
CAUCHY_SCALE = 0.5
WARM = 'AdaTerm, init_scale="gradient"'
METHODS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "Adam": lambda params: torch.optim.Adam(params, lr=LR, foreach=True),
    "AdaTerm": lambda params: adaterm.AdaTerm(params, lr=LR, foreach=True),
    WARM: lambda params: adaterm.AdaTerm(params, lr=LR, foreach=True, init_scale="gradient"),
}
COLOURS = {"Adam": "#D55E00", "AdaTerm": "#0072B2", WARM: "#56B4E9", "clean": "#444444", "corrupt": "#CC79A7"}
Runs = tuple[Tensor, Tensor]  # a row for each seed: test error at the measured steps, trust in every batch


def target(x: Tensor) -> Tensor:
    """The function to learn, of the paper's section 5.2."""
    return x**2 + torch.log(x + 1) + torch.sin(2 * math.pi * x) * torch.cos(2 * math.pi * x)


def make_batches(seed: int, steps: int, share: float) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, targets and whether the batch is corrupt: whether all its targets have Cauchy noise."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(steps, BATCH_SIZE, 1, generator=generator)
    corrupt = torch.rand(steps, generator=generator) < share
    noise = torch.empty_like(x).cauchy_(sigma=CAUCHY_SCALE, generator=generator)
    return x, target(x) + noise * corrupt[:, None, None], corrupt


def make_network(seed: int) -> nn.Sequential:
    """The paper's network, with the initial weights of that seed."""
    torch.manual_seed(seed)
    layers = [layer for sizes in pairwise(WIDTHS) for layer in (nn.Linear(*sizes), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def measured(steps: int) -> list[int]:
    """The steps after which the test error is measured: all early ones, then every tenth, and the last."""
    return [step for step in range(1, steps + 1) if step <= 100 or step % 10 == 0 or step == steps]


def train(method: str, seed: int, xs: Tensor, ys: Tensor, bar: tqdm) -> tuple[Tensor, Tensor]:
    """One run's test errors, and its trust in each batch: the median over the network's tensors, 1 for Adam."""
    network = make_network(seed)
    optimizer = METHODS[method](network.parameters())
    test_x = torch.linspace(0, 1, 1001)[:, None]
    when = set(measured(len(xs)))
    errors, trust = [], []
    for step, (x, y) in enumerate(zip(xs, ys, strict=True), start=1):
        optimizer.zero_grad()
        nn.functional.mse_loss(network(x), y).backward()
        optimizer.step()
        if isinstance(optimizer, adaterm.AdaTerm):
            trust.append(torch.stack([seen.trust for seen in optimizer.statistics().values()]))
        if step in when:
            with torch.no_grad():
                errors.append(nn.functional.mse_loss(network(test_x), target(test_x)))
        bar.update()
    return torch.stack(errors), torch.stack(trust).quantile(0.5, 1) if trust else torch.ones(len(xs))


def train_all(steps: int, seeds: int, share: float) -> tuple[dict[str, Runs], Tensor]:
    """Every method's runs, and which batches of which seed were corrupt."""
    batches = [make_batches(seed, steps, share) for seed in range(seeds)]
    results: dict[str, Runs] = {}
    with tqdm(total=len(METHODS) * seeds * steps, unit=" steps", mininterval=0.2 if sys.stderr.isatty() else 10) as bar:
        for method in METHODS:
            bar.set_description(f"{method:{len(WARM)}}", refresh=False)
            runs = [train(method, seed, x, y, bar) for seed, (x, y, _) in enumerate(batches)]
            results[method] = torch.stack([errors for errors, _ in runs]), torch.stack([trust for _, trust in runs])
    return results, torch.stack([corrupt for *_, corrupt in batches])


def summarize(errors: Tensor, trust: Tensor, corrupt: Tensor) -> dict[str, float | None]:
    """One method's column of the table; errors are medians over the seeds, trust over the batches of all seeds."""
    steps = torch.tensor(measured(corrupt.shape[1]))
    last, settled = corrupt.shape[1], min(500, corrupt.shape[1] // 2)
    final = errors[:, steps > 0.9 * last].mean(1)
    late, bad = trust[:, settled:], corrupt[:, settled:]
    column = {f"test error after step {s}": errors[:, steps == s].quantile(0.5) for s in (50, 500) if s <= last}
    column["test error over the last 10 % of the steps"] = final.quantile(0.5)
    column |= {"the same, best seed": final.min(), "the same, worst seed": final.max()}
    column[f"trust in clean batches after step {settled}"] = late[~bad].median()
    column[f"trust in corrupt batches after step {settled}"] = late[bad].median()
    return {name: None if value.isnan() else float(value) for name, value in column.items()}


def print_table(table: dict[str, dict[str, float | None]], seeds: int) -> None:
    """Print the methods side by side."""
    print(f"\n{'':44}" + "".join(f"   {method:>7}" for method in table))
    for name in table["Adam"]:
        cells = {method: "-" if column[name] is None else f"{column[name]:.4f}" for method, column in table.items()}
        print(f"{name:44}" + "".join(f"   {cell:>{max(7, len(method))}}" for method, cell in cells.items()))
    print(f"\nMedians; seeds: {seeds}. Error: mean squared, on clean data. Adam takes every batch in full: trust 1.")


def binned(values: Tensor, steps: Tensor, chosen: Tensor) -> Tensor:
    """Four rows, a column for each bin of steps that has values: mean step and the three quartiles."""
    edges = torch.logspace(0, math.log10(float(steps.max()) + 1), 31)
    bins = [chosen & (steps >= low) & (steps < high) for low, high in pairwise(edges)]
    points = [[steps[b].float().mean(), *(values[b].quantile(q) for q in (0.25, 0.5, 0.75))] for b in bins if b.any()]
    return torch.tensor(points).reshape(-1, 4).T


def draw(results: dict[str, Runs], corrupt: Tensor, share: float, path: Path) -> None:
    """Learning curves on the left, the default AdaTerm's trust in both kinds of batch on the right."""
    seeds, last = corrupt.shape
    figure = Figure(figsize=(11, 4.5), dpi=150, layout="constrained")
    left, right = figure.subplots(1, 2, gridspec_kw={"wspace": 0.06})
    for method, (errors, _) in results.items():
        steps = torch.tensor(measured(last)).expand_as(errors)
        left.plot(steps.T, errors.T, color=COLOURS[method], alpha=0.3, linewidth=0.6)
        middle, _, median, _ = binned(errors, steps, steps > 0)
        left.plot(middle, median, color=COLOURS[method], linewidth=2.4, label=method, zorder=3)
    left.set(yscale="log", ylabel="test error on clean data (mean squared)")
    left.set_title("Learning curves: median (bold) and each seed (thin)")
    left.yaxis.set_major_formatter("{x:g}")
    left.annotate("slow start", (30, 0.65), (-20, -45), textcoords="offset points", arrowprops={"arrowstyle": "->"})
    steps = torch.arange(1, last + 1).expand_as(corrupt)
    for kind, chosen in (("clean", ~corrupt), ("corrupt", corrupt))[: 1 + bool(corrupt.any())]:
        middle, low, median, high = binned(results["AdaTerm"][1], steps, chosen)
        right.fill_between(middle, low, high, color=COLOURS[kind], alpha=0.25, linewidth=0)
        right.plot(middle, median, color=COLOURS[kind], linewidth=2.4, label=f"{kind} batches")
    right.set(ylim=(-0.02, 1.02), ylabel="trust (0: ignored, 1: taken in full)")
    right.set_title("AdaTerm's trust: median (bold) and middle half (band)")
    note = "slow start: by default AdaTerm\ndistrusts every batch at first"
    right.annotate(note, (20, 0.01), (1.2, 0.25), arrowprops={"arrowstyle": "->"})
    for axes, corner in ((left, "lower left"), (right, "upper left")):
        axes.set(xscale="log", xlim=(1, max(2, last)), xlabel="training step (log scale)")
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(loc=corner, frameon=False)
    figure.suptitle(f"Training while {share:.0%} of the batches are corrupt (seeds: {seeds})", weight="bold")
    figure.savefig(path, backend="agg")


def provenance(steps: int, seeds: int, share: float) -> dict[str, Any]:
    """What is needed to run this again."""
    git = subprocess.run("git rev-parse HEAD", shell=True, cwd=Path(__file__).parent, capture_output=True, text=True)
    settings = {"steps": steps, "lr": LR, "batch_size": BATCH_SIZE, "widths": WIDTHS, "corrupt_share": share}
    return {
        "command": " ".join(["python", "examples/demo.py", *sys.argv[1:]]),
        "versions": {"adaterm": adaterm.__version__, "torch": torch.__version__, "python": platform.python_version()},
        "device": {"cpu": platform.processor() or platform.machine(), "threads": torch.get_num_threads()},
        "commit": git.stdout.strip() if git.returncode == 0 else None,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seeds": list(range(seeds)),
        "settings": settings | {"cauchy_scale": CAUCHY_SCALE, "foreach": True},
    }


def main() -> None:
    """Train, print the table, write the figure and the numbers."""
    parser = argparse.ArgumentParser(description="Adam and AdaTerm on the same corrupted data.")
    parser.add_argument("--steps", type=int, default=4000, help="training steps of each run (%(default)s)")
    parser.add_argument("--seeds", type=int, default=4, help="number of paired runs (%(default)s)")
    parser.add_argument("--corrupt", type=float, default=0.1, help="share of corrupt batches, 0 to 1 (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="output folder (%(default)s)")
    args = parser.parse_args()
    if min(args.steps, args.seeds) < 1:
        parser.error("--steps and --seeds must be at least 1")
    if not 0 <= args.corrupt <= 1:
        parser.error("--corrupt must be between 0 and 1")
    torch.set_num_threads(1)  # the network is too small for more
    results, corrupt = train_all(args.steps, args.seeds, args.corrupt)
    table = {method: summarize(*runs, corrupt) for method, runs in results.items()}
    print_table(table, args.seeds)
    args.out.mkdir(parents=True, exist_ok=True)
    draw(results, corrupt, args.corrupt, args.out / "demo.png")
    record = json.dumps({"table": table, **provenance(args.steps, args.seeds, args.corrupt)}, indent=2)
    (args.out / "demo.json").write_text(record + "\n")
    print(f"\nFigure: {args.out / 'demo.png'}\nNumbers: {args.out / 'demo.json'}")


if __name__ == "__main__":
    main()
