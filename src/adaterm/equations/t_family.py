"""The t-momentum and the At-momentum, over Adam and AdaBelief."""

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
    residual,
    shift,
    shrinkage,
    sqrt,
    square,
    surprise,
    t_descend,
    where,
)


def spread(log_distance: Array, average: Array, variance: Array, beta: float) -> tuple[Array, Array]:
    """Running mean and variance of ln D, from which the At-momentum reads its dof (section 3.2)."""
    step = log_distance - average
    return shift(average, step, 1.0 - beta), beta * (variance + (1.0 - beta) * step * step)


def dof_of_spread(variance: Array, trigamma: Array, eps: float) -> Array:
    """The At-momentum's dof per dimension: trigamma(x) = (x + 1) / x^2, solved for x (section 3.2)."""
    excess = at_least(variance - trigamma, eps)
    return (1.0 + sqrt(1.0 + 4.0 * excess)) / excess


def trigamma(x: float) -> float:
    """The second derivative of ln Gamma at a positive number."""
    recurred = 0.0
    while x < 20.0:
        recurred += 1.0 / x**2
        x += 1.0
    z = 1.0 / x**2
    return recurred + 1.0 / x + z / 2.0 + z / x * (1 / 6 - z * (1 / 30 - z * (1 / 42 - z * (1 / 30 - z * 5 / 66))))


def t_weigh(distance: Array, weight_sum: Array, dof: Array, beta: float) -> tuple[Array, Array, Array]:
    """The t-momentum's trust, its rate w / (W + w) and the next W; distance and dof are per dimension (section 3.1)."""
    distance = where(distance < inf, distance, inf)
    weight = (dof + 1.0) / (dof + distance)
    return dof / (dof + distance), weight / (weight_sum + weight), (2.0 * beta - 1.0) / beta * weight_sum + weight


class TFamilyNumbers(NamedTuple):
    """The numbers of the t-family's options; `floor` is added to the scale by AdaBelief: eps / (1 - beta2)."""

    beta1: Array
    beta2: Array
    eps: Array
    dof: Array
    beta_dof: Array
    floor: Array


class TFamilyFlags(NamedTuple):
    """The t-family's switches; without `keeps` the next step starts from the same scalars as this one, as published."""

    robust: bool
    adaptive: bool
    keeps: bool
    belief: bool


class TFamilyScalars(NamedTuple):
    """A tensor's state beside mean and scale: W, and the running mean and variance of ln D."""

    weight_sum: Array
    log_distance_avg: Array
    log_distance_var: Array


class TFamilyRates(NamedTuple):
    """What the t-family moves a tensor with."""

    valid: Array
    rate: Array
    scale_rate: Array
    step_size: Array
    correction: Array
    shrinkage: Array


def t_family_gauge(g: Array, mean: Array, scale: Array, scalars: Array, numbers: Array, flags: Array) -> tuple[Array]:
    """The sum whose mean is the distance per dimension."""
    return (add_up(surprise(g, mean, scale + numbers.eps) if flags.robust else square(g - mean)),)


def t_family_weigh(
    sums: Array, size: Array, scalars: Array, window: Array, batch: Array, pace: Array, numbers: Array, flags: Array
) -> tuple[Array, Array, Array, Array]:
    """Rates, the next scalars, nothing to note, and what to report; the step size is alpha / c1, the correction c2."""
    distance = sums[0] / size.count
    weight_sum = scalars.weight_sum
    average = scalars.log_distance_avg
    variance = scalars.log_distance_var
    if flags.robust:
        next_average = average
        next_variance = variance
        dof = numbers.dof
        if flags.adaptive:
            log_distance = log(size.count * distance + numbers.eps)
            next_average, next_variance = spread(log_distance, average, variance, numbers.beta_dof)
            next_average = where(distance < inf, next_average, average)
            next_variance = where(distance < inf, next_variance, variance)
            dof = dof_of_spread(next_variance, size.trigamma, numbers.eps)
        trust, rate, next_sum = t_weigh(distance, weight_sum, dof, numbers.beta1)
        if flags.keeps:
            weight_sum = next_sum
            average = next_average
            variance = next_variance
        reported_dof = granted(0.0, distance) + size.count * dof
        whole = size.count * distance
    else:
        trust = granted(1.0, distance)
        rate = granted(1.0 - numbers.beta1, distance)
        reported_dof = where(distance < inf, distance + inf, inf)
        whole = distance
    step_size = pace.lr / (1.0 - power(numbers.beta1, pace.step))
    correction = 1.0 - power(numbers.beta2, pace.step)
    scale_rate = granted(1.0 - numbers.beta2, distance)
    rates = TFamilyRates(granted(1.0, distance), rate, scale_rate, step_size, correction, shrinkage(pace))
    return rates, TFamilyScalars(weight_sum, average, variance), inf, Statistics(whole, trust, reported_dof)


def t_family_move(
    gradient: Array, mean: Array, scale: Array, parameter: Array, rates: Array, numbers: Array, flags: Array
) -> tuple[Array, Array, Array]:
    """The next mean, scale and parameter; AdaBelief's scale is that of the deviation."""
    mean = shift(mean, residual(gradient, mean, rates.valid), rates.rate)
    observed = residual(gradient, mean, rates.valid) if flags.belief else where(rates.valid > 0.0, gradient, 0.0)
    scale = gaussian(scale, square(observed), rates.scale_rate, numbers.floor)
    return mean, scale, t_descend(parameter, mean, scale, rates.step_size, rates.correction, numbers.eps)
