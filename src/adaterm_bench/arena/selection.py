"""Which trials are left of a grid when results have chosen the learning rates, in either track of the protocol."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from adaterm_bench.arena.protocol import CLEAN, TUNING_SEEDS, NotTunedError, choose_rates
from adaterm_bench.core.store import Store
from adaterm_bench.core.trial import EQUATIONS, Trial, canonical

Track = Literal["clean", "noise"]
"""Whether rates are chosen on clean data and kept for all noises, or for each noise on its own."""


def keep_chosen(trials: Sequence[Trial], tuned: str, track: Track, outcome: str, sign: float = 1.0) -> list[Trial]:
    """The trials of a grid with the learning rates that results in the directory `tuned` choose, instead of all rates.

    Results count if they are of the same version, settings and equations, and a choice needs results of all rates of
    the grid, one of which at least was not lost. `sign` is 1 where a lower outcome is better, and -1 where a
    higher one is.
    """
    kinds = {(trial.experiment, trial.version, canonical(trial.settings)) for trial in trials}
    equations = {trial.method: trial.condition.get(EQUATIONS) for trial in trials}
    results = [
        result
        for result in Store(tuned).results()
        if (result.trial.experiment, result.trial.version, canonical(result.trial.settings)) in kinds
        and result.trial.condition.get(EQUATIONS) == equations.get(result.trial.method)
    ]
    judged = {trial.condition["noise"] if track == "noise" else CLEAN for trial in trials}
    choices = {noise: choose_rates(results, outcome, noise, sign) for noise in judged}
    chosen: dict[str, Trial] = {}
    missing: list[tuple[Trial, str]] = []
    lost: dict[str, None] = {}
    for trial in trials:
        noise = trial.condition["noise"] if track == "noise" else CLEAN
        choice = choices[noise].get((trial.method, trial.condition["model"]))
        if choice is None or trial.condition["lr"] not in choice.outcomes:
            missing.append((trial, noise))
        elif choice.rate is None:
            lost[f"{trial.method} ({trial.condition['model']}; {noise})"] = None
        else:
            final = replace(trial, condition={**trial.condition, "lr": choice.rate})
            chosen[final.key] = final
    if missing:
        raise NotTunedError(_explain(missing, tuned) + _offer_rates(trials, missing))
    if lost:
        raise NotTunedError(
            "No learning rate can be chosen, because runs were lost at every one, for "
            f"{', '.join(lost)}: leave these out."
        )
    return list(chosen.values())


def _offer_rates(trials: Sequence[Trial], missing: Sequence[tuple[Trial, str]]) -> str:
    """How to choose among the rates that all methods have results of, if there are any."""
    without = {trial.condition["lr"] for trial, _ in missing}
    rates = dict.fromkeys(f"{trial.condition['lr']:g}" for trial in trials if trial.condition["lr"] not in without)
    return f". Or choose among the rates that have results: --lrs {','.join(rates)}" if rates else ""


def _explain(missing: Sequence[tuple[Trial, str]], tuned: str) -> str:
    """What is missing, and the command that brings it, apart from what only the user knows."""
    first = missing[0][0]
    methods = ",".join(dict.fromkeys(trial.method for trial, _ in missing))
    models = ",".join(dict.fromkeys(trial.condition["model"] for trial, _ in missing))
    noises = ",".join(dict.fromkeys(noise for _, noise in missing))
    rates = ",".join(dict.fromkeys(f"{trial.condition['lr']:g}" for trial, _ in missing))
    words = ["adaterm-bench", "run", first.experiment, "--methods", methods, "--models", models]
    words += ["--noises", noises, "--lrs", rates, "--seeds", ",".join(map(str, TUNING_SEEDS)), "--out", tuned]
    place = tuned if Path(tuned).is_dir() else f"There is no directory {tuned}, and so it"
    return (
        f"{place} has no results to choose learning rates by, with these settings, for {methods} ({models}; {noises}; "
        f"{rates}). Run first, with the --preset and settings of this command as well: {shlex.join(words)}"
    )
