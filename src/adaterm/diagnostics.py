"""What an optimizer made of its gradients, summed up over many steps."""

from collections import defaultdict
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from adaterm.optimizer import RobustOptimizer


class Summary(NamedTuple):
    """One parameter's record: steps seen, gradients excluded, mean and least trust, the last dof."""

    steps: int
    excluded: int
    mean_trust: float
    least_trust: float
    dof: float


class Monitor:
    """Watches an optimizer from now on; the sums stay on the device until `summary` reads them.

    A low mean trust tells which parameters get noisy gradients; `excluded` counts gradients whose distance
    was not a finite number, from which nothing was learnt.
    """

    def __init__(self, optimizer: RobustOptimizer) -> None:
        if not isinstance(optimizer, RobustOptimizer):
            raise TypeError(f"a Monitor watches an optimizer of adaterm, not {type(optimizer).__name__}")
        self._optimizer = optimizer
        self._tables: dict[tuple[Tensor, ...], Tensor] = {}
        self._hook = optimizer.register_step_post_hook(self._observe)

    def _observe(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        alike = defaultdict(list)
        for parameter, statistics in self._optimizer.statistics().items():
            alike[parameter.device].append((parameter, statistics))
        for found in alike.values():
            params = tuple(parameter for parameter, _ in found)
            columns = zip(*(statistics for _, statistics in found), strict=True)
            distance, trust, dof = (torch.stack([value.double() for value in column]) for column in columns)
            if params not in self._tables:
                self._tables[params] = torch.stack([0 * trust, 0 * trust, 0 * trust, 1 + 0 * trust, dof])
            table = self._tables[params]
            table[:3] += torch.stack([torch.ones_like(trust), ~distance.isfinite(), trust])
            table[3:] = torch.stack([torch.minimum(table[3], trust), dof])

    def summary(self) -> dict[str, Summary]:
        """The record of each parameter by its name, or by group and position where names are missing or ambiguous."""
        merged: dict[Tensor, Summary] = {}
        for params, table in self._tables.items():
            for parameter, (steps, excluded, trust, least, dof) in zip(params, table.T.tolist(), strict=True):
                before = merged.get(parameter, Summary(0, 0, 0.0, 1.0, dof))
                total = before.steps + int(steps)
                mean = (before.mean_trust * before.steps + trust) / total
                merged[parameter] = Summary(total, before.excluded + int(excluded), mean, min(before[3], least), dof)
        return {name: merged[parameter] for name, parameter in self._named() if parameter in merged}

    def _named(self) -> list[tuple[str, Tensor]]:
        groups = self._optimizer.param_groups
        names = [name for group in groups for name in group.get("param_names", ())]
        positions = [
            f"{number}.{index}" for number, group in enumerate(groups) for index in range(len(group["params"]))
        ]
        params = [parameter for group in groups for parameter in group["params"]]
        return list(zip(names if len(set(names)) == len(params) else positions, params, strict=True))

    def remove(self) -> None:
        """Stop watching."""
        self._hook.remove()
