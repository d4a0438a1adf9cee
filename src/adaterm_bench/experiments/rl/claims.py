"""What the paper says of the reinforcement learning, and what its claims' statistics find where there is nothing."""

from collections.abc import Mapping
from functools import partial

import numpy as np

from adaterm_bench.core.section import Claim, Table
from adaterm_bench.reporting.claims import FEWER, Check, Sentence, correct_families, make_claim, tabulate_checks
from adaterm_bench.reporting.comparison import OURS
from adaterm_bench.reporting.intervals import Bootstrap, Interval, Values
from adaterm_bench.reporting.orders import ANT, FAILURE, check_means, claim_orders
from adaterm_bench.reporting.published import describe_evidence
from adaterm_bench.reporting.statistics import mean, ratio_interval

COLUMNS = {"Hopper": "rl_hopper", "Ant": "rl_ant"}
FAILED = 0.5  # of AdaTerm's return: what counts as failing; the paper's own have less
Case = tuple[str, str]  # a task and a variant of the algorithm
Returns = dict[str, dict[int, float]]  # by method and seed


def make_claims(returns: Mapping[Case, Returns]) -> list[Claim]:
    """What the paper says of its tasks, of every variant of the algorithm; it did not run MuJoCo's tasks."""
    claims = []
    for (task, variant), by_method in returns.items():
        if task in COLUMNS:
            start = f"On {task} ({variant})"
            claims += claim_orders(COLUMNS[task], by_method, start=start)
            claims += _claim_failed(by_method, start) if task == "Ant" else []
    return correct_families(claims)


def tabulate_returns_checks(returns: Mapping[Case, Returns]) -> list[Table]:
    """What the statistics find of AdaTerm beside itself: differences of means, and on Ant their ratio."""
    checks = {}
    for (task, variant), by_method in returns.items():
        if task not in COLUMNS or OURS not in by_method:
            continue
        checks[f"mean returns, {task}, {variant}"] = check_means(COLUMNS[task], by_method[OURS])
        if task == "Ant":
            runs = np.maximum(np.array(list(by_method[OURS].values()), dtype=np.float64), 0.0)
            checks[f"their ratio, {task}, {variant}"] = Check(runs, partial(_compare_means, bootstrap=FEWER), 1.0)
    return tabulate_checks(checks)


def _claim_failed(returns: Returns, start: str) -> list[Claim]:
    """Whether methods that are not robust fail."""
    claims = []
    for pair in FAILURE.pairs:
        (method,) = pair[1]
        seeds = sorted(returns.get(method, {}).keys() & returns.get(OURS, {}).keys())
        if not seeds:
            continue
        theirs, ours = (np.array([max(returns[name][seed], 0.0) for seed in seeds]) for name in (method, OURS))
        ratio = _compare_means(theirs, ours, Bootstrap(against=FAILED))
        sentence = Sentence(f"{start}, {FAILURE.text}.", FAILURE.place, describe_evidence(ANT, *pair))
        text = f"{start}, {method} fails: it has less than half of {OURS}'s return."
        what, note = f"mean return of {method} over {OURS}'s", "That less than half is a failure is ours."
        claims.append(make_claim(sentence, text, what, ratio, bound=FAILED, wants="below", note=note))
    return claims


def _compare_means(first: Values, second: Values, bootstrap: Bootstrap) -> Interval:
    """The first's mean return over the second's."""
    return ratio_interval(first, second, mean, better="higher", bootstrap=bootstrap)
