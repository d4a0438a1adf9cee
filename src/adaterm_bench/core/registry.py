"""Finds experiments: the built-in ones by name, yours by the path of a file or the name of a module."""

import importlib
import inspect
import sys
import traceback
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType

from adaterm_bench.core.experiment import Experiment

PACKAGE = "adaterm_bench"
EXPERIMENTS = {
    "figures": "experiments.figures.experiment:Explanatory",
    "test_functions": "experiments.test_functions.experiment:NoisySearch",
    "regression": "experiments.regression.experiment:Regression",
    "batch_size": "experiments.batch_size.experiment:BatchSize",
    "regret": "experiments.regret.experiment:Regret",
    "classification": "experiments.classification.experiment:Classification",
    "prediction": "experiments.prediction.experiment:Prediction",
    "rl": "experiments.rl.experiment:Reinforcement",
    "ppo": "experiments.ppo.experiment:Ppo",
    "distillation": "experiments.distillation.experiment:Distillation",
    "language": "experiments.language.experiment:Language",
    "images": "experiments.images.experiment:Images",
}
"""Module and class of every built-in experiment, imported only when it is named; in the order of the paper."""
ATTRIBUTES = ("name", "title", "version", "methods", "presets")  # that an experiment must have, apart from its methods


class NotFoundError(Exception):
    """There is no such experiment; the message says which there are."""


@dataclass(frozen=True)
class Entry:
    """An experiment's class, and where another process finds it: a path that ends in .py, a module, or this package."""

    source: str
    experiment: type[Experiment]


def load(source: str, name: str) -> type[Experiment]:
    """The experiment of this name, from where an `Entry` or a stored plan says."""
    if is_built_in(source):
        return _load_built_in(name)
    entries = load_source(source)
    if name not in entries:
        raise NotFoundError(f"{source} has no experiment {name!r}. {suggest(name, list(entries))}")
    return entries[name].experiment


def is_built_in(source: str) -> bool:
    """Whether this is the package itself, or a module of it, as older plans say."""
    return source.partition(".")[0] == PACKAGE


def load_built_in() -> tuple[dict[str, Entry], dict[str, str]]:
    """All experiments of this package by name, and those that cannot be imported here, with the reason."""
    entries: dict[str, Entry] = {}
    missing: dict[str, str] = {}
    for name in EXPERIMENTS:
        try:
            entries[name] = Entry(PACKAGE, _load_built_in(name))
        except ImportError as error:  # of an optional package
            missing[name] = str(error)
    return entries, missing


def rank(name: str) -> int:
    """Where an experiment of this name comes in the paper; others come after all of those."""
    return list(EXPERIMENTS).index(name) if name in EXPERIMENTS else len(EXPERIMENTS)


def load_source(source: str) -> dict[str, Entry]:
    """The experiments that a file or module defines, by name."""
    module = import_source(source)
    classes = [
        value
        for _, value in inspect.getmembers(module, inspect.isclass)
        if issubclass(value, Experiment) and value.__module__ == module.__name__
    ]
    for experiment in classes:
        missing = [
            *sorted(experiment.__abstractmethods__),
            *(name for name in ATTRIBUTES if not hasattr(experiment, name)),
        ]
        if missing:
            raise NotFoundError(f"{experiment.__name__} in {source} is incomplete: {', '.join(missing)} missing.")
        settings = [name for name, hint in inspect.get_annotations(experiment).items() if "ClassVar" not in str(hint)]
        if settings and "__dataclass_fields__" not in vars(experiment):
            raise NotFoundError(
                f"{experiment.__name__} in {source} must be a dataclass: write @dataclass(frozen=True) above it."
            )
    return {experiment.name: Entry(source, experiment) for experiment in classes}


def import_source(source: str) -> ModuleType:
    """The module of a file, or of a name."""
    return _import_file(Path(source)) if source.endswith(".py") else importlib.import_module(source)


def import_plugin(word: str) -> str:
    """Import a file or module that registers methods; returns where another process finds it."""
    source = str(Path(word).resolve()) if word.endswith(".py") else word
    try:
        import_source(source)
    except ModuleNotFoundError as error:
        if error.name not in (Path(source).stem, source):
            raise _import_failure(word) from error
        raise NotFoundError(f"There is no file or module {word}.") from error
    except NotFoundError:
        raise
    except Exception as error:
        raise _import_failure(word) from error
    return source


def choose(words: list[str]) -> list[Entry]:
    """The experiments that the words name: a built-in one, `all` of them, or those in a file or module."""
    chosen: dict[str, Entry] = {}
    for word in words:
        for name, entry in _load_named(word).items():
            if chosen.setdefault(name, entry) != entry:
                raise NotFoundError(f"{chosen[name].source} and {entry.source} both have an experiment named {name!r}.")
    return list(chosen.values())


def suggest(word: str, known: list[str]) -> str:
    """What to say after an unknown word: the nearest match, and what there is."""
    close = get_close_matches(word, known, 1, 0.5)
    return (f"Did you mean {close[0]!r}? " if close else "") + f"There is: {', '.join(known) or 'nothing'}."


def _load_built_in(name: str) -> type[Experiment]:
    if name not in EXPERIMENTS:
        raise NotFoundError(f"No experiment {name!r}. {suggest(name, list(EXPERIMENTS))}")
    module, _, attribute = EXPERIMENTS[name].partition(":")
    experiment: type[Experiment] = getattr(importlib.import_module(f"{PACKAGE}.{module}"), attribute)
    return experiment


def _load_named(word: str) -> dict[str, Entry]:
    if word == "all":
        return load_built_in()[0]
    if word in EXPERIMENTS:
        try:
            return {word: Entry(PACKAGE, _load_built_in(word))}
        except ImportError as error:
            raise NotFoundError(f"The experiment {word!r} cannot be used here: {error}") from error
    if word.endswith(".py"):
        return _load_file(word)
    if "." in word:
        try:
            return _require(word, load_source(word))
        except ModuleNotFoundError as error:
            if error.name is None or not word.startswith(error.name):
                raise  # the module is there, and something it needs is not
    raise NotFoundError(f"No experiment {word!r}. {suggest(word, list(EXPERIMENTS))} Or give the path of a .py file.")


def _load_file(word: str) -> dict[str, Entry]:
    path = Path(word).resolve()
    if not path.is_file():
        raise NotFoundError(f"There is no file {word}.")
    try:
        entries = _require(word, load_source(str(path)))
    except NotFoundError:
        raise
    except Exception as error:
        raise _import_failure(word) from error
    for name in entries.keys() & EXPERIMENTS.keys():
        raise NotFoundError(f"{word} names its experiment {name!r}, as one of this package is: choose another name.")
    return entries


def _import_failure(word: str) -> NotFoundError:
    """What to say of a file of the user's that raises when it is imported."""
    return NotFoundError(f"{word} cannot be imported:\n{traceback.format_exc(limit=-1).strip()}")


def _require(word: str, entries: dict[str, Entry]) -> dict[str, Entry]:
    if not entries:
        raise NotFoundError(f"{word} defines no experiment: a subclass of adaterm_bench.Experiment.")
    return entries


def _import_file(path: Path) -> ModuleType:
    """Import a file as Python does a script: under its own name, with its folder on the path."""
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    module = importlib.import_module(path.stem)
    if not module.__file__ or not path.samefile(module.__file__):
        raise NotFoundError(f"{path} cannot be imported: there is another module {path.stem!r}. Rename the file.")
    return module
