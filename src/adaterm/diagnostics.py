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
        self._sums: dict[Tensor, Tensor] = {}  # of steps, exclusions and trust
        self._least: dict[Tensor, Tensor] = {}
        self._dof: dict[Tensor, Tensor] = {}
        self._hook = optimizer.register_step_post_hook(self._observe)

    def _observe(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        alike = defaultdict(list)
        for parameter, statistics in self._optimizer.statistics().items():
            alike[statistics.trust.device].append((parameter, statistics))
        for found in alike.values():
            params = [parameter for parameter, _ in found]
            distance, trust = (torch.stack([statistics[k].double() for _, statistics in found]) for k in (0, 1))
            taken = ~trust.isnan()  # a step that GradScaler skipped is none
            trust = torch.where(taken, trust, 1.0)
            counted = [taken, taken & ~distance.isfinite(), torch.where(taken, trust, 0.0)]
            seen = torch.stack([column.double() for column in counted], dim=1)
            for parameter, one in zip(params, trust, strict=True):
                if parameter not in self._sums:
                    self._sums[parameter], self._least[parameter] = torch.zeros_like(seen[0]), torch.ones_like(one)
            torch._foreach_add_([self._sums[parameter] for parameter in params], seen.unbind())
            torch._foreach_minimum_([self._least[parameter] for parameter in params], trust.unbind())
            for parameter, statistics in found:
                before = self._dof.get(parameter, statistics.dof)
                self._dof[parameter] = torch.where(statistics.trust.isnan(), before, statistics.dof)

    def summary(self) -> dict[str, Summary]:
        """The record of each parameter by its name, or by group and position where names are missing or ambiguous."""
        found = {}
        for name, parameter in self._named():
            if parameter in self._sums:
                steps, excluded, trust = self._sums[parameter].tolist()
                least, dof = self._least[parameter].item(), self._dof[parameter].item()
                found[name] = Summary(int(steps), int(excluded), trust / max(steps, 1.0), least, dof)
        return found

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
