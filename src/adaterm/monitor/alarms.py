"""Warnings of what the last steps show, each given once, with what to do."""

import warnings

from adaterm.monitor.history import History

SHARE = 0.2  # of batches, from which on so many are excluded that something is wrong
UNTRUSTED = 0.1  # the trust that a tensor never reaches if it learns nothing to speak of
SETTLED = 500  # steps before it counts: AdaTerm begins with little trust


class Alarms:
    """What was warned of."""

    def __init__(self) -> None:
        self._given: set[str] = set()

    def check(self, history: History, names: list[str]) -> None:
        """Look at the last steps, as many as the window has; nothing is said before there are so many."""
        last = history.window
        if len(history) < last:
            return
        excluded, nonfinite, trusts = (
            table[-last:] for table in (history.excluded, history.nonfinite, history.trusts.nan_to_num(-1.0))
        )
        if nonfinite.any(1).all():
            often = names[int(nonfinite.sum(0).argmax())]
            self._warn(
                "nonfinite",
                f"each of the last {last} steps had gradients that are not finite, most often of {often} "
                f"({int(nonfinite.any(0).sum())} tensors in all). Look there for a division by 0, a logarithm or an "
                "overflow; torch.autograd.set_detect_anomaly(True) finds where they come from",
            )
        run, end = _find_longest_run(history.far.tolist())
        if run >= last // 2:
            self._warn(
                "run",
                f"{run} batches in a row, up to step {int(history.steps[end])}, lay far beyond those before. Either "
                "the input is broken, or data or task changed for good: look at monitor.aberrant() and at the batches",
            )
        elif excluded.float().mean() >= SHARE:
            self._warn(
                "share",
                f"{int(excluded.sum())} of the last {last} batches were distrusted. If monitor.aberrant() shows good "
                "ones, raise `threshold`, or lower `minority` below their share; if it shows bad ones, mend the data",
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

    def _warn(self, kind: str, message: str) -> None:
        if kind not in self._given:
            self._given.add(kind)
            warnings.warn(f"adaterm.Monitor: {message}.", UserWarning, stacklevel=5)


def _find_longest_run(flags: list[bool]) -> tuple[int, int]:
    """How many in a row are True, at most, and the place of the last of them."""
    run, longest = 0, (0, 0)
    for place, flag in enumerate(flags):
        run = run + 1 if flag else 0
        longest = max(longest, (run, place))
    return longest
