"""An experiment's settings as flags of the command line."""

import argparse
import json
import types
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from adaterm_bench.core.experiment import Experiment
from adaterm_bench.core.registry import suggest
from adaterm_bench.core.trial import parse_seeds


class UsageError(Exception):
    """What was asked for does not exist; the message says what does."""


def add_flags(parser: argparse.ArgumentParser, kinds: Iterable[type[Experiment]]) -> None:
    """One flag for every setting that any of the experiments has; `seeds` has a flag already."""
    lines_by_name: dict[str, list[str]] = {}
    for kind in kinds:
        for field in fields(kind):
            if field.name != "seeds":
                meaning = field.metadata.get("help", field.name)
                lines_by_name.setdefault(field.name, []).append(
                    f"{kind.name}: {meaning}; {format_value(field.default)} where the preset says nothing"
                )
    group = parser.add_argument_group("settings of the experiments")
    for name, lines in lines_by_name.items():
        text = "; ".join(lines).replace("%", "%%")
        group.add_argument(name_flag(name), dest=f"setting_{name}", metavar="VALUE", help=text)


def read_settings(arguments: argparse.Namespace) -> dict[str, str]:
    """The settings that were given, as text."""
    named = {name.removeprefix("setting_"): text for name, text in vars(arguments).items() if "setting_" in name}
    return {name: text for name, text in named.items() if text is not None}


def read_seeds(text: str) -> list[int]:
    """The seeds that `--seeds` names: a number n means 0 to n-1, else it is a list of numbers and ranges."""
    try:
        seeds = list(range(int(text))) if text.isdigit() else parse_seeds(text)
    except ValueError:
        raise UsageError(f"--seeds {text}: give a number, or a list or range such as 1,5 or 3-7") from None
    if not seeds:
        raise UsageError(f"--seeds {text} means none: give a number above 0, or a list or range such as 3-7")
    return seeds


def build_experiment(kind: type[Experiment], preset: str, texts: Mapping[str, str]) -> tuple[Experiment, str]:
    """The experiment with a preset and those of the given settings that it has, and a label of what decides results."""
    if preset not in kind.presets:
        raise UsageError(f"{kind.name} has no preset {preset!r}. {suggest(preset, list(kind.presets))}")
    hints = get_type_hints(kind)
    changed = {}
    for name in (field.name for field in fields(kind) if field.name in texts):
        try:
            changed[name] = parse_value(hints[name], texts[name])
        except ValueError as error:
            raise UsageError(f"{name_flag(name)} {texts[name]}: {error}") from None
    try:
        experiment = kind(**{**kind.presets[preset], **changed})
    except (TypeError, ValueError) as error:
        raise UsageError(f"{kind.name} cannot be made with these settings: {error}") from error
    named = [f"{name}={format_value(value)}" for name, value in changed.items() if name in experiment.decisive()]
    return experiment, ", ".join([preset, *named])


def restore_experiment(kind: type[Experiment], settings: Mapping[str, Any]) -> Experiment:
    """The experiment with settings that were kept as JSON, which has no tuples."""
    hints = get_type_hints(kind)
    return kind(
        **{name: _make_tuples(value) if get_origin(hints[name]) is tuple else value for name, value in settings.items()}
    )


def parse_value(hint: Any, text: str) -> Any:
    """Text as a value of a type; the parts of a tuple or list have commas between them."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if text.lower() == "none" and type(None) in parts:
            return None
        return parse_value(next(part for part in parts if part is not type(None)), text)
    if origin is Literal:
        values = {str(part): part for part in parts}
        if text not in values:
            raise ValueError(f"not one of the values. {suggest(text, list(values))}")
        return values[text]
    if origin in (tuple, list) or hint in (tuple, list):
        part = parts[0] if parts else str
        words = [word.strip() for word in text.split(",") if word.strip()]
        return (origin or hint)(parse_value(part, word) for word in words)
    if hint is bool:
        return parse_value(Literal[True, False], text.capitalize())
    if hint in (int, float, str):
        try:
            return hint(text)
        except ValueError:
            raise ValueError(f"this must be {'a whole number' if hint is int else 'a number'}") from None
    try:
        return json.loads(text)
    except ValueError:
        raise ValueError("this must be JSON") from None


def name_flag(name: str) -> str:
    """A setting's flag."""
    return "--" + name.replace("_", "-")


def format_value(value: Any) -> str:
    """A value as one would type it."""
    return ",".join(map(format_value, value)) if isinstance(value, tuple | list) else str(value)


def _make_tuples(value: Any) -> Any:
    return tuple(map(_make_tuples, value)) if isinstance(value, list) else value
