"""The arena's tables of final outcomes, ranks and the trap."""

from collections.abc import Sequence
from math import inf, isfinite

import numpy as np

from adaterm_bench.arena.finals import BASELINE, ORACLE, Column, Finals, compare_column
from adaterm_bench.arena.measure import EQUAL, LEAST, Measure, average, format_difference, format_share
from adaterm_bench.arena.protocol import CLEAN
from adaterm_bench.core.section import Table
from adaterm_bench.reporting.statistics import diverged, judge_equivalence

BEST, TIED = "★", "☆"


def make_outcome_tables(finals: Finals, measure: Measure, title: str, per_condition: bool = False) -> list[Table]:
    """Mean outcomes by noise, with the best marked, and the differences from AdamW with clipping."""
    noises = list_noises(finals, measure)
    if not noises:
        return []
    ranked = [method for method in finals.methods if method != ORACLE]
    columns = {noise: compare_column(finals, measure, noise, ranked) for noise in noises}
    means, apart = [], []
    for method in finals.methods:
        lead = [method, _list_rates(finals, method), _count_seeds(finals, method, noises)]
        values = {noise: finals.values(method, noise, measure.outcome) for noise in noises}
        means.append([*lead, *(_mark(measure.format_mean(values[noise]), method, columns[noise]) for noise in noises)])
        if method != BASELINE:
            pairs = [finals.pair(method, BASELINE, noise, measure.outcome) for noise in noises]
            differences = [format_difference(measure.compare(*pair)) if pair[0].size else "" for pair in pairs]
            apart.append([method, *differences])
    note = (
        f"Means over seeds; {measure.better} is better. {BEST}: the best of its column; {TIED}: not shown to be worse "
        "than the best, by Holm's correction over the column's comparisons with it, which is no proof of being as "
        "good. One seed marks nothing, and the best is one of those with most seeds, unless another, with "
        f"{LEAST} at least, is shown to be ahead of it. "
        f"{ORACLE} knows which batches are bad: a bound, not a rival."
    )
    if per_condition:
        note += " Each noise has the learning rate that was the best of several under it."
    elif finals.untuned:
        note += f" Without tuning runs, at the only rate that they have: {', '.join(finals.untuned)}."
    tables = [Table(title, ["method", "lr", "seeds", *noises], means, note)]
    if any(any(row[1:]) for row in apart):
        heading = f"{title}: difference from {BASELINE}, {measure.unit}"
        side = "Below 0 is better." if measure.relative else "Above 0 is better."
        note = f"Paired, over the seeds that both have, with Student's intervals. {side}"
        tables.append(Table(heading, ["method", *noises], apart, note))
    return tables


def make_cost_table(finals: Finals, measure: Measure, title: str) -> list[Table]:
    """What each noise costs each method, compared with its own outcome on clean data."""
    noises = [noise for noise in list_noises(finals, measure) if noise != CLEAN]
    rows = []
    for method in finals.methods:
        pairs = [finals.pair_with_clean(method, noise, measure.outcome) for noise in noises]
        rows.append([method, *(format_difference(measure.compare(*pair), 1) if pair[0].size else "" for pair in pairs)])
    rows = [row for row in rows if any(row[1:])]
    if not rows:
        return []
    side = "The lower, the less" if measure.relative else "The higher, the less"
    note = (
        f"A method's own {measure.noun} on clean data is what it is compared with, paired by seed, in {measure.unit}, "
        f"with Student's intervals. {side} the noise costs. A method that learns little at all may lose little: "
        "read this beside the outcomes."
    )
    return [Table(title, ["method", *noises], rows, note)]


def make_rank_table(finals: Finals, measure: Measure, title: str) -> list[Table]:
    """Methods by their mean rank over dirty columns, and how far each is behind the best on clean data."""
    ranked = [method for method in finals.methods if method != ORACLE]
    compared = {noise: compare_column(finals, measure, noise, ranked) for noise in measure.dirty}
    columns = {noise: column for noise, column in compared.items() if column is not None}
    clean = compare_column(finals, measure, CLEAN, ranked)
    if clean is None and not columns:
        return []
    rows: list[tuple[float, float, list[str]]] = []
    for method in ranked:
        ranking = [column for column in columns.values() if method in column.ranks]
        judged = [column for column in ranking if column.judges(method)]
        won = sum(method == column.best or method in column.tied for column in judged)
        rank = float(np.mean([column.ranks[method] for column in ranking])) if ranking else inf
        runs = [finals.values(method, noise, measure.outcome) for noise in list_noises(finals, measure)]
        lost = sum(map(diverged, runs))
        counts = [f"{rank:.1f}" if ranking else "", f"{won} of {len(judged)}" if judged else ""]
        row = [method, *counts, *_describe_clean(clean, method), f"{lost} of {sum(run.size for run in runs)}"]
        rows.append((-len(ranking), rank, row))
    heading = ["method", "mean rank", "best or tied", f"behind the best on clean data, {measure.unit}"]
    heading += [f"equal to within ±{EQUAL:g} {measure.unit}", "runs lost"]
    note = (
        f"Ranks are means over the columns with bad batches that a method has, of {len(measure.dirty)}; those with "
        f"fewer columns come last, and their ranks are of other columns. Tied: not shown to be worse than the best. "
        f"Equal: the whole interval lies within ±{EQUAL:g} {measure.unit}; “not shown” is not equal. {ORACLE} is not "
        "ranked."
    )
    return [Table(title, heading, [row for *_, row in sorted(rows, key=lambda entry: entry[:2])], note)]


def make_trap_table(finals: Finals, measure: Measure, title: str) -> list[Table]:
    """Both losses of the trap, beside those of AdamW with clipping, which excludes nothing."""
    if measure.trap not in finals.noises:
        return []
    rows = []
    for method in finals.methods:
        row = [method]
        for outcome in (measure.outcome, "second_loss"):
            values = finals.values(method, measure.trap, outcome)
            runs, rivals = finals.pair(method, BASELINE, measure.trap, outcome)
            row += [measure.format_mean(values)]
            row += [format_difference(measure.compare(runs, rivals)) if runs.size and method != BASELINE else ""]
        excluded = [finals.values(method, measure.trap, name) for name in ("good_excluded", "bad_excluded")]
        rows.append([*row, *(format_share(average(shares)) for shares in excluded)])
    apart = f"from {BASELINE}, {measure.unit}"
    heading = ["method", "first task", apart, "second task", apart]
    heading += ["excluded of the first task", "excluded of the second task"]
    note = (
        "Two tasks take turns, 70 to 30, with gradients ten times apart. No batch is bad: a method that takes the "
        "second task for a fault does not learn it. Validation losses of both, and the share of each task's "
        "batches with a trust below a half."
    )
    return [Table(title, heading, rows, note)]


def list_noises(finals: Finals, measure: Measure) -> list[str]:
    """The noises that have runs, except the trap: known ones in their order."""
    known = (CLEAN, *measure.dirty)
    others = sorted(finals.noises - {*known, measure.trap})
    return [*(noise for noise in known if noise in finals.noises), *others]


def _list_rates(finals: Finals, method: str) -> str:
    rates = sorted({rate for (name, _), rate in finals.rates.items() if name == method})
    return ", ".join(f"{rate:g}" for rate in rates)


def _count_seeds(finals: Finals, method: str, noises: Sequence[str]) -> str:
    counts = sorted({len(finals.runs[method, noise]) for noise in noises if (method, noise) in finals.runs})
    return f"{counts[0]}–{counts[-1]}" if len(counts) > 1 else "".join(map(str, counts))  # noqa: RUF001


def _mark(text: str, method: str, column: Column | None) -> str:
    if column is None or not text or not column.judges(method):
        return text
    return f"{text} {BEST}" if method == column.best else f"{text} {TIED}" if method in column.tied else text


def _describe_clean(clean: Column | None, method: str) -> list[str]:
    if clean is None or method not in clean.behind:
        return ["", ""]
    if method == clean.best:
        return ["0", "the best" if clean.judges(method) else ""]
    behind = clean.behind[method]
    return [format_difference(behind), judge_equivalence(behind, EQUAL) if isfinite(behind.estimate) else "lost runs"]
