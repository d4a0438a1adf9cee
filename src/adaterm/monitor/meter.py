"""Numbers of the last step for a logger, from the rows that are new since they were last asked for.

All is kept on the host, and the equations run on Python's numbers: operations on tensors would cost more.
"""

import math
from collections import deque
from math import inf, isfinite, nan

import torch
from torch import Tensor

from adaterm.engines.base import LEVEL, NORM, TRUST, ZSCORE
from adaterm.equations import Totals
from adaterm.monitor.history import FLAGS, NUMBERS, REFRESHED, find_usual, take_logs
from adaterm.monitor.ring import MORE, list_numbers
from adaterm.plain_primitives import PLAIN

_REPORTED = {"level": LEVEL, "zscore": ZSCORE, "trust": TRUST, "norm": NORM}


class Meter:
    """What has to be kept of the last steps."""

    def __init__(self, judged: bool, window: int) -> None:
        self.step = 0  # the last one that was taken into account
        self.needed = (window if judged else 2 * window) + REFRESHED  # rows, at most; a verdict needs no window
        self._judged, self.window = judged, window
        self._distances = deque[Tensor](maxlen=window + REFRESHED)
        self._levels = deque[float](maxlen=window)  # newest first
        self._excluded = deque[bool](maxlen=window)
        self._taken = 0
        self._asked: int | None = None  # the step of those taken at which it was last asked what is usual
        self._usual: list[float] = []
        self._spread: list[float] = []
        self._metrics: dict[str, float] = {}

    def take(self, rows: Tensor) -> None:
        """Take new rows of a ring into account; steps that GradScaler skipped do not count."""
        steps = list_numbers(rows)[:, 0].tolist()
        taken = []
        for place, step in enumerate(steps):
            if step > self.step:
                self.step = step
                values = rows[place].tolist()
                if any(trust == trust for trust in values[1][:-MORE]):
                    self._distances.append(rows[place, 0].clone())
                    taken.append((step, values, self._judge(values)))
        if taken:
            self._taken += len(taken)
            self._measure(*taken[-1])

    def _judge(self, values: list[list[float]]) -> dict[str, float]:
        """What is known of a batch."""
        if self._judged:
            verdict = [number for line in values for number in line[-MORE:-1]]
            self._excluded.append(verdict[TRUST] < 0.5)
            return {name: verdict[place] for name, place in _REPORTED.items()}
        notes = [math.log(distance) for distance in values[0][:-MORE] if 0.0 < distance < inf]
        trusts = [trust for trust in values[1][:-MORE] if trust == trust]
        valid = float(any(map(isfinite, values[0][:-MORE])))
        totals, window = Totals(sum(notes), float(len(notes)), 0.0, valid), list(self._levels)
        history = window, window, [inf], [inf]  # no share of far batches is known here
        _, report, remembered = PLAIN.robust_adam_judge(totals, *history, NUMBERS, FLAGS)
        self._levels.appendleft(remembered.level)
        self._excluded.append(report.trust < 0.5)
        return {"level": report.level, "zscore": report.zscore, "trust": sum(trusts) / len(trusts)}

    def _measure(self, step: int, values: list[list[float]], batch: dict[str, float]) -> None:
        self._ask(step)
        least, nonfinite, total, known = 1.0, 0, 0.0, 0
        for distance, trust, usual, spread in zip(values[0], values[1], self._usual, self._spread, strict=False):
            least = trust if trust < least else least
            if 0.0 < distance < inf:
                zscore = (math.log(distance) - usual) / spread
                if zscore == zscore:
                    known += 1
                    total += zscore * zscore if zscore > 0.0 else 0.0
            elif trust == trust and not isfinite(distance):
                nonfinite += 1
        self._metrics = {
            **batch,
            "score": math.sqrt(total / known) if known else nan,
            "least_trust": least,
            "nonfinite": float(nonfinite),
            "excluded": sum(self._excluded) / len(self._excluded),
        }

    def _ask(self, step: int) -> None:
        """Find out what is usual for each tensor, at every tenth step."""
        offset = (step - 1) % REFRESHED
        if self._taken - offset == self._asked:
            return
        self._asked = self._taken - offset
        end = max(0, len(self._distances) - 1 - offset)
        window = list(self._distances)[max(0, end - self.window) : end] or [self._distances[-1] * inf]
        self._usual, self._spread = (part.tolist() for part in find_usual(take_logs(torch.stack(window)[:, :-MORE]).T))

    def list_metrics(self, prefix: str) -> dict[str, float]:
        """Numbers of the last step and of the window; what is not known yet is left out."""
        return {prefix + name: number for name, number in self._metrics.items() if isfinite(number)}
