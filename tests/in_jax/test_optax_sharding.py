"""Parameters that devices share take the steps that they take on one device."""

import re

import numpy
import pytest
from optimizers import draw_gradients, get_rule_state, jax, jnp, make, step

MESHES = {"1-D": ((4,), ("x",)), "2-D": ((2, 2), ("x", "y"))}
LAYOUTS = {"1-D": [("x",), ("x",), (), ()], "2-D": [("x", "y"), (("x", "y"),), (None, "y"), ("x",)]}
SHAPES = [(8, 4), (16,), (3, 4), (16,)]  # two of one shape, laid out differently
STEPS = 25
RULES = ["AdaTerm + decoupled decay", "Gradient init + AdaTerm2", "At-Adam", "RobustAdamW, usual norm"]


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("rule", RULES)
def test_shared_parameters_take_the_steps_of_one_device(rule, mesh):
    assert len(jax.devices()) >= 4
    devices = jax.make_mesh(*MESHES[mesh], axis_types=(jax.sharding.AxisType.Auto,) * len(MESHES[mesh][0]))
    layouts = [jax.NamedSharding(devices, jax.P(*layout)) for layout in LAYOUTS[mesh]]
    optimizer, gradients = make(rule, learning_rate=0.1), draw_gradients(SHAPES, STEPS)
    start = [jnp.full(shape, 0.5) for shape in SHAPES]
    alone, state = start, optimizer.init(start)
    shared = jax.device_put(start, layouts)
    state_of_shared = optimizer.init(shared)
    update = jax.jit(lambda *given: step(optimizer, *given))
    for number in range(STEPS):
        now = [column[number] for column in gradients]
        alone, state = update(alone, state, now)
        shared, state_of_shared = update(shared, state_of_shared, jax.device_put(now, layouts))
    for one, other in zip(jax.tree.leaves((alone, state)), jax.tree.leaves((shared, state_of_shared)), strict=True):
        numpy.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-6)
    for tree in (shared, get_rule_state(state_of_shared).mean, get_rule_state(state_of_shared).scale):
        for leaf, wanted in zip(tree, layouts, strict=True):
            assert leaf.sharding.is_equivalent_to(wanted, leaf.ndim)


def test_devices_exchange_sums_and_nothing_as_large_as_a_parameter():
    devices = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    layout = jax.NamedSharding(devices, jax.P("x"))
    params = jax.device_put([jnp.ones((64, 64)), jnp.ones(4096), jnp.ones(4096)], layout)
    optimizer = make("RobustAdamW")
    compiled = jax.jit(lambda *given: step(optimizer, *given)).lower(params, optimizer.init(params), params).compile()
    program = compiled.as_text()
    assert "all-reduce" in program
    assert not re.search(r"all-gather|all-to-all|collective-permute", program)
