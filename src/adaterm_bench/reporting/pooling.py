"""Comparisons of methods over several levels at once, such as noise levels: one number for each seed.

The worst of many levels is no estimate of anything: of two equal methods it finds one or the other ahead more often
than its level says, and never shows that they are on par. A pooled ratio is one comparison.
"""

from dataclasses import replace
from math import inf, log, nan

import numpy as np
from numpy.typing import ArrayLike

from adaterm_bench.reporting.intervals import Bootstrap, Interval
from adaterm_bench.reporting.pairs import log_ratios
from adaterm_bench.reporting.statistics import USUAL, Better, diverged, mean


def pooled_ratio(
    first: ArrayLike, second: ArrayLike, *, better: Better = "lower", bootstrap: Bootstrap = USUAL
) -> Interval:
    """The first's results over the second's, of (levels × seeds): the geometric mean over levels and seeds.

    Seeds are drawn with all their levels, so that the interval is of as many numbers as there are seeds. Results must
    be above 0; with one level it is that level's ratio.
    """
    apart = np.atleast_2d(log_ratios(first, second, better))
    with np.errstate(invalid="ignore"):
        rows = apart.mean(0, keepdims=True)
    logs = replace(bootstrap, against=log(bootstrap.against) if bootstrap.against > 0.0 else nan)
    interval = logs(rows, lambda drawn: mean(drawn[0]))
    estimate, low, high = (float(np.exp(value)) for value in interval[:3])
    if (interval.low, interval.high) == (-inf, inf):
        low = -inf
    return interval._replace(estimate=estimate, low=low, high=high, diverged=diverged(first) + diverged(second))
