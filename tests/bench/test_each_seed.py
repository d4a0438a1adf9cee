"""Where a figure has bands every seed is drawn, too."""

from dataclasses import replace

import numpy as np
import pytest

from adaterm_bench.core.trial import Result
from adaterm_bench.experiments.classification.experiment import Classification
from adaterm_bench.experiments.ppo.experiment import Ppo
from adaterm_bench.reporting import figures


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


def test_a_seed_that_diverged_is_counted_and_the_others_are_drawn():
    lines = [[1.0, 2.0, 3.0], [1.0, 2.0, 4.0], [1.0, np.nan, np.nan], [1.0, 2.0, 5.0], [1.0, 2.0, 6.0]]
    (panel,) = figures.draw_each_seed([1, 2, 3], {"Adam": lines}, "return").axes
    assert panel.get_title("left") == "Adam, 1 diverged"
    assert panel.lines[-1].get_ydata().tolist() == [1.0, 2.0, 4.0]
    assert [np.isfinite(line.get_ydata()).sum() for line in panel.lines] == [3, 3, 1, 3, 3, 3]


def test_every_column_of_panels_has_its_steps():
    """Also where the last row is not full."""
    figure = figures.draw_each_seed([1, 2], {name: [[1.0, 2.0]] for name in "abcd"}, "return", xlabel="epoch")
    assert [axes.get_xlabel() for axes in figure.axes if axes.get_visible()] == ["", "epoch", "epoch", "epoch"]
