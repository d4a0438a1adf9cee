"""What was asked for, as it is stored: plans, their names, and many of them as one."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from adaterm_bench.core.trial import Trial, canonical, expand_trials, group_trials

Plan = dict[str, Any]


def name_command(plan: Plan) -> str:
    """Names what was typed: the same command has the same name, even if it means other trials by now."""
    return _name({name: value for name, value in plan.items() if name not in ("date", "trials")})


def name_trials(plan: Plan) -> str:
    """Names what was typed and the trials that it meant."""
    return _name({name: value for name, value in plan.items() if name not in ("date", "keys")})


def list_keys(plan: Plan) -> dict[str, list[str]]:
    """The keys of a plan's trials by method."""
    if "trials" not in plan:  # as the first plans have them
        return dict(plan["keys"])
    keys: dict[str, list[str]] = {method: [] for method in plan["methods"]}
    for trial in _list_trials(plan):
        keys[trial.method].append(trial.key)
    return keys


def join_plans(plans: Iterable[Plan]) -> list[Plan]:
    """One plan of those of the same experiment and label whose trials have the same version and settings."""
    alike: dict[str, list[Plan]] = {}
    for plan in plans:
        settings = {canonical([group["version"], group["settings"]]) for group in plan["trials"]}
        same = canonical([plan["source"], plan["experiment"], plan["label"], sorted(settings)])
        alike.setdefault(same, []).append(plan)
    return [_join(same) for same in alike.values()]


def _join(plans: Sequence[Plan]) -> Plan:
    trials = {trial.key: trial for plan in plans for trial in _list_trials(plan)}
    said = {name: [plan["settings"].get(name) for plan in plans] for name in plans[-1]["settings"]}
    return plans[-1] | {
        "settings": {name: _join_values(values) for name, values in said.items()},
        "seeds": sorted({trial.seed for trial in trials.values()}),
        "methods": list(dict.fromkeys(trial.method for trial in trials.values())),
        "trials": group_trials(trials.values()),
    }


def _join_values(values: Sequence[Any]) -> Any:
    """Of a setting: all that lists have if they differ, or else what the last plan says."""
    if any(value != values[-1] for value in values) and all(isinstance(value, list) for value in values):
        return list(dict.fromkeys(element for value in values for element in value))
    return values[-1]


def _list_trials(plan: Plan) -> Iterator[Trial]:
    return expand_trials(plan["experiment"], plan["methods"], plan["trials"])


def _name(content: Plan) -> str:
    return hashlib.sha256(canonical(content).encode()).hexdigest()[:32]
