"""What an optimizer remembers from step to step: groups' steps that can be repeated, and how all of them agree."""

from collections.abc import Callable
from operator import is_
from typing import Any

import torch
from torch import Tensor

from adaterm.engines.agreement import Agreement, Judgement, is_sharded
from adaterm.engines.base import Engine
from adaterm.engines.group_step import GroupStep
from adaterm.options import Common
from adaterm.rules import HISTORY, Rule

_MOST_REMEMBERED = 8  # steps of a group: it has one for every set of parameters that had gradients together


class Memory:
    """What a step leaves for the next one, and for those who ask; torch.compile would lose plain attributes."""

    def __init__(self, captured: list[Any]) -> None:
        self.captured = captured  # by CUDA graphs, which may be replayed at any time
        self.steps: list[GroupStep] = []  # of the last step
        self.verdict: Tensor | None = None  # on the last batch
        self.options: dict[int, tuple[tuple[Any, ...], Rule, Common]] = {}  # of each group
        self.only_rehearsed = False  # whether there is state, and no step was taken
        self.agreement: Agreement | None = None
        self.history: Tensor | None = None  # what was noted of the last batches, if they are judged
        self._judgement: Judgement | None = None
        self._by_group: dict[int, dict[tuple[bool, ...], GroupStep | None]] = {}
        self._entries: list[Any] = []  # of the state

    def list_engines(self) -> list[Engine]:
        """The engines of the last step, of all groups."""
        return [engine for step in self.steps for engine in step.engines]

    def recall(
        self,
        groups: list[dict[str, Any]],
        entries: list[dict[str, Any]],
        read_options: Callable[[int], tuple[Rule, Common]],
    ) -> list[GroupStep] | None:
        """The steps that groups took when the same parameters had gradients, if all of them can be repeated."""
        if torch.compiler.is_compiling() or not self._by_group:
            return None
        agreed = self.agreement is None or self.agreement.fits([p for group in groups for p in group["params"]])
        judged = self.history is None or any(entry.get(HISTORY) is self.history for entry in entries)
        if not agreed or not judged or not are_same(entries, self._entries):
            self._by_group.clear()
            self._judgement = None
            return None
        fitting = []
        for index, group in enumerate(groups):
            params = group["params"]
            grads = [parameter.grad for parameter in params]
            present = tuple([gradient is not None for gradient in grads])
            if any(present):
                remembered = self._by_group.get(index, {})
                if present not in remembered:
                    return None
                step = remembered[present]
                if step is None:  # there are no elements to step
                    continue
                if not are_same(params, step.plan.params):
                    return None
                places = step.plan.places
                grads = [grads[place] for place in places] if len(places) < len(grads) else grads
                inputs = (*read_options(index), grads)
                if not step.fits(*inputs):
                    return None
                fitting.append((step, inputs))
        for step, inputs in fitting:
            step.take(*inputs)
        return [step for step, _ in fitting]

    def remember(self, index: int, params: list[Tensor], step: GroupStep | None, entries: list[dict[str, Any]]) -> None:
        """Keep a group's step for the next time that the same of its parameters have gradients."""
        remembered = self._by_group.setdefault(index, {})
        if len(remembered) >= _MOST_REMEMBERED:
            del remembered[next(iter(remembered))]
        remembered[tuple([parameter.grad is not None for parameter in params])] = step
        self._entries = entries

    def find_agreement(self, params: list[Tensor]) -> Agreement | None:
        """How the ranks that share parameters agree, if there are any."""
        if not any(map(is_sharded, params)):
            self.agreement = None
        elif self.agreement is None or not self.agreement.fits(params):
            self.agreement = Agreement(params)
        return self.agreement

    def find_judgement(self, steps: list[GroupStep]) -> Judgement:
        """How the tensors of these steps judge a batch together."""
        assert self.history is not None
        engines, judgement = [step.engines for step in steps], self._judgement
        if torch.compiler.is_compiling():
            return Judgement(engines, self.history)
        if judgement is None or judgement.history is not self.history or not are_same(judgement.engines, engines):
            judgement = self._judgement = Judgement(engines, self.history)
        return judgement


def are_same(values: list[Any], others: list[Any]) -> bool:
    """Whether these are the same objects."""
    return len(values) == len(others) and all(map(is_, values, others))
