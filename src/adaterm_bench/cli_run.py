"""The command `adaterm-bench run`: its flags, what it is to run, and where."""

import argparse
import shlex
import signal
import sys
from dataclasses import replace
from math import inf
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from adaterm_bench.core import registry
from adaterm_bench.core.coordinator import Pool, carry_out
from adaterm_bench.core.flags import UsageError, add_flags, build_experiment, read_seeds, read_settings
from adaterm_bench.core.lock import hold_lock
from adaterm_bench.core.progress import Display
from adaterm_bench.core.provenance import find_commit
from adaterm_bench.core.registry import Entry, suggest
from adaterm_bench.core.runners import local, ray
from adaterm_bench.core.store import Store
from adaterm_bench.core.work import Order

GROUPS = ("six", "paper", "ours")
"""Words for many methods."""


def add_parser(commands: Any, chosen: list[Entry]) -> argparse.ArgumentParser:
    """The parser of the command; the chosen experiments decide which flags there are."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "run",
        allow_abbrev=False,
        help="run what is not done yet",
        usage="adaterm-bench run EXPERIMENT... [options]",
        epilog="Name the experiments before --help to see their settings, which are flags too.",
    )
    parser.add_argument("experiments", nargs="+", metavar="EXPERIMENT", help="a name, `all`, a .py file or a module")
    parser.add_argument("--preset", default="quick", help="smoke, quick or paper (in the arena full); quick by default")
    parser.add_argument(
        "--methods",
        nargs="+",
        metavar="METHOD",
        help="in the order to run them, or one of six, paper and ours, which mean many; all if not given",
    )
    parser.add_argument(
        "--with", dest="plugins", nargs="+", default=[], metavar="FILE", help="files or modules that register methods"
    )
    parser.add_argument("--seeds", help="a number n for 0 to n-1, or a list or range: 1,5 or 3-7")
    parser.add_argument(
        "--out", type=Path, default=Path("out"), metavar="DIR", help="where results are kept; out by default"
    )
    parser.add_argument("--device", default="cpu", help="such as cuda; workers share a list: cuda:0,cuda:1")
    parser.add_argument(
        "--workers", type=int, help="processes; 0 runs in this one; as many as cores or GPUs if not given"
    )
    parser.add_argument("--retries", type=int, default=1, help="how often a failed batch is tried again; 1 by default")
    parser.add_argument(
        "--minutes", type=float, default=inf, help="begin nothing that would end later, going by what was run so far"
    )
    parser.add_argument(
        "--interrupt",
        action="store_true",
        help="with --minutes: begin what writes checkpoints all the same, and interrupt it then",
    )
    parser.add_argument("--runner", choices=("local", "ray"), default="local", help="this machine, or a Ray cluster")
    parser.add_argument("--ray-address", metavar="ADDRESS", help="of a cluster; else one is started on this machine")
    parser.add_argument("--ray-cpus", type=float, default=1.0, help="CPU cores for a batch on a cluster")
    parser.add_argument("--ray-gpus", type=float, help="GPUs for a batch on a cluster; 1 on cuda devices")
    add_flags(parser, [entry.experiment for entry in chosen])
    return parser


def run(arguments: argparse.Namespace, chosen: list[Entry], words: list[str]) -> int:
    """Run what is not done yet; returns the exit code."""
    orders = _make_orders(arguments, chosen)
    with hold_lock(arguments.out):
        store = Store(arguments.out)
        store.sweep()
        done = store.done()
        for line in store.corrupt:
            print(line, file=sys.stderr)
        origin = {"command": shlex.join(["adaterm-bench", *words]), "commit": find_commit()}
        out = str(arguments.out.resolve()) if arguments.runner == "local" else ""
        batches = {
            batch.key: batch for order in orders for batch in order.batches(done, origin, out, arguments.interrupt)
        }
        keys = {trial.key for order in orders for trial in order.trials}
        left = 0
        if batches and arguments.runner == "local":
            _check_devices(arguments.device.split(","))
            for order in orders:
                order.experiment.prepare()
        for order in orders:
            kind = order.experiment
            kind.check([result for result in store.results(kind.name) if result.trial.version == kind.version])
        pool = _make_pool(arguments) if batches else None
        for order in orders:  # only now: what cannot run is not kept as wanted
            store.plan(order.plan())
        if pool is not None:
            display = Display(len(keys), len(keys & done))
            try:
                signal.signal(signal.SIGTERM, _interrupt)  # what a cluster's scheduler sends
                left = carry_out(
                    list(batches.values()), pool, store, display, arguments.retries, 60.0 * arguments.minutes
                )
            except KeyboardInterrupt:
                finished = len(keys & store.done())
                print(f"Interrupted: {finished} of {len(keys)} trials are done.", file=sys.stderr)
                print(f"To go on from there: {origin['command']}", file=sys.stderr)
                return 130
        failed = len(keys - store.done()) - left
    print(f"{len(keys) - failed - left} of {len(keys)} trials are done in {arguments.out}.")
    if left:
        print(f"The time is up. To go on from there: {origin['command']}")
    if failed:
        print(f"{failed} failed: adaterm-bench status {shlex.quote(str(arguments.out))} says why.")
    return 1 if failed or left else 0


def _make_orders(arguments: argparse.Namespace, chosen: list[Entry]) -> list[Order]:
    methods = [name for words in arguments.methods or [] for word in words.split(",") for name in _expand_group(word)]
    plugins, added = _import_plugins(arguments.plugins)
    available = [*dict.fromkeys(method for entry in chosen for method in entry.experiment.methods), *added]
    if not set(methods) <= set(available):
        others = [name for name in _list_methods() if name not in available]  # which run where they are named
        added += [name for name in others if name in methods]
        available += others
    unavailable = {name: hint for entry in chosen for name, hint in entry.experiment.unavailable.items()}
    if unavailable and not methods:
        for hint in dict.fromkeys(unavailable.values()):
            left_out = [name for name in unavailable if unavailable[name] == hint]
            print(f"Left out: {', '.join(left_out)}. To run them: {hint}.", file=sys.stderr)
    for method in methods:
        if method in unavailable:
            raise UsageError(f"{method} cannot run here. To run it: {unavailable[method]}.")
        if method not in available and not any(entry.experiment.accepts(method) for entry in chosen):
            hint = "" if arguments.plugins else " A method of your own needs --with FILE."
            raise UsageError(f"No method {method!r}. {suggest(method, available)}{hint}")
    seeds = None if arguments.seeds is None else read_seeds(arguments.seeds)
    orders = []
    if "all" in arguments.experiments:
        chosen = _keep_those_with_preset(arguments.preset, chosen)
    for entry in chosen:
        experiment, label = build_experiment(entry.experiment, arguments.preset, read_settings(arguments))
        if seeds is not None:
            experiment = replace(experiment, seeds=len(seeds))
        possible = dict.fromkeys([*experiment.methods, *(added if experiment.takes_methods else ())])
        selected = [
            method for method in dict.fromkeys(methods or possible) if method in possible or experiment.accepts(method)
        ]
        orders.append(Order(entry.source, experiment, selected, seeds, label, plugins))
        if not orders[-1].trials:
            raise UsageError(f"{experiment.name} has no trials with these methods and settings.")
    return orders


def _keep_those_with_preset(preset: str, chosen: list[Entry]) -> list[Entry]:
    """What of all experiments has the preset; all of them if none has, so that the error names what there is."""
    entries = [entry for entry in chosen if preset in entry.experiment.presets]
    left_out = [entry.experiment.name for entry in chosen if entry not in entries]
    if entries and left_out:
        print(f"Left out, as they have no preset {preset}: {', '.join(left_out)}.", file=sys.stderr)
    return entries or chosen


def _expand_group(word: str) -> tuple[str, ...]:
    """The methods that a word of `--methods` means."""
    if word not in GROUPS:
        return (word,)
    from adaterm_bench import methods  # likewise

    return methods.GROUPS[word]


def _list_methods() -> list[str]:
    from adaterm_bench import methods  # needs torch, which listing and status do not

    return methods.list_methods()


def _import_plugins(words: list[str]) -> tuple[tuple[str, ...], list[str]]:
    """The files that register methods, imported, and the names they registered."""
    if not words:
        return (), []
    before = _list_methods()
    sources = tuple(map(registry.import_plugin, words))
    return sources, [name for name in _list_methods() if name not in before]


def _make_pool(arguments: argparse.Namespace) -> Pool:
    if arguments.workers is not None and arguments.workers < 0:
        raise UsageError(f"--workers {arguments.workers}: this must be 0, for none but this process, or more")
    if arguments.retries < 0:
        raise UsageError(f"--retries {arguments.retries}: this must be 0 or more")
    if not arguments.minutes >= 0.0:
        raise UsageError(f"--minutes {arguments.minutes}: this must be 0 or more")
    devices = arguments.device.split(",")
    on_gpu = devices[0].startswith("cuda")
    workers = arguments.workers if arguments.workers is not None else len(devices) if on_gpu else local.count_cores()
    if arguments.runner == "ray":
        if arguments.ray_cpus <= 0:
            raise UsageError(f"--ray-cpus {arguments.ray_cpus}: this must be more than 0")
        if len(devices) > 1:
            raise UsageError("--device: Ray gives every batch its own GPUs, so name one, such as cuda, and --ray-gpus")
        gpus = arguments.ray_gpus if arguments.ray_gpus is not None else float(on_gpu)
        return ray.Ray(arguments.ray_address, arguments.device, max(workers, 1), arguments.ray_cpus, gpus)
    return local.Processes(workers, devices) if workers > 0 else local.Inline(devices[0])


def _check_devices(devices: list[str]) -> None:
    """Refuse here what would fail in every batch."""
    checked = [device for device in devices if device != "cpu"]
    if not checked:
        return
    import torch  # which the coordinator of a run on the CPU does without

    for device in checked:
        try:
            torch.zeros(1, device=device)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise UsageError(f"--device {device} cannot be used on this machine: {reason}") from error


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
