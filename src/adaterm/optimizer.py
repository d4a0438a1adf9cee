"""The torch.optim shell: parameter groups, state, checkpoints and the choice of an engine."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar, cast, overload

import torch
from torch import Tensor
from torch.optim.optimizer import (
    Optimizer,
    ParamsT,
    StateDict,
    _default_to_fused_or_foreach,
)

from adaterm.engines import foreach, fused, gpu, reference
from adaterm.engines.job import Job, Report, effective_gradient, skipped, unscaled
from adaterm.options import Common, option_names
from adaterm.recall import Known, Recall
from adaterm.rules import Rule, Size, Statistics

_COMMON = option_names(Common)
_TENSORS = ("step", "exp_avg", "exp_scale")
_GroupReport = tuple[list[Tensor], list[Report]]


@dataclass(frozen=True)
class _Exact:
    """Carries a state tensor past torch's `load_state_dict`, which would cast it to the parameter's precision."""

    tensor: Tensor


class _LastStep:
    """What a step leaves: reports, which torch.compile would lose as the optimizer's attribute, and jobs to repeat."""

    def __init__(self) -> None:
        self.reports: list[_GroupReport] = []
        self.jobs = Recall()
        self.kept: list[Any] = []


class RobustOptimizer(Optimizer):
    """What AdaTerm and the t-family share: everything but the rule."""

    _rule: ClassVar[type[Rule]]
    _fixed: ClassVar[dict[str, Any]] = {}
    _own_options: ClassVar[tuple[str, ...]]
    _signature: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        cls._own_options = option_names(cls._rule)
        found = inspect.signature(cls).parameters.items()
        cls._signature = cls._signature | {name: it.default for name, it in found if it.default is not it.empty}

    def __init__(self, params: ParamsT, defaults: dict[str, Any]) -> None:
        # A subclass passes its `locals()`, so that its signature is the only list of its options.
        self.defaults = {name: value for name, value in defaults.items() if name not in ("self", "params", "__class__")}
        self._last = _LastStep()
        self._checked(self.defaults)
        super().__init__(params, self.defaults)
        self._settings = [name for name in self.defaults if name != "lr"]
        self._step_supports_amp_scaling = bool(self.defaults["fused"])

    def _checked(self, group: dict[str, Any]) -> tuple[Rule, Common]:
        """The rule and the common options of a parameter group; an option that is not possible raises."""
        own = {name: group[name] for name in self._own_options if name in self.defaults}
        return self._rule(**own, **self._fixed), Common(**{name: group[name] for name in _COMMON})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, with options of its own if it names any."""
        if isinstance(param_group, dict):
            self._checked(self.defaults | param_group)
        super().add_param_group(param_group)

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step, after evaluating the closure, if there is one, with gradients enabled."""
        self._accelerator_graph_capture_health_check()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._last.jobs.check(self.state)
        plans = [self._recalled(index) or self._planned(group) for index, group in enumerate(self.param_groups)]
        if self._begins_badly(plans):
            return loss
        self._last.reports = [self._step_group(index, plan) for index, plan in enumerate(plans)]
        return loss

    def _planned(self, group: dict[str, Any]) -> tuple[Rule, Common, ModuleType]:
        """What to do with a group; all that cannot be done raises here, before anything changes."""
        rule, options = self._checked(group)
        stepped = [parameter for parameter in group["params"] if parameter.grad is not None]
        _refuse_unsupported(self, stepped)
        return rule, options, _engine(stepped, options)

    def _recalled(self, index: int) -> Known | None:
        """The job that the group's gradients had before, if it can be done again."""
        known = self._last.jobs.recall(index, self.param_groups[index], self._settings)
        if known is not None:
            known.job.grad_scale, known.job.found_inf = self._scaler()
        return known

    def _step_group(self, index: int, plan: tuple[Rule, Common, ModuleType] | Known) -> _GroupReport:
        if isinstance(plan, Known):
            return plan.stepped, _run(fused, plan.job)
        group, (rule, options, engine) = self.param_groups[index], plan
        stepped, job = self._job(index, rule, options)
        if engine is fused:
            self._last.jobs.remember(index, group, self._settings, self.state, stepped, job)
        reports = _run(engine, job)
        if options.differentiable:
            self._replace_state(stepped, job)
        return stepped, reports

    def _begins_badly(self, plans: list[Any]) -> bool:
        """Whether GradScaler found infinity in first gradients: there is to be no state of theirs."""
        _, found_inf = self._scaler()
        if found_inf is None or all(isinstance(plan, Known) for plan in plans):
            return False
        params = [parameter for group in self.param_groups for parameter in group["params"]]
        fresh = any(parameter.grad is not None and not self.state.get(parameter) for parameter in params)
        return fresh and bool(found_inf.item())

    def _scaler(self) -> tuple[Tensor | None, Tensor | None]:
        """What GradScaler leaves for an optimizer that unscales by itself."""
        return getattr(self, "grad_scale", None), getattr(self, "found_inf", None)

    def _job(self, index: int, rule: Rule, options: Common) -> tuple[list[Tensor], Job]:
        """The parameters that take part in a step of this group, and the job to do with them."""
        group, first = self.param_groups[index], sum(len(before["params"]) for before in self.param_groups[:index])
        params: list[Tensor] = []
        grads: list[Tensor] = []
        state: list[list[Tensor]] = [[] for _ in (*_TENSORS, *rule.scalar_names)]
        self._init_group(group, params, grads, *state)
        steps, means, scales, *scalars = state
        lists = [params, grads, means, scales]
        if any(parameter.is_complex() for parameter in params):
            lists = [_as_reals(tensors) for tensors in lists]
        job = Job(
            rule,
            options,
            params=lists[0],
            grads=lists[1],
            steps=steps,
            means=lists[2],
            scales=lists[3],
            scalars=dict(zip(rule.scalar_names, scalars, strict=True)),
            positions=[first + i for i, p in enumerate(group["params"]) if p.grad is not None and p.numel()],
            kept=self._last.kept,
        )
        job.grad_scale, job.found_inf = self._scaler()
        return params, job

    def _replace_state(self, params: list[Tensor], job: Job) -> None:
        """Put the tensors that a differentiable step made, and that carry its graph, into the state."""
        for index, parameter in enumerate(params):
            for name, tensors in zip(_TENSORS[1:], (job.means, job.scales), strict=True):
                tensor = tensors[index]
                self.state[parameter][name] = torch.view_as_complex(tensor) if parameter.is_complex() else tensor
            for name, tensors in job.scalars.items():
                self.state[parameter][name] = tensors[index]

    def _init_group(
        self, group: dict[str, Any], params: list[Tensor], grads: list[Tensor], *state: list[Tensor]
    ) -> None:
        """Fill the lists and make missing state; torch.compile runs a method of this name outside the graph."""
        rule, options = self._checked(group)
        names = (*_TENSORS, *rule.scalar_names)
        needed, columns = set(names), list(zip(names, state, strict=True))
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is None:
                continue
            entry = self.state[parameter]
            if not entry.keys() >= needed:
                _complete(entry, names, rule, options, parameter, self._scaler()[0])
            step = entry["step"]
            misplaced = step.is_cpu != parameter.is_cpu or step.dtype != torch.float32
            if misplaced and _engine([parameter], options) is fused:
                entry["step"] = step.to(parameter.device, torch.float32)
            if parameter.numel() == 0:
                continue
            params.append(parameter)
            grads.append(gradient)
            for name, tensors in columns:
                tensors.append(entry[name])

    def statistics(self) -> dict[Tensor, Statistics]:
        """The last step's distance, trust and dof of every parameter that had a gradient, as tensors on its device.

        They are the numbers that the step computed anyway: nothing waits for a device until you read them.
        """
        found: dict[Tensor, Statistics] = {}
        for params, reports in self._last.reports:
            for indices, statistics in reports:
                columns = [column.detach().clone().reshape(-1).unbind() for column in statistics]
                for index, values in zip(indices, zip(*columns, strict=True), strict=True):
                    found[params[index]] = Statistics(*values)
        return found

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Load a state as `torch.optim.Optimizer` does, but keep the precision of the saved state."""
        handle = self.register_load_state_dict_pre_hook(_protect)
        try:
            super().load_state_dict(state_dict)
        finally:
            handle.remove()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        kept = self._last.kept if "_last" in self.__dict__ else []
        self._last = _LastStep()
        self._last.kept = kept  # captured graphs may still be replayed
        self.defaults = self._signature | self.defaults
        self._settings = [name for name in self.defaults if name != "lr"]
        self._step_supports_amp_scaling = bool(self.defaults["fused"])
        for group in self.param_groups:
            for name, value in self._signature.items():
                group.setdefault(name, value)
            for parameter in group["params"]:
                entry = self.state.get(parameter, {})
                for name, value in entry.items():
                    if isinstance(value, _Exact):
                        entry[name] = _restored(value.tensor, parameter)
                if entry and not isinstance(entry["step"], Tensor):
                    entry["step"] = _step_count(float(entry["step"]), parameter, group["capturable"])


def _run(engine: ModuleType, job: Job) -> list[Report]:
    if not job.params:
        return []
    with torch.set_grad_enabled(job.options.differentiable):
        if engine is not fused and (job.grad_scale is not None or job.found_inf is not None):
            plain = unscaled(job)
            return engine.run(plain) if plain else [skipped(job)]
        reports: list[Report] = engine.run(job)
    if engine is fused:
        job.grads = []  # a job that is kept must not keep gradients alive
    return reports


def _protect(optimizer: Optimizer, state_dict: StateDict) -> StateDict:
    """A pre-hook that runs after the user's own: torch passes what is not a tensor on as it is."""
    _refuse_foreign(optimizer, state_dict)

    def protected(entry: Any) -> Any:
        if not isinstance(entry, dict):
            return entry
        return {k: _Exact(v) if isinstance(v, Tensor) and k != "step" else v for k, v in entry.items()}

    return state_dict | {"state": {key: protected(entry) for key, entry in state_dict["state"].items()}}


def _refuse_foreign(optimizer: Optimizer, state_dict: StateDict) -> None:
    own = set(_TENSORS) | set(cast(RobustOptimizer, optimizer)._rule.all_scalar_names)
    for entry in state_dict["state"].values():
        if isinstance(entry, dict) and entry and not set(_TENSORS) <= set(entry) <= own:
            name, found = type(optimizer).__name__, ", ".join(map(str, entry))
            raise ValueError(
                f"this state dict is not of {name}: a parameter's state holds {found}, not {', '.join(own)}"
            )


def _restored(value: Tensor, parameter: Tensor) -> Tensor:
    """A saved state tensor on the parameter's device, in its own precision or the least that the parameter asks for."""
    least = _state_dtype(parameter)
    return value.to(
        parameter.device, torch.promote_types(value.dtype, least if value.is_complex() else least.to_real())
    )


def _state_dtype(parameter: Tensor) -> torch.dtype:
    return torch.promote_types(parameter.dtype, torch.float32)


def _step_count(value: float, parameter: Tensor, on_device: bool) -> Tensor:
    dtype = torch.promote_types(torch.get_default_dtype(), torch.float32)
    # On the host as torch makes it, so that its fake tensors know the value too; on a device without a copy.
    return (
        torch.full((), value, dtype=dtype, device=parameter.device) if on_device else torch.tensor(value, dtype=dtype)
    )


def _complete(
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
    mean = torch.zeros_like(parameter, dtype=_state_dtype(parameter), memory_format=torch.preserve_format)
    scale = torch.empty_like(mean)
    (reals,) = _as_reals([scale])
    reals.fill_(rule.initial_scale)
    if rule.init_scale == "gradient" and parameter.grad is not None:
        gradient = parameter.grad.to(mean.dtype)
        if grad_scale is not None:
            gradient = gradient / grad_scale.to(gradient.device)
        power = _mean_square(parameter, gradient, options, reals.dtype)
        reals.copy_(torch.where(power.isfinite(), power, 0.0).clamp_min(rule.initial_scale))
    scalars = rule.initial_scalars(Size.of(reals))
    return {
        "step": _step_count(0.0, parameter, options.capturable or _engine([parameter], options) is fused),
        "exp_avg": mean,
        "exp_scale": scale,
        **{name: torch.full((), value, dtype=reals.dtype, device=parameter.device) for name, value in scalars.items()},
    }


def _mean_square(parameter: Tensor, gradient: Tensor, options: Common, dtype: torch.dtype) -> Tensor:
    stored, gradient = _as_reals([parameter, gradient])
    return effective_gradient(gradient, stored.to(dtype), options).square().mean()


def _as_reals(tensors: list[Tensor]) -> list[Tensor]:
    return [torch.view_as_real(tensor) if tensor.is_complex() else tensor for tensor in tensors]


def _refuse_unsupported(optimizer: Optimizer, params: list[Tensor]) -> None:
    for parameter in params:
        if hasattr(parameter, "device_mesh"):
            raise RuntimeError(
                f"{type(optimizer).__name__} does not support sharded parameters (DTensor) yet: its distance is a mean "
                "over a whole tensor, and every rank would compute another; train with DDP, or without sharding"
            )
        if parameter.grad is not None and parameter.grad.layout != torch.strided:
            raise RuntimeError(
                f"{type(optimizer).__name__} does not support gradients of layout {parameter.grad.layout}, only of "
                "torch.strided: build the layer with sparse=False, or give its parameters to torch.optim.SparseAdam"
            )


def _engine(params: list[Tensor], options: Common) -> ModuleType:
    """The engine that the options ask for, or else the best there is for these parameters."""
    plain = len(params) > 0 and not (options.differentiable or torch.compiler.is_compiling())
    if options.fused and plain:
        if not all(map(fused.supports, params)):
            fused.refuse(params)
        return fused
    if options.foreach is not None:
        return foreach if options.foreach else reference
    if options.fused is None and plain and not gpu.interpreted and all(map(fused.supports, params)):
        return fused
    if isinstance(options.lr, Tensor) and not options.capturable:
        return reference
    return foreach if _default_to_fused_or_foreach(params, options.differentiable)[1] else reference
