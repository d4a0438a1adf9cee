"""Writes a report's pages, to read in a browser and the same as Markdown."""

import json
import re
from math import isfinite, isnan
from pathlib import Path
from typing import Any

from adaterm_bench.core.section import Section
from adaterm_bench.core.trial import Result
from adaterm_bench.reporting import html, markdown
from adaterm_bench.reporting.origins import describe_origins
from adaterm_bench.reporting.svg import render

ARENA = {"language", "images"}
"""The experiments of the arena, whose report has its name."""


def write(sections: list[Section], results: list[Result], folder: Path, single_file: bool = False) -> list[Path]:
    """Write `report.html` and `report.md`, a page for each section, style, figures, `claims.json`; returns the paths.

    As a single file there is but one page of HTML, with all of it inside. What an earlier report left is removed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = [
        [f"{_slug(section.title)}-{index}-{_slug(figure.title)}" for index, figure in enumerate(section.figures, 1)]
        for section in sections
    ]
    pictures = [
        [render(figure.draw(), f"figure-{name}") for name, figure in zip(row, section.figures, strict=True)]
        for row, section in zip(names, sections, strict=True)
    ]
    every = [*sections, describe_origins(results)]
    if single_file:
        parts = [html.Part(section, "", row) for section, row in zip(every, [*pictures, []], strict=True)]
        pages = {folder / "report.html": html.render_single(name_report(results), parts)}
    else:
        pages = _render_pages(name_report(results), every, [*names, []], folder)
        for row, texts in zip(names, pictures, strict=True):
            pages |= {folder / f"figures/{name}.svg": text for name, text in zip(row, texts, strict=True)}
        pages[folder / html.STYLE_FILE.name] = html.STYLE_FILE.read_text(encoding="utf-8")
        pages[folder / "claims.json"] = json.dumps(_list_claims(sections), indent=1) + "\n"
    for path, text in pages.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    earlier = {folder / name for name in ("report.md", html.STYLE_FILE.name, "claims.json")}
    earlier |= {*(folder / "figures").glob("*.svg")}
    for kind in ("html", "md"):
        earlier |= {*(folder / "pages").glob(f"*.{kind}")}
    for old in earlier - pages.keys():
        old.unlink(missing_ok=True)
    return list(pages)


def name_report(results: list[Result]) -> str:
    """What the report is called: by the experiments that it holds."""
    experiments = {result.trial.experiment for result in results}
    return "The arena" if experiments and experiments <= ARENA else "Results of the experiments"


def _render_pages(name: str, sections: list[Section], names: list[list[str]], folder: Path) -> dict[Path, str]:
    """The first page and one for each section, for a browser and as Markdown; names are those of the figures."""
    stems = _name_pages([section.title for section in sections])
    pictures = [[f"../figures/{name}.svg" for name in row] for row in names]
    parts = [
        html.Part(section, f"pages/{stem}.html", row)
        for section, stem, row in zip(sections, stems, pictures, strict=True)
    ]
    pages = {
        folder / "report.html": html.render_contents(name, parts),
        folder / "report.md": markdown.render_contents(name, sections, [f"pages/{stem}.md" for stem in stems]),
    }
    for place, (section, stem, row) in enumerate(zip(sections, stems, pictures, strict=True)):
        pages[folder / f"pages/{stem}.html"] = html.render_part(name, parts, place, "../report.html")
        pages[folder / f"pages/{stem}.md"] = markdown.render_part(section, row, "../report.md")
    return pages


def _name_pages(titles: list[str]) -> list[str]:
    """A name for each page; later ones of the same name are numbered."""
    seen: dict[str, int] = {}
    names = []
    for name in map(_slug, titles):
        count = seen[name] = seen.get(name, 0) + 1
        names.append(name if count == 1 else f"{name}-{count}")
    return names


def _list_claims(sections: list[Section]) -> list[dict[str, Any]]:
    """The claims for programs to read; what is not finite is a text that Python's `float` reads, no chance is null."""
    return [
        {
            "experiment": section.title,
            "claim": claim.text,
            "whose": claim.whose,
            "place": claim.place,
            "sentence": claim.family or claim.text,
            "evidence": claim.evidence,
            "verdict": claim.verdict,
            "seeds": claim.seeds,
            "single": claim.is_single,
            "measured": claim.what,
            "wants": f"{claim.wants} {claim.bound:g}",
            "estimate": _write_number(claim.estimate),
            "low": _write_number(claim.low),
            "high": _write_number(claim.high),
            "chance": claim.chance if isfinite(claim.chance) else None,
        }
        for section in sections
        for claim in section.claims
    ]


def _write_number(value: float) -> float | str:
    """JSON has no number that is not finite."""
    if isfinite(value):
        return value
    return "NaN" if isnan(value) else "Infinity" if value > 0.0 else "-Infinity"


def _slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:48] or "figure"
