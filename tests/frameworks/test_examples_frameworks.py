"""The examples that need a framework run, and record where their numbers come from."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("name", "needed", "conditions"),
    [
        ("finetune_trainer", ("transformers", "accelerate", "sklearn"), {"clean", "wrong labels", "garbage images"}),
        ("rl_sb3", ("stable_baselines3",), {"clean", "rewards", "observations"}),
    ],
)
def test_an_example_runs_and_records_where_its_numbers_come_from(name, needed, conditions, tmp_path):
    for package in needed:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: pip install 'adaterm[frameworks]'")
    command = [sys.executable, f"examples/{name}.py", "--quick", "--out", str(tmp_path)]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=600).stdout
    assert "AdaTerm" in shown
    assert (tmp_path / f"{name}.png").stat().st_size > 10_000
    record = json.loads((tmp_path / f"{name}.json").read_text())
    assert {"table", "settings", "command", "versions", "device", "commit", "date"} <= set(record)
    assert set(record["table"]) == conditions
    for rows in record["table"].values():
        assert "AdaTerm" in rows
        assert len({len(row["curves"]) for row in rows.values()}) == 1  # paired: the same number of seeds


def test_bad_shards_are_found(tmp_path):
    if importlib.util.find_spec("sklearn") is None:
        pytest.skip("sklearn is not installed: pip install 'adaterm[frameworks]'")
    command = [sys.executable, "examples/find_bad_shards.py", "--shards", "600", "--bad", "6", "--out", str(tmp_path)]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=600).stdout
    assert "most suspect shards" in shown
    assert all((tmp_path / name).stat().st_size > 10_000 for name in ("find_bad_shards.png", "trust.png"))
    record = json.loads((tmp_path / "find_bad_shards.json").read_text())
    assert {"table", "settings", "command", "versions", "device", "commit", "date"} <= set(record)
    assert all(row["found"]["monitor"] >= 5 for row in record["table"].values())


@pytest.mark.parametrize("name", ["finetune_trainer", "rl_sb3"])
def test_an_example_says_what_to_install(name):
    program = f"import runpy, sys; sys.modules['tqdm'] = None; runpy.run_path('examples/{name}.py')"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert "pip install '.[frameworks]'" in done.stderr
