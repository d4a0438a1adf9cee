"""The optimizers of `adaterm.optax` by the names of the torch classes, and how they are run."""

import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed: pip install 'adaterm[jax]'")
optax = pytest.importorskip("optax", reason="Optax is not installed: pip install 'adaterm[jax]'")

import jax.numpy as jnp  # noqa: E402
import torch  # noqa: E402
from catalogue import RULES, give_gradients  # noqa: E402

from adaterm import optax as ours  # noqa: E402
from adaterm.rules import ADABELIEF  # noqa: E402


def adabelief(learning_rate=1e-3):
    """Optax has its own; ours is for the tests of all rules."""
    return optax.chain(ours.scale_by_rule(ADABELIEF), optax.scale_by_learning_rate(learning_rate))


FACTORIES = {
    "AdaTerm": ours.adaterm,
    "TAdam": ours.t_adam,
    "AtAdam": ours.at_adam,
    "TAdaBelief": ours.t_adabelief,
    "AtAdaBelief": ours.at_adabelief,
    "AdaBelief": adabelief,
    "RobustAdamW": ours.robust_adamw,
}


def build(name, options):
    """The optimizer of a torch class's name and options."""
    return FACTORIES[name](**{"learning_rate" if key == "lr" else key: value for key, value in options.items()})


def make(rule, **options):
    """The optimizer of a rule's name."""
    name, chosen = RULES[rule]
    return build(name, {**chosen, **options})


def step(optimizer, params, state, gradients):
    updates, state = optimizer.update(gradients, state, params)
    return optax.apply_updates(params, updates), state


def follow(optimizer, params, gradients, state=None):
    """All steps, in one scan: parameters and state after each; the first axis of gradients is that of steps."""

    def take(carried, now):
        carried = step(optimizer, *carried, now)
        return carried, carried

    state = optimizer.init(params) if state is None else state
    return jax.jit(lambda *start: jax.lax.scan(take, start, gradients))(params, state)[1]


def draw_gradients(shapes, steps, dtype=jnp.float32):
    """The gradients of `catalogue.give_gradients`, for all steps."""
    tensors = [torch.zeros(shape, dtype=torch.float64) for shape in shapes]
    rows = []
    for number in range(steps):
        give_gradients(tensors, number)
        rows.append([tensor.grad.numpy() for tensor in tensors])
    return [jnp.asarray(column, dtype) for column in zip(*map(tuple, rows), strict=True)]


def get_rule_state(state):
    """The rule's part of an optimizer's state."""
    return next(part for part in jax.tree.leaves(state, is_leaf=is_rule_state) if is_rule_state(part))


def is_rule_state(part):
    return isinstance(part, ours.RuleState)
