"""The suite stands on the library, never the other way, and statistics and reports need no torch."""

import subprocess
import sys
from pathlib import Path

import adaterm

LIGHT = (
    "trial",
    "statistics",
    "intervals",
    "figures",
    "style",
    "report",
    "html",
    "markdown",
    "selection",
    "store",
    "cli",
)


def test_statistics_and_reports_need_no_torch():
    imports = "; ".join(f"import adaterm_bench.{name}" for name in LIGHT)
    listing = f"import sys; {imports}; print('torch' in sys.modules, 'scipy' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True).stdout
    assert found.split() == ["False", "False"]


def test_the_library_does_not_know_the_suite():
    for path in Path(adaterm.__file__).parent.rglob("*.py"):
        assert "adaterm_bench" not in path.read_text(), path
