"""RobustAdamW's judgement of batches, by their losses alone."""

from math import inf, isfinite, log, nan
from sys import float_info
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from adaterm.binding import stages_of
from adaterm.engines.agreement import is_sharded
from adaterm.equations import BatchStatistics, Notes, Totals
from adaterm.rules import RobustAdamRule
from adaterm.torch_primitives import TORCH, push

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class LossJudge:
    """Says by its loss whether a batch is ordinary, for any optimizer; it needs no gradients, and hardly any memory.

    Ask `accepts(loss)` before `backward`, and leave the batch out if the answer is False: its loss is then far above
    what is usual. Losses are judged as RobustAdamW judges its level, and by their ratios: with the default threshold
    none is far that is less than 1.7 times the usual one. A loss that is not finite is never accepted.

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
        self._history = torch.full((len(Notes._fields), window), inf, dtype=torch.float64, device="cpu")
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
        if not isfinite(value):
            self._statistics = BatchStatistics(value, inf, 0.0)
            return False
        if value < 0.0:
            raise ValueError(
                f"a LossJudge compares losses by their ratios, and cannot judge a negative one, {value:.6g}: judge "
                "gradients in its place, with a BatchJudge, or pass a part of the loss that is positive"
            )
        level = self._history.new_tensor(2.0 * log(max(value, float_info.min)))
        one = torch.ones_like(level)
        rule, stages = self._rule, stages_of(self._rule.family, TORCH)
        totals = Totals(log_distance=level, known=one, squares=torch.zeros_like(level), valid=one)
        _, statistics, notes = stages.judge(totals, *self._history, rule.numbers, rule.flags)
        self._history = push(self._history, torch.stack(list(notes)))
        self._statistics = BatchStatistics(*(float(number) for number in statistics))
        return bool(self._statistics.trust >= 0.5)

    def batch_statistics(self) -> BatchStatistics:
        """What the last answer rests on: twice the logarithm of the loss, its z-score, and the trust in the batch."""
        return self._statistics

    def state_dict(self) -> dict[str, Any]:
        """What is to be saved to go on later."""
        return {"batches": self._history.clone()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from such a state; if the window is smaller now, with its newest losses."""
        saved, fresh = state_dict.get("batches"), torch.full_like(self._history, inf)
        if not isinstance(saved, Tensor) or saved.dim() != 2 or len(saved) != len(fresh):
            keys = ", ".join(map(str, list(state_dict)[:5]))
            raise ValueError(f"this is not the state of a LossJudge, but has the keys {keys}")
        kept = saved[:, : self._rule.window]
        fresh[:, : kept.shape[1]] = kept
        self._history = fresh

    def _read(self, loss: Tensor | float) -> float:
        """The loss as a number, averaged over the ranks."""
        value = loss.detach() if isinstance(loss, Tensor) else torch.tensor(loss, dtype=torch.float64, device="cpu")
        if value.numel() != 1:
            raise ValueError(f"a loss is one number, and not of shape {tuple(value.shape)}: pass its mean")
        if is_sharded(value):
            value = value.full_tensor()  # type: ignore[attr-defined]
        if dist.is_available() and dist.is_initialized():
            value = value.float().clone()
            dist.all_reduce(value, group=self.process_group)
            value = value / dist.get_world_size(self.process_group)
        return value.item()
