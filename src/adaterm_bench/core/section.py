"""What an experiment gives the report: tables, figures that are drawn later, and claims with their verdicts."""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import nan
from typing import Any, Literal

Verdict = Literal["reproduced", "not reproduced", "undecided"]
Owner = Literal["the paper's", "ours"]
CERTAIN = 0.05


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
    """A claim and the interval that decides it: of `what`, which it wants above `bound`, or below, or within.

    Within is from 1 / bound to bound, for ratios. Reproduced if the whole interval is where the claim wants it, not
    reproduced if the whole of it is elsewhere, and else undecided. Claims of a `family` are decided together: `chance`
    is then raised as Holm does, and one that is not below 0.05 leaves its claim undecided.
    """

    text: str
    what: str
    estimate: float
    low: float
    high: float
    bound: float = 0.0
    note: str = ""
    wants: Literal["above", "below", "within"] = "above"
    place: str = ""
    """Where it stands in the paper; empty if it is a claim of ours."""
    family: str = ""
    """What the paper, or we, say in one sentence, of which this is a part."""
    evidence: str = ""
    """What the paper itself has for it."""
    seeds: int = 0
    chance: float = nan
    """The p-value of the bound; NaN if the interval alone decides."""

    @property
    def whose(self) -> Owner:
        """Who claims it."""
        return "the paper's" if self.place else "ours"

    @property
    def is_single(self) -> bool:
        """Whether it rests on one number of which there is no other seed."""
        return not self.seeds and self.low == self.high

    @property
    def verdict(self) -> Verdict:
        """What the interval says, unless chance does as much in a family of this size."""
        if self.chance >= CERTAIN:
            return "undecided"
        if self.wants == "within":
            return self._judge_within()
        if self.low > self.bound or self.high < self.bound:
            return "reproduced" if (self.low > self.bound) == (self.wants == "above") else "not reproduced"
        return "undecided"

    def _judge_within(self) -> Verdict:
        least, most = 1.0 / self.bound, self.bound
        if least <= self.low and self.high <= most:
            return "reproduced"
        return "not reproduced" if self.low > most or self.high < least else "undecided"


@dataclass(frozen=True)
class Section:
    """What the report shows of one experiment."""

    title: str
    text: str
    tables: list[Table] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    warning: str = ""
    """What a reader must know before anything else."""
