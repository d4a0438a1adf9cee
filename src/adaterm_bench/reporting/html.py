"""The report as pages of HTML that need no script and no network; figures and style are beside them, or inside."""

import re
from collections.abc import Sequence
from html import escape
from math import isfinite, isnan
from pathlib import Path
from typing import NamedTuple, get_args

from adaterm_bench.core.section import Claim, Owner, Section, Table, Verdict
from adaterm_bench.reporting.palette import GRID, INK, PAPER
from adaterm_bench.reporting.text import (
    HOW_DECIDED,
    TITLES,
    count_verdicts,
    describe_measurement,
    describe_place,
    list_warnings,
    make_anchor,
    make_anchors,
    summarise,
)

SIGNS: dict[Verdict, str] = {"reproduced": "✓", "not reproduced": "✕", "undecided": "?"}
NUMBER = re.compile(r"[\u2212+-]?\.?\d|[\u2212-]?∞|no value$|—$|$")
STYLE_FILE = Path(__file__).with_name("report.css")


class Part(NamedTuple):
    """A section, where its page is, and its pictures: SVG texts, or the paths of files as its page sees them."""

    section: Section
    path: str
    pictures: list[str]


def render_contents(name: str, parts: Sequence[Part]) -> str:
    """The first page: the report's name, the result in a paragraph, contents, and the claims."""
    body = [f"<h1>{escape(name)}</h1>", *_render_result(parts), *_render_claims(parts)]
    return _render_page(name, name, body, parts, "")


def render_part(name: str, parts: Sequence[Part], place: int, contents: str) -> str:
    """The page of a section; `contents` is the path of the first page as this one sees it."""
    part = parts[place]
    steps = [
        f'<a rel="{word}" href="{escape(Path(parts[at].path).name)}">{arrow} {escape(parts[at].section.title)}</a>'
        for at, word, arrow in ((place - 1, "prev", "←"), (place + 1, "next", "→"))
        if 0 <= at < len(parts)
    ]
    body = [*_render_section(part, 1), f'<nav class="steps" aria-label="Pages">{"".join(steps)}</nav>']
    return _render_page(name, f"{part.section.title} · {name}", body, parts, contents, current=place)


def render_single(name: str, parts: Sequence[Part]) -> str:
    """All of it as one page."""
    anchors = make_anchors([part.section.title for part in parts])
    inside = [part._replace(path=f"#{anchor}") for part, anchor in zip(parts, anchors, strict=True)]
    body = [f"<h1>{escape(name)}</h1>", *_render_result(inside), *_render_claims(inside)]
    for part, anchor in zip(inside, anchors, strict=True):
        body += [f'<section id="{escape(anchor)}">', *_render_section(part, 2, f"{anchor}-"), "</section>"]
    style = f"<style>\n{STYLE_FILE.read_text(encoding='utf-8')}</style>"
    return _render_page(name, name, body, inside, "", style=style)


def _render_page(
    name: str,
    title: str,
    body: list[str],
    parts: Sequence[Part],
    contents: str,
    current: int | None = None,
    style: str = "",
) -> str:
    """A page in the style that it is given, or in that of a file beside the first page.

    The list of pages is a column on a wide screen; on a narrow one it is folded at the top.
    """
    style = style or f'<link rel="stylesheet" href="{escape((Path(contents).parent / STYLE_FILE.name).as_posix())}">'
    links = []
    for place, part in enumerate(parts):
        path = part.path if not contents else Path(part.path).name
        here = ' aria-current="page"' if place == current else ""
        links.append(f'<li><a href="{escape(path)}"{here}>{escape(part.section.title)}</a></li>')
    here = ' aria-current="page"' if current is None else ""
    first = f'<a class="first" href="{escape(contents or "#")}"{here}>{escape(name)}</a>'
    pages = f"<details><summary>Pages</summary><ol>{''.join(links)}</ol></details>"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<link rel="icon" href="data:,">\n<title>{escape(title)}</title>\n{style}\n</head>\n<body>\n'
        f'<nav class="side" aria-label="Pages of the report">{first}{pages}</nav>\n'
        "<main>\n" + "\n".join(body) + "\n</main>\n</body>\n</html>\n"
    )


def _render_result(parts: Sequence[Part]) -> list[str]:
    """What came out, in a paragraph, and where to find it."""
    sections = [part.section for part in parts]
    warnings = list_warnings(sections[:-1])  # the last section says where results come from
    rows = []
    for part in parts:
        section = part.section
        verdicts = [claim.verdict for claim in section.claims]
        counts = "".join(
            f'<td class="number">{verdicts.count(verdict) if verdicts else ""}</td>' for verdict in get_args(Verdict)
        )
        amount = [
            f"{len(things)} {word if len(things) == 1 else word + 's'}"
            for things, word in ((section.tables, "table"), (section.figures, "figure"))
            if things
        ]
        link = f'<a href="{escape(part.path)}">{escape(section.title)}</a>'
        rows.append(f'<tr><th scope="row">{link}</th>{counts}<td>{", ".join(amount)}</td></tr>')
    heads = "".join(f'<th scope="col" class="number">{verdict}</th>' for verdict in get_args(Verdict))
    return [
        *(f'<p class="warning">{_escape_inline(text)}</p>' for text in warnings),
        f'<p class="result">{summarise(sections)}</p>',
        '<h2 id="contents">Contents</h2>',
        f'<div class="scroll"><table class="contents"><thead><tr><th scope="col">Section</th>{heads}'
        f'<th scope="col">Shows</th></tr></thead>\n<tbody>{"".join(rows)}</tbody></table></div>',
    ]


def _render_claims(parts: Sequence[Part]) -> list[str]:
    """All claims, folded by section; the buttons above show those with one verdict, without a script."""
    if not any(part.section.claims for part in parts):
        return []
    verdicts = get_args(Verdict)
    buttons = "".join(
        f'<input type="radio" name="verdict" id="only-{name}"{" checked" * (name == "all")}>'
        f'<label for="only-{name}">{label}</label>'
        for name, label in (("all", "all claims"), *((verdict.replace(" ", "-"), verdict) for verdict in verdicts))
    )
    body = [
        '<h2 id="claims">Claims</h2>',
        f"<p>{HOW_DECIDED} The strip shows the interval; the upright line is the bound.</p>",
        f'<fieldset class="filter"><legend>Show</legend>{buttons}</fieldset>',
    ]
    for owner in get_args(Owner):
        chosen = [(part, [claim for claim in part.section.claims if claim.whose == owner]) for part in parts]
        chosen = [(part, claims) for part, claims in chosen if claims]
        if chosen:
            body.append(f'<h3 id="{make_anchor(TITLES[owner])}">{TITLES[owner]}</h3>')
        for part, claims in chosen:
            link = f'<p><a href="{escape(part.path)}">{escape(part.section.title)}</a></p>'
            body.append(_render_fold(f"{part.section.title}: {count_verdicts(claims)}", claims, link))
    return body


def _render_fold(summary: str, claims: Sequence[Claim], link: str = "") -> str:
    rows = "\n".join(map(_render_row, claims))
    return (
        f'<details class="group"><summary>{escape(summary)}</summary>{link}\n'
        '<table class="claims"><thead><tr><th scope="col">Verdict</th><th scope="col">Claim</th>'
        '<th scope="col">Measured (interval)</th><td></td></tr></thead>\n'
        f"<tbody>\n{rows}\n</tbody></table></details>"
    )


def _render_row(claim: Claim) -> str:
    notes = [claim.note, describe_place(claim) if claim.place else "Our claim."]
    said = "".join(f'<p class="note">{_escape_inline(note)}</p>' for note in notes if note)
    return (
        f'<tr class="is-{claim.verdict.replace(" ", "-")}"><td>{_render_badge(claim.verdict)}</td>'
        f"<td>{_escape_inline(claim.text)}{said}</td>"
        f'<td class="value">{_escape_inline(describe_measurement(claim))}</td>'
        f'<td class="strip">{_render_strip(claim)}</td></tr>'
    )


def _render_section(part: Part, level: int, prefix: str = "") -> list[str]:
    section = part.section
    titles = [*(table.title for table in section.tables), *(figure.title for figure in section.figures)]
    anchors = [escape(f"{prefix}{anchor}") for anchor in make_anchors(titles)]
    body = [f"<h{level}>{escape(section.title)}</h{level}>"]
    body += [f'<p class="warning">{_escape_inline(section.warning)}</p>'] if section.warning else []
    body += [f"<p>{_escape_inline(text)}</p>" for text in re.split(r"\n\s*\n", section.text.strip()) if text]
    if len(titles) > 1:
        items = "".join(
            f'<li><a href="#{anchor}">{_escape_inline(title)}</a></li>'
            for anchor, title in zip(anchors, titles, strict=True)
        )
        body.append(f'<details class="list"><summary>Tables and figures</summary><ul>{items}</ul></details>')
    if section.claims:
        body.append(_render_fold(count_verdicts(section.claims), section.claims))
    body += [_render_table(table, anchor, level + 1) for table, anchor in zip(section.tables, anchors, strict=False)]
    body += [
        _render_figure(figure.title, figure.caption, picture, anchor, level + 1)
        for figure, picture, anchor in zip(section.figures, part.pictures, anchors[len(section.tables) :], strict=True)
    ]
    return body


def _render_heading(title: str, anchor: str, level: int) -> str:
    link = f'<a class="anchor" href="#{anchor}" aria-label="{escape(f"Link to {title}")}">#</a>'
    return f'<h{level} id="{anchor}">{_escape_inline(title)} {link}</h{level}>'


def _render_table(table: Table, anchor: str, level: int) -> str:
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
        f"{_render_heading(table.title, anchor, level)}\n"
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(table.title)}">'
        f"<table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>{note}"
    )


def _render_figure(title: str, caption: str, picture: str, anchor: str, level: int) -> str:
    label = escape(f"{title}. {caption}".strip())
    if picture.endswith(".svg"):
        image = f'<a href="{escape(picture)}"><img src="{escape(picture)}" alt="{label}" loading="lazy"></a>'
    else:
        image = _render_inline_picture(picture, label)
    note = f"<figcaption>{_escape_inline(caption)}</figcaption>" if caption else ""
    heading = _render_heading(title, anchor, level)
    return f'<figure>{heading}\n<div class="scroll picture">{image}</div>\n{note}</figure>'


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
    """Escaped text, in which `such` is code, and no line ends before a per cent sign or inside a p-value."""
    joined = re.sub(r"\bp (=|&lt;) (?=0)", "p\u00a0\\1\u00a0", re.sub(r"(?<=\d) %", "\u00a0%", escape(text)))
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", joined)
