"""RobustAdamW's judgement of batches, by their losses alone."""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from math import inf, isfinite, nan
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from adaterm.checks import is_number
from adaterm.engines.agreement import is_sharded
from adaterm.equations import BatchStatistics, Notes, Totals
from adaterm.options import warn_user
from adaterm.plain_primitives import PLAIN
from adaterm.rules import RobustAdamRule
from adaterm.torch_primitives import find_widest

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


MANY = 0.2
"""The share of a window's batches of which a user should know that they were left out."""


class LossJudge:
    """Says by its loss whether a batch is ordinary, for any optimizer; it needs no gradients.

    Ask `accepts(loss)` before `backward`, and leave the batch out if the answer is False: its loss is then far above
    what is usual. Losses are judged as RobustAdamW judges its level, and by their ratios: with the default threshold
    none is far that is less than 1.69 times the median of the last ones. A loss that is not finite is never accepted,
    and one of 0, which teaches nothing, always is; neither is remembered.

    Args:
        window: how many of the last losses tell what is usual. Before there are so many, every finite one is accepted.
        threshold: z-score above which a loss is not accepted. inf accepts all that are finite.
        minority: if at least this share of the losses of about four windows is near the threshold, or beyond, they
            are a kind of their own, and accepted.
        process_group: whose losses are averaged, so that all its ranks get the same answer; None is the default group,
            if there is one. With NCCL pass the loss as it is on the GPU.

    Examples:
        >>> import torch
        >>> from adaterm import LossJudge
        >>> model = torch.nn.Linear(8, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        >>> judge = LossJudge()
        >>> loss = model(torch.ones(16, 8)).square().mean()
        >>> if judge.accepts(loss):
        ...     optimizer.zero_grad()
        ...     loss.backward()
        ...     optimizer.step()
    """

    def __init__(
        self,
        *,
        window: int = 100,
        threshold: float = 3.0,
        minority: float = 0.25,
        process_group: "ProcessGroup | None" = None,
    ) -> None:
        self._rule = RobustAdamRule(window=window, threshold=threshold, minority=minority)
        self._history = {name: deque[float](maxlen=window) for name in Notes._fields}
        self._answers, self._warns = deque[bool](maxlen=window), True
        self._statistics = BatchStatistics(nan, nan, nan)
        self.process_group = process_group

    def __repr__(self) -> str:
        rule = self._rule
        return f"LossJudge(window={rule.window}, threshold={rule.threshold}, minority={rule.minority})"

    def accepts(self, loss: Tensor | float) -> bool:
        """Judge a loss, and remember it: False if its batch is to be left out.

        Ask once for each batch, on every rank. On a GPU this waits for the loss.
        """
        value = self._read(loss)
        if value < 0.0 and isfinite(value):
            raise ValueError(
                f"a LossJudge compares losses by their ratios, and cannot judge a negative one, {value:.6g}: judge "
                "gradients in its place, with a BatchJudge, or pass a part of the loss that is positive"
            )
        self._statistics = judge_loss(value, self._rule, self._history)
        accepted = bool(self._statistics.trust >= 0.5)
        self._answers.append(accepted)
        if not accepted and self._warns:
            self._warn_of_many(value)
        return accepted

    def batch_statistics(self) -> BatchStatistics:
        """What the last answer rests on, as numbers: twice the logarithm of the loss, its z-score, and the trust."""
        return self._statistics

    def state_dict(self) -> dict[str, list[float]]:
        """What is to be saved to go on later: the last notes, the newest first."""
        return {name: list(values) for name, values in self._history.items()}

    def load_state_dict(self, state_dict: Mapping[str, Sequence[float]]) -> None:
        """Go on from such a state; if the window is smaller now, with its newest losses."""
        if not isinstance(state_dict, Mapping) or set(state_dict) != set(self._history):
            there = f"has the keys {', '.join(map(str, state_dict))}" if isinstance(state_dict, Mapping) else state_dict
            raise ValueError(f"this is not the state of a LossJudge, but {there}")
        window = self._rule.window
        self._history = {name: deque(map(float, state_dict[name][:window]), window) for name in self._history}

    def _warn_of_many(self, loss: float) -> None:
        """Warn, once, if a large part of the last batches was left out."""
        window, left_out = self._rule.window, self._answers.count(False)
        if len(self._answers) == window and left_out >= MANY * window:
            why = (
                "their losses are far above what is usual. If they are good, pass a larger threshold"
                if isfinite(loss)
                else f"the last loss is {loss}. Look whether the parameters are finite"
            )
            warn_user(f"a LossJudge left out {left_out} of the last {window} batches: {why}")
            self._warns = False

    def _read(self, loss: Tensor | float) -> float:
        """The loss as a number, averaged over the ranks."""
        if not (isinstance(loss, Tensor) or is_number(loss)):
            raise TypeError(f"a loss is a number, or a tensor that has one, not {type(loss).__name__}")
        value = loss.detach() if isinstance(loss, Tensor) else torch.tensor(loss, dtype=torch.float64, device="cpu")
        if value.numel() != 1:
            raise ValueError(f"a loss is one number, and not of shape {tuple(value.shape)}: pass its mean")
        if is_sharded(value):
            value = value.full_tensor()  # type: ignore[attr-defined]
        if dist.is_available() and dist.is_initialized():
            ranks = dist.get_world_size(self.process_group)
            if ranks < 1:
                raise RuntimeError("this rank is not in the LossJudge's process_group: ask there, and send the answer")
            value = value.to(find_widest(value)) / ranks
            dist.all_reduce(value, group=self.process_group)
        return value.item()


def judge_loss(loss: float, rule: RobustAdamRule, history: Mapping[str, deque[float]]) -> BatchStatistics:
    """What a loss says of its batch; what is to be remembered of it goes to the front of the history."""
    if not isfinite(loss):
        return BatchStatistics(loss, inf, 0.0)
    known = 1.0 if loss > 0.0 else 0.0
    totals = Totals(log_distance=2.0 * math.log(loss) if known else 0.0, known=known, squares=0.0, valid=1.0)
    _, statistics, notes = PLAIN.robust_adam_judge(totals, *history.values(), rule.numbers, rule.flags)
    for name, note in notes._asdict().items():
        if note < inf:
            history[name].appendleft(note)
    return BatchStatistics(*statistics)
