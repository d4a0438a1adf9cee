"""The torch.optim shell: parameter groups, checkpoints, and the course of a step."""

from collections.abc import Callable, Mapping
from operator import is_, itemgetter
from typing import Any, ClassVar, overload

import torch
from torch import Tensor
from torch.optim.optimizer import (
    Optimizer,
    ParamsT,
    StateDict,
    _global_optimizer_post_hooks,
    _global_optimizer_pre_hooks,
)

from adaterm import state
from adaterm.engines.agreement import Sums, is_sharded, refuse_flat
from adaterm.engines.base import Scaling, is_capturing
from adaterm.engines.choice import choose_engine, refuse_gradients
from adaterm.engines.group_step import GroupStep, Plan
from adaterm.engines.memory import Memory
from adaterm.equations import Statistics
from adaterm.options import (
    Common,
    list_parameters,
    name_options,
    refuse_unknown_options,
    warn_of_meta_parameters,
    warn_of_spent_generator,
    warn_of_unknown_keys,
)
from adaterm.rules import Rule, name_state
from adaterm.statistics import ParameterStatistics

_COMMON = {name: getattr(Common(), name) for name in name_options(Common)}
_WRAPPER = Optimizer.profile_hook_step(lambda self: None).__code__
_NEW_CHECK, _OLD_CHECK = "_accelerator_graph_capture_health_check", "_cuda_graph_capture_health_check"
_CHECK_CAPTURE = _NEW_CHECK if hasattr(Optimizer, _NEW_CHECK) else _OLD_CHECK  # the old one before torch 2.9


class RobustOptimizer(Optimizer):
    """What all optimizers here share: everything but the rule."""

    scale_name: ClassVar[str]
    """The name of the second average in the state."""
    _rule: ClassVar[type[Rule]]
    _rule_options: ClassVar[tuple[str, ...]]
    _fixed: ClassVar[dict[str, Any]]  # what is not an option of this class
    _missing_means: ClassVar[dict[str, Any]]  # what an option is in checkpoints that are older than it
    _get_options: ClassVar["itemgetter[Any]"]  # all that a group has

    def __init_subclass__(cls, template: Rule | None = None, fixed: tuple[str, ...] = (), **kwargs: Any) -> None:
        """Take the rule with the defaults of all options, and the names of what is not an option."""
        super().__init_subclass__(**kwargs)
        if template is not None:
            values = {name: getattr(template, name) for name in name_options(type(template))}
            cls._rule, cls._fixed = type(template), {name: values.pop(name) for name in fixed}
            cls.scale_name = template.scale_name
            cls._rule_options, cls._missing_means = tuple(values), _COMMON | values
            cls._get_options = itemgetter(*cls._missing_means)

    def __new__(cls, *args: Any, **kwargs: Any) -> "RobustOptimizer":
        """Refuse Adam's `betas` where there is one decay, and what is not an option."""
        if "betas" in kwargs and "beta" in cls._rule_options:
            raise TypeError(f"{cls.__name__} has one decay for all averages: pass beta=0.9, not betas")
        if cls.__init__.__module__.startswith("adaterm."):  # a user's own may take more
            refuse_unknown_options(cls.__name__, cls.__init__, kwargs)
        return super().__new__(cls)

    def __init__(self, params: ParamsT, rule: Rule, common: Common) -> None:
        self._memory = Memory(captured=[])
        self._watchers: list[Callable[[], None]] = []
        self.defaults = {name: getattr(common, name) for name in _COMMON}
        self.defaults |= {name: getattr(rule, name) for name in self._rule_options}
        super().__init__(list_parameters(type(self).__name__, params), self.defaults)

    def _check_options(self, group: Mapping[str, Any]) -> tuple[Rule, Common]:
        """The rule and the common options of a parameter group; an option that is not possible raises."""
        rule = self._rule(**self._fixed, **{name: group[name] for name in self._rule_options})
        return rule, Common(**{name: group[name] for name in _COMMON})

    def _read_options(self, index: int) -> tuple[Rule, Common]:
        """The options of a group, checked again only if one is another object than in the last step."""
        group = self.param_groups[index]
        values, known = self._get_options(group), self._memory.options.get(index)
        if known is not None and all(map(is_, values, known[0])):
            return known[1:]
        checked = self._check_options(group)
        if list not in map(type, values):  # a list may change in place
            self._memory.options[index] = values, *checked
        return checked

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, with options of its own if it names any."""
        if isinstance(param_group, dict):
            self._check_options(self.defaults | param_group)
            warn_of_unknown_keys(type(self).__name__, param_group, self.defaults)
            warn_of_spent_generator(type(self).__name__, param_group)
        super().add_param_group(param_group)
        self._given = getattr(self, "_given", set()) | _list_ids(self.param_groups[-1:])

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Whether GradScaler leaves unscaling and skipping to us: ranks that share tensors must skip together."""
        return bool(self.defaults["fused"]) or any(map(is_sharded, self._list_params()))

    def _list_params(self) -> list[Tensor]:
        return [parameter for group in self.param_groups for parameter in group["params"]]

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step, after evaluating the closure, if there is one, with gradients enabled."""
        if not self._is_watched():
            return self._step(closure)
        return self._step_with_hooks() if closure is None else self._step_with_hooks(closure)

    step.hooked = True  # type: ignore[attr-defined]  # torch wraps a step that does not call its hooks

    def _is_watched(self) -> bool:
        """Whether there are hooks or a profiler, for which torch's wrapper costs as much as half a small step."""
        hooks = self._optimizer_step_pre_hooks or self._optimizer_step_post_hooks or _global_optimizer_pre_hooks
        watched = hooks or _global_optimizer_post_hooks or torch.autograd.profiler._is_profiler_enabled
        if watched or torch.compiler.is_compiling():
            return getattr(type(self).step, "__code__", None) is not _WRAPPER  # torch wraps a subclass's own step
        return False

    def _step(self, closure: Callable[[], float] | None = None) -> float | None:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        scaling = Scaling(getattr(self, "grad_scale", None), getattr(self, "found_inf", None))
        recalled = self._memory.recall(self.param_groups, list(self.state.values()), self._read_options)
        # torch's check costs as much as a launch: a repeated step has passed it, unless it is now in a graph.
        if not recalled or [step for step in recalled if not step.fused] or is_capturing():
            getattr(self, _CHECK_CAPTURE)()
        steps = recalled or self._make_steps(scaling)
        self._memory.steps, self._memory.verdict = steps or [], None
        if steps is not None:
            self._carry_out(steps, scaling)
        for watch in self._watchers:
            watch()
        return loss

    _step_with_hooks = Optimizer.profile_hook_step(_step)

    def _make_steps(self, scaling: Scaling) -> list[GroupStep] | None:
        """A step for every group that has gradients, with its state; None if there is to be no step."""
        params = self._list_params()
        plans = {
            index: self._plan(index, params)
            for index, group in enumerate(self.param_groups)
            if any(parameter.grad is not None for parameter in group["params"])
        }
        if any(p.is_meta for p in params) and all(p.is_meta for p in params if p.grad is not None):
            warn_of_meta_parameters(type(self).__name__)
        rehearsal = False
        if not torch.compiler.is_compiling():
            if self._memory.only_rehearsed:
                state.forget_rehearsal(self.state, params)
                self._memory.only_rehearsed = False
            agreement = self._memory.find_agreement(params)
            rehearsal = not self.state and state.is_rehearsal(self.param_groups, agreement)
            if not rehearsal and state.begins_with_infinity(self.state, params, agreement, scaling.found_inf):
                return None
        columns = {index: self._gather_state(index, plan.rule) for index, plan in plans.items()}
        if rehearsal:
            self._memory.only_rehearsed = True
            return None
        steps = [self._make_step(index, plan, columns[index]) for index, plan in plans.items()]
        return [step for step in steps if step is not None]

    def _plan(self, index: int, all_params: list[Tensor]) -> Plan:
        compiling = torch.compiler.is_compiling()
        rule, options = self._check_options(self.param_groups[index]) if compiling else self._read_options(index)
        params = list(self.param_groups[index]["params"])
        stepped = [parameter for parameter in params if parameter.grad is not None]
        refuse_gradients(type(self).__name__, stepped)
        refuse_flat(stepped, all_params, self._given)
        if options.differentiable and any(map(is_sharded, all_params)):
            raise RuntimeError("differentiable=True is not supported where parameters are sharded (DTensor)")
        places = [place for place, p in enumerate(params) if p.grad is not None and p.numel()]
        first = sum(len(group["params"]) for group in self.param_groups[:index])
        return Plan(rule, options, choose_engine(stepped, options), params, places, first, len(all_params))

    def _make_step(self, index: int, plan: Plan, columns: dict[str, list[Tensor]]) -> GroupStep | None:
        """The step of a group, remembered for the next time; None if there are no elements to step."""
        step = GroupStep(plan, columns, self._memory.captured) if plan.places else None
        if not torch.compiler.is_compiling():
            if step is not None:
                step.remember([self.state[parameter] for parameter in step.params])
            self._memory.remember(index, plan.params, step, list(self.state.values()))
        return step

    def _carry_out(self, steps: list[GroupStep], scaling: Scaling) -> None:
        """Gauge, agree and finish; where nothing has to be agreed, engines take their stages in one go."""
        memory, judges = self._memory, len(steps) > 0 and self._rule.window > 0
        gauged: list[Sums] = []
        if memory.agreement is not None or judges:
            gauged = [part for step in steps for part in step.gauge(Scaling(scaling.grad_scale))]
        sums = [part.values for part in gauged]
        if memory.agreement is not None:
            sums, found_inf = memory.agreement.reach(gauged, self._rule.sum_count, scaling.found_inf)
            scaling = Scaling(scaling.grad_scale, found_inf)
        found = scaling.found_inf
        if found is not None and not all(step.skips_on_device for step in steps) and found.item():
            memory.verdict = None
            for step in steps:
                step.skip()
            return
        verdicts = memory.find_judgement(steps).reach(sums, scaling) if judges else [None] * len(steps)
        memory.verdict = verdicts[0] if verdicts else None
        for step, verdict in zip(steps, verdicts, strict=True):
            if gauged:
                step.finish([sums.pop(0) for _ in step.engines], verdict, scaling)
            else:
                step.step(scaling)
            step.end(self.state)

    def _gather_state(self, index: int, rule: Rule) -> dict[str, list[Tensor]]:
        """The state of the parameters of a group's step, by name, made where it is missing."""
        names = name_state(rule)
        history: list[Tensor] = []
        columns: list[list[Tensor]] = [[] for _ in names]
        self._init_group(self.param_groups[index], history, *columns)
        if history:
            self._memory.history = history[0]
        return dict(zip(names, columns, strict=True))

    def _init_group(self, group: dict[str, Any], history: list[Tensor], *columns: list[Tensor]) -> None:
        """Fill the lists and make missing state; torch.compile runs a method of this name outside the graph."""
        rule, options = self._check_options(group)
        names, stepped = name_state(rule), [p for p in group["params"] if p.grad is not None]
        engine, grad_scale = choose_engine(stepped, options), getattr(self, "grad_scale", None)
        fresh = [parameter for parameter in stepped if not self.state.get(parameter)]
        agreement = self._memory.find_agreement(self._list_params())
        for parameter in stepped:
            entry = self.state[parameter]
            state.complete(entry, rule, options, parameter, grad_scale, engine)
            if parameter.numel():
                for name, column in zip(names, columns, strict=True):
                    column.append(entry[name])
        if rule.window and columns[0]:
            history.append(state.keep_history(self.state, self._list_params(), rule.window))
        if rule.init_scale == "gradient" and agreement is not None:
            state.begin_shared_scales(rule, options, fresh, self.state, self._list_params(), agreement, grad_scale)

    def rule_of(self, index: int = 0) -> Rule:
        """The rule of a parameter group: its method as a value, on which `adaterm.equations` run."""
        return self._read_options(index)[0]

    def statistics(self) -> Mapping[Tensor, Statistics]:
        """The last step's distance, trust and dof of every parameter that had a gradient, as tensors on its device.

        They are the numbers that the step computed anyway: nothing waits for a device until you read them.
        """
        engines = self._memory.list_engines()
        return ParameterStatistics([(engine.block.owners, engine.statistics.clone()) for engine in engines])

    def add_watcher(self, watch: Callable[[], None]) -> Callable[[], None]:
        """Call this after every step, also in graphs; the result ends it. torch's hooks cost half a small step."""
        self._watchers.append(watch)
        return lambda: self._watchers.remove(watch)

    def tell_last_step(self) -> tuple[list[list[int]], list[Tensor], Tensor | None]:
        """Positions of the parameters that had gradients, their statistics, both in blocks, and the batch's verdict."""
        engines = self._memory.list_engines()
        tables = [engine.statistics for engine in engines]
        return [engine.block.positions for engine in engines], tables, self._memory.verdict

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Load a state as `torch.optim.Optimizer` does, but keep the precision of the saved state."""
        if not isinstance(state_dict, Mapping):
            raise TypeError(
                f"load_state_dict takes what optimizer.state_dict() gave, not a {type(state_dict).__name__}: pass the "
                "optimizer's part of a checkpoint, such as torch.load(path)['optimizer']"
            )
        before = {"state": self.state, "param_groups": self.param_groups}
        handle = self.register_load_state_dict_pre_hook(state.check_and_protect)
        try:
            super().load_state_dict(state_dict)
        except BaseException:
            self.__dict__.update(before)  # what is refused changes nothing
            raise
        finally:
            handle.remove()

    def __setstate__(self, saved: dict[str, Any]) -> None:
        super().__setstate__(saved)
        memory = self.__dict__.get("_memory")
        self._memory = Memory(memory.captured if memory else [])
        self._watchers = self.__dict__.get("_watchers", [])
        self._given = self.__dict__.get("_given") or _list_ids(self.param_groups)
        self.defaults = self._missing_means | self.defaults
        for group in self.param_groups:
            for name, value in self._missing_means.items():
                group.setdefault(name, value)
            for parameter in group["params"]:
                entry = self.state.get(parameter, {})
                state.restore(entry, parameter, group["capturable"])
                if entry and type(entry["step"]) is Tensor and not entry["step"]:
                    self._memory.only_rehearsed = True

    def __repr__(self) -> str:
        return f"{super().__repr__()}\nEngines: {', '.join(map(self._name_engine, self.param_groups))}"

    def _name_engine(self, group: dict[str, Any]) -> str:
        try:
            return choose_engine(group["params"], self._check_options(group)[1], quiet=True)
        except (RuntimeError, ValueError):  # which a step will raise
            return "none"


def _list_ids(groups: list[dict[str, Any]]) -> set[int]:
    return {id(parameter) for group in groups for parameter in group["params"]}
