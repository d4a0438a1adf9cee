"""Numbers, intervals and verdicts in words."""

from math import floor, inf, isfinite, isnan, log10
from typing import get_args

from adaterm_bench.core.section import Claim, Section, Verdict


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


def format_interval(claim: Claim) -> str:
    """A claim's estimate and interval in one line, to the place that the interval's width makes meaningful."""
    if isnan(claim.low) and isnan(claim.high):
        return format_number(claim.estimate)
    if claim.low == -inf and claim.high == inf:
        return f"{format_number(claim.estimate)} (no bounds)"
    values = (claim.estimate, claim.low, claim.high)
    width = claim.high - claim.low
    if all(map(isfinite, values)) and 1e-6 < width < 1e6:
        places = max(0, 1 - floor(log10(width)))
        estimate, low, high = (f"{value:.{places}f}".replace("-", "\u2212") for value in values)
    else:
        estimate, low, high = map(format_number, values)
    return f"{estimate} ({low} to {high})"


def describe_measurement(claim: Claim) -> str:
    """What was measured, the estimate with its interval, and what was claimed."""
    bound = f"{claim.bound:g}".replace("-", "\u2212")
    return f"{claim.what[:1].upper() + claim.what[1:]}: {format_interval(claim)}; claimed to be {claim.wants} {bound}."


def summarise(sections: list[Section]) -> str:
    """How many claims have each verdict, and what the verdicts mean."""
    verdicts = [claim.verdict for section in sections for claim in section.claims]
    if not verdicts:
        return "No claims have been tested yet."
    open_ = sum(claim.low == -inf and claim.high == inf for section in sections for claim in section.claims)
    few = f" Without an interval, for want of seeds or values: {open_}." if open_ else ""
    tally = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in get_args(Verdict))
    return (
        f"{len(verdicts)} {'claim' if len(verdicts) == 1 else 'claims'}: {tally}.{few} A claim is reproduced if the "
        "whole interval lies on the side of the bound that it names, not reproduced if the whole of it lies on the "
        "other, and else undecided. "
        "Intervals are at the level 95 %, paired where methods are compared, and by bootstrap over seeds unless a note "
        "says otherwise."
    )
