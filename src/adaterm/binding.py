"""The equations over another array library's primitives."""

from collections.abc import Callable
from types import FunctionType, SimpleNamespace
from typing import Any

from adaterm import equations


def bind(**primitives: Callable[..., Any]) -> SimpleNamespace:
    """Rebuild every equation so that it calls the given primitives (`shift`, `where`, …) in place of torch's."""
    # Without __name__: torch.compile would otherwise look names up in the module and find torch's primitives there.
    scope = {name: value for name, value in vars(equations).items() if name != "__name__"} | primitives
    for name, function in vars(equations).items():
        if isinstance(function, FunctionType) and name not in primitives:
            if function.__defaults__ or function.__closure__:
                raise TypeError(f"{name} cannot be rebuilt: an equation has neither defaults nor a closure")
            scope[name] = FunctionType(function.__code__, scope, name)
    return SimpleNamespace(**scope)
