"""Every engine follows the reference engine, for every rule and precision."""

import pytest
import torch
from catalogue import (
    ENGINE_TOLERANCE,
    JUDGING,
    RULES,
    Operations,
    assert_close,
    give_gradients,
    make,
    parameters,
    train,
)
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from adaterm import equations
from adaterm.binding import bind, stages_of
from adaterm.equations import Pace
from adaterm.rules import AdaTermRule, measure
from adaterm.torch_primitives import TORCH


def compare(rule, dtype, steps=40, shapes=None, **flags):
    kwargs = {"shapes": shapes} if shapes else {}
    ends = []
    for foreach in (False, True):
        params = parameters(dtype=dtype, **kwargs)
        optimizer = make(rule, params, foreach=foreach, **flags)
        train(optimizer, params, steps)
        ends.append((params, optimizer))
    (wanted_params, wanted), (params, tested) = ends
    for a, b in zip(params, wanted_params, strict=True):
        assert_close(a, b, ENGINE_TOLERANCE[dtype], f"parameter {tuple(a.shape)}")
        for key, value in wanted.state[b].items():
            tolerance = min(1e-5, ENGINE_TOLERANCE[dtype])  # state is never in half precision
            assert_close(tested.state[a][key], value, tolerance, f"{key} {tuple(a.shape)}")


@pytest.mark.parametrize("dtype", ENGINE_TOLERANCE, ids=str)
@pytest.mark.parametrize("rule", RULES)
def test_foreach_follows_the_reference(rule, dtype):
    compare(rule, dtype)


@pytest.mark.parametrize("rule", ["AdaTerm", "AdaTerm2", "At-Adam", "AdaBelief", "RobustAdamW, usual norm"])
def test_step_counts_and_learning_rate_may_live_on_the_device(rule):
    compare(rule, torch.float64, lr=torch.tensor(1e-2, dtype=torch.float64), capturable=True)


@pytest.mark.parametrize("rule", ["AdaTerm", "At-Adam", "AdaTerm (AdaBias)", "RobustAdamW, usual norm"])
def test_capturable_changes_nothing(rule):
    ends = []
    for capturable in (False, True):
        params = parameters(dtype=torch.float64)
        train(make(rule, params, capturable=capturable), params, 30)
        ends.append(params)
    for a, b in zip(*ends, strict=True):
        assert_close(a, b, 1e-6)  # the step count is a float32


@pytest.mark.parametrize("rule", ["AdaTerm (gradient init)", "RobustAdamW, soon judging"])
def test_one_group_may_mix_precisions_and_step_counts(rule):
    def run(foreach):
        params = [p for dtype in ENGINE_TOLERANCE for p in parameters(dtype=dtype)]
        optimizer = make(rule, params, lr=0.1, foreach=foreach)
        for step in range(20):
            give_gradients(params, step)
            for parameter in params[step % 2 :: 3]:
                parameter.grad = None
            optimizer.step()
        return params, optimizer

    (wanted, reference), (params, tested) = run(False), run(True)
    for a, b in zip(params, wanted, strict=True):
        shared = 1e-5 if rule in JUDGING else 0.0  # one judgement for all, no closer than that of float32
        assert_close(a, b, max(shared, ENGINE_TOLERANCE[a.dtype]))
        assert tested.state[a]["step"] == reference.state[b]["step"]


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("rule", ["AdaTerm (gradient init)", "RobustAdamW, usual norm"])
def test_memory_layout_does_not_matter(rule, foreach):
    def run(layout):
        params = [
            layout(tensor).requires_grad_() for tensor in (torch.ones(4, 6, 5, 3), torch.arange(24.0).view(1, 2, 3, 4))
        ]
        optimizer = make(rule, params, foreach=foreach)
        for step in range(14):
            give_gradients(params, step)
            for parameter in params[: step % 2]:
                parameter.grad = layout(parameter.grad)
            optimizer.step()
        return params, optimizer

    layouts = {
        "contiguous": torch.clone,
        "channels last": lambda t: t.clone(memory_format=torch.channels_last),
        "transposed": lambda t: t.mT.contiguous().mT,
        "a view with gaps": lambda t: torch.stack([t, t], dim=-1)[..., 0],
        "unaligned": lambda t: torch.cat([torch.zeros(1), t.flatten()])[1:].view(t.shape),
    }
    wanted, _ = run(layouts["contiguous"])
    for name, layout in layouts.items():
        params, optimizer = run(layout)
        for a, b in zip(params, wanted, strict=True):
            assert_close(a, b, 1e-6, name)
        if name == "channels last":
            assert optimizer.state[params[0]]["exp_avg"].is_contiguous(memory_format=torch.channels_last)


NOT_COUNTED = ("aten.as_strided.default", "aten.sum.default", "aten._local_scalar_dense.default")
"""Views, sums (one launch for all tensors only on a GPU) and reading step counts."""


@pytest.mark.parametrize("steps_differ", [False, True])
@pytest.mark.parametrize(
    ("rule", "most"),
    {"AdaTerm": 150, "AdaTerm2 + AdaBias": 150, "At-Adam": 150, "RobustAdamW, usual norm": 500}.items(),
)
def test_foreach_takes_as_many_operations_for_many_tensors(rule, most, steps_differ):
    counts = []
    for number in (2, 50):
        params = parameters([(4, 3)] * number)
        optimizer = make(rule, params, foreach=True)
        train(optimizer, params, 1)
        if steps_differ:
            optimizer.state[params[0]]["step"] += 1
        with Operations() as operations:
            optimizer.step()
        counts.append(sum(name not in NOT_COUNTED for name in operations.names))
    assert counts[0] == counts[1] < most


class ScratchMemory(TorchDispatchMode):
    """The most bytes that live at once in tensors which are made while this mode is on."""

    def __init__(self, known):
        super().__init__()
        self.known = {tensor.untyped_storage().data_ptr() for tensor in known}
        self.alive, self.peak = {}, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, list | tuple) else [made]:
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() not in self.known:
                storage = tensor.untyped_storage()
                self.alive[storage.data_ptr()] = StorageWeakRef(storage), storage.nbytes()
        self.alive = {key: value for key, value in self.alive.items() if not value[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self.alive.values()))
        return made


@pytest.mark.parametrize(
    ("rule", "lists"),
    {"AdaTerm": 2, "AdaTerm + L2 decay": 2, "AdaBelief": 1, "RobustAdamW": 2, "RobustAdamW, usual norm": 2}.items(),
)
def test_foreach_needs_few_scratch_lists(rule, lists):
    """At most two buffers as large as all parameters, however many operations there are."""
    params = parameters([(128, 64)] * 5)
    optimizer = make(rule, params, foreach=True)
    train(optimizer, params, 2)
    with ScratchMemory([t for p in params for t in (p, p.grad, *optimizer.state[p].values())]) as scratch:
        optimizer.step()
    assert 0.99 * lists <= scratch.peak / sum(p.numel() * 4 for p in params) <= 1.05 * lists


def test_equations_run_under_vmap():
    """Many trials at once: a batch of problems equals the problems one by one."""
    rule, stages = AdaTermRule(), stages_of("adaterm", TORCH)
    generator = torch.Generator().manual_seed(0)
    gradients = torch.randn(8, 50, 4, dtype=torch.float64, generator=generator)

    def trial(gradients):
        mean, scale, parameter = torch.zeros(4).double(), torch.full((4,), 1e-10).double(), torch.zeros(4).double()
        scalars = rule.Scalars(torch.tensor(1e-5).double(), 0.0)
        options = rule.numbers, rule.flags
        for step, gradient in enumerate(gradients, start=1):
            sums = stages.gauge(gradient, mean, scale, scalars, *options)
            pace = Pace(lr=1e-2, weight_decay=0.0, step=step)
            rates, scalars, *_ = stages.weigh(sums, measure(4), scalars, None, None, pace, *options)
            mean, scale, parameter = stages.move(gradient, mean, scale, parameter, rates, *options)
        return parameter

    batched = torch.vmap(trial)(gradients)
    for one, wanted in zip(batched, map(trial, gradients), strict=True):
        assert_close(one, wanted, 1e-12)


def test_binding_replaces_primitives_everywhere_and_leaves_the_module_alone():
    calls = []
    library = bind({"shift": lambda value, direction, rate: calls.append(rate) or value})
    assert library.gaussian(1.0, 3.0, 0.5, 0.0) == 1.0
    assert calls == [0.5]
    assert equations.gaussian(1.0, 3.0, 0.5, 0.0) == 2.0
