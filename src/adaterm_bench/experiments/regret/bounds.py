"""The regret bounds of section 4.5 and its appendix: the theorem, and the corollary for infinite degrees of freedom.

With tau_t the rate of step t, tau its least value, D the diameter of the set and alpha_t = alpha / sqrt(t), they print

    R_T <= D^2 sqrt(T) / (4 tau_T alpha) sum_i sqrt(v_T,i)                                                      (last)
         + (tau^2 + 1 - (beta + tau)) / (2 tau^2) sum_{t<T} D^2 / alpha_t sum_i sqrt(v_t,i)                     (path)
         + (1 - beta)^2 alpha / (eps tau^2 sqrt(T)) sum_{t<T} sum_i (1 - tau)^(T - k) g_k,i^2                 (recent)
         + (tau (1 - tau) + 1 - beta) / (2 tau^2) (1 - beta)^2 alpha / (eps tau^2)
           sqrt(1 + ln(T - 1)) sum_i ||g_1:T-1,i^2||_2                                                       (history)

What is ill-defined or wrong in print, and how we read it:

- `recent` sums over t but has the index k. The proof sums over k from 1 to T, and so do we. Ending at T - 1, as
  printed, drops the step T, and the inequality fails where one step decides (`through_last=False` shows it).
- ln(T - 1) has no value for T = 1, where the sum beside it is empty: `history` is then 0.
- ||g^2||_2 is at most G^2 sqrt(T - 1), not G sqrt(T - 1), and its factor is sqrt(1 + ln(T - 1)): `history` is
  O(G^2 sqrt(T ln T)), with factors 1 / eps and 1 / tau^4.
- tau has no lower limit before the run: it is (1 - beta) nu / (nu + distance), and distances are unbounded. We take
  the least rate of the steps so far, which gives the smallest value that the bound can have.
- The proof leaves out the bias correction; the method has it.

The bound is not O(sqrt(T)). As v never falls below eps^2, `path` is at least D^2 eps d / (3 alpha) (T - 1)^(3/2)
(`least_path`), whatever the problem: the proof bounds each <m_t, theta_t - theta*> alone, by Young's inequality, where
Adam's and AMSGrad's proofs let consecutive distances cancel. Worse, x^2 + y^2 >= 2xy turns the four terms around:
`last + recent` is at least D ||g_T||_1 / sqrt(1 - beta), and `path + history` at least
sqrt((1 + beta) / (1 - beta)) D sum_{t<T} ||g_t||_1. So for every problem, T, alpha and eps

    bound >= D sum_t ||g_t||_1 / sqrt(1 - beta),

while no sequence of points in the set, learned or not, has a regret above D sum_t ||g_t||_1 (`trivial`). The inequality
is true, with the bias correction too, and says nothing about the method.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Numbers = Any  # a number, or an array with one for each run


class Bound(NamedTuple):
    """The bound's four terms, in the order of print; the regret is at most their sum."""

    last: Numbers
    path: Numbers
    recent: Numbers
    history: Numbers

    @property
    def total(self) -> Numbers:
        """The bound."""
        return self.last + self.path + self.recent + self.history


@dataclass(frozen=True)
class Run:
    """What the bounds take from the first T steps of a run, or of many: g are gradients, v scales, tau rates."""

    steps: int
    rate: Numbers  # tau_T
    least_rate: Numbers  # min_t tau_t
    last_root: Numbers  # sum_i sqrt(v_T,i)
    roots: Numbers  # sum_{t<T} sqrt(t) sum_i sqrt(v_t,i)
    recent: Numbers  # sum_{k<=T} (1 - least_rate)^(T - k) sum_i g_k,i^2
    fourth: Numbers  # sum_i ||g_1:T-1,i^2||_2, with g^2 elementwise: the root of a sum of fourth powers

    @classmethod
    def of(cls, gradients: Array, scales: Array, rates: Array, through_last: bool = True) -> "Run":
        """From all steps of one run: gradients and scales, after their step, have shape (T, d), and rates (T,)."""
        steps, roots = len(rates), np.sqrt(scales).sum(axis=1)
        squares = np.square(gradients).sum(axis=1)
        return cls(
            steps=steps,
            rate=rates[-1],
            least_rate=rates.min(),
            last_root=roots[-1],
            roots=np.sum(np.sqrt(np.arange(1, steps)) * roots[:-1]),
            recent=discounted(squares, rates.min()) - (0.0 if through_last else squares[-1]),
            fourth=np.sqrt((gradients[:-1] ** 4).sum(axis=0)).sum(),
        )


def discounted(squares: Array, rate: Numbers) -> Numbers:
    """`sum_k (1 - rate)^(T - k) squares[k]` over the first axis; a rate for each run where there are several."""
    ages = np.arange(len(squares))[::-1].reshape(-1, *(1,) * (squares.ndim - 1))
    return np.sum(np.exp(ages * np.log1p(-np.asarray(rate))) * squares, axis=0)


def theorem(run: Run, alpha: float, beta: float, eps: float, diameter: float) -> Bound:
    """The theorem's bound for AdaTerm (section 4.5.1)."""
    tau, growth = run.least_rate, (1.0 - beta) ** 2 * alpha / (eps * run.least_rate**2)
    harmonic = np.sqrt(1.0 + np.log(run.steps - 1)) if run.steps > 1 else 0.0
    return Bound(
        last=diameter**2 * np.sqrt(run.steps) / (4.0 * run.rate * alpha) * run.last_root,
        path=(tau**2 + 1.0 - (beta + tau)) / (2.0 * tau**2) * diameter**2 / alpha * run.roots,
        recent=growth / np.sqrt(run.steps) * run.recent,
        history=(tau * (1.0 - tau) + (1.0 - beta)) / (2.0 * tau**2) * growth * harmonic * run.fourth,
    )


def corollary(run: Run, alpha: float, beta: float, eps: float, diameter: float) -> Bound:
    """The corollary's bound for infinite degrees of freedom, where every rate is 1 - beta (section 4.5.1)."""
    harmonic = np.sqrt(1.0 + np.log(run.steps - 1)) if run.steps > 1 else 0.0
    return Bound(
        last=diameter**2 * np.sqrt(run.steps) / (4.0 * (1.0 - beta) * alpha) * run.last_root,
        path=0.5 * diameter**2 / alpha * run.roots,
        recent=alpha / (eps * np.sqrt(run.steps)) * run.recent,
        history=(1.0 + beta) * alpha * harmonic / (2.0 * (1.0 - beta) * eps) * run.fourth,
    )


def trivial(gradients: Array, diameter: float) -> Numbers:
    """`D sum_t ||g_t||_1`, for gradients of shape (T, d): no sequence of points in the set has a larger regret."""
    return diameter * np.abs(gradients).sum()


def least_path(steps: int, dimension: int, alpha: float, eps: float, diameter: float) -> float:
    """A lower limit of the term `path`, for every run: scales are at least eps^2, its factor at least 1/2."""
    return float(diameter**2 * eps * dimension / (3.0 * alpha) * (steps - 1) ** 1.5)
