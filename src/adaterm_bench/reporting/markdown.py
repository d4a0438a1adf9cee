"""The report as Markdown: a page of contents and claims, and one for each section."""

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

from adaterm_bench.core.section import Claim, Section, Table
from adaterm_bench.reporting.text import (
    HOW_DECIDED,
    TITLES,
    count_verdicts,
    describe_measurement,
    describe_place,
    group_claims,
    list_warnings,
    summarise,
)


def render_contents(name: str, sections: Sequence[Section], paths: Sequence[str]) -> str:
    """The first page, with the report's name; paths are those of the sections' pages."""
    parts = [f"# {_escape(name)}", *(f"**{_escape(text)}**" for text in list_warnings(list(sections[:-1])))]
    parts += [summarise(list(sections)), "## Contents"]
    items = []
    for section, path in zip(sections, paths, strict=True):
        tally = f": {count_verdicts(section.claims)}" if section.claims else ""
        items.append(f"- [{_escape(section.title)}]({path}){tally}")
    parts.append("\n".join(items))
    groups = group_claims(list(sections))
    parts += ["## Claims", HOW_DECIDED] if groups else []
    for owner, group in groups.items():
        parts.append(f"### {TITLES[owner]}")
        for section, path in zip(sections, paths, strict=True):
            claims = [claim for chosen, claim in group if chosen is section]
            if claims:
                parts += _render_fold(f"{section.title}: {count_verdicts(claims)}", claims, path)
    return "\n\n".join(parts) + "\n"


def render_part(section: Section, figures: Sequence[str], contents: str) -> str:
    """The page of a section, with the paths of its figures' files and of the first page."""
    parts = [f"# {_escape(section.title)}", f"[All results]({contents})"]
    parts += [f"**{_escape(section.warning)}**"] if section.warning else []
    parts += [_render_paragraph(paragraph) for paragraph in re.split(r"\n\s*\n", section.text.strip()) if paragraph]
    parts += ["\n".join(map(_render_claim, section.claims))] if section.claims else []
    for table in section.tables:
        parts += _render_table(table)
    for figure, name in zip(section.figures, figures, strict=True):
        parts += [f"## {_escape(figure.title)}", f"![{_escape(figure.title)}]({name})"]
        parts += [_render_paragraph(figure.caption)] if figure.caption else []
    return "\n\n".join(parts) + "\n"


def _render_fold(summary: str, claims: Sequence[Claim], path: str) -> list[str]:
    columns = ["Verdict", "Claim", "Measured (interval)"]
    rows = [[f"**{claim.verdict}**", *map(_escape, (claim.text, describe_measurement(claim)))] for claim in claims]
    if claims[0].place:
        columns.append("In the paper")
        rows = [[*row, _escape(describe_place(claim))] for row, claim in zip(rows, claims, strict=True)]
    link = f"[{Path(path).stem}]({path})"
    return [f"<details><summary>{escape(summary)}</summary>", link, _render_rows(columns, rows), "</details>"]


def _render_claim(claim: Claim) -> str:
    notes = [describe_measurement(claim), claim.note, f"{describe_place(claim)}." if claim.place else "Our claim."]
    return f"- **{claim.verdict}**: {_escape(claim.text)} {' '.join(_escape(note) for note in notes if note)}"


def _render_table(table: Table) -> list[str]:
    width = len(table.columns)
    rows = [[_escape(cell) for cell in (*row, *[""] * width)][:width] for row in table.rows]
    body = _render_rows([_escape(column) for column in table.columns], rows) if width and rows else "No rows yet."
    return [f"## {_escape(table.title)}", body, *([_render_paragraph(table.note)] if table.note else [])]


def _render_rows(columns: list[str], rows: list[list[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _render_paragraph(text: str) -> str:
    """Text that cannot be taken for a heading, a list or a quotation."""
    return re.sub(r"^(\d*)([#+.)-])", r"\1\\\2", _escape(text))


def _escape(text: str) -> str:
    """One line in which Markdown and HTML see no marks, except for `such`, which is code."""
    parts = re.split(r"(`[^`]+`)", " ".join(text.split()))
    marked = [part if index % 2 else re.sub(r"([\\`*_\[\]<>&#~$])", r"\\\1", part) for index, part in enumerate(parts)]
    return "".join(marked).replace("|", r"\|")
