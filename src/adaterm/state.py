"""The state of a parameter: how it begins, what a checkpoint must keep, and what it must not be."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, StateDict

from adaterm.engines import fused
from adaterm.engines.choice import engine_for
from adaterm.engines.job import effective_gradient
from adaterm.engines.sharded import Exchange, is_sharded, local, local_gradient
from adaterm.options import Common
from adaterm.rules import Rule, Size

TENSORS = ("step", "exp_avg", "exp_scale")


@dataclass(frozen=True)
class Exact:
    """Carries a state tensor past torch's `load_state_dict`, which would cast it to the parameter's precision."""

    tensor: Tensor


def protect(optimizer: Optimizer, state_dict: StateDict) -> StateDict:
    """A pre-hook that runs after the user's own: torch passes what is not a tensor on as it is."""
    _refuse_foreign(optimizer, state_dict)

    def protected(entry: Any) -> Any:
        if not isinstance(entry, dict):
            return entry
        return {k: Exact(v) if isinstance(v, Tensor) and k != "step" else v for k, v in entry.items()}

    return state_dict | {"state": {key: protected(entry) for key, entry in state_dict["state"].items()}}


def _refuse_foreign(optimizer: Optimizer, state_dict: StateDict) -> None:
    own = set(TENSORS) | set(optimizer._rule.all_scalar_names)  # type: ignore[attr-defined]
    for entry in state_dict["state"].values():
        if isinstance(entry, dict) and entry and not set(TENSORS) <= set(entry) <= own:
            name, found = type(optimizer).__name__, ", ".join(map(str, entry))
            raise ValueError(
                f"this state dict is not of {name}: a parameter's state holds {found}, not {', '.join(own)}"
            )


def restored(name: str, value: Any, parameter: Any) -> Tensor:
    """A saved state tensor on the parameter's device, in its own precision or the least that the parameter asks for.

    Where the parameter is sharded, so is its mean and scale.
    """
    if name in TENSORS and is_sharded(value) and not is_sharded(parameter):
        raise ValueError(f"{name} is sharded and its parameter is not: load it with set_optimizer_state_dict")
    if name in TENSORS and is_sharded(parameter):
        if value.shape != parameter.shape:
            raise ValueError(
                f"a sharded parameter of shape {tuple(parameter.shape)} cannot have {name} of shape "
                f"{tuple(value.shape)}: load the state with torch.distributed.checkpoint's set_optimizer_state_dict"
            )
        value = _shared_as(parameter, value)
    least = state_dtype(parameter)
    found: Tensor = value.to(
        parameter.device, torch.promote_types(value.dtype, least if value.is_complex() else least.to_real())
    )
    return found


def _shared_as(parameter: Any, value: Any) -> Any:
    """A state tensor with a parameter's placements, from any others, or from the whole tensor that every rank has."""
    if is_sharded(value):
        return value.redistribute(parameter.device_mesh, parameter.placements)
    from torch.distributed.tensor import distribute_tensor

    value = value.to(parameter.device)
    return distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)


def state_dtype(parameter: Tensor) -> torch.dtype:
    """The precision of a new state: float32 at least."""
    return torch.promote_types(parameter.dtype, torch.float32)


def step_count(value: float, parameter: Tensor, on_device: bool) -> Tensor:
    """A parameter's number of steps, as torch keeps it."""
    dtype = torch.promote_types(torch.get_default_dtype(), torch.float32)
    # On the host as torch makes it, so that its fake tensors know the value too; on a device without a copy.
    return (
        torch.full((), value, dtype=dtype, device=parameter.device) if on_device else torch.tensor(value, dtype=dtype)
    )


def complete(
    entry: dict[str, Tensor],
    names: tuple[str, ...],
    rule: Rule,
    options: Common,
    parameter: Tensor,
    grad_scale: Tensor | None,
) -> None:
    """Make the state that a new parameter, or an option that was switched on, needs."""
    fresh = _initial_state(rule, options, parameter, grad_scale)
    if entry and "bias_correction" in fresh:
        fresh["bias_correction"].fill_(1.0)  # averages with a past have nothing left to correct
    entry |= {name: fresh[name] for name in names if name not in entry}


@torch.no_grad()
def _initial_state(rule: Rule, options: Common, parameter: Tensor, grad_scale: Tensor | None) -> dict[str, Tensor]:
    mean = torch.zeros_like(parameter, dtype=state_dtype(parameter), memory_format=torch.preserve_format)
    scale = torch.empty_like(mean)
    (reals,) = as_reals([local(scale)])
    reals.fill_(rule.initial_scale)
    if rule.init_scale == "gradient" and parameter.grad is not None and not is_sharded(parameter):
        power = _squares(parameter, parameter.grad, options, reals.dtype, grad_scale).mean()
        _begin_scale(reals, power, rule)
    scalars = rule.initial_scalars(Size.of(size_of(parameter)))
    return {
        "step": step_count(0.0, parameter, options.capturable or engine_for([local(parameter)], options) is fused),
        "exp_avg": mean,
        "exp_scale": scale,
        **{name: torch.full((), value, dtype=reals.dtype, device=parameter.device) for name, value in scalars.items()},
    }


def _squares(
    parameter: Tensor, gradient: Tensor, options: Common, dtype: torch.dtype, grad_scale: Tensor | None
) -> Tensor:
    """The squares of a gradient's elements, as the rule sees it."""
    stored, gradient = (tensor.to(dtype) for tensor in as_reals([parameter, gradient]))
    if grad_scale is not None:
        gradient = gradient / grad_scale.to(gradient.device)
    return effective_gradient(gradient, stored, options).square()


def _begin_scale(scale: Tensor, power: Tensor, rule: Rule) -> None:
    """Set a scale to the mean square of the first gradient, if that is finite."""
    scale.copy_(torch.where(power.isfinite(), power, 0.0).clamp_min(rule.initial_scale))


@torch.no_grad()
def begin_scales(
    begun: list[tuple[Rule, Common, Tensor]],
    state: Mapping[Tensor, dict[str, Tensor]],
    exchange: Exchange,
    grad_scale: Tensor | None,
) -> None:
    """Set the first scales of sharded parameters from their first gradients, of which other ranks have parts."""
    if not begun:
        return
    positions = {id(parameter): position for position, parameter in enumerate(exchange.params)}
    sums = {}
    for _, options, parameter in begun:
        gradient, dtype = local_gradient(parameter, parameter.grad), state_dtype(parameter).to_real()
        sums[positions[id(parameter)]] = _squares(local(parameter), gradient, options, dtype, grad_scale).sum()
    totals = exchange(sums)
    for rule, _, parameter in begun:
        (scale,) = as_reals([local(state[parameter]["exp_scale"])])
        _begin_scale(scale, totals[positions[id(parameter)]] / size_of(parameter), rule)


def size_of(parameter: Tensor) -> int:
    """The number of a tensor's real numbers, on all ranks together."""
    return parameter.numel() * (2 if parameter.is_complex() else 1)


def as_reals(tensors: list[Tensor]) -> list[Tensor]:
    """Complex tensors as pairs of reals, which share their memory."""
    return [torch.view_as_real(tensor) if tensor.is_complex() else tensor for tensor in tensors]
