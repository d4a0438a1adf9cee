"""RobustAdamW is what its specification says, on every engine, and keeps what it promises."""

import copy
import pickle
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import pairwise
from math import inf, nan
from typing import NamedTuple

import numpy as np
import pytest
import robust_spec
import torch
from catalogue import ENGINE_TOLERANCE, ENGINES, SHAPES, Operations, assert_close, give_gradients, parameters
from on_ranks import Messages, assert_part, mesh_of, spread
from test_state import copies, saved_and_loaded

from adaterm import RobustAdamW

every_engine = pytest.mark.parametrize("engine", ENGINES)

# What gradients may be like. Tensors are known by their index; every function takes a step and a gradient.


def usual(step, g):
    return g


def zero(step, g):
    return 0 * g


def zero_at_first(step, g):
    return g * (step >= 20)


def constant(step, g):
    return np.ones_like(g)


def quiet(step, g):
    return g * np.float32(1e-6)


def absurd(step, g):
    """Squares that have a sum, but no finite ratio to a quiet tensor's; infinite as float32."""
    return np.full(g.shape, 1e150)


def missing(step, g):
    return None


def scaled(factor):
    return lambda step, g: g * np.float32(factor)


def holding(value):
    """With a value in its first element."""
    return lambda step, g: np.where(np.arange(g.size).reshape(g.shape) == 0, np.float32(value), g)


ALL = None
ACCIDENTS = [
    (0, [1], holding(nan)),
    (3, [0], holding(inf)),
    (6, [2], scaled(1e6)),
    (14, ALL, scaled(1000)),
    (17, [0], scaled(1e12)),
    (21, [2], holding(nan)),
    (23, [0, 3], holding(-inf)),
    (25, ALL, holding(nan)),
    (27, [1, 4], missing),
    (29, ALL, missing),
    (33, ALL, scaled(-1e8)),
    (36, ALL, scaled(3)),
    (39, [0], scaled(30)),
    (42, [4], scaled(1e10)),
    (45, ALL, scaled(1e-3)),
    (50, ALL, scaled(1.8)),
    (55, ALL, scaled(2.3)),
    (60, [1], holding(1e12)),
]
"""Steps, the tensors concerned and what becomes of their gradients."""


@dataclass
class Scenario:
    """What two optimizers are given: groups as shapes and options, and how gradients and options change."""

    groups: list
    options: dict
    accidents: list = field(default_factory=list)
    kinds: dict = field(default_factory=dict)  # by tensor
    added: dict = field(default_factory=dict)  # by step
    changed: dict = field(default_factory=dict)  # by step: options of the first group
    steps: int = 70
    single: bool = True  # whether float32 is enough for it


def recur(number, factor, start=30):
    """So many of five steps have larger gradients."""
    return [(step, ALL, scaled(factor)) for step in range(start, 100) if step % 5 < number]


SCENARIOS = {
    "accidents": Scenario([(SHAPES, {})], {"window": 16, "weight_decay": 0.1}, ACCIDENTS),
    "no accidents": Scenario([(SHAPES, {})], {"window": 12, "dof": 10.0, "betas": (0.9, 0.95), "threshold": 2.0}),
    "awkward tensors": Scenario(
        [([*SHAPES, (4,), (3, 2), (5,), (2,), (6,)], {})],
        {"window": 20, "weight_decay": 0.1, "max_norm": 5.0},
        [*ACCIDENTS, (48, [5], holding(nan)), (11, [6], holding(inf)), (52, [9], absurd)],
        {5: zero, 6: zero_at_first, 7: constant, 8: missing, 9: quiet},
    ),
    "averages that forget at once": Scenario(
        [([(7, 5), (3,), (5,), ()], {"betas": (0.0, 0.5)}), ([(2, 3)], {"betas": (0.5, 0.0)})],
        {"window": 15, "dof": 1.0, "maximize": True},
        ACCIDENTS[:4],
        {2: constant},
        single=False,  # a scale of the last gradient alone: what remains of large ones hides small ones
    ),
    "several groups": Scenario(
        [
            ([(7, 5), (3,)], {"weight_decay": 0.2, "max_norm": 3.0, "dof": 10.0}),
            ([(1,), (2, 3, 4)], {"threshold": inf, "betas": (0.5, 0.9), "lr": 3e-3}),
            ([(), (6, 2)], {"dof": inf, "max_norm": "auto", "minority": 0.1, "threshold": 1.5}),
        ],
        {"window": 14, "eps": 1e-6},
        ACCIDENTS,
        added={
            14: ([(4,), (3, 3)], {"maximize": True, "threshold": 2.0, "weight_decay": 0.0}),
            33: ([(5,), ()], {"max_norm": "auto"}),  # when nothing is trusted at all
        },
        changed={31: {"lr": 5e-4, "dof": 2.0}, 40: {"threshold": 3.0, "max_norm": None, "weight_decay": 0.0}},
    ),
    "clipped at the median": Scenario([(SHAPES, {})], {"window": 18, "max_norm": "auto", "maximize": True}, ACCIDENTS),
    "clipped from some step on": Scenario(  # norms are remembered before anyone asks for them
        [(SHAPES, {}), ([(2, 2)], {"max_norm": None})],
        {"window": 14},
        ACCIDENTS[:8],
        added={33: ([(4,)], {"max_norm": "auto"})},
        changed={27: {"max_norm": "auto"}, 30: {"max_norm": None}, 45: {"max_norm": "auto"}, 50: {"max_norm": 4.0}},
    ),
    "a kind of their own": Scenario(
        [(SHAPES, {})],
        {"window": 20, "dof": 5.0},
        recur(2, 30),
        added={60: ([(6, 2)], {})},  # weighed as 1 until it has a past, also in batches of that kind
        steps=90,
    ),
    "other thresholds, beyond four windows": Scenario(
        [(SHAPES[:2], {"threshold": 6.0}), (SHAPES[2:], {"threshold": 3.0})],
        {"window": 12, "minority": 0.2},
        [(step, ALL, scaled(1.5 + step % 7)) for step in range(20, 150) if step % 10 < 3],
        steps=150,
    ),
    "many in a row": Scenario(
        [(SHAPES, {})], {"window": 40, "minority": 0.6}, [(step, ALL, scaled(30)) for step in range(30, 50)]
    ),
    "a steady level": Scenario(
        [([(64, 64), (60, 60)], {})],
        {"window": 20, "betas": (0.9, 0.9)},
        [(step, ALL, scaled(1.0 + 0.2 * (step % 7))) for step in range(30, 60, 3)],
    ),
    "not robust": Scenario([(SHAPES, {})], {"window": 12, "dof": inf, "threshold": inf, "max_norm": 2.0}, ACCIDENTS),
}


def draw(scenario, step, number, shape):
    """A tensor's gradient in float64, though every entry is a float32."""
    g = np.random.default_rng([step, number]).normal(size=shape) * (1.0 + number)
    g = scenario.kinds.get(number, usual)(step, np.asarray(g, dtype=np.float32))
    for at, chosen, change in scenario.accidents:
        if at == step and g is not None and (chosen is ALL or number in chosen):
            g = change(step, g)
    return None if g is None else np.asarray(g, dtype=np.float64)


def list_shapes(scenario, step):
    """The shapes of all tensors that are there in a step."""
    added = [group for at, group in scenario.added.items() if at <= step]
    return [shape for shapes, _ in [*scenario.groups, *added] for shape in shapes]


def draw_all(scenario, step):
    return [draw(scenario, step, number, shape) for number, shape in enumerate(list_shapes(scenario, step))]


def begin(shapes):
    """Parameters of these shapes: the same in every precision."""
    return [np.linspace(-1, 1, int(np.prod(shape))).astype(np.float32).reshape(shape) for shape in shapes]


class Known(NamedTuple):
    """What the transcription says of a tensor after a step."""

    theta: np.ndarray
    m: np.ndarray
    v: np.ndarray
    step: int
    x: float
    w: float
    lam: float | None
    finite: bool


@cache
def transcribe(name):
    """For every step: what is known of every tensor, and level, zscore and trust of the batch."""
    scenario, records = SCENARIOS[name], []
    groups = [{"tensors": begin(shapes), **options} for shapes, options in scenario.groups]
    known = robust_spec.RobustAdamW(groups, **scenario.options)
    for step in range(scenario.steps):
        if step in scenario.added:
            shapes, options = scenario.added[step]
            known.add({"tensors": begin(shapes), **options})
        known.groups[0] |= scenario.changed.get(step, {})
        known.step(draw_all(scenario, step))
        tensors = [
            Known(t.theta, t.m, t.v, t.step, *(getattr(t, field, None) for field in ("x", "w", "lam", "finite")))
            for t in known.tensors
        ]
        records.append((tensors, (known.level, known.zscore, known.trust)))
    return records


def as_parameters(shapes, dtype):
    return [torch.tensor(theta, dtype=dtype, requires_grad=True) for theta in begin(shapes)]


def give(params, gradients):
    """Set gradients of NumPy, in the parameters' precision."""
    for parameter, gradient in zip(params, gradients, strict=True):
        parameter.grad = None if gradient is None else torch.tensor(gradient, dtype=parameter.dtype)


class Largest:
    """Compares tensors relative to the largest entry that was wanted so far: averages pass through zero."""

    def __init__(self, tolerance):
        self.tolerance, self.scales = tolerance, {}

    def compare(self, found, wanted, what, step):
        scale = self.scales[what] = max(self.scales.get(what, 1e-30), np.abs(wanted).max())
        values = found.detach().double().numpy()
        errors = np.abs(values - wanted) / scale
        at = np.unravel_index(np.argmax(errors), errors.shape)
        problem = f"{what}, step {step}: {values[at]} at {at}, wanted {wanted[at]}, off by {errors[at]:.1e}"
        assert errors[at] <= self.tolerance, problem


def check_the_transcription(name, flags, dtype, steps=None):
    """Every tensor and every statistic, after every step."""
    scenario, tolerance = SCENARIOS[name], ENGINE_TOLERANCE[dtype]
    groups = [{"params": as_parameters(shapes, dtype), **options} for shapes, options in scenario.groups]
    params = [parameter for group in groups for parameter in group["params"]]
    tested, largest = RobustAdamW(groups, **scenario.options, **flags), Largest(tolerance)
    for step, (tensors, batch) in enumerate(transcribe(name)[:steps]):
        if step in scenario.added:
            shapes, options = scenario.added[step]
            more = as_parameters(shapes, dtype)
            tested.add_param_group({"params": more, **options})
            params += more
        tested.param_groups[0] |= scenario.changed.get(step, {})
        give(params, draw_all(scenario, step))
        tested.step()
        for number, (parameter, known) in enumerate(zip(params, tensors, strict=True)):
            largest.compare(parameter, known.theta, f"parameter {number}", step)
            if parameter.grad is not None:
                state = tested.state[parameter]
                assert state["step"] == known.step, f"step of {number}, step {step}"
                largest.compare(state["exp_avg"], known.m, f"exp_avg {number}", step)
                largest.compare(state["exp_avg_sq"], known.v, f"exp_avg_sq {number}", step)
        compare_batch(tested, params, batch, 10 * tolerance, step)
        compare_statistics(tested, params, tensors, 10 * tolerance, step)


def compare_batch(tested, params, wanted, tolerance, step):
    if all(parameter.grad is None for parameter in params):
        return  # nothing was judged
    for name, found, value in zip(("level", "zscore", "trust"), tested.batch_statistics(), wanted, strict=True):
        wanted_too = pytest.approx(value, rel=tolerance, abs=tolerance, nan_ok=True)
        assert found.item() == wanted_too, f"{name}, step {step}: found {found.item()}, wanted {value}"


def compare_statistics(tested, params, tensors, tolerance, step):
    found = tested.statistics()
    assert set(found) == {parameter for parameter in params if parameter.grad is not None}
    dofs = {parameter: group["dof"] for group in tested.param_groups for parameter in group["params"]}
    for number, (parameter, known) in enumerate(zip(params, tensors, strict=True)):
        if parameter in found:
            distance, trust, dof = (value.item() for value in found[parameter])
            what = f"{number}, step {step}: {known}"
            assert dof == dofs[parameter], f"dof {what}"
            wanted = known.x * min(1.0, known.w)
            assert trust == pytest.approx(wanted, rel=tolerance, abs=tolerance), f"trust {what}"
            assert np.isfinite(distance) == known.finite, f"distance {distance} {what}"
            if known.lam is not None:
                assert distance == pytest.approx(np.exp(known.lam), rel=tolerance), f"distance {what}"


@every_engine
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_step_is_the_transcriptions(name, engine):
    check_the_transcription(name, ENGINES[engine], torch.float64)


@every_engine
@pytest.mark.parametrize("name", [name for name, scenario in SCENARIOS.items() if scenario.single])
def test_every_step_is_the_transcriptions_in_float32(name, engine):
    check_the_transcription(name, ENGINES[engine], torch.float32)


def test_the_scenarios_go_through_everything():
    """Otherwise agreement would show little."""
    seen = {name: transcribe(name) for name in SCENARIOS}
    assert min(batch[2] for _, batch in seen["accidents"]) == 0.0
    trusts = [batch[2] for records in seen.values() for _, batch in records]
    assert sum(0.01 < trust < 0.8 for trust in trusts) >= 3, trusts
    known = [tensor for records in seen.values() for tensors, _ in records for tensor in tensors]
    assert any(tensor.lam == -inf for tensor in known)
    assert any(tensor.w and tensor.w > 1.2 for tensor in known)
    assert any(tensor.w and 0 < tensor.w < 0.5 for tensor in known)
    loud = [batch for step, (_, batch) in enumerate(seen["a kind of their own"]) if step >= 45 and step % 5 < 2]
    assert any(zscore > 4.0 and trust > 0.5 for _, zscore, trust in loud), loud
    row = [batch[2] > 0.5 for _, batch in seen["many in a row"][30:50]]
    assert row == [position % 8 == 7 for position in range(20)]


# The properties. Each check takes an engine's flags, so that the kernels for GPUs can be given to it as well.


def draw_gradients(step, shapes, dtype=torch.float64, scale=1.0, mean=0.5):
    """Ordinary gradients, the same for the same step: with a direction, so that training goes somewhere."""
    generator = torch.Generator().manual_seed(1000 + step)
    noise = [torch.randn(shape, generator=generator, dtype=torch.float64) + mean for shape in shapes]
    return [(scale * each).to(dtype) for each in noise]


def train(optimizer, params, steps, start=0, scale=1.0):
    """Ordinary steps."""
    for step in range(start, start + steps):
        gradients = draw_gradients(step, [p.shape for p in params], params[0].dtype, scale)
        for parameter, gradient in zip(params, gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()


def measure_move(params, before):
    """The largest change of an element."""
    return max((p.detach() - old).abs().max().item() for p, old in zip(params, before, strict=True))


def remember(params):
    return [parameter.detach().clone() for parameter in params]


def assert_finite(optimizer, params):
    """Parameters and averages, and no NaN where a missing value could be anything else."""
    for parameter in params:
        assert parameter.isfinite().all()
        for name in ("exp_avg", "exp_avg_sq", "step"):
            assert optimizer.state[parameter][name].isfinite().all(), name


def check_adamw(flags, max_norm=None, steps=500):
    """Without robustness it is AdamW, after `clip_grad_norm_` if there is a norm to clip at."""
    params, others = parameters(dtype=torch.float64), parameters(dtype=torch.float64)
    options = {"lr": 1e-2, "betas": (0.9, 0.99), "weight_decay": 0.1}
    tested = RobustAdamW(params, **options, dof=inf, threshold=inf, max_norm=max_norm, **flags)
    adamw = torch.optim.AdamW(others, **options, foreach=False)
    for step in range(steps):
        gradients = draw_gradients(step, SHAPES, scale=100.0 if step % 9 == 8 else 0.3)
        for parameter, other, gradient in zip(params, others, gradients, strict=True):
            parameter.grad, other.grad = gradient, gradient.clone()
        if max_norm is not None:
            torch.nn.utils.clip_grad_norm_(others, max_norm)
        tested.step()
        adamw.step()
        if step % 50 == 0:
            tested.param_groups[0]["lr"] *= 0.9
            adamw.param_groups[0]["lr"] *= 0.9
    for parameter, other in zip(params, others, strict=True):
        assert_close(parameter, other, 1e-12, "parameter")
        assert tested.state[parameter]["step"] == adamw.state[other]["step"]
        for name in ("exp_avg", "exp_avg_sq"):
            assert_close(tested.state[parameter][name], adamw.state[other][name], 1e-12, name)


def check_scale_of_loss(flags, max_norm=None, steps=60):
    """A loss that is a thousand times as large makes no difference, but for eps."""
    ends = []
    for scale in (1.0, 1000.0):
        params = parameters(dtype=torch.float64)
        tested = RobustAdamW(params, lr=1e-2, eps=1e-14, window=15, max_norm=max_norm, **flags)
        for step in range(steps):
            train(tested, params, 1, step, scale * (30.0 if step % 13 == 12 else 2.0 if step % 13 == 5 else 1.0))
        ends.append(params)
    for a, b in zip(*ends, strict=True):
        assert_close(a, b, 1e-9 if max_norm is None else 1e-6)  # clipping adds 1e-6 to the norm


def check_change_of_scale(flags, window=30, start=300):
    """After a lasting change, training is normal again within window / 2 + 1 steps."""
    params = parameters(dtype=torch.float64)
    tested = RobustAdamW(params, lr=1e-2, window=window, weight_decay=0.0, **flags)
    train(tested, params, start - 20)
    moves, before = [], remember(params)
    for step in range(start - 20, start + window + 40):
        train(tested, params, 1, step, 1.0 if step < start else 1000.0)
        moves.append(measure_move(params, before))
        before = remember(params)
        if step == start:
            assert tested.batch_statistics().trust < 1e-6
        if start <= step < start + window // 2 - 1:  # then they are usual
            assert (tested.batch_statistics().trust > 0.5) == ((step - start) % 8 == 7), step
        if step > start + window // 2:
            assert tested.batch_statistics().trust > 0.5, step
            weights = [trust.item() for _, trust, _ in tested.statistics().values()]
            assert np.median(weights) > 0.5, f"step {step}: {weights}"
    ordinary, later = np.median(moves[:20]), moves[20 + window // 2 + 1 :]
    assert 0.5 * ordinary < np.median(later) < 5.0 * ordinary
    assert_finite(tested, params)


SIZES = {torch.float64: [10.0, 1e3, 1e15, 1e30, 1e100, 1e160, 1e300, nan, inf], torch.float32: [1e8, 1e18, 1e25, nan]}


def check_one_bad_gradient(flags, dtype, sizes=None):
    """Whatever it is, and wherever, it does no more than an ordinary one would, then and later."""
    params = parameters(dtype=dtype)
    tested = RobustAdamW(params, lr=1e-2, window=20, weight_decay=0.1, **flags)
    train(tested, params, 30)
    ordinary = 0.0
    for step in range(30, 40):
        before = remember(params)
        train(tested, params, 1, step)
        ordinary = max(ordinary, measure_move(params, before))
    ends = []
    for start in (41, 40):  # without that batch, and with an ordinary one
        optimizer = copy.deepcopy(tested)
        train(optimizer, list_params(optimizer), 51 - start, start)
        ends.append(remember(list_params(optimizer)))
    wanted, later = ends[0], max(ordinary, measure_move(*ends))
    for size in sizes or SIZES[dtype]:
        for chosen in ([0], [3], range(len(params))):
            optimizer = copy.deepcopy(tested)
            twins = optimizer.param_groups[0]["params"]
            before = remember(twins)
            for number, gradient in enumerate(draw_gradients(40, SHAPES, dtype)):
                twins[number].grad = gradient * size if number in chosen else gradient
            optimizer.step()
            what = f"a gradient of {size} in tensors {list(chosen)}"
            assert measure_move(twins, before) <= ordinary, what
            assert_finite(optimizer, twins)
            train(optimizer, twins, 10, 41)
            assert measure_move(twins, wanted) <= 1.5 * later, f"{what}, later"
            assert_finite(optimizer, twins)


def check_two_tasks(flags, share, steps=400):
    """The trust in batches of a task that is 30 times as loud, and in the others; a frequent one moves all tensors."""
    generator, params = np.random.default_rng(0), parameters([(8, 8), (8,), (4, 8), (4,)], torch.float64)
    tested, loud_trust, other_trust, tensor_trust = RobustAdamW(params, **flags), [], [], []
    for step in range(steps):
        loud = generator.random() < share
        train(tested, params, 1, step, 30.0 if loud else 1.0)
        if step >= 150:
            (loud_trust if loud else other_trust).append(tested.batch_statistics().trust.item())
            tensor_trust += [trust.item() for _, trust, _ in tested.statistics().values() if loud]
    if share < 0.3:
        assert max(loud_trust) < 1e-3
    else:
        assert np.mean(loud_trust) > 0.9
        assert np.mean(tensor_trust) > 0.8
    assert np.mean(other_trust) > 0.9


def check_excluded_batch(flags, dtype=torch.float64, before=25):
    """Nothing moves, not even by decay, and the averages stay; steps are counted."""
    params = parameters(dtype=dtype)
    tested = RobustAdamW(params, lr=0.1, window=20, weight_decay=0.5, **flags)
    train(tested, params, before)
    for scale in (1e6, nan, inf):
        old, states = remember(params), copy.deepcopy([tested.state[p] for p in params])
        train(tested, params, 1, before, scale)
        level, zscore, trust = tested.batch_statistics()
        assert trust == 0.0
        assert level.isfinite() == np.isfinite(scale)
        assert zscore > 10.0 or not np.isfinite(scale)
        for parameter, values, state in zip(params, old, states, strict=True):
            assert torch.equal(parameter, values), scale
            for name in ("exp_avg", "exp_avg_sq"):
                assert torch.equal(tested.state[parameter][name], state[name]), name
            assert tested.state[parameter]["step"] == state["step"] + 1


def check_excluded_tensor(flags, value=nan):
    """One tensor's bad gradient does not move it, counts in no level and no norm, and the others go on."""
    params, others = parameters(dtype=torch.float64), parameters(dtype=torch.float64)
    tested, wanted = (RobustAdamW(p, window=20, weight_decay=0.5, max_norm="auto", **flags) for p in (params, others))
    for optimizer, tensors in ((tested, params), (wanted, others)):
        train(optimizer, tensors, 25)
        for parameter, gradient in zip(tensors, draw_gradients(25, SHAPES, scale=1.5), strict=True):
            parameter.grad = gradient
    params[0].grad[2, 3], others[0].grad = value, None
    old, state = params[0].detach().clone(), copy.deepcopy(tested.state[params[0]])
    tested.step()
    wanted.step()
    assert torch.equal(params[0], old)
    assert torch.equal(tested.state[params[0]]["exp_avg"], state["exp_avg"])
    assert torch.equal(tested.state[params[0]]["exp_avg_sq"], state["exp_avg_sq"])
    assert tested.state[params[0]]["step"] == state["step"] + 1
    assert tested.statistics()[params[0]].trust == 0.0
    for optimizer, tensors in ((tested, params), (wanted, others)):
        train(optimizer, tensors[1:], 5, 26)
    for a, b in zip(params[1:], others[1:], strict=True):
        assert_close(a, b, 1e-12)
    for found, known in zip(tested.batch_statistics(), wanted.batch_statistics(), strict=True):
        assert found.item() == pytest.approx(known.item(), rel=1e-9)


def check_groups(flags, steps=40):
    """Several groups are judged as one."""
    ends = []
    for cuts in ([0, 5], [0, 1, 3, 5]):
        params = parameters(dtype=torch.float64)
        groups = [{"params": params[i:j]} for i, j in pairwise(cuts)]
        tested, trusts = RobustAdamW(groups, window=15, max_norm="auto", lr=1e-2, **flags), []
        for step in range(steps):
            train(tested, params, 1, step, {13: 2.0, 20: 2.5, 27: 1e3, 33: 3.0}.get(step, 1.0))
            trusts.append(tested.batch_statistics().trust.item())
        ends.append((params, trusts))
    (one, trusts), (several, others) = ends
    for a, b in zip(several, one, strict=True):
        assert_close(a, b, 1e-12)
    assert others == pytest.approx(trusts, rel=1e-9)


WAITING = ("aten._local_scalar_dense", "aten.nonzero", "aten.is_nonzero", "aten.equal", "aten.item")
"""What makes the host wait for a device."""


def check_capturable(flags):
    """The same results, and no step after the first reads a number."""
    ends = []
    for capturable in (False, True):
        params = parameters(dtype=torch.float64)
        tested = RobustAdamW(params, window=12, capturable=capturable, max_norm="auto", **flags)
        train(tested, params, 20)
        with Operations() as operations:
            train(tested, params, 5, 20)
        assert not capturable or not any(name.startswith(WAITING) for name in operations.names)
        ends.append(params)
    for a, b in zip(*ends, strict=True):
        assert_close(a, b, 1e-12)


def check_gradients(flags):
    """Gradients are read only, clipped or not."""
    params = parameters()
    tested = RobustAdamW(params, max_norm=0.1, maximize=True, **flags)
    for step in range(3):
        gradients = draw_gradients(step, SHAPES, torch.float32)
        for parameter, gradient in zip(params, gradients, strict=True):
            parameter.grad = gradient.clone()
        versions = [parameter.grad._version for parameter in params]
        tested.step()
        for parameter, gradient, version in zip(params, gradients, versions, strict=True):
            assert torch.equal(parameter.grad, gradient)
            assert parameter.grad._version == version


ROUTES = {
    "a state dict": lambda optimizer: reload(optimizer, copy.deepcopy(optimizer.state_dict())),
    "a file": lambda optimizer: reload(optimizer, saved_and_loaded(optimizer.state_dict())),
    "deepcopy": copy.deepcopy,
    "pickle": lambda optimizer: pickle.loads(pickle.dumps(optimizer)),
}
"""How a run is resumed."""


def reload(optimizer, state_dict):
    groups = [{"params": copies(group["params"])} for group in optimizer.param_groups]
    fresh = RobustAdamW(groups, lr=0.5, window=50)  # whatever it is given: a checkpoint brings its options
    fresh.load_state_dict(state_dict)
    return fresh


def list_params(optimizer):
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def check_resumed(flags, route, saved=(0, 7, 23), steps=35):
    """Bit for bit, from any step on."""
    params = parameters()
    groups = [{"params": params[:2]}, {"params": params[2:], "threshold": 3.0, "max_norm": "auto"}]
    tested, resumed = RobustAdamW(groups, lr=1e-2, window=14, **flags), []
    for step in range(steps):
        if step in saved:
            resumed.append(ROUTES[route](tested))
        for optimizer in (tested, *resumed):
            scale = {12: 2.0, 18: 1e3, 22: 3.0, 26: nan, 29: 2.0}.get(step, 1.0)
            train(optimizer, list_params(optimizer), 1, step, scale)
    for optimizer in resumed:
        for parameter, twin in zip(params, list_params(optimizer), strict=True):
            assert torch.equal(parameter, twin)
            for name, value in tested.state[parameter].items():
                torch.testing.assert_close(optimizer.state[twin][name], value, rtol=0, atol=0, equal_nan=True)
        for found, wanted in zip(optimizer.batch_statistics(), tested.batch_statistics(), strict=True):
            assert found == wanted


def check_adamw_checkpoint(flags, before=30, after=40):
    """It goes on where AdamW was: its first steps are AdamW's, and then its own."""
    params = parameters(dtype=torch.float64)
    groups = [{"params": params[:2], "lr": 1e-2}, {"params": params[2:], "betas": (0.8, 0.99), "weight_decay": 0.3}]
    adamw = torch.optim.AdamW(groups)
    train(adamw, params, before)
    params[0].grad = None
    adamw.step()
    twins = copies(params)
    tested = RobustAdamW([{"params": twins[:2]}, {"params": twins[2:]}], **flags)
    tested.load_state_dict(saved_and_loaded(adamw.state_dict()))
    assert [group["lr"] for group in tested.param_groups] == [1e-2, 1e-3]
    for group in tested.param_groups:
        group |= {"foreach": None, "fused": None} | flags
    known = robust_spec.RobustAdamW(
        [group | {"tensors": [p.detach().numpy() for p in group["params"]]} for group in groups]
    )
    states = [adamw.state[parameter] for parameter in params]
    known.load_adamw([(int(s["step"]), s["exp_avg"].numpy().copy(), s["exp_avg_sq"].numpy().copy()) for s in states])
    largest = Largest(1e-12)
    for step in range(100, 100 + after):
        train(tested, twins, 1, step)
        known.step([twin.grad.numpy() for twin in twins])
        if step < 110:
            train(adamw, params, 1, step)
        for number, (parameter, twin, tensor) in enumerate(zip(params, twins, known.tensors, strict=True)):
            largest.compare(twin, tensor.theta, f"parameter {number}", step)
            assert tested.state[twin]["step"] == tensor.step
            if step < 110:
                assert_close(twin, parameter, 1e-12, "AdamW's")


CHECKS = {
    "it is AdamW": check_adamw,
    "it is AdamW, clipped": partial(check_adamw, max_norm=2.0),
    "a larger loss": check_scale_of_loss,
    "a larger loss, clipped": partial(check_scale_of_loss, max_norm="auto"),
    "a lasting change": check_change_of_scale,
    "one bad gradient": partial(check_one_bad_gradient, dtype=torch.float64),
    "one bad gradient, float32": partial(check_one_bad_gradient, dtype=torch.float32),
    "a rare task": partial(check_two_tasks, share=0.1),
    "a frequent task": partial(check_two_tasks, share=0.45),
    "an excluded batch": check_excluded_batch,
    "an excluded batch, float32": partial(check_excluded_batch, dtype=torch.float32),
    "an excluded tensor": check_excluded_tensor,
    "an excluded tensor, absurd": partial(check_excluded_tensor, value=1e200),
    "groups": check_groups,
    "capturable": check_capturable,
    "gradients": check_gradients,
    **{f"resumed by {route}": partial(check_resumed, route=route) for route in ROUTES},
    "AdamW's checkpoint": check_adamw_checkpoint,
}
"""What holds on every engine, by what it is about; each is given an engine's flags."""

KERNEL_CHECKS = {
    "it is AdamW, clipped": partial(check_adamw, max_norm=2.0, steps=5),
    "gradients": check_gradients,
    "accidents": partial(check_the_transcription, "accidents", dtype=torch.float64, steps=18),
    "several groups": partial(check_the_transcription, "several groups", dtype=torch.float64, steps=15),
}
"""Those that Triton's interpreter can do, slow as it is, and fewer steps of others: for test_gpu."""


@every_engine
@pytest.mark.parametrize("check", CHECKS)
def test_property(check, engine):
    CHECKS[check](ENGINES[engine])


def test_groups_may_have_different_engines():
    """The batch is judged as one all the same."""
    ends = []
    for engines in (["reference"] * 3, list(ENGINES)):
        params = parameters(dtype=torch.float64)
        parts = params[:1], params[1:3], params[3:]
        groups = [{"params": part, **ENGINES[engine]} for part, engine in zip(parts, engines, strict=True)]
        tested = RobustAdamW(groups, window=12, max_norm="auto")
        for step in range(30):
            train(tested, params, 1, step, {15: 2.0, 20: 1e4, 25: 3.0}.get(step, 1.0))
        ends.append(params)
    for a, b in zip(*ends, strict=True):
        assert_close(a, b, 1e-12)


@pytest.mark.parametrize("first", ENGINES)
def test_engines_read_each_other(first):
    params = parameters(dtype=torch.float64)
    optimizer = RobustAdamW(params, window=15, max_norm="auto", **ENGINES[first])
    train(optimizer, params, 20)
    others = []
    for engine in ENGINES:
        state_dict = saved_and_loaded(optimizer.state_dict())
        state_dict["param_groups"][0] |= {"foreach": None, "fused": None} | ENGINES[engine]
        others.append(reload(optimizer, state_dict))
    for tested in (optimizer, *others):
        train(tested, list_params(tested), 20, 20, 1.5)
    for tested in others:
        for a, b in zip(list_params(tested), params, strict=True):
            assert_close(a, b, 1e-12)


def step_on_ranks(layout, engine, steps=26):
    """Train shards beside whole tensors; on one rank only, a part of a gradient is NaN."""
    mesh, shapes = mesh_of(layout), [(7, 5), (3,), (1,), (), (2, 3, 4), (9, 2)]
    params = parameters(shapes, torch.float64)
    shards = [shard.requires_grad_() for shard in spread(params, mesh, layout)]
    optimizers = []
    for tensors, flags in ((shards, ENGINES[engine]), (params, {"foreach": False})):
        groups = [{"params": tensors[:3], "max_norm": 4.0}, {"params": tensors[3:], "max_norm": "auto", "dof": 10.0}]
        optimizers.append(RobustAdamW(groups, lr=1e-2, window=12, **flags))
    tested, right = optimizers
    for step in range(steps):
        scale = {12: 2.0, 14: 1e3, 19: 2.5, 23: 3.0}.get(step, 1.0)
        for parameter, gradient in zip(params, draw_gradients(step, shapes, scale=scale), strict=True):
            parameter.grad = gradient
        if step in (5, 16):
            params[0].grad[-1, -1] = nan
        if step == 17:
            params[1].grad = params[5].grad = None
        given = [p.grad if p.grad is not None else torch.zeros_like(p) for p in params]
        for shard, parameter, gradient in zip(shards, params, spread(given, mesh, layout), strict=True):
            shard.grad = None if parameter.grad is None else gradient
        right.step()
        with Messages() as counted:
            tested.step()
        messages = {"fsdp and tensor parallel": 2}.get(layout, 1)  # however many tensors and groups
        assert step == 0 or len(counted.names) == messages, counted.names
        for found, wanted in zip(tested.batch_statistics(), right.batch_statistics(), strict=True):
            assert found.item() == pytest.approx(wanted.item(), rel=1e-9, nan_ok=True), f"step {step}"
    for shard, parameter in zip(shards, params, strict=True):
        assert_part(shard, parameter, 1e-12, "parameter")
        for name in ("exp_avg", "exp_avg_sq"):
            assert_part(tested.state[shard][name], right.state[parameter][name], 1e-12, name)


@pytest.mark.parametrize(
    ("world", "layout", "engine"),
    [(2, "fsdp", "reference"), (4, "fsdp and tensor parallel", "foreach"), (2, "with plain tensors", "fused")],
)
def test_ranks_follow_one_process(ranks, world, layout, engine):
    ranks.run(world, step_on_ranks, layout, engine)


BAD = [
    *(("dof", value) for value in (0.0, -1.0, nan, "high", None)),
    *(("window", value) for value in (0, -5, 9, 20.5, "long", None)),
    *(("threshold", value) for value in (0.0, -4.0, nan, "high", None)),
    *(("minority", value) for value in (0.0, -0.1, 1.1, nan, None)),
    *(("max_norm", value) for value in (-1.0, nan, "median", False)),
    *(("betas", value) for value in ((0.9, 1.0), (-0.1, 0.9), 0.9)),
    *(("weight_decay", value) for value in (-0.1, nan)),
    *(("lr", value) for value in (-1.0, nan)),
    ("eps", -1e-8),
]


@pytest.mark.parametrize(("option", "value"), BAD)
def test_an_impossible_option_is_named(option, value):
    """At construction and in an added group."""
    params = parameters()
    with pytest.raises(ValueError, match=option):
        RobustAdamW(params, **{option: value})
    optimizer = RobustAdamW(params[:2])
    with pytest.raises(ValueError, match=option):
        optimizer.add_param_group({"params": params[2:], option: value})
    assert len(optimizer.param_groups) == 1


def test_what_cannot_be_is_refused():
    params = parameters()
    with pytest.raises((TypeError, ValueError), match="amsgrad") as error:
        RobustAdamW(params, amsgrad=True)
    assert "unexpected keyword" not in str(error.value), "there is a reason, and it is said"
    with pytest.raises(ValueError, match="window"):
        RobustAdamW([{"params": params[:2], "window": 20}, {"params": params[2:], "window": 30}])
    optimizer = RobustAdamW(params[:2], window=20)
    with pytest.raises(ValueError, match="window"):
        optimizer.add_param_group({"params": params[2:], "window": 30})
    adamw = torch.optim.AdamW(params, amsgrad=True)
    train(adamw, params, 1)
    with pytest.raises(ValueError, match="amsgrad"):
        RobustAdamW(params).load_state_dict(adamw.state_dict())
    with pytest.raises((TypeError, ValueError)):
        RobustAdamW(params, 1e-3, (0.9, 0.999), 1e-8, 1e-2, 3.0)  # what is not AdamW's has a name


@pytest.mark.parametrize("options", [{"dof": inf}, {"threshold": inf}, {"minority": 1.0}, {"max_norm": 1}], ids=str)
def test_the_limits_are_allowed(options):
    params = parameters()
    train(RobustAdamW(params, **options), params, 15)
    assert all(parameter.isfinite().all() for parameter in params)


@every_engine
def test_the_batchs_statistics(engine):
    """Three numbers on the device, of the last step; later steps leave them alone."""
    params = parameters()
    optimizer = RobustAdamW(params, window=12, **ENGINES[engine])
    train(optimizer, params, 1)
    first = optimizer.batch_statistics()
    assert first._fields == ("level", "zscore", "trust")
    for value in first:
        assert value.shape == ()
        assert value.device == params[0].device
        assert value.is_floating_point()
        assert not value.requires_grad
    assert first.level.isnan()
    assert first.zscore.isnan()
    assert first.trust == 1.0
    train(optimizer, params, 1, 1)
    level = optimizer.batch_statistics().level
    kept = level.item()
    assert optimizer.batch_statistics().zscore.isnan()
    train(optimizer, params, 10, 2)  # ten levels were known before the last of them
    assert optimizer.batch_statistics().zscore.isfinite()
    assert level.item() == kept
    assert first.level.isnan()


def test_autograd_goes_through_differentiable_steps():
    """As through AdamW's."""
    found = []
    options = {"dof": inf, "threshold": inf}
    for optimizer_class, flags in ((RobustAdamW, options), (torch.optim.AdamW, {})):
        parameter = torch.ones(4, dtype=torch.float64, requires_grad=True).clone()
        gradient = torch.linspace(0.5, 2, 4, dtype=torch.float64, requires_grad=True)
        optimizer = optimizer_class([parameter], eps=1e-2, differentiable=True, **flags)
        for step in range(12):
            parameter.grad = (gradient * (1 + step % 3)).clone()
            optimizer.step()
        parameter.sum().backward()
        found.append(gradient.grad)
    assert_close(*found, 1e-4)  # a differentiable AdamW corrects its averages in float32


def test_the_state_has_adamws_names():
    params, others = parameters(), parameters()
    optimizer, adamw = RobustAdamW(params), torch.optim.AdamW(others)
    train(optimizer, params, 1)
    train(adamw, others, 1)
    for parameter, other in zip(params, others, strict=True):
        assert set(adamw.state[other]) <= set(optimizer.state[parameter])
        assert_close(optimizer.state[parameter]["exp_avg_sq"], adamw.state[other]["exp_avg_sq"], 1e-6)
    assert optimizer.param_groups[0]["weight_decay"] == adamw.param_groups[0]["weight_decay"]


def test_an_adamw_checkpoint_goes_on_where_its_first_parameter_is_frozen():
    params = parameters()
    adamw = torch.optim.AdamW(params)
    train(adamw, params, 3)
    optimizer = RobustAdamW(params)
    optimizer.load_state_dict(adamw.state_dict())
    give_gradients(params, 3)
    params[0].grad = None
    optimizer.step()
    assert optimizer.state[params[1]]["step"] == 4
    assert "batches" in optimizer.state[params[1]]
