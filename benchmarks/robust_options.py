"""Measure what RobustAdamW's options do to the demo's language model, with and without bad batches.

Every run has the demo's learning rate of RobustAdamW, its batches and its seeds; one option differs from the defaults,
or two. AdamW runs beside them, with clipping as in the demo and without. Writes
results/robust_options/robust_options.json.
"""

import argparse
import json
import math
import sys
from functools import partial
from pathlib import Path

import torch
from provenance import provenance

import adaterm

sys.path.append(str(Path(__file__).parents[1] / "examples"))
from demo import ADAMW, METHODS, ROBUST, Trial, summarize, train_all

OPTIONS = (
    {},
    {"dof": 10.0},
    {"dof": math.inf},
    {"window": 50},
    {"threshold": 2.0},
    {"threshold": 4.0},
    {"threshold": math.inf},
    {"max_norm": 1.0},
    {"max_norm": "auto"},
    {"dof": 10.0, "max_norm": 1.0},
    {"minority": 0.4},
)


def name_options(options: dict[str, float | str]) -> str:
    words = (f'{key}="{value}"' if isinstance(value, str) else f"{key}={value:g}" for key, value in options.items())
    return ", ".join(words) or "defaults"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--share", type=float, default=0.2, help="of the batches that are bad")
    parser.add_argument("--out", type=Path, default=Path("results/robust_options"))
    args = parser.parse_args()
    methods = {ADAMW: METHODS[ADAMW], "AdamW": METHODS[ADAMW]._replace(make=torch.optim.AdamW, clip=None)}
    for options in OPTIONS:
        methods[name_options(options)] = METHODS[ROBUST]._replace(make=partial(adaterm.RobustAdamW, **options))
    trials = {
        (name, share): [Trial(method, seed, args.steps, share) for seed in range(args.seeds)]
        for name, method in methods.items()
        for share in (args.share, 0.0)
    }
    done = train_all((trial for some in trials.values() for trial in some), "options")
    outcomes = {key: [done[trial] for trial in some] for key, some in trials.items()}
    record = {
        "table": {name: summarize(outcomes[name, args.share], outcomes[name, 0.0]) for name in methods},
        "settings": {"steps": args.steps, "seeds": args.seeds, "share of bad batches": args.share},
        "lr": {name: method.lr for name, method in methods.items()},
        **provenance("cpu"),
    }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "robust_options.json").write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record["table"], indent=1))


if __name__ == "__main__":
    main()
