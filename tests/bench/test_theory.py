"""The bounds are those in print; what is said of them holds for any run."""

import math

import numpy as np
import pytest
import torch

from adaterm import AdaTerm
from adaterm_bench.experiments.regret.bounds import Run, corollary, discounted, least_path, theorem, trivial

BETA = 0.9


def some_run(seed, steps=12, dimension=3, eps=1e-2):
    """Gradients, scales of at least eps^2 and rates up to 1 - beta, none of which belong together."""
    rng = np.random.default_rng(seed)
    gradients = rng.standard_normal((steps, dimension)) * 10.0 ** rng.uniform(-3, 3)
    scales = eps**2 * (1.0 + rng.exponential(10.0 ** rng.uniform(-3, 6), (steps, dimension)))
    rates = (1.0 - BETA) * rng.uniform(1e-3, 1.0, steps)
    return gradients, scales, rates


def transcribed(g, v, tau, alpha, beta, eps, diameter):
    """The theorem, term by term and sum by sum, with k from 1 to T as in the proof."""
    steps, dimension = g.shape
    least = min(tau)
    first = diameter**2 * math.sqrt(steps) / (4 * tau[-1] * alpha) * sum(math.sqrt(it) for it in v[-1])
    second = third = 0.0
    for t in range(1, steps):
        alpha_t = alpha / math.sqrt(t)
        second += diameter**2 / alpha_t * sum(math.sqrt(v[t - 1, i]) for i in range(dimension))
    second *= (least**2 + 1 - (beta + least)) / (2 * least**2)
    for k in range(1, steps + 1):
        third += sum((1 - least) ** (steps - k) * g[k - 1, i] ** 2 for i in range(dimension))
    third *= (1 - beta) ** 2 * alpha / (eps * least**2 * math.sqrt(steps))
    norms = sum(math.sqrt(sum(g[t - 1, i] ** 4 for t in range(1, steps))) for i in range(dimension))
    fourth = (least * (1 - least) + (1 - beta)) / (2 * least**2) * (1 - beta) ** 2 * alpha / (eps * least**2)
    return first, second, third, fourth * math.sqrt(1 + math.log(steps - 1)) * norms


@pytest.mark.parametrize("seed", range(5))
def test_theorem_as_printed(seed):
    g, v, tau = some_run(seed)
    found = theorem(Run.of(g, v, tau), 0.3, BETA, 1e-2, 2.0)
    expected = transcribed(g, v, tau, 0.3, BETA, 1e-2, 2.0)
    assert found == pytest.approx(expected, rel=1e-12)
    assert found.total == pytest.approx(sum(expected), rel=1e-12)


def test_theorem_by_hand():
    run = Run.of(np.array([[2.0], [3.0]]), np.array([[4.0], [9.0]]), np.array([0.5, 0.25]))
    found = theorem(run, alpha=1.0, beta=0.5, eps=0.5, diameter=2.0)
    assert found.last == pytest.approx(4 * math.sqrt(2) / (4 * 0.25) * 3)
    assert found.path == pytest.approx((1 / 16 + 1 - 0.75) / (2 / 16) * 4 * 2)
    assert found.recent == pytest.approx(0.25 / (0.5 / 16 * math.sqrt(2)) * (0.75 * 4 + 9))
    assert found.history == pytest.approx((3 / 16 + 0.5) / (2 / 16) * 0.25 / (0.5 / 16) * 1.0 * 4)


@pytest.mark.parametrize("seed", range(3))
def test_corollary_is_the_theorem_with_constant_rates(seed):
    g, v, tau = some_run(seed)
    run = Run.of(g, v, np.full_like(tau, 1.0 - BETA))
    assert corollary(run, 0.3, BETA, 1e-2, 2.0) == pytest.approx(theorem(run, 0.3, BETA, 1e-2, 2.0), rel=1e-12)


@pytest.mark.parametrize("alpha", [1e-3, 0.1, 10.0, 1e4])
@pytest.mark.parametrize("steps", [1, 2, 50])
def test_bound_is_never_below_the_trivial_one(alpha, steps):
    for seed in range(40):
        g, v, tau = some_run(seed, steps)
        limit = trivial(g, 2.0) / math.sqrt(1.0 - BETA) * (1.0 - 1e-12)
        assert theorem(Run.of(g, v, tau), alpha, BETA, 1e-2, 2.0).total >= limit
        assert corollary(Run.of(g, v, np.full_like(tau, 1.0 - BETA)), alpha, BETA, 1e-2, 2.0).total >= limit


def test_second_term_grows_like_the_power_three_halves():
    for steps in (2, 30, 1000):
        g, v, tau = some_run(0, steps)
        found = theorem(Run.of(g, v, tau), 0.3, BETA, 1e-2, 2.0).path
        assert found >= least_path(steps, 3, 0.3, 1e-2, 2.0)
    assert least_path(40_001, 3, 0.3, 1e-2, 2.0) == pytest.approx(8.0 * least_path(10_001, 3, 0.3, 1e-2, 2.0))


def test_inequality_fails_if_the_third_sum_ends_before_the_last_step():
    """One step of the method from the worst corner, with a large step size."""
    point = torch.tensor([1.0], dtype=torch.float64)
    optimizer = AdaTerm([point], lr=100.0, min_dof=math.inf, fused=False)
    point.grad = torch.ones_like(point)
    optimizer.step()
    v = optimizer.state[point]["exp_scale"].numpy()[None]
    g, tau, regret = np.ones((1, 1)), np.array([1.0 - BETA]), 2.0  # the loss is x, and -1 is best in [-1, 1]
    assert corollary(Run.of(g, v, tau, through_last=False), 100.0, BETA, 1e-5, 2.0).total < regret
    assert corollary(Run.of(g, v, tau), 100.0, BETA, 1e-5, 2.0).total > regret


def test_discounted_sums_of_many_runs_are_those_of_each():
    squares, rates = np.random.default_rng(0).exponential(size=(7, 4)), np.array([1e-12, 1e-3, 0.1, 0.9])
    each = [sum((1 - rate) ** (6 - k) * squares[k, run] for k in range(7)) for run, rate in enumerate(rates)]
    assert discounted(squares, rates) == pytest.approx(each, rel=1e-12)
