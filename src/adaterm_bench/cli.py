"""The command `adaterm-bench`."""

import argparse
import os
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import adaterm_bench
from adaterm_bench import cli_run
from adaterm_bench.core import registry, status
from adaterm_bench.core.flags import UsageError
from adaterm_bench.core.lock import hold_lock
from adaterm_bench.core.registry import NotFoundError, suggest
from adaterm_bench.core.runners import ray
from adaterm_bench.core.store import Store, StoreError
from adaterm_bench.core.trial import Result
from adaterm_bench.datasets.data import DataError
from adaterm_bench.datasets.environments import MissingSimulatorError
from adaterm_bench.reporting.sections import make_sections


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 0 if all is done, 1 if something failed, 2 if the command was wrong, 130 if interrupted."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(words)
    except (DataError, MissingSimulatorError, NotFoundError, UsageError, ray.MissingError) as error:
        print(f"adaterm-bench: {error}", file=sys.stderr)
        return 2
    except StoreError as error:
        print(f"adaterm-bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _dispatch(words: list[str]) -> int:
    parser = argparse.ArgumentParser("adaterm-bench", description=adaterm_bench.__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    listing = commands.add_parser("list", help="the experiments there are")
    listing.add_argument("experiments", nargs="*", metavar="EXPERIMENT", help="a name, a .py file or a module")
    listing.set_defaults(act=_list)
    # The experiments come first, for they decide which flags there are.
    leading = words[1 : next((i for i, word in enumerate(words) if word.startswith("-")), None)]
    if words[:1] == ["run"] and words[1:] and not leading and not {"-h", "--help"} & set(words):
        raise UsageError("Name the experiments before the options: adaterm-bench run EXPERIMENT... --preset quick")
    chosen = registry.choose(leading) if words[:1] == ["run"] else []
    running = cli_run.add_parser(commands, chosen)
    running.set_defaults(act=lambda arguments: cli_run.run(arguments, chosen, words))
    showing = commands.add_parser("status", help="what a results directory has, and what is missing")
    showing.add_argument("folder", type=Path, metavar="DIR")
    showing.set_defaults(act=_status)
    reporting = commands.add_parser("report", help="write tables, figures and verdicts")
    reporting.add_argument("folder", type=Path, metavar="DIR")
    reporting.add_argument("--out", type=Path, metavar="DIR", help="where to; DIR/report if not given")
    reporting.add_argument(
        "--single-file", action="store_true", help="one HTML file with the figures inside, and no Markdown"
    )
    reporting.set_defaults(act=_report)
    packing = commands.add_parser("pack", help="make a results directory smaller: one file for each experiment")
    packing.add_argument("folder", type=Path, metavar="DIR")
    packing.set_defaults(act=_pack)
    merging = commands.add_parser("merge", help="put the results of other directories into one")
    merging.add_argument(
        "others", nargs="+", type=Path, metavar="DIR", help="which stay as they are; no run may use them meanwhile"
    )
    merging.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="made if there is none; what it has stays"
    )
    merging.set_defaults(act=_merge)
    arguments, unknown = parser.parse_known_args(words)
    if unknown:
        options = [option for action in running._actions for option in action.option_strings]
        hint = suggest(unknown[0].partition("=")[0], options) if words[0] == "run" else "See --help."
        raise UsageError(f"Unknown here: {' '.join(unknown)}. {hint}")
    code: int = arguments.act(arguments)
    return code


def _list(arguments: argparse.Namespace) -> int:
    entries, missing = ({}, {}) if arguments.experiments else registry.load_built_in()
    for entry in registry.choose(arguments.experiments) or entries.values():
        experiment = entry.experiment
        print(f"{experiment.name}: {experiment.title}")
        print(f"  methods: {', '.join(experiment.methods)}")
        for preset, settings in experiment.presets.items():
            print(f"  {preset}: {len(experiment(**settings).trials(experiment.methods))} trials")
    for name, reason in missing.items():
        print(f"{name}: cannot be used here: {reason}")
    return 0


def _open_store(folder: Path, sets_aside: bool = True) -> Store:
    if not (folder / "plans").is_dir():
        raise UsageError(
            f"{folder} is not a results directory: `adaterm-bench run EXPERIMENT --out {folder}` makes one."
        )
    return Store(folder, sets_aside)


def _status(arguments: argparse.Namespace) -> int:
    store = _open_store(arguments.folder)
    print("\n".join(status.describe_store(store)))
    for line in store.corrupt:
        print(line, file=sys.stderr)
    return 0


def _pack(arguments: argparse.Namespace) -> int:
    store = _open_store(arguments.folder)
    experiments = {}
    for plan in store.plans():
        with suppress(ImportError, NotFoundError):  # results of what cannot be loaded here stay as they are
            experiments[plan["experiment"]] = registry.load(plan["source"], plan["experiment"])

    def shorten(result: Result) -> Result:
        experiment = experiments.get(result.trial.experiment)
        return result if experiment is None else replace(result, outcome=experiment.shorten(result.outcome))

    with hold_lock(arguments.folder):
        before = _describe_size(store)
        store.pack(shorten)
        store.join_plans()
    print(f"{before} became {_describe_size(store)} in {arguments.folder}.")
    return 0


def _describe_size(store: Store) -> str:
    files = [path for kind in ("results", "plans") for path in (store.path / kind).glob("*")]
    return f"{len(files)} files of {store.size() / 1e6:.2f} MB"


def _merge(arguments: argparse.Namespace) -> int:
    named = Counter(folder.resolve() for folder in arguments.others)
    for folder in arguments.others:
        if folder.resolve() == arguments.out.resolve():
            raise UsageError(f"{folder} is --out itself, which keeps what it has: leave it out of the others.")
        if named[folder.resolve()] > 1:
            raise UsageError(f"{folder} is named twice.")
    others = [_open_store(folder, sets_aside=False) for folder in arguments.others]
    store = Store(arguments.out)
    with hold_lock(arguments.out):
        for other in others:
            print(f"{store.take(other)} of {len(other.done())} results in {other.path} are new in {arguments.out}.")
    for line in (*store.corrupt, *(line for other in others for line in other.corrupt)):
        print(line, file=sys.stderr)
    return 0


def _report(arguments: argparse.Namespace) -> int:
    from adaterm_bench.reporting.report import write  # needs what the other commands do not

    store = _open_store(arguments.folder)
    parts, complaints = make_sections(store)
    for line in (*store.corrupt, *complaints):
        print(line, file=sys.stderr)
    if not parts:
        raise UsageError(f"{arguments.folder} has no results {'that can be shown' if complaints else 'yet'}.")
    results = {result.trial.key: result for _, reported in parts for result in reported}
    folder = arguments.out or arguments.folder / "report"
    for path in write([section for section, _ in parts], list(results.values()), folder, arguments.single_file):
        print(path)
    return 1 if complaints else 0
