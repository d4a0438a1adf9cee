"""The paper's mathematics, written once, as pure functions of arrays.

A step has three stages: *gauge* asks how far a gradient lies from what was expected, *weigh* turns that one number per
tensor into rates, *move* applies them elementwise. The engines run these functions on a tensor, on lists of tensors or
inside a kernel: they bring their own reduction and, through `adaterm.binding.bind`, their own primitives. Sections,
algorithms and appendices are the paper's; `docs/paper.md` maps its symbols to the names used here.
"""

import math
from math import inf
from typing import Any

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
    return where(valid, gradient - mean, 0.0)


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


def adaterm_weigh(
    distance: Array,
    excess: Array,
    memory: Array,
    beta: float,
    eps: float,
    min_dof: float,
    robust: bool,
    adaptive: bool,
    analytically: bool,
    adabias: bool,
) -> tuple[Array, ...]:
    """All that AdaTerm weighs: rate, rate of the scale, dof and weight; the next excess dof and memory; trust and dof.

    The memory is the rates' own moving average of ones, by which the adaptive bias correction divides (appendix G).
    """
    if robust:
        weight, bound, dof, following = weigh(distance, excess, beta, eps, min_dof)
        trust = weight / bound
        rate = (1.0 - beta) * trust
        scale_rate = granted(1.0 - beta, distance) / bound if analytically else rate
        excess = following if adaptive else excess
        reported = min_dof + excess
    else:
        trust = granted(1.0, distance)
        rate = granted(1.0 - beta, distance)
        scale_rate = rate
        weight = trust
        dof = where(distance < inf, distance + inf, inf)
        reported = dof
    memory = shift(memory, 1.0 - memory, rate) if adabias else memory
    return rate, scale_rate, dof, weight, excess, memory, trust, reported


def adaterm_step_size(lr: Array, step: Array, memory: Array, beta: float, adabias: bool) -> Array:
    """alpha / sqrt(c): c corrects the averages for their start at zero, from the step count or from the memory."""
    correction = where(memory > 0.0, memory, 1.0) if adabias else 1.0 - power(beta, step)
    return lr / power(correction, 0.5)


def adaterm_move(
    gradient: Array,
    mean: Array,
    scale: Array,
    parameter: Array,
    valid: Array,
    rate: Array,
    scale_rate: Array,
    distance: Array,
    dof: Array,
    weight: Array,
    step_size: Array,
    floor: float,
    robust: bool,
    analytically: bool,
    uncentered: bool,
) -> tuple[Array, Array, Array]:
    """The next mean, scale and parameter of AdaTerm."""
    rest = residual(gradient, mean, valid)
    mean = shift(mean, rest, rate)
    if not robust:
        scale = gaussian(scale, square(rest), rate, floor)
    elif analytically:
        scale = analytic(scale, square(rest), scale_rate, weight, floor)
    else:
        scale = projected(scale, square(rest), rate, distance, dof, floor)
    return mean, scale, descend(parameter, mean, scale, step_size, uncentered)


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


def t_family_weigh(
    distance: Array,
    size: Array,
    trigamma: Array,
    weight_sum: Array,
    average: Array,
    variance: Array,
    beta: float,
    beta2: float,
    eps: float,
    dof: float,
    beta_dof: float,
    robust: bool,
    adaptive: bool,
    keep: bool,
) -> tuple[Array, ...]:
    """All that the t-family weighs: the two rates; the next sum, average and variance; total distance, trust and dof.

    Without `keep` the next step starts from the same numbers as this one, as published.
    """
    scale_rate = granted(1.0 - beta2, distance)
    if robust:
        next_average = average
        next_variance = variance
        if adaptive:
            next_average, next_variance = spread(log(size * distance + eps), average, variance, beta_dof)
            next_average = where(distance < inf, next_average, average)
            next_variance = where(distance < inf, next_variance, variance)
            dof = dof_of_spread(next_variance, trigamma, eps)
        trust, rate, following = t_weigh(distance, weight_sum, dof, beta)
        if keep:
            weight_sum = following
            average = next_average
            variance = next_variance
        reported = granted(0.0, distance) + size * dof
        total = size * distance
    else:
        trust = granted(1.0, distance)
        rate = granted(1.0 - beta, distance)
        reported = where(distance < inf, distance + inf, inf)
        total = distance
    return rate, scale_rate, weight_sum, average, variance, total, trust, reported


def t_family_move(
    gradient: Array,
    mean: Array,
    scale: Array,
    parameter: Array,
    valid: Array,
    rate: Array,
    scale_rate: Array,
    step_size: Array,
    correction: Array,
    floor: float,
    eps: float,
    belief: bool,
) -> tuple[Array, Array, Array]:
    """The next mean, scale and parameter of the t-family; AdaBelief's scale is that of the deviation."""
    mean = shift(mean, residual(gradient, mean, valid), rate)
    seen = residual(gradient, mean, valid) if belief else where(valid, gradient, 0.0)
    scale = gaussian(scale, square(seen), scale_rate, floor)
    return mean, scale, t_descend(parameter, mean, scale, step_size, correction, eps)
