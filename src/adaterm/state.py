"""The state of a parameter: how it begins, what a checkpoint must keep, and what is refused."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.optim.optimizer import Optimizer, StateDict

from adaterm.engines.agreement import Agreement, Sums, get_local, get_local_gradient, is_sharded
from adaterm.engines.fused import match_order
from adaterm.engines.group_step import as_reals, count_elements
from adaterm.equations import Notes, direct
from adaterm.options import FOREIGN_OPTIONS, Common, warn_user
from adaterm.rules import HISTORY, WINDOW, Rule, measure, name_state
from adaterm.torch_primitives import find_widest

_PIECE = 1 << 14  # elements that are added up on their own, by one thread: torch shares out longer sums
_CHUNK = 1 << 24  # elements at a time, so that nothing as large as a parameter is needed beside it


@dataclass(frozen=True)
class Exact:
    """Carries a state tensor past torch's `load_state_dict`, which would cast it to the parameter's precision."""

    tensor: Tensor


def check_and_protect(optimizer: Any, state_dict: StateDict) -> StateDict:
    """A pre-hook that runs after the user's own: torch passes what is not a tensor on as it is."""
    if not {"state", "param_groups"} <= set(state_dict):
        keys = ", ".join(map(str, list(state_dict)[:5]))
        raise ValueError(
            f"this is not the state of an optimizer, but has the keys {keys}: load what optimizer.state_dict() gave, "
            "not the model's state or a whole checkpoint"
        )
    if optimizer.scale_name == "exp_avg_sq":
        state_dict = _adopt_adam(optimizer, state_dict)
    _refuse_foreign(optimizer, state_dict, optimizer.scale_name)

    def protect(entry: Any) -> Any:
        if not isinstance(entry, dict):
            return entry
        return {k: Exact(v) if isinstance(v, Tensor) and k != "step" else v for k, v in entry.items()}

    return state_dict | {"state": {key: protect(entry) for key, entry in state_dict["state"].items()}}


def _adopt_adam(optimizer: Optimizer, state_dict: StateDict) -> StateDict:
    """Give groups of torch's AdamW the options that they lack: those of this optimizer's own groups."""
    groups = []
    for group, current in zip(state_dict["param_groups"], optimizer.param_groups, strict=False):
        if group.get("amsgrad"):
            raise ValueError(
                "a state of amsgrad=True does not fit RobustAdamW, which has no amsgrad: load only the model's "
                "parameters, and begin with a new optimizer"
            )
        if group.get("weight_decay") and not group.get("decoupled_weight_decay", True):
            warn_user("the weight decay of this state was L2, added to gradients; here it is decoupled, as in AdamW")
        saved = {name: value for name, value in group.items() if name != "amsgrad"}
        added = {name: current[name] for name in optimizer.defaults if name in current}
        groups.append({**added, **saved, "decoupled_weight_decay": True})
    if len(groups) < len(state_dict["param_groups"]):
        return state_dict  # which torch refuses
    return state_dict | {"param_groups": groups}


def _refuse_foreign(optimizer: Optimizer, state_dict: StateDict, scale_name: str) -> None:
    """Raise if a state dict is of another kind of optimizer; more than we need is no reason."""
    name = type(optimizer).__name__
    for group in state_dict["param_groups"]:
        foreign = [option for option in FOREIGN_OPTIONS if option in group and option not in optimizer.defaults]
        if foreign:
            raise ValueError(
                f"this state dict is not of {name}: its parameter groups have the options {', '.join(foreign)}. "
                f"Another optimizer's state does not fit: begin with a new {name}, or load the state into the "
                "optimizer that saved it" + (". RobustAdamW can load that of AdamW" if "amsgrad" in foreign else "")
            )
    for entry in state_dict["state"].values():
        needed = ("step", "exp_avg", scale_name)
        missing = [key for key in needed if isinstance(entry, dict) and entry and key not in entry]
        if missing:
            raise ValueError(
                f"this state dict is not of {name}: a parameter's state holds {', '.join(map(str, entry))}, "
                f"and {', '.join(missing)} is missing"
            )


def restore(entry: dict[str, Any], parameter: Tensor, on_device: bool) -> None:
    """Put loaded values into a parameter's state."""
    for name, value in entry.items():
        if isinstance(value, Exact):
            entry[name] = _restore_tensor(name, value.tensor, parameter)
    if entry and not isinstance(entry["step"], Tensor):
        entry["step"] = count_steps(float(entry["step"]), parameter, on_device)


def _restore_tensor(name: str, value: Any, parameter: Any) -> Tensor:
    """A saved state tensor on the parameter's device, in its own precision or the least that the parameter asks for.

    Where the parameter is sharded, so is its mean and scale.
    """
    averages = name in ("exp_avg", "exp_scale", "exp_avg_sq")
    if averages and is_sharded(value) and not is_sharded(parameter):
        raise ValueError(f"{name} is sharded and its parameter is not: load it with set_optimizer_state_dict")
    if averages and is_sharded(parameter):
        if value.shape != parameter.shape:
            raise ValueError(
                f"a sharded parameter of shape {tuple(parameter.shape)} cannot have {name} of shape "
                f"{tuple(value.shape)}: load the state with torch.distributed.checkpoint's set_optimizer_state_dict"
            )
        value = _shard_like(parameter, value)
    if not value.is_floating_point() and not value.is_complex():
        return value.to(parameter.device)  # type: ignore[no-any-return]
    least = state_dtype(parameter)
    dtype = torch.promote_types(value.dtype, least if value.is_complex() else least.to_real())
    return value.to(parameter.device, dtype)  # type: ignore[no-any-return]


def _shard_like(parameter: Any, value: Any) -> Any:
    """A state tensor with a parameter's placements, from any others, or from the whole tensor that every rank has."""
    if is_sharded(value):
        return value.redistribute(parameter.device_mesh, parameter.placements)
    return share_out(value.to(parameter.device), parameter.device_mesh, parameter.placements)


def share_out(tensor: Tensor, mesh: Any, placements: Any) -> Any:
    """A tensor that every rank has, sharded; without a message."""
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor, mesh, placements, src_data_rank=None)


def state_dtype(parameter: Tensor) -> torch.dtype:
    """The precision of a new state: float32 at least."""
    return torch.promote_types(parameter.dtype, torch.float32)


def count_steps(value: float, parameter: Tensor, on_device: bool) -> Tensor:
    """A parameter's number of steps, as torch keeps it."""
    dtype = torch.promote_types(torch.get_default_dtype(), torch.float32)
    # On the host as torch makes it, so that its fake tensors know the value too; on a device without a copy.
    return (
        torch.full((), value, dtype=dtype, device=parameter.device) if on_device else torch.tensor(value, dtype=dtype)
    )


def complete(
    entry: dict[str, Tensor], rule: Rule, options: Common, parameter: Tensor, grad_scale: Tensor | None, engine: str
) -> None:
    """Make the state that a new parameter, or an option that was switched on, needs, where the engine needs it."""
    names = name_state(rule)
    if not all(name in entry for name in names):
        on_device = options.capturable or engine == "fused"
        past = float(entry["step"]) if entry else 0.0
        fresh = _make_state(rule, options, parameter, grad_scale, on_device, past)
        for name in names:
            entry.setdefault(name, fresh[name])
    if WINDOW in entry and len(entry[WINDOW]) != rule.window:
        entry[WINDOW] = _resize(entry[WINDOW], rule.window)
    _unify(entry, rule, parameter)
    if engine == "fused":
        step = entry["step"]
        if step.is_cpu != parameter.is_cpu or step.dtype != torch.float32:
            entry["step"] = step.to(parameter.device, torch.float32)
        for name in ("exp_avg", rule.scale_name):
            match_order(get_local(entry[name]), get_local(parameter))


def _resize(window: Tensor, length: int) -> Tensor:
    """A window of another length, with as many of its newest values as fit, which come first."""
    return pad(window[..., :length], (0, max(0, length - window.shape[-1])), value=inf)


def _unify(entry: dict[str, Tensor], rule: Rule, parameter: Tensor) -> None:
    """Give mean, scale and scalars the parameter's device and one precision: models are moved and cast."""
    tensors = (entry["exp_avg"], entry[rule.scale_name], parameter)
    real = torch.float64 if any(torch.finfo(tensor.dtype).bits == 64 for tensor in tensors) else torch.float32
    for name in name_state(rule)[1:]:
        dtype = real.to_complex() if name in ("exp_avg", rule.scale_name) and parameter.is_complex() else real
        if entry[name].dtype != dtype or entry[name].device != parameter.device:
            entry[name] = entry[name].to(parameter.device, dtype)


@torch.no_grad()
def _make_state(
    rule: Rule, options: Common, parameter: Tensor, grad_scale: Tensor | None, on_device: bool, past: float
) -> dict[str, Tensor]:
    mean = torch.zeros_like(parameter, dtype=state_dtype(parameter), memory_format=torch.preserve_format)
    scale = torch.empty_like(mean)
    (reals,) = as_reals([get_local(scale)])
    reals.fill_(rule.initial_scale)
    if rule.init_scale == "gradient" and parameter.grad is not None and not is_sharded(parameter):
        total = _sum_squares(parameter, parameter.grad, options, reals.dtype, grad_scale)
        _begin_scale(reals, total / count_elements(parameter), rule)
    scalars = rule.initial_scalars(measure(count_elements(parameter)), past)
    entry = {"step": count_steps(0.0, parameter, on_device), "exp_avg": mean, rule.scale_name: scale}
    entry |= {name: reals.new_full((), value) for name, value in scalars.items()}
    return entry | ({WINDOW: reals.new_full((rule.window,), inf)} if rule.window else {})


def keep_history(state: Mapping[Tensor, dict[str, Tensor]], params: list[Tensor], window: int) -> Tensor:
    """What was noted of the last batches, newest first, as it fits the window and its keeper.

    The keeper is the first of the parameters that has a window, also after torch's checkpoints have made state.
    """
    keeper = next(state[parameter] for parameter in params if WINDOW in state.get(parameter, {}))
    previous = next((entry for entry in state.values() if HISTORY in entry), keeper)
    history = previous.pop(HISTORY, None)
    like = keeper[WINDOW]
    rows = len(Notes._fields)
    if history is None:
        history = like.new_full((rows, window), inf)
    elif history.shape != (rows, window):  # an older version had fewer notes
        history = pad(_resize(history, window)[:rows], (0, 0, 0, max(0, rows - len(history))), value=inf)
    keeper[HISTORY] = history.to(like)
    return keeper[HISTORY]


def _sum_squares(
    parameter: Tensor, gradient: Tensor, options: Common, dtype: torch.dtype, grad_scale: Tensor | None
) -> Tensor:
    """The sum of squares of a gradient's elements, as the rule sees it; the same for any number of threads."""
    sign = 1.0 if grad_scale is None else 1.0 / grad_scale.reshape(()).to(gradient.device)
    sign = -sign if options.maximize else sign
    reals = as_reals([gradient.resolve_conj() if gradient.is_complex() else gradient, parameter])
    flat = [torch.split(tensor.reshape(-1), _CHUNK) for tensor in reals]
    totals, widest = [], find_widest(gradient)
    for part, stored in zip(*flat, strict=True):
        seen = direct(part.to(dtype), stored.to(dtype), sign, options.weight_decay, options.adds_decay)
        squares = seen.square()
        while squares.numel() > _PIECE:
            whole = squares.numel() // _PIECE * _PIECE
            pieces = squares[:whole].view(-1, _PIECE).sum(1, dtype=widest)
            squares = torch.cat([pieces, squares[whole:].sum(dtype=widest).reshape(1)])
        totals.append(squares.sum(dtype=widest))
    return torch.stack(totals).sum().to(dtype)


def _begin_scale(scale: Tensor, power: Tensor, rule: Rule) -> None:
    """Set a scale to the mean square of the first gradient, if that is finite."""
    scale.copy_(torch.where(power.isfinite(), power, 0.0).clamp_min(rule.initial_scale))


@torch.no_grad()
def begin_shared_scales(
    rule: Rule,
    options: Common,
    fresh: list[Tensor],
    state: Mapping[Tensor, dict[str, Tensor]],
    params: list[Tensor],
    agreement: Agreement,
    grad_scale: Tensor | None,
) -> None:
    """Set the first scales of sharded parameters from their first gradients, of which other ranks have parts."""
    positions = {id(parameter): position for position, parameter in enumerate(params)}
    begun = [parameter for parameter in fresh if is_sharded(parameter)]
    sums = []
    for parameter in begun:
        gradient, dtype = get_local_gradient(parameter), state_dtype(parameter).to_real()
        total = _sum_squares(get_local(parameter), gradient, options, dtype, grad_scale)
        sums.append(Sums([positions[id(parameter)]], total.reshape(1, 1)))
    totals, _ = agreement.reach(sums, 1) if begun else ([], None)
    for parameter, total in zip(begun, totals, strict=True):
        (scale,) = as_reals([get_local(state[parameter][rule.scale_name])])
        _begin_scale(scale, total.reshape(()) / count_elements(parameter), rule)


def is_rehearsal(groups: list[dict[str, Any]], agreement: Agreement | None) -> bool:
    """Whether a first step has lr 0 and gradients of 0: torch's checkpoints take one, to make state."""
    if any((isinstance(group["lr"], Tensor) and not group["lr"].is_cpu) or group["lr"] != 0.0 for group in groups):
        return False
    params = [parameter for group in groups for parameter in group["params"]]
    sums = [
        Sums([position], get_local_gradient(parameter).abs().sum().real.reshape(1, 1))
        for position, parameter in enumerate(params)
        if parameter.grad is not None
    ]
    totals = agreement.reach(sums, 1)[0] if agreement else [each.values for each in sums]
    return not any(bool(total) for total in totals)


def forget_rehearsal(state: dict[Tensor, dict[str, Tensor]], params: list[Tensor]) -> None:
    """Drop state that was only rehearsed, unless something was loaded into it: the first step makes its own."""
    for parameter in params:
        if parameter in state and not state[parameter]["step"]:
            del state[parameter]


def begins_with_infinity(
    state: Mapping[Tensor, Any], params: list[Tensor], agreement: Agreement | None, found_inf: Tensor | None
) -> bool:
    """Whether GradScaler found infinity in first gradients, which then must not make state."""
    if found_inf is None or all(state.get(parameter) for parameter in params if parameter.grad is not None):
        return False
    if agreement is not None:
        _, found_inf = agreement.reach([], 1, found_inf)
    return found_inf is not None and bool(found_inf.item())
