"""Every rule in JAX is what it is in torch, and what was published."""

import inspect
import subprocess
import sys
from math import inf

import numpy
import pytest
import torch
from catalogue import JUDGING, RULES, SHAPES, assert_close, measure_error, parameters
from catalogue import make as make_in_torch
from optimizers import FACTORIES, build, draw_gradients, follow, get_rule_state, jax, jnp, make, optax, ours, step
from test_golden import CASES, FOLDER, TOLERANCE, method

import adaterm
from adaterm.optimizers import RobustOptimizer

ONLY_TORCHS = {"params", "amsgrad", "foreach", "fused", "capturable", "differentiable"}
PRECISIONS = {"float64": (jnp.float64, torch.float64, 1e-12), "float32": (jnp.float32, torch.float32, 1e-5)}
"""In JAX, in torch, and how far parameters, averages and scalars may be apart, relative to their largest entry."""


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


@pytest.fixture(params=PRECISIONS)
def precision(request):
    with jax.enable_x64(request.param == "float64"):
        yield PRECISIONS[request.param]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_trajectory(name, dtype):
    case, data = CASES[name], numpy.load(FOLDER / f"{name}.npz")
    kind, options = method(case)
    numbers, kept, count = ("float64" if dtype == torch.float64 else "float32"), data["kept_steps"], len(case["shapes"])
    tolerance, dof_tolerance = TOLERANCE[dtype]
    at_zero = numbers == "float32" and "weight_decay" not in options  # as in torch's test, and why is said there
    with jax.enable_x64(numbers == "float64"):
        origins = [data[f"p0_{j}"] * (not at_zero) for j in range(count)]
        gradients = [jnp.asarray(data[f"grad_{j}"], numbers) for j in range(count)]
        start = [jnp.asarray(origin, numbers) for origin in origins]
        params, state = jax.tree.map(numpy.array, follow(build(kind.__name__, options), start, gradients))
        state = get_rule_state(state)
        for j, origin in enumerate(origins):
            path = data[f"p_{j}"] - data[f"p0_{j}"]
            moved = numpy.float64(params[j][kept - 1]) - origin.astype(numbers)
            rounds = numbers == "float32" and not at_zero
            rounding = case["steps"] * abs(origin).max() * numpy.finfo(numbers).eps if rounds else 0.0
            assert abs(moved - path).max() <= tolerance * abs(path).max() + rounding
            for key, tensors in (("m", state.mean), ("v", state.scale)):
                assert abs(tensors[j][kept - 1] - data[f"{key}_{j}"]).max() <= tolerance * abs(data[f"{key}_{j}"]).max()
            dof = data[f"nu_{j}"]
            if (dof < inf).all():
                least = options.get("min_dof", 1.0) if case["family"] == "adaterm" else 0.0
                found = state.scalars["excess_dof"] if least else state.statistics.dof
                numpy.testing.assert_allclose(found[kept - 1, j], dof - least, rtol=dof_tolerance)
                if f"D_{j}" in data and numbers == "float64":
                    numpy.testing.assert_allclose(state.statistics.distance[kept - 1, j], data[f"D_{j}"], rtol=1e-10)


def compare(rule, steps, precision, gradients=None, **options):
    """Run a rule in JAX and in torch's reference engine, with the same gradients; compare all there is."""
    numbers, dtype, tolerance = precision
    params = parameters(dtype=dtype)
    optimizer = make_in_torch(rule, params, foreach=False, **options)
    gradients = draw_gradients(SHAPES, steps, numbers) if gradients is None else gradients
    start = [jnp.asarray(parameter.detach().numpy()) for parameter in params]
    ended, states = jax.tree.map(numpy.array, follow(make(rule, **options), start, gradients))
    state = get_rule_state(states)
    columns = [torch.tensor(numpy.array(column)) for column in gradients]
    paths = [[] for _ in params]  # of everything, as it is after each step
    for number in range(steps):
        for parameter, column in zip(params, columns, strict=True):
            parameter.grad = column[number]
        optimizer.step()
        for path, (parameter, statistics) in zip(paths, optimizer.statistics().items(), strict=True):
            after = optimizer.state[parameter] | {"parameter": parameter} | statistics._asdict()
            path.append({name: after[name].detach().clone() for name in after if name not in ("step", "batches")})
    for index, path in enumerate(paths):
        found = {name: values[:, index] for name, values in (state.scalars | state.statistics._asdict()).items()}
        found |= {"parameter": ended[index], "exp_avg": state.mean[index], optimizer.scale_name: state.scale[index]}
        found |= {} if state.windows is None else {"log_distances": state.windows[:, index]}
        assert set(found) == set(path[0])
        for name, values in found.items():
            wanted = torch.stack([after[name] for after in path])
            loose = 10 if name in state.statistics._fields else 1
            both_nan = numpy.isnan(values) & wanted.isnan().numpy()
            values, wanted = numpy.where(both_nan, 0.0, values), wanted.nan_to_num(0.0, inf, -inf)
            assert_close(torch.tensor(values), wanted, loose * tolerance, f"{name} of tensor {index}")
    if state.batch is not None:
        for found, value in zip(state.batch, optimizer.batch_statistics(), strict=True):
            assert found[-1] == pytest.approx(0.0 if value.isnan() else value.item(), rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("rule", RULES)
def test_torch_and_jax_take_the_same_steps(rule, precision):
    compare(rule, 30, precision)


@pytest.mark.parametrize("rule", ["AdaTerm", "RobustAdamW"])
@pytest.mark.parametrize("most", [1, 2, 8])
def test_tensors_that_are_added_up_together_have_their_own_sums(rule, most, monkeypatch):
    """As on a single device, where those of one shape share a kernel: whole groups of them, and what is left."""
    shapes = [(3,), (5,), (3,), (2, 40), (3,), (2, 40), (5,), ()]
    gradients, start = draw_gradients(shapes, 15), [jnp.ones(shape) for shape in shapes]
    wanted = follow(make(rule), start, gradients)
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    monkeypatch.setattr("adaterm.jax_primitives._ADDING", most)
    for found, one in zip(jax.tree.leaves(follow(make(rule), start, gradients)), jax.tree.leaves(wanted), strict=True):
        numpy.testing.assert_allclose(found, one, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("rule", ["AdaTerm", "At-Adam", "AdaBelief", *JUDGING[-4:-2]])
def test_gradients_that_are_not_finite_are_excluded_as_in_torch(rule, precision):
    """In one element of one tensor, and in all tensors."""
    gradients = draw_gradients(SHAPES, 30, precision[0])
    for number, bad in enumerate((numpy.nan, inf, -inf)):
        gradients[0] = gradients[0].at[12 + number, 3, 2].set(bad)
        gradients = [column.at[20 + 2 * number].set(bad) for column in gradients]
    compare(rule, 30, precision, gradients)


def test_a_batch_without_a_finite_gradient_changes_nothing():
    optimizer, params = ours.robust_adamw(0.1), {"a": jnp.ones(3), "b": jnp.ones((2, 2))}
    state = optimizer.init(params)
    params, state = step(optimizer, params, state, params)
    after, state = step(optimizer, params, state, jax.tree.map(lambda leaf: leaf * jnp.nan, params))
    assert jax.tree.all(jax.tree.map(jnp.array_equal, after, params))
    assert get_rule_state(state).batch.trust == 0.0
    assert (get_rule_state(state).statistics.trust == 0.0).all()


def test_torch_and_jax_side_by_side_from_one_gradient_file(tmp_path, x64):
    """One file of gradients, with bad batches in it, read by both."""
    generator = numpy.random.default_rng(0)
    written = {f"g{j}": generator.standard_normal((200, *shape)) for j, shape in enumerate(SHAPES)}
    for column in written.values():
        column[60::25] *= 1e3  # two of them before the window of 100 is full
    numpy.savez(tmp_path / "gradients.npz", **written)
    data = numpy.load(tmp_path / "gradients.npz")
    params = [torch.zeros(shape, dtype=torch.float64, requires_grad=True) for shape in SHAPES]
    in_torch, in_jax = adaterm.RobustAdamW(params, lr=1e-2), ours.robust_adamw(1e-2)
    start = [jnp.zeros(shape, jnp.float64) for shape in SHAPES]
    ended, states = follow(in_jax, start, [jnp.asarray(data[f"g{j}"]) for j in range(len(SHAPES))])
    trust = []
    for number in range(200):
        for j, parameter in enumerate(params):
            parameter.grad = torch.tensor(data[f"g{j}"][number])
        in_torch.step()
        trust.append(in_torch.batch_statistics().trust.item())
        for column, parameter in zip(ended, params, strict=True):
            assert measure_error(torch.tensor(numpy.array(column[number])), parameter) <= 1e-12
    numpy.testing.assert_allclose(get_rule_state(states).batch.trust, trust, atol=1e-10)
    assert min(trust[:101]) == 1.0
    assert max(trust[110::25]) < 0.01 < 0.9 < min(trust[111::25]), "bad batches are excluded, the next ones are not"


@pytest.mark.parametrize("rule", ["AdaTerm + decoupled decay", "At-Adam", "RobustAdamW, soon judging"])
def test_bfloat16_parameters_have_state_in_float32_and_are_rounded_once(rule):
    gradients = draw_gradients(SHAPES, 20, jnp.bfloat16)
    params = [parameter.detach() for parameter in parameters(dtype=torch.bfloat16)]
    optimizer = make_in_torch(rule, [parameter.requires_grad_() for parameter in params], lr=0.05, foreach=False)
    start = [jnp.asarray(parameter.detach().float().numpy(), jnp.bfloat16) for parameter in params]
    ended, states = follow(make(rule, learning_rate=0.05), start, gradients)
    for number in range(20):
        for parameter, column in zip(params, gradients, strict=True):
            parameter.grad = torch.tensor(numpy.array(column[number], numpy.float32)).bfloat16()
        optimizer.step()
    state = get_rule_state(states)
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(state)} == {"int32", "float32"}
    for column, parameter in zip(ended, params, strict=True):
        assert column.dtype == jnp.bfloat16
        assert measure_error(torch.tensor(numpy.array(column[-1], numpy.float32)), parameter.float()) <= 1e-2


def test_stochastic_rounding_loses_no_small_updates_and_rounds_as_torch_does():
    gradient, start = jnp.full((4096,), 1.0), {"w": jnp.ones(4096, jnp.bfloat16)}
    ends = {}
    for stochastic in (False, True):
        optimizer = ours.robust_adamw(1e-4, weight_decay=0.0, stochastic_rounding=stochastic)
        ends[stochastic] = follow(optimizer, start, {"w": jnp.broadcast_to(gradient, (20, 4096))})[0]["w"][-1]
    assert (ends[False] == 1.0).all()
    assert abs(float(ends[True].astype(jnp.float32).mean()) - (1.0 - 20e-4)) < 2e-4
    parameter = torch.ones(4096, dtype=torch.bfloat16, requires_grad=True)
    optimizer = adaterm.RobustAdamW([parameter], lr=1e-4, weight_decay=0.0, stochastic_rounding=True, foreach=False)
    for _ in range(20):
        parameter.grad = torch.ones(4096, dtype=torch.bfloat16)
        optimizer.step()
    same = numpy.array(ends[True], numpy.float32) == parameter.detach().float().numpy()
    assert same.mean() > 0.99


@pytest.mark.parametrize("name", [name for name in FACTORIES if name != "AdaBelief"])
def test_options_and_defaults_are_those_of_torch(name):
    in_torch = inspect.signature(getattr(adaterm, name)).parameters
    wanted = {each: value.default for each, value in in_torch.items() if each not in ONLY_TORCHS and each != "modes"}
    if "modes" in in_torch:
        wanted |= dict.fromkeys(("decoupled_weight_decay", "maximize", "stochastic_rounding"), False)
    found = {each: value.default for each, value in inspect.signature(FACTORIES[name]).parameters.items()}
    assert found.pop("mask") is None
    assert {"lr" if each == "learning_rate" else each: value for each, value in found.items()} == wanted
    assert list(found)[:4] == ["learning_rate", *list(in_torch)[2:5]]
    assert issubclass(getattr(adaterm, name), RobustOptimizer)


def test_options_are_checked_as_in_torch():
    for name, options in {
        "AdaTerm": {"beta": 1.0},
        "RobustAdamW": {"window": 5},
        "TAdam": {"betas": (0.3, 0.999)},
        "AtAdam": {"weight_decay": -1.0},
    }.items():
        with pytest.raises(ValueError) as in_torch:
            getattr(adaterm, name)([torch.zeros(1)], **options)
        with pytest.raises(ValueError) as in_jax:
            FACTORIES[name](**options)
        assert str(in_jax.value) == str(in_torch.value)
    with pytest.raises(ValueError, match=r"learning_rate=-1.0 is not possible: learning_rate must be a non-negative"):
        ours.adaterm(-1.0)
    with pytest.raises(TypeError, match="adaterm: got an unexpected keyword argument 'betas'"):
        ours.adaterm(betas=(0.9, 0.999))
    with pytest.raises(TypeError, match="robust_adamw: got an unexpected keyword argument 'lr'; pass learning_rate"):
        ours.robust_adamw(lr=0.1)
    with pytest.raises(TypeError, match=r"'lr'; scale the steps with optax\.scale_by_learning_rate"):
        ours.scale_by_adaterm(lr=0.1)
    with pytest.raises(TypeError, match="a parameter of complex64 cannot be stepped"):
        ours.adaterm().init(jnp.zeros(2, jnp.complex64))
    optimizer = ours.adaterm(weight_decay=0.1)
    with pytest.raises(ValueError, match="weight_decay needs the parameters"):
        optimizer.update(jnp.ones(2), optimizer.init(jnp.ones(2)))


def test_neither_needs_the_other():
    """`adaterm.optax` imports no torch, and the torch optimizers no JAX; and an error says what to install."""
    programs = {
        "import adaterm.optax, sys; assert 'torch' not in sys.modules": 0,
        "import sys; sys.modules['torch'] = None; from adaterm.optax import *; robust_adamw()": 0,
        "import sys; from adaterm import RobustAdamW; assert not {'jax', 'optax'} & {*sys.modules}": 0,
        "import sys; sys.modules['optax'] = None; import adaterm.optax": 1,
    }
    for program, code in programs.items():
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert done.returncode == code, done.stderr
    assert "pip install 'adaterm[jax]'" in done.stderr


def test_complex_parameters_are_stepped_as_optax_splits_them():
    optimizer, params = optax.contrib.split_real_and_imaginary(ours.robust_adamw(0.1)), jnp.ones(3, jnp.complex64)
    moved, _ = step(optimizer, params, optimizer.init(params), params * (1 + 1j))
    assert (jnp.abs(moved - params) > 0.1).all()
