"""What the report shows of the policy distillation."""

from math import isfinite, nan

import numpy as np

from adaterm_bench.core.section import Claim, Figure, Section, Table
from adaterm_bench.core.trial import Result
from adaterm_bench.datasets.data import DataError
from adaterm_bench.reporting import figures
from adaterm_bench.reporting.comparison import (
    CLAIMED,
    HOW,
    OURS,
    by_method,
    change_text,
    in_pairs,
    middle_text,
    paired,
    shared,
    spread_text,
)
from adaterm_bench.reporting.published import AS_PUBLISHED, PUBLISHED, published
from adaterm_bench.reporting.statistics import mean, mean_std, paired_difference
from adaterm_bench.reporting.text import number

COLUMNS = {"without": "distillation_without_amateur", "with": "distillation_with_amateur"}


def section(results: list[Result]) -> Section:
    """Returns beside the paper's, and its claims."""
    data = sorted({it.outcome["data"] for it in results})
    if len(data) > 1:
        raise DataError(f"these results are of different demonstrations ({', '.join(data)}): keep them apart")
    *teachers, amateur = results[0].outcome["policies"]
    cases = [it for it in COLUMNS if any(result.trial.condition["amateur"] == it for result in results)]
    return Section(
        "Policy distillation",
        "Small networks learn what three teachers do, without and with an amateur among them, and are then tested in "
        "the teachers' task. The teachers are ours, so that the order of methods can be compared with the paper's, and "
        f"returns cannot. The teachers: {'; '.join(teachers)}. The amateur: {amateur}. The demonstrations' fingerprint "
        f"is {data[0]}.",
        tables=[table for case in cases for table in (_table(results, case), *_pairs(results, case))] + _costs(results),
        figures=[_figure(results, case) for case in cases],
        claims=[claim for case in cases for claim in _claims(results, case)],
    )


def _name(case: str) -> str:
    return f"{case.capitalize()} the amateur"


def _returns(results: list[Result]) -> list[float]:
    return [it.outcome["return"] for it in results]


def _table(results: list[Result], case: str) -> Table:
    rows = []
    for method, own in by_method(results, amateur=case).items():
        values = np.array(_returns(own))
        theirs = published(COLUMNS[case], method)
        loss = mean_std(np.array([it.outcome["losses"][-1] for it in own]))
        spread, middle = spread_text(mean_std(values)), middle_text(values, "higher")
        rows.append([method, str(len(own)), spread, theirs, middle, spread_text(loss)])
    note = (
        "Return of the students: mean and standard deviation over seeds, the paper's over 24. The loss is that of the "
        f"last epoch, negative log-likelihood of the demonstrations: lower fits better. {HOW} {AS_PUBLISHED}"
    )
    columns = ["method", "seeds", "ours", "the paper's", "interquartile mean", "loss"]
    return Table(f"{_name(case)}: return", columns, rows, note)


def _pairs(results: list[Result], case: str) -> list[Table]:
    return [
        table
        for method in (OURS, "Adam")
        for table in in_pairs(f"{_name(case)}: beside {method}", results, "return", "higher", than=method, amateur=case)
    ]


def _costs(results: list[Result]) -> list[Table]:
    """The same seeds' students with and without the amateur."""
    rows = []
    without, beside = (by_method(results, amateur=case) for case in COLUMNS)
    for method, own in without.items():
        left, held = paired(own, beside.get(method, ()), "return")
        if len(left):
            theirs = (
                PUBLISHED[it].get(method.removesuffix(" (as published)"), (nan, nan))[0] for it in COLUMNS.values()
            )
            shares = _change(mean_std(left).mean, mean_std(held).mean), _change(*theirs)
            rows.append([method, str(len(left)), change_text(left, held, "higher"), *shares])
    columns = ["method", "seeds", "change of the mean return", "in percent", "the paper's"]
    note = f"From students without the amateur to those with it. {HOW} {AS_PUBLISHED}"
    return [Table("What the amateur costs", columns, rows, note)] if rows else []


def _change(before: float, after: float) -> str:
    return f"{number(100.0 * (after / before - 1.0), 2)} %" if isfinite(after) and before > 0.0 else ""


def _figure(results: list[Result], case: str) -> Figure:
    values = {method: np.array(_returns(own)) for method, own in by_method(results, amateur=case).items()}
    return Figure(
        f"{_name(case)}: students",
        lambda: figures.bars_with_spread(values, "return", start=None),
        "Dots: seeds; markers: mean and standard deviation.",
    )


def _claims(results: list[Result], case: str) -> list[Claim]:
    claims = []
    for rival in CLAIMED:
        ours, own = shared(results, "return", OURS, rival, amateur=case)
        if len(ours):
            found = paired_difference(ours, own, mean, better="higher")
            text = f"{_name(case)}, AdaTerm's students have a higher return than those of {rival}."
            claims.append(Claim(text, "mean difference", *found[:3], note=found.note))
    return claims
