"""Where a figure has bands every seed is drawn, too."""

from dataclasses import replace

import numpy as np
import pytest

from adaterm_bench.core.trial import Result
from adaterm_bench.experiments.classification.experiment import Classification
from adaterm_bench.experiments.ppo.experiment import Ppo


@pytest.mark.parametrize("seeds", [3, 6])
def test_every_seed_of_the_classification_is_drawn(seeds):
    """Where there are bands, and of every method that was run."""
    study = Classification(labels=("0 %",), epochs=4, checks=2)
    outcome = {"accuracy": 0.5, "accuracies": [0.25, 0.5], "losses": [2.0] * 4, "memorised": None, "dof": None}
    results = [Result(trial, outcome, {}) for trial in study.trials(["Adam", "t-AdaBelief"], range(seeds))]
    found = [figure for figure in study.section(results).figures if figure.title == "Every seed, right labels"]
    assert len(found) == (seeds == 6)
    for figure in found:
        panels = figure.draw().axes
        assert [panel.get_title("left") for panel in panels] == ["Adam", "t-AdaBelief"]
        assert [len(panel.lines) for panel in panels] == [7, 7]


@pytest.mark.parametrize("seeds", [3, 6])
def test_every_seed_of_ppo_is_drawn(seeds):
    study = Ppo(seeds=seeds, tasks=("Hopper",))
    outcome = {"return": 1.0, "episodes": [[10, 1.0], [20, 2.0]]}
    results = [Result(trial, outcome, {}) for trial in study.trials(["Adam", "AdaTerm"])]
    titles = [figure.title for figure in study.section(results).figures]
    assert titles == ["Hopper: learning curves", *["Hopper: every seed"] * (seeds == 6)]
    lost = [replace(results[0], outcome={**outcome, "return": np.nan}), *results[1:]]
    for figure in study.section(lost).figures:
        figure.draw()
