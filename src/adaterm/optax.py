"""The same optimizers for JAX: Optax's gradient transformations over the same equations.

    from adaterm.optax import robust_adamw
    optimizer = robust_adamw(3e-4, weight_decay=0.1)

The elements of a tensor meet in sums, which XLA takes over all devices that share it. What is one number for a tensor
lies in vectors, in the order of `jax.tree.leaves(params)`, and is computed at once for all of them.
"""

from collections.abc import Callable
from copy import copy
from dataclasses import fields, replace
from inspect import Parameter, Signature
from math import inf
from operator import index
from typing import Any, NamedTuple

from adaterm import rules
from adaterm.binding import stages_of
from adaterm.checks import Basics, is_number, require_number
from adaterm.equations import BatchStatistics, Notes, Pace, Size, Statistics, Totals
from adaterm.rules import Rule, measure, name_scalars

try:
    import jax
    import jax.numpy as jnp
    import numpy
    import optax

    from adaterm.jax_primitives import JAX, add_up_rest, hand_out, push, round_stochastically
except ImportError as error:
    raise ImportError("adaterm.optax needs JAX and Optax: pip install 'adaterm[jax]'") from error

__all__ = [
    "RoundingState",
    "RuleState",
    "adaterm",
    "at_adabelief",
    "at_adam",
    "robust_adamw",
    "round_updates",
    "scale_by_adaterm",
    "scale_by_robust_adam",
    "scale_by_rule",
    "t_adabelief",
    "t_adam",
]
_LARGEST_DOF = 1e30  # stands for infinity where the dof are an array: `rules` allows none that is larger
_NEEDS_PARAMS = "{} needs the parameters: call update(gradients, state, params)"
_UNLIKE_PARAMS = (
    "the gradients are not a tree like the parameters that init was given. If a parameter has no gradient, give it "
    "zeros in place of None, or leave it out with optax.masked"
)
_MUST_KNOW = "init must know {}: call it outside of jit, or name this in the static_args of optax.inject_hyperparams"
_UNKNOWN = (jax.errors.ConcretizationTypeError, jax.errors.TracerIntegerConversionError)


class RuleState(NamedTuple):
    """What a rule remembers, and what it made of the last gradients.

    `mean` and `scale` are trees like the parameters. The rest has one number, or one row, for each tensor.
    """

    count: Any
    mean: Any
    scale: Any
    scalars: dict[str, Any]
    windows: Any  # the last log-distances of each tensor; None if the rule has no windows
    history: Any  # what was noted of the last batches; likewise
    statistics: Statistics  # of the last step; 0 before the first
    batch: BatchStatistics | None  # likewise; level and z-score are 0 as long as nothing is usual


class RoundingState(NamedTuple):
    """The number of steps, by which roundings differ."""

    count: Any


def scale_by_rule(
    rule: Rule, basics: Basics | None = None, mask: Any = None, learning_rate: Any = None, **arrays: Any
) -> Any:
    """The steps of a rule; without a learning rate uphill and for 1: chain it with `optax.scale_by_learning_rate`.

    The rate is a number or a schedule. The decay is that of `basics`, whose own rate is not used. `mask`, a tree or a
    function of the parameters, chooses which tensors decay; without it all do. `arrays` are options of the rule, or
    `weight_decay`, whose values may change from step to step.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax
        >>> from adaterm.optax import scale_by_rule
        >>> from adaterm.rules import ADATERM
        >>> optimizer = optax.chain(scale_by_rule(ADATERM), optax.scale_by_learning_rate(1e-3))
        >>> params = {"weight": jnp.ones(3)}
        >>> state = optimizer.init(params)
        >>> updates, state = optimizer.update({"weight": jnp.ones(3)}, state, params)
        >>> bool((updates["weight"] < 0).all())
        True
    """
    basics = basics or Basics()
    decay = arrays.pop("weight_decay", basics.weight_decay)
    _check_arrays(basics, {"weight_decay": decay})
    _check_arrays(rule, arrays)
    decays = not is_number(decay) or decay > 0.0
    adds, shrinks = decays and not basics.decoupled_weight_decay, decays and basics.decoupled_weight_decay
    sign, uphill = -1.0 if basics.maximize else 1.0, learning_rate is None
    given, flags, stages = _with_arrays(rule, arrays), rule.flags, stages_of(rule.family, JAX)
    numbers: Any = given.numbers

    def init(params: Any) -> RuleState:
        try:
            return _begin(given, params)
        except _UNKNOWN:
            unknown = [name for name in arrays if not _can_begin(_with_arrays(rule, {name: arrays[name]}), params)]
            raise TypeError(_MUST_KNOW.format(", ".join(unknown))) from None

    def update(updates: Any, state: RuleState, params: Any = None) -> tuple[Any, RuleState]:
        if decays and params is None:
            raise ValueError(_NEEDS_PARAMS.format("weight_decay"))
        gradients, tree = jax.tree.flatten(updates)
        try:
            means, scales = tree.flatten_up_to(state.mean), tree.flatten_up_to(state.scale)
        except ValueError as error:
            raise ValueError(_UNLIKE_PARAMS) from error
        if not gradients:
            return updates, state
        parameters = tree.flatten_up_to(params) if decays else means  # which then are not used
        parameters = [jnp.asarray(each, mean.dtype) for each, mean in zip(parameters, means, strict=True)]
        chosen = tree.flatten_up_to(_spread_mask(mask, params)) if decays else [False] * len(means)
        gradients = [
            JAX.direct(jnp.asarray(gradient, mean.dtype), parameter, sign, decay, adds and one)
            for gradient, mean, parameter, one in zip(gradients, means, parameters, chosen, strict=True)
        ]
        if rule.init_scale == "gradient":
            scales = jax.lax.cond(state.count == 0, _begin_scales, lambda kept, *_: kept, scales, gradients, numbers)
        zeros = jnp.zeros_like(state.statistics.distance)
        scalars = rule.Scalars(*(state.scalars.get(name, zeros) for name in rule.Scalars._fields))
        begun = []
        for place, (gradient, mean, scale) in enumerate(zip(gradients, means, scales, strict=True)):
            own = rule.Scalars(*(values[place].astype(mean.dtype) for values in scalars))
            begun.append(stages.gauge(gradient, mean, scale, own, numbers, flags)[: rule.sum_count])
        sums = add_up_rest(begun)
        sizes = Size(*numpy.array([measure(mean.size, rule.needs_trigamma) for mean in means], zeros.dtype).T)
        batch, judged, history = None, None, state.history
        if rule.window:
            totals = Totals(*(jnp.sum(values) for values in stages.summarize(sums, sizes, flags)))
            missing = len(Notes._fields) - len(history)  # of a state of an older version, which had fewer notes
            history = jnp.pad(history, ((0, missing), (0, 0)), constant_values=inf) if missing else history
            batch, judged, notes = stages.judge(totals, *history, numbers._replace(window=history.shape[-1]), flags)
            judged = BatchStatistics(*(jnp.where(value == value, value, 0.0) for value in judged))
            history = push(history, jnp.stack(notes))
        count = optax.safe_increment(state.count)
        rate = learning_rate(state.count) if callable(learning_rate) else 1.0 if uphill else learning_rate
        pace = Pace(rate, decay, count.astype(zeros.dtype))
        weighed = stages.weigh(sums, sizes, scalars, state.windows, batch, pace, numbers, flags)
        rates, scalars, note, statistics = weighed
        rows = hand_out(_spread(rates, zeros), means)
        moved = []
        for place, (gradient, mean, scale) in enumerate(zip(gradients, means, scales, strict=True)):
            own = rule.Rates(*rows[place].astype(mean.dtype))
            start = -own.shrinkage * parameters[place] if shrinks and chosen[place] else 0.0
            moved.append(stages.move(gradient, mean, scale, start, own, numbers, flags))
        mean, scale, steps = (tree.unflatten(column) for column in zip(*moved, strict=True))
        kept = {name: getattr(scalars, name).astype(zeros.dtype) for name in state.scalars}
        windows = push(state.windows, note) if rule.window else None
        following = RuleState(count, mean, scale, kept, windows, history, _spread(statistics, zeros), judged)
        return jax.tree.map(jnp.negative, steps) if uphill else steps, following

    return optax.with_extra_args_support(optax.GradientTransformation(init, update))


def _with_arrays(rule: Rule, arrays: dict[str, Any]) -> Rule:
    """A rule some of whose options are arrays."""
    rule = copy(rule)
    for name, value in arrays.items():
        object.__setattr__(rule, name, jnp.minimum(value, _LARGEST_DOF) if name in ("dof", "min_dof") else value)
    return rule


def _check_arrays(options: Any, arrays: dict[str, Any]) -> None:
    """Raise if an array is not possible as an option. Under jit that cannot be known."""
    known = {name: value for name, value in arrays.items() if not isinstance(value, jax.core.Tracer)}
    replace(options, **{name: _read(value) for name, value in known.items()})


def _read(value: Any) -> Any:
    """The number in an array that holds a single one; anything else as it is."""
    return value.item() if isinstance(value, jax.Array) and value.size == 1 else value


def _can_begin(rule: Rule, params: Any) -> bool:
    try:
        return bool(_begin(rule, params))
    except _UNKNOWN:
        return False


def _begin(rule: Rule, params: Any) -> RuleState:
    """The state before the first step: in float32 at least, whatever the precision of the parameters."""

    def widen(*leaves: Any) -> Any:
        return jnp.result_type(jnp.float32, *map(jnp.result_type, leaves))

    leaves = jax.tree.leaves(params)
    for dtype in map(jnp.result_type, leaves):
        if not jnp.issubdtype(dtype, jnp.floating):
            raise TypeError(
                f"a parameter of {dtype} cannot be stepped: leave it out with optax.masked or, if it is complex, "
                "wrap the optimizer in optax.contrib.split_real_and_imaginary"
            )
    wide = widen(*leaves)

    def fill(value: float) -> Any:
        return jax.tree.map(lambda leaf: jnp.full_like(leaf, value, widen(leaf)), params)

    beginnings = [rule.initial_scalars(measure(numpy.size(leaf))) for leaf in leaves]
    scalars = {name: jnp.asarray([each[name] for each in beginnings], wide) for name in name_scalars(rule)}
    windows, history = (jnp.full((rows, index(rule.window)), inf, wide) for rows in (len(leaves), len(Notes._fields)))
    state = RuleState(
        jnp.zeros((), jnp.int32),
        fill(0.0),
        fill(rule.initial_scale),
        scalars,
        windows,
        history,
        Statistics(*(jnp.zeros(len(leaves), wide) for _ in Statistics._fields)),
        BatchStatistics(*(jnp.zeros((), wide) for _ in BatchStatistics._fields)),
    )
    return state if rule.window else state._replace(windows=None, history=None, batch=None)


def _begin_scales(scales: list[Any], gradients: list[Any], numbers: Any) -> list[Any]:
    """The mean squares of the first gradients, where they are finite."""
    powers = [jnp.mean(jnp.square(gradient)) for gradient in gradients]
    return [
        jnp.full_like(scale, jnp.maximum(jnp.where(power < inf, power, 0.0), numbers.floor))
        for power, scale in zip(powers, scales, strict=True)
    ]


def _spread_mask(mask: Any, params: Any) -> Any:
    """Whether a tensor decays, for each of the parameters."""
    chosen = True if mask is None else mask(params) if callable(mask) else mask
    return jax.tree.map(lambda choice, below: jax.tree.map(lambda _: choice, below), chosen, params)


def _spread(values: Any, like: Any) -> Any:
    """One number for each tensor, also where all have the same."""
    return type(values)(*(jnp.broadcast_to(jnp.asarray(value, like.dtype), like.shape) for value in values))


def round_updates() -> Any:
    """Change updates so that bfloat16 parameters are rounded up or down by chance; as the last of a chain.

    The noise is that of torch's optimizers here: it depends on the element, its tensor's position and the step.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax
        >>> from adaterm.optax import round_updates
        >>> rounding = round_updates()
        >>> params = jnp.ones(1000, jnp.bfloat16)
        >>> updates, _ = rounding.update(jnp.full(1000, 1e-3), rounding.init(params), params)
        >>> bool((optax.apply_updates(params, updates) > 1).any())  # a plain sum would lose all of them
        True
    """

    def update(updates: Any, state: RoundingState, params: Any = None) -> tuple[Any, RoundingState]:
        if params is None:
            raise ValueError(_NEEDS_PARAMS.format("stochastic rounding"))
        leaves, tree = jax.tree.flatten(updates)
        count = optax.safe_increment(state.count)
        rounded = [
            round_stochastically(position, update, parameter, count)
            if jnp.result_type(parameter) == jnp.bfloat16
            else update
            for position, (update, parameter) in enumerate(zip(leaves, tree.flatten_up_to(params), strict=True))
        ]
        return tree.unflatten(rounded), RoundingState(count)

    rounding = optax.GradientTransformation(lambda params: RoundingState(jnp.zeros((), jnp.int32)), update)
    return optax.with_extra_args_support(rounding)


def _define(
    name: str, template: Rule, summary: str, fixed: tuple[str, ...] = (), basics: Basics | None = None
) -> Callable[..., Any]:
    """A function that makes an optimizer of a rule; options and defaults are those of the rule and the basics.

    Those in `fixed` are not offered.
    """
    basics = basics or Basics()
    of_rule = [field.name for field in fields(template) if field.name not in fixed]
    of_basics = [field.name for field in fields(Basics)[1:]]  # the first is the rate
    values = {each: getattr(template, each) for each in of_rule} | {each: getattr(basics, each) for each in of_basics}
    defaults = {"learning_rate": basics.lr, **values, "mask": None}
    in_order, rated = ("learning_rate", *of_rule[:2], "weight_decay"), "learning_rate" not in fixed
    kinds = {True: Parameter.POSITIONAL_OR_KEYWORD, False: Parameter.KEYWORD_ONLY}
    offered = [each for each in dict.fromkeys((*in_order, *defaults)) if each not in fixed]
    signature = Signature([Parameter(each, kinds[each in in_order], default=defaults[each]) for each in offered])

    def make(*args: Any, **kwargs: Any) -> Any:
        try:
            options = defaults | signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            advice = "pass learning_rate" if rated else "scale the steps with optax.scale_by_learning_rate"
            raise TypeError(f"{name}: {error}" + f"; {advice}" * ("lr" in kwargs)) from None
        rate = options["learning_rate"] if rated else None
        if rated and not isinstance(rate, jax.core.Tracer) and not callable(rate):
            allowed = "a non-negative number, by itself or in an array, or a schedule"
            require_number("learning_rate", _read(rate), 0.0, inf, allowed)
        arrays = {
            each: options.pop(each) for each in (*of_rule, "weight_decay") if isinstance(options[each], jax.Array)
        }
        if "max_norm" in arrays:
            options["max_norm"] = inf  # so that gradients are clipped
        rule = replace(template, **{each: options[each] for each in of_rule if each in options})
        chosen = Basics(**{each: options[each] for each in of_basics if each in options})
        steps = scale_by_rule(rule, chosen, options["mask"], rate, **arrays)
        return optax.chain(steps, round_updates()) if chosen.stochastic_rounding else steps

    make.__name__ = make.__qualname__ = name
    make.__doc__, make.__signature__ = summary, signature  # type: ignore[attr-defined]
    return make


_STEPS = ("learning_rate", "stochastic_rounding")  # no options of steps that are scaled later
_DECAY = "decoupled_weight_decay"
adaterm = _define("adaterm", rules.ADATERM, "`adaterm.AdaTerm`, for JAX.")
robust_adamw = _define(
    "robust_adamw",
    rules.ROBUST_ADAM,
    "`adaterm.RobustAdamW`, for JAX: AdamW that notices aberrant batches.",
    (_DECAY,),
    Basics(weight_decay=1e-2, decoupled_weight_decay=True),
)
t_adam = _define("t_adam", rules.T_ADAM, "`adaterm.TAdam`, for JAX.", ("belief", "beta_dof"))
at_adam = _define("at_adam", rules.AT_ADAM, "`adaterm.AtAdam`, for JAX.", ("belief",))
t_adabelief = _define("t_adabelief", rules.T_ADABELIEF, "`adaterm.TAdaBelief`, for JAX.", ("belief", "beta_dof"))
at_adabelief = _define("at_adabelief", rules.AT_ADABELIEF, "`adaterm.AtAdaBelief`, for JAX.", ("belief",))
scale_by_adaterm = _define(
    "scale_by_adaterm", rules.ADATERM, "AdaTerm's steps for a learning rate of 1, uphill.", _STEPS
)
scale_by_robust_adam = _define(
    "scale_by_robust_adam",
    rules.ROBUST_ADAM,
    "RobustAdamW's steps and decay for a learning rate of 1, uphill.",
    (*_STEPS, _DECAY),
    Basics(decoupled_weight_decay=True),
)
