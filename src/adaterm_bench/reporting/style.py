"""One style for all figures, and how they become SVG."""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from adaterm_bench.reporting.palette import GRID, INK, PAPER

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    "axes.formatter.use_mathtext": True,
}


@contextmanager
def style() -> Iterator[None]:
    """Whatever is made inside has the report's style."""
    import matplotlib as mpl  # only where something is drawn

    with mpl.rc_context(STYLE):
        yield


def svg(figure: "Figure", name: str) -> str:
    """The figure as SVG text, the same each time; ids inside it begin with its name, so that many can share a page."""
    import matplotlib as mpl

    text = io.StringIO()
    with mpl.rc_context({**STYLE, "svg.hashsalt": name, "svg.fonttype": "path"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    safe = re.sub(r"[^a-z0-9-]", "-", name.lower())
    prefixed = re.sub(r'\bid="', f'id="{safe}-', text.getvalue())
    return re.sub(r'(href="#|url\(#)', rf"\g<1>{safe}-", prefixed)
