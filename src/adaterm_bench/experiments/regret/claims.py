"""What the paper says of regret and its bounds, and what we say, with the runs that decide it."""

import numpy as np

from adaterm_bench.core.section import Claim
from adaterm_bench.experiments.regret.growth import (
    BOUNDED,
    LATE,
    Runs,
    RunsByCase,
    Values,
    find_fastest,
    measure_ratios,
)
from adaterm_bench.experiments.regret.problems import PROBLEMS
from adaterm_bench.reporting.claims import Sentence, correct_families, make_claim
from adaterm_bench.reporting.intervals import Interval

MARGIN = 0.05  # by how much a fitted exponent may miss 1/2: logarithms look like small powers
BOTH = ("AdaTerm", "No robustness")
RANGE = "Interval: the least and the largest of all problems, seeds and times."
TOGETHER = "The intervals of the problems are widened by Bonferroni's correction, so that all of them hold at once."
BOUND_HOLDS = Sentence("The regret is below the printed bound.", "section 4.5.1; appendix A", "a proof")
BOUND_GROWS = Sentence("The printed bound is O(√T).", "section 4.5.1", "stated without a proof")
REGRET_GROWS = Sentence("In the worst case the regret is O(√T).", "section 4.5.1", "from the bound")
ADAM_BOUNDED = Sentence(
    "The regret of Adam and others like it can be bounded so, too.", "section 4.5.1", "stated without a proof"
)


def make_claims(runs: RunsByCase, grown: dict[tuple[str, str], Interval]) -> list[Claim]:
    """All claims, from runs and the exponents of their regret, by problem and method."""
    return correct_families([*_claim_bounds(runs), *_claim_effective(runs), *_claim_growth(runs, grown)])


def _claim_bounds(runs: RunsByCase) -> list[Claim]:
    claims = []
    for method, name in BOUNDED.items():
        by_problem = {problem: run for (problem, whose), run in runs.items() if whose == method}
        if not by_problem:
            continue
        held = np.log10(np.concatenate([measure_ratios(run, "bound", "regret") for run in by_problem.values()]))
        margins = -np.log10(np.concatenate([measure_ratios(run, "bound", "trivial") for run in by_problem.values()]))
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
    fastest = find_fastest(list(by_problem.values()), "path")
    note = (
        "That term is at least D^2 epsilon d / (3 alpha) (T - 1)^(3/2), whatever the problem, so the bound is not "
        "O(sqrt(T)); how small a share of the bound it still is here, and how the whole bound grows, is in the table. "
        f"{TOGETHER}"
    )
    text = f"{method}: the second term of the {name}'s bound grows no faster than the square root of T."
    sentence = _attribute(method, BOUND_GROWS)
    return _claim_no_faster(sentence, text, "the bound's second term, on the worst problem", fastest, note)


def _claim_no_faster(sentence: Sentence, text: str, whose: str, grown: Interval, note: str) -> Claim:
    what = f"growth exponent of {whose}"
    return make_claim(sentence, text, what, grown, bound=0.5 + MARGIN, note=note, wants="below")


def _claim_growth(runs: RunsByCase, grown: dict[tuple[str, str], Interval]) -> list[Claim]:
    claims = []
    slow = [
        problem
        for (problem, method), growth in grown.items()
        if method == "AMSGrad" and not growth.high <= 0.5 + MARGIN
    ]
    note = f"The margin of {MARGIN} is for logarithms; the exponent is that of the last {LATE}-fold of T. {TOGETHER}"
    if slow:
        note += f" Without {', '.join(slow)}: there AMSGrad's, for which it is proven, has not come down to it either."
    for method in (*BOUNDED, "Adam"):
        for adversarial, kind in ((False, "stochastic"), (True, "adversarial")):
            present = [
                run
                for (problem, whose), run in runs.items()
                if whose == method and PROBLEMS[problem].adversarial == adversarial and problem not in slow
            ]
            if present:
                text = f"{method}: on {kind} problems the regret grows no faster than the square root of T."
                sentence = ADAM_BOUNDED if method == "Adam" else _attribute(method, REGRET_GROWS)
                whose = "the regret, on the worst of them"
                claims.append(_claim_no_faster(sentence, text, whose, find_fastest(present, "regret"), note))
    if growth := grown.get(("one in 3", "Adam")):
        text = "Adam's regret on its counter-example grows faster than the square root of T (Reddi et al.)."
        what, check = "growth exponent of the regret", "A check of the set-up."
        claims.append(make_claim(Sentence(text), text, what, growth, bound=0.5 + MARGIN, note=check))
    if growth := grown.get(("one in 3", "AMSGrad")):
        text = "AMSGrad's regret on Adam's counter-example grows no faster than the square root of T (Reddi et al.)."
        claims.append(_claim_no_faster(Sentence(text), text, "the regret", growth, "A check of the set-up."))
    return claims
