"""The code on the pages about the benchmark suite runs as it stands there."""

import json
import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def blocks(page, language):
    """The page's code blocks in a language."""
    return [block.split("```")[0] for block in (ROOT / "docs" / page).read_text().split(f"```{language}\n")[1:]]


def run_line(main, line):
    """Run a command of a page in this process."""
    words = shlex.split(line)
    assert words[0] == "adaterm-bench"
    code, text = main(*words[1:], *(["--workers", 0] if words[1] == "run" else []))
    assert code == 0, text


@pytest.mark.parametrize("number", [0, 1])
def test_adding_works_as_the_page_says(main, tmp_path, number):
    """An optimizer and an experiment of one's own, with the smallest preset, run as the page runs them."""
    code, commands = blocks("adding.md", "python")[number], blocks("adding.md", "bash")[number]
    (tmp_path / code.partition("\n")[0].removeprefix("# ")).write_text(code)
    for line in commands.splitlines():
        run_line(main, line.replace("--preset quick", "--preset smoke"))
    text = (tmp_path / "out/report/report.md").read_text()
    assert "AdamW" in text if number == 0 else "wild samples" in text


def test_reproducing_works_as_the_page_says(main, tmp_path, monkeypatch):
    """Its commands with the smallest preset, on the CPU; figures are drawn in other tests."""
    monkeypatch.setattr("adaterm_bench.reporting.report.render", lambda figure, name: "<svg></svg>")
    lines = [line.partition("  #")[0].strip() for line in blocks("reproducing.md", "bash")[0].splitlines()]
    for line in lines:
        if line.startswith("adaterm-bench"):
            words = re.sub(r"--device \S+|--minutes \S+", "", line.replace("--preset paper", "--preset smoke"))
            few = " --methods Adam AdaTerm" if "run" in words and "figures" not in words else ""
            run_line(main, words + few)
    text = (tmp_path / "out/report/report.md").read_text()
    assert all(f"## {title}" in text for title in ("Test functions", "Regression", "Batch sizes", "Regret"))


def test_reproducing_names_the_scale_that_was_run():
    """Methods and seeds in its table are those of the committed results."""
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|$", (ROOT / "docs/reproducing.md").read_text(), re.MULTILINE)
    plans = [json.loads(path.read_text()) for path in (ROOT / "results/bench/plans").glob("*.json")]
    for name, row in rows:
        own = [plan for plan in plans if plan["experiment"] == name and plan["label"] == "paper"]
        assert own, name
        if counted := re.search(r"(\d+) methods", row):
            assert int(counted[1]) == len({method for plan in own for method in plan["methods"]}), name
        if counted := re.search(r"(\d+) (?:trials|seeds)", row):
            seeds = {len(plan["seeds"] or range(plan["settings"]["seeds"])) for plan in own}
            assert int(counted[1]) in seeds, name


def test_classification_names_the_times_that_were_measured():
    """Seconds of an epoch, and the step in those of Adam, are in the file that the page links to."""
    page = " ".join((ROOT / "docs/classification.md").read_text().split())
    measured = json.loads((ROOT / "results/epoch_time/cuda.json").read_text())
    assert f"an epoch with AdaTerm takes {measured['seconds of an epoch']['AdaTerm']:.2f} s" in page
    assert f"its step {measured['steps, in those of Adam']['AdaTerm']:.3f} times" in page


def test_reproducing_says_what_the_report_says():
    """Where the page says that something is undecided, or is not, the report agrees."""
    claims = json.loads((ROOT / "results/bench/report/claims.json").read_text())
    found = {claim["claim"]: claim["verdict"] for claim in claims}
    for size, verdict in ((8, "reproduced"), (16, "reproduced"), (32, "reproduced"), (64, "undecided")):
        levels = "at every noise level from 10 % to 100 %"
        assert found[f"AdaTerm's test error is below that of Adam {levels} with batches of {size}."] == verdict
    assert (
        found["AdaTerm: on adversarial problems the regret grows no faster than the square root of T."]
        == "not reproduced"
    )
    on_par = next(claim for claim in found if claim.startswith("AdaTerm2 is on par"))
    assert found[on_par] == "undecided"
