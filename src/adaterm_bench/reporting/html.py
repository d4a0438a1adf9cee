"""The report as a page of HTML that needs no script and no network; its figures are files beside it, or inside."""

import re
from html import escape
from math import isfinite, isnan
from pathlib import Path

from adaterm_bench.core.section import Claim, Section, Table, Verdict
from adaterm_bench.reporting.palette import GRID, INK, PAPER
from adaterm_bench.reporting.text import TITLES, describe_measurement, describe_place, group_claims, summarise

SIGNS: dict[Verdict, str] = {"reproduced": "✓", "not reproduced": "✕", "undecided": "?"}
NUMBER = re.compile(r"[\u2212+-]?\.?\d|[\u2212-]?∞|no value$|—$|$")

STYLE = Path(__file__).with_name("report.css").read_text(encoding="utf-8")


def render_page(sections: list[Section], pictures: list[list[str]], origin: Section) -> str:
    """The whole page; pictures are SVG texts or the paths of files, in the order of the sections' figures."""
    titles = [*(section.title for section in sections), origin.title]
    links = "".join(f'<li><a href="#part-{place}">{escape(title)}</a></li>' for place, title in enumerate(titles, 1))
    parts = [_render_section(section, place, pictures[place - 1]) for place, section in enumerate(sections, 1)]
    body = [
        "<h1>Results of the experiments</h1>",
        _render_summary(sections),
        f'<nav aria-label="Contents"><h3>Contents</h3><ol>{links}</ol></nav>',
        *parts,
        _render_section(origin, len(titles), []),
    ]
    head = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Results of the experiments</title>\n<style>\n{STYLE}</style>\n</head>\n"
    )
    return head + "<body>\n<main>\n" + "\n".join(body) + "\n</main>\n</body>\n</html>\n"


def _render_summary(sections: list[Section]) -> str:
    groups = group_claims(sections)
    if not groups:
        return f'<p class="soft">{summarise(sections)}</p>'
    places = {id(section): place for place, section in enumerate(sections, 1)}
    tables = [
        f"<h2>{TITLES[owner]}</h2>\n"
        '<table class="claims"><thead><tr><th scope="col">Verdict</th><th scope="col">Claim</th>'
        '<th scope="col">Measured (interval)</th><td></td></tr></thead>\n<tbody>\n'
        + "\n".join(_render_row(claim, section.title, places[id(section)]) for section, claim in group)
        + "\n</tbody></table>"
        for owner, group in groups.items()
    ]
    about = f"<p>{summarise(sections)} The strip shows the interval beside the bound, which is the upright line.</p>"
    return "\n".join([about, *tables])


def _render_row(claim: Claim, title: str, place: int) -> str:
    paper = f'<p class="note">{_escape_inline(describe_place(claim))}</p>' if claim.place else ""
    return (
        f'<tr><td>{_render_badge(claim.verdict)}</td><td>{_escape_inline(claim.text)} <span class="soft">'
        f'(<a href="#part-{place}">{escape(title)}</a>)</span>{paper}</td>'
        f'<td class="value">{_escape_inline(describe_measurement(claim))}</td>'
        f'<td class="strip">{_render_strip(claim)}</td></tr>'
    )


def _render_section(section: Section, place: int, pictures: list[str]) -> str:
    figures = [
        _render_figure(figure.title, figure.caption, picture)
        for figure, picture in zip(section.figures, pictures, strict=True)
    ]
    parts = [
        f'<section id="part-{place}">\n<h2>{escape(section.title)}</h2>',
        *(
            f"<p>{_escape_inline(paragraph)}</p>"
            for paragraph in re.split(r"\n\s*\n", section.text.strip())
            if paragraph
        ),
        *map(_render_claim, section.claims),
        *map(_render_table, section.tables),
        *figures,
        "</section>",
    ]
    return "\n".join(parts)


def _render_claim(claim: Claim) -> str:
    notes = [describe_measurement(claim), claim.note, describe_place(claim) if claim.place else "Our claim."]
    text = f"<p>{_escape_inline(claim.text)}</p>" + "".join(
        f'<p class="note">{_escape_inline(note)}</p>' for note in notes if note
    )
    return f'<div class="claim">{_render_badge(claim.verdict)}{text}</div>'


def _render_table(table: Table) -> str:
    cells = [[row[place] for row in table.rows if place < len(row)] for place in range(len(table.columns))]
    right = [place > 0 and any(column) and all(map(NUMBER.match, column)) for place, column in enumerate(cells)]
    kinds = [' class="number"' if is_number else "" for is_number in right]
    head = "".join(
        f'<th scope="col"{kind}>{_escape_inline(column)}</th>'
        for column, kind in zip(table.columns, kinds, strict=True)
    )
    rows = [
        "".join(
            f'<th scope="row">{_escape_inline(cell)}</th>'
            if place == 0
            else f"<td{kinds[place]}>{_escape_inline(cell)}</td>"
            for place, cell in enumerate(row[: len(kinds)])
        )
        for row in table.rows
    ] or [f'<td class="soft" colspan="{max(1, len(kinds))}">No rows yet.</td>']
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    note = f'<p class="note">{_escape_inline(table.note)}</p>' if table.note else ""
    return (
        f"<h3>{_escape_inline(table.title)}</h3>\n"
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(table.title)}">'
        f"<table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>{note}"
    )


def _render_figure(title: str, caption: str, picture: str) -> str:
    label = escape(f"{title}. {caption}".strip())
    if picture.endswith(".svg"):
        image = f'<img src="{escape(picture)}" alt="{label}" loading="lazy">'
    else:
        image = _render_inline_picture(picture, label)
    note = f"<figcaption>{_escape_inline(caption)}</figcaption>" if caption else ""
    return f"<figure><h3>{_escape_inline(title)}</h3>\n{image}\n{note}</figure>"


def _render_inline_picture(picture: str, label: str) -> str:
    """The SVG without what only a file needs; the page chooses the colours of the report's own style."""
    opening, rest = picture[picture.index("<svg") :].split(">", 1)
    opening = re.sub(r' (xmlns(:\w+)?|width|height|version)="[^"]*"', "", opening)
    rest = re.sub(r"@media [^{]*\{(\.\w+\{[^}]*\})*\}", "", rest.replace("xlink:href=", "href="))
    for colour, name in ((INK, "ink"), (GRID, "grid"), (PAPER, "paper")):
        rest = rest.replace(colour, f"var(--{name})")
    return f'{opening} role="img" aria-label="{label}">{rest.strip()}'


def _render_strip(claim: Claim) -> str:
    """The interval beside its bound, without a scale, for the eye to go down the list; endless ends run to the edge."""
    bounds: tuple[float, ...] = (1.0 / claim.bound, claim.bound) if claim.wants == "within" else (claim.bound,)
    finite = [value for value in (claim.low, claim.high, claim.estimate, *bounds) if isfinite(value)]
    left, right = min(finite), max(finite)
    span = (right - left) or 1.0
    margin = 0.08 * span if len(finite) == 3 + len(bounds) else 0.5 * span  # room for what runs out of the strip
    left, right = left - margin, right + margin

    def place(value: float) -> float:
        return round(120.0 * (min(max(value, left), right) - left) / (right - left), 1)

    dot, bar, at = "", "", place(claim.estimate)
    if isfinite(claim.estimate):
        dot = f'<circle cx="{at}" cy="10" r="4" fill="currentColor"/>'
    elif not isnan(claim.estimate):  # an arrow that points out of the strip
        dot = f'<path d="M{at} 10l{-8 if at else 8} -5v10z" fill="currentColor"/>'
    if claim.low <= claim.high:
        x1, x2 = place(claim.low), place(claim.high)
        bar = f'<line x1="{x1}" x2="{x2}" y1="10" y2="10" stroke="currentColor" stroke-width="2"/>'
    lines = "".join(
        f'<line x1="{x}" x2="{x}" y1="1" y2="19" stroke="currentColor" stroke-dasharray="3 2"/>'
        for x in map(place, bounds)
    )
    return f'<svg viewBox="0 0 120 20" aria-hidden="true">{lines}{bar}{dot}</svg>'


def _render_badge(verdict: Verdict) -> str:
    sign = f'<span aria-hidden="true">{SIGNS[verdict]}</span>'
    return f'<span class="badge {verdict.replace(" ", "-")}">{sign} {verdict}</span>'


def _escape_inline(text: str) -> str:
    """Escaped text, in which `such` is code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
