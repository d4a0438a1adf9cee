"""Which equations and defaults a trial ran with: finished trials of others do not count as done, nor in a report."""

import inspect
from collections.abc import Sequence
from dataclasses import replace

import torch

from adaterm import BatchJudge, LossJudge
from adaterm.loss_judge import judge_loss
from adaterm_bench.arena.arms import OURS, find_arm, is_variant, make_on_nothing
from adaterm_bench.arena.finals import JUDGED, JUDGED_BY_LOSS
from adaterm_bench.core.trial import EQUATIONS, Trial
from adaterm_bench.equations import hash_equations, hash_method, write_function


def name_equations(method: str) -> str | None:
    """Changes with the equations and the defaults of an arm of ours; None for other methods, which are pinned."""
    if method == JUDGED:
        return hash_equations(BatchJudge([torch.zeros(1, requires_grad=True)]))
    if method in JUDGED_BY_LOSS:
        options = inspect.signature(LossJudge).parameters
        defaults = {name: options[name].default for name in ("window", "threshold", "minority")}
        return hash_method("robust_adam", write_function(judge_loss), defaults)
    return hash_equations(make_on_nothing(find_arm(method))) if method in OURS or is_variant(method) else None


def mark_equations(trials: Sequence[Trial]) -> list[Trial]:
    """The trials, with the equations of our arms in their conditions."""
    names = {method: name_equations(method) for method in dict.fromkeys(trial.method for trial in trials)}
    return [
        trial
        if names[trial.method] is None
        else replace(trial, condition={**trial.condition, EQUATIONS: names[trial.method]})
        for trial in trials
    ]
