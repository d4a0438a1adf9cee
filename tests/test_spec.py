"""Every rule, on every engine, is the published method: parameters, state and statistics.

RobustAdamW is in test_robust_adamw: it takes all tensors together.
"""

from math import inf, nan

import numpy as np
import pytest
import spec
import torch
from catalogue import ENGINES, RULES, SEPARATE, SHAPES, assert_close, make

EXCLUDED = (0, 17)
"""Steps whose gradient holds a NaN or an infinity."""


@pytest.mark.parametrize("excluded", [(), EXCLUDED], ids=["clean", "with excluded steps"])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("rule", SEPARATE)
def test_rule(rule, engine, excluded):
    generator = np.random.default_rng(0)
    wanted = [np.array(generator.normal(size=shape)) for shape in SHAPES]
    params = [torch.tensor(theta, requires_grad=True) for theta in wanted]
    starts = [theta.copy() for theta in wanted]
    tested = make(rule, params, lr=1e-2, **ENGINES[engine])
    known = [spec.method(RULES[rule][0], {"lr": 1e-2, **RULES[rule][1]}) for _ in SHAPES]
    for step in range(60):
        gradients = [np.array(generator.normal(size=s) * (100.0 if step % 7 == 6 else 1.0)) for s in SHAPES]
        if step in excluded:
            for gradient in gradients:
                gradient[(0,) * gradient.ndim] = nan if step else inf
        for j, parameter in enumerate(params):
            parameter.grad = torch.tensor(gradients[j])
            wanted[j] = known[j].step(wanted[j], gradients[j])
        tested.step()
        for j, (parameter, statistics) in enumerate(tested.statistics().items()):
            state, truth = tested.state[parameter], known[j]
            path = max(1e-3, abs(wanted[j] - starts[j]).max())
            assert abs(parameter.detach().numpy() - wanted[j]).max() <= 1e-10 * path, f"parameter {j}, step {step}"
            pairs = {"exp_avg": truth.m, "exp_scale": truth.v, **truth.state()}
            for name, value in pairs.items():
                if name in state:
                    expected = torch.as_tensor(value, dtype=torch.float64).expand(state[name].shape)
                    assert_close(state[name], expected, 1e-9, f"{name} {j}, step {step}")
            if np.isfinite(truth.D):
                assert statistics.distance.item() == pytest.approx(truth.D, rel=1e-9)
            else:
                assert not statistics.distance.isfinite()
            assert statistics.trust.item() == pytest.approx(truth.trust, rel=1e-9)
            assert statistics.dof.item() == pytest.approx(truth.nu, rel=1e-9)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("beta", [0.0, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("dof", [0.1, 1.0, 1e3, 1e6, 1e10])
def test_float32_scale_is_right_in_every_element(dof, beta, engine):
    """Also the small ones beside large ones, where terms of very different size meet."""
    spread = np.array([1, 1, 1, 1, 1e-3, 1e-3, 0, 0])
    parameter = torch.zeros(8, requires_grad=True)
    options = {"beta": beta, "min_dof": min(1.0, dof), "init_dof": dof}
    tested, known = make("AdaTerm", [parameter], **options, **ENGINES[engine]), spec.AdaTerm(**options)
    generator, theta = np.random.default_rng(0), np.zeros(8)
    for _ in range(200):
        gradient = (generator.normal(size=8) * spread).astype(np.float32)
        parameter.grad = torch.tensor(gradient)
        tested.step()
        theta = known.step(theta, gradient.astype(np.float64))
    np.testing.assert_allclose(tested.state[parameter]["exp_scale"].numpy(), known.v, rtol=2e-4)
