"""What passes with the torch that is installed: runs the core tests, and tells docs/supported.md.

python tests/versions.py          # with pytest, pytest-xdist, hypothesis and the extras bench, cpu and demo
python tests/versions.py --table  # only writes the table anew, of all that was run

Left out are the tests of pages, notebooks, examples and packages, and those that `pytest --all` adds.
"""

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from xml.etree import ElementTree

from adaterm_bench.core.provenance import describe_run

ROOT = Path(__file__).parents[1]
RECORDS, PAGE = ROOT / "results/versions", ROOT / "docs/supported.md"
LEFT_OUT = ("completion", "examples", "layers", "release", "site", "tutorials")
BEGIN, END = "<!-- versions -->\n", "<!-- end of versions -->"


def run_tests() -> dict[str, Any]:
    """How many tests passed, which failed, and why how many were skipped."""
    modules = {path.stem.removeprefix("test_"): str(path) for path in sorted((ROOT / "tests").glob("test_*.py"))}
    for name in LEFT_OUT:
        del modules[name]
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        pytest = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--junit-xml={report}"]
        code = subprocess.run([*pytest, *modules.values()], cwd=ROOT).returncode
        if code not in (0, 1):
            raise SystemExit(f"pytest ended with {code}: nothing is recorded")
        return read_report(ElementTree.parse(report).getroot()) | {"modules": list(modules)}


def read_report(report: ElementTree.Element) -> dict[str, Any]:
    passed, failed, skipped = 0, [], dict[str, int]()
    for case in report.iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(f"{case.get('classname')}::{case.get('name')}")
        elif (skip := case.find("skipped")) is not None:
            reason = str(skip.get("message"))
            skipped[reason] = skipped.get(reason, 0) + 1
        else:
            passed += 1
    return {"passed": passed, "failed": failed, "skipped": skipped}


def make_table(records: list[dict[str, Any]]) -> str:
    """A row for each version of torch, oldest first."""
    lines = [["torch", "Triton", "Numba", "passed", "failed", "skipped"], ["---"] * 6]
    for record in sorted(records, key=lambda record: [int(part) for part in name_version(record).split(".")]):
        versions = record["versions"]
        counts = [str(record["passed"]), str(len(record["failed"])), str(sum(record["skipped"].values()))]
        link = f"[{name_version(record)}](../results/versions/{name_version(record)}.json)"
        lines.append([link, *(versions.get(name, "none") for name in ("triton", "numba")), *counts])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def name_version(record: dict[str, Any]) -> str:
    return record["versions"]["torch"].split("+")[0]


def fill_page(page: str) -> str:
    """The page with the table of all records."""
    before, rest = page.split(BEGIN)
    records = [json.loads(path.read_text()) for path in RECORDS.glob("*.json")]
    return before + BEGIN + make_table(records) + END + rest.split(END)[1]


if __name__ == "__main__":
    if sys.argv[1:] != ["--table"]:
        record = describe_run("cpu") | run_tests()
        RECORDS.mkdir(parents=True, exist_ok=True)
        (RECORDS / f"{name_version(record)}.json").write_text(json.dumps(record, indent=1) + "\n")
    PAGE.write_text(fill_page(PAGE.read_text()))
