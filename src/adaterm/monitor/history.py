"""What the last steps show: which batches stood out, in which tensors, by what was usual for each."""

from math import inf, nan

import torch
from torch import Tensor

from adaterm.engines.base import LEVEL, NORM, TRUST, ZSCORE
from adaterm.equations import BELOW, ENOUGH, LEAST_SPREAD, BatchStatistics, Totals
from adaterm.monitor.ring import Rows
from adaterm.rules import RobustAdamRule
from adaterm.torch_primitives import TORCH

REFRESHED = 10  # steps after which it is asked again what is usual for each tensor

RULE = RobustAdamRule()
NUMBERS, FLAGS = RULE.numbers._replace(window=float(ENOUGH)), RULE.flags
"""By which batches of other optimizers are judged: as soon as it is known what is usual, since a record may begin late
in training."""

ABOVE = 0.9  # quantile of a tensor's distances; where it is far from the median, large ones mean less


class History:
    """Steps that were taken, oldest first, with a number for each, or one for each tensor.

    `level`, `zscore` and `trust` are RobustAdamW's own. For others the level is the mean log-distance of their
    tensors, the z-score and what counts as excluded follow from it as they do in RobustAdamW, and the trust is the mean
    over tensors. `norm` is that of all gradients, as RobustAdamW was given them; for others it is NaN. `far` are
    batches beyond the threshold over half a window; RobustAdamW trusts them before its window is full, and after a few
    in a row. `early` are those whose z-score is beyond the default threshold, but which were used because the window
    was not full. `score` is the root mean square, over tensors, of how far each lies above its own usual distance.
    """

    def __init__(self, rows: Rows, judged: bool, window: int) -> None:
        self.judged = judged  # by the optimizer itself
        taken = ~rows.tensors[:, 1].isnan().all(1)
        self.steps, tensors, batches, self.last_marks = (table[taken] for table in rows)
        before = rows.marks.roll(1)
        before[:1] = (rows.marks[:1] - 1).clamp_min(0)
        self.marks_before = before[taken]
        self.distances, self.trusts, self.dofs = tensors.unbind(1)
        self.window = window
        self.notes = take_logs(self.distances)
        self.nonfinite = ~self.trusts.isnan() & ~self.distances.isfinite()
        valid = self.distances.isfinite().any(1)
        self.norm = batches[:, NORM]
        if judged:
            self.level, self.zscore, self.trust = batches[:, LEVEL], batches[:, ZSCORE], batches[:, TRUST]
            self.excluded = self.trust < 0.5
        else:
            self.level = torch.where(self.notes < inf, self.notes, nan).nanmean(1)
            _, self.zscore, judgement = _judge(self.level, valid, window)
            self.trust = self.trusts.nanmean(1)
            self.excluded = judgement < 0.5
        self.far = _find_far(self.level, window) | ~valid
        before = self.level.isfinite().cumsum(0).roll(1) < window  # as far as it is remembered
        self.early = before & ~self.excluded & (self.zscore > RULE.threshold) & judged

    def __len__(self) -> int:
        return len(self.steps)

    def stand_out(self, places: Tensor) -> Tensor:
        """How far, at these places of the history, each tensor lay above its usual distance: a z-score of its own.

        What is usual is found out at every tenth step. NaN as long as that is unknown, or without a gradient; infinite
        if the gradient was not finite.
        """
        padded = torch.cat([self.notes.new_full((self.window, self.notes.shape[1]), inf), self.notes])
        offset = (self.steps - 1) % REFRESHED  # whoever reads fewer steps gets the same numbers for the last ones
        ends = (places - offset[places]).clamp_min(0) + self.window
        asked, which = torch.unique(ends, return_inverse=True)
        usual, spread = torch.empty(2, len(asked), padded.shape[1])
        for part in range(0, len(asked), 256):
            chosen = asked[part : part + 256]
            windows = padded[(chosen - self.window)[:, None] + torch.arange(self.window)].transpose(1, 2)
            usual[part : part + 256], spread[part : part + 256] = find_usual(windows)
        notes = self.notes[places]
        zscores = torch.where(notes < inf, (notes - usual[which]) / spread[which], nan)
        return torch.where(self.nonfinite[places], inf, zscores)

    def score(self, places: Tensor) -> Tensor:
        """How much batches stood out, over all tensors; those whose gradients are not finite do not count."""
        zscores = self.stand_out(places)
        return torch.where(zscores < inf, zscores.clamp_min(0.0), nan).square().nanmean(1).sqrt()


def take_logs(distances: Tensor) -> Tensor:
    """The logarithms of distances; infinite if there is none."""
    return torch.where((distances > 0.0) & (distances < inf), distances.log(), inf)


def find_usual(windows: Tensor) -> tuple[Tensor, Tensor]:
    """The usual log-distance, NaN if too few are known, and the spread, of windows along the last dimension."""
    count = (windows < inf).sum(-1, keepdim=True)
    places = windows.new_tensor([BELOW, 0.5, ABOVE]) * (count - 1).clamp_min(0)
    under = places.floor()
    low, high = windows.sort().values.gather(-1, torch.cat([under, places.ceil()], -1).long()).chunk(2, -1)
    below, middle, above = torch.lerp(low, high, places - under).unbind(-1)
    sides = torch.maximum(middle - below, above - middle)
    return torch.where(count[..., 0] >= ENOUGH, middle, nan), sides.clamp_min(LEAST_SPREAD)


def _list_windows(levels: Tensor, window: int) -> Tensor:
    """What was remembered before each step, the newest first."""
    notes = torch.where(levels.isnan(), inf, levels)
    return torch.cat([notes.new_full((window,), inf), notes]).unfold(0, window, 1)[:-1].flip(-1)


def _find_far(levels: Tensor, window: int) -> Tensor:
    ordered = TORCH.sort(_list_windows(levels, window))
    median = TORCH.quantile(ordered, 0.5)
    spread = (median - TORCH.quantile(ordered, BELOW)).clamp_min(LEAST_SPREAD)
    known = TORCH.count_above(ordered, -inf) >= ENOUGH
    far: Tensor = known & (levels > median + RULE.threshold * spread)
    return far


def _judge(levels: Tensor, valid: Tensor, window: int) -> BatchStatistics:
    """What RobustAdamW, with its defaults, would have made of batches with these levels, if it accepted no minority.

    A batch is valid if it has a finite gradient.
    """
    windows = _list_windows(levels, window)
    one = torch.ones_like(levels)
    known = torch.where(levels.isnan(), 0.0, one)
    totals = Totals(levels.nan_to_num(), known, 0.0 * one, valid.to(one))
    nothing = torch.full_like(windows, inf)  # no share of far batches is known here
    history = windows, windows, nothing, nothing
    statistics: BatchStatistics = TORCH.robust_adam_judge(totals, *history, NUMBERS, FLAGS)[1]
    return statistics
