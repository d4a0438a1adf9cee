"""Which equations and defaults a trial ran with: finished trials of others do not count as done, nor in a report."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import adaterm.equations
from adaterm.engines.fused import fingerprint
from adaterm_bench.arena.arms import OURS, find_arm, is_variant, make_on_nothing
from adaterm_bench.arena.protocol import EQUATIONS
from adaterm_bench.core.trial import Trial


def name_equations(method: str) -> str | None:
    """Changes with the equations and the defaults of an arm of ours; None for other methods, which are pinned."""
    if method not in OURS and not is_variant(method):
        return None
    optimizer = make_on_nothing(find_arm(method))
    content = f"{fingerprint(adaterm.equations)} {type(optimizer).__name__} {sorted(optimizer.defaults.items())}"
    return hashlib.sha256(content.encode()).hexdigest()[:12]


def mark_equations(trials: Sequence[Trial]) -> list[Trial]:
    """The trials, with the equations of our arms in their conditions."""
    names = {method: name_equations(method) for method in dict.fromkeys(trial.method for trial in trials)}
    return [
        trial
        if names[trial.method] is None
        else replace(trial, condition={**trial.condition, EQUATIONS: names[trial.method]})
        for trial in trials
    ]
