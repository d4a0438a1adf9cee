"""What kernels are compiled for, and the equations as functions that they can call."""

from collections.abc import Callable
from functools import lru_cache
from types import FunctionType
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from adaterm import equations
from adaterm.binding import bind, stages_of
from adaterm.engines import layout
from adaterm.engines.base import Block
from adaterm.engines.fused import fingerprint
from adaterm.equations import Batch, Pace, Size, Totals
from adaterm.rules import RuleKind, kind_of

inf = tl.constexpr(float("inf"))
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
def exp(value):
    return tl.exp(value)


@triton.jit
def add_up(terms):
    return terms


@triton.jit
def count_above(window, bound):
    return tl.sum(((window > bound) & (window < inf)).to(tl.float64))


@triton.jit
def sort(window):
    return tl.sort(window)


@triton.jit
def quantile(ordered, share):
    places = tl.arange(0, ordered.shape[0])
    place = share * tl.maximum(count_above(ordered, -inf) - 1.0, 0.0)
    below = tl.floor(place)
    low = tl.sum(tl.where(places == below.to(tl.int32), ordered, 0.0)).to(tl.float64)
    high = tl.sum(tl.where(places == tl.ceil(place).to(tl.int32), ordered, 0.0)).to(tl.float64)
    return low + (place - below) * (high - low)


@triton.jit
def newest(window):
    return tl.sum(tl.where(tl.arange(0, window.shape[0]) == 0, window, 0.0)).to(tl.float64)


@triton.jit
def count_newest_above(window, bound):
    return tl.min(tl.where(window > bound, window.shape[0], tl.arange(0, window.shape[0])))


@triton.jit
def sqrt(value):
    if value.dtype == tl.float64:
        return tl.sqrt(value)
    else:
        return tl.sqrt_rn(value)


def _compile_equations() -> Any:
    """The equations as functions that a kernel can call; an option that is a bool is decided when it is compiled."""
    scalars = (where, log, exp, square, power, at_least, sqrt)
    replaced = (*scalars, add_up, count_above, count_newest_above, newest, sort, quantile)
    primitives = {function.fn.__name__: function for function in replaced}
    names = ("inf", "nan", "TINY", "LARGEST_DOF_WEIGHT", "ENOUGH", "LEAST_SPREAD", "NEARLY", "MEMORY", "BELOW", "ROW")
    constants = {name: tl.constexpr(getattr(equations, name)) for name in names}
    types = {"Array": tl.constexpr(None), "Any": tl.constexpr(None), "bool": tl.constexpr}
    return bind({**primitives, **constants, **types, "tl": tl, "__name__": __name__}, triton.jit)


# The stages of a family, on plain tuples; it is compiled with its own functions and types in place of these.
family_gauge = family_weigh = family_move = family_summarize = family_judge = Numbers = Scalars = Rates = None


def _gauge(gradient, mean, scale, scalars, numbers, flags):
    return family_gauge(gradient, mean, scale, Scalars(*scalars), Numbers(*numbers), flags)


def _weigh(sums, size, scalars, window, batch, pace, numbers, flags):
    size, scalars, numbers = Size(*size), Scalars(*scalars), Numbers(*numbers)
    return family_weigh(sums, size, scalars, window, Batch(*batch), Pace(*pace), numbers, flags)


def _move(gradient, mean, scale, parameter, rates, numbers, flags):
    return family_move(gradient, mean, scale, parameter, Rates(*rates), Numbers(*numbers), flags)


def _summarize(sums, size, flags):
    return family_summarize(sums, Size(*size), flags)


def _judge(totals, windows, numbers, flags):
    return family_judge(Totals(*totals), *windows, Numbers(*numbers), flags)


def compile_function(function: Callable[..., Any], scope: dict[str, Any]) -> Any:
    """A function of Python's as one of Triton's, with these names in place of its module's."""
    return triton.jit(FunctionType(function.__code__, {**scope, "tl": tl, "__name__": __name__}, function.__name__))


class Case(NamedTuple):
    """What a kernel is compiled for: a kind of rule, precisions and options; all that it decides without a branch."""

    gauge: Any
    weigh: Any
    move: Any
    summarize: Any
    judge: Any
    flags: Any
    sum_count: int
    window: int
    number_count: int
    scalar_count: int
    rate_count: int
    shrinkage: int  # its place among the rates
    width: int  # of a window, as a power of two
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
    may_skip: bool = False  # as GradScaler says
    leaves_sums: bool = False  # because they are to be agreed
    remembers: bool = False  # the batch that it judges


@lru_cache
def compile_family(rule: RuleKind) -> tuple[Any, ...]:
    """The first fields of a case: the stages of a family of rules, and how many numbers go in and out of them."""
    scope = {"Numbers": rule.numbers, "Scalars": rule.scalars, "Rates": rule.rates}
    scope |= {"Size": Size, "Pace": Pace, "Batch": Batch, "Totals": Totals}
    scope |= {f"family_{name}": stage for name, stage in stages_of(rule.family, EQUATIONS)._asdict().items()}
    stages = [compile_function(stage, scope) for stage in (_gauge, _weigh, _move, _summarize, _judge)]
    counts = [len(kind._fields) for kind in (rule.numbers, rule.scalars, rule.rates)]
    places = rule.rates._fields.index("shrinkage"), triton.next_power_of_2(max(1, rule.window))
    table = layout.measure_table(rule)
    return (*stages, rule.flags, rule.sum_count, rule.window, *counts, *places, *table, fingerprint(equations))


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
