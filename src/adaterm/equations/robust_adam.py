"""RobustAdamW: AdamW that notices aberrant batches."""

from math import inf, nan
from typing import NamedTuple

from adaterm.equations.primitives import (
    Array,
    Statistics,
    add_up,
    at_least,
    count_above,
    count_newest_above,
    exp,
    granted,
    log,
    newest,
    quantile,
    ratio,
    residual,
    scaled,
    shift,
    sort,
    sqrt,
    square,
    t_descend,
    where,
)

ENOUGH = 10  # values that a window must have before it tells what is usual; to exclude batches it must be full

LEAST_SPREAD = 0.35  # of levels: with a threshold of 3, none is excluded whose distance is below e times the usual

ROW = 7  # aberrant batches, after which one is taken: only a move shows whether the batches are bad, or the place

NEARLY = 0.75  # of the threshold, from which on batches count for a minority

MEMORY = 4  # windows, over which the share of such batches is taken: one window's share scatters too much

BELOW = 0.159  # the share of a Gaussian that lies more than a standard deviation below its mean


class RobustAdamNumbers(NamedTuple):
    """The numbers of RobustAdamW's options."""

    beta1: Array
    beta2: Array
    eps: Array
    dof: Array
    threshold: Array
    minority: Array
    max_norm: Array
    window: Array


class RobustAdamFlags(NamedTuple):
    """RobustAdamW's switches: weights for each tensor, scaled gradients, and clipping at the usual norm.

    Gradients are scaled if they are clipped, or if batches are judged.
    """

    weighs: bool
    scales: bool
    follows: bool


class RobustAdamScalars(NamedTuple):
    """A tensor's state beside mean and scale: c1 and c2, the moving averages of ones by which both are corrected."""

    mean_correction: Array
    scale_correction: Array


class RobustAdamRates(NamedTuple):
    """What RobustAdamW moves a tensor with."""

    valid: Array
    rate: Array
    scale_rate: Array
    step_size: Array
    correction: Array
    shrinkage: Array
    clip: Array


class Totals(NamedTuple):
    """Sums over all tensors: their log-distances and how many have one, squared gradients, and finite gradients."""

    log_distance: Array
    known: Array
    squares: Array
    valid: Array


class Batch(NamedTuple):
    """The judgement of a batch: the trust x in it, and what its gradients are multiplied with.

    Once a minority is accepted, the excess is by how much its level exceeds the usual one and its spread.
    """

    trust: Array
    clip: Array
    excess: Array


class BatchStatistics(NamedTuple):
    """What a step made of its batch.

    The level is the mean log-distance of all tensors; the z-score says how far that lies above the usual level, in
    units of the usual spread, and is NaN as long as nothing is usual; the trust is the probability that the batch
    belongs to the usual ones, in units of that of the usual level.
    """

    level: Array
    zscore: Array
    trust: Array


class Notes(NamedTuple):
    """What is to be remembered of a batch; infinite if there is nothing.

    Its level, the norm of its gradients, and how many batches were far away, of how many, up to now.
    """

    level: Array
    norm: Array
    far: Array
    count: Array


def positive(value: Array) -> Array:
    """The value, or 1 in place of 0, so that it can be divided by, or its logarithm taken, before `where` decides."""
    return where(value > 0.0, value, 1.0)


def farness(sums: Array, size: Array) -> Array:
    """Finite if the distances are; a tensor whose v is 0 has none, and needs no more than a finite gradient."""
    return where(sums[2] > 0.0, sums[0] / size.count + sums[1] / positive(sums[2]), sums[1])


def log_distance(sums: Array, size: Array) -> Array:
    """lambda = (ln D_e + ln D_n) / 2; infinite if there is none."""
    value = 0.5 * (log(positive(sums[0] / size.count)) + log(positive(sums[1])) - log(positive(sums[2])))
    least = where(sums[0] < sums[1], sums[0], sums[1])
    least = where(sums[2] < least, sums[2], least)
    return where(least > 0.0, where(farness(sums, size) < inf, value, inf), inf)


def robust_adam_gauge(
    g: Array, mean: Array, scale: Array, scalars: Array, numbers: Array, flags: Array
) -> tuple[Array, Array, Array, Array]:
    """The sums of (g - m)^2 / (sqrt(v / c2) + eps)^2, of (g - m)^2, of v / c2 and of g^2."""
    expected = ratio(scale, positive(scalars.scale_correction))
    squared = square(g - mean)
    deviation = add_up(squared)
    variance = add_up(expected)
    distance = add_up(squared / square(sqrt(expected) + numbers.eps))
    return distance, deviation, variance, add_up(square(g))


def robust_adam_summarize(sums: Array, size: Array, flags: Array) -> Totals:
    """What a tensor contributes to the judgement of the batch."""
    note = log_distance(sums, size)
    valid = granted(1.0, farness(sums, size))
    return Totals(where(note < inf, note, 0.0), granted(1.0, note), where(valid > 0.0, sums[3], 0.0), valid)


def robust_adam_judge(
    totals: Array, levels: Array, norms: Array, fars: Array, counts: Array, numbers: Array, flags: Array
) -> tuple[Batch, BatchStatistics, Notes]:
    """The judgement of a batch, what to report and what to remember, by the windows of what was noted.

    The spread is that of the lower side, which bad batches do not touch. Where a minority of all batches lies near the
    threshold or beyond, it is a kind of its own: the bound includes all of it, and its gradients are scaled down to
    nearly the usual size. After a row of aberrant batches one is taken. Until a window is full every batch is: early on
    levels rise so much when the direction turns that ordinary batches would be excluded, one after the other.
    """
    level = where(totals.known > 0.0, totals.log_distance / positive(totals.known), nan)
    known = count_above(levels, -inf)
    full = known >= numbers.window
    ordered = sort(levels)
    usual = where(known >= ENOUGH, quantile(ordered, 0.5), 0.0)
    spread = where(known >= ENOUGH, at_least(usual - quantile(ordered, BELOW), LEAST_SPREAD), 1.0)
    zscore = (level - usual) / spread
    before = where(newest(counts) < inf, newest(counts), 0.0)
    count = where(before + 1.0 < MEMORY * numbers.window, before + 1.0, MEMORY * numbers.window)
    is_far = where(level > usual + NEARLY * numbers.threshold * spread, 1.0, 0.0)
    far = where(before > 0.0, newest(fars), 0.0) * ((count - 1.0) / positive(before)) + is_far
    minority = where(count >= numbers.window, numbers.minority * count, inf)
    widened = where(far >= minority, (quantile(ordered, 1.0) - usual) / spread + 1.0, 0.0)
    bound = where(widened > numbers.threshold, widened, numbers.threshold)
    belongs = (1.0 + exp(-0.5 * square(bound))) / (1.0 + exp(0.5 * (square(at_least(zscore, 0.0)) - square(bound))))
    row = count_newest_above(levels, usual + bound * spread)
    belongs = where(row % (ROW + 1) == ROW, 1.0, belongs)
    trust = where(full, where(level == level, belongs, 1.0), 1.0)
    trust = where(totals.valid > 0.0, trust, 0.0)
    excess = where(level - usual > spread, level - usual - spread, 0.0)
    excess = where(full, where(widened > numbers.threshold, excess, 0.0), 0.0)
    zscore = where(known >= ENOUGH, zscore, nan)
    norm = where(totals.squares > 0.0, sqrt(positive(totals.squares)), 0.0)
    limit = numbers.max_norm
    if flags.follows:
        limit = where(count_above(norms, -inf) >= ENOUGH, quantile(sort(norms), 0.5), inf)
    shrinks = exp(-0.5 * excess)
    over = (shrinks * norm + 1e-6) / limit
    clip = shrinks / where(over > 1.0, over, 1.0)
    note = where(level == level, level, inf)
    judged = where(full, note, inf) < inf
    noted_norm = where(totals.valid > 0.0, norm, inf)
    notes = Notes(note, noted_norm, where(judged, far, inf), where(judged, count, inf))
    return Batch(trust, clip, excess), BatchStatistics(level, zscore, trust), notes


def robust_adam_weigh(
    sums: Array, size: Array, scalars: Array, window: Array, batch: Array, pace: Array, numbers: Array, flags: Array
) -> tuple[Array, Array, Array, Array]:
    """Rates, the next scalars, the log-distance to note, and what to report.

    Without trust nothing moves: neither if the batch has none nor if the tensor has none. A gradient that lies no
    further from its mean than its scale says is ordinary, however near the last ones were.
    """
    note = log_distance(sums, size)
    far = farness(sums, size)
    valid = granted(1.0, far)
    weight = valid
    if flags.weighs:
        usual = at_least(quantile(sort(window), 0.5), 0.0) + batch.excess
        usual = where(count_above(window, -inf) >= ENOUGH, usual, note)
        weight = where(note < inf, (numbers.dof + 1.0) / (numbers.dof + exp(note - usual)), valid)
    rate = (1.0 - numbers.beta1) * batch.trust * weight
    rate = where(rate < 1.0, rate, 1.0)
    scale_rate = (1.0 - numbers.beta2) * batch.trust * weight
    scale_rate = where(scale_rate < 1.0, scale_rate, 1.0)
    mean_correction = shift(scalars.mean_correction, 1.0 - scalars.mean_correction, rate)
    scale_correction = shift(scalars.scale_correction, 1.0 - scalars.scale_correction, scale_rate)
    trust = batch.trust * where(weight < 1.0, weight, valid)
    moves = pace.lr * trust
    shrinks = 1.0 - (1.0 - moves * pace.weight_decay)
    step_size, correction = moves / positive(mean_correction), positive(scale_correction)
    rates = RobustAdamRates(valid, rate, scale_rate, step_size, correction, shrinks, batch.clip)
    distance = where(note < inf, exp(note), where(valid > 0.0, 0.0 * valid, inf))
    statistics = Statistics(distance, trust, numbers.dof + 0.0 * valid)
    return rates, RobustAdamScalars(mean_correction, scale_correction), note, statistics


def robust_adam_move(
    gradient: Array, mean: Array, scale: Array, parameter: Array, rates: Array, numbers: Array, flags: Array
) -> tuple[Array, Array, Array]:
    """The next mean, scale and parameter; gradients are clipped after they were gauged, which hides no evidence."""
    clipped = scaled(gradient, rates.clip) if flags.scales else gradient
    mean = shift(mean, residual(clipped, mean, rates.valid), rates.rate)
    clipped = scaled(gradient, rates.clip) if flags.scales else gradient  # again: the first may have been used up
    scale = shift(scale, square(where(rates.valid > 0.0, clipped, 0.0)) - scale, rates.scale_rate)
    return mean, scale, t_descend(parameter, mean, scale, rates.step_size, rates.correction, numbers.eps)
