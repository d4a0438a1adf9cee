"""Writes a report's pages: one to read in a browser and the same as Markdown."""

import re
from pathlib import Path

from adaterm_bench.core.section import Section
from adaterm_bench.core.trial import Result
from adaterm_bench.reporting import html, markdown
from adaterm_bench.reporting.origins import origins
from adaterm_bench.reporting.style import svg


def write(sections: list[Section], results: list[Result], folder: Path) -> list[Path]:
    """Writes `report.html`, which needs nothing else, and `report.md` with its figures, and says what it wrote.

    Figures of an earlier report that are not in this one are removed.
    """
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    drawn = [
        [(f"{_slug(section.title)}-{index}-{_slug(it.title)}", it) for index, it in enumerate(section.figures, 1)]
        for section in sections
    ]
    pictures = [{name: svg(figure.draw(), f"figure-{name}") for name, figure in figures} for figures in drawn]
    origin = origins(results)
    pages = {
        folder / "report.html": html.page(sections, [list(it.values()) for it in pictures], origin),
        folder / "report.md": markdown.page(sections, [list(it) for it in pictures], origin),
        **{folder / "figures" / f"{name}.svg": text for it in pictures for name, text in it.items()},
    }
    for path, text in pages.items():
        path.write_text(text, encoding="utf-8")
    for old in set((folder / "figures").glob("*.svg")) - pages.keys():
        old.unlink()
    return list(pages)


def _slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:48] or "figure"
