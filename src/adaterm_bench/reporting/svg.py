"""Figures as SVG: text stays text, paths are as fine as a screen shows, and colours follow a dark page."""

import hashlib
import io
import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from adaterm_bench.reporting.palette import DARK
from adaterm_bench.reporting.style import STYLE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
HREF = f"{{{XLINK}}}href"
GROUP, USE, TSPAN = (f"{{{SVG}}}{name}" for name in ("g", "use", "tspan"))
FONTS = "'DejaVu Sans',Verdana,sans-serif"  # the first two are equally wide
NUMBER = re.compile(r"-?\d+\.\d+")
POINT = re.compile(r"([MLz])(?:\s*(-?[\d.]+)\s+(-?[\d.]+))?\s*")
ElementTree.register_namespace("", SVG)
ElementTree.register_namespace("xlink", XLINK)


def render(figure: "Figure", name: str) -> str:
    """The figure as SVG text, the same each time; ids and classes are its own, so that many can share a page."""
    import matplotlib as mpl  # only where something is drawn

    text = io.StringIO()
    with mpl.rc_context({**STYLE, "svg.hashsalt": name, "svg.fonttype": "none"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    root = ElementTree.fromstring(text.getvalue())
    for child in root.findall(f"{{{SVG}}}metadata"):
        root.remove(child)
    prefix = "f" + hashlib.sha256(name.encode()).hexdigest()[:5]
    _rename_ids(root, prefix)
    for element in root.iter():
        _shorten(element)
    _flatten(root)
    sheet = Element(f"{{{SVG}}}style")
    sheet.text = _move_styles(root, prefix)
    root.insert(0, sheet)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _rename_ids(root: Element, prefix: str) -> None:
    """Short names for what is referred to, and none for all else."""
    content = ElementTree.tostring(root, encoding="unicode")
    names: dict[str, str] = {}
    for first, second in re.findall(r'href="#(.*?)"|url\(#(.*?)\)', content):
        names.setdefault(first or second, f"{prefix}-{len(names)}")
    for element in root.iter():
        name = element.attrib.pop("id", "")
        if name in names:
            element.set("id", names[name])
        if HREF in element.attrib and element.attrib[HREF].startswith("#"):
            element.set(HREF, f"#{names[element.attrib[HREF][1:]]}")
        if "clip-path" in element.attrib:
            element.set("clip-path", f"url(#{names[element.attrib['clip-path'][5:-1]]})")


def _shorten(element: Element) -> None:
    for key, value in element.attrib.items():
        if key == "d":
            element.set(key, _shorten_path(value))
        elif key in ("x", "y", "style", "transform"):
            element.set(key, NUMBER.sub(_round, value))
    if element.text and not element.text.strip():
        element.text = None
    if element.tail and not element.tail.strip():
        element.tail = None


def _flatten(parent: Element) -> None:
    """Take groups apart that say nothing, and let one say what all its markers would say."""
    children: list[Element] = []
    for child in list(parent):
        _flatten(child)
        if child.tag == GROUP:
            styles = {marker.get("style", "") for marker in child if marker.tag == USE}
            if len(child) > 1 and len(styles) == 1 and all(marker.tag == USE for marker in child):
                child.set("style", child.get("style", "") + styles.pop())
                for marker in child:
                    marker.attrib.pop("style", None)
            if not child.attrib:
                children += list(child)
                continue
        children.append(child)
    parent[:] = children


def _move_styles(root: Element, prefix: str) -> str:
    """The style sheet: a class for each style, and other colours where the page is dark."""
    classes: dict[str, str] = {}
    for element in root.iter():
        style = element.attrib.pop("style", "")
        if style:
            style = re.sub(r"'[^;]*(?:'|sans-serif)", FONTS, style)
            element.set("class", classes.setdefault(style, f"{prefix}{len(classes)}"))
    rules = [f".{name}{{{style}}}" for style, name in classes.items()]
    dark = [
        f".{name}{{{part}: {dark}}}"
        for style, name in classes.items()
        for light, dark in DARK.items()
        for part in ("fill", "stroke")
        if f"{part}: {light}" in style
    ]
    return "".join(rules) + f"@media (prefers-color-scheme: dark){{{''.join(dark)}}}"


def _round(match: re.Match[str]) -> str:
    return f"{float(match[0]):.2f}".rstrip("0").rstrip(".") or "0"


def _shorten_path(path: str) -> str:
    """Steps from point to point in tenths of a unit; what has curves only has its numbers rounded."""
    points = POINT.findall(path)
    if "".join(POINT.sub("", path).split()):
        return " ".join(NUMBER.sub(_round, path).split())
    parts, x, y, command = [], 0, 0, ""
    for kind, first, second in points:
        if kind == "z":
            parts.append("z")
            command = "z"
            continue
        new_x, new_y = round(10 * float(first)), round(10 * float(second))
        if kind == "M":
            parts.append(f"M{new_x / 10:g} {new_y / 10:g}")
            command = "M"
        elif (new_x, new_y) != (x, y) or command == "M":  # a line of no length may still have an end to draw
            letter = "" if command == "l" else "l"
            parts.append(f"{letter or ' '}{(new_x - x) / 10:g} {(new_y - y) / 10:g}".replace(" -", "-"))
            command = "l"
        x, y = new_x, new_y
    return re.sub(r"(?<![\d.])(-?)0\.", r"\1.", "".join(parts))
