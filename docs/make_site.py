"""Build the documentation's site from docs/ and the files that its pages link to: `make docs`.

Pages link to results, examples and sources outside docs/. Each such file comes along, under files/: Markdown and
sources as pages, notebooks as pages with the file beside them, reports as their HTML pages, folders as lists, all else
as it is. A link that leads nowhere is an error.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import notebook_page

ROOT = Path(__file__).parents[1]
DOCS, STAGE = ROOT / "docs", ROOT / "build" / "pages"
SOURCES = {".py": "python", ".toml": "toml", ".cff": "yaml", ".yml": "yaml", "": "make"}
CODE = re.compile(r"^(`{3,}).*?^\1$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
MARK = re.compile(r"<!--.*?-->")
NUMBER = re.compile(r"\s*[+\u2212-]?\.?\d(?:[^A-Za-z]|\b[A-Za-z]{1,4}\b)*$")  # with short words: 0.78 ms, 5 of 5 lost
KEPT = r"(<!--.*?-->|`[^`\n]*`|\]\([^)\n]*\))"  # marks, code and links stay as they are
SPACES = re.compile(KEPT + r"|(?<=\d) (?=%)")
UNBROKEN = "\u00a0"
UNLISTED = "---\nsearch:\n  exclude: true\n---\n"


class BrokenLinkError(Exception):
    """A page links to what is not there."""


def place(target: Path) -> Path:
    """Where a file or folder of the repository is on the site, relative to its root."""
    if target.is_relative_to(DOCS):
        path = target.relative_to(DOCS)
        return path.with_suffix(".md") if path.suffix == ".ipynb" else path
    path = Path("files") / target.relative_to(ROOT)
    if target.is_dir():
        return path / "index.md"
    if target.suffix == ".md" and target.with_suffix(".html").exists():
        return path.with_suffix(".html")
    return path.with_name(path.name + ".md") if target.suffix in SOURCES else path


def keep_together(text: str) -> str:
    """Text in which no line ends before a per cent sign, or inside a cell of numbers and short words."""

    def join(row: re.Match[str]) -> str:
        cells = row[0].split("|")
        for at, cell in enumerate(cells):
            if NUMBER.match(MARK.sub("", cell)):
                cells[at] = re.sub(KEPT + "| ", lambda found: found[1] or UNBROKEN, cell.strip())
        return "|".join(cells)

    text = re.sub(r"^\|.*$", join, text, flags=re.MULTILINE)
    return SPACES.sub(lambda found: found[1] or UNBROKEN, text)


class Stage:
    """The pages as the site's generator reads them, with every file that they link to."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.brought: set[Path] = set()

    def bring(self, source: Path) -> None:
        """Put a file or folder in its place, with what it links to, unless it is there."""
        if source in self.brought:
            return
        self.brought.add(source)
        goal = self.out / place(source)
        goal.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            files = sorted(path for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
            lines = [f"- [{path.relative_to(source)}]({path.relative_to(source)})" for path in files]
            text = f"# {source.relative_to(ROOT)}\n\n" + "\n".join(lines) + "\n"
            goal.write_text(UNLISTED + self.follow(text, source / "index.md"))
        elif goal.suffix == ".html":  # a report: all its pages belong together
            report = source.parent.parent if source.parent.name == "pages" else source.parent
            goal = self.out / "files" / report.relative_to(ROOT)
            shutil.copytree(report, goal, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.md"))
        elif source.suffix == ".md":
            text = self.follow(source.read_text(), source)
            goal.write_text(text if source.is_relative_to(DOCS) else UNLISTED + text)
        elif source.suffix == ".ipynb":
            text, pictures = notebook_page.convert(
                source.read_text(), source.stem, lambda words: self.follow(words, source)
            )
            title, _, rest = text.partition("\n")
            link = f'[Download this notebook]({source.name}){{ download="{source.name}" }}'
            goal.write_text(f"{title}\n\n{link}\n{rest}")
            shutil.copyfile(source, goal.with_name(source.name))
            for name, picture in pictures.items():
                goal.with_name(name).write_bytes(picture)
        elif goal.suffix == ".md":
            fence = f"````{SOURCES[source.suffix]}\n{source.read_text()}````\n"
            goal.write_text(f"{UNLISTED}# {source.relative_to(ROOT)}\n\n{fence}")
        else:
            shutil.copyfile(source, goal)

    def follow(self, text: str, page: Path) -> str:
        """A page's text with links that hold on the site; what they lead to comes along."""

        def turn(match: re.Match[str]) -> str:
            begin, link, end = match.groups()
            path, mark, anchor = link.partition("#")
            if not path or re.match(r"[a-z]+:", link):
                return match[0]
            target = (page.parent / path).resolve()
            if not target.exists():
                raise BrokenLinkError(f"{page.relative_to(ROOT)} links to {link}, which is not there")
            self.bring(target)
            return begin + os.path.relpath(place(target), place(page).parent) + mark + anchor + end

        parts, last = [], 0
        for block in CODE.finditer(text):
            parts += [keep_together(LINK.sub(turn, text[last : block.start()])), block[0]]
            last = block.end()
        return "".join([*parts, keep_together(LINK.sub(turn, text[last:]))])


def stage(out: Path = STAGE) -> None:
    """Put all pages of docs/, and what they link to, into a folder for the generator."""
    shutil.rmtree(out, ignore_errors=True)
    stage = Stage(out)
    for path in sorted(DOCS.rglob("*")):
        if path.is_file() and path.suffix in {".md", ".ipynb", ".js", ".css", ".svg", ".png"}:
            stage.bring(path)


def main() -> int:
    """Stage the pages and build the site; a warning of the generator fails the build."""
    try:
        stage()
    except BrokenLinkError as error:
        print(error, file=sys.stderr)
        return 1
    shutil.rmtree(ROOT / "site", ignore_errors=True)
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
