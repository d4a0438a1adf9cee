"""The paper's mathematics, written once, as pure functions of arrays.

A step has three stages: *gauge* asks how far a gradient lies from what was expected, *weigh* turns sums over a tensor
into rates, *move* applies them elementwise. Every family of methods has the three as functions of one shape:

    <family>_gauge(gradient, mean, scale, scalars, numbers, flags)          -> terms, to be summed over the tensor
    <family>_weigh(sums, size, scalars, lr, step, numbers, flags)           -> rates, scalars, statistics
    <family>_move(gradient, mean, scale, parameter, rates, numbers, flags)  -> mean, scale, parameter

The engines run them on a tensor, on lists of tensors or inside a kernel: they bring their own reduction and, through
`adaterm.binding.bind`, their own primitives. Sections, algorithms and appendices are the paper's; `docs/paper.md` maps
its symbols to the names used here.
"""

import math
from math import inf
from typing import Any, NamedTuple

import torch
from torch import log, sqrt, square, where

Array = Any  # a torch tensor, a list of tensors, a JAX array, a Triton block or a number

TINY = 1.1754943508222875e-38  # smallest normal float32, whatever the precision: the paper's epsilon_float
LARGEST_DOF_WEIGHT = TINY - math.log(TINY)


def at_least(value: Array, bound: float) -> Array:
    """The larger of an array and a number; NaN stays NaN."""
    return torch.clamp_min(value, bound)


def shift(value: Array, direction: Array, rate: Array) -> Array:
    """`value + rate * direction`; mean, scale and parameter change by this alone, so an engine may do it in place."""
    return value + rate * direction


def ratio(value: Array, number: Array) -> Array:
    """`value / number`, with one number for a whole tensor."""
    return value / number


def power(base: Array, exponent: Array) -> Array:
    """A positive number to a real power."""
    return base**exponent


class Size(NamedTuple):
    """The number d of a tensor's elements, and trigamma(d / 2)."""

    count: Array
    trigamma: Array


class Statistics(NamedTuple):
    """What one step made of one gradient: its distance, the trust in it, from 0 to 1, and the degrees of freedom.

    Distance and dof are per dimension for AdaTerm and totals over the tensor for the t-family, as they are published. A
    distance that is not finite means that the gradient was excluded; its trust is 0.
    """

    distance: Array
    trust: Array
    dof: Array


def direct(gradient: Array, parameter: Array, sign: Array, weight_decay: Array, adds_decay: bool) -> Array:
    """The gradient as a rule sees it: with its sign (and GradScaler's scale undone), and with L2 decay."""
    gradient = gradient * sign
    return shift(gradient, parameter, weight_decay) if adds_decay else gradient


def shrinkage(lr: Array, weight_decay: Array) -> Array:
    """The part of a parameter that decoupled decay takes away, rounded as AdamW's factor 1 - lr * weight_decay is."""
    return 1.0 - (1.0 - lr * weight_decay)


def surprise(gradient: Array, mean: Array, scale: Array) -> Array:
    """Gauge: the squared deviation in units of the scale; its mean over the tensor is the distance D (Alg. 1)."""
    return square(gradient - mean) / scale


def granted(amount: float, distance: Array) -> Array:
    """The amount for every tensor with a finite distance, and nothing for the others: their gradients are excluded."""
    return where(distance < inf, amount + 0.0 * distance, 0.0)


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


def residual(gradient: Array, mean: Array, valid: Array) -> Array:
    """Move: the gradient's deviation from the mean; zero for an excluded gradient, so that nothing follows it."""
    return where(valid > 0.0, gradient - mean, 0.0)


def projected(scale: Array, squared: Array, rate: Array, distance: Array, dof: Array, floor: float) -> Array:
    """v + tau (s + max(eps^2, (s - D v) / nu) - v), the scale update of Alg. 1, each term scaled before it is added."""
    correction = at_least(shift(ratio(squared, dof), scale, -distance / dof), floor)
    return shift(shift(scale, squared - scale, rate), correction, rate)


def analytic(scale: Array, squared: Array, rate: Array, weight: Array, floor: float) -> Array:
    """v + kappa (w s + eps^2 - v), the scale update of AdaTerm2 (appendix H)."""
    scale = shift(scale, scale - floor, -rate)
    return shift(scale, squared, rate * weight)


def gaussian(scale: Array, squared: Array, rate: Array, floor: float) -> Array:
    """v + tau (s + eps^2 - v), a moving average: the limit of infinite dof (section 4.3) and the t-family's scale."""
    return shift(scale, squared - scale + floor, rate)


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


def adaterm_gauge(g: Array, mean: Array, scale: Array, scalars: Array, numbers: Array, flags: Array) -> tuple[Array]:
    """The terms whose mean is the distance; without robustness that only has to be finite."""
    return (surprise(g, mean, scale) if flags.robust else square(g - mean),)


def adaterm_weigh(
    sums: Array, size: Array, scalars: Array, lr: Array, step: Array, numbers: Array, flags: Array
) -> tuple[Array, Array, Array]:
    """Rates, the next scalars and what to report.

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
    correction = where(memory > 0.0, memory, 1.0) if flags.adabias else 1.0 - power(numbers.beta, step)
    step_size = lr / power(correction, 0.5)
    rates = AdaTermRates(
        granted(1.0, distance), rate, scale_rate, where(distance < inf, distance, 0.0), dof, weight, step_size
    )
    return rates, AdaTermScalars(excess, memory), Statistics(distance, trust, reported_dof)


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


def t_descend(parameter: Array, mean: Array, scale: Array, step_size: Array, correction: Array, eps: float) -> Array:
    """theta - alpha (m / c1) / (sqrt(v / c2) + eps), the step of Adam (section 2.2); the step size is alpha / c1."""
    return shift(parameter, mean / (sqrt(ratio(scale, correction)) + eps), -step_size)


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


def t_family_gauge(g: Array, mean: Array, scale: Array, scalars: Array, numbers: Array, flags: Array) -> tuple[Array]:
    """The terms whose mean is the distance per dimension."""
    return (surprise(g, mean, scale + numbers.eps) if flags.robust else square(g - mean),)


def t_family_weigh(
    sums: Array, size: Array, scalars: Array, lr: Array, step: Array, numbers: Array, flags: Array
) -> tuple[Array, Array, Array]:
    """Rates, the next scalars and what to report; the step size is alpha / c1, the correction c2."""
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
        total = size.count * distance
    else:
        trust = granted(1.0, distance)
        rate = granted(1.0 - numbers.beta1, distance)
        reported_dof = where(distance < inf, distance + inf, inf)
        total = distance
    step_size = lr / (1.0 - power(numbers.beta1, step))
    correction = 1.0 - power(numbers.beta2, step)
    rates = TFamilyRates(granted(1.0, distance), rate, granted(1.0 - numbers.beta2, distance), step_size, correction)
    return rates, TFamilyScalars(weight_sum, average, variance), Statistics(total, trust, reported_dof)


def t_family_move(
    gradient: Array, mean: Array, scale: Array, parameter: Array, rates: Array, numbers: Array, flags: Array
) -> tuple[Array, Array, Array]:
    """The next mean, scale and parameter; AdaBelief's scale is that of the deviation."""
    mean = shift(mean, residual(gradient, mean, rates.valid), rates.rate)
    observed = residual(gradient, mean, rates.valid) if flags.belief else where(rates.valid > 0.0, gradient, 0.0)
    scale = gaussian(scale, square(observed), rates.scale_rate, numbers.floor)
    return mean, scale, t_descend(parameter, mean, scale, rates.step_size, rates.correction, numbers.eps)
