"""What the paper says of its tables: which methods are ahead of which, in which columns, and where it says so.

Every sentence becomes one claim or several, and each is tested twice: on our runs, seed by seed, and by Welch's test on
the paper's own means, deviations and 24 trials.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from adaterm_bench.core.section import Claim
from adaterm_bench.reporting.claims import FEWER, Check, Sentence, make_claim
from adaterm_bench.reporting.comparison import RIVALS
from adaterm_bench.reporting.intervals import Bootstrap, Interval, Values
from adaterm_bench.reporting.published import describe_evidence, weigh_evidence
from adaterm_bench.reporting.statistics import mean, paired_difference, ratio_interval

Names = tuple[str, ...]
Pair = tuple[Names, Names]

PLAIN: Names = ("Adam", "AdaBelief", "RAdam")
ROBUST: Names = ("t-Adam", "At-Adam")
RELEASED = {name: f"{name} (as published)" for name in ("t-Adam", "At-Adam")}
"""The paper probably ran the released code: what it says of these is tested as published, and as written too."""

CASE_1, CASE_2 = "section 6.2.1, table 3", "section 6.2.2, table 3"
LIMITS = "section 7.1, table 3"
GAP = "section 7.2; appendix E"
ABLATION, VARIANTS, ALTERNATIVE = "appendix E", "appendix G", "appendix H"

RIGHT, WRONG = "classification_0", "classification_10"
SHORT, LONG = "prediction_1", "prediction_30"
HOPPER, ANT = "rl_hopper", "rl_ant"
ALONE, MIXED = "distillation_without_amateur", "distillation_with_amateur"


class Column(NamedTuple):
    """A column of the paper's tables in words: where it is, and what being ahead is called there."""

    start: str
    ahead: str
    is_error: bool = False


COLUMNS = {
    RIGHT: Column("With right labels", "is more accurate than"),
    WRONG: Column("With 10 % wrong labels", "is more accurate than"),
    SHORT: Column("With 1 step", "has a lower error than", True),
    LONG: Column("With 30 steps", "has a lower error than", True),
    HOPPER: Column("On Hopper", "has a higher return than"),
    ANT: Column("On Ant", "has a higher return than"),
    ALONE: Column("Without the amateur", "has a higher return than"),
    MIXED: Column("With the amateur", "has a higher return than"),
}


class Saying(NamedTuple):
    """A sentence of the paper: in these columns some methods are ahead of others, in the mean, pair by pair."""

    columns: Names
    text: str
    place: str
    pairs: tuple[Pair, ...]


def ahead_of(first: Names | str, others: Names) -> tuple[Pair, ...]:
    """One method before each of the others."""
    return tuple((_tuple(first), (other,)) for other in others)


def behind(first: str, others: Names) -> tuple[Pair, ...]:
    """One method after each of the others."""
    return tuple(((other,), (first,)) for other in others)


def _tuple(names: Names | str) -> Names:
    return (names,) if isinstance(names, str) else names


SAYINGS = (
    Saying((RIGHT, WRONG, ALONE, MIXED), "AdaTerm is ahead of every other method", CASE_1, ahead_of("AdaTerm", RIVALS)),
    Saying(
        (RIGHT, ALONE),
        "methods that are not robust are ahead of t-Adam and At-Adam",
        CASE_1,
        tuple(pair for plain in PLAIN for pair in ahead_of(plain, ROBUST)),
    ),
    Saying((WRONG, MIXED), "the robust methods lead in the mean", CASE_1, (((*ROBUST, "AdaTerm"), PLAIN),)),
    Saying((RIGHT, WRONG, ALONE, MIXED), "At-Adam is ahead of t-Adam", CASE_1, ahead_of("At-Adam", ("t-Adam",))),
    Saying((SHORT,), "AdaTerm is the worst of all", CASE_2, behind("AdaTerm", RIVALS)),
    Saying((SHORT,), "a robust method, At-Adam, has the lowest error", CASE_2, ahead_of("At-Adam", PLAIN)),
    Saying((LONG,), "AdaTerm alone gets as low as it does", CASE_2, ahead_of("AdaTerm", RIVALS)),
    Saying(
        (HOPPER,),
        "AdaTerm is second, after t-Adam",
        CASE_2,
        (*ahead_of("t-Adam", ("AdaTerm",)), *ahead_of("AdaTerm", (*PLAIN, "At-Adam"))),
    ),
    Saying((HOPPER,), "Adam is ahead of At-Adam", CASE_2, ahead_of("Adam", ("At-Adam",))),
    Saying((HOPPER,), "a robust method, t-Adam, has the highest return", CASE_2, ahead_of("t-Adam", PLAIN)),
    Saying(
        (ANT,),
        "robust methods alone succeed",
        CASE_2,
        tuple(pair for robust in (*ROBUST, "AdaTerm") for pair in ahead_of(robust, PLAIN)),
    ),
    Saying(
        (ANT,),
        "t-Adam is the best, then At-Adam, then AdaTerm",
        CASE_2,
        (*ahead_of("t-Adam", ("At-Adam",)), *ahead_of("At-Adam", ("AdaTerm",))),
    ),
    Saying(
        (HOPPER, ANT),
        "t-Adam, whose robustness is fixed, is ahead of AdaTerm",
        LIMITS,
        ahead_of("t-Adam", ("AdaTerm",)),
    ),
    Saying(
        (LONG, HOPPER, ANT, WRONG, MIXED),
        "“No adaptiveness” is ahead of “No robustness”, as noise is strong there",
        ABLATION,
        ahead_of("No adaptiveness", ("No robustness",)),
    ),
    Saying(
        (RIGHT, SHORT, ALONE),
        "“No robustness” is ahead of “No adaptiveness”, as noise is weak there",
        ABLATION,
        ahead_of("No robustness", ("No adaptiveness",)),
    ),
    Saying(
        (LONG, ALONE, MIXED),
        "AdaTerm is ahead of both extremes, “No adaptiveness” and “No robustness”",
        ABLATION,
        ahead_of("AdaTerm", ("No adaptiveness", "No robustness")),
    ),
    Saying(
        tuple(COLUMNS),
        "AdaTerm is ahead of “No robustness”, against what the bounds say",
        GAP,
        ahead_of("AdaTerm", ("No robustness",)),
    ),
    Saying(
        (SHORT, LONG, HOPPER, ANT, ALONE, MIXED),
        "“Large init” is worse than AdaTerm",
        ABLATION,
        ahead_of("AdaTerm", ("Large init",)),
    ),
    Saying((RIGHT, WRONG), "“Large init” is better than AdaTerm", ABLATION, behind("AdaTerm", ("Large init",))),
    Saying(
        tuple(COLUMNS),
        "adaptive bias correction is a downgrade",
        VARIANTS,
        (
            *ahead_of("AdaTerm", ("AdaTerm (AdaBias)",)),
            *ahead_of("AdaTerm (Uncentered)", ("AdaTerm (Uncentered + AdaBias)",)),
        ),
    ),
    Saying(
        (LONG, HOPPER, ANT),
        "the uncentered variant is ahead of AdaTerm",
        f"{VARIANTS}; section 7.3",
        ahead_of("AdaTerm (Uncentered)", ("AdaTerm",)),
    ),
    Saying((SHORT, LONG), "AdaTerm2 is less efficient than AdaTerm", ALTERNATIVE, ahead_of("AdaTerm", ("AdaTerm2",))),
)
"""What it says of orders in its tables.

Of the uncentered variant it says so of some columns, without naming them, and of the noise of the ablation's neither:
those here are where its table has that order, and where other sentences speak of noise.
"""

FAILURE = Saying((ANT,), "methods that are not robust fail", CASE_2, ahead_of("AdaTerm", PLAIN))
"""It is more than an order: what counts as failing is decided where the runs are."""


class Printed(NamedTuple):
    """A sentence of the paper on one column, and what its table has for each of the pairs, run here or not."""

    column: str
    text: str
    place: str
    evidence: tuple[str, ...]
    tests: tuple[tuple[float, float], ...]
    """Of each pair, how far ahead the paper's table has the first, and the chance of that."""

    def is_said_in(self, sentence: str) -> bool:
        """Whether this is the sentence, whatever variant of the column it names in brackets."""
        start, end = COLUMNS[self.column].start, f", {self.text}."
        middle = sentence.removeprefix(start).removesuffix(end)
        return sentence == f"{start}{middle}{end}" and (not middle or (middle[:2], middle[-1]) == (" (", ")"))


def list_printed() -> list[Printed]:
    """Every sentence on every column that it is about, column by column."""
    return [
        Printed(
            column,
            saying.text,
            saying.place,
            tuple(describe_evidence(column, *pair) for pair in saying.pairs),
            tuple(weigh_evidence(column, *pair) for pair in saying.pairs),
        )
        for column in COLUMNS
        for saying in (*SAYINGS, FAILURE)
        if column in saying.columns
    ]


def claim_orders(
    column: str, outcomes: Mapping[str, Mapping[int, float]], start: str = "", scale: float = 1.0
) -> list[Claim]:
    """The paper's claims on a column, of the methods there are: outcomes by method and seed.

    Each is of the seeds that all its methods have. `start` replaces the words for the column where it has variants.
    """
    start = start or COLUMNS[column].start
    claims = []
    for saying in SAYINGS:
        if column not in saying.columns:
            continue
        for pair in saying.pairs:
            sentence = Sentence(f"{start}, {saying.text}.", saying.place, describe_evidence(column, *pair))
            for arms in dict.fromkeys((pair, _release(pair))):
                claims += _claim_order(column, sentence, start, arms, outcomes, scale)
    return claims


def compare_means(column: str, ahead: Values, behind: Values, bootstrap: Bootstrap | None = None) -> Interval:
    """How far those are ahead: the ratio of mean errors, else the mean difference; the paper's tables are of means."""
    if COLUMNS[column].is_error:
        return ratio_interval(behind, ahead, mean, bootstrap=bootstrap or Bootstrap(against=1.0))
    return paired_difference(ahead, behind, mean, better="higher", bootstrap=bootstrap or Bootstrap(against=0.0))


def check_means(column: str, outcomes: Mapping[int, float]) -> Check:
    """The same comparison of one method's runs with themselves."""
    runs, null = np.array(list(outcomes.values()), dtype=np.float64), 1.0 if COLUMNS[column].is_error else 0.0
    return Check(runs, lambda first, second: compare_means(column, first, second, FEWER), null)


def _claim_order(
    column: str,
    sentence: Sentence,
    start: str,
    arms: Pair,
    outcomes: Mapping[str, Mapping[int, float]],
    scale: float,
) -> list[Claim]:
    names = [name for side in arms for name in side]
    seeds = sorted(set.intersection(*(set(outcomes.get(name, ())) for name in names)))
    if not seeds:
        return []
    ahead, behind = (
        np.asarray(scale * np.mean([[outcomes[name][seed] for seed in seeds] for name in side], 0, dtype=np.float64))
        for side in arms
    )
    first, second = (_join(side) for side in arms)
    kind = COLUMNS[column]
    if kind.is_error:
        what, bound = f"ratio of the mean errors, {second} to {first}", 1.0
    else:
        what, bound = f"mean of {first} less that of {second}", 0.0
    text = f"{start}, {first} {kind.ahead if len(arms[0]) == 1 else _plural(kind.ahead)} {second}."
    return [make_claim(sentence, text, what, compare_means(column, ahead, behind), bound=bound)]


def _release(pair: Pair) -> Pair:
    """The same with the released code's methods."""
    ahead, behind = (tuple(RELEASED.get(name, name) for name in side) for side in pair)
    return ahead, behind


def _join(names: Names) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _plural(ahead: str) -> str:
    return ahead.replace("is ", "are ").replace("has ", "have ")
