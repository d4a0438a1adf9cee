"""One style for all figures, with a look for each method that is the same in every one of them."""

import hashlib
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure

INK, GRID, PAPER = "#1f2430", "#dfe2e8", "#fdfdfe"  # no others in the style: the page puts its own in their place

# Okabe and Ito's colours, which people with any colour vision can tell apart, without yellow and black, which vanish on
# a light or dark page; a second and third round of methods differs by dash and marker.
COLOURS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7f8694")
DASHES: tuple[Any, ...] = ("solid", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
KNOWN = (
    *("adaterm", "adam", "tadam", "atadam", "adabelief", "radam", "amsgrad"),
    *("adaterm2", "noadaptiveness", "atadamaspublished", "tadamaspublished", "norobustness", "largeinit", "adamw"),
    *("adatermgradientinit", "adatermuncentered", "adatermadabias", "adatermuncenteredadabias", "tadabelief"),
    *("atadabelief", "adamwclipped", "tadabeliefaspublished", "atadabeliefaspublished", "sgd"),
)
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


class Look(NamedTuple):
    """How a method is drawn."""

    colour: str
    dash: Any
    marker: str


def look(method: str) -> Look:
    """The look of a method, by its name alone; an arm of it, such as `Adam, not clipped`, has its colour."""
    method, _, arm = method.partition(", ")
    name = re.sub(r"[^a-z0-9]", "", method.lower())
    place = KNOWN.index(name) if name in KNOWN else int(hashlib.sha256(name.encode()).hexdigest(), 16) % 196
    turn = place // len(COLOURS)
    dash = DASHES[(turn + arm.startswith("not ")) % len(DASHES)]
    return Look(COLOURS[place % len(COLOURS)], dash, MARKERS[(place + turn) % len(MARKERS)])


@contextmanager
def style() -> Iterator[None]:
    """Whatever is made inside has the report's style."""
    with mpl.rc_context(STYLE):
        yield


def svg(figure: Figure, name: str) -> str:
    """The figure as SVG text, the same each time; ids inside it begin with its name, so that many can share a page."""
    text = io.StringIO()
    with mpl.rc_context({**STYLE, "svg.hashsalt": name, "svg.fonttype": "path"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    safe = re.sub(r"[^a-z0-9-]", "-", name.lower())
    prefixed = re.sub(r'\bid="', f'id="{safe}-', text.getvalue())
    return re.sub(r'(href="#|url\(#)', rf"\g<1>{safe}-", prefixed)
