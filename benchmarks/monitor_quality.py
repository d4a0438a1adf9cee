"""How well a Monitor finds bad batches, beside the loss and the gradient norm; writes results/monitor_quality.

    python benchmarks/monitor_quality.py             # about ten minutes on one core; needs scikit-learn
    python benchmarks/monitor_quality.py --quick     # a look, in a minute

A small convolutional network learns scikit-learn's digits, and a small transformer learns bytes of torch's sources,
under the arena's noises and under faults of one batch in a hundred. Signals are compared after the first steps, all of
one run: by the area under the ROC curve (the chance that a bad batch ranks above a good one), and by precision at the
true number (the share of bad batches among as many of the highest ranks as there are bad ones). Loss, norm, the loss's
z-score (over the last 128 steps) and SkipStep's rule (the larger z-score of loss and norm) are those of RobustAdamW's
run. AdaTerm has runs of its own. How the score puts tensors together was chosen on runs of seed 0; these are of others.
"""

import argparse
import json
from collections.abc import Callable
from math import inf, isnan, nan
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import torch
from matplotlib.figure import Figure
from provenance import provenance
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

import adaterm
from adaterm_bench.datasets import sources
from adaterm_bench.experiments.language.course import NOISES, Noise, draw_course
from adaterm_bench.models.transformer import Sizes, make_transformer, measure_loss

BATCH, PAST, SIGMAS = 32, 128, 6.0
DIGITS = {
    "labels 20 %": ("labels", 0.2),
    "frozen 10 %": ("frozen", 0.1),
    "swapped 10 %": ("swapped", 0.1),
    "flipped labels 1 %": ("labels", 0.01),
    "zeroed inputs 1 %": ("zeroed", 0.01),
    "duplicated rows 1 %": ("duplicated", 0.01),
    "wrong normalisation 1 %": ("normalisation", 0.01),
    "saturated sensor 1 %": ("sensor", 0.01),
    "one layer times 8, 1 %": ("layer", 0.01),
}
"""labels: permuted; frozen: all images are the first; swapped: halves of bytes are exchanged; zeroed: images of zeros;
duplicated: the second half of the batch repeats the first; normalisation: images are not normalised; sensor: one pixel
is always at its largest; layer: gradients of the second convolution are multiplied by 8."""
LANGUAGE = {
    **{name: NOISES[name] for name in ("tokens 10 %", "targets 5 %", "targets 20 %", "targets 40 %", "tensor 2 %")},
    **{name: NOISES[name] for name in ("spike 1 %", "garbage 2 %", "overflow 1 %")},
    "targets 1 %": Noise("targets", 0.01),
}
SIZES = Sizes(256, 64, 48, 2, 2)
SIGNALS = ("loss", "norm", "loss z", "SkipStep", "level", "z", "score", "AdaTerm level", "AdaTerm z", "AdaTerm score")
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "RobustAdamW": lambda params: adaterm.RobustAdamW(params, lr=3e-3),
    "AdaTerm": lambda params: adaterm.AdaTerm(params, lr=3e-3, init_scale="gradient"),
}


class Run(NamedTuple):
    """Of each step: whether it was bad, and the signals."""

    bad: Tensor
    loss: Tensor
    norm: Tensor
    columns: dict[str, list[Any]]


def make_network() -> nn.Sequential:
    """A small convolutional network."""
    first = [nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()]
    second = [nn.Conv2d(16, 32, 3, padding=1, stride=2), nn.BatchNorm2d(32), nn.ReLU()]
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(512, 10))


def augment(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Images, shifted by up to a pixel, with noise, so that no two batches have the same."""
    padded = functional.pad(pixels, (1, 1, 1, 1))
    left, top = torch.randint(3, (2,), generator=generator).tolist()
    moved = padded[:, top : top + 8, left : left + 8]
    return (moved + 12.0 * torch.randn(moved.shape, generator=generator)).clamp(0.0, 255.0)


def corrupt(kind: str, pixels: Tensor, labels: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A bad batch."""
    if kind == "labels":
        labels = labels[torch.randperm(len(labels), generator=generator)]
    elif kind == "frozen":
        pixels = pixels[:1].expand_as(pixels)
    elif kind == "swapped":
        whole = pixels.to(torch.uint8)
        pixels = ((whole << 4) | (whole >> 4)).float()
    elif kind == "zeroed":
        pixels = torch.zeros_like(pixels)
    elif kind == "duplicated":
        half = len(labels) // 2
        pixels, labels = pixels[:half].repeat(2, 1, 1), labels[:half].repeat(2)
    elif kind == "sensor":
        pixels = pixels.clone()
        pixels[:, 4, 4] = 255.0
    return pixels, labels


def learn_digits(condition: str, optimizer: str, seed: int, steps: int) -> Run:
    """A run on digits."""
    kind, share = DIGITS[condition]
    digits = load_digits()
    images, labels = torch.tensor(digits.images).float() * 255.0 / 16.0, torch.tensor(digits.target)
    torch.manual_seed(seed)
    generator, network = torch.Generator().manual_seed(seed), make_network()
    bad = choose_bad(share, steps, generator)

    def measure(step: int) -> Tensor:
        chosen = torch.randint(len(labels), (BATCH,), generator=generator)
        batch = augment(images[chosen], generator), labels[chosen]
        pixels, answers = corrupt(kind, *batch, generator) if bad[step] else batch
        raw = bool(bad[step]) and kind == "normalisation"
        inputs = pixels / 255.0 if raw else (pixels - 78.0) / 96.0
        return functional.cross_entropy(network(inputs[:, None]), answers)

    def spoil(step: int) -> None:
        if bad[step] and kind == "layer":
            for parameter in network[3].parameters():
                assert parameter.grad is not None
                parameter.grad *= 8.0

    return train(network, optimizer, bad, measure, spoil)


def learn_language(condition: str, optimizer: str, seed: int, steps: int) -> Run:
    """A run on bytes of sources."""
    network = make_transformer(SIZES, 0, torch.device("cpu"))
    network.begin(seed)
    params = list(network.parameters())
    tokens = sources.load(limit=1 << 21).training
    shape = (SIZES.vocabulary, steps, 8, SIZES.context)
    course = draw_course(tokens, *shape, LANGUAGE[condition], seed, [parameter.numel() for parameter in params])

    def measure(step: int) -> Tensor:
        return measure_loss(network, *course.select_batch(torch.tensor([step])), False)

    def spoil(step: int) -> None:
        course.corrupt_gradients(
            [parameter.grad for parameter in params if parameter.grad is not None], torch.tensor([step])
        )

    return train(network, optimizer, course.bad, measure, spoil)


def choose_bad(share: float, steps: int, generator: torch.Generator) -> Tensor:
    """Which steps are bad."""
    bad = torch.zeros(steps, dtype=torch.bool)
    bad[torch.randperm(steps, generator=generator)[: round(share * steps)]] = True
    return bad


def train(
    network: nn.Module, name: str, bad: Tensor, measure: Callable[[int], Tensor], spoil: Callable[[int], None]
) -> Run:
    """Train, and note what each batch looked like."""
    params = list(network.parameters())
    optimizer = OPTIMIZERS[name](params)
    monitor, losses, norms = adaterm.Monitor(optimizer, network), [], []
    for step in range(len(bad)):
        optimizer.zero_grad()
        loss = measure(step)
        loss.backward()
        spoil(step)
        norms.append(torch.stack([parameter.grad.norm() for parameter in params if parameter.grad is not None]).norm())
        losses.append(loss.detach())
        optimizer.step()
    return Run(bad, torch.stack(losses), torch.stack(norms), monitor.columns())


def list_signals(run: Run, prefix: str = "") -> dict[str, Tensor]:
    """What a monitor says of each step; gradients that are not finite come first, as in `aberrant`."""
    broken = torch.tensor(run.columns["nonfinite"]) > 0
    named = {"level": "level", "z": "zscore", "score": "score"}
    return {
        prefix + name: torch.where(broken, inf, torch.tensor(run.columns[column])) for name, column in named.items()
    }


def find_zscores(values: Tensor) -> Tensor:
    """How far each value lies above the mean of those before, in standard deviations."""
    padded = torch.cat([values.new_full((PAST,), nan), values])
    past = padded.unfold(0, PAST, 1)[:-1]
    known = past.isfinite()
    count = known.sum(1).clamp_min(2)
    middle = torch.where(known, past, 0.0).sum(1) / count
    spread = (torch.where(known, (past - middle[:, None]).square(), 0.0).sum(1) / (count - 1)).sqrt()
    return torch.where(values.isfinite(), (values - middle) / spread.clamp_min(1e-12), inf)


def measure_auroc(signal: Tensor, bad: Tensor) -> float:
    """The chance that a bad batch has the larger signal; ties count half."""
    signal = signal.nan_to_num(-1e30, posinf=1e30)
    differences = signal[bad][:, None] - signal[~bad]
    return ((differences > 0).double().mean() + 0.5 * (differences == 0).double().mean()).item()


def measure_precision(signal: Tensor, bad: Tensor) -> float:
    """The share of bad batches among as many with the largest signals as there are bad ones."""
    chosen = signal.nan_to_num(-1e30, posinf=1e30).topk(int(bad.sum())).indices
    return bad[chosen].double().mean().item()


def compare(learn: Callable[..., Run], condition: str, seed: int, steps: int, settled: int) -> dict[str, Any]:
    """All signals of one seed."""
    robust, adaterm_run = (learn(condition, name, seed, steps) for name in OPTIMIZERS)
    losses, norms = find_zscores(robust.loss), find_zscores(robust.norm)
    plain = {"loss": robust.loss, "norm": torch.where(robust.norm.isfinite(), robust.norm, inf), "loss z": losses}
    signals = plain | {"SkipStep": torch.maximum(losses, norms)} | list_signals(robust)
    signals |= list_signals(adaterm_run, "AdaTerm ")
    bad = robust.bad[settled:]
    excluded = torch.tensor(robust.columns["excluded"])[settled:]
    skipped = signals["SkipStep"][settled:] > SIGMAS
    return {
        "auroc": {name: measure_auroc(signal[settled:], bad) for name, signal in signals.items()},
        "precision": {name: measure_precision(signal[settled:], bad) for name, signal in signals.items()},
        "bad": int(bad.sum()),
        "caught": {name: chosen[bad].double().mean().item() for name, chosen in named(excluded, skipped)},
        "false alarms": {name: chosen[~bad].double().mean().item() for name, chosen in named(excluded, skipped)},
    }


def named(excluded: Tensor, skipped: Tensor) -> list[tuple[str, Tensor]]:
    """The two rules that decide."""
    return [("RobustAdamW", excluded), ("SkipStep", skipped)]


def average(outcomes: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over seeds."""
    kinds = ("auroc", "precision", "caught", "false alarms")
    means = {
        kind: {name: mean(outcome[kind][name] for outcome in outcomes) for name in outcomes[0][kind]} for kind in kinds
    }
    return means | {"bad batches of each seed": [outcome["bad"] for outcome in outcomes]}


def draw(table: dict[str, dict[str, Any]], path: Path) -> None:
    """AUROC and precision of all signals under all conditions."""
    figure = Figure(figsize=(14, 0.42 * len(table) + 1.9), dpi=130, layout="constrained")
    for axes, kind, least in zip(figure.subplots(1, 2), ("auroc", "precision"), (0.5, 0.0), strict=True):
        values = [[row[kind][signal] for signal in SIGNALS] for row in table.values()]
        axes.imshow(values, cmap="Blues", vmin=least, vmax=1.15, aspect="auto")
        for line, row in enumerate(values):
            for column, value in enumerate(row):
                dark, best = value > 0.85, value >= max(max(row) - 0.005, least + 0.01)
                weight, colour = "bold" if best else "normal", "white" if dark else "black"
                shown = f"{value:.2f}".replace("0.", ".")
                axes.text(column, line, shown, ha="center", va="center", fontsize=8.5, color=colour, weight=weight)
        axes.set_xticks(range(len(SIGNALS)), SIGNALS, rotation=35, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(len(table)), list(table) if kind == "auroc" else [])
        axes.set_title({"auroc": "AUROC", "precision": "Precision at the true number"}[kind])
        for edge in (3.5, 6.5):
            axes.axvline(edge, color="white", linewidth=3)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed and fewer steps")
    parser.add_argument("--out", type=Path, default=Path("results/monitor_quality"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    seeds, scale = (1, 0.3) if args.quick else (3, 1.0)
    tasks = {"digits": (learn_digits, DIGITS, 1200), "language": (learn_language, LANGUAGE, 500)}
    settled, table = 100, {}
    for task, (learn, conditions, steps) in tasks.items():
        for condition in conditions:
            outcomes = [compare(learn, condition, seed, int(scale * steps), settled) for seed in range(1, seeds + 1)]
            row = table[f"{task}, {condition}"] = average(outcomes)
            shown = " ".join(f"{name} {value:.3f}" for name, value in row["auroc"].items() if not isnan(value))
            print(f"{task}, {condition}: {shown}", flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    draw(table, args.out / "monitor_quality.png")
    lengths = {task: int(scale * steps) for task, (_, _, steps) in tasks.items()}
    settings = {"seeds": seeds, "steps": lengths, "steps before signals are compared": settled, "lr": 3e-3}
    record = {"table": table, "settings": settings} | provenance("cpu")
    (args.out / "monitor_quality.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
