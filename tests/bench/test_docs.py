"""The code on the pages about the benchmark suite runs as it stands there."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def blocks(page, language):
    """The page's code blocks in a language."""
    return [block.split("```")[0] for block in (ROOT / "docs" / page).read_text().split(f"```{language}\n")[1:]]


def bench(folder, line):
    words = shlex.split(line)
    assert words[0] == "adaterm-bench"
    done = subprocess.run(
        [sys.executable, "-m", "adaterm_bench", *words[1:]], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("number", [0, 1])
def test_adding_works_as_the_page_says(tmp_path, number):
    """An optimizer and an experiment of one's own, with the smallest preset, run as the page runs them."""
    code, commands = blocks("adding.md", "python")[number], blocks("adding.md", "bash")[number]
    (tmp_path / code.partition("\n")[0].removeprefix("# ")).write_text(code)
    for line in commands.splitlines():
        bench(tmp_path, line.replace("--preset quick", "--preset smoke"))
    text = (tmp_path / "out/report/report.md").read_text()
    assert "AdamW" in text if number == 0 else "wild samples" in text
