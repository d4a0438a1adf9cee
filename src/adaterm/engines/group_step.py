"""A parameter group's step: its tensors in blocks, the engine of each, and the check whether both still hold."""

import importlib
from collections import defaultdict
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from math import nan
from operator import is_
from typing import Any, NamedTuple

import torch
from torch import Tensor

from adaterm.engines.agreement import Sums, get_local, get_local_gradient, is_sharded, number_part
from adaterm.engines.base import Block, Engine, Scaling, describe_variant
from adaterm.engines.choice import make_engine
from adaterm.engines.layout import find_addresses
from adaterm.options import Common
from adaterm.rules import WINDOW, Rule, name_state


def _find_guards() -> Any:
    """torch's own check of many tensors in one call; it is private, and where it is not as we know it, None."""
    try:
        guards: Any = importlib.import_module("torch._C._dynamo.guards").TensorGuards
        probe = torch.empty(1, device="cpu")
        return guards if guards(probe, dynamic_dims_sizes=[[1]], dynamic_dims_strides=[[1]]).check(probe) else None
    except Exception:
        return None


_TensorGuards = _find_guards()  # without it no step is repeated

_NO_MODE = nullcontext()


class Plan(NamedTuple):
    """What is to be done with a group in a step; what cannot be done was refused before."""

    rule: Rule
    options: Common
    engine: str
    params: list[Tensor]  # all of the group's
    places: list[int]  # of those that have gradients and elements
    first: int  # the position of the group's first parameter among all of the optimizer's
    total: int  # how many those are


class GroupStep:
    """Owns a group's step and all that is remembered for the next one."""

    def __init__(self, plan: Plan, state: dict[str, list[Tensor]], captured: list[Any]) -> None:
        self.plan, self.params = plan, [plan.params[place] for place in plan.places]
        self._variant, self.fused = describe_variant(plan.rule, plan.options), plan.engine == "fused"
        self._sharded = any(map(is_sharded, self.params))
        self._complex = any(parameter.is_complex() for parameter in self.params)
        grads = [_resolve(get_local_gradient(parameter)) for parameter in self.params]
        self._indices = _sort_alike(self.params, grads, state["exp_avg"])
        blocks = [_make_block(plan, self.params, grads, state, indices, captured) for indices in self._indices]
        self.engines: list[Engine] = [make_engine(plan.engine, block) for block in blocks]
        self._entries: list[dict[str, Tensor]] | None = None

    def remember(self, entries: list[dict[str, Tensor]]) -> None:
        """Write down all that the engines rely on, but the gradients' addresses, so that the step can be repeated.

        The entries are those of the optimizer's state.
        """
        if _TensorGuards is None or self.plan.options.differentiable:
            return
        vectors = ("exp_avg", self.plan.rule.scale_name, WINDOW)
        names = name_state(self.plan.rule)
        self._entries, self._names = entries, sorted(names, key=lambda name: name not in vectors)
        self._arrays = len(self.params) * (1 + sum(name in vectors for name in names))  # the first of all tensors
        stored = self._find_tensors(entries)
        grads = [get_local_gradient(parameter) for parameter in self.params]
        first = {id(gradient): place for place, gradient in reversed(list(enumerate(grads)))}
        self._same = [first[id(gradient)] for gradient in grads] if len(first) < len(grads) else None
        tensors = stored[: self._arrays] + self._list_once(grads)
        sizes, strides = [list(tensor.size()) for tensor in tensors], [list(tensor.stride()) for tensor in tensors]
        self._guards = _TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
        self._addresses = find_addresses(stored)
        # As long as these live no other number can be at a scalar's address, so that it tells all there is to know.
        self._storages = [tensor.untyped_storage() for tensor in stored[self._arrays :]]
        self._specs = [getattr(parameter, "_spec", None) for parameter in self.params]

    def _find_tensors(self, entries: list[dict[str, Tensor]]) -> list[Tensor]:
        """Parameters, means, scales, windows, and then the scalars of the state, as they are now on this rank."""
        tensors = self.params + [entry[name] for name in self._names for entry in entries]
        return list(map(get_local, tensors)) if self._sharded else tensors

    def _list_once(self, grads: list[Tensor]) -> list[Tensor]:
        """The gradients, each once, also where parameters share one: torch's guards want no tensor twice."""
        if self._same is None:
            return grads
        return [gradient for place, gradient in enumerate(grads) if self._same[place] == place]

    def fits(self, rule: Rule, options: Common, grads: list[Any]) -> bool:
        """Whether the step can be repeated with these gradients, rule and options.

        Sizes, strides, precisions, devices and kinds of all tensors must be as they were, and so must the addresses of
        parameters and state.
        """
        if self._entries is None:
            return False
        try:
            tensors = self._find_tensors(self._entries)
        except KeyError:  # an entry of the state is gone
            return False
        if self._sharded:
            if not self._has_same_shards(grads):
                return False
            grads = list(map(get_local, grads))
        if self._same is not None and not all(grads[place] is grads[i] for i, place in enumerate(self._same)):
            return False
        if not self._guards.check(*tensors[: self._arrays], *self._list_once(grads)):
            return False
        if find_addresses(tensors) != self._addresses:
            return False
        last = self.engines[0].block
        unchanged = rule is last.rule and options is last.options
        return unchanged or describe_variant(rule, options) == self._variant

    def take(self, rule: Rule, options: Common, grads: list[Any]) -> None:
        """Take what is new in a step that is repeated."""
        if self._sharded:
            grads = list(map(get_local, grads))
        if self._complex:
            grads = as_reals([_resolve(gradient) for gradient in grads])
        for engine, indices in zip(self.engines, self._indices, strict=True):
            block = engine.block
            block.rule, block.options = rule, options
            block.grads = grads if len(indices) == len(grads) else [grads[index] for index in indices]

    def _has_same_shards(self, grads: list[Any]) -> bool:
        specs = [getattr(parameter, "_spec", None) for parameter in self.params]
        if not all(map(is_, specs, self._specs)):
            return False
        of_grads = [getattr(gradient, "_spec", None) for gradient in grads]
        return all(
            a is b or (a is not None and b is not None and a.placements == b.placements)
            for a, b in zip(specs, of_grads, strict=True)
        )

    @property
    def skips_on_device(self) -> bool:
        """Whether the engines read `found_inf` on the device, and skip the step there."""
        return all(engine.skips_on_device for engine in self.engines)

    def step(self, scaling: Scaling) -> None:
        """Take a whole step, where nothing has to be agreed."""
        with self._grad_mode():
            for engine in self.engines:
                engine.block.scaling = scaling
                engine.step()

    def _grad_mode(self) -> AbstractContextManager[Any]:
        """Autograd's part in a step; kernels are beyond its sight."""
        return _NO_MODE if self.fused else torch.set_grad_enabled(self.plan.options.differentiable)

    def gauge(self, scaling: Scaling) -> list[Sums]:
        """The sums of all tensors."""
        sums = []
        with self._grad_mode():
            for engine in self.engines:
                engine.block.scaling = scaling
                sums.append(Sums(engine.block.positions, engine.gauge()))
        return sums

    def finish(self, sums: list[Tensor], verdict: Tensor | None, scaling: Scaling) -> None:
        """Weigh and move, with the sums of whole tensors, and with the verdict of a rule that judges batches."""
        with self._grad_mode():
            for engine, values in zip(self.engines, sums, strict=True):
                engine.block.scaling = scaling
                engine.finish(values, verdict if verdict is None else verdict.to(engine.block.means[0]))

    def skip(self) -> None:
        """Report that GradScaler had the step skipped."""
        for engine in self.engines:
            engine.statistics.fill_(nan)
        self._drop_gradients()

    def _drop_gradients(self) -> None:
        for engine in self.engines:
            engine.block.grads, engine.block.arranged = [], []

    def end(self, state: Mapping[Tensor, dict[str, Tensor]]) -> None:
        """Let autograd know of what changed behind its back, and let go of the gradients."""
        if self.plan.options.differentiable:
            self._replace_state(state)
        elif self.fused or self._sharded:
            torch.autograd.graph.increment_version(self.params)
        self._drop_gradients()

    def _replace_state(self, state: Mapping[Tensor, dict[str, Tensor]]) -> None:
        """Put the tensors that a differentiable step made, and that carry its graph, into the state."""
        for block in [engine.block for engine in self.engines]:
            columns = {"exp_avg": block.means, block.rule.scale_name: block.scales, **block.scalars}
            for place, parameter in enumerate(block.owners):
                for name, tensors in columns.items():
                    pairs = parameter.is_complex() and name not in block.scalars
                    state[parameter][name] = torch.view_as_complex(tensors[place]) if pairs else tensors[place]


def _sort_alike(params: list[Tensor], grads: list[Tensor], means: list[Tensor]) -> list[list[int]]:
    """The indices of parameters that share device and precisions."""
    alike = defaultdict(list)
    for index, (parameter, gradient, mean) in enumerate(zip(params, grads, means, strict=True)):
        alike[parameter.device, parameter.dtype, gradient.dtype, mean.dtype].append(index)
    return list(alike.values())


def _make_block(
    plan: Plan,
    params: list[Tensor],
    grads: list[Tensor],
    state: dict[str, list[Tensor]],
    indices: list[int],
    captured: list[Any],
) -> Block:
    owners = [params[index] for index in indices]
    positions = [plan.first + plan.places[index] for index in indices]
    columns = {name: [get_local(column[index]) for index in indices] for name, column in state.items()}
    steps, means, scales = (columns.pop(name) for name in ("step", "exp_avg", plan.rule.scale_name))
    parts = [plan.total * number_part(parameter) for parameter in owners]
    return Block(
        plan.rule,
        plan.options,
        params=as_reals([get_local(parameter) for parameter in owners]),
        grads=as_reals([grads[index] for index in indices]),
        steps=steps,
        means=as_reals(means),
        scales=as_reals(scales),
        windows=columns.pop(WINDOW, []),
        scalars=columns,
        sizes=[count_elements(parameter) for parameter in owners],
        owners=owners,
        positions=positions,
        streams=[position + part for position, part in zip(positions, parts, strict=True)],
        captured=captured,
    )


def count_elements(parameter: Tensor) -> int:
    """The number of a tensor's real numbers, on all ranks together."""
    return parameter.numel() * (2 if parameter.is_complex() else 1)


def _resolve(gradient: Tensor) -> Tensor:
    """A gradient whose conjugation was left for later, conjugated."""
    return gradient.resolve_conj() if gradient.is_complex() else gradient


def as_reals(tensors: list[Tensor]) -> list[Tensor]:
    """Complex tensors as pairs of reals, which share their memory."""
    return [torch.view_as_real(tensor) if tensor.is_complex() else tensor for tensor in tensors]
