"""What RobustAdamW keeps on every engine: each check takes an engine's flags, so that kernels for GPUs can be given."""

import copy
import pickle
from functools import partial
from itertools import pairwise
from math import inf, nan

import numpy as np
import pytest
import robust_spec
import torch
from catalogue import SHAPES, Operations, assert_close, parameters
from robust_scenarios import Largest, check_the_transcription
from test_state import copies, saved_and_loaded

from adaterm import BatchStatistics, RobustAdamW


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


def judge_steps(tested, params, steps, scales):
    """The statistics of each step; gradients of some are scaled."""
    seen = []
    for step in steps:
        train(tested, params, 1, step, scales.get(step, 1.0))
        seen.append(BatchStatistics(*(value.item() for value in tested.batch_statistics())))
    return seen


def check_beginning(flags, missing=None, window=16):
    """No batch is excluded before a window is full, and one is right after; weights of tensors act sooner.

    The first batch has no level. Nor has one without a finite gradient, which nothing moves: it fills no place.
    """
    params, full = parameters(dtype=torch.float64), window + (missing is not None)
    tested = RobustAdamW(params, lr=1e-2, window=window, **flags)
    scales = {12: 1e4, full: 1e4, full + 1: 1e4} | ({} if missing is None else {missing: nan})
    seen = judge_steps(tested, params, range(full - 1), scales)
    assert [step for step, batch in enumerate(seen) if batch.trust != 1.0] == ([] if missing is None else [missing])
    known = [step > 10 + (missing in range(step)) and step != missing for step in range(full - 1)]  # ten levels
    assert [np.isfinite(batch.zscore) for batch in seen] == known
    before = remember(params)
    train(tested, params, 1, full - 1)
    ordinary, before = measure_move(params, before), remember(params)
    (last,) = judge_steps(tested, params, [full], scales)
    assert last.zscore > 10.0
    assert last.trust == 1.0
    assert max(trust.item() for _, trust, _ in tested.statistics().values()) < 1e-3
    assert 0.0 < measure_move(params, before) < 0.01 * ordinary
    before = remember(params)
    (first,) = judge_steps(tested, params, [full + 1], scales)
    assert first.zscore > 10.0
    assert first.trust < 1e-9
    assert measure_move(params, before) == 0.0


def check_minoritys_beginning(flags, missing=None, window=12):
    """It may be accepted once two windows have passed: one to be full, one of batches that count.

    A batch without a level counts for neither. It is accepted at once, for it is frequent enough all the time.
    """
    params = parameters(dtype=torch.float64)
    tested = RobustAdamW(params, lr=1e-2, window=window, **flags)
    begins = 2 * window + (missing is not None)
    loud = [begins + step for step in (-10, -7, -4, -1, 0, 3, 6)]  # a third
    scales = dict.fromkeys(loud, 30.0) | ({} if missing is None else {missing: nan})
    seen = judge_steps(tested, params, range(begins + 7), scales)
    trusts = [seen[step].trust for step in loud]
    assert max(trusts[:4]) < 0.1, trusts
    assert min(trusts[4:]) > 0.9, trusts


def check_larger_window(flags, window=12, larger=15):
    """After it was made larger, no batch is excluded until it is full again; after it was made smaller, at once."""
    params = parameters(dtype=torch.float64)
    tested = RobustAdamW(params, lr=1e-2, window=window, **flags)
    changed, full = 20, 20 + larger - window
    for step in range(full + 3):
        if step in (changed, full + 2):
            tested.param_groups[0]["window"] = larger if step == changed else window
        (batch,) = judge_steps(tested, params, [step], dict.fromkeys((19, 20, full - 1, full, full + 2), 1e4))
        assert batch.trust == pytest.approx(float(step not in (19, full, full + 2)), abs=0.3), step


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


def check_adamw_checkpoint(flags, before=30, after=40, window=20):
    """It goes on where AdamW was: its first steps are AdamW's, and then its own, which judge batches at last."""
    params = parameters(dtype=torch.float64)
    groups = [{"params": params[:2], "lr": 1e-2}, {"params": params[2:], "betas": (0.8, 0.99), "weight_decay": 0.3}]
    adamw = torch.optim.AdamW(groups)
    train(adamw, params, before)
    params[0].grad = None
    adamw.step()
    twins = copies(params)
    tested = RobustAdamW([{"params": twins[:2]}, {"params": twins[2:]}], window=window, **flags)
    tested.load_state_dict(saved_and_loaded(adamw.state_dict()))
    assert [group["lr"] for group in tested.param_groups] == [1e-2, 1e-3]
    for group in tested.param_groups:
        group |= {"foreach": None, "fused": None} | flags
    known = robust_spec.RobustAdamW(
        [group | {"tensors": [p.detach().numpy() for p in group["params"]]} for group in groups], window=window
    )
    states = [adamw.state[parameter] for parameter in params]
    known.load_adamw([(int(s["step"]), s["exp_avg"].numpy().copy(), s["exp_avg_sq"].numpy().copy()) for s in states])
    largest = Largest(1e-12)
    for step in range(100, 100 + after):
        train(tested, twins, 1, step, 100.0 if step in (115, 130) else 1.0)
        known.step([twin.grad.numpy() for twin in twins])
        assert (tested.batch_statistics().trust < 0.5) == (step == 130), step
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
    "the first steps": check_beginning,
    "the first steps, one without a level": partial(check_beginning, missing=7),
    "the first steps, one of the last without a level": partial(check_beginning, missing=15),
    "a minority's first steps": check_minoritys_beginning,
    "a minority's first steps, one without a level": partial(check_minoritys_beginning, missing=7),
    "a minority's first steps, one without a level that would count": partial(check_minoritys_beginning, missing=20),
    "a larger window": check_larger_window,
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
