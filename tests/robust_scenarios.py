"""What RobustAdamW goes through beside its transcription: scenarios, and the check of every step of theirs."""

from dataclasses import dataclass, field
from functools import cache
from math import inf, nan
from typing import NamedTuple

import numpy as np
import pytest
import robust_spec
import torch
from catalogue import ENGINE_TOLERANCE, SHAPES

from adaterm import RobustAdamW

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


@dataclass(eq=False)
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
    "accidents": Scenario([(SHAPES, {})], {"window": 13, "weight_decay": 0.1}, ACCIDENTS),  # full just before step 14
    "no accidents": Scenario([(SHAPES, {})], {"window": 12, "dof": 10.0, "betas": (0.9, 0.95), "threshold": 2.0}),
    "awkward tensors": Scenario(
        [([*SHAPES, (4,), (3, 2), (5,), (2,), (6,)], {})],
        {"window": 20, "weight_decay": 0.1, "max_norm": 5.0},
        [*ACCIDENTS, (48, [5], holding(nan)), (11, [6], holding(inf)), (52, [9], absurd)],
        {5: zero, 6: zero_at_first, 7: constant, 8: missing, 9: quiet},
    ),
    "averages that forget at once": Scenario(
        [([(7, 5), (3,), (5,), ()], {"betas": (0.0, 0.5)}), ([(2, 3)], {"betas": (0.5, 0.0)})],
        {"window": 13, "dof": 1.0, "maximize": True},
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
        {"window": 13, "eps": 1e-6},
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
        {"window": 13},
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
    "a kind of their own, and then a larger window": Scenario(
        [(SHAPES, {})], {"window": 20, "dof": 5.0}, recur(2, 30), changed={60: {"window": 26}}, steps=80
    ),
    "other thresholds, beyond four windows": Scenario(
        [(SHAPES[:2], {"threshold": 6.0}), (SHAPES[2:], {"threshold": 3.0})],
        {"window": 12, "minority": 0.2},
        [(step, ALL, scaled(1.5 + step % 7)) for step in range(20, 150) if step % 10 < 3],
        steps=150,
    ),
    "many in a row": Scenario(
        [(SHAPES, {})], {"window": 40, "minority": 0.6}, [(step, ALL, scaled(30)) for step in range(45, 65)]
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


@cache
def draw_all(scenario, step):
    """Every tensor's gradient; nobody writes to it."""
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
        known.change(scenario.changed.get(step, {}))
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
        assert errors[at] <= self.tolerance, (
            f"{what}, step {step}: {values[at]} at {at}, wanted {wanted[at]}, off by {errors[at]:.1e}"
        )


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
            what = f"{number}, step {step}"
            assert dof == dofs[parameter], f"dof {what}: {known}"
            wanted = known.x * min(1.0, known.w)
            assert trust == pytest.approx(wanted, rel=tolerance, abs=tolerance), f"trust {what}: {known}"
            assert np.isfinite(distance) == known.finite, f"distance {distance} {what}: {known}"
            if known.lam is not None:
                assert distance == pytest.approx(np.exp(known.lam), rel=tolerance), f"distance {what}: {known}"
