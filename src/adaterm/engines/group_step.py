"""A parameter group's step: its tensors in blocks, the engine of each, and the check whether both still hold."""

import importlib
from collections import defaultdict
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from math import nan
from operator import is_, itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from adaterm.engines.agreement import Sums, get_local, get_local_gradient, is_sharded, number_part
from adaterm.engines.base import Block, Engine, Scaling, describe_variant
from adaterm.engines.choice import make_engine
from adaterm.engines.fused import match_order
from adaterm.engines.layout import find_addresses
from adaterm.options import Common
from adaterm.rules import WINDOW, Rule

# torch's own check of many tensors in one call; without it no step is repeated
_TensorGuards: Any = getattr(importlib.import_module("torch._C._dynamo.guards"), "TensorGuards", None)


class Members(NamedTuple):
    """The parameters of a group that take part in a step, their state by name, and where they stand."""

    params: list[Tensor]
    state: dict[str, list[Tensor]]
    history: list[Tensor]  # of all groups' batches, if the rule judges them
    group_params: list[Tensor]  # all of the group's
    places: list[int]  # in the group
    positions: list[int]  # among all of the optimizer's
    total: int  # of all of the optimizer's


class GroupStep:
    """Owns a group's step and all that is remembered for the next one."""

    def __init__(self, engine: str, rule: Rule, options: Common, members: Members, captured: list[Any]) -> None:
        self.engine, self.params, self.rule = engine, members.params, rule
        self.group_params, self.places, self._history = members.group_params, members.places, members.history
        self._differentiable = options.differentiable
        self._variant = describe_variant(rule, options)
        self._sharded = any(map(is_sharded, members.params))
        self._complex = any(parameter.is_complex() for parameter in members.params)
        grads = [_resolve(get_local_gradient(parameter)) for parameter in members.params]
        self._indices = _sort_alike(members.params, grads, members.state["exp_avg"])
        if engine == "fused":
            for name in ("exp_avg", rule.scale_name):
                for tensor, parameter in zip(members.state[name], members.params, strict=True):
                    match_order(get_local(tensor), get_local(parameter))
        self.blocks = [_make_block(rule, options, members, grads, indices, captured) for indices in self._indices]
        self.engines: list[Engine] = [make_engine(engine, block) for block in self.blocks]
        self.positions = [[members.positions[index] for index in indices] for indices in self._indices]
        self._params = [[members.params[index] for index in indices] for indices in self._indices]
        self._entries: list[dict[str, Tensor]] | None = None

    def remember(self, entries: list[dict[str, Tensor]], names: tuple[str, ...]) -> None:
        """Write down all that the engines rely on, but the gradients' addresses, so that the step can be repeated.

        The entries are those of the optimizer's state, of which these names are used.
        """
        if _TensorGuards is None or self._differentiable:
            return
        self._entries, self._get_state, self._width = entries, itemgetter(*names), len(names)
        self._vectors = [place for place, name in enumerate(names) if name in ("exp_avg", self.rule.scale_name, WINDOW)]
        params, state = self._find_tensors(entries)
        grads = [get_local_gradient(parameter) for parameter in self.params]
        first = {id(gradient): place for place, gradient in reversed(list(enumerate(grads)))}
        self._same = [first[id(gradient)] for gradient in grads] if len(first) < len(grads) else None
        tensors = self._list_arrays(params, state) + self._list_once(grads)
        sizes, strides = [list(tensor.size()) for tensor in tensors], [list(tensor.stride()) for tensor in tensors]
        self._guards = _TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
        self._addresses = find_addresses(params + state)
        # As long as these live no other number can be at a scalar's address, so that it tells all there is to know.
        self._storages = [tensor.untyped_storage() for tensor in state if tensor.dim() == 0]
        self._specs = [getattr(parameter, "_spec", None) for parameter in self.params]

    def _find_tensors(self, entries: list[dict[str, Tensor]]) -> tuple[list[Tensor], list[Tensor]]:
        """Parameters and state as they are now, in this rank's parts."""
        state = list(chain.from_iterable(map(self._get_state, entries)))
        if self._sharded:
            return list(map(get_local, self.params)), list(map(get_local, state))
        return self.params, state

    def _list_arrays(self, params: list[Tensor], state: list[Tensor]) -> list[Tensor]:
        """Parameters, means, scales and windows: all but the scalars of the state."""
        return params + [tensor for place in self._vectors for tensor in state[place :: self._width]]

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
            params, state = self._find_tensors(self._entries)
        except KeyError:  # an entry of the state is gone
            return False
        if self._sharded:
            if not self._has_same_shards(grads):
                return False
            grads = list(map(get_local, grads))
        if self._same is not None and not all(grads[place] is grads[i] for i, place in enumerate(self._same)):
            return False
        if not self._guards.check(*self._list_arrays(params, state), *self._list_once(grads)):
            return False
        if find_addresses(params + state) != self._addresses:
            return False
        unchanged = rule is self.blocks[0].rule and options is self.blocks[0].options
        return unchanged or describe_variant(rule, options) == self._variant

    def take(self, rule: Rule, options: Common, grads: list[Any]) -> None:
        """Take what a step that is repeated needs anew."""
        if self._sharded:
            grads = list(map(get_local, grads))
        if self._complex:
            grads = as_reals([_resolve(gradient) for gradient in grads])
        for block, indices in zip(self.blocks, self._indices, strict=True):
            block.rule, block.options = rule, options
            block.grads = grads if len(self.blocks) == 1 else [grads[index] for index in indices]

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
    def history(self) -> Tensor:
        """The levels and norms of the last batches."""
        return self._history[0]

    @property
    def skips_on_device(self) -> bool:
        """Whether the engines read `found_inf` on the device, and skip the step there."""
        return all(engine.skips_on_device for engine in self.engines)

    def step(self, scaling: Scaling) -> None:
        """Take a whole step, where nothing has to be agreed."""
        with self._grad_mode():
            for block, engine in zip(self.blocks, self.engines, strict=True):
                block.scaling = scaling
                engine.step()

    def _grad_mode(self) -> AbstractContextManager[Any]:
        """Autograd's part in a step; kernels are beyond its sight."""
        if self.engine == "fused":
            return nullcontext()
        return torch.set_grad_enabled(self._differentiable)

    def gauge(self, scaling: Scaling) -> list[Sums]:
        """The sums of all tensors."""
        sums = []
        with self._grad_mode():
            for positions, block, engine in zip(self.positions, self.blocks, self.engines, strict=True):
                block.scaling = scaling
                sums.append(Sums(positions, engine.gauge()))
        return sums

    def finish(self, sums: list[Tensor], verdict: Tensor | None, scaling: Scaling) -> None:
        """Weigh and move, with the sums of whole tensors, and with the verdict of a rule that judges batches."""
        with self._grad_mode():
            for sums_of_block, block, engine in zip(sums, self.blocks, self.engines, strict=True):
                block.scaling = scaling
                here = verdict if verdict is None else verdict.to(block.means[0])
                engine.finish(sums_of_block, here)

    def skip(self) -> None:
        """Report that GradScaler had the step skipped."""
        for block, engine in zip(self.blocks, self.engines, strict=True):
            engine.statistics.fill_(nan)
            block.grads, block.arranged = [], []

    def end(self, state: Mapping[Tensor, dict[str, Tensor]]) -> None:
        """Let autograd know of what changed behind its back, and let go of the gradients."""
        if self._differentiable:
            self._replace_state(state)
        elif self.engine == "fused" or self._sharded:
            torch.autograd.graph.increment_version(self.params)
        for block in self.blocks:
            block.grads, block.arranged = [], []

    def _replace_state(self, state: Mapping[Tensor, dict[str, Tensor]]) -> None:
        """Put the tensors that a differentiable step made, and that carry its graph, into the state."""
        for indices, block in zip(self._indices, self.blocks, strict=True):
            columns = {"exp_avg": block.means, block.rule.scale_name: block.scales, **block.scalars}
            for place, index in enumerate(indices):
                parameter = self.params[index]
                for name, tensors in columns.items():
                    pairs = parameter.is_complex() and name not in block.scalars
                    state[parameter][name] = torch.view_as_complex(tensors[place]) if pairs else tensors[place]

    def list_statistics(self) -> list[tuple[list[Tensor], Tensor]]:
        """Parameters that share device and precision, and their distance, trust and dof as rows."""
        return [(params, engine.statistics) for params, engine in zip(self._params, self.engines, strict=True)]


def _sort_alike(params: list[Tensor], grads: list[Tensor], means: list[Tensor]) -> list[list[int]]:
    """The indices of parameters that share device and precisions."""
    alike = defaultdict(list)
    for index, (parameter, gradient, mean) in enumerate(zip(params, grads, means, strict=True)):
        alike[parameter.device, parameter.dtype, gradient.dtype, mean.dtype].append(index)
    return list(alike.values())


def _make_block(
    rule: Rule, options: Common, members: Members, grads: list[Tensor], indices: list[int], captured: list[Any]
) -> Block:
    params = [members.params[index] for index in indices]
    state = {name: [get_local(column[index]) for index in indices] for name, column in members.state.items()}
    steps, means, scales = (state.pop(name) for name in ("step", "exp_avg", rule.scale_name))
    parts = [members.total * number_part(parameter) for parameter in params]
    return Block(
        rule,
        options,
        params=as_reals([get_local(parameter) for parameter in params]),
        grads=as_reals([grads[index] for index in indices]),
        steps=steps,
        means=as_reals(means),
        scales=as_reals(scales),
        windows=state.pop(WINDOW, []),
        scalars=state,
        sizes=[count_elements(parameter) for parameter in params],
        streams=[members.positions[index] + part for index, part in zip(indices, parts, strict=True)],
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
