"""Check what the spec says of RobustAdamW on a language model of bytes, with several seeds, in minutes on one GPU.

    python benchmarks/language_check.py --minutes 5.2           # needs torch, numpy and the package only
    python benchmarks/language_check.py --device cpu --smoke    # a tiny version, in seconds

Every method meets the same batches and accidents; the learning rate and all else are the same for all. Weight decay is
on all parameters. Runs that the output has are not repeated, so that a call goes on where the last one stopped. Writes
results/language_check/language_check.json after every run.
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
from torch import Tensor

from adaterm import RobustAdamW
from adaterm_bench.core.files import write_whole
from adaterm_bench.datasets import sources
from adaterm_bench.experiments.language.course import CONDITIONS, Course
from adaterm_bench.experiments.language.training import CaptureError, Factory, Outcome, Settings, Trainer
from adaterm_bench.methods import ClippedAdamW
from adaterm_bench.models.transformer import Sizes

BETAS, DECAY = (0.9, 0.95), 0.1
TINY = Settings(Sizes(context=16, width=16, layers=1, heads=2), 24, 4, 3e-3, 4, validation_batches=2, settled=10)


def make_adamw(kind: type[torch.optim.AdamW], params: list[Tensor], lr: Tensor) -> torch.optim.Optimizer:
    return kind(params, lr, BETAS, weight_decay=DECAY, fused=True, capturable=lr.is_cuda)


def make_robust(params: list[Tensor], lr: Tensor, **options: Any) -> torch.optim.Optimizer:
    """RobustAdamW, in one kernel on a GPU, and without compiling one elsewhere."""
    engine = {"fused": True, "capturable": True} if lr.is_cuda else {"fused": False, "foreach": False}
    return RobustAdamW(params, lr, BETAS, weight_decay=DECAY, **options, **engine)


METHODS: dict[str, Factory] = {
    "AdamW": partial(make_adamw, torch.optim.AdamW),
    "AdamW, clipped at 1": partial(make_adamw, ClippedAdamW),
    "RobustAdamW": make_robust,
    "RobustAdamW, max_norm 1": partial(make_robust, max_norm=1.0),
}
MORE_METHODS: dict[str, Factory] = {
    "RobustAdamW, dof 10, max_norm 1": partial(make_robust, dof=10.0, max_norm=1.0),
    "RobustAdamW, auto": partial(make_robust, max_norm="auto"),
}
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

    def add(self, key: Key, outcome: Outcome) -> dict[str, Any]:
        """Add a run and write the file."""
        method, condition, seed = key
        run: dict[str, Any] = {"method": method, "condition": condition, "seed": seed}
        run |= {"loss": _as_number(outcome.loss), "training losses": [_as_number(loss) for loss in outcome.losses]}
        if outcome.verdicts is not None:
            run |= {name: _as_number(value) for name, value in outcome.verdicts._asdict().items()}
        run |= {"captured": outcome.captured, "seconds": round(outcome.seconds, 3)}
        self.runs[key] = run
        record = {**self.common, **provenance(self.device), "runs": list(self.runs.values())}
        write_whole(self.file, (json.dumps(record, indent=1) + "\n").encode())
        return run


def _as_number(value: float | None) -> float | None:
    """A number for a file: None where there is none, or it is not finite."""
    return None if value is None or not math.isfinite(value) else round(value, 5)


def make_trainer(settings: Settings, data: sources.Sources, device: str, compiled: bool) -> tuple[Trainer, bool]:
    """A trainer that is ready, and whether it is compiled: it need not be."""
    trainer = Trainer(settings, data, device, compiled)
    try:
        trainer.prepare()
    except Exception as error:
        if not compiled:
            raise
        print(f"not compiled: {type(error).__name__}: {str(error)[:500]}", flush=True)
        return make_trainer(settings, data, device, False)
    return trainer, compiled


def run_all(trainer: Trainer, record: Record, keys: Sequence[Key], until: float, capture: bool) -> None:
    """Run what is missing, until the time is over; a method whose step cannot be captured runs without."""
    drawn: tuple[tuple[str, int], Course] | None = None
    uncaptured: set[str] = set()
    missing = [key for key in keys if key not in record.runs]
    for number, key in enumerate(missing):
        if time.perf_counter() >= until:
            print(f"the time is over: {len(missing) - number} runs are missing", flush=True)
            return
        method, condition, seed = key
        if drawn is None or drawn[0] != (condition, seed):
            drawn = None  # so that its memory is free
            drawn = (condition, seed), trainer.draw(CONDITIONS[condition], seed)
        train = partial(trainer.train, (METHODS | MORE_METHODS)[method], drawn[1], seed)
        outcome = None
        if capture and method not in uncaptured:
            try:
                outcome = train(captured=True)
            except CaptureError as error:
                print(f"{method} is not captured: {str(error)[:500]}", flush=True)
                uncaptured.add(method)
        if outcome is None:
            outcome = train(captured=False)
        print(describe(record.add(key, outcome)), flush=True)


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
    parser.add_argument("--eager", action="store_true", help="without CUDA graphs")
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile")
    parser.add_argument("--out", type=Path, default=Path("results/language_check"))
    args = parser.parse_args(words)
    settings = TINY if args.smoke else Settings()
    if args.steps is not None:
        settings = replace(settings, steps=args.steps)
    data = sources.load(limit=1 << 16 if args.smoke else None)
    on_gpu = args.device.startswith("cuda")
    if args.smoke:
        torch.set_num_threads(1)  # more would wait for each other most of the time
    if on_gpu:
        torch.cuda.set_device(torch.device(args.device).index or 0)
        torch.set_float32_matmul_precision("high")  # nothing but what autocast leaves, and the compiler asks for it
    trainer, compiled = make_trainer(settings, data, args.device, compiled=on_gpu and not args.no_compile)
    shared = {"sizes": settings.sizes._asdict(), "betas": BETAS, "weight decay": DECAY, "decayed": "all parameters"}
    common = {
        "settings": vars(settings) | shared,
        "parameters": trainer.count_parameters(),
        "data": {
            "fingerprint": data.fingerprint,
            "bytes for training": len(data.training),
            "bytes for validation": len(data.validation),
        },
        "conditions": {name: condition._asdict() for name, condition in CONDITIONS.items()},
        "precision": "bfloat16 autocast" if trainer.bf16 else "float32",
    }
    ready = time.perf_counter() - start
    print(f"ready after {ready:.1f} s, {'compiled' if compiled else 'not compiled'}: {common}", flush=True)
    record = Record(args.out / "language_check.json", common, args.device)
    methods = args.methods or [*METHODS, *({} if args.smoke else MORE_METHODS)]
    keys = list(order_runs(methods, args.conditions, args.seeds or (1 if args.smoke else 3)))
    run_all(trainer, record, keys, start + 60.0 * args.minutes, on_gpu and not args.eager)
    print_table(record, "validation loss: mean (range) over seeds", "loss", ".4f")
    for name, title in (
        ("bad_excluded_later", f"share of the bad batches excluded after step {settings.settled}"),
        ("good_excluded_later", f"share of the good batches excluded after step {settings.settled}"),
        ("good_excluded", "share of the good batches excluded in the whole run"),
    ):
        print_table(record, title, name, ".1%")
    print_table(record, f"AUROC of the level after step {settings.settled}", "auroc_later", ".3f")


if __name__ == "__main__":
    main()
