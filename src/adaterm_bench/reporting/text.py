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
        return tidy(f"{rounded:.{digits - 1}e}")
    return tidy(f"{rounded:,.{max(0, digits - 1 - size) if rounded else 0}f}")


def tidy(text: str) -> str:
    """Numbers as Python formats them, with a true minus sign, thin spaces for commas, and no zeros in exponents."""
    text = re.sub(r"(?<=\d)e([+-])0*(?=\d)", lambda found: f"e{found[1]}".removesuffix("+"), text)
    return text.replace("-", "\u2212").replace(",", "\u202f")


def format_spread(mean: float, std: float, digits: int = 2) -> str:
    """A mean and a standard deviation to the same place: as many digits as the deviation makes meaningful."""
    if not (isfinite(mean) and isfinite(std)) or std == 0.0:
        return format_number(mean) if not isfinite(std) else f"{format_number(mean)} ± {format_number(std)}"
    places = digits - 1 - floor(log10(std))
    if places > 7 or abs(mean) >= 1e7:
        return f"{format_number(mean)} ± {format_number(std, digits)}"
    return tidy(f"{mean:,.{max(0, places)}f} ± {std:,.{max(0, places)}f}")


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
        estimate, low, high = (tidy(f"{value:,.{places}f}") for value in values)
    else:
        estimate, low, high = map(format_number, values)
    return f"{estimate} ({low} to {high})"


def describe_measurement(claim: Claim) -> str:
    """What was measured, the estimate with its interval, and what was claimed."""
    bound = tidy(f"{claim.bound:,g}")
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


def count_verdicts(claims: list[Claim], separator: str = ": ") -> str:
    """How many claims there are, and how many have each verdict."""
    verdicts = [claim.verdict for claim in claims]
    tally = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in get_args(Verdict))
    return f"{_count_claims(len(verdicts))}{separator}{tally}"


def _count_claims(number: int) -> str:
    return f"{number} {'claim' if number == 1 else 'claims'}"


def summarise(sections: list[Section]) -> str:
    """How many claims of the paper, and of ours, have each verdict."""
    groups = group_claims(sections)
    if not groups:
        return "No claims have been tested yet."
    tallies = [
        f"{_START[owner]}: {count_verdicts([claim for _, claim in group], ', ')}." for owner, group in groups.items()
    ]
    claims = [claim for group in groups.values() for _, claim in group]
    unbounded = sum(claim.low == -inf and claim.high == inf for claim in claims)
    has = "has" if unbounded == 1 else "have"
    few = f" {_count_claims(unbounded)} {has} no interval because there are too few seeds or values."
    single = [claim for claim in claims if claim.is_single]
    searches = f" These rest on a single search each, which has no interval either: {count_verdicts(single)}."
    return " ".join(tallies) + few * (unbounded > 0) + searches * bool(single)


HOW_DECIDED = (
    "A claim is reproduced if the whole interval agrees with it, not reproduced if none of it does, and otherwise "
    "undecided. Intervals are at the level 95 %, paired where methods are compared, and by bootstrap over seeds unless "
    "a note says otherwise. Where one sentence makes several claims, Holm's correction raises their p-values, and a "
    "claim whose p-value is then not below 0.05 is undecided, even if its own interval agrees with it. A claim without "
    "a p-value is decided by its interval only, and one of a single search by its number. For a claim of the paper "
    "about means in its tables, Welch's test shows what the paper's own means and deviations of 24 trials say."
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


TITLES: dict[Owner, str] = {"the paper's": "Claims of the paper", "ours": "Our claims"}
_START: dict[Owner, str] = {"the paper's": "The paper", "ours": "Ours"}
