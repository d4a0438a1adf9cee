"""What all families share: the primitives, of which an array library brings those without a body, and more."""

from math import inf
from typing import Any, NamedTuple

Array = Any  # a torch tensor, a list of tensors, a JAX array, a Triton block or a number


UNBOUND = "this primitive is brought by an array library: use the equations that adaterm.binding.bind makes for it"


def log(value: Array) -> Array:
    """The natural logarithm."""
    raise NotImplementedError(UNBOUND)


def exp(value: Array) -> Array:
    """The exponential."""
    raise NotImplementedError(UNBOUND)


def sqrt(value: Array) -> Array:
    """The square root."""
    raise NotImplementedError(UNBOUND)


def square(value: Array) -> Array:
    """The square."""
    raise NotImplementedError(UNBOUND)


def where(condition: Array, value: Array, other: Array) -> Array:
    """The value where the condition holds, and elsewhere the other."""
    raise NotImplementedError(UNBOUND)


def at_least(value: Array, bound: float) -> Array:
    """The larger of an array and a number; NaN stays NaN."""
    raise NotImplementedError(UNBOUND)


def shift(value: Array, direction: Array, rate: Array) -> Array:
    """`value + rate * direction`; mean, scale and parameter change by this alone, so an engine may do it in place."""
    return value + rate * direction


def ratio(value: Array, number: Array) -> Array:
    """`value / number`, with one number for a whole tensor."""
    return value / number


def scaled(value: Array, number: Array) -> Array:
    """`value * number`, with one number for all tensors."""
    return value * number


def power(base: Array, exponent: Array) -> Array:
    """A positive number to a real power."""
    return base**exponent


def add_up(terms: Array) -> Array:
    """The sum over a tensor; kernels, which see parts of it, leave the terms as they are and add up later."""
    raise NotImplementedError(UNBOUND)


def count_above(window: Array, bound: Array) -> Array:
    """How many of a window's values lie above a bound; values that are yet to come are infinite and do not count."""
    raise NotImplementedError(UNBOUND)


def sort(window: Array) -> Array:
    """A window's values in ascending order; those that are yet to come are last."""
    raise NotImplementedError(UNBOUND)


def quantile(ordered: Array, share: float) -> Array:
    """A quantile, interpolated, of the values that a sorted window has; infinite or NaN if there are none."""
    raise NotImplementedError(UNBOUND)


def count_newest_above(window: Array, bound: Array) -> Array:
    """How many of a window's newest values, which are its first, lie above a bound in a row; not all of them do."""
    raise NotImplementedError(UNBOUND)


def newest(window: Array) -> Array:
    """A window's newest value, which is its first; infinite if there is none."""
    raise NotImplementedError(UNBOUND)


def push(window: Array, note: Array) -> Array:
    """A window whose newest value, the first, is a note; an infinite note is none."""
    raise NotImplementedError(UNBOUND)


class Size(NamedTuple):
    """The number d of a tensor's elements, and trigamma(d / 2)."""

    count: Array
    trigamma: Array


class Pace(NamedTuple):
    """The learning rate, the decoupled weight decay, and the number of the step."""

    lr: Array
    weight_decay: Array
    step: Array


class Statistics(NamedTuple):
    """What one step made of one gradient: its distance, the trust in it, from 0 to 1, and the degrees of freedom.

    Distance and dof are per dimension for AdaTerm and RobustAdamW, and totals over the tensor for the t-family, as they
    are published. A distance that is not finite means that the gradient was excluded; its trust is 0.
    """

    distance: Array
    trust: Array
    dof: Array


def direct(gradient: Array, parameter: Array, sign: Array, weight_decay: Array, adds_decay: bool) -> Array:
    """The gradient as a rule sees it: with its sign (and GradScaler's scale undone), and with L2 decay."""
    gradient = gradient * sign
    return shift(gradient, parameter, weight_decay) if adds_decay else gradient


def shrinkage(pace: Array) -> Array:
    """The part of a parameter that decoupled decay takes away, rounded as AdamW's factor 1 - lr * weight_decay is."""
    return 1.0 - (1.0 - pace.lr * pace.weight_decay)


def granted(amount: float, distance: Array) -> Array:
    """The amount for every tensor with a finite distance, and nothing for the others: their gradients are excluded."""
    return where(distance < inf, amount + 0.0 * distance, 0.0)


def surprise(gradient: Array, mean: Array, scale: Array) -> Array:
    """Gauge: the squared deviation in units of the scale; its mean over the tensor is the distance D (Alg. 1)."""
    return square(gradient - mean) / scale


def residual(gradient: Array, mean: Array, valid: Array) -> Array:
    """Move: the gradient's deviation from the mean; zero for an excluded gradient, so that nothing follows it."""
    return where(valid > 0.0, gradient - mean, 0.0)


def gaussian(scale: Array, squared: Array, rate: Array, floor: float) -> Array:
    """v + tau (s + eps^2 - v), a moving average: the limit of infinite dof (section 4.3) and the t-family's scale."""
    return shift(scale, squared - scale + floor, rate)


def t_descend(parameter: Array, mean: Array, scale: Array, step_size: Array, correction: Array, eps: float) -> Array:
    """theta - alpha (m / c1) / (sqrt(v / c2) + eps), the step of Adam (section 2.2); the step size is alpha / c1."""
    return shift(parameter, mean / (sqrt(ratio(scale, correction)) + eps), -step_size)
