"""Finds experiments: the built-in ones by name, yours by the path of a file or the name of a module."""

import importlib
import inspect
import pkgutil
import sys
import traceback
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType

import adaterm_bench.experiments
from adaterm_bench.experiment import Experiment

PARTS = ("name", "title", "version", "methods", "presets")  # of an experiment, beside its methods
# In the order of the paper, which is that of the report; others come after them.
ORDER = (
    *("figures", "test_functions", "regression", "batch_size", "regret"),
    *("classification", "prediction", "rl", "ppo", "distillation"),
)


class NotFoundError(Exception):
    """There is no such experiment; the message says which there are."""


@dataclass(frozen=True)
class Found:
    """An experiment's class, and where another process finds it: a path that ends in .py, or a module's name."""

    source: str
    kind: type[Experiment]


def built_in() -> tuple[dict[str, Found], dict[str, str]]:
    """The experiments of this package by name, and the modules that cannot be imported here with the reason."""
    found: dict[str, Found] = {}
    missing: dict[str, str] = {}
    for module in pkgutil.iter_modules(adaterm_bench.experiments.__path__, "adaterm_bench.experiments."):
        try:
            found |= in_source(module.name)
        except ImportError as error:  # of an optional package
            missing[module.name.rpartition(".")[2]] = str(error)
    return dict(sorted(found.items(), key=lambda it: place(it[0]))), missing


def place(name: str) -> int:
    """Where an experiment of this name stands in the paper."""
    return ORDER.index(name) if name in ORDER else len(ORDER)


def in_source(source: str) -> dict[str, Found]:
    """The experiments that a file or module defines, by name."""
    module = imported(source)
    kinds = [
        kind
        for _, kind in inspect.getmembers(module, inspect.isclass)
        if issubclass(kind, Experiment) and kind.__module__ == module.__name__
    ]
    for kind in kinds:
        lacks = [*sorted(kind.__abstractmethods__), *(it for it in PARTS if not hasattr(kind, it))]
        if lacks:
            raise NotFoundError(f"{kind.__name__} in {source} is not whole: it lacks {', '.join(lacks)}.")
        own = [name for name, hint in inspect.get_annotations(kind).items() if "ClassVar" not in str(hint)]
        if own and "__dataclass_fields__" not in vars(kind):
            raise NotFoundError(
                f"{kind.__name__} in {source} must be a dataclass: write @dataclass(frozen=True) above it."
            )
    return {kind.name: Found(source, kind) for kind in kinds}


def imported(source: str) -> ModuleType:
    """The module of a file, or of a name."""
    return _from_file(Path(source)) if source.endswith(".py") else importlib.import_module(source)


def plugin(word: str) -> str:
    """Import a file or module that registers methods; where another process finds it."""
    source = str(Path(word).resolve()) if word.endswith(".py") else word
    try:
        imported(source)
    except ModuleNotFoundError as error:
        if error.name not in (Path(source).stem, source):
            raise _broken(word) from error
        raise NotFoundError(f"There is no file or module {word}.") from error
    except NotFoundError:
        raise
    except Exception as error:
        raise _broken(word) from error
    return source


def choose(words: list[str]) -> list[Found]:
    """The experiments that the words name: a built-in one, `all` of them, or those in a file or module."""
    chosen: dict[str, Found] = {}
    for word in words:
        for name, found in _named(word).items():
            if chosen.setdefault(name, found) != found:
                raise NotFoundError(f"{chosen[name].source} and {found.source} both have an experiment named {name!r}.")
    return list(chosen.values())


def nearest(word: str, known: list[str]) -> str:
    """What to say after an unknown word: the nearest match, and what there is."""
    close = get_close_matches(word, known, 1, 0.5)
    return (f"Did you mean {close[0]!r}? " if close else "") + f"There is: {', '.join(known) or 'nothing'}."


def _named(word: str) -> dict[str, Found]:
    if word.endswith(".py"):
        path = Path(word).resolve()
        if not path.is_file():
            raise NotFoundError(f"There is no file {word}.")
        try:
            own = _some(word, in_source(str(path)))
        except NotFoundError:
            raise
        except Exception as error:
            raise _broken(word) from error
        for name in own.keys() & set(ORDER):
            raise NotFoundError(
                f"{word} names its experiment {name!r}, as one of this package is: choose another name."
            )
        return own
    found, missing = built_in()
    if word == "all":
        return found
    if word in found:
        return {word: found[word]}
    if word in missing:
        raise NotFoundError(f"The experiment {word!r} cannot be used here: {missing[word]}")
    if "." in word:
        try:
            return _some(word, in_source(word))
        except ModuleNotFoundError as error:
            if error.name is None or not word.startswith(error.name):
                raise  # the module is there, and something it needs is not
    raise NotFoundError(f"No experiment {word!r}. {nearest(word, sorted(found))} Or give the path of a .py file.")


def _broken(word: str) -> NotFoundError:
    """What to say of a file of the user's that raises when it is imported."""
    return NotFoundError(f"{word} cannot be imported:\n{traceback.format_exc(limit=-1).strip()}")


def _some(word: str, found: dict[str, Found]) -> dict[str, Found]:
    if not found:
        raise NotFoundError(f"{word} defines no experiment: a subclass of adaterm_bench.experiment.Experiment.")
    return found


def _from_file(path: Path) -> ModuleType:
    """Import a file as Python does a script: under its own name, with its folder on the path."""
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    module = importlib.import_module(path.stem)
    if not module.__file__ or not path.samefile(module.__file__):
        raise NotFoundError(f"{path} cannot be imported: there is another module {path.stem!r}. Rename the file.")
    return module
