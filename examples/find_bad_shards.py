"""Find 50 mislabelled shards among 5,000, while a network trains on all of them.

Each shard has 64 images of handwritten digits (scikit-learn's, turned, shifted and lit as one scanner would). In 50 of
the shards the labels have slipped by one row. A small network trains with RobustAdamW, first on batches of one shard
each, then on batches that mix rows of four shards, and a Monitor ranks the shards. Writes `find_bad_shards.json`,
`find_bad_shards.png` (how the shards rank) and `trust.png` (the monitor's own picture).
"""

import argparse
import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from adaterm import Monitor, RobustAdamW
from adaterm_bench.core.provenance import describe_run

try:
    from matplotlib.figure import Figure
    from sklearn.datasets import load_digits
except ImportError as error:
    raise SystemExit(
        f"This example needs {error.name}, which is not installed; in a clone: pip install '.[cpu,demo]' scikit-learn"
    ) from error

ROWS, HELD_OUT = 64, 297
GOOD, BAD = "#6b7f92", "#D55E00"


class Shards(NamedTuple):
    """Images and labels of all shards, and which are mislabelled: what we pretend not to know."""

    images: Tensor  # shards, rows, 1, 8, 8
    labels: Tensor
    bad: Tensor


class Ranking(NamedTuple):
    """Shards, the most suspect first, with the mean score or loss of their batches."""

    shards: list[int]
    means: list[float]


def make_shards(count: int, bad_count: int, scatter: float, seed: int) -> tuple[Shards, Tensor, Tensor]:
    """The shards, and images and labels of other digits to test on."""
    digits, generator = load_digits(), torch.Generator().manual_seed(seed)
    images, labels = torch.tensor(digits.images).float()[:, None] / 8.0 - 1.0, torch.tensor(digits.target)
    training = len(labels) - HELD_OUT
    chosen = torch.randint(training, (count, ROWS), generator=generator)
    angle, shear, left, top, contrast, light = scatter * torch.randn(6, count, generator=generator)
    turn = torch.stack([torch.stack([1 + shear, angle, left], 1), torch.stack([-angle, 1 - shear, top], 1)], 1)
    flat = turn.repeat_interleave(ROWS, 0)
    grid = functional.affine_grid(flat, [len(flat), 1, 8, 8], align_corners=False)
    seen = functional.grid_sample(images[chosen.flatten()], grid, padding_mode="border", align_corners=False)
    shown = seen.view(count, ROWS, 1, 8, 8) * (1 + contrast).view(-1, 1, 1, 1, 1) + light.view(-1, 1, 1, 1, 1)
    shown = shown + 0.5 * torch.randn(shown.shape, generator=generator)
    answers, bad = labels[chosen], torch.zeros(count, dtype=torch.bool)
    bad[torch.randperm(count, generator=generator)[:bad_count]] = True
    answers[bad] = answers[bad].roll(1, dims=1)
    return Shards(shown, answers, bad), images[training:], labels[training:]


def make_network() -> nn.Module:
    """A small convolutional network."""
    layers = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10))


def train(shards: Shards, mixed: int, epochs: int, seed: int) -> tuple[nn.Module, Monitor, Ranking]:
    """Train on all shards, so many mixed in each batch; also rank them by their mean loss, to compare with."""
    torch.manual_seed(seed)
    network = make_network()
    optimizer = RobustAdamW(network.parameters(), lr=1e-3)
    monitor = Monitor(optimizer, network)  # this line,
    sums = torch.zeros(len(shards.bad))
    for _ in range(epochs):
        rows = torch.rand(len(shards.bad), ROWS).argsort(1).view(-1, mixed, ROWS // mixed)
        for part in range(mixed):
            for group in torch.randperm(len(shards.bad)).split(mixed):
                chosen = group[:, None], rows[group, part]
                monitor.mark(group)  # and this one are all that a training loop needs
                losses = functional.cross_entropy(
                    network(shards.images[chosen].flatten(0, 1)), shards.labels[chosen].flatten(), reduction="none"
                )
                optimizer.zero_grad()
                losses.mean().backward()
                optimizer.step()
                sums[group] += losses.detach().mean()
    order = sums.argsort(descending=True)
    return network, monitor, Ranking(order.tolist(), (sums[order] / (epochs * mixed)).tolist())


def rank(monitor: Monitor) -> Ranking:
    """The shards by what the monitor says of their batches."""
    samples = monitor.aberrant_samples(None)
    return Ranking([sample.sample for sample in samples], [sample.score for sample in samples])


def count_found(ranking: Ranking, shards: Shards) -> int:
    """How many of the mislabelled shards are among as many of the most suspect."""
    return int(shards.bad[torch.tensor(ranking.shards[: int(shards.bad.sum())])].sum())


def draw(rankings: dict[str, Ranking], shards: Shards, path: Path) -> None:
    """The most suspect shards of each way of training, in the order of their ranks, with their mean scores."""
    total = int(shards.bad.sum())
    shown = min(4 * total, len(shards.bad))
    figure = Figure(figsize=(12, 4.2), dpi=130, layout="constrained")
    for axes, (name, ranking) in zip(figure.subplots(1, 2), rankings.items(), strict=True):
        bad, means = shards.bad[torch.tensor(ranking.shards[:shown])], torch.tensor(ranking.means[:shown])
        for label, chosen, colour in (("mislabelled", bad, BAD), ("right", ~bad, GOOD)):
            places = chosen.nonzero()[:, 0]
            axes.scatter((places + 1).tolist(), means[places].tolist(), s=14, color=colour, label=label)
        axes.axvline(total + 0.5, color="black", linewidth=0.8, linestyle=":")
        axes.set(title=f"{name[0].upper()}{name[1:]}", xlabel="rank of the shard", ylabel="mean score of its batches")
        axes.set(xlim=(0, shown + 1), ylim=(0, None))
        axes.legend(frameon=False, loc="upper right")
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def main() -> None:
    """Train twice, print what was found, draw it, and write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=5000, help="how many there are (%(default)s)")
    parser.add_argument("--bad", type=int, default=50, help="how many of them are mislabelled (%(default)s)")
    parser.add_argument("--epochs", type=int, default=2, help="passes over the data (%(default)s)")
    parser.add_argument("--scatter", type=float, default=0.06, help="how much scanners differ (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("bad_shards"), help="output folder (%(default)s)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    shards, images, labels = make_shards(args.shards, args.bad, args.scatter, args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    rankings: dict[str, Ranking] = {}
    found: dict[str, dict[str, Any]] = {}
    for name, mixed in (("one shard a batch", 1), ("four shards a batch", 4)):
        network, monitor, by_loss = train(shards, mixed, args.epochs, args.seed)
        rankings[name] = rank(monitor)
        excluded = int(sum(monitor.columns()["excluded"]))
        with torch.no_grad():
            accuracy = (network(images).argmax(1) == labels).float().mean().item()
        counts = {"monitor": count_found(rankings[name], shards), "mean loss": count_found(by_loss, shards)}
        steps = args.epochs * args.shards
        found[name] = {"found": counts, "steps": steps, "excluded batches": excluded, "test accuracy": accuracy}
        if mixed == 1:
            print(monitor.table(5))
            monitor.plot(args.out / "trust.png")
        print(f"\n{name}: of the {args.bad} most suspect shards {counts['monitor']} are mislabelled")
        print("the list:", ", ".join(map(str, rankings[name].shards[: args.bad])))
    draw(rankings, shards, args.out / "find_bad_shards.png")
    settings = {"shards": args.shards, "mislabelled": args.bad, "rows": ROWS, "epochs": args.epochs}
    settings |= {"scatter": args.scatter, "seed": args.seed}
    record = {"table": found, "settings": settings} | describe_run("cpu")
    (args.out / "find_bad_shards.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
