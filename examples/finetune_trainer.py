"""Fine-tune a small vision transformer with Hugging Face Trainer while bursts of batches are corrupt.

The transformer learns upright digits (scikit-learn's 8x8 images) from clean data, and is then fine-tuned on digits that
lie on their side. In some bursts of batches all labels are wrong, or all images are garbage. Each optimizer gets the
same learning rates to choose from, by accuracy on clean validation data; what is reported are test accuracies of other
seeds, for which all optimizers see the same batches. Writes `finetune_trainer.json` and `finetune_trainer.png`.
"""

import argparse
import json
import os
import sys
import tempfile
from copy import deepcopy
from importlib.metadata import version
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from torch import Tensor

import adaterm

os.environ["HF_HUB_OFFLINE"] = "1"  # nothing is downloaded
try:
    from matplotlib.figure import Figure
    from sklearn.datasets import load_digits
    from tqdm import tqdm
    from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments, ViTConfig
    from transformers import ViTForImageClassification as ViT
except ImportError as error:
    raise SystemExit(
        f"This example needs {error.name}, which is not installed; in a clone: pip install '.[frameworks]'"
    ) from error

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from provenance import provenance

PRETRAINING, BATCH_SIZE, BURST, EVERY = 600, 16, 5, 10
RATES = (3e-4, 1e-3, 3e-3, 1e-2)
CONDITIONS = ("clean", "wrong labels", "garbage images")
BASE = "AdamW, clipped to 1"
WARM = {"init_scale": "gradient", "decoupled_weight_decay": True}  # the run is too short for a slow start
METHODS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any], dict[str, float]]] = {  # the last for Trainer
    "Adam": (torch.optim.Adam, {}, {"max_grad_norm": 0.0}),
    BASE: (torch.optim.AdamW, {}, {"max_grad_norm": 1.0, "weight_decay": 0.01}),
    "AdaTerm": (adaterm.AdaTerm, WARM, {"max_grad_norm": 0.0, "weight_decay": 0.01}),
    "RobustAdamW": (adaterm.RobustAdamW, {}, {"max_grad_norm": 0.0, "weight_decay": 0.01}),
    "RobustAdamW, max_norm=1": (adaterm.RobustAdamW, {"max_norm": 1.0}, {"max_grad_norm": 0.0, "weight_decay": 0.01}),
}
COLOURS = dict(zip(METHODS, ("#8B93A1", "#0072B2", "#009E73", "#D55E00", "#E69F00"), strict=True))
SIZES = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
IMAGES = {"image_size": 8, "patch_size": 2, "num_channels": 1, "num_labels": 10}
BATCHES = {"num_train_epochs": 1, "train_sampling_strategy": "sequential", "per_device_train_batch_size": BATCH_SIZE}
QUIET = {"save_strategy": "no", "logging_strategy": "no", "report_to": "none", "disable_tqdm": True}
Data = tuple[Tensor, Tensor]  # images, labels


def load_data() -> dict[str, Data]:
    """Four parts of the digits, all but the first lying on their side."""
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
    upright = torch.tensor(digits.images, dtype=torch.float32)[order, None] / 8 - 1
    turned, labels = upright.rot90(dims=(2, 3)), torch.tensor(digits.target)[order]
    ends = {"training": slice(600, 1100), "validation": slice(1100, 1400), "test": slice(1400, None)}
    return {"pretraining": (upright[:600], labels[:600])} | {n: (turned[e], labels[e]) for n, e in ends.items()}


def make_batches(data: Data, seed: int, steps: int, condition: str, share: float) -> Data:
    """The batches of a run, one after the other; in a share of the bursts they are corrupt."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randint(len(data[1]), (steps, BATCH_SIZE), generator=generator)
    images, labels = data[0][chosen], data[1][chosen]
    bursts = -(-steps // BURST)
    bad = torch.randperm(bursts, generator=generator)[: round(share * bursts)]
    corrupt = torch.isin(torch.arange(steps) // BURST, bad)
    if condition == "wrong labels":
        wrong = (labels + torch.randint(1, 10, labels.shape, generator=generator)) % 10
        labels = torch.where(corrupt[:, None], wrong, labels)
    if condition == "garbage images":
        noise = torch.empty_like(images).cauchy_(generator=generator)
        images = torch.where(corrupt[:, None, None, None, None], noise, images)
    return images.flatten(0, 1), labels.flatten()


class Watch(TrainerCallback):
    """Measures the accuracy every few steps, and moves the progress bar."""

    def __init__(self, data: Data, bar: tqdm) -> None:
        self.data, self.bar, self.curve = data, bar, []

    @torch.no_grad()
    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """After each optimizer step."""
        self.bar.update()
        if state.global_step % EVERY == 0 or state.global_step == state.max_steps:
            right = model.eval()(pixel_values=self.data[0]).logits.argmax(1) == self.data[1]
            self.curve.append(right.float().mean().item())
            model.train()


def train(model: Any, batches: Data, method: str, lr: float, watched: Data, bar: tqdm) -> list[float]:
    """Train the model with Trainer, and give the accuracies it had on the watched data on the way."""
    kind, options, settings = METHODS[method]
    watch = Watch(watched, bar)
    items = [{"pixel_values": image, "labels": label} for image, label in zip(*batches, strict=True)]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(folder, use_cpu=True, **settings, **BATCHES, **QUIET)
        optimizer = {"optimizer_cls_and_kwargs": (kind, options | {"lr": lr})}
        trainer = Trainer(model, arguments, train_dataset=items, callbacks=[watch], **optimizer)
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return watch.curve


def compare(args: argparse.Namespace, bar: tqdm) -> dict[str, Any]:
    """For every condition and method: the learning rate it chose, and the test accuracies of the reported seeds."""
    data = load_data()
    torch.manual_seed(0)
    pretrained = ViT(ViTConfig(**IMAGES, **SIZES))
    train(pretrained, make_batches(data["pretraining"], 0, PRETRAINING, "clean", 0), BASE, 1e-3, data["test"], bar)

    def run(method: str, lr: float, condition: str, seed: int, watched: str) -> list[float]:
        bar.set_description(f"{condition}, {method}", refresh=False)
        batches = make_batches(data["training"], seed, args.steps, condition, args.share)
        return train(deepcopy(pretrained), batches, method, lr, data[watched], bar)

    found: dict[str, Any] = {condition: {} for condition in CONDITIONS}
    for condition, rows in found.items():
        for method in METHODS:
            others = range(1000, 1000 + args.tries)
            tried = {lr: mean(run(method, lr, condition, seed, "validation")[-1] for seed in others) for lr in RATES}
            best = max(tried, key=tried.__getitem__)
            curves = [run(method, best, condition, seed, "test") for seed in range(args.seeds)]
            rows[method] = {"lr": best, "validation accuracy by lr": tried, "curves": curves}
    return found


def summarize(found: dict[str, Any]) -> None:
    """Add means and paired differences to the record, and print them."""
    print(f"\n{'test accuracy, %':42}{'lr':>8}{'at the end':>17}{'against AdamW':>17}")
    for condition, rows in found.items():
        base = [curve[-1] for curve in rows[BASE]["curves"]]
        for method, row in rows.items():
            ends = [curve[-1] for curve in row["curves"]]
            columns = {"at the end": ends, "against AdamW": [a - b for a, b in zip(ends, base, strict=True)]}
            row |= {n: {"mean": mean(c), "std": stdev(c) if c[1:] else 0.0} for n, c in columns.items()}
            cells = [f"{100 * row[name]['mean']:.1f} ± {100 * row[name]['std']:.1f}" for name in columns]
            print(f"{condition:18}{method:24}{row['lr']:8g}{cells[0]:>17}{cells[1]:>17}")
    print("\nOn clean test data; mean ± standard deviation over seeds, differences seed by seed.")


def draw(found: dict[str, Any], args: argparse.Namespace, path: Path) -> None:
    """A panel for each condition: the mean accuracy on clean test data, and its standard deviation as a band."""
    figure = Figure(figsize=(12, 4.2), dpi=150, layout="constrained")
    for axes, (condition, rows) in zip(figure.subplots(1, 3, sharey=True), found.items(), strict=True):
        for method, row in rows.items():
            curves, colour = 100 * torch.tensor(row["curves"]), COLOURS[method]
            steps = [min(EVERY * (i + 1), args.steps) for i in range(curves.shape[1])]
            middle, spread = curves.mean(0), curves.std(0, correction=min(1, len(curves) - 1))
            label = f"{method}, lr {row['lr']:g}: {middle[-1]:.1f} %"
            axes.fill_between(steps, middle - spread, middle + spread, color=colour, alpha=0.2, linewidth=0)
            axes.plot(steps, middle, color=colour, linewidth=2, label=label)
        axes.set(xlabel="fine-tuning step", xlim=(0, args.steps))
        axes.set_title("clean" if condition == "clean" else f"{args.share:.0%} of the batches: {condition}")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(loc="lower right", frameon=False, fontsize=8, title="at the end", title_fontsize=8)
    figure.axes[0].set_ylabel("accuracy on clean test data, %")
    figure.suptitle(f"Fine-tuning a small transformer with Trainer: mean ± std, seeds: {args.seeds}", weight="bold")
    figure.savefig(path, backend="agg")


def main() -> None:
    """Train, print the table, write the figure and the numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300, help="fine-tuning steps of each run (%(default)s)")
    parser.add_argument("--seeds", type=int, default=10, help="paired runs that are reported (%(default)s)")
    parser.add_argument("--tries", type=int, default=2, help="other seeds for each learning rate (%(default)s)")
    parser.add_argument("--share", type=float, default=0.2, help="share of corrupt batches, 0 to 1 (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="a look at it in under a minute")
    parser.add_argument("--out", type=Path, default=Path("results/examples"), help="output folder (%(default)s)")
    args = parser.parse_args()
    if args.quick:
        args.steps, args.seeds, args.tries = 40, 2, 1
    torch.set_num_threads(1)  # the network is too small for more
    total = PRETRAINING + args.steps * len(CONDITIONS) * len(METHODS) * (len(RATES) * args.tries + args.seeds)
    with tqdm(total=total, unit=" steps", mininterval=0.2 if sys.stderr.isatty() else 10) as bar:
        found = compare(args, bar)
    summarize(found)
    args.out.mkdir(parents=True, exist_ok=True)
    draw(found, args, args.out / "finetune_trainer.png")
    record = {"table": found, "settings": vars(args) | {"out": str(args.out)}, **provenance("cpu, 1 thread")}
    record["versions"] |= {name: version(name) for name in ("transformers", "scikit-learn")}
    (args.out / "finetune_trainer.json").write_text(json.dumps(record, indent=1) + "\n")
    print(f"\nFigure and numbers: {args.out}/finetune_trainer.png, {args.out}/finetune_trainer.json")


if __name__ == "__main__":
    main()
