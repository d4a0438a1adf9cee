"""What an optimizer remembers from step to step: groups' steps that can be repeated, and how all of them agree."""

from collections.abc import Callable
from itertools import repeat
from operator import is_, is_not
from typing import Any

import torch
from torch import Tensor

from adaterm.engines.agreement import Agreement, Judgement, is_sharded
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
        self.options: dict[int, tuple[list[Any], Rule, Common]] = {}  # of each group
        self.only_rehearsed = False  # whether there is state, and no step was taken
        self.agreement: Agreement | None = None
        self._judgement: Judgement | None = None
        self._by_group: dict[int, dict[tuple[bool, ...], GroupStep | None]] = {}
        self._entries: list[Any] = []  # of the state

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
        judged = self._judgement is None or any(entry.get(HISTORY) is self._judgement.history for entry in entries)
        if not agreed or not judged or not are_same(entries, self._entries):
            self._by_group.clear()
            self._judgement = None
            return None
        fitting = []
        for index, group in enumerate(groups):
            params = group["params"]
            grads = [parameter.grad for parameter in params]
            present = tuple(map(is_not, grads, repeat(None)))
            if True in present:
                remembered = self._by_group.get(index, {})
                if present not in remembered:
                    return None
                known = remembered[present]
                if known is None:  # there are no elements to step
                    continue
                if not are_same(params, known.group_params):
                    return None
                grads = [grads[place] for place in known.places] if len(known.places) < len(grads) else grads
                taken = (*read_options(index), grads)
                if not known.fits(*taken):
                    return None
                fitting.append((known, taken))
        for known, taken in fitting:
            known.take(*taken)
        return [known for known, _ in fitting]

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
        engines, history = [each.engines for each in steps], steps[-1].history  # the last one knows where it is kept
        if torch.compiler.is_compiling():
            return Judgement(engines, history)
        known = self._judgement
        if known is None or known.history is not history or not are_same(known.engines, engines):
            known = self._judgement = Judgement(engines, history)
        return known


def are_same(values: list[Any], known: list[Any]) -> bool:
    """Whether these are the same objects."""
    return len(values) == len(known) and all(map(is_, values, known))
