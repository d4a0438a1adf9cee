"""The equations over Python's numbers, for what is judged on the host; a window has its newest value first."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from math import inf, nan

from adaterm.binding import bind


def _count_above(window: Sequence[float], bound: float) -> int:
    above = len(window) if bound == -inf else sum(map(bound.__lt__, window))
    return above - window.count(inf)


def _quantile(ordered: list[float], share: float) -> float:
    known = bisect_left(ordered, inf)
    if not known:
        return nan
    place = share * (known - 1)
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    return low + (high - low) * (place % 1.0)


PLAIN = bind(
    {
        "exp": lambda value: math.exp(value) if value < 700.0 else inf,
        "sqrt": math.sqrt,
        "square": lambda value: value * value,
        "where": lambda condition, value, other: value if condition else other,
        "at_least": lambda value, bound: bound if value < bound else value,
        "count_above": _count_above,
        "sort": sorted,
        "quantile": _quantile,
        "newest": lambda window: window[0] if window else inf,
        "count_newest_above": lambda window, bound: next((n for n, value in enumerate(window) if value <= bound), 0),
    }
)
"""The equations on numbers."""
