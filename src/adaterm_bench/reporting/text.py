"""Numbers, intervals and verdicts in words."""

import re
from math import floor, inf, isfinite, isnan, log10
from typing import get_args

from adaterm_bench.core.section import Claim, Owner, Section, Verdict


def format_number(value: float, digits: int = 3) -> str:
    """A number with so many significant digits, as a person would write it; what is not finite is a word."""
    if not isfinite(value):
        return "no value" if isnan(value) else ("∞" if value > 0 else "\u2212∞")
    rounded = float(f"{value:.{digits - 1}e}")
    size = floor(log10(abs(rounded))) if rounded else 0
    if not -5 < size < 7:
        mantissa, exponent = f"{rounded:.{digits - 1}e}".split("e")
        text = f"{mantissa}e{int(exponent)}"
    else:
        text = f"{rounded:,.{max(0, digits - 1 - size) if rounded else 0}f}"
    return text.replace("-", "\u2212").replace(",", "\u202f")


def format_spread(mean: float, std: float, digits: int = 2) -> str:
    """A mean and a standard deviation to the same place: as many digits as the deviation makes meaningful."""
    if not (isfinite(mean) and isfinite(std)) or std == 0.0:
        return format_number(mean) if not isfinite(std) else f"{format_number(mean)} ± {format_number(std)}"
    places = digits - 1 - floor(log10(std))
    if places > 7 or abs(mean) >= 1e7:
        return f"{format_number(mean)} ± {format_number(std, digits)}"
    return f"{mean:.{max(0, places)}f} ± {std:.{max(0, places)}f}".replace("-", "\u2212")


def format_chance(chance: float) -> str:
    """A p-value, as far as anyone needs it."""
    return "p < 0.001" if chance < 0.001 else f"p = {chance:.2g}"


def format_interval(claim: Claim) -> str:
    """A claim's estimate and interval in one line, to the place that the interval's width makes meaningful.

    If an end would then read as the bound, which it is not, there are up to two digits more.
    """
    if (isnan(claim.low) and isnan(claim.high)) or claim.low == claim.estimate == claim.high:
        return format_number(claim.estimate)
    if claim.low == -inf and claim.high == inf:
        return f"{format_number(claim.estimate)} (no bounds)"
    values = (claim.estimate, claim.low, claim.high)
    width = claim.high - claim.low
    if all(map(isfinite, values)) and 1e-6 < width < 1e6:
        places = max(0, 1 - floor(log10(width)))
        ends = [end for end in (claim.low, claim.high) if end != claim.bound]
        for _ in range(2):
            places += any(round(end, places) == round(claim.bound, places) for end in ends)
        estimate, low, high = (f"{value:.{places}f}".replace("-", "\u2212") for value in values)
    else:
        estimate, low, high = map(format_number, values)
    return f"{estimate} ({low} to {high})"


def describe_measurement(claim: Claim) -> str:
    """What was measured, the estimate with its interval, and what was claimed."""
    bound = f"{claim.bound:g}".replace("-", "\u2212")
    wanted = f"within a factor of {bound} of 1" if claim.wants == "within" else f"{claim.wants} {bound}"
    chance = f", {format_chance(claim.chance)}" if isfinite(claim.chance) else ""
    return f"{claim.what[:1].upper() + claim.what[1:]}: {format_interval(claim)}{chance}; claimed to be {wanted}."


def describe_place(claim: Claim) -> str:
    """Where a claim of the paper stands, and what the paper has for it."""
    return f"{claim.place[:1].upper()}{claim.place[1:]}" + (f": {claim.evidence}" if claim.evidence else "")


def group_claims(sections: list[Section]) -> dict[Owner, list[tuple[Section, Claim]]]:
    """The paper's claims and ours, with their sections; whoever has none is not there."""
    claims = [(section, claim) for section in sections for claim in section.claims]
    groups = {owner: [entry for entry in claims if entry[1].whose == owner] for owner in get_args(Owner)}
    return {owner: group for owner, group in groups.items() if group}


def count_verdicts(claims: list[Claim]) -> str:
    """How many claims have each verdict."""
    verdicts = [claim.verdict for claim in claims]
    tally = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in get_args(Verdict))
    return f"{len(verdicts)} {'claim' if len(verdicts) == 1 else 'claims'}: {tally}"


def summarise(sections: list[Section]) -> str:
    """How many claims of the paper, and of ours, have each verdict."""
    groups = group_claims(sections)
    if not groups:
        return "No claims have been tested yet."
    tallies = [f"{_START[owner]}, {count_verdicts([claim for _, claim in group])}." for owner, group in groups.items()]
    claims = [claim for group in groups.values() for _, claim in group]
    unbounded = sum(claim.low == -inf and claim.high == inf for claim in claims)
    few = f" Without an interval, for want of seeds or values: {unbounded}." if unbounded else ""
    single = [claim for claim in claims if claim.is_single]
    alone = f" Of a single search each, which has no interval either: {count_verdicts(single)}." if single else ""
    return " ".join(tallies) + few + alone


HOW_DECIDED = (
    "A claim is reproduced if the whole interval lies where it says, not reproduced if the whole of it lies elsewhere, "
    "and else undecided. Intervals are at the level 95 %, paired where methods are compared, and by bootstrap over "
    "seeds unless a note says otherwise. Where one sentence makes several claims, their p-values are raised by Holm's "
    "correction, and one that is then not below 0.05 leaves its claim undecided: that one's interval alone may say "
    "more. A claim without a p-value is decided by its interval alone, and one of a single search by its number. "
    "Beside a claim of the paper on means of its tables stands Welch's test of the paper's own means, deviations and "
    "24 trials."
)


def list_warnings(sections: list[Section]) -> list[str]:
    """What a reader of the whole report must know first, each once, with the sections that it is about."""
    warnings: dict[str, list[str]] = {}
    for section in sections:
        if section.warning:
            warnings.setdefault(section.warning, []).append(section.title)
    every = len(sections)
    return [text if len(titles) == every else f"{', '.join(titles)}: {text}" for text, titles in warnings.items()]


def make_anchor(title: str) -> str:
    """The name of a heading in links, as Markdown's renderers make it."""
    return re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") or "part"


def make_anchors(titles: list[str]) -> list[str]:
    """The same for all headings of a page; later ones of the same name are numbered."""
    seen: dict[str, int] = {}
    anchors = []
    for anchor in map(make_anchor, titles):
        count = seen[anchor] = seen.get(anchor, -1) + 1
        anchors.append(f"{anchor}-{count}" if count else anchor)
    return anchors


TITLES: dict[Owner, str] = {"the paper's": "Claims of the paper", "ours": "Claims of ours"}
_START: dict[Owner, str] = {"the paper's": "Of the paper", "ours": "Of ours"}
