"""What the report shows of regret and its bounds."""

from collections.abc import Iterable
from typing import Any, Literal

import numpy as np

from adaterm_bench.core.section import Figure, Section, Table
from adaterm_bench.core.trial import Result
from adaterm_bench.experiments.regret.claims import make_claims
from adaterm_bench.experiments.regret.growth import (
    BOUNDED,
    LATE,
    METHODS,
    Runs,
    RunsByCase,
    fit_exponent,
    gather_runs,
    measure_ratios,
)
from adaterm_bench.experiments.regret.problems import PROBLEMS
from adaterm_bench.reporting.intervals import Interval
from adaterm_bench.reporting.text import format_number, tidy

TEXT = """
Points in a box pay convex losses, and move by step sizes alpha / sqrt(t), as the theorem has it. The regret is what
they paid more than the best fixed point in hindsight. In the linear problems with noise half of the coordinates have no
slope: there the best corner gains about sqrt(T) on everyone. "one in 3" and "one in 20" hide the slope in rare large
gradients: what a robust method takes for outliers is then all there is to learn.

The inequalities always hold, but tell us nothing. Because x^2 + y^2 >= 2xy, the printed bound is at least
D (|g_1| + … + |g_T|) / sqrt(1 - beta), for every problem, T, alpha and epsilon, and no sequence of points in the box,
learned or not, has a regret above D (|g_1| + … + |g_T|): the trivial bound. The printed bound is not O(sqrt(T)) either:
the scale never falls below epsilon^2, so that its second term grows at least like T^(3/2). Whether the regret itself is
O(sqrt(T)) is then open, and what the growth exponents are for.
"""


def section(results: list[Result]) -> Section:
    """Growth of regret and bounds, and the claims on them."""
    runs = gather_runs(results)
    grown = {key: fit_exponent(*run.late("regret")) for key, run in runs.items()}
    bounded = any(method in BOUNDED for _, method in runs)
    return Section(
        "Regret and its bounds",
        TEXT.strip(),
        tables=[_tabulate_growth(grown), _tabulate_regret(runs), *([_tabulate_bounds(runs)] if bounded else [])],
        figures=[
            Figure("Regret", lambda: _draw("regret", runs), "Means over seeds; dotted: growth like sqrt(T)."),
            *([Figure("The bounds and their terms", lambda: _draw("bounds", runs), "Means over seeds.")] * bounded),
        ],
        claims=make_claims(runs, grown),
    )


def _draw(kind: Literal["regret", "bounds"], runs: RunsByCase) -> Any:
    from adaterm_bench.experiments.regret import figures  # needs matplotlib

    means = {key: {name: values.mean(axis=1) for name, values in run.series.items()} for key, run in runs.items()}
    return figures.draw_regret(means) if kind == "regret" else figures.draw_bounds(means)


def _list_axes(keys: Iterable[tuple[str, str]]) -> tuple[list[str], list[str]]:
    """The problems and the methods there are."""
    problems, methods = zip(*keys, strict=True)
    return [problem for problem in PROBLEMS if problem in problems], [method for method in METHODS if method in methods]


def _tabulate_growth(grown: dict[tuple[str, str], Interval]) -> Table:
    problems, methods = _list_axes(grown)
    rows = [[problem, *(_format_growth(grown.get((problem, method))) for method in methods)] for problem in problems]
    note = f"Slope of ln(mean regret) over ln T in the last {LATE}-fold of T, with 95 % bootstrap intervals over seeds."
    return Table("Growth exponent of the regret", ["problem", *methods], rows, note)


def _format_growth(interval: Interval | None) -> str:
    if interval is None:
        return ""
    bounds = f" [{interval.low:.3f}, {interval.high:.3f}]" if np.isfinite([interval.low, interval.high]).all() else ""
    return f"{interval.estimate:.3f}{bounds}" if np.isfinite(interval.estimate) else "no value"


def _tabulate_regret(runs: RunsByCase) -> Table:
    problems, methods = _list_axes(runs)
    rows = []
    for problem in problems:
        present = [runs.get((problem, method)) for method in methods]
        rows.append([problem, *("" if run is None else _format_regret(run) for run in present)])
    last = int(max(run.times[-1] for run in runs.values()))
    return Table(f"Mean regret after {tidy(f'{last:,}')} steps", ["problem", *methods], rows)


def _format_regret(run: Runs) -> str:
    return format_number(float(run.series["regret"][-1].mean()))


def _tabulate_bounds(runs: RunsByCase) -> Table:
    rows = []
    for (problem, method), run in runs.items():
        if method in BOUNDED:
            ratios = measure_ratios(run, "bound", "regret")
            over, path = measure_ratios(run, "bound", "trivial"), fit_exponent(*run.late("path"))
            rows.append(
                [
                    f"{problem}, {method}",
                    tidy(f"{run.series['least_rate'][-1].min():.1e}"),
                    tidy(f"{ratios.min():.1e} to {ratios.max():.1e}"),
                    tidy(f"{over.min():.1e}"),
                    f"{fit_exponent(*run.late('bound')).estimate:.2f}",
                    f"{path.estimate:.2f}",
                    tidy(f"{np.mean(run.series['path'][-1] / run.series['bound'][-1]):.1e}"),
                ]
            )
    columns = ["run", "least τ", "bound / regret", "least bound / trivial bound"]
    columns += ["bound's exponent", "second term's exponent", "its share at the end"]
    note = "The second term sums sqrt(v_t) / alpha_t. Ratios are over all seeds and times with a positive regret."
    return Table("The printed bounds", columns, rows, note)
