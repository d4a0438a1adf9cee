"""A bad option, or a gradient that cannot be used, is refused with a useful message before anything changes."""

from math import inf, nan

import numpy
import pytest
import torch
from catalogue import OPTIMIZERS, give_gradients, parameters

import adaterm

BAD = [
    ("AdaTerm", "beta", 1.0, "in [0, 1)"),
    ("AdaTerm", "beta", -0.1, "in [0, 1)"),
    ("AdaTerm", "beta", "high", "in [0, 1)"),
    ("AdaTerm", "eps", 0.0, "at least"),
    ("AdaTerm", "eps", nan, "at least"),
    ("AdaTerm", "min_dof", 0.0, "positive number below 1e30, or inf"),
    ("AdaTerm", "min_dof", None, "positive number below 1e30, or inf"),
    ("AdaTerm", "init_dof", 0.5, "[min_dof=1.0, 1e30)"),
    ("AdaTerm", "init_dof", inf, "[min_dof=1.0, 1e30)"),
    ("AdaTerm", "adaptive_dof", 1, "True or False"),
    ("AdaTerm", "uncentered", None, "True or False"),
    ("AdaTerm", "adaptive_bias_correction", "yes", "True or False"),
    ("AdaTerm", "scale_update", "exact", "'projected' or 'analytic'"),
    ("AdaTerm", "init_scale", 1.0, "'eps' or 'gradient'"),
    ("TAdam", "betas", (0.9, 1.0), "two numbers in [0, 1)"),
    ("TAdam", "betas", 0.9, "two numbers in [0, 1)"),
    ("TAdam", "betas", (0.3, 0.999), "first in [0.5, 1)"),
    ("TAdam", "dof", -1.0, "positive number below 1e30, or inf"),
    ("TAdam", "as_published", 2, "True or False"),
    ("AtAdam", "dof", inf, "finite"),
    ("AtAdam", "beta_dof", 1.0, "in [0, 1)"),
    ("RobustAdamW", "betas", (0.9, 1.0), "two numbers in [0, 1)"),
    ("RobustAdamW", "dof", 0.0, "positive number below 1e30, or inf"),
    ("RobustAdamW", "window", 9, "a whole number from 10 to 4096"),
    ("RobustAdamW", "window", 12.0, "a whole number from 10 to 4096"),
    ("RobustAdamW", "threshold", 0.0, "a positive number, or inf"),
    ("RobustAdamW", "minority", 0.0, "a share of the batches"),
    ("RobustAdamW", "max_norm", 0.0, "None, a positive number"),
    ("RobustAdamW", "max_norm", "median", "None, a positive number"),
    *((name, "lr", value, "non-negative number") for name in OPTIMIZERS for value in (-1.0, nan, inf, "fast", None)),
    *((name, "weight_decay", -0.1, "non-negative") for name in OPTIMIZERS),
    *((name, "eps", -1e-8, "at least") for name in OPTIMIZERS),
    *((name, "maximize", None, "True or False") for name in OPTIMIZERS),
    *((name, "decoupled_weight_decay", 1, "True or False") for name in OPTIMIZERS if name != "RobustAdamW"),
    *((name, "foreach", "auto", "None, True or False") for name in OPTIMIZERS),
]


@pytest.mark.parametrize(("name", "option", "value", "allowed"), BAD)
def test_a_bad_option_is_named(name, option, value, allowed):
    """At construction, in a group, in an added group, and when it is set on a group later."""
    optimizer_class, params = getattr(adaterm, name), parameters()

    def refused():
        return pytest.raises(ValueError, match=rf"{option}=.*must be")

    with refused() as error:
        optimizer_class(params, **{option: value})
    assert repr(value) in str(error.value)
    assert allowed in str(error.value)
    with refused():
        optimizer_class([{"params": params, option: value}])
    optimizer = optimizer_class(params[:2])
    with refused():
        optimizer.add_param_group({"params": params[2:], option: value})
    assert len(optimizer.param_groups) == 1
    give_gradients(params, 0)
    optimizer.param_groups[0][option] = value
    before = params[0].detach().clone()
    with refused():
        optimizer.step()
    assert not optimizer.state
    assert torch.equal(params[0], before)


@pytest.mark.parametrize("value", [-1.0, nan, inf])
def test_a_tensor_learning_rate_is_checked_where_that_costs_nothing(value):
    with pytest.raises(ValueError, match=r"lr=.*must be a non-negative number"):
        adaterm.AdaTerm(parameters(), lr=torch.tensor(value))


def test_numbers_of_numpy_are_numbers():
    optimizer = adaterm.AdaTerm(parameters(), lr=numpy.float32(1e-3), beta=numpy.float64(0.9))
    give_gradients(optimizer.param_groups[0]["params"], 0)
    optimizer.step()


def test_decay_that_is_always_decoupled_cannot_be_switched():
    params = parameters()
    with pytest.raises(TypeError, match="decoupled_weight_decay"):
        adaterm.RobustAdamW(params, decoupled_weight_decay=False)
    with pytest.raises(ValueError, match=r"decoupled_weight_decay=False.*must be True"):
        adaterm.RobustAdamW([{"params": params, "decoupled_weight_decay": False}])
    optimizer = adaterm.RobustAdamW(params)
    give_gradients(params, 0)
    optimizer.param_groups[0]["decoupled_weight_decay"] = False
    with pytest.raises(ValueError, match=r"decoupled_weight_decay=False.*must be True"):
        optimizer.step()
    assert not optimizer.state


def test_conflicts_are_explained():
    params = parameters()
    with pytest.raises(ValueError, match="Tensor lr must be 1-element"):
        adaterm.AdaTerm(params, lr=torch.ones(2))
    with pytest.raises(ValueError, match="lr as a Tensor is not supported for capturable=False and foreach=True"):
        adaterm.AdaTerm(params, lr=torch.tensor(1.0), foreach=True)
    with pytest.raises(RuntimeError, match="`fused` and `foreach` cannot be `True` together"):
        adaterm.AdaTerm(params, fused=True, foreach=True)
    with pytest.raises(RuntimeError, match="`fused` does not support `differentiable`"):
        adaterm.AdaTerm(params, fused=True, differentiable=True)
    with pytest.raises(RuntimeError, match="differentiable=True"):
        adaterm.AdaTerm(params, foreach=True, differentiable=True)
    with pytest.raises(ValueError, match=r"init_dof=100.0.*None where min_dof is inf"):
        adaterm.AdaTerm(params, init_dof=100.0, min_dof=inf)
    with pytest.raises(TypeError, match="unexpected keyword"):
        adaterm.AdaTerm(params, amsgrad=True)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_sparse_gradients_are_refused_before_any_state_changes(name):
    dense, table = torch.ones(3, requires_grad=True), torch.ones(4, 2, requires_grad=True)
    optimizer = getattr(adaterm, name)([{"params": [dense]}, {"params": [table]}])
    dense.grad, table.grad = torch.ones(3), torch.ones(4, 2).to_sparse()
    with pytest.raises(
        RuntimeError, match=rf"{name} does not support gradients of layout torch.sparse_coo.*SparseAdam"
    ):
        optimizer.step()
    assert not optimizer.state
    assert torch.equal(dense, torch.ones(3))
