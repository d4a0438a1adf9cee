"""The equations over Numba: its primitives, and what `bind` makes of them."""

from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np
from numba import njit

from adaterm.binding import bind
from adaterm.engines.cpu.intrinsics import cast


def inline(function: Callable[..., Any]) -> Any:
    """A function that becomes part of those that call it, before they are compiled."""
    return njit(error_model="numpy", inline="always")(function)


def insert(function: Callable[..., Any]) -> Any:
    """As `inline`, but after it was compiled, once for all that it becomes part of, and for precise numbers only."""
    return njit(error_model="numpy", forceinline=True, fastmath=False)(function)


def _compile_equation(equation: FunctionType) -> Any:
    """What is needed for every element becomes part of the loops; what is needed once for a tensor is called."""
    once = equation.__name__.endswith(("weigh", "summarize", "judge"))
    return njit(error_model="numpy")(equation) if once else insert(equation)


@njit(error_model="numpy")
def _count_above(window, bound):
    count = 0.0
    for value in window:
        if bound < value < np.inf:
            count += 1.0
    return count


@njit(error_model="numpy")
def _quantile(ordered, share):
    place = share * max(_count_above(ordered, -np.inf) - 1.0, 0.0)
    low = np.float64(ordered[int(place)])
    return low + (place - np.floor(place)) * (np.float64(ordered[int(np.ceil(place))]) - low)


@njit(error_model="numpy")
def _sort(window):
    """A sorted copy, by Shell's method, which takes a fraction of the time to compile that NumPy's takes."""
    ordered, gap = window.copy(), len(window) // 2
    while gap > 0:
        for end in range(gap, len(ordered)):
            value, place = ordered[end], end
            while place >= gap and ordered[place - gap] > value:
                ordered[place] = ordered[place - gap]
                place -= gap
            ordered[place] = value
        gap = 1 if gap == 2 else int(gap / 2.2)
    return ordered


@njit(error_model="numpy")
def _count_newest_above(window, bound):
    for place, value in enumerate(window):
        if value <= bound:
            return place
    return 0


_ELEMENTWISE = {
    "where": lambda condition, value, other: value if condition else cast(other, value),
    "at_least": lambda value, bound: cast(bound, value) if value < bound else value,
    "ratio": lambda value, number: value * (cast(1.0, number) / number),
    "square": lambda value: value * value,
    "sqrt": lambda value: np.sqrt(value),
    "log": lambda value: np.log(value),
    "exp": lambda value: np.exp(value),
    "add_up": lambda terms: terms,
}
_WINDOWS = {
    "count_above": _count_above,
    "sort": _sort,
    "quantile": _quantile,
    "count_newest_above": _count_newest_above,
    "newest": njit(lambda window: np.float64(window[0])),
}
GAUGES = bind({name: inline(primitive) for name, primitive in _ELEMENTWISE.items()} | {"__name__": __name__}, inline)
EQUATIONS = bind(
    {name: insert(primitive) for name, primitive in _ELEMENTWISE.items()} | _WINDOWS | {"__name__": __name__},
    _compile_equation,
)
