"""The equations over another array library's primitives."""

from collections.abc import Callable
from types import FunctionType, SimpleNamespace
from typing import Any, NamedTuple

from adaterm import equations

Wrap = Callable[[FunctionType], Any]


class Stages(NamedTuple):
    """The stages of a family's step; only families that judge whole batches have the last two."""

    gauge: Callable[..., Any]
    weigh: Callable[..., Any]
    move: Callable[..., Any]
    summarize: Callable[..., Any]
    judge: Callable[..., Any]


def bind(primitives: dict[str, Any], wrap: Wrap = lambda equation: equation) -> SimpleNamespace:
    """Rebuild every equation so that it calls an array library's primitives (`shift`, `where`, …).

    `wrap` turns an equation into what a kernel can call. A compiler may want other constants and types as well: they
    are replaced in the same way.
    """
    # Without __name__: torch.compile would otherwise look names up in the module and find no primitives there.
    scope = {name: value for name, value in vars(equations).items() if name != "__name__"} | primitives
    for name, function in vars(equations).items():
        is_equation = isinstance(function, FunctionType) and function.__module__.startswith(equations.__name__)
        if is_equation and name not in primitives:
            if function.__defaults__ or function.__closure__:
                raise TypeError(f"{name} cannot be rebuilt: an equation has neither defaults nor a closure")
            scope[name] = wrap(FunctionType(function.__code__, scope, name))
    return SimpleNamespace(**scope)


def stages_of(family: str, library: Any) -> Stages:
    """The stages of a family of rules, over a library that was bound."""
    return Stages(*(getattr(library, f"{family}_{stage}", None) for stage in Stages._fields))  # type: ignore[arg-type]
