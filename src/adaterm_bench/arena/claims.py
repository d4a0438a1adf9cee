"""Our claims of RobustAdamW in the arena; seeds too few, or runs not made, leave them undecided."""

from math import ceil, inf
from typing import NamedTuple

from adaterm_bench.arena.finals import BASELINE, ORACLE, OURS, Finals, is_ours
from adaterm_bench.arena.measure import CLOSE, EQUAL, LEAST, Measure
from adaterm_bench.arena.protocol import CLEAN
from adaterm_bench.core.section import Claim
from adaterm_bench.reporting.intervals import Interval
from adaterm_bench.reporting.statistics import correct_by_holm, diverged

WON = 0.8
"""Share of the dirty columns in which it wants to be best or tied."""
LEARNT = 5.0
"""A task of the trap is learnt if its loss is at most so far above that of AdamW with clipping, in per cent."""

WORST = (
    "Bounds are the largest over all peers, each over the seeds that both have. Peers with fewer than three of them "
    "may keep the claim open, but decide nothing."
)


def make_claims(finals: Finals, measure: Measure) -> list[Claim]:
    """Our claims of one model, as far as RobustAdamW was run with it."""
    if OURS not in finals.methods:
        return []
    return [*_claim_clean(finals, measure), *_claim_columns(finals, measure), *_claim_trap(finals, measure)]


class Standing(NamedTuple):
    """How RobustAdamW stands to every peer under a noise."""

    behind: Interval
    """The worst lag: the largest estimate and bounds over all peers, each over the seeds that both have; and how many
    these are of the peer that is furthest ahead.

    Fewer than three seeds are no evidence against it, but their upper bound may keep the claim open.
    """
    ahead: str
    """The peer with the largest lead."""
    won: bool
    """Whether the lag behind no peer speaks for the peer."""
    lost: bool
    """Whether one is shown, by seeds enough, to be ahead."""


def _compare_with_peers(finals: Finals, measure: Measure, noise: str) -> Standing | None:
    """None if it or all peers were not run."""
    ours = finals.values(OURS, noise, measure.outcome)
    peers = [method for method in finals.methods if method != ORACLE and not is_ours(method)]
    runs = {peer: finals.values(peer, noise, measure.outcome) for peer in peers if (peer, noise) in finals.runs}
    if not ours.size or not runs:
        return None
    if lost := diverged(ours):
        return Standing(Interval(inf, inf, inf, ours.size, lost), next(iter(runs)), won=False, lost=True)
    pairs = {peer: finals.pair(OURS, peer, noise, measure.outcome) for peer in runs if not diverged(runs[peer])}
    for peer, pair in pairs.items():
        if not pair[0].size:  # no seed in common: the means have to do
            pairs[peer] = ours.mean(keepdims=True), runs[peer].mean(keepdims=True)
    if not pairs:  # all peers lost runs
        return Standing(Interval(-inf, -inf, -inf, ours.size), next(iter(runs)), won=True, lost=False)
    lags = {peer: measure.lag(*pair) for peer, pair in pairs.items()}
    raised = correct_by_holm([measure.chance(*pair) for pair in pairs.values()])
    leads = {peer: lags[peer].estimate > 0.0 and chance < 0.05 for peer, chance in zip(pairs, raised, strict=True)}
    few = {peer for peer, lag in lags.items() if lag.seeds < LEAST}
    # So few seeds hardly ever show anything: there a lead that is not small speaks for the peer, too.
    speaks = any(leads[peer] or (peer in few and lags[peer].estimate > EQUAL) for peer in lags)
    ahead = max(lags, key=lambda peer: lags[peer].estimate)
    behind = Interval(
        lags[ahead].estimate,
        max(-inf if peer in few else lag.low for peer, lag in lags.items()),
        max(lag.high for lag in lags.values()) if len(few) < len(lags) else inf,
        lags[ahead].seeds,
    )
    return Standing(behind, ahead, won=not speaks, lost=any(leads[peer] for peer in lags if peer not in few))


def _claim_clean(finals: Finals, measure: Measure) -> list[Claim]:
    standing = _compare_with_peers(finals, measure, CLEAN)
    if standing is None or standing.behind.estimate == -inf:
        return []
    text = f"{finals.model}: on clean data RobustAdamW is within {CLOSE:g} {measure.unit} of the best peer."
    what = f"how far it is behind the peer that is furthest ahead, {measure.unit}"
    note = f"Furthest ahead: {standing.ahead}. {_describe(standing.behind)} {WORST}"
    return [Claim(text, what, *standing.behind[:3], bound=CLOSE, wants="below", note=note)]


def _claim_columns(finals: Finals, measure: Measure) -> list[Claim]:
    """From the columns that are shown to be won, to those that are not shown to be lost, or were not run."""
    comparisons = [_compare_with_peers(finals, measure, noise) for noise in measure.dirty]
    standings = [standing for standing in comparisons if standing is not None]
    if not standings:
        return []
    won = sum(standing.won for standing in standings)
    proven = sum(standing.won and standing.behind.high <= EQUAL for standing in standings)
    lost = sum(standing.lost for standing in standings)
    count = len(measure.dirty)
    wanted = ceil(WON * count)
    text = (
        f"{finals.model}: RobustAdamW is best or tied in at least {wanted} of {count} columns with bad batches, "
        "against every peer."
    )
    note = (
        f"Columns with runs: {len(standings)}. Best or tied: no peer, over the seeds that both have, is shown to be "
        f"ahead, by Holm's correction, or has fewer than {LEAST} of them and leads by more than {EQUAL:g} "
        f"{measure.unit}. The interval goes from the columns in which it is also at most {EQUAL:g} {measure.unit} "
        "behind every peer, by the upper end of the interval, to those in which it is not shown to be behind. Its own "
        "variants, and other methods with its judgement, are no peers."
    )
    what = "columns in which it is best or tied"
    return [Claim(text, what, won, proven, count - lost, bound=wanted - 0.5, note=note)]


def _claim_trap(finals: Finals, measure: Measure) -> list[Claim]:
    pairs = [finals.pair(OURS, BASELINE, measure.trap, outcome) for outcome in (measure.outcome, "second_loss")]
    if not measure.trap or not pairs[0][0].size:
        return []
    tasks = [_weigh(measure.lag(*pair)) for pair in pairs]
    estimate, low, high = (max(task[place] for task in tasks) for place in range(3))
    text = f"{finals.model}: RobustAdamW learns both tasks of the trap."
    what = f"how far its loss is above that of {BASELINE}, of the worse task, %"
    note = (
        f"Learnt: at most {LEARNT:g} % above. First task: {_describe(tasks[0])} Second task: {_describe(tasks[1])} A "
        "run that ends without a finite loss counts as not learnt."
    )
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
