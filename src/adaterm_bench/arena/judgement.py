"""The arena's tables of what methods made of good and bad batches, and of what that costs."""

from math import isfinite

import numpy as np

from adaterm_bench.arena.finals import Finals
from adaterm_bench.arena.measure import Measure, average, format_share
from adaterm_bench.arena.protocol import CLEAN
from adaterm_bench.arena.tables import list_noises
from adaterm_bench.core.section import Table
from adaterm_bench.reporting.text import format_number


def make_judgement_tables(finals: Finals, measure: Measure, title: str) -> list[Table]:
    """What methods made of good and bad batches, what bad ones cost in steps, and what a step costs in time."""
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
            _compare_times(finals, method),
        ]
        rows.append([method, *cells])
    if not any(any(row[1:]) for row in rows):
        return []
    heading = ["method", "good excluded, clean run", "good excluded", "bad caught", "bad caught later"]
    heading += ["AUROC of its signal", "AUROC of the loss", "steps lost", "time of a step"]
    note = (
        "Means over the columns with bad batches that a method has, but for the first. Excluded, or caught: with a "
        "trust below a half; empty, or 0, for methods that exclude none. Later, and AUROCs: after the first steps, "
        "when the model knows enough. AUROC: the chance that a bad batch stands out more than a good one. Steps lost: "
        "after a bad step, until the loss of good batches is back. Time: in those of AdamW with the same noise and "
        "seed, the median, of captured runs wherever there are any; steps that are not captured as a graph take longer "
        "for that alone. Times include what is done to observe a method, such as a norm or a copy. RobustAdamW's trust "
        "is that of the batch alone: under “tensor 2 %” a tensor that it held back counts as not caught."
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


def _compare_times(finals: Finals, method: str) -> str:
    times, baseline = _find_times(finals, method), _find_times(finals, "AdamW")
    captured = {is_captured for is_captured, _ in times.values()}
    mode, usual = any(captured), any(is_captured for is_captured, _ in baseline.values())
    ratios = [
        times[place][1] / baseline[place][1]
        for place in times.keys() & baseline.keys()
        if times[place][0] == mode and baseline[place][0] == usual and usual >= mode
    ]
    if not ratios:
        return ""
    mark = ", partly captured" if len(captured) > 1 else "" if mode else ", not captured"
    return format_number(float(np.median(ratios))) + mark


def _find_times(finals: Finals, method: str) -> dict[tuple[str, int], tuple[bool, float]]:
    """Whether a run was captured, and the time of a step, by noise and seed."""
    return {
        (noise, seed): (bool(run.get("captured")), run["step_seconds"])
        for (name, noise), runs in finals.runs.items()
        for seed, run in runs.items()
        if name == method and run.get("step_seconds")
    }


def _format_plain(value: float, digits: int) -> str:
    return f"{value:.{digits}f}" if isfinite(value) else ""
