"""Claims from intervals, decided together where one sentence makes several of them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from adaterm_bench.core.section import Claim, Table
from adaterm_bench.reporting.intervals import Bootstrap, Interval, Values, too_few
from adaterm_bench.reporting.statistics import a_a_check, correct_by_holm

DRAWS = 200
FEWER = Bootstrap(resamples=2_000)


class Sentence(NamedTuple):
    """What the paper says, in our words, and where; or what we say, and then there is no place."""

    family: str
    place: str = ""
    evidence: str = ""


def make_claim(sentence: Sentence, text: str, what: str, interval: Interval, **options: Any) -> Claim:
    """A claim that an interval decides; its options are those of `Claim`."""
    notes = [interval.note, options.pop("note", "")]
    note = " ".join(f"{part[:1].upper()}{part[1:].rstrip('.')}." for part in notes if part)
    return Claim(
        text,
        what,
        *interval[:3],
        note=note,
        place=sentence.place,
        family=sentence.family,
        seeds=interval.seeds,
        chance=interval.chance,
        **{"evidence": sentence.evidence, **options},
    )


def correct_families(claims: Iterable[Claim]) -> list[Claim]:
    """The claims, their chances raised by Holm's correction among those of one sentence."""
    listed = list(claims)
    families: dict[str, list[int]] = {}
    for place, claim in enumerate(listed):
        families.setdefault(claim.family or claim.text, []).append(place)
    for places in families.values():
        raised = correct_by_holm([listed[place].chance for place in places])
        for place, chance in zip(places, raised, strict=True):
            listed[place] = replace(listed[place], chance=float(chance))
    return listed


class Check(NamedTuple):
    """A statistic that claims use, one method's runs, by seed along the last axis, and what it finds of equals."""

    runs: Values
    compare: Callable[[Values, Values], Interval]
    null: float


def tabulate_checks(checks: Mapping[str, Check]) -> list[Table]:
    """How often the claims' own statistics see a difference where there is none, of runs that are enough to say."""
    rows = []
    for name, (runs, compare, null) in checks.items():
        seeds = runs.shape[-1]
        if too_few(seeds, 0.95) or not np.isfinite(runs).all() or not np.ptp(runs):
            continue
        differs = a_a_check(runs, compare, null=null, draws=DRAWS)
        shares = [f"{100.0 * share:.1f}" for share in differs[:3]]
        rows.append([name, str(seeds), f"{shares[0]} % ({shares[1]} to {shares[2]})"])
    note = (
        f"A method's runs against themselves, AdaTerm's where no other is named: two sets are drawn from them with "
        f"replacement, {DRAWS} times, and compared as the claims compare methods. There is no difference, so about 5 % "
        "should be found. Claims on one method alone, such as rank correlations and growth exponents, compare nothing, "
        "and are not here."
    )
    columns = ["what claims compare", "seeds", "a difference is found in"]
    return [Table("The statistics of the claims, where there is nothing to find", columns, rows, note)] if rows else []
