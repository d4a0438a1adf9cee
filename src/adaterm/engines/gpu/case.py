"""What kernels are compiled for, and the equations as functions that they can call."""

import hashlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from adaterm import equations
from adaterm.binding import bind, stages_of
from adaterm.engines import layout
from adaterm.engines.base import Block
from adaterm.equations import Size
from adaterm.rules import RuleKind, kind_of

TYPES = {getattr(torch, name): getattr(tl, name) for name in ("float32", "float64", "bfloat16", "float16")}


# Primitives are functions of ours, not aliases of Triton's: its interpreter replaces `tl.where` and the like in place.


@triton.jit
def where(condition, value, other):
    return tl.where(condition, value, other)


@triton.jit
def log(value):
    return tl.log(value)


@triton.jit
def square(value):
    return value * value


@triton.jit
def power(base, exponent):
    return tl.exp(exponent * tl.log(base))


@triton.jit
def at_least(value, bound):
    exact = bound * (value == value).to(value.dtype)  # a bare number would be rounded to a float32
    return tl.maximum(value, exact, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def sqrt(value):
    if value.dtype == tl.float64:
        return tl.sqrt(value)
    else:
        return tl.sqrt_rn(value)


def _compile_equations() -> Any:
    """The equations as functions that a kernel can call; an option that is a bool is decided when it is compiled."""
    primitives = {f.__name__: f for f in (where, log, square, power, at_least, sqrt)}
    constants = {name: tl.constexpr(getattr(equations, name)) for name in ("inf", "TINY", "LARGEST_DOF_WEIGHT")}
    types = {"Array": tl.constexpr(None), "Any": tl.constexpr(None), "bool": tl.constexpr}
    return bind({**primitives, **constants, **types, "tl": tl, "__name__": __name__}, triton.jit)


# The stages of a family, on plain tuples; it is compiled with its own functions and types in place of these.
family_gauge = family_weigh = family_move = Numbers = Scalars = Rates = None


def _gauge(gradient, mean, scale, scalars, numbers, flags):
    return family_gauge(gradient, mean, scale, Scalars(*scalars), Numbers(*numbers), flags)


def _weigh(sums, size, scalars, lr, step, numbers, flags):
    return family_weigh(sums, Size(*size), Scalars(*scalars), lr, step, Numbers(*numbers), flags)


def _move(gradient, mean, scale, parameter, rates, numbers, flags):
    return family_move(gradient, mean, scale, parameter, Rates(*rates), Numbers(*numbers), flags)


def compile_function(function: Callable[..., Any], scope: dict[str, Any]) -> Any:
    """A function of Python's as one of Triton's, with these names in place of its module's."""
    return triton.jit(FunctionType(function.__code__, {**scope, "tl": tl, "__name__": __name__}, function.__name__))


class Case(NamedTuple):
    """What a kernel is compiled for: a kind of rule, precisions and options; all that it decides without a branch."""

    gauge: Any
    weigh: Any
    move: Any
    flags: Any
    sum_count: int
    number_count: int
    scalar_count: int
    rate_count: int
    head: int  # numbers before the table's rows
    row: int  # columns of a row
    version: str  # of the equations, which Triton's cache on disk would not notice behind the names of functions
    present: tuple[bool, ...]  # which of the family's scalars the rule has
    state: Any
    parameter: Any
    gradient: Any
    adds_decay: bool
    shrinks: bool
    stochastic: bool
    overlap: bool
    aligned: bool = False
    lr_tensor: bool = False
    scaled: bool = False
    found: bool = False
    leaves_sums: bool = False  # because they are to be agreed


@lru_cache
def compile_family(rule: RuleKind) -> tuple[Any, ...]:
    """The first fields of a case: the stages of a family of rules, and how many numbers go in and out of them."""
    scope = {"Numbers": rule.numbers, "Scalars": rule.scalars, "Rates": rule.rates, "Size": Size}
    scope |= {f"family_{name}": stage for name, stage in stages_of(rule.family, EQUATIONS)._asdict().items()}
    stages = [compile_function(stage, scope) for stage in (_gauge, _weigh, _move)]
    counts = [len(kind._fields) for kind in (rule.numbers, rule.scalars, rule.rates)]
    head, row = layout.SHARED_NUMBERS + counts[0], layout.SHARED_COLUMNS + counts[1]
    version = hashlib.sha256(Path(equations.__file__).read_bytes()).hexdigest()
    return (*stages, rule.flags, rule.sum_count, *counts, head, row, version)


EQUATIONS = _compile_equations()


def describe_case(block: Block) -> Case:
    """The case of a block; what may be another in every step is left open."""
    rule, options, mean = block.rule, block.options, block.means[0]
    nvidia = mean.is_cuda and torch.version.hip is None
    return Case(
        *compile_family(kind_of(rule)),
        present=tuple(name in block.scalars for name in rule.Scalars._fields),
        state=TYPES[mean.dtype],
        parameter=TYPES[block.params[0].dtype],
        gradient=TYPES[block.grads[0].dtype],
        adds_decay=options.adds_decay,
        shrinks=options.shrinks,
        stochastic=options.stochastic_rounding and block.params[0].dtype == torch.bfloat16,
        # Hopper and later can start a kernel's programs before all of the last kernel's have ended.
        overlap=nvidia and torch.cuda.get_device_capability(mean.device) >= (9, 0),
    )
