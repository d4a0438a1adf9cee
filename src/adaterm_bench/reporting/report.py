"""Writes a report's pages: one to read in a browser and the same as Markdown."""

import json
import re
from math import isfinite
from pathlib import Path
from typing import Any

from adaterm_bench.core.section import Section
from adaterm_bench.core.trial import Result
from adaterm_bench.reporting import html, markdown
from adaterm_bench.reporting.origins import describe_origins
from adaterm_bench.reporting.svg import render


def write(sections: list[Section], results: list[Result], folder: Path, single_file: bool = False) -> list[Path]:
    """Write `report.html`, `report.md`, their figures and `claims.json`, or one HTML file; returns the paths.

    Figures of an earlier report that are not in this one are removed.
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
    origin = describe_origins(results)
    if single_file:
        pages = {folder / "report.html": html.render_page(sections, pictures, origin)}
    else:
        files = [[f"figures/{name}.svg" for name in row] for row in names]
        pages = {
            folder / "report.html": html.render_page(sections, files, origin),
            folder / "report.md": markdown.render_page(sections, files, origin),
            folder / "claims.json": json.dumps(_list_claims(sections), indent=1) + "\n",
        }
        for row, texts in zip(files, pictures, strict=True):
            pages |= {folder / name: text for name, text in zip(row, texts, strict=True)}
        (folder / "figures").mkdir(exist_ok=True)
    for path, text in pages.items():
        path.write_text(text, encoding="utf-8")
    earlier = {folder / "report.md", folder / "claims.json", *(folder / "figures").glob("*.svg")}
    for old in earlier - pages.keys():
        old.unlink(missing_ok=True)
    return list(pages)


def _list_claims(sections: list[Section]) -> list[dict[str, Any]]:
    """The claims for programs to read; an end of an interval that is not finite is null."""
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
            "measured": claim.what,
            "wants": f"{claim.wants} {claim.bound:g}",
            **{
                name: value if isfinite(value) else None
                for name, value in (
                    ("estimate", claim.estimate),
                    ("low", claim.low),
                    ("high", claim.high),
                    ("chance", claim.chance),
                )
            },
        }
        for section in sections
        for claim in section.claims
    ]


def _slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:48] or "figure"
