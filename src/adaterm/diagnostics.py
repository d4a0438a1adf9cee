"""What an optimizer made of its gradients, summed up over many steps."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from adaterm.optimizer import RobustOptimizer

_PENDING = 64  # tables that are summed up at once


class Summary(NamedTuple):
    """One parameter's record: steps seen, gradients excluded, mean and least trust, the last dof."""

    steps: int
    excluded: int
    mean_trust: float
    least_trust: float
    dof: float


class _Totals(NamedTuple):
    """Sums over the steps that some parameters took together; each is a vector with a place for every parameter."""

    steps: Tensor
    excluded: Tensor
    trust: Tensor
    least_trust: Tensor
    dof: Tensor
    last_step: Tensor

    def add(self, later: "_Totals") -> "_Totals":
        """With the sums over later steps."""
        return _Totals(
            self.steps + later.steps,
            self.excluded + later.excluded,
            self.trust + later.trust,
            torch.minimum(self.least_trust, later.least_trust),
            torch.where(later.steps > 0, later.dof, self.dof),
            torch.where(later.steps > 0, later.last_step, self.last_step),
        )


class Monitor:
    """Watches an optimizer from now on; the sums stay on the device until `summary` reads them.

    A low mean trust tells which parameters get noisy gradients; `excluded` counts gradients whose distance
    was not a finite number, from which nothing was learnt.
    """

    def __init__(self, optimizer: RobustOptimizer) -> None:
        if not isinstance(optimizer, RobustOptimizer):
            raise TypeError(f"a Monitor watches an optimizer of adaterm, not {type(optimizer).__name__}")
        self._optimizer = optimizer
        self._count = 0
        self._pending: list[tuple[int, list[Tensor], Tensor]] = []
        self._totals: dict[tuple[int, ...], tuple[list[Tensor], _Totals]] = {}
        self._hook = optimizer.register_step_post_hook(self._observe)

    def _observe(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._count += 1
        for params, table in self._optimizer.list_statistics():
            self._pending.append((self._count, params, table.clone()))
        if len(self._pending) >= _PENDING:
            self._sum_up()

    def _sum_up(self) -> None:
        """Add what is pending to the totals; the same list of parameters comes again as long as nothing changes."""
        together: dict[int, list[tuple[int, list[Tensor], Tensor]]] = {}
        for entry in self._pending:
            together.setdefault(id(entry[1]), []).append(entry)
        for entries in together.values():
            counts, lists, tables = zip(*entries, strict=True)
            key = tuple(map(id, lists[0]))
            totals = _total(torch.tensor(counts, dtype=torch.float64), torch.stack(tables).double())
            if key in self._totals:
                totals = self._totals[key][1].add(totals)
            self._totals[key] = lists[0], totals
        self._pending = []

    def summary(self) -> dict[str, Summary]:
        """The record of each parameter by its name, or by group and position where names are missing or ambiguous."""
        self._sum_up()
        records: dict[Tensor, list[float]] = {}
        for params, totals in self._totals.values():
            for parameter, record in zip(params, torch.stack(totals).T.tolist(), strict=True):
                known = records.setdefault(parameter, [0.0, 0.0, 0.0, 1.0, 0.0, 0.0])
                known[:3] = [known[place] + record[place] for place in range(3)]
                known[3] = min(known[3], record[3])
                if record[5] > known[5]:
                    known[4:] = record[4:]
        return {
            name: Summary(int(steps), int(excluded), trust / max(steps, 1.0), least, dof)
            for name, parameter in self._name_parameters()
            if parameter in records
            for steps, excluded, trust, least, dof, _ in [records[parameter]]
        }

    def _name_parameters(self) -> list[tuple[str, Tensor]]:
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


def _total(counts: Tensor, tables: Tensor) -> _Totals:
    """The sums over steps, of which the first dimension of the tables has one each."""
    distance, trust, dof = tables.unbind(1)
    taken = ~trust.isnan()  # a step that GradScaler skipped is none
    numbers = torch.where(taken, counts.to(tables.device)[:, None], 0.0)
    last_step, last = numbers.max(0)
    return _Totals(
        taken.sum(0).double(),
        (taken & ~distance.isfinite()).sum(0).double(),
        torch.where(taken, trust, 0.0).sum(0),
        torch.where(taken, trust, 1.0).amin(0),
        dof.gather(0, last[None])[0],
        last_step,
    )
