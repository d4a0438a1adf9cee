"""What the report shows of the policy distillation."""

from math import isfinite, nan

import numpy as np

from adaterm_bench.core.section import Figure, Section, Table
from adaterm_bench.core.trial import Result
from adaterm_bench.datasets.data import DataError
from adaterm_bench.methods import PAPER_METHODS
from adaterm_bench.reporting import figures
from adaterm_bench.reporting.claims import correct_families, tabulate_checks
from adaterm_bench.reporting.comparison import (
    OURS,
    RIVALS,
    compare_in_pairs,
    describe_change,
    describe_how,
    describe_interval,
    describe_middle,
    describe_spread,
    group_by_method,
    list_by_seed,
    pair_outcomes,
)
from adaterm_bench.reporting.intervals import Values
from adaterm_bench.reporting.orders import check_means, claim_orders
from adaterm_bench.reporting.published import AS_PUBLISHED, PUBLISHED, find_published
from adaterm_bench.reporting.statistics import bootstrap_interval, mean, mean_std
from adaterm_bench.reporting.text import format_number

SHOWN = (*RIVALS, OURS)
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
COLUMNS = {"without": "distillation_without_amateur", "with": "distillation_with_amateur"}


def section(results: list[Result]) -> Section:
    """Returns next to the paper's, and its claims."""
    data = sorted({result.outcome["data"] for result in results})
    if len(data) > 1:
        raise DataError(f"these results are of different demonstrations ({', '.join(data)}): keep them apart")
    *teachers, amateur = results[0].outcome["policies"]
    cases = [case for case in COLUMNS if any(result.trial.condition["amateur"] == case for result in results)]
    return Section(
        "Policy distillation",
        "Small networks learn what three teachers do, without and with an amateur among them, and are then tested in "
        "the teachers' task. The teachers are ours, so that the order of methods can be compared with the paper's, and "
        f"returns cannot. The teachers: {'; '.join(teachers)}. The amateur: {amateur}. The demonstrations' fingerprint "
        f"is {data[0]}.",
        tables=[
            table
            for case in cases
            for table in (_make_table(results, case), _tabulate_tests(results, case), *_compare_pairs(results, case))
        ]
        + _tabulate_costs(results)
        + tabulate_checks(
            {
                f"mean returns, {case} the amateur": check_means(COLUMNS[case], returns)
                for case in cases
                if (returns := _list_by_seed(results, case).get(OURS))
            }
        ),
        figures=[figure for case in cases for figure in (_draw_returns(results, case), _draw_tests(results, case))],
        claims=correct_families(
            claim for case in cases for claim in claim_orders(COLUMNS[case], _list_by_seed(results, case))
        ),
    )


def _name_case(case: str) -> str:
    return f"{case.capitalize()} the amateur"


def _list_returns(results: list[Result]) -> list[float]:
    return [result.outcome["return"] for result in results]


def _make_table(results: list[Result], case: str) -> Table:
    rows = []
    for method, runs in group_by_method(results, amateur=case).items():
        values = np.array(_list_returns(runs))
        theirs = find_published(COLUMNS[case], method)
        loss = mean_std(np.array([result.outcome["losses"][-1] for result in runs]))
        spread, middle = describe_spread(mean_std(values)), describe_middle(values, "higher")
        rows.append([method, str(len(runs)), spread, theirs, middle, describe_spread(loss)])
    note = (
        "Return of the students: mean and standard deviation over seeds, the paper's over 24. The loss is that of the "
        f"last epoch, negative log-likelihood of the demonstrations: lower fits better. {describe_how(results)} "
        f"{AS_PUBLISHED}"
    )
    columns = ["method", "seeds", "ours", "the paper's", "interquartile mean", "loss"]
    return Table(f"{_name_case(case)}: return", columns, rows, note)


def _compare_pairs(results: list[Result], case: str) -> list[Table]:
    return [
        table
        for method in (OURS, "Adam")
        for table in compare_in_pairs(
            f"{_name_case(case)}: compared with {method}", results, "return", "higher", than=method, amateur=case
        )
    ]


def _tabulate_costs(results: list[Result]) -> list[Table]:
    """The same seeds' students with and without the amateur."""
    rows = []
    without, with_amateur = (group_by_method(results, amateur=case) for case in COLUMNS)
    for method, runs in without.items():
        left, held = pair_outcomes(runs, with_amateur.get(method, ()), "return")
        if len(left):
            theirs = (
                PUBLISHED[column].get(method.removesuffix(" (as published)"), (nan, nan))[0]
                for column in COLUMNS.values()
            )
            shares = _format_change(mean_std(left).mean, mean_std(held).mean), _format_change(*theirs)
            rows.append([method, str(len(left)), describe_change(left, held, "higher"), *shares])
    columns = ["method", "seeds", "change of the mean return", "in percent", "the paper's"]
    note = f"From students without the amateur to those with it. {describe_how(results)} {AS_PUBLISHED}"
    return [Table("What the amateur costs", columns, rows, note)] if rows else []


def _format_change(before: float, after: float) -> str:
    return f"{format_number(100.0 * (after / before - 1.0), 2)} %" if isfinite(after) and before > 0.0 else ""


def _draw_returns(results: list[Result], case: str) -> Figure:
    values = {method: np.array(_list_returns(runs)) for method, runs in group_by_method(results, amateur=case).items()}
    return Figure(
        f"{_name_case(case)}: students",
        lambda: figures.draw_bars(values, "return", start=None),
        "Dots: seeds; markers: mean and standard deviation.",
    )


def _list_tests(runs: list[Result]) -> Values:
    """Every test episode of every student that has any."""
    tests = np.concatenate([np.asarray(result.outcome["test_returns"], dtype=np.float64) for result in runs])
    return np.asarray(tests[np.isfinite(tests)])


def _tabulate_tests(results: list[Result], case: str) -> Table:
    """Returns come in humps, of ants that walk and ants that do not: a mean lies between them."""
    runs = group_by_method(results, amateur=case)
    groups = {method: _list_tests(own) for method, own in runs.items()}
    half = max((float(tests.max()) for tests in groups.values() if tests.size), default=nan) / 2
    walked = {
        method: {result.trial.seed: _measure_percentage(result, half) for result in own} for method, own in runs.items()
    }
    rows = []
    for method, tests in groups.items():
        if tests.size:
            shares = map(format_number, np.quantile(tests, QUANTILES))
            own = np.array(list(walked[method].values()))
            walks = describe_interval(bootstrap_interval(own, mean, better="higher"), own)
            rows.append([method, str(tests.size), *shares, walks, _compare_shares(walked, method)])
    columns = ["method", "episodes", *(f"{100 * share:g} % below" for share in QUANTILES)]
    columns += ["mean % that walk", f"its difference from {OURS}"]
    note = (
        "All test episodes of all students: the returns below which so many of them lie. Walks: a return above half of "
        f"the best of all, {format_number(half)}; the mean over students, and the mean difference of the same seeds. "
        f"{describe_how(results)}"
    )
    return Table(f"{_name_case(case)}: returns of single episodes", columns, rows, note)


def _measure_percentage(result: Result, half: float) -> float:
    """How much of a hundred test episodes a student walks in; rounded, so that equal shares cancel."""
    return round(100.0 * float(np.mean(np.asarray(result.outcome["test_returns"]) > half)), 1)


def _compare_shares(walked: dict[str, dict[int, float]], method: str) -> str:
    """By how much a method's students walk more often, over the seeds that both have."""
    theirs, ours = walked[method], walked.get(OURS, {})
    seeds = sorted(theirs.keys() & ours.keys())
    if method == OURS or not seeds:
        return ""
    pair = [np.array([shares[seed] for seed in seeds]) for shares in (ours, theirs)]
    return describe_change(pair[0], pair[1], "higher")


def _draw_tests(results: list[Result], case: str) -> Figure:
    groups = {
        method: _list_tests(runs)
        for method, runs in group_by_method(results, amateur=case).items()
        if method in SHOWN or method not in PAPER_METHODS
    }
    return Figure(
        f"{_name_case(case)}: single episodes",
        lambda: figures.draw_distributions(groups, "return"),
        "The share of test episodes with at most a return: steep where a hump is. Of some methods only.",
    )


def _list_by_seed(results: list[Result], case: str) -> dict[str, dict[int, float]]:
    return list_by_seed(group_by_method(results, amateur=case), "return")
