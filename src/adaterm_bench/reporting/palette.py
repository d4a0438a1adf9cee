"""Colours, dashes and markers: a look for each method that is the same in every figure."""

import hashlib
import re
from typing import Any, NamedTuple

INK, GRID, PAPER = "#1f2430", "#dfe2e8", "#fdfdfe"  # no others in the style: a dark page has others in their place
DARK = {INK: "#e4e7ee", GRID: "#363c48", PAPER: "#15181e"}

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


class Look(NamedTuple):
    """How a method is drawn."""

    colour: str
    dash: Any
    marker: str


def choose_look(method: str) -> Look:
    """The look of a method, by its name alone; an arm of it, such as `Adam, not clipped`, has its colour."""
    method, _, arm = method.partition(", ")
    name = re.sub(r"[^a-z0-9]", "", method.lower())
    place = KNOWN.index(name) if name in KNOWN else int(hashlib.sha256(name.encode()).hexdigest(), 16) % 196
    turn = place // len(COLOURS)
    dash = DASHES[(turn + arm.startswith("not ")) % len(DASHES)]
    return Look(COLOURS[place % len(COLOURS)], dash, MARKERS[(place + turn) % len(MARKERS)])
