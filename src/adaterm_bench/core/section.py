"""What an experiment gives the report: tables, figures that are drawn later, and claims with their verdicts."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

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
