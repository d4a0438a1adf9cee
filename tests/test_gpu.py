"""The fused engine's kernels, in Triton's interpreter on the CPU: the same results as the reference engine.

The interpreter is slow, so there are few steps and small tensors here; benchmarks/gpu_check.py has the rest, on a GPU.
"""

import os
import subprocess
import sys
from math import inf, nan

import pytest
import torch
from catalogue import OPTIMIZERS, SEPARATE, assert_close, give_gradients, make, parameters, train
from robust_checks import KERNEL_CHECKS

import adaterm
from adaterm.engines.gpu import engine as gpu

pytestmark = [
    pytest.mark.skipif(not gpu.available, reason="the GPU's engine is off: it needs Triton 3.6 or newer"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # the interpreter's NumPy warns of NaN and infinity
]
SHAPES = [(7, 5), (1,), (), (3, 3000)]
"""The last one is two chunks, the second of them not full."""


def pair(rule, shapes=SHAPES, dtype=torch.float32, **flags):
    """The same parameters twice, for the fused and for the reference engine."""
    fused, plain = parameters(shapes, dtype), parameters(shapes, dtype)
    lr = {"lr": 0.1, **flags}
    return (fused, make(rule, fused, **lr, fused=True)), (plain, make(rule, plain, **lr, foreach=False))


def agree(fused, plain, tolerance=1e-5):
    (params, tested), (others, wanted) = fused, plain
    for parameter, other in zip(params, others, strict=True):
        assert_close(parameter, other, tolerance, f"parameter {tuple(other.shape)}")
        for name, value in wanted.state[other].items():
            assert_close(tested.state[parameter][name], value, tolerance, f"{name} {tuple(other.shape)}")
        known = wanted.statistics()[other]
        for name, found, value in zip(known._fields, tested.statistics()[parameter], known, strict=True):
            torch.testing.assert_close(found, value, rtol=1e-4, atol=0.0, equal_nan=True, msg=name)


@pytest.mark.parametrize("rule", [*SEPARATE, "RobustAdamW (clipped)", "RobustAdamW, no weights"])
def test_kernels_follow_the_reference(rule):
    """Ordinary gradients, an outlier and an excluded one."""
    fused, plain = pair(rule)
    for params, optimizer in (fused, plain):
        train(optimizer, params, 2, start=3)
        give_gradients(params, 0)
        params[0].grad[2, 3] = nan
        params[3].grad[1, 1] = inf
        optimizer.step()
    agree(fused, plain)


@pytest.mark.parametrize("check", KERNEL_CHECKS)
def test_robust_adamw(check):
    KERNEL_CHECKS[check]({"fused": True})


@pytest.mark.parametrize("rule", ["AdaTerm", "AdaTerm2 + AdaBias", "At-AdaBelief"])
def test_kernels_in_double_precision(rule):
    fused, plain = pair(rule, dtype=torch.float64)
    for params, optimizer in (fused, plain):
        train(optimizer, params, 3)
    agree(fused, plain, 1e-12)


either = pytest.mark.parametrize("rule", ["AdaTerm (gradient init)", "RobustAdamW, usual norm"])


@either
def test_precisions_may_be_mixed_in_one_group(rule):
    """The interpreter truncates where a GPU rounds, so that half precisions agree to two of their units."""
    ends = []
    for flags in ({"fused": True}, {"foreach": False}):
        params = [
            p for dtype in (torch.float32, torch.bfloat16, torch.float16) for p in parameters([(5,), (4, 2)], dtype)
        ]
        optimizer = make(rule, params, lr=0.1, **flags)
        train(optimizer, params, 3)
        ends.append((params, optimizer))
    (params, tested), (others, wanted) = ends
    for a, b in zip(params, others, strict=True):
        assert_close(a, b, {torch.bfloat16: 2**-6, torch.float16: 2**-9}.get(a.dtype, 1e-5))
        assert_close(tested.state[a][tested.scale_name], wanted.state[b][wanted.scale_name], 1e-5)
        assert tested.state[a]["exp_avg"].dtype == torch.float32


@either
def test_memory_layouts(rule):
    """Channels last, off the alignment, with gradients in another order, and with gaps, which foreach takes over."""
    layouts = [
        lambda t: t.clone(memory_format=torch.channels_last),
        lambda t: torch.cat([torch.zeros(1), t.flatten()])[1:].view(t.shape),
        lambda t: torch.stack([t, t], dim=-1)[..., 0],
    ]
    ends = []
    for flags in ({"fused": True}, {"foreach": False}):
        params = [layout(torch.arange(120.0).view(2, 4, 5, 3)).requires_grad_() for layout in layouts]
        optimizer = make(rule, params, lr=0.1, **flags)
        train(optimizer, params, 3)
        ends.append((params, optimizer))
    agree(*ends)


@either
def test_a_tensor_learning_rate_and_a_changing_one(rule):
    fused, plain = pair(rule, lr=torch.tensor(0.1))
    for params, optimizer in (fused, plain):
        train(optimizer, params, 1)
        optimizer.param_groups[0]["lr"] = torch.tensor(0.01)
        train(optimizer, params, 1, start=1)
        optimizer.param_groups[0]["lr"] = 0.02
        train(optimizer, params, 1, start=2)
    agree(fused, plain)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_gradscalers_contract(name):
    """Gradients are unscaled on the way, without being written, and a step with a found infinity is no step at all."""
    params, others = parameters(SHAPES), parameters(SHAPES)
    tested, plain = (getattr(adaterm, name)(p, lr=0.1, **f) for p, f in ((params, {"fused": True}), (others, {})))
    assert tested._step_supports_amp_scaling
    tested.grad_scale, tested.found_inf = torch.tensor([8.0]), torch.tensor([0.0])
    give_gradients(params, 0, scale=8.0)
    give_gradients(others, 0)
    scaled = [p.grad.clone() for p in params]
    tested.step()
    plain.step()
    agree((params, tested), (others, plain))
    before = [p.detach().clone() for p in params]
    tested.found_inf.fill_(1.0)
    tested.step()
    assert all(torch.equal(a, b) for a, b in zip(params, before, strict=True))
    assert all(tested.state[p]["step"] == 1 for p in params)
    assert all(trust.isnan() for _, trust, _ in tested.statistics().values())
    assert all(torch.equal(p.grad, g) for p, g in zip(params, scaled, strict=True))


@either
def test_gradscaler_and_a_tensor_with_gaps(rule):
    """Which the kernels cannot step: foreach does, for gradients that were unscaled before."""
    ends = []
    for scale, flags in ((8.0, {"fused": True}), (1.0, {"foreach": False})):
        params = [torch.ones(4, 6).requires_grad_(), torch.ones(4, 6, 2)[..., 0].requires_grad_()]
        optimizer = make(rule, params, lr=0.1, **flags)
        if scale != 1.0:
            optimizer.grad_scale, optimizer.found_inf = torch.tensor(8.0), torch.tensor(0.0)
        for step in range(3):
            give_gradients(params, step, scale)
            optimizer.step()
        ends.append((params, optimizer))
    agree(*ends)
    params, optimizer = ends[0]
    before = [tensor.detach().clone() for p in params for tensor in (p, *optimizer.state[p].values())]
    optimizer.found_inf.fill_(1.0)
    optimizer.step()
    after = [tensor for p in params for tensor in (p, *optimizer.state[p].values())]
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))
    assert all(trust.isnan() for _, trust, _ in optimizer.statistics().values())


@either
def test_stochastic_rounding_is_that_of_the_reference(rule):
    ends = []
    for flags in ({"fused": True}, {"foreach": False}):
        params = parameters([(50, 7), (9000,)], torch.bfloat16)
        optimizer = make(rule, params, lr=0.1, stochastic_rounding=True, **flags)
        train(optimizer, params, 2)
        ends.append(params)
    for a, b in zip(*ends, strict=True):
        assert (a == b).double().mean() > 0.999  # but for values that differ in their last bit before rounding


def test_results_repeat_bit_for_bit():
    runs = []
    for _ in range(2):
        params = parameters(SHAPES)
        train(adaterm.AdaTerm(params, fused=True), params, 2)
        runs.append(params)
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_state_goes_from_engine_to_engine():
    fused, plain = pair("AdaTerm")
    for params, optimizer in (fused, plain):
        train(optimizer, params, 2)
    fused[1].param_groups[0] |= {"fused": False, "foreach": True}
    plain[1].param_groups[0] |= {"fused": True, "foreach": None}
    for params, optimizer in (fused, plain):
        train(optimizer, params, 1, start=2)
    agree(fused, plain)


@pytest.mark.parametrize(
    ("rule", "beta"), [("AdaTerm", {"beta": 0.5}), ("RobustAdamW, usual norm", {"betas": (0.5, 0.9)})]
)
def test_two_groups_of_the_same_sizes_do_not_get_into_each_others_way(rule, beta):
    ends = []
    for flags in ({"fused": True}, {"foreach": False}):
        first, second = parameters(SHAPES, seed=0), parameters(SHAPES, seed=1)
        optimizer = make(rule, [{"params": first}, {"params": second, "lr": 0.5, **beta}], lr=0.1, **flags)
        train(optimizer, [*first, *second], 3)
        ends.append(([*first, *second], optimizer))
    agree(*ends)


def test_the_step_count_is_a_float32_whatever_the_default():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        fused, plain = pair("AdaTerm")
        for params, optimizer in (fused, plain):
            train(optimizer, params, 2)
        agree(fused, plain)
        assert fused[1].state[fused[0][0]]["step"].dtype == torch.float32
    finally:
        torch.set_default_dtype(before)


COMPILE = """
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from adaterm.engines.gpu import case as cases, kernels
from adaterm.rules import AdaTermRule, RobustAdamRule, TRule, kind_of
floats = ("parts", "all_rates", "statistics", "sums", "lr_tensor", "grad_scale", "found_inf")
floats += ("sizes", "history", "verdict")
pointers = dict.fromkeys(floats, "*fp32")
types = pointers | {"owners": "*i32", "table": "*i64", "counters": "*i32", "tensors": "i32"}
names = ("adds_decay", "shrinks", "stochastic", "overlap", "aligned", "lr_tensor", "scaled", "may_skip", "leaves_sums")
names += ("remembers",)
t_rule, robust = TRule(belief=True, dof=1.0, beta_dof=0.9), RobustAdamRule(max_norm="auto")
for rule, on in ((AdaTermRule(), True), (AdaTermRule(), False), (t_rule, True), (robust, True)):
    precisions = {"state": tl.float32, "parameter": tl.bfloat16, "gradient": tl.bfloat16}
    options = {"present": (True,) * len(rule.Scalars._fields), **precisions, **dict.fromkeys(names, on)}
    case = cases.Case(*cases.compile_family(kind_of(rule)), **options)
    judges = (kernels.judge,) if rule.window else ()
    for kernel in (kernels.gauge, *judges, kernels.weigh, kernels.move):
        signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
        source = ASTSource(kernel, signature, constexprs={"CASE": case})
        made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 16})
        print(kernel.__name__, len(made.asm["cubin"]))
"""


def test_kernels_compile_for_a_gpu():
    """Also what the interpreter cannot run: kernels that overlap."""
    environment = os.environ | {"TRITON_INTERPRET": "0"}
    done = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(done.stdout.splitlines()) == 13


def test_what_cannot_be_fused_is_refused(monkeypatch):
    monkeypatch.setattr(gpu, "interpreted", False)
    parameter = torch.zeros(3, device="meta", requires_grad=True)
    parameter.grad = torch.ones(3, device="meta")
    optimizer = adaterm.AdaTerm([parameter], fused=True)
    with pytest.raises(RuntimeError, match="floating point Tensors of supported devices"):
        optimizer.step()
    assert not optimizer.state
