"""Our claims of RobustAdamW in the arena; seeds too few, or runs not made, leave them undecided."""

from math import ceil, inf

from adaterm_bench.arena.finals import BASELINE, ORACLE, OURS, VARIANTS, Finals, compare_column
from adaterm_bench.arena.measure import CLOSE, EQUAL, Measure
from adaterm_bench.arena.protocol import CLEAN
from adaterm_bench.core.section import Claim
from adaterm_bench.reporting.intervals import Interval

LEAST = 3
"""Seeds that decide a claim: nothing speaks for or against normal differences of two."""
WON = 0.8
"""Share of the dirty columns in which it wants to be best or tied."""
LEARNT = 5.0
"""A task of the trap is learnt if its loss is at most so far above that of AdamW with clipping, in per cent."""


def make_claims(finals: Finals, measure: Measure) -> list[Claim]:
    """Our claims of one model, as far as RobustAdamW was run with it."""
    if OURS not in finals.methods:
        return []
    return [*_claim_clean(finals, measure), *_claim_columns(finals, measure), *_claim_trap(finals, measure)]


def _list_peers(finals: Finals) -> list[str]:
    return [method for method in finals.methods if method != ORACLE and method not in VARIANTS]


def _claim_clean(finals: Finals, measure: Measure) -> list[Claim]:
    column = compare_column(finals, measure, CLEAN, _list_peers(finals))
    if column is None or (OURS, CLEAN) not in finals.runs:
        return []
    behind = _weigh(measure.lag(*finals.pair(OURS, column.best, CLEAN, measure.outcome)))
    text = f"{finals.model}: on clean data RobustAdamW is within {CLOSE:g} {measure.unit} of the best peer."
    what = f"how far it is behind {column.best}, {measure.unit}"
    return [Claim(text, what, *behind[:3], bound=CLOSE, wants="below", note=_describe(behind))]


def _claim_columns(finals: Finals, measure: Measure) -> list[Claim]:
    """From the columns that are shown to be won, to those that are not shown to be lost, or were not run."""
    peers = _list_peers(finals)
    won = shown = lost = seen = 0
    for noise in measure.dirty:
        column = compare_column(finals, measure, noise, [*peers, OURS])
        rivals = compare_column(finals, measure, noise, peers)
        if column is None or rivals is None or OURS not in column.behind:
            continue
        seen += 1
        behind = measure.lag(*finals.pair(OURS, rivals.best, noise, measure.outcome))
        leads = column.best == OURS or OURS in column.tied
        won += leads
        decided = behind.seeds >= LEAST or behind.estimate == inf
        shown += leads and decided and behind.high <= EQUAL
        lost += not leads and decided
    if not seen:
        return []
    count = len(measure.dirty)
    wanted = ceil(WON * count)
    text = (
        f"{finals.model}: RobustAdamW is best or tied in at least {wanted} of {count} columns with bad batches, "
        "against every peer."
    )
    note = (
        f"Columns with runs: {seen}. The interval goes from the columns in which it is best or tied and at most "
        f"{EQUAL:g} {measure.unit} behind, by an interval of {LEAST} seeds or more, to those in which it is not shown "
        "to be behind. Its own variant is no peer."
    )
    what = "columns in which it is best or tied"
    return [Claim(text, what, won, shown, count - lost, bound=wanted - 0.5, note=note)]


def _claim_trap(finals: Finals, measure: Measure) -> list[Claim]:
    pairs = [finals.pair(OURS, BASELINE, measure.trap, outcome) for outcome in (measure.outcome, "second_loss")]
    if not measure.trap or not pairs[0][0].size:
        return []
    tasks = [_weigh(measure.lag(*pair)) for pair in pairs]
    estimate, low, high = (max(task[place] for task in tasks) for place in range(3))
    text = f"{finals.model}: RobustAdamW learns both tasks of the trap."
    what = f"how far its loss is above that of {BASELINE}, of the worse task, %"
    note = f"Learnt: at most {LEARNT:g} % above. {_describe(tasks[0])}"
    return [Claim(text, what, estimate, low, high, bound=LEARNT, wants="below", note=note)]


def _weigh(interval: Interval) -> Interval:
    """The interval, without bounds where seeds are too few to decide; a run of ours that was lost decides alone."""
    if interval.estimate == inf:
        return interval._replace(low=inf, high=inf)
    return interval if interval.seeds >= LEAST else interval._replace(low=-inf, high=inf)


def _describe(interval: Interval) -> str:
    if interval.diverged:
        return f"{interval.diverged} of these runs were lost."
    if interval.seeds < LEAST:
        return f"Undecided: only {interval.seeds} paired {'seed' if interval.seeds == 1 else 'seeds'}."
    return f"Student's interval of {interval.seeds} paired seeds."
