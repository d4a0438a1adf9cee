"""Warnings of what the last steps show, each given once, with what to do."""

from math import inf, log

import torch
from torch import Tensor

from adaterm.monitor.history import History
from adaterm.options import warn_user

SHARE = 0.2  # of batches, from which on so many are excluded that something is wrong
UNTRUSTED = 0.1  # the trust that a tensor never reaches if it learns nothing to speak of
CLIPPED = 3  # norms of a window that equal the largest: by chance two hardly do
EQUAL = 2e-5  # by how much those differ, relative to it; clipping divides by a norm and 1e-6
COARSE, SHARE_CLIPPED = 1e-3, 0.5  # the same in half precision, and of how many norms, which may be equal by chance
SETTLED = 500  # steps before it counts: AdaTerm begins with little trust


class Alarms:
    """What was warned of; a judge clips nothing itself."""

    def __init__(self, clips: bool = True) -> None:
        self._given: set[str] = set()
        self._clips = clips

    def check(self, history: History, names: list[str], precision: float) -> None:
        """Look at the last steps, as many as the window has; nothing is said before there are so many.

        The precision is the relative one of gradients, and so of the factor by which they are clipped.
        """
        last = history.window
        if len(history) < last:
            return
        excluded, nonfinite, trusts = (
            table[-last:] for table in (history.excluded, history.nonfinite, history.trusts.nan_to_num(-1.0))
        )
        fine = precision < EQUAL
        same = _find_same_norms(history, EQUAL if fine else max(COARSE, 2.0 * precision))[-last:]
        if same.sum() >= (CLIPPED if fine else SHARE_CLIPPED * last):
            norm = f"{history.norm[-last:][same].median().item():.3g}"
            often = f"at least {int(same.sum())} of the last {last} gradients"
            self.warn_of_clipping(
                f"{often} seem to be clipped, or scaled, to a norm of {norm}",
                f"If clip_grad_norm_ does it, or your framework, stop that and pass max_norm={norm} to RobustAdamW",
            )
        run, end = _find_longest_run(history.far.tolist())
        if nonfinite.any(1).all():  # by which all of them may be excluded, too
            often = names[int(nonfinite.sum(0).argmax())]
            self._warn(
                "nonfinite",
                f"each of the last {last} steps had gradients that are not finite, most often of {often} "
                f"({int(nonfinite.any(0).sum())} tensors in all). Look there for a division by 0, a logarithm or an "
                "overflow; torch.autograd.set_detect_anomaly(True) finds where they come from",
            )
        elif run >= last // 2:
            self._warn(
                "run",
                f"{run} batches in a row, up to step {int(history.steps[end])}, lay far beyond those before. Either "
                "the input is broken, or data or task changed for good: look at monitor.aberrant() and at the batches",
            )
        elif excluded.float().mean() >= SHARE:
            self._warn(
                "share",
                f"{int(excluded.sum())} of the last {last} batches were distrusted. If monitor.aberrant() shows good "
                "ones, raise `threshold`, or lower `minority` below their share; if it shows bad ones, repair the data",
            )
        tops, seen = trusts.amax(0), int(history.steps[-1])
        never = [name for name, top in zip(names, tops.tolist(), strict=True) if 0.0 <= top < UNTRUSTED]
        if never and len(never) < len(names) and seen >= SETTLED:
            self._warn(
                "layer",
                f"{never[0]} was never trusted in the last {last} steps ({len(never)} tensors in all), so it hardly "
                "learns. Look at its gradients: if they are as they should be, give it a parameter group with a larger "
                "`dof` (`min_dof` of AdaTerm)",
            )

    @property
    def has_seen_clipping(self) -> bool:
        """Whether it was warned of gradients that are clipped before batches are judged."""
        return "clipping" in self._given

    def warn_of_clipping(self, what: str, remedy: str) -> None:
        """Say that gradients are clipped before batches are judged, by whom, and what to do instead."""
        place = "optimizer.step()" if self._clips else "judge.accepts()"
        advice = f"{remedy}: it clips after it has judged" if self._clips else f"Clip after {place}"
        self._warn("clipping", f"{what} before {place}, which hides what batches are judged by. {advice}")

    def _warn(self, kind: str, message: str) -> None:
        if kind not in self._given:
            self._given.add(kind)
            warn_user(f"adaterm.Monitor: {message}.")


def _find_same_norms(history: History, tolerance: float) -> Tensor:
    """Which steps have the largest norm of the last ones, within a tolerance, although their gradients differ by more.

    A difference d, relative to the gradients and in another direction, has a level of ln d^2 and adds d^2 / 2 to norms.
    """
    norms = torch.where(history.norm < inf, history.norm, 0.0)
    largest = norms[-history.window :].max()
    differ = (history.level > log(2.0 * COARSE)) & (history.steps > history.window)  # means begin at 0, and lag
    return (norms > 0.0) & (norms >= (1.0 - tolerance) * largest) & differ


def _find_longest_run(flags: list[bool]) -> tuple[int, int]:
    """How many in a row are True, at most, and the place of the last of them."""
    run, longest = 0, (0, 0)
    for place, flag in enumerate(flags):
        run = run + 1 if flag else 0
        longest = max(longest, (run, place))
    return longest
