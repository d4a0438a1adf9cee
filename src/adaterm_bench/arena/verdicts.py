"""How an optimizer judged the batches of a run, and what bad ones cost it."""

from typing import Any

import torch
from torch import Tensor

BEFORE = 20  # good batches whose median loss is the usual one
AFTER = 3  # good batches whose mean loss tells whether it is as usual again
MARGIN = 1.02
MOST = 100
PARTS = 20


def judge_run(losses: Tensor, notes: Tensor | None, bad: Tensor, settled: int) -> dict[str, Any]:
    """The outcomes of a run that follow from what was recorded of its steps; None where one does not apply.

    `notes` are signals and trusts of the steps, if the optimizer has any. A batch with a trust below a half was
    excluded. Later batches are those from the step `settled` on: signals and losses are compared among them.
    """
    losses, bad = losses.cpu().double(), bad.cpu()
    later = torch.arange(len(bad)) >= settled
    excluded = None if notes is None else notes.cpu()[:, 1] < 0.5
    return {
        "losses": [float(part.mean()) for part in losses.tensor_split(PARTS) if len(part)],
        "bad_excluded": _find_share(excluded, bad),
        "good_excluded": _find_share(excluded, ~bad),
        "bad_excluded_later": _find_share(excluded, bad & later),
        "good_excluded_later": _find_share(excluded, ~bad & later),
        "auroc": None if notes is None else _compare(notes.cpu()[:, 0].double(), bad, later),
        "auroc_loss": _compare(losses, bad, later),
        "steps_lost": count_steps_lost(losses, bad),
    }


def measure_auroc(bad: Tensor, good: Tensor) -> float | None:
    """The probability that a bad batch has a higher value than a good one; a tie counts half."""
    if not len(bad) or not len(good):
        return None
    higher = (bad[:, None] > good).double() + 0.5 * (bad[:, None] == good).double()
    return float(higher.mean())


def count_steps_lost(losses: Tensor, bad: Tensor) -> float | None:
    """The mean number of good batches after a bad one until three in a row have the usual loss again; at most 100.

    That is a mean within 2 % of the median of the 20 good batches before the bad one. A run that does not get there has
    lost all that were left. None if no batch is bad.
    """
    good = losses[~bad]
    lost = []
    for place in (~bad).cumsum(0)[bad].tolist():
        before, after = good[max(0, place - BEFORE) : place], good[place:]
        if len(before) and len(after) >= AFTER:
            back = (after.unfold(0, AFTER, 1).mean(1) <= MARGIN * before.median()).nonzero()[:, 0]
            lost.append(min(int(back[0]) if len(back) else len(after), MOST))
    return sum(lost) / len(lost) if lost else None


def _compare(values: Tensor, bad: Tensor, later: Tensor) -> float | None:
    values = torch.where(values.isfinite(), values, torch.inf)  # nothing could be more suspicious
    return measure_auroc(values[bad & later], values[~bad & later])


def _find_share(excluded: Tensor | None, chosen: Tensor) -> float | None:
    return None if excluded is None or not chosen.any() else float(excluded[chosen].double().mean())
