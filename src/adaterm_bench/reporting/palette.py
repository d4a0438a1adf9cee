"""Colours, dashes and markers: a look for each method that is the same in every figure."""

import hashlib
import re
from typing import Any, NamedTuple

INK, GRID, PAPER = "#1f2430", "#dfe2e8", "#fdfdfe"  # no others in the style: a dark page has others in their place
DARK = {INK: "#e4e7ee", GRID: "#363c48", PAPER: "#15181e"}

# Okabe and Ito's colours, which people with any colour vision can tell apart, without yellow and black, which vanish on
# a light or dark page.
COLOURS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7f8694")
MORE = ("#8b5cf6", "#a0522d", "#17a2a2", "#8a9a00", "#d6336c")  # for methods that are drawn beside all of those
DASHES: tuple[Any, ...] = ("solid", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
KNOWN = {
    **dict(zip(("adaterm", "adam", "tadam", "atadam", "adabelief", "radam", "amsgrad"), COLOURS, strict=True)),
    **{"adaterm2": MORE[0], "atadamaspublished": MORE[1], "adatermgradientinit": MORE[2]},
    **{"tadamaspublished": MORE[3], "adamshortmemory": MORE[4]},
    **{"noadaptiveness": COLOURS[1], "adatermuncentered": COLOURS[2], "adatermadabias": COLOURS[3]},
    **{"norobustness": COLOURS[4], "largeinit": COLOURS[5], "adatermuncenteredadabias": COLOURS[6]},
    **{"adamw": COLOURS[2], "adamwclipped": COLOURS[6], "sgd": COLOURS[3], "tadabelief": COLOURS[4]},
    **{"atadabelief": COLOURS[5], "tadabeliefaspublished": COLOURS[0], "atadabeliefaspublished": COLOURS[1]},
}
"""Methods that are drawn in one figure have different colours; those of one colour have different dashes."""


class Look(NamedTuple):
    """How a method is drawn."""

    colour: str
    dash: Any
    marker: str


def choose_look(method: str) -> Look:
    """The look of a method, by its name alone; an arm of it, such as `Adam, not clipped`, has its colour."""
    method, _, arm = method.partition(", ")
    name = re.sub(r"[^a-z0-9]", "", method.lower())
    if name in KNOWN:
        colour = KNOWN[name]
        turn = [other for other, its in KNOWN.items() if its == colour].index(name)
        place = [*COLOURS, *MORE].index(colour)
    else:
        turn, place = divmod(int(hashlib.sha256(name.encode()).hexdigest(), 16) % 196, len(COLOURS))
        colour = COLOURS[place]
    dash = DASHES[(turn + arm.startswith("not ")) % len(DASHES)]
    return Look(colour, dash, MARKERS[(place + 2 * turn) % len(MARKERS)])
