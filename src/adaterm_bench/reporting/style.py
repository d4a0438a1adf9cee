"""One style for all figures."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from adaterm_bench.reporting.palette import GRID, INK, PAPER

WIDTH = 8.0  # inches, of all figures: as wide as a page's column, whose text is then as large as theirs
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10.0,
    "axes.titlesize": 10.0,
    "axes.titlelocation": "left",
    "axes.labelsize": 10.0,
    "xtick.labelsize": 9.0,
    "ytick.labelsize": 9.0,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.facecolor": PAPER,
    "figure.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.0,
}


@contextmanager
def use_style() -> Iterator[None]:
    """Whatever is made inside has the report's style."""
    import matplotlib as mpl  # only where something is drawn

    with mpl.rc_context(STYLE):
        yield
