"""The explanatory figures show the equations' own numbers."""

import io
import json
import math

import numpy as np
import pytest

from adaterm_bench.core.trial import Result
from adaterm_bench.experiments.figures.experiment import (
    FIGURES,
    Explanatory,
    density,
    measure_central,
    surrogate_gradient,
)


@pytest.fixture(scope="module")
def results():
    experiment = Explanatory(**Explanatory.presets["smoke"])
    trials = experiment.trials(experiment.methods)
    outcomes = experiment.run(trials, "cpu", lambda _: None)
    return [Result(*it, {}) for it in zip(trials, outcomes, strict=True)]


@pytest.fixture(scope="module")
def data(results):
    return {it.trial.condition["figure"]: it.outcome for it in results}


def test_every_figure_is_plain_data_and_draws(results):
    section = Explanatory().section([Result(it.trial, json.loads(json.dumps(it.outcome)), {}) for it in results])
    assert len(section.figures) == len(FIGURES)
    for figure in section.figures:
        figure.draw().savefig(io.BytesIO())


def test_densities_and_their_central_shares():
    x = np.linspace(-4000.0, 4000.0, 400_001)
    for dof in (1.0, 3.0, math.inf):
        assert np.sum(density(x, 0.5, 2.0, dof)) * 0.02 == pytest.approx(1.0, abs=1e-3)
    assert measure_central(0.9, math.inf) == pytest.approx(1.6448536, abs=1e-4)
    assert measure_central(0.9, 1.0) == pytest.approx(math.tan(0.45 * math.pi), abs=1e-3)


def test_student_fit_resists_the_outliers(data):
    found = data["robust_fit"]
    true, gaussian, student = (np.array(found[name]) for name in ("true", "gaussian", "student"))
    assert np.abs(student - true).max() < 0.5 * np.abs(gaussian - true).max()


def test_digamma_bound_is_one_and_has_the_papers_gap(data):
    found = data["digamma_bound"]
    gaps = np.array(found["bound"]) - np.array(found["exact"])
    assert (gaps > 0.0).all()
    assert gaps[0].max() == gaps[0][0] == pytest.approx(0.80685, abs=1e-5)


def test_surrogate_gradient_is_the_papers(data):
    found = data["surrogate_gradient"]
    weight = np.array(found["weight"])
    for size, values in zip(found["sizes"], found["gradients"], strict=True):
        assert values == pytest.approx(0.5 * (-weight + np.log(weight) + 1.0 + 1.5 / size), abs=1e-9)


def test_at_a_weight_of_one_the_surrogate_gradient_is_positive():
    """Whatever the size, though the paper says that it is always negative for large ones."""
    found = surrogate_gradient(Explanatory(points=200), np.random.default_rng(0))
    assert found["weight"][99] == pytest.approx(1.0)
    for size, values in zip(found["sizes"], found["gradients"], strict=True):
        assert values[99] == pytest.approx(0.75 / size)


def test_scales_after_one_point_by_hand(data):
    found = data["coupled_scales"]
    dof, squared = 1.0 + 1e-5, 4.5**2
    rate = 0.1 * dof / (dof + squared / 2.0)
    along, across = found["student"][0]
    assert along == pytest.approx(1.0 + rate * (squared + (squared - squared / 2.0) / dof - 1.0))
    assert across == pytest.approx(1.0 + rate * (1e-10 - 1.0))
    assert found["gaussian"][0] == pytest.approx([1.0 + 0.1 * (squared + 1e-10 - 1.0), 1.0 + 0.1 * (1e-10 - 1.0)])


def test_near_observations_raise_the_dof_and_far_ones_lower_it(data):
    before, near, far = data["dof_and_distance"]["dofs"]
    assert near > before > far > 2.0
    narrow, wide = data["dof_and_distance"]["central"][1:]
    assert narrow < data["dof_and_distance"]["central"][0] < wide


def test_first_moment_follows_the_gradient_where_the_average_does_not(data):
    found = data["first_moment"]
    student, gaussian = (
        np.linalg.norm(np.array(found[name]) - found["true"], axis=1).mean() for name in ("student", "gaussian")
    )
    assert student < 0.3 * gaussian


def test_rates_are_the_papers(data):
    found = data["rates"]
    dof, distance = np.array(found["dof"]), np.array(found["distance"])[:, None]
    assert np.array(found["rate"]) == pytest.approx(0.1 * dof / (dof + distance))
    weight = (dof + 1.0) / (dof + distance)
    gradient = -(weight - np.log(weight)) + 1.0 + (dof + 2.0) / (dof + 1.0) / dof
    expected = (dof - 1.0) * 0.1 / 87.33654475055310 * gradient
    assert np.array(found["increment"]) == pytest.approx(expected, rel=1e-9, abs=1e-12)
