"""The report as Markdown, with its figures as files beside it."""

import re

from adaterm_bench.core.section import Claim, Section, Table
from adaterm_bench.reporting.text import TITLES, describe_measurement, describe_place, group_claims, summarise


def render_page(sections: list[Section], names: list[list[str]], origin: Section) -> str:
    """The whole page; names are the paths of the figures' files, in the order of the sections' figures."""
    parts = ["# Results of the experiments", *_render_summary(sections)]
    for section, figures in zip([*sections, origin], [*names, []], strict=True):
        parts += _render_section(section, figures)
    return "\n\n".join(parts) + "\n"


def _render_summary(sections: list[Section]) -> list[str]:
    parts = [summarise(sections)]
    for owner, group in group_claims(sections).items():
        columns = ["Verdict", "Claim", "Experiment", "Measured (interval)"]
        rows = [
            [f"**{claim.verdict}**", *map(_escape, (claim.text, section.title, describe_measurement(claim)))]
            for section, claim in group
        ]
        if owner == "the paper's":
            columns.append("In the paper")
            rows = [[*row, _escape(describe_place(claim))] for row, (_, claim) in zip(rows, group, strict=True)]
        parts += [f"## {TITLES[owner]}", _render_rows(columns, rows)]
    return parts


def _render_section(section: Section, figures: list[str]) -> list[str]:
    parts = [f"## {_escape(section.title)}"]
    parts += [_render_paragraph(paragraph) for paragraph in re.split(r"\n\s*\n", section.text.strip()) if paragraph]
    parts += ["\n".join(map(_render_claim, section.claims))] if section.claims else []
    for table in section.tables:
        parts += _render_table(table)
    for figure, name in zip(section.figures, figures, strict=True):
        parts += [f"### {_escape(figure.title)}", f"![{_escape(figure.title)}]({name})"]
        parts += [_render_paragraph(figure.caption)] if figure.caption else []
    return parts


def _render_claim(claim: Claim) -> str:
    notes = [describe_measurement(claim), claim.note, f"{describe_place(claim)}." if claim.place else "Our claim."]
    return f"- **{claim.verdict}**: {_escape(claim.text)} {' '.join(_escape(note) for note in notes if note)}"


def _render_table(table: Table) -> list[str]:
    width = len(table.columns)
    rows = [[_escape(cell) for cell in (*row, *[""] * width)][:width] for row in table.rows]
    body = _render_rows([_escape(column) for column in table.columns], rows) if width and rows else "No rows yet."
    return [f"### {_escape(table.title)}", body, *([_render_paragraph(table.note)] if table.note else [])]


def _render_rows(columns: list[str], rows: list[list[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _render_paragraph(text: str) -> str:
    """Text that cannot be taken for a heading, a list or a quotation."""
    return re.sub(r"^(\d*)([#+.)-])", r"\1\\\2", _escape(text))


def _escape(text: str) -> str:
    """One line in which Markdown and HTML see no marks, but for `such`, which is code."""
    parts = re.split(r"(`[^`]+`)", " ".join(text.split()))
    marked = [part if index % 2 else re.sub(r"([\\`*_\[\]<>&#~$])", r"\\\1", part) for index, part in enumerate(parts)]
    return "".join(marked).replace("|", r"\|")
