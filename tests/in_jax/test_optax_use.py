"""What people do with an optimizer of Optax, they can do with ours."""

from functools import partial
from math import inf
from pathlib import Path

import numpy
import pytest
from optimizers import FACTORIES, draw_gradients, follow, get_rule_state, jax, jnp, optax, ours, step

pytestmark = pytest.mark.filterwarnings("ignore")  # what the frameworks warn of is theirs
SHAPES = [(4, 3), (3,)]
MAIN = {"adaterm": partial(ours.adaterm, init_scale="gradient"), "robust_adamw": partial(ours.robust_adamw, window=12)}
either = pytest.mark.parametrize("make", MAIN.values(), ids=MAIN)


def make_params(dtype=jnp.float32):
    return {"kernel": jnp.ones(SHAPES[0], dtype), "bias": jnp.ones(SHAPES[1], dtype)}


def make_gradients(steps, dtype=jnp.float32):
    return dict(zip(("kernel", "bias"), draw_gradients(SHAPES, steps, dtype), strict=True))


def at(gradients, number):
    return jax.tree.map(lambda column: column[number], gradients)


def end(optimizer, steps=15, params=None):
    """The last parameters and the last state."""
    return at(follow(optimizer, make_params() if params is None else params, make_gradients(steps)), -1)


def assert_same(found, wanted, tolerance=1e-6):
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        numpy.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


@either
def test_a_schedule_is_followed(make):
    schedule = optax.linear_schedule(0.1, 0.0, 10)
    params, _ = follow(make(schedule), make_params(), make_gradients(15))
    for leaf in jax.tree.leaves(params):
        assert (leaf[0] != leaf[5]).all()
        numpy.testing.assert_array_equal(leaf[10], leaf[14])


@pytest.mark.parametrize(
    ("scaled", "whole"),
    [
        (ours.scale_by_adaterm(beta=0.8, min_dof=3.0), ours.adaterm(0.1, 0.8, min_dof=3.0)),
        (ours.scale_by_robust_adam(window=12, weight_decay=0.2), ours.robust_adamw(0.1, window=12, weight_decay=0.2)),
    ],
)
def test_chains_scale_the_steps_of_a_rule(scaled, whole):
    chained = optax.chain(optax.clip_by_global_norm(1e9), scaled, optax.scale_by_learning_rate(0.1))
    assert_same(end(chained)[0], end(whole)[0])


@pytest.mark.parametrize("name", [name for name in FACTORIES if name != "AdaBelief"])
def test_injected_hyperparameters_change_a_step(name):
    factory = FACTORIES[name]
    optimizer, params, gradients = optax.inject_hyperparams(factory)(0.1), make_params(), make_gradients(6)
    update = jax.jit(lambda *given: step(optimizer, *given))
    state = optimizer.init(params)
    for number in range(5):
        params, state = update(params, state, at(gradients, number))
    assert_same(params, end(factory(0.1), 5)[0], 1e-4)  # betas and the like are float32 here
    state.hyperparams["learning_rate"] = jnp.asarray(0.0)
    frozen, state = update(params, state, at(gradients, 5))
    assert_same(frozen, params, 0.0)
    for option, value in (("eps", 1e10), ("learning_rate", 0.1), ("weight_decay", 0.0)):
        state.hyperparams[option] = jnp.asarray(value)
    still, _ = update(params, state, at(gradients, 5))
    assert_same(still, params, 1e-5)


def test_injected_options_may_be_schedules_windows_and_infinite():
    """The window's length comes from the state; infinite dof have the same limit as in a rule without weights."""
    options = {"window": 12, "dof": inf, "max_norm": 1.0}
    injected = optax.inject_hyperparams(ours.robust_adamw)(optax.constant_schedule(0.1), **options)
    params, state = end(injected, 30)
    assert get_rule_state(state).windows.shape == (2, 12)
    assert_same(params, end(ours.robust_adamw(0.1, **options), 30)[0], 1e-4)


@pytest.mark.parametrize(
    ("factory", "needed"),
    [(ours.robust_adamw, "window"), (ours.adaterm, "eps, min_dof"), (ours.t_adam, "dof")],
)
def test_options_that_init_must_know_are_named(factory, needed):
    inject = optax.inject_hyperparams
    with pytest.raises(TypeError, match=rf"init must know {needed}: call it outside of jit, or .* static_args"):
        jax.jit(inject(factory)(0.1).init)(make_params())
    jax.jit(inject(factory, static_args=needed.split(", "))(0.1).init)(make_params())


@pytest.mark.parametrize("option", ["threshold", "window", "weight_decay", "learning_rate"])
def test_injected_options_are_checked_when_they_are_known(option):
    """And not under jit: there they are numbers that come later."""
    injected = optax.inject_hyperparams(ours.robust_adamw)
    with pytest.raises(ValueError, match=rf"{option}=-5(\.0)? is not possible: {option} must be"):
        injected(**{"learning_rate": 0.1, option: -5 if option == "window" else -5.0}).init(make_params())
    optimizer, params = injected(0.1), make_params()
    state = optimizer.init(params)
    state.hyperparams["threshold"] = jnp.asarray(-5.0)
    jax.jit(optimizer.update)(params, state, params)
    with pytest.raises(ValueError, match=r"threshold=-5.0 is not possible"):
        optimizer.update(params, state, params)


def test_the_page_lists_what_can_be_changed_in_the_state():
    page = (Path(__file__).parents[2] / "docs/jax.md").read_text()
    for factory in FACTORIES.values():
        if factory is not FACTORIES["AdaBelief"]:
            state = optax.inject_hyperparams(factory)(0.1).init(make_params())
            rest = set(state.hyperparams) - {"learning_rate", "weight_decay"}
            assert f"| `{factory.__name__}` | {', '.join(f'`{each}`' for each in sorted(rest))} |" in page


@either
def test_a_step_ignores_extra_arguments(make):
    for rounding in (False, True):
        optimizer, params = make(0.1, stochastic_rounding=rounding), make_params()
        state = optimizer.init(params)
        assert_same(optimizer.update(params, state, params, value=1.0), optimizer.update(params, state, params), 0.0)
    ours.round_updates().update(params, ours.round_updates().init(params), params, value=1.0)


@either
def test_python_numbers_are_parameters(make):
    params, gradients = {"a": 0.5, "b": jnp.ones(3)}, {"a": 0.1, "b": jnp.ones(3)}
    arrays = jax.tree.map(jnp.asarray, (params, gradients))
    ends = []
    for start, gradient in ((params, gradients), arrays):
        optimizer = make(0.1, weight_decay=0.1, stochastic_rounding=True)
        ends.append(step(optimizer, start, optimizer.init(start), gradient))
    assert_same(*ends, 0.0)
    assert ends[0][0]["a"] < 0.5


@either
def test_a_missing_gradient_is_an_error_that_says_what_to_do(make):
    optimizer, params = make(0.1), make_params()
    state = optimizer.init(params)
    for gradients in ({**params, "bias": None}, dict.fromkeys(params), {"kernel": params["kernel"]}):
        with pytest.raises(ValueError, match=r"give it zeros in place of None, or leave it out with optax\.masked"):
            optimizer.update(gradients, state, params)


@either
def test_masked_leaves_others_alone(make):
    optimizer = optax.masked(make(0.1), {"kernel": True, "bias": False})
    params, state = end(optimizer)
    assert get_rule_state(state).statistics.trust.shape == (1,)
    alone = at(follow(make(0.1), {"kernel": make_params()["kernel"]}, {"kernel": make_gradients(15)["kernel"]}), -1)[0]
    assert_same(params["kernel"], alone["kernel"])
    # a masked tensor's gradient is passed on, as with every optimizer of Optax
    assert_same(params["bias"], make_params()["bias"] + make_gradients(15)["bias"].sum(0), 1e-4)


@either
def test_multi_transform_gives_groups_their_own_options(make):
    labels = {"kernel": "slow", "bias": "fast"}
    optimizer = optax.multi_transform({"slow": make(0.01), "fast": make(0.1), "none": make(1.0)}, labels)
    params, _ = end(optimizer)
    for name, rate in (("kernel", 0.01), ("bias", 0.1)):
        alone = at(follow(make(rate), {name: make_params()[name]}, {name: make_gradients(15)[name]}), -1)[0]
        assert_same(params[name], alone[name])


@either
def test_decay_may_leave_tensors_out(make):
    """By a tree or by a function of the parameters, for tensors that are judged together all the same."""
    options = {} if make is MAIN["robust_adamw"] else {"decoupled_weight_decay": True}
    gradients = jax.tree.map(lambda column: 0.0 * column, make_gradients(3))
    for mask in ({"kernel": True, "bias": False}, lambda params: jax.tree.map(lambda leaf: leaf.ndim > 1, params)):
        params, _ = follow(make(0.1, weight_decay=0.5, mask=mask, **options), make_params(), gradients)
        numpy.testing.assert_allclose(params["kernel"][-1], 0.95**3, rtol=1e-5)
        numpy.testing.assert_array_equal(params["bias"][-1], 1.0)


@either
def test_apply_if_finite_skips_a_step(make):
    optimizer, params = optax.apply_if_finite(make(0.1), 3), make_params()
    state = optimizer.init(params)
    params, state = step(optimizer, params, state, at(make_gradients(1), 0))
    bad = jax.tree.map(lambda leaf: leaf * jnp.nan, params)
    after, skipped = jax.jit(lambda *given: step(optimizer, *given))(params, state, bad)
    assert_same(after, params, 0.0)
    assert_same(get_rule_state(skipped), get_rule_state(state), 0.0)
    assert skipped.notfinite_count == 1


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@either
def test_multi_steps_gathers_gradients(make, dtype):
    gradients = jax.tree.map(lambda column: jnp.repeat(column, 3, 0), make_gradients(8, dtype))
    optimizer = optax.MultiSteps(make(0.1), 3)
    params, state = at(follow(optimizer, make_params(dtype), gradients), -1)
    wanted, _ = at(follow(make(0.1), make_params(dtype), make_gradients(8, dtype)), -1)
    assert get_rule_state(state).count == 8
    found, wanted = (jax.tree.map(jnp.float32, tree) for tree in (params, wanted))
    assert_same(found, wanted, 1e-4 if dtype == jnp.float32 else 0.1)


@either
def test_seeds_under_vmap_are_seeds_one_by_one(make):
    optimizer, keys = make(0.1, weight_decay=0.1), jax.random.split(jax.random.key(0), 3)
    starts = jax.vmap(lambda key: jax.tree.map(lambda leaf: jax.random.normal(key, leaf.shape), make_params()))(keys)
    gradients = jax.tree.map(
        lambda leaf: jax.vmap(lambda key: jax.random.normal(key, (15, *leaf.shape[1:])))(keys), starts
    )
    run = jax.jit(lambda start, columns: follow(optimizer, start, columns)[0])
    batched = jax.jit(jax.vmap(run))(starts, gradients)
    for seed in range(3):
        assert_same(at(batched, seed), run(at(starts, seed), at(gradients, seed)), 1e-5)


@either
def test_a_loop_of_jitted_steps_with_donated_buffers_is_a_scan(make):
    optimizer, gradients = make(0.1, weight_decay=0.1), make_gradients(15)
    params = make_params()
    state = optimizer.init(params)
    update = jax.jit(lambda *given: step(optimizer, *given), donate_argnums=(0, 1))
    for number in range(15):
        before = jax.tree.leaves((params, get_rule_state(state).mean, get_rule_state(state).scale))
        params, state = update(params, state, at(gradients, number))
        assert all(leaf.is_deleted() for leaf in before), "a buffer was not used again"
    assert update._cache_size() == 1, "precisions or shapes of the state changed"
    assert_same((params, state), end(optimizer), 1e-5)


def test_a_state_of_an_older_version_goes_on():
    """It had fewer notes of a batch; what is missing is as if it had not been noted yet."""
    optimizer, gradients = ours.robust_adamw(0.1, window=12), make_gradients(31)
    params, state = at(follow(optimizer, make_params(), jax.tree.map(lambda column: column[:30], gradients)), -1)
    old = state._replace(history=state.history[:2])
    after = [jax.jit(partial(step, optimizer))(params, each, at(gradients, 30)) for each in (state, old)]
    assert_same(after[0][0], after[1][0])
    assert after[1][1].history.shape == (4, 12)
    assert_same(after[1][1].history[:2], after[0][1].history[:2])
    assert float(after[1][1].history[3, 0]) == 1.0  # batches, of which it counts the far ones from now on


@either
def test_a_step_needs_no_parameters_without_decay(make):
    optimizer = make(0.1, weight_decay=0.0)
    state = optimizer.init(make_params())
    updates, _ = optimizer.update(at(make_gradients(1), 0), state)
    assert jax.tree.all(jax.tree.map(lambda leaf: (leaf != 0.0).all(), updates))


@either
def test_nothing_is_nan_before_a_gradient_is(make):
    """People run with jax_debug_nans."""
    with jax.debug_nans(True):
        end(make(0.1))


def train_on(losses):
    assert losses[-1] < 0.2 * losses[0]


@either
def test_flax_trains(make):
    nnx = pytest.importorskip("flax.nnx", reason="flax is not installed: pip install 'adaterm[frameworks]'")
    model = nnx.Linear(3, 1, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, make(0.05), wrt=nnx.Param)
    inputs = jax.random.normal(jax.random.key(1), (64, 3))
    targets = inputs @ jnp.array([[1.0], [-2.0], [0.5]])

    @nnx.jit
    def train(model, optimizer):
        loss, gradients = nnx.value_and_grad(lambda model: jnp.mean((model(inputs) - targets) ** 2))(model)
        optimizer.update(model, gradients)
        return loss

    train_on([float(train(model, optimizer)) for _ in range(150)])


@either
def test_equinox_trains(make):
    eqx = pytest.importorskip("equinox", reason="Equinox is not installed: pip install 'adaterm[frameworks]'")
    model, optimizer = eqx.nn.MLP(3, 1, 8, 1, key=jax.random.key(0)), make(0.05)
    inputs = jax.random.normal(jax.random.key(1), (64, 3))
    targets = inputs @ jnp.array([[1.0], [-2.0], [0.5]])
    state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))

    @eqx.filter_jit
    def train(model, state):
        measure = eqx.filter_value_and_grad(lambda model: jnp.mean((jax.vmap(model)(inputs) - targets) ** 2))
        loss, gradients = measure(model)
        updates, state = optimizer.update(gradients, state, eqx.filter(model, eqx.is_inexact_array))
        return eqx.apply_updates(model, updates), state, loss

    losses = []
    for _ in range(150):
        model, state, loss = train(model, state)
        losses.append(float(loss))
    train_on(losses)


@either
def test_orbax_saves_and_restores(make, tmp_path):
    ocp = pytest.importorskip("orbax.checkpoint", reason="Orbax is not installed: pip install 'adaterm[frameworks]'")
    optimizer, gradients = make(0.1), make_gradients(30)
    params, state = at(follow(optimizer, make_params(), jax.tree.map(lambda column: column[:15], gradients)), -1)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "saved", (params, state))
        checkpointer.wait_until_finished()
        fresh = make_params(), optimizer.init(make_params())
        restored = checkpointer.restore(tmp_path / "saved", jax.tree.map(ocp.utils.to_shape_dtype_struct, fresh))
    assert jax.tree.structure(restored) == jax.tree.structure((params, state))
    rest = jax.tree.map(lambda column: column[15:], gradients)
    assert_same(at(follow(optimizer, *restored[:1], rest, restored[1]), -1)[0], end(optimizer, 30)[0], 1e-6)
