"""What the page of JAX shows, its example and its benchmark run as they stand there."""

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jax", reason="JAX is not installed: pip install 'adaterm[jax]'")
pytest.importorskip("optax", reason="Optax is not installed: pip install 'adaterm[jax]'")
ROOT = Path(__file__).parents[2]


def run(*command):
    one_device = os.environ | {"XLA_FLAGS": "", "JAX_PLATFORMS": "cpu"}
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=one_device, check=True, capture_output=True, text=True
    ).stdout


def test_the_page_runs():
    blocks = (ROOT / "docs/jax.md").read_text().split("```python\n")[1:]
    shown = run("-c", "\n".join(block.split("```")[0] for block in blocks))
    excluded = json.loads(shown.removeprefix("excluded:"))
    assert len(excluded) >= 15
    assert all(step % 10 == 9 for step in excluded)


def test_the_examples_of_the_reference_run():
    shown = run("-c", "import doctest, adaterm.optax as module; print(doctest.testmod(module))")
    failed, attempted = map(int, re.findall(r"\d+", shown))
    assert (failed, attempted) == (0, 16)


def test_the_reference_names_what_is_public():
    from adaterm import optax

    rows = [row for row in (ROOT / "docs/api_jax.md").read_text().splitlines() if row.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`(\w+)", row.split("|")[1])} == set(optax.__all__)


def test_the_example_runs():
    pytest.importorskip("flax", reason="flax is not installed: pip install 'adaterm[frameworks]'")
    shown = run("-W", "error", "examples/jax_regression.py").split()
    bad, good, loss = int(shown[1]), int(shown[7]), float(shown[-1])
    assert bad >= 90
    assert good <= 45
    assert loss < 0.2


def test_the_benchmark_runs_and_records_where_its_numbers_come_from(tmp_path):
    options = ("--shapes", "mlp", "--dtypes", "float32", "--only", "max_norm", "--seconds", "0")
    shown = run("benchmarks/jax_step_time.py", *options, "--limit", "inf", "--out", str(tmp_path))
    assert "robust_adamw(max_norm=1.0)" in shown
    record = json.loads((tmp_path / "cpu.json").read_text())
    assert {"cases", "left out", "command", "versions", "device", "commit", "date"} <= set(record)
    case = record["cases"]["mlp"]
    assert {"times", "ratios", "memory", "memory ratios", "elements", "tensors"} <= set(case)
    assert set(case["ratios"]) == {"clip_by_global_norm + adamw", "robust_adamw(max_norm=1.0)"}


def test_the_benchmark_ends_in_time_and_says_what_it_left_out(tmp_path):
    options = ("--shapes", "mlp", "resnet18", "--dtypes", "float32", "--limit", "0", "--out", str(tmp_path))
    assert "resnet18 is left out: raise --limit" in run("benchmarks/jax_step_time.py", *options)
    record = json.loads((tmp_path / "cpu.json").read_text())
    assert (record["cases"], record["left out"]) == ({}, ["mlp", "resnet18"])


def test_the_page_has_the_numbers_that_were_measured(monkeypatch):
    """Its table is what the command makes of the stored file, and another file makes another table."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    jax_table = importlib.import_module("jax_table")
    page, record = jax_table.PAGE.read_text(), jax_table.read_record()
    assert jax_table.fill_page(page, record) == page
    parts = ("times", "ratios", "memory ratios")
    case = {"tensors": 2, "elements": 3_000_000} | {part: {jax_table.BASE: 0.5, "adaterm": 1.25} for part in parts}
    filled = jax_table.fill_page(page, {"device": "GPU", "cases": {"resnet18": case}})
    assert "| resnet18 | 2 | 3.0 M | 0.500 ms | 1.25; 1.250 |" in filled
    assert jax_table.fill_page(filled, record) == page
