"""The arena's tables of what methods made of good and bad batches, and of how many steps bad ones cost."""

from math import isfinite

from adaterm_bench.arena.finals import Finals
from adaterm_bench.arena.measure import Measure, average, format_share
from adaterm_bench.arena.protocol import CLEAN
from adaterm_bench.arena.tables import list_noises
from adaterm_bench.core.section import Table


def make_judgement_tables(finals: Finals, measure: Measure, title: str) -> list[Table]:
    """What methods made of good and bad batches, and how many steps bad ones cost."""
    rows = []
    for method in finals.methods:
        clean = finals.values(method, CLEAN, "good_excluded")
        dirty = {
            outcome: [average(finals.values(method, noise, outcome)) for noise in measure.dirty]
            for outcome in ("good_excluded", "bad_excluded", "bad_excluded_later", "auroc", "auroc_loss", "steps_lost")
        }
        cells = [
            format_share(average(clean)),
            *(format_share(average(dirty[name])) for name in ("good_excluded", "bad_excluded", "bad_excluded_later")),
            *(_format_plain(average(dirty[name]), 3) for name in ("auroc", "auroc_loss")),
            _format_plain(average(dirty["steps_lost"]), 1),
        ]
        rows.append([method, *cells])
    if not any(any(row[1:]) for row in rows):
        return []
    heading = ["method", "good excluded, clean run", "good excluded", "bad caught", "bad caught later"]
    heading += ["AUROC of its signal", "AUROC of the loss", "steps lost"]
    note = (
        "Except for the first column, means over the noises with bad batches that a method has: rows with different "
        "noises do not compare. Excluded, or caught: with a trust below a half; empty, or 0, for methods that exclude "
        "none. Later, and AUROCs: after the first steps, when the model knows enough. AUROC: the chance that a bad "
        "batch stands out more than a good one. Steps lost: after a bad step, until the loss of good batches is back. "
        "RobustAdamW's trust is only that of the whole batch: under “tensor 2 %” a tensor that it held back counts as "
        "not caught."
    )
    return [Table(title, heading, rows, note), *_make_catch_table(finals, measure, f"{title}, by noise")]


def _make_catch_table(finals: Finals, measure: Measure, title: str) -> list[Table]:
    noises = [noise for noise in list_noises(finals, measure) if noise != CLEAN]
    rows = []
    for method in finals.methods:
        cells = []
        for noise in noises:
            outcomes = ("bad_excluded_later", "good_excluded_later", "auroc")
            caught, excluded, auroc = (average(finals.values(method, noise, outcome)) for outcome in outcomes)
            parts = (format_share(caught), format_share(excluded), _format_plain(auroc, 3))
            cells.append(" / ".join(part or "–" for part in parts) if any(parts) else "")  # noqa: RUF001
        if any(cells):
            rows.append([method, *cells])
    note = "Bad batches caught / good ones excluded / AUROC of the method's own signal, all after the first steps."
    return [Table(title, ["method", *noises], rows, note)] if rows else []


def _format_plain(value: float, digits: int) -> str:
    return f"{value:.{digits}f}" if isfinite(value) else ""
