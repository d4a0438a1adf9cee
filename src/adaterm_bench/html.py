"""The report as one page of HTML that needs no script, no network and no other file."""

import re
from html import escape
from math import isfinite, isnan

from adaterm_bench.report import Claim, Section, Table, Verdict, headline, measured_text
from adaterm_bench.style import GRID, INK, PAPER

SIGNS: dict[Verdict, str] = {"reproduced": "✓", "not reproduced": "✕", "undecided": "?"}
NUMBER = re.compile(r"[\u2212+-]?\.?\d|[\u2212-]?∞|no value$|—$|$")

STYLE = """
:root { color-scheme: light dark; --ink: #1f2430; --soft: #5a6272; --grid: #dfe2e8; --paper: #fdfdfe;
  --card: #f4f5f8; --shade: #dde1e8;
  --link: #0b5cad; --yes: #0b6b3a; --yes-back: #dff3e6; --no: #9c1c1c; --no-back: #fbe4e2; --open: #6b4e00;
  --open-back: #fbf0cf; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7ee; --soft: #a3abba; --grid: #363c48; --paper: #15181e;
  --card: #1d2129; --shade: #3a414e; --link: #7db7f5; --yes: #8be0ac; --yes-back: #12351f;
  --no: #ffaaa2; --no-back: #46191a; --open: #f2d27a; --open-back: #3b3008; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); overflow-wrap: break-word;
  -webkit-text-size-adjust: 100%;
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 58rem; margin: 0 auto; padding: 2.5rem 1.25rem 5rem; }
h1 { font-size: 1.8rem; line-height: 1.2; margin: 0 0 .5rem; letter-spacing: -.01em; }
h2 { font-size: 1.3rem; line-height: 1.3; margin: 3.5rem 0 .75rem; padding-top: 1.25rem;
  border-top: 1px solid var(--grid); }
h3 { font-size: 1rem; margin: 2rem 0 .6rem; }
p { margin: .6rem 0; max-width: 44rem; }
a { color: var(--link); text-underline-offset: .15em; }
code { font: .9em ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; overflow-wrap: anywhere; }
.soft, figcaption, .note { color: var(--soft); }
figcaption, .note { font-size: .875rem; max-width: 44rem; }
nav ol { padding-left: 1.4rem; margin: .6rem 0; }
.scroll { overflow-x: auto; margin: .6rem 0;
  background: linear-gradient(90deg, transparent, var(--shade)) right / 1.2rem 100% no-repeat; }
.scroll table { background: linear-gradient(90deg, transparent calc(100% - 3rem), var(--paper) calc(100% - 1.2rem));
  min-width: 100%; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums lining-nums; }
th, td { text-align: left; vertical-align: top; padding: .38rem 1.1rem .38rem 0; border-bottom: 1px solid var(--grid); }
thead th, thead td { vertical-align: bottom; font-weight: 600; color: var(--soft); border-bottom-color: var(--soft); }
tbody th { font-weight: 400; min-width: 8rem; max-width: 18rem; }
td { max-width: 28rem; overflow-wrap: anywhere; } .scroll td { min-width: 5rem; }
.number { text-align: right; white-space: nowrap; padding: .38rem .2rem .38rem .9rem; }
.badge { display: inline-block; white-space: nowrap; padding: .1rem .6rem; border-radius: 1rem; font-size: .8rem;
  font-weight: 600; line-height: 1.5; }
.reproduced { color: var(--yes); background: var(--yes-back); }
.not-reproduced { color: var(--no); background: var(--no-back); }
.undecided { color: var(--open); background: var(--open-back); }
.claims { width: 100%; } .claims td { overflow-wrap: break-word; }
.claims .strip { width: 7.5rem; padding-right: 0; } .claims .value { width: 40%; }
.strip svg { display: block; width: 7.5rem; height: 1.25rem; margin-top: .15rem; overflow: visible; }
.claim { margin: .8rem 0; padding: .8rem 1rem; background: var(--card); border-radius: .5rem; }
.claim p { margin: .35rem 0 0; }
figure { margin: 1.75rem 0; } figcaption { margin-top: .4rem; } figure h3 { margin: 0 0 .4rem; }
figure svg { display: block; width: 100%; max-width: 36rem; height: auto; }
figure.plain svg { background: #fff; border-radius: .3rem; }
@media (max-width: 40rem) {
  main { padding: 1.5rem 1rem 4rem; } h1 { font-size: 1.5rem; } h2 { margin-top: 2.75rem; }
  .scroll tbody th, .scroll thead th:first-child { position: sticky; left: 0; background: var(--paper);
    max-width: 8.5rem; }
  .claims thead { display: none; }
  .claims tr { display: block; padding: .8rem 0; border-bottom: 1px solid var(--grid); }
  .claims td, .claims .value { display: block; border: 0; padding: .12rem 0; max-width: none; width: auto; }
}
@media print { .claim, figure, tr { break-inside: avoid; } }
"""


def page(sections: list[Section], pictures: list[list[str]], origin: Section) -> str:
    """The whole page; pictures are SVG texts, in the order of the sections' figures."""
    titles = [*(it.title for it in sections), origin.title]
    links = "".join(f'<li><a href="#part-{place}">{escape(it)}</a></li>' for place, it in enumerate(titles, 1))
    parts = [_section(it, place, pictures[place - 1]) for place, it in enumerate(sections, 1)]
    body = [
        "<h1>Results of the experiments</h1>",
        _summary(sections),
        f'<nav aria-label="Contents"><h3>Contents</h3><ol>{links}</ol></nav>',
        *parts,
        _section(origin, len(titles), []),
    ]
    head = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Results of the experiments</title>\n<style>{STYLE}</style>\n</head>\n"
    )
    return head + "<body>\n<main>\n" + "\n".join(body) + "\n</main>\n</body>\n</html>\n"


def _summary(sections: list[Section]) -> str:
    if not any(it.claims for it in sections):
        return f'<p class="soft">{headline(sections)}</p>'
    rows = [
        f'<tr><td>{_badge(claim.verdict)}</td><td>{_inline(claim.text)} <span class="soft">'
        f'(<a href="#part-{place}">{escape(section.title)}</a>)</span></td>'
        f'<td class="value">{_inline(measured_text(claim))}</td><td class="strip">{_strip(claim)}</td></tr>'
        for place, section in enumerate(sections, 1)
        for claim in section.claims
    ]
    body = "\n".join(rows)
    return (
        f"<p>{headline(sections)} The strip shows the interval beside the bound, which is the upright line.</p>\n"
        '<table class="claims"><thead><tr><th scope="col">Verdict</th><th scope="col">Claim</th>'
        f'<th scope="col">Measured (interval)</th><td></td></tr></thead>\n<tbody>\n{body}\n</tbody></table>'
    )


def _section(section: Section, place: int, pictures: list[str]) -> str:
    figures = [_figure(it.title, it.caption, picture) for it, picture in zip(section.figures, pictures, strict=True)]
    parts = [
        f'<section id="part-{place}">\n<h2>{escape(section.title)}</h2>',
        *(f"<p>{_inline(it)}</p>" for it in re.split(r"\n\s*\n", section.text.strip()) if it),
        *map(_claim, section.claims),
        *map(_table, section.tables),
        *figures,
        "</section>",
    ]
    return "\n".join(parts)


def _claim(claim: Claim) -> str:
    note = f'<p class="note">{_inline(claim.note)}</p>' if claim.note else ""
    text = f'<p>{_inline(claim.text)}</p><p class="note">{_inline(measured_text(claim))}</p>{note}'
    return f'<div class="claim">{_badge(claim.verdict)}{text}</div>'


def _table(table: Table) -> str:
    cells = [[row[place] for row in table.rows if place < len(row)] for place in range(len(table.columns))]
    right = [place > 0 and any(column) and all(map(NUMBER.match, column)) for place, column in enumerate(cells)]
    kinds = [' class="number"' if it else "" for it in right]
    head = "".join(f'<th scope="col"{kind}>{_inline(it)}</th>' for it, kind in zip(table.columns, kinds, strict=True))
    rows = [
        "".join(
            f'<th scope="row">{_inline(it)}</th>' if place == 0 else f"<td{kinds[place]}>{_inline(it)}</td>"
            for place, it in enumerate(row[: len(kinds)])
        )
        for row in table.rows
    ] or [f'<td class="soft" colspan="{max(1, len(kinds))}">No rows yet.</td>']
    body = "\n".join(f"<tr>{it}</tr>" for it in rows)
    note = f'<p class="note">{_inline(table.note)}</p>' if table.note else ""
    return (
        f"<h3>{_inline(table.title)}</h3>\n"
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(table.title)}">'
        f"<table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>{note}"
    )


def _figure(title: str, caption: str, picture: str) -> str:
    """Takes from a picture what only a file needs, and lets the page choose the colours of the report's own style."""
    kind = "styled" if INK in picture else "plain"
    inner = picture[picture.index("<svg") :]
    inner = re.sub(r"<metadata>.*?</metadata>", "", inner, flags=re.DOTALL)
    opening, rest = inner.split(">", 1)
    opening = re.sub(r' (xmlns(:\w+)?|width|height|version)="[^"]*"', "", opening)
    rest = rest.replace("xlink:href=", "href=")
    for colour, name in ((INK, "ink"), (GRID, "grid"), (PAPER, "paper")):
        rest = rest.replace(colour, f"var(--{name})")
    note = f"<figcaption>{_inline(caption)}</figcaption>" if caption else ""
    label = escape(f"{title}. {caption}".strip())
    return (
        f'<figure class="{kind}"><h3>{_inline(title)}</h3>\n{opening} role="img" aria-label="{label}">{rest.strip()}\n'
        f"{note}</figure>"
    )


def _strip(claim: Claim) -> str:
    """The interval beside its bound, without a scale, for the eye to go down the list; endless ends run to the edge."""
    finite = [it for it in (claim.low, claim.high, claim.estimate, claim.bound) if isfinite(it)]
    left, right = min(finite), max(finite)
    span = (right - left) or 1.0
    margin = 0.08 * span if len(finite) == 4 else 0.5 * span  # room for what runs out of the strip
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
    x = place(claim.bound)
    return (
        '<svg viewBox="0 0 120 20" aria-hidden="true">'
        f'<line x1="{x}" x2="{x}" y1="1" y2="19" stroke="currentColor" stroke-dasharray="3 2"/>{bar}{dot}</svg>'
    )


def _badge(verdict: Verdict) -> str:
    sign = f'<span aria-hidden="true">{SIGNS[verdict]}</span>'
    return f'<span class="badge {verdict.replace(" ", "-")}">{sign} {verdict}</span>'


def _inline(text: str) -> str:
    """Escaped text, in which `such` is code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
