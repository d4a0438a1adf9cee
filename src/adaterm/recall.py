"""Jobs of the fused engines, kept to be done again: making one anew costs more than doing it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain
from operator import attrgetter, is_
from typing import Any

import torch
from torch import Tensor

from adaterm.engines.job import Job

_MOST = 8  # jobs of a group: it has one for every set of parameters that had gradients together
_layout = attrgetter("layout")


@dataclass
class Known:
    """A job, the parameters that it steps, and what it was made from."""

    job: Job
    stepped: list[Tensor]
    settings: list[Any]
    params: list[Tensor]
    used: list[bool]  # whether each is among the stepped ones
    types: list[torch.dtype]
    entries: list[dict[str, Any]]
    state: list[Any]
    held: list[Tensor]
    addresses: list[int]
    sizes: list[int]


class Recall:
    """The jobs of an optimizer; one is done again only with nothing changed but gradients and learning rate."""

    def __init__(self) -> None:
        self.known: dict[int, dict[tuple[bool, ...], Known]] = {}
        self._entries: list[Any] = []

    def check(self, state: Mapping[Tensor, Any]) -> None:
        """Forget everything if the state has other entries than before."""
        if self.known and not _same(list(state.values()), self._entries):
            self.known.clear()

    def remember(
        self,
        index: int,
        group: dict[str, Any],
        settings: list[str],
        state: Mapping[Tensor, Any],
        stepped: list[Tensor],
        job: Job,
    ) -> None:
        """Keep the job of a parameter group; the settings are the names of its options, but for lr."""
        values, members = [group[name] for name in settings], {id(parameter) for parameter in stepped}
        if any(isinstance(value, list) for value in values):  # a list may change and yet be the same
            return
        jobs = self.known.setdefault(index, {})
        if len(jobs) >= _MOST:
            del jobs[next(iter(jobs))]
        entries, held = [state[parameter] for parameter in stepped], job.held()
        self._entries = list(state.values())
        jobs[tuple([parameter.grad is not None for parameter in group["params"]])] = Known(
            job,
            stepped,
            settings=values,
            params=list(group["params"]),
            used=[id(parameter) in members for parameter in group["params"]],
            types=[grad.dtype for grad in job.grads],
            entries=entries,
            state=_values(entries),
            held=held,
            addresses=_addresses(held),
            sizes=_sizes(group["params"]),
        )

    def recall(self, index: int, group: dict[str, Any], settings: list[str]) -> Known | None:
        """The job of a group for its new gradients and learning rate, if there is one and it still holds."""
        if not self.known or torch.compiler.is_compiling():
            return None
        grads = [parameter.grad for parameter in group["params"]]
        known = self.known.get(index, {}).get(tuple([grad is not None for grad in grads]))
        if known is None:
            return None
        job, lr = known.job, group["lr"]
        present = [grad for grad, used in zip(grads, known.used, strict=True) if used and grad is not None]
        if not (
            _same([group[name] for name in settings], known.settings)
            and isinstance(lr, Tensor) is isinstance(job.options.lr, Tensor)
            and _same(group["params"], known.params)
            and [grad.dtype for grad in present] == known.types
            and {*map(_layout, present)} <= {torch.strided}
            and _same(_values(known.entries), known.state)
            and _addresses(known.held) == known.addresses
            and _sizes(group["params"]) == known.sizes
        ):
            return None
        job.grads = present
        if lr is not job.options.lr:
            job.options = replace(job.options, lr=lr)
        return known


def _same(found: list[Any], known: list[Any]) -> bool:
    return len(found) == len(known) and all(map(is_, found, known))


def _values(entries: list[dict[str, Any]]) -> list[Any]:
    return list(chain.from_iterable(map(dict.values, entries)))


def _sizes(tensors: list[Tensor]) -> list[int]:
    return list(map(Tensor.numel, tensors))


def _addresses(tensors: list[Tensor]) -> list[int]:
    return list(map(Tensor.data_ptr, tensors))
