"""The torch.optim shell: parameter groups, state, checkpoints and the choice of an engine."""

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any, ClassVar, overload

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT, StateDict

from adaterm.engines import fused, sharded
from adaterm.engines.choice import engine_for
from adaterm.engines.job import Job, Report, skipped, unscaled
from adaterm.engines.sharded import Exchange, is_sharded, local, local_gradient, part
from adaterm.options import Common, option_names
from adaterm.recall import Known, Recall
from adaterm.rules import Rule, Statistics
from adaterm.state import TENSORS, Exact, as_reals, begin_scales, complete, protect, restored, size_of, step_count

_COMMON = option_names(Common)
_GroupReport = tuple[list[Tensor], list[Report]]
_Plan = tuple[Rule, Common, ModuleType]
_Work = tuple[list[Tensor], ModuleType, Job]


class _LastStep:
    """What a step leaves: reports, which torch.compile would lose as the optimizer's attribute, and jobs to repeat."""

    def __init__(self) -> None:
        self.reports: list[_GroupReport] = []
        self.jobs = Recall()
        self.kept: list[Any] = []
        self.exchange: Exchange | None = None
        self.rehearsed = False  # whether there is state, and no step was taken


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
        self._given = getattr(self, "_given", set()) | _ids(self.param_groups[-1:])

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
        if self._last.rehearsed and not torch.compiler.is_compiling():
            self._begin_anew()
        self._last.jobs.check(self.state)
        plans = [self._recalled(index) or self._planned(group) for index, group in enumerate(self.param_groups)]
        repeated = all(isinstance(plan, Known) for plan in plans)  # which none is where anything is sharded
        if not repeated and any(map(is_sharded, self._all())):
            pairs = zip(self.param_groups, plans, strict=True)
            self._step_together([self._planned(group) if isinstance(plan, Known) else plan for group, plan in pairs])
        elif self._is_rehearsal(None):
            self._rehearse(plans)
        elif not self._begins_badly(plans):
            work = [self._prepared(index, plan) for index, plan in enumerate(plans)]
            self._last.reports = [self._carried_out(*each) for each in work]
        return loss

    def _planned(self, group: dict[str, Any]) -> _Plan:
        """What to do with a group; all that cannot be done raises here, before anything changes."""
        rule, options = self._checked(group)
        stepped = [parameter for parameter in group["params"] if parameter.grad is not None]
        _refuse_unsupported(self, stepped)
        sharded.refuse_flat(stepped, self._all(), self._given)
        return rule, options, engine_for([local(parameter) for parameter in stepped], options)

    def _recalled(self, index: int) -> Known | None:
        """The job that the group's gradients had before, if it can be done again."""
        known = self._last.jobs.recall(index, self.param_groups[index], self._settings)
        if known is not None:
            known.job.grad_scale, known.job.found_inf = self._scaler()
        return known

    def _prepared(self, index: int, plan: _Plan | Known, remember: bool = True) -> _Work:
        if isinstance(plan, Known):
            return plan.stepped, fused, plan.job
        group, (rule, options, engine) = self.param_groups[index], plan
        stepped, job = self._job(index, rule, options)
        if engine is fused and remember:
            self._last.jobs.remember(index, group, self._settings, self.state, stepped, job)
        return stepped, engine, job

    def _carried_out(self, stepped: list[Tensor], engine: ModuleType, job: Job) -> _GroupReport:
        reports = _run(engine, job)
        if job.options.differentiable:
            self._replace_state(stepped, job)
        return stepped, reports

    def _step_together(self, plans: list[_Plan]) -> None:
        """Take a step with the other ranks that hold parts of the parameters."""
        if any(options.differentiable for _, options, _ in plans):
            raise RuntimeError("differentiable=True is not supported where parameters are sharded (DTensor)")
        params, exchange = self._all(), self._last.exchange
        if exchange is None or not exchange.fits(params):
            self._last.exchange = exchange = Exchange(params)
        if self._is_rehearsal(exchange):
            return self._rehearse(plans)
        if self._begins_badly(plans):
            return None
        fresh = {id(parameter) for parameter in params if not self.state.get(parameter)}
        work = [self._prepared(index, plan, remember=False) for index, plan in enumerate(plans)]
        begun = [
            (rule, options, parameter)
            for (rule, options, _), (stepped, *_) in zip(plans, work, strict=True)
            for parameter in stepped
            if id(parameter) in fresh and rule.init_scale == "gradient" and is_sharded(parameter)
        ]
        begin_scales(begun, self.state, exchange, self._scaler()[0])
        reports = sharded.run([(engine, job) for _, engine, job in work], exchange)
        self._last.reports = [(stepped, found) for (stepped, *_), found in zip(work, reports, strict=True)]
        torch.autograd.graph.increment_version([parameter for stepped, *_ in work for parameter in stepped])
        return None

    def _is_rehearsal(self, exchange: Exchange | None) -> bool:
        """Whether this is a first step with lr 0 and gradients of 0: torch's checkpoints take one, to make state."""
        if torch.compiler.is_compiling() or self.state:
            return False
        for group in self.param_groups:
            lr = group["lr"]
            if (isinstance(lr, Tensor) and not lr.is_cpu) or lr != 0.0:
                return False
        sums = {
            position: local_gradient(parameter, parameter.grad).abs().sum().real
            for position, parameter in enumerate(self._all())
            if parameter.grad is not None
        }
        return not any(bool(total) for total in (exchange(sums) if exchange else sums).values())

    def _rehearse(self, plans: list[Any]) -> None:
        """Make the state, and leave it as it begins: the next step is the first."""
        for index, (rule, options, _) in enumerate(plans):
            self._job(index, rule, options)
        self._last.reports, self._last.rehearsed = [], True

    def _begin_anew(self) -> None:
        """Drop state that was only rehearsed, unless something was loaded into it: the first step makes its own."""
        for parameter in self._all():
            if parameter in self.state and not self.state[parameter]["step"]:
                del self.state[parameter]
        self._last.rehearsed = False

    def _all(self) -> list[Tensor]:
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def _begins_badly(self, plans: list[Any]) -> bool:
        """Whether GradScaler found infinity in first gradients: there is to be no state of theirs."""
        _, found_inf = self._scaler()
        if found_inf is None or all(isinstance(plan, Known) for plan in plans):
            return False
        fresh = any(parameter.grad is not None and not self.state.get(parameter) for parameter in self._all())
        return fresh and bool(found_inf.item())

    def _scaler(self) -> tuple[Tensor | None, Tensor | None]:
        """What GradScaler leaves for an optimizer that unscales by itself."""
        return getattr(self, "grad_scale", None), getattr(self, "found_inf", None)

    def _job(self, index: int, rule: Rule, options: Common) -> tuple[list[Tensor], Job]:
        """The parameters that take part in a step of this group, and the job to do with them."""
        group, first = self.param_groups[index], sum(len(before["params"]) for before in self.param_groups[:index])
        params: list[Tensor] = []
        grads: list[Tensor] = []
        state: list[list[Tensor]] = [[] for _ in (*TENSORS, *rule.scalar_names)]
        self._init_group(group, params, grads, *state)
        steps, means, scales, *scalars = state
        positions = [first + i for i, p in enumerate(group["params"]) if p.grad is not None and p.numel()]
        count = sum(len(each["params"]) for each in self.param_groups)
        lists = [[local(tensor) for tensor in tensors] for tensors in (params, means, scales)]
        lists.insert(1, [local_gradient(*pair) for pair in zip(params, grads, strict=True)])
        if any(parameter.is_complex() for parameter in params):
            lists = [as_reals(tensors) for tensors in lists]
        job = Job(
            rule,
            options,
            params=lists[0],
            grads=lists[1],
            steps=steps,
            means=lists[2],
            scales=lists[3],
            scalars=dict(zip(rule.scalar_names, scalars, strict=True)),
            sizes=[size_of(parameter) for parameter in params],
            positions=positions,
            streams=[at + count * part(parameter) for at, parameter in zip(positions, params, strict=True)],
            kept=self._last.kept,
        )
        job.grad_scale, job.found_inf = self._scaler()
        return params, job

    def _replace_state(self, params: list[Tensor], job: Job) -> None:
        """Put the tensors that a differentiable step made, and that carry its graph, into the state."""
        for index, parameter in enumerate(params):
            for name, tensors in zip(TENSORS[1:], (job.means, job.scales), strict=True):
                tensor = tensors[index]
                self.state[parameter][name] = torch.view_as_complex(tensor) if parameter.is_complex() else tensor
            for name, tensors in job.scalars.items():
                self.state[parameter][name] = tensors[index]

    def _init_group(
        self, group: dict[str, Any], params: list[Tensor], grads: list[Tensor], *state: list[Tensor]
    ) -> None:
        """Fill the lists and make missing state; torch.compile runs a method of this name outside the graph."""
        rule, options = self._checked(group)
        names = (*TENSORS, *rule.scalar_names)
        needed, columns = set(names), list(zip(names, state, strict=True))
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is None:
                continue
            entry = self.state[parameter]
            if not entry.keys() >= needed:
                complete(entry, names, rule, options, parameter, self._scaler()[0])
            step = entry["step"]
            misplaced = step.is_cpu != parameter.is_cpu or step.dtype != torch.float32
            if misplaced and engine_for([local(parameter)], options) is fused:
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
        handle = self.register_load_state_dict_pre_hook(protect)
        try:
            super().load_state_dict(state_dict)
        finally:
            handle.remove()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_given" not in self.__dict__:
            self._given = _ids(self.param_groups)
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
                    if isinstance(value, Exact):
                        entry[name] = restored(name, value.tensor, parameter)
                if entry and not isinstance(entry["step"], Tensor):
                    entry["step"] = step_count(float(entry["step"]), parameter, group["capturable"])
                if entry and type(entry["step"]) is Tensor and not entry["step"]:
                    self._last.rehearsed = True


def _ids(groups: list[dict[str, Any]]) -> set[int]:
    return {id(parameter) for group in groups for parameter in group["params"]}


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


def _refuse_unsupported(optimizer: Optimizer, params: list[Tensor]) -> None:
    for parameter in params:
        if parameter.grad is not None and is_sharded(parameter) != is_sharded(parameter.grad):
            kinds = ["a DTensor" if is_sharded(tensor) else "a plain tensor" for tensor in (parameter, parameter.grad)]
            raise RuntimeError(f"a parameter is {kinds[0]} but its gradient is {kinds[1]}: both must be the same")
        if parameter.grad is not None and parameter.grad.layout != torch.strided:
            raise RuntimeError(
                f"{type(optimizer).__name__} does not support gradients of layout {parameter.grad.layout}, only of "
                "torch.strided: build the layer with sparse=False, or give its parameters to torch.optim.SparseAdam"
            )
