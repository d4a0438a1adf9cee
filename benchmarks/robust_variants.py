"""Compare variants of RobustAdamW, its options and its equations, on the arena's tuning seeds of bytes.

    python benchmarks/robust_variants.py --tuned results/arena --device cuda --jobs 4
    python benchmarks/robust_variants.py --lr 3e-3 --noises clean:1000-1007 "targets 20 %" --only "as it is" "dof 10"

The first needs the tuning runs of docs/arena.md. RobustAdamW's defaults are chosen by this, and by nothing else: noises
and models that judge it are held out. All variants learn at the rate that is best for RobustAdamW as it is. A variant
of the equations is a copy of the package in which one text is replaced by another. What they are is written beside the
outcomes, into results/robust_variants/robust_variants.json, and every run is kept under --work, from where the same
command goes on.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from provenance import provenance

from adaterm_bench.arena.protocol import TUNING_SEEDS, choose_rates
from adaterm_bench.core.store import Store
from adaterm_bench.core.trial import Result, keep_newest_equations

SOURCES = Path(__file__).parents[1] / "src"
EQUATIONS = Path("adaterm/equations/robust_adam.py")
NOISES = ("clean", "tokens 10 %", "targets 20 %", "tensor 2 %")
OUTCOMES = (
    "loss",
    "second_loss",
    "bad_excluded",
    "good_excluded",
    "bad_excluded_later",
    "good_excluded_later",
    "auroc",
)
RUN_ALL = "import json, sys; from adaterm_bench.cli import main; sys.exit(max(map(main, json.loads(sys.argv[1]))))"
"""One process for all commands: the network is compiled once."""
USUAL = "at_least(quantile(sort(window), 0.5), 0.0)"
SPREAD = "LEAST_SPREAD = 0.35"
TRUST = ("belongs = (1.0 + exp(-0.5 * square(bound))) / (1.0", "belongs = 1.0 / (1.0")
EXCESS = (" + batch.excess\n", "\n")
MOVES = "moves = pace.lr * trust"
FIRST = "ENOUGH = 10 "
LEVEL = (  # the spread stays that around the median
    ("quantile(ordered, 0.5), 0.0)\n", "at_least(quantile(ordered, 0.5), 0.0), 0.0)\n"),
    ("at_least(usual - quantile(ordered, BELOW)", "at_least(quantile(ordered, 0.5) - quantile(ordered, BELOW)"),
)
SCALED = ("where(widened > numbers.threshold, excess, 0.0)", "excess")
FULL = "full = known >= numbers.window"
FROM_TEN = (FULL, "full = known >= ENOUGH")
FROM_HALF = (FULL, "full = 2.0 * known >= numbers.window")


class Variant(NamedTuple):
    """Options behind the method's name, and texts of the equations with what to put in their places."""

    options: str = ""
    replaced: tuple[tuple[str, str], ...] = ()


VARIANTS = {  # of the present equations: in older files the first is that of theirs
    "as it is": Variant(),
    "threshold 4, least spread 0.25, none in a row is taken": Variant(
        "threshold=4", ((SPREAD, "LEAST_SPREAD = 0.25"), ("ROW = 7", "ROW = 1000"), TRUST, EXCESS)
    ),
    "threshold 2.5, least spread 0.4": Variant("threshold=2.5", ((SPREAD, "LEAST_SPREAD = 0.4"),)),
    "threshold 2, least spread 0.5": Variant("threshold=2", ((SPREAD, "LEAST_SPREAD = 0.5"),)),
    "one of 4 in a row is taken": Variant(replaced=(("ROW = 7", "ROW = 3"),)),
    "none in a row is taken": Variant(replaced=(("ROW = 7", "ROW = 1000"),)),
    "tensors of a minority have weights": Variant(replaced=(EXCESS,)),
    "weights against the 0.7-quantile": Variant(replaced=((USUAL, USUAL.replace("0.5", "0.7")),)),
    "weights against the 0.9-quantile": Variant(replaced=((USUAL, USUAL.replace("0.5", "0.9")),)),
    "weights against the median, even below 0": Variant(replaced=((USUAL, "quantile(sort(window), 0.5)"),)),
    "weights slow no move": Variant(replaced=((MOVES, "moves = pace.lr * batch.trust * valid"),)),
    "nothing is usual before 50 values": Variant(replaced=((FIRST, "ENOUGH = 50 "),)),
    "nothing is usual before 100 values": Variant(replaced=((FIRST, "ENOUGH = 100 "),)),
    "the usual level is 0 at least": Variant(replaced=LEVEL),
    "the level is judged from 10 values on": Variant(replaced=(FROM_TEN,)),
    "the level is judged from half a window on": Variant(replaced=(FROM_HALF,)),
    "the level is judged from 10 values on, the usual level is 0 at least": Variant(replaced=(FROM_TEN, *LEVEL)),
    "all far batches are scaled down, the usual level is 0 at least": Variant(replaced=(SCALED, *LEVEL)),
    "the level is judged from 10 values on, all far batches are scaled down, the usual level is 0 at least": Variant(
        replaced=(FROM_TEN, SCALED, *LEVEL)
    ),
    "window 50": Variant("window=50"),
    "threshold 2": Variant("threshold=2"),
    "threshold 4": Variant("threshold=4"),
    "dof 1": Variant("dof=1"),
    "dof 10": Variant("dof=10"),
    "dof inf": Variant("dof=inf"),
    "no batch excluded": Variant("threshold=inf"),
    "no batch excluded, dof inf": Variant("threshold=inf dof=inf"),  # AdamW, then
    "minority 0.3": Variant("minority=0.3"),
    "the share of one window": Variant(replaced=(("MEMORY = 4 ", "MEMORY = 1 "),)),
    "a minority keeps its size": Variant(replaced=(("exp(-0.5 * excess)", "1.0 + 0.0 * excess"),)),
    "max_norm 1": Variant("max_norm=1.0"),
    "max_norm 1, the level is judged from 10 values on": Variant("max_norm=1.0", (FROM_TEN,)),
    "max_norm 1, the level is judged from half a window on": Variant("max_norm=1.0", (FROM_HALF,)),
    "max_norm 1, dof inf": Variant("max_norm=1.0 dof=inf"),
    "max_norm auto": Variant("max_norm=auto"),
}


def copy_sources(variant: Variant, folder: Path) -> Path:
    """The folder of the packages with the variant's equations: a copy, or the sources themselves."""
    if not variant.replaced:
        return SOURCES
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(SOURCES, folder, ignore=shutil.ignore_patterns("__pycache__"))
    text = (folder / EQUATIONS).read_text()
    for old, new in variant.replaced:
        if text.count(old) != 1:
            sys.exit(
                f"{old!r} is in {EQUATIONS} {text.count(old)} times, and not once: the variant is of older equations"
            )
        text = text.replace(old, new)
    (folder / EQUATIONS).write_text(text)
    return folder


def run_variant(name: str, lr: float, args: argparse.Namespace) -> list[Result]:
    """A variant's runs; those that are finished are not repeated."""
    variant, folder = VARIANTS[name], args.work / name.replace(" ", "_").replace(",", "")
    sources = copy_sources(variant, folder / "src")
    path = os.pathsep.join([str(sources), os.environ.get("PYTHONPATH", "")])
    out = folder / "results"
    command = ["run", "language", "--preset", args.preset, "--models", "bytes", "--lrs", str(lr)]
    command += ["--methods", f"RobustAdamW {variant.options}".strip(), "--device", args.device, "--workers", "0"]
    command += ["--out", str(out)]
    commands = [[*command, "--noises", noise, "--seeds", seeds] for noise, seeds in args.noises.items()]
    process = [sys.executable, "-c", RUN_ALL, json.dumps(commands)]
    finished = subprocess.run(process, env=os.environ | {"PYTHONPATH": path}, check=False)
    if finished.returncode:
        print(f"{name}: the runs ended with code {finished.returncode}; those that are finished count", file=sys.stderr)
    return [
        result
        for result in keep_newest_equations(Store(out).results())
        if result.trial.condition["lr"] == lr and result.trial.condition["noise"] in args.noises
    ]


def describe_run(result: Result) -> dict[str, Any]:
    """What the file keeps of a run."""
    place = {"noise": result.trial.condition["noise"], "seed": result.trial.seed}
    return place | {outcome: result.outcome[outcome] for outcome in OUTCOMES}


def describe_origin(results: list[Result], device: str) -> dict[str, Any]:
    """Where the numbers come from: this command, and the device, versions and commit of the last of the runs.

    They may have been made before, and elsewhere.
    """
    own = provenance(device)
    last = max((result.provenance for result in results), key=lambda origin: str(origin["date"]), default=own)
    return own | {name: last[name] for name in own if name != "command" and name in last}


def find_rate(folder: Path) -> float:
    """The rate that is best for RobustAdamW on clean data."""
    choice = choose_rates(Store(folder).results(), "loss")["RobustAdamW", "bytes"]
    if choice.rate is None:
        sys.exit(f"no rate of {folder} can be chosen: runs were lost at all of them")
    return choice.rate


def show(results_by_name: dict[str, list[Result]], noises: list[str]) -> None:
    """The means of the losses, one row a variant."""
    width = max(map(len, results_by_name))
    print(f"{'':{width}}" + "".join(f"{noise:>16}" for noise in noises))
    for name, results in results_by_name.items():
        runs = [(result.trial.condition["noise"], result.outcome["loss"]) for result in results]
        losses = [[loss for place, loss in runs if place == noise] for noise in noises]
        means = [f"{sum(column) / len(column):.4f} ({len(column)})" if column else "none" for column in losses]
        print(f"{name:{width}}" + "".join(f"{mean:>16}" for mean in means))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/robust_variants"))
    parser.add_argument("--work", type=Path, default=Path("robust_variants"), help="a folder for all runs")
    parser.add_argument("--tuned", type=Path, help="results directory that the learning rate is chosen by")
    parser.add_argument("--lr", type=float, help="or the learning rate itself")
    parser.add_argument("--noises", nargs="+", default=NOISES, help="behind a colon with seeds of its own")
    parser.add_argument("--seeds", default=f"{TUNING_SEEDS[0]}-{TUNING_SEEDS[-1]}", help="of all other noises")
    parser.add_argument("--only", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--preset", default="full")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="variants at a time")
    args = parser.parse_args()
    if (args.tuned is None) == (args.lr is None):
        parser.error("give either --tuned or --lr")
    lr = args.lr or find_rate(args.tuned)
    parts = [words.partition(":") for words in args.noises]
    args.noises = {noise: seeds or args.seeds for noise, _, seeds in parts}
    with ThreadPoolExecutor(args.jobs) as pool:
        found = dict(zip(args.only, pool.map(lambda name: run_variant(name, lr, args), args.only), strict=True))
    variants = {
        name: VARIANTS[name]._asdict() | {"runs": list(map(describe_run, results))} for name, results in found.items()
    }
    origin = describe_origin([result for results in found.values() for result in results], args.device)
    file = args.out / "robust_variants.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    record = {"lr": lr, "preset": args.preset, "variants": variants} | origin
    file.write_text(json.dumps(record, indent=1) + "\n")
    show(found, list(args.noises))


if __name__ == "__main__":
    main()
