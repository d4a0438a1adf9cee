"""Check what the spec says of RobustAdamW on a language model of bytes, with several seeds, in minutes on one GPU.

    python benchmarks/language_check.py --minutes 5.2           # needs torch, numpy and the package only
    python benchmarks/language_check.py --device cpu --smoke    # a tiny version, in seconds

Every method meets the same batches and accidents; the learning rate and all else are the same for all. Weight decay is
on all parameters. What `adaterm-bench run language` does for all arms, this does with other options of RobustAdamW,
into the file that it wrote before there was that experiment. Runs that the output has are not repeated, so that a call
goes on where the last one stopped. Writes results/language_check/language_check.json after every run.
"""

import argparse
import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from provenance import provenance

from adaterm_bench.arena.arm import Arm, NamedParameters, Rate, Recipe
from adaterm_bench.arena.arms import ARMS
from adaterm_bench.arena.peers import ObservingRobustAdamW
from adaterm_bench.core.files import write_whole
from adaterm_bench.datasets import sources
from adaterm_bench.experiments.language.course import NOISES
from adaterm_bench.experiments.language.training import BETAS, DECAY, Settings, Trainer
from adaterm_bench.models.transformer import Sizes

LR = 3e-3
TINY = Settings(Sizes(context=16, width=16, layers=1, heads=2), 24, 4, 4, validation_batches=2, settled=10)
CONDITIONS = {
    "clean": "clean",
    "tokens": "tokens 10 %",
    "targets": "targets 20 %",
    "tensor": "tensor 2 %",
    "garbage": "garbage 2 %",
    "spike": "spike 1 %",
}
"""Their names here, and in the experiment."""


def make_robust(params: NamedParameters, lr: Rate, recipe: Recipe, **options: Any) -> torch.optim.Optimizer:
    chosen = {"betas": recipe.betas, "weight_decay": recipe.weight_decay, "capturable": params[0][1].is_cuda}
    return ObservingRobustAdamW([parameter for _, parameter in params], lr, **chosen, **options)


METHODS: dict[str, Arm] = {
    "AdamW": ARMS["AdamW"],
    "AdamW, clipped at 1": ARMS["AdamW (clipped)"],
    "RobustAdamW": ARMS["RobustAdamW"],
    "RobustAdamW, max_norm 1": ARMS["RobustAdamW (clipped)"],
}
MORE_METHODS: dict[str, Arm] = {
    "RobustAdamW, dof 10, max_norm 1": Arm(partial(make_robust, dof=10.0, max_norm=1.0), captured=True),
    "RobustAdamW, auto": Arm(partial(make_robust, max_norm="auto"), captured=True),
}
VERDICTS = {
    "bad_excluded": "bad_excluded",
    "good_excluded": "good_excluded",
    "bad_excluded_later": "bad_excluded_later",
    "good_excluded_later": "good_excluded_later",
    "auroc_later": "auroc",
}
"""Their names here, and in the experiment; of RobustAdamW alone."""
Key = tuple[str, str, int]


def order_runs(methods: Sequence[str], conditions: Sequence[str], seeds: int) -> Iterator[Key]:
    """Seed by seed, so that there is a whole table early; the methods that are less asked for come last."""
    for known in (METHODS, MORE_METHODS):
        for seed in range(seeds):
            for condition in conditions:
                yield from ((method, condition, seed) for method in methods if method in known)


class Record:
    """The runs in a file, with what they have in common: settings, data and where they come from."""

    def __init__(self, file: Path, common: dict[str, Any], device: str) -> None:
        self.file, self.common, self.device = file, json.loads(json.dumps(common)), device
        self.runs: dict[Key, dict[str, Any]] = {}
        if file.is_file():
            known = json.loads(file.read_text())
            different = [name for name, value in self.common.items() if known.get(name) != value]
            if different:
                raise SystemExit(f"{file} has runs of other {', '.join(different)}: give another --out, or remove it")
            self.runs = {(run["method"], run["condition"], run["seed"]): run for run in known["runs"]}

    def add(self, key: Key, outcome: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Add a run and write the file."""
        method, condition, seed = key
        run: dict[str, Any] = {"method": method, "condition": condition, "seed": seed}
        run |= {
            "loss": _as_number(outcome["loss"]),
            "training losses": [_as_number(loss) for loss in outcome["losses"]],
        }
        if method.startswith("RobustAdamW"):
            run |= {name: _as_number(outcome[theirs]) for name, theirs in VERDICTS.items()}
        run |= {"captured": outcome["captured"], "seconds": round(seconds, 3)}
        self.runs[key] = run
        record = {**self.common, **provenance(self.device), "runs": list(self.runs.values())}
        write_whole(self.file, (json.dumps(record, indent=1) + "\n").encode())
        return run


def _as_number(value: float | None) -> float | None:
    """A number for a file: None where there is none, or it is not finite."""
    return None if value is None or not math.isfinite(value) else round(value, 5)


def run_all(trainer: Trainer, record: Record, keys: Sequence[Key], until: float) -> None:
    """Run what is missing, until the time is over."""
    missing = [key for key in keys if key not in record.runs]
    for number, key in enumerate(missing):
        begin = time.perf_counter()
        if begin >= until:
            print(f"the time is over: {len(missing) - number} runs are missing", flush=True)
            return
        method, condition, seed = key
        outcome = trainer.train(method, (METHODS | MORE_METHODS)[method], CONDITIONS[condition], seed, LR)
        print(describe(record.add(key, outcome, time.perf_counter() - begin)), flush=True)


def describe(run: dict[str, Any]) -> str:
    words = f"{run['method']:32} {run['condition']:8} seed {run['seed']}  loss {_show(run['loss'], '.4f')}"
    if "auroc_later" in run:
        words += f"  excluded {_show(run['bad_excluded'], '.1%')} of the bad, {_show(run['good_excluded'], '.1%')}"
        words += f" of the good; AUROC {_show(run['auroc_later'], '.3f')}"
    return f"{words}  {run['seconds']:.1f} s{'' if run['captured'] else ', not captured'}"


def _show(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def summarize(runs: Sequence[dict[str, Any]], name: str, form: str) -> str:
    """The mean over seeds, and the range; how many have no number is said."""
    values = [run[name] for run in runs if run.get(name) is not None]
    if not runs or not values:
        return "-" if not runs or name != "loss" else f"all {len(runs)} lost"
    words = format(mean(values), form)
    if len(values) > 1:
        words += f" ({min(values):{form}} to {max(values):{form}})"
    return words + (f", {len(runs) - len(values)} lost" if name == "loss" and len(values) < len(runs) else "")


def print_table(record: Record, title: str, name: str, form: str) -> None:
    runs = list(record.runs.values())
    methods = [it for it in METHODS | MORE_METHODS if any(run["method"] == it and name in run for run in runs)]
    conditions = [it for it in CONDITIONS if any(run["condition"] == it for run in runs)]
    print(f"\n{title}\n| | {' | '.join(conditions)} |\n|---|{'---|' * len(conditions)}")
    for method in methods:
        chosen = [[it for it in runs if (it["method"], it["condition"]) == (method, each)] for each in conditions]
        print(f"| {method} | {' | '.join(summarize(some, name, form) for some in chosen)} |")


def describe_setting(trainer: Trainer, data: sources.Sources) -> dict[str, Any]:
    """What all runs have in common."""
    settings = {name: value for name, value in vars(trainer.settings).items() if name != "bf16"}
    settings |= {"sizes": trainer.settings.sizes._asdict(), "lr": LR}
    return {
        "settings": settings | {"betas": BETAS, "weight decay": DECAY, "decayed": "all parameters"},
        "parameters": trainer.count_parameters(),
        "data": {
            "fingerprint": data.fingerprint,
            "bytes for training": len(data.training),
            "bytes for validation": len(data.validation),
        },
        "conditions": {name: NOISES[noise]._asdict() for name, noise in CONDITIONS.items()},
        "precision": "bfloat16 autocast" if trainer.settings.bf16 else "float32",
    }


def main(words: Sequence[str] | None = None) -> None:
    start = time.perf_counter()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--smoke", action="store_true", help="a tiny network, and few steps")
    parser.add_argument("--minutes", type=float, default=5.2, help="after which no other run begins")
    parser.add_argument("--seeds", type=int, help="3, or 1 for the tiny version")
    parser.add_argument("--methods", nargs="+", choices=[*METHODS, *MORE_METHODS])
    parser.add_argument("--conditions", nargs="+", choices=CONDITIONS, default=list(CONDITIONS))
    parser.add_argument("--steps", type=int, help="of a run")
    parser.add_argument("--out", type=Path, default=Path("results/language_check"))
    args = parser.parse_args(words)
    settings = replace(TINY if args.smoke else Settings(), bf16=args.device.startswith("cuda"))
    if args.steps is not None:
        settings = replace(settings, steps=args.steps)
    data = sources.load(limit=1 << 16 if args.smoke else None)
    if args.smoke:
        torch.set_num_threads(1)  # more would wait for each other most of the time
    trainer = Trainer(settings, data, args.device)
    common = describe_setting(trainer, data)
    print(f"ready after {time.perf_counter() - start:.1f} s: {common}", flush=True)
    record = Record(args.out / "language_check.json", common, args.device)
    methods = args.methods or [*METHODS, *({} if args.smoke else MORE_METHODS)]
    keys = list(order_runs(methods, args.conditions, args.seeds or (1 if args.smoke else 3)))
    run_all(trainer, record, keys, start + 60.0 * args.minutes)
    print_table(record, "validation loss: mean (range) over seeds", "loss", ".4f")
    for name, title in (
        ("bad_excluded_later", f"share of the bad batches excluded after step {settings.settled}"),
        ("good_excluded_later", f"share of the good batches excluded after step {settings.settled}"),
        ("good_excluded", "share of the good batches excluded in the whole run"),
    ):
        print_table(record, title, name, ".1%")
    print_table(
        record,
        f"AUROC of the level, or of its z-score in later runs, after step {settings.settled}",
        "auroc_later",
        ".3f",
    )


if __name__ == "__main__":
    main()
