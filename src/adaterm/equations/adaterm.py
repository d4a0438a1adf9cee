"""AdaTerm (algorithm 1), its ablations and variants."""

import math
from math import inf
from typing import NamedTuple

from adaterm.equations.primitives import (
    Array,
    Statistics,
    add_up,
    at_least,
    gaussian,
    granted,
    log,
    power,
    ratio,
    residual,
    shift,
    shrinkage,
    sqrt,
    square,
    surprise,
    where,
)

TINY = 1.1754943508222875e-38  # smallest normal float32, whatever the precision: the paper's epsilon_float

LARGEST_DOF_WEIGHT = TINY - math.log(TINY)


def weigh(distance: Array, excess: Array, beta: float, eps: float, min_dof: float) -> tuple[Array, Array, Array, Array]:
    """Weight w, its bound, the dof in force and the next excess dof (Alg. 1); NaN counts as an infinite distance."""
    distance = where(distance < inf, distance, inf)
    dof = min_dof + excess
    weight = (dof + 1.0) / (dof + distance)
    bound = (dof + 1.0) / dof
    dof_weight = weight - log(at_least(weight, TINY))
    dof_bound = at_least(bound - log(bound), LARGEST_DOF_WEIGHT)
    target = ((dof + 2.0) / (dof + 1.0) / dof + 1.0) * excess / dof_weight + eps
    return weight, bound, dof, shift(excess, target - excess, (1.0 - beta) * dof_weight / dof_bound)


def projected(scale: Array, squared: Array, rate: Array, distance: Array, dof: Array, floor: float) -> Array:
    """v + tau (s + max(eps^2, (s - D v) / nu) - v), the scale update of Alg. 1, each term scaled before it is added."""
    correction = at_least(shift(ratio(squared, dof), scale, -distance / dof), floor)
    return shift(shift(scale, squared - scale, rate), correction, rate)


def analytic(scale: Array, squared: Array, rate: Array, weight: Array, floor: float) -> Array:
    """v + kappa (w s + eps^2 - v), the scale update of AdaTerm2 (appendix H)."""
    scale = shift(scale, scale - floor, -rate)
    return shift(scale, squared, rate * weight)


def descend(parameter: Array, mean: Array, scale: Array, step_size: Array, uncentered: bool) -> Array:
    """theta - alpha (m / c) / sqrt(v / c) (section 4.4); uncentered has v + m^2 in place of v (appendix G).

    One c cancels: the step size is alpha / sqrt(c).
    """
    return shift(parameter, mean / sqrt(square(mean) + scale if uncentered else scale), -step_size)


class AdaTermNumbers(NamedTuple):
    """The numbers of AdaTerm's options; `floor` is eps^2."""

    beta: Array
    eps: Array
    min_dof: Array
    floor: Array


class AdaTermFlags(NamedTuple):
    """AdaTerm's switches; without `robust` the dof are infinite."""

    robust: bool
    adaptive: bool
    analytic: bool
    adabias: bool
    uncentered: bool


class AdaTermScalars(NamedTuple):
    """A tensor's state beside mean and scale; `bias_correction` is the rates' own moving average of ones."""

    excess_dof: Array
    bias_correction: Array


class AdaTermRates(NamedTuple):
    """What AdaTerm moves a tensor with."""

    valid: Array
    rate: Array
    scale_rate: Array
    distance: Array
    dof: Array
    weight: Array
    step_size: Array
    shrinkage: Array


def adaterm_gauge(g: Array, mean: Array, scale: Array, scalars: Array, numbers: Array, flags: Array) -> tuple[Array]:
    """The sum whose mean is the distance; without robustness that only has to be finite."""
    return (add_up(surprise(g, mean, scale) if flags.robust else square(g - mean)),)


def adaterm_weigh(
    sums: Array, size: Array, scalars: Array, window: Array, batch: Array, pace: Array, numbers: Array, flags: Array
) -> tuple[Array, Array, Array, Array]:
    """Rates, the next scalars, nothing to note, and what to report.

    The averages start at zero, for which c corrects: from the step count, or by what the rates really took in (appendix
    G). The step size is alpha / sqrt(c).
    """
    distance = sums[0] / size.count
    excess = scalars.excess_dof
    memory = scalars.bias_correction
    if flags.robust:
        weight, bound, dof, next_excess = weigh(distance, excess, numbers.beta, numbers.eps, numbers.min_dof)
        trust = weight / bound
        rate = (1.0 - numbers.beta) * trust
        scale_rate = granted(1.0 - numbers.beta, distance) / bound if flags.analytic else rate
        excess = next_excess if flags.adaptive else excess
        reported_dof = numbers.min_dof + excess
    else:
        trust = granted(1.0, distance)
        rate = granted(1.0 - numbers.beta, distance)
        scale_rate = rate
        weight = trust
        dof = where(distance < inf, distance + inf, inf)
        reported_dof = dof
    memory = shift(memory, 1.0 - memory, rate) if flags.adabias else memory
    correction = where(memory > 0.0, memory, 1.0) if flags.adabias else 1.0 - power(numbers.beta, pace.step)
    finite = where(distance < inf, distance, 0.0)
    step_size = pace.lr / power(correction, 0.5)
    rates = AdaTermRates(granted(1.0, distance), rate, scale_rate, finite, dof, weight, step_size, shrinkage(pace))
    return rates, AdaTermScalars(excess, memory), inf, Statistics(distance, trust, reported_dof)


def adaterm_move(
    gradient: Array, mean: Array, scale: Array, parameter: Array, rates: Array, numbers: Array, flags: Array
) -> tuple[Array, Array, Array]:
    """The next mean, scale and parameter."""
    deviation = residual(gradient, mean, rates.valid)
    mean = shift(mean, deviation, rates.rate)
    if not flags.robust:
        scale = gaussian(scale, square(deviation), rates.rate, numbers.floor)
    elif flags.analytic:
        scale = analytic(scale, square(deviation), rates.scale_rate, rates.weight, numbers.floor)
    else:
        scale = projected(scale, square(deviation), rates.rate, rates.distance, rates.dof, numbers.floor)
    return mean, scale, descend(parameter, mean, scale, rates.step_size, flags.uncentered)
