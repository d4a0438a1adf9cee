"""What a report is made of, and its pages: one to read in a browser and the same as Markdown."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from math import floor, inf, isfinite, isnan, log10
from pathlib import Path
from typing import Any, Literal, get_args

from adaterm_bench.trial import Result, canonical

Verdict = Literal["reproduced", "not reproduced", "undecided"]


@dataclass(frozen=True)
class Table:
    """Rows of text under a heading; the first column names the row."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    note: str = ""


@dataclass(frozen=True)
class Figure:
    """A picture, drawn when it is needed, as a `matplotlib.figure.Figure`."""

    title: str
    draw: Callable[[], Any]
    caption: str = ""


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, or of ours, and the interval that decides it: of `what`, which it wants above `bound`.

    Reproduced if the whole interval is above the bound, not reproduced if it is below, and else undecided; the other
    way round for a claim that wants it below.
    """

    text: str
    what: str
    estimate: float
    low: float
    high: float
    bound: float = 0.0
    note: str = ""
    wants: Literal["above", "below"] = "above"

    @property
    def verdict(self) -> Verdict:
        """What the interval says."""
        if self.low > self.bound or self.high < self.bound:
            return "reproduced" if (self.low > self.bound) == (self.wants == "above") else "not reproduced"
        return "undecided"


@dataclass(frozen=True)
class Section:
    """What the report shows of one experiment."""

    title: str
    text: str
    tables: list[Table] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)


def write(sections: list[Section], results: list[Result], folder: Path) -> list[Path]:
    """Writes `report.html`, which needs nothing else, and `report.md` with its figures, and says what it wrote.

    Figures of an earlier report that are not in this one are removed.
    """
    from adaterm_bench import html, markdown  # here, since an experiment needs a section's parts and no matplotlib
    from adaterm_bench.style import svg

    (folder / "figures").mkdir(parents=True, exist_ok=True)
    drawn = [
        [(f"{_slug(section.title)}-{index}-{_slug(it.title)}", it) for index, it in enumerate(section.figures, 1)]
        for section in sections
    ]
    pictures = [{name: svg(figure.draw(), f"figure-{name}") for name, figure in figures} for figures in drawn]
    origin = origins(results)
    pages = {
        folder / "report.html": html.page(sections, [list(it.values()) for it in pictures], origin),
        folder / "report.md": markdown.page(sections, [list(it) for it in pictures], origin),
        **{folder / "figures" / f"{name}.svg": text for it in pictures for name, text in it.items()},
    }
    for path, text in pages.items():
        path.write_text(text, encoding="utf-8")
    for old in set((folder / "figures").glob("*.svg")) - pages.keys():
        old.unlink()
    return list(pages)


def number(value: float, digits: int = 3) -> str:
    """A number with so many significant digits, as a person would write it; what is no number is a word."""
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


def plus_minus(mean: float, std: float, digits: int = 2) -> str:
    """A mean and a standard deviation to the same place: as many digits as the deviation makes meaningful."""
    if not (isfinite(mean) and isfinite(std)) or std == 0.0:
        return number(mean) if not isfinite(std) else f"{number(mean)} ± {number(std)}"
    places = digits - 1 - floor(log10(std))
    if places > 7 or abs(mean) >= 1e7:
        return f"{number(mean)} ± {number(std, digits)}"
    return f"{mean:.{max(0, places)}f} ± {std:.{max(0, places)}f}".replace("-", "\u2212")


def interval_text(claim: Claim) -> str:
    """A claim's estimate and interval in one line, to the place that the interval's width makes meaningful."""
    if isnan(claim.low) and isnan(claim.high):
        return number(claim.estimate)
    if claim.low == -inf and claim.high == inf:
        return f"{number(claim.estimate)} (no bounds)"
    values = (claim.estimate, claim.low, claim.high)
    width = claim.high - claim.low
    if all(map(isfinite, values)) and 1e-6 < width < 1e6:
        places = max(0, 1 - floor(log10(width)))
        estimate, low, high = (f"{it:.{places}f}".replace("-", "\u2212") for it in values)
    else:
        estimate, low, high = map(number, values)
    return f"{estimate} ({low} to {high})"


def measured_text(claim: Claim) -> str:
    """What was measured, the estimate with its interval, and what was claimed."""
    bound = f"{claim.bound:g}".replace("-", "\u2212")
    return f"{claim.what[:1].upper() + claim.what[1:]}: {interval_text(claim)}; claimed to be {claim.wants} {bound}."


def headline(sections: list[Section]) -> str:
    """How many claims have each verdict, and what the verdicts mean."""
    verdicts = [claim.verdict for section in sections for claim in section.claims]
    if not verdicts:
        return "No claims have been tested yet."
    open_ = sum(claim.low == -inf and claim.high == inf for section in sections for claim in section.claims)
    few = f" {open_} of them have no interval: they have fewer than six seeds, or no values." if open_ else ""
    tally = ", ".join(f"{verdicts.count(it)} {it}" for it in get_args(Verdict))
    return (
        f"{len(verdicts)} {'claim' if len(verdicts) == 1 else 'claims'}: {tally}.{few} A claim is reproduced if the "
        "whole interval lies on the side of the bound that it names, not reproduced if the whole of it lies on the "
        "other, and else undecided. "
        "Intervals are at the level 95 %, by bootstrap over seeds, paired where methods are compared."
    )


def origins(results: list[Result]) -> Section:
    """Where the results come from: how many of which experiment, made with what, where and when."""
    title = "Where the results come from"
    if not results:
        return Section(title, "There are no results yet.")
    names = sorted({it.trial.experiment for it in results})
    grouped = {name: [it for it in results if it.trial.experiment == name] for name in names}
    columns = ["Experiment", "Version", "Trials", "Methods", "Seeds", "Computing time", "First", "Last"]
    made = [[name, *_amounts(of)] for name, of in grouped.items()]
    parts = {"versions": "Software", "device": "Device", "commit": "Commit", "command": "Command"}
    seen: dict[tuple[str, str], int] = {}
    for result in results:
        for key, label in parts.items():
            pair = (label, _words(result.provenance.get(key)))
            seen[pair] = seen.get(pair, 0) + 1
    order = list(parts.values())
    rows = [[*pair, f"{seen[pair]}"] for pair in sorted(seen, key=lambda it: (order.index(it[0]), it[1]))]
    return Section(
        title,
        "Each result holds the versions, device, commit and command that it was made with.",
        [Table("Trials", columns, made), Table("Software and machines", ["What", "Value", "Trials"], rows)],
    )


def _amounts(results: list[Result]) -> list[str]:
    batches = {canonical(it.provenance): it.provenance for it in results}  # all trials of a batch have its seconds
    seconds = [float(it.get("seconds") or 0.0) for it in batches.values()]
    dates = sorted(str(it.provenance["date"])[:10] for it in results if it.provenance.get("date"))
    return [
        ", ".join(str(it) for it in sorted({it.trial.version for it in results})),
        str(len(results)),
        str(len({it.trial.method for it in results})),
        _ranges(sorted({it.trial.seed for it in results})),
        _duration(sum(seconds)),
        dates[0] if dates else "not recorded",
        dates[-1] if dates else "not recorded",
    ]


def _ranges(numbers: list[int]) -> str:
    """Such as 0–9, 12, 20–23."""
    runs: list[list[int]] = []
    for it in numbers:
        if runs and it == runs[-1][-1] + 1:
            runs[-1].append(it)
        else:
            runs.append([it])
    return ", ".join(str(it[0]) if len(it) == 1 else f"{it[0]}\u2013{it[-1]}" for it in runs)


def _duration(seconds: float) -> str:
    if seconds < 60.0:
        return f"{number(seconds)} s"
    if seconds < 3600.0:
        return f"{number(seconds / 60.0)} min"
    return f"{number(seconds / 3600.0)} h"


def _words(value: Any) -> str:
    if value is None or value == "":
        return "not recorded"
    if isinstance(value, dict):
        return ", ".join(f"{key} {value[key]}" for key in sorted(value))
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:48] or "figure"
