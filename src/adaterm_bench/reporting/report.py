"""Writes a report's pages: one to read in a browser and the same as Markdown."""

import re
from pathlib import Path

from adaterm_bench.core.section import Section
from adaterm_bench.core.trial import Result
from adaterm_bench.reporting import html, markdown
from adaterm_bench.reporting.origins import describe_origins
from adaterm_bench.reporting.svg import render


def write(sections: list[Section], results: list[Result], folder: Path, single_file: bool = False) -> list[Path]:
    """Write `report.html` and `report.md` with their figures, or one HTML file with figures inside; returns the paths.

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
        pages = {folder / "report.html": html.page(sections, pictures, origin)}
    else:
        files = [[f"figures/{name}.svg" for name in row] for row in names]
        pages = {
            folder / "report.html": html.page(sections, files, origin),
            folder / "report.md": markdown.page(sections, files, origin),
        }
        for row, texts in zip(files, pictures, strict=True):
            pages |= {folder / name: text for name, text in zip(row, texts, strict=True)}
        (folder / "figures").mkdir(exist_ok=True)
    for path, text in pages.items():
        path.write_text(text, encoding="utf-8")
    for old in {*(folder / "figures").glob("*.svg"), *folder.glob("report.md")} - pages.keys():
        old.unlink()
    return list(pages)


def _slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:48] or "figure"
