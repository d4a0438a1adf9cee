"""What the report shows of regret and its bounds."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaterm_bench.core.section import Claim, Figure, Section, Table
from adaterm_bench.core.trial import Result
from adaterm_bench.experiments.regret.problems import PROBLEMS
from adaterm_bench.reporting.claims import Sentence, correct_families, make_claim
from adaterm_bench.reporting.intervals import Bootstrap, Interval
from adaterm_bench.reporting.statistics import trend

Values = NDArray[np.float64]

BOUNDED = {"AdaTerm": "theorem", "AdaTerm (gradient init)": "theorem", "No robustness": "corollary"}
METHODS = (*BOUNDED, "Adam", "AMSGrad")
MARGIN = 0.05  # by how much a fitted exponent may miss 1/2: logarithms look like small powers
LATE = 10  # exponents are fitted from the last time over this on
FEWER = Bootstrap(resamples=2_000)
BOTH = ("AdaTerm", "No robustness")
RANGE = "Interval: the least and the largest of all problems, seeds and times."
BOUND_HOLDS = Sentence("The regret is below the printed bound.", "section 4.5.1; appendix A", "a proof")
BOUND_GROWS = Sentence("The printed bound is O(√T).", "section 4.5.1", "stated without a proof")
REGRET_GROWS = Sentence("In the worst case the regret is O(√T).", "section 4.5.1", "from the bound")

TEXT = """
Points in a box pay convex losses, and move by step sizes alpha / sqrt(t), as the theorem has it. The regret is what
they paid more than the best fixed point in hindsight. In the linear problems with noise half of the coordinates have no
slope: there the best corner gains about sqrt(T) on everyone. "one in 3" and "one in 20" hide the slope in rare large
gradients: what a robust method takes for outliers is then all there is to learn.

The inequalities always hold, and say nothing. As x^2 + y^2 >= 2xy, the printed bound is at least
D (|g_1| + … + |g_T|) / sqrt(1 - beta), for every problem, T, alpha and epsilon, and no sequence of points in the box,
learned or not, has a regret above D (|g_1| + … + |g_T|): the trivial bound. The printed bound is not O(sqrt(T)) either:
the scale never falls below epsilon^2, so that its second term grows at least like T^(3/2). Whether the regret itself is
O(sqrt(T)) is then open, and what the growth exponents are for.
"""


class Runs(NamedTuple):
    """What one method did on one problem: the times, and by name arrays of times by seeds."""

    times: Values
    series: dict[str, Values]

    def late(self, name: str) -> tuple[Values, Values]:
        """The times that count for growth, and values there."""
        chosen = self.times >= self.times[-1] / LATE
        return self.times[chosen], self.series[name][chosen]


RunsByCase = dict[tuple[str, str], Runs]  # by problem and method


def section(results: list[Result]) -> Section:
    """Growth of regret and bounds, and the claims on them."""
    runs = _gather(results)
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
        claims=correct_families([*_claim_bounds(runs), *_claim_effective(runs), *_claim_growth(runs, grown)]),
    )


def fit_exponent(times: Values, values: Values, problems: int = 1) -> Interval:
    """The power of T with which the mean over seeds grows; without a value where a mean is not positive.

    Of the worst of several problems the interval is wider: by Bonferroni's correction all of them hold at once.
    """
    if len(times) < 2:
        return Interval(float("nan"), -np.inf, np.inf, values.shape[-1])
    bootstrap = replace(FEWER, level=1.0 - (1.0 - FEWER.level) / problems)
    return trend(
        np.log(times),
        values,
        kind="slope",
        statistic=lambda sample: np.log(np.mean(sample, axis=-1)),
        bootstrap=bootstrap,
    )


def _gather(results: list[Result]) -> RunsByCase:
    runs: RunsByCase = {}
    keys = sorted({(result.trial.condition["problem"], result.trial.method) for result in results}, key=_rank_case)
    for key in keys:
        outcomes = [
            result.outcome for result in results if (result.trial.condition["problem"], result.trial.method) == key
        ]
        series = {name: np.array([outcome[name] for outcome in outcomes], dtype=np.float64).T for name in outcomes[0]}
        runs[key] = Runs(series["time"][:, 0], series)
    return runs


def _draw(kind: Literal["regret", "bounds"], runs: RunsByCase) -> Any:
    from adaterm_bench.experiments.regret import figures  # needs matplotlib

    means = {key: {name: values.mean(axis=1) for name, values in run.series.items()} for key, run in runs.items()}
    return figures.draw_regret(means) if kind == "regret" else figures.draw_bounds(means)


def _rank_case(key: tuple[str, str]) -> tuple[int, int]:
    return list(PROBLEMS).index(key[0]), METHODS.index(key[1])


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
    bounds = f" [{interval.low:.2f}, {interval.high:.2f}]" if np.isfinite([interval.low, interval.high]).all() else ""
    return f"{interval.estimate:.2f}{bounds}" if np.isfinite(interval.estimate) else "no value"


def _tabulate_regret(runs: RunsByCase) -> Table:
    problems, methods = _list_axes(runs)
    rows = []
    for problem in problems:
        present = [runs.get((problem, method)) for method in methods]
        rows.append([problem, *("" if run is None else f"{run.series['regret'][-1].mean():.3g}" for run in present)])
    last = int(max(run.times[-1] for run in runs.values()))
    return Table(f"Mean regret after {last:,} steps", ["problem", *methods], rows)


def _tabulate_bounds(runs: RunsByCase) -> Table:
    rows = []
    for (problem, method), run in runs.items():
        if method in BOUNDED:
            ratios = _measure_ratios(run, "bound", "regret")
            over, path = _measure_ratios(run, "bound", "trivial"), fit_exponent(*run.late("path"))
            rows.append(
                [
                    f"{problem}, {method}",
                    f"{run.series['least_rate'][-1].min():.1e}",
                    f"{ratios.min():.1e} to {ratios.max():.1e}",
                    f"{over.min():.1e}",
                    f"{fit_exponent(*run.late('bound')).estimate:.2f}",
                    f"{path.estimate:.2f}",
                    f"{np.mean(run.series['path'][-1] / run.series['bound'][-1]):.1e}",
                ]
            )
    columns = ["run", "least τ", "bound / regret", "least bound / trivial bound"]
    columns += ["bound's exponent", "second term's exponent", "its share at the end"]
    note = "The second term sums sqrt(v_t) / alpha_t. Ratios are over all seeds and times with a positive regret."
    return Table("The printed bounds", columns, rows, note)


def _measure_ratios(run: Runs, above: str, below: str) -> Values:
    """All quotients of two outcomes, where the lower one is positive."""
    positive = run.series[below] > 0.0
    return np.asarray(run.series[above][positive] / run.series[below][positive])


def _claim_bounds(runs: RunsByCase) -> list[Claim]:
    claims = []
    for method, name in BOUNDED.items():
        by_problem = {problem: run for (problem, whose), run in runs.items() if whose == method}
        if not by_problem:
            continue
        held = np.log10(np.concatenate([_measure_ratios(run, "bound", "regret") for run in by_problem.values()]))
        margins = -np.log10(np.concatenate([_measure_ratios(run, "bound", "trivial") for run in by_problem.values()]))
        seeds = next(iter(by_problem.values())).series["regret"].shape[1]
        held_text = f"{method}: the regret is below the {name}'s bound."
        more_text = f"{method}: the {name}'s bound says more than that the box is bounded."
        claims += [
            make_claim(
                _attribute(method, BOUND_HOLDS),
                held_text,
                "log10(bound / regret)",
                _find_range(held, seeds),
                note=RANGE,
            ),
            make_claim(
                Sentence("The bounds say more than that the box is bounded."),
                more_text,
                "log10(trivial bound / bound)",
                _find_range(margins, seeds),
                note=RANGE,
            ),
            _claim_terms(method, name, by_problem),
        ]
    return claims


def _attribute(method: str, sentence: Sentence) -> Sentence:
    """The paper has no method that is ours."""
    return Sentence(f"{method}: {sentence.family}") if method == "AdaTerm (gradient init)" else sentence


def _find_range(values: Values, seeds: int) -> Interval:
    return Interval(float(np.median(values)), float(values.min()), float(values.max()), seeds)


def _claim_effective(runs: RunsByCase) -> list[Claim]:
    """The corollary's bound on its method's runs beside the theorem's on AdaTerm's, problem by problem."""
    problems = [problem for problem, method in runs if method == "AdaTerm" and (problem, "No robustness") in runs]
    if not problems:
        return []
    ends = [[runs[problem, method].series["bound"][-1] for problem in problems] for method in BOTH]
    margins = np.log10(np.asarray(ends[0])) - np.log10(np.asarray(ends[1]))
    text = "The corollary's bound is below the theorem's."
    what = "log10(theorem's bound / corollary's bound) after the last step"
    sentence = Sentence("The corollary's bound is more effective than the theorem's.", "section 7.2", "by its formula")
    return [make_claim(sentence, text, what, _find_range(margins, margins.shape[1]), note=RANGE)]


def _claim_terms(method: str, name: str, by_problem: dict[str, Runs]) -> Claim:
    """The bound grows in the end like its fastest term, which is the second, however small that is by now."""
    fastest = _find_fastest(list(by_problem.values()), "path")
    note = (
        "That term is at least D^2 epsilon d / (3 alpha) (T - 1)^(3/2), whatever the problem, so the bound is not "
        "O(sqrt(T)); how small a share of the bound it still is here, and how the whole bound grows, is in the table."
    )
    text = f"{method}: the second term of the {name}'s bound grows no faster than the square root of T."
    sentence = _attribute(method, BOUND_GROWS)
    return _claim_no_faster(sentence, text, "the bound's second term, on the worst problem", fastest, note)


def _find_fastest(runs: list[Runs], name: str) -> Interval:
    """Of the exponents and of the ends of their intervals the largest; what has no exponent does not grow."""
    grown = [fit_exponent(*run.late(name), len(runs)) for run in runs]
    finite = [growth for growth in grown if np.isfinite(growth.estimate)]
    if not finite:
        return Interval(float("nan"), -np.inf, np.inf, 0)
    estimate, low, high = (max(growth[place] for growth in finite) for place in range(3))
    return Interval(estimate, low, high, finite[0].seeds)


def _claim_no_faster(sentence: Sentence, text: str, whose: str, grown: Interval, note: str) -> Claim:
    what = f"growth exponent of {whose}"
    return make_claim(sentence, text, what, grown, bound=0.5 + MARGIN, note=note, wants="below")


def _claim_growth(runs: RunsByCase, grown: dict[tuple[str, str], Interval]) -> list[Claim]:
    claims = []
    note = (
        f"The margin of {MARGIN} is for logarithms; the exponent is that of the last {LATE}-fold of T. The problems' "
        "intervals hold all at once, by Bonferroni's correction."
    )
    for method in BOUNDED:
        for adversarial, kind in ((False, "stochastic"), (True, "adversarial")):
            present = [
                run
                for (problem, whose), run in runs.items()
                if whose == method and PROBLEMS[problem].adversarial == adversarial
            ]
            if present:
                text = f"{method}: on {kind} problems the regret grows no faster than the square root of T."
                sentence, whose = _attribute(method, REGRET_GROWS), "the regret, on the worst of them"
                claims.append(_claim_no_faster(sentence, text, whose, _find_fastest(present, "regret"), note))
    if growth := grown.get(("one in 3", "Adam")):
        text = "Adam's regret on its counter-example grows faster than the square root of T (Reddi et al.)."
        what, check = "growth exponent of the regret", "A check of the set-up."
        claims.append(make_claim(Sentence(text), text, what, growth, bound=0.5 + MARGIN, note=check))
    if growth := grown.get(("one in 3", "AMSGrad")):
        text = "AMSGrad's regret on Adam's counter-example grows no faster than the square root of T (Reddi et al.)."
        claims.append(_claim_no_faster(Sentence(text), text, "the regret", growth, "A check of the set-up."))
    return claims
