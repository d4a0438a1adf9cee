"""What the README shows works as it stands there."""

import json
import subprocess
import sys
from pathlib import Path

from adaterm_bench.methods import PAPER_METHODS

ROOT = Path(__file__).parents[1]


def test_the_demo_runs_and_records_where_its_numbers_come_from(tmp_path):
    command = [sys.executable, "examples/demo.py", "--steps", "60", "--seeds", "1", "--out", str(tmp_path)]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "test error" in shown
    assert (tmp_path / "demo.png").stat().st_size > 10_000
    record = json.loads((tmp_path / "demo.json").read_text())
    assert {"table", "command", "versions", "device", "commit", "seeds", "settings"} <= set(record)
    assert set(record["table"]) == {"Adam", "AdaTerm", 'AdaTerm, init_scale="gradient"'}


def test_the_readme_code_runs():
    """Every Python block of the README, in order, as one program."""
    blocks = (ROOT / "README.md").read_text().split("```python\n")[1:]
    program = "\n".join(block.split("```")[0] for block in blocks)
    assert "AdaTerm(" in program
    shown = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert "trust" in shown


def test_the_readme_has_the_measured_numbers():
    record = json.loads((ROOT / "results/slow_start/slow_start.json").read_text())
    trusted, adapted = (value for key, value in record.items() if key.startswith("steps until"))
    shown = {
        "slow_start": " / ".join(map(str, trusted["eps"].values())),
        **{f"dof_{dof}": str(step) for dof, step in adapted.items()},
    }
    ratios = json.loads((ROOT / "results/step_time/cuda.json").read_text())["ratios"]
    for kind, shapes in {
        "graph": ("resnet18", "gpt2", "one", "gpt2, bf16"),
        "eager": ("resnet18", "gpt2", "one"),
    }.items():
        for shape in shapes:
            shown[f"{kind}.{shape}"] = f"{ratios[shape]['AdaTerm(fused=True)'][kind]:.2f}"
    on_cpu = json.loads((ROOT / "results/step_time/cpu.json").read_text())
    shown["first"] = f"{on_cpu['first step, seconds']['compiled']:.1f}"
    ratios = on_cpu["ratios"]
    for shape in ("mlp", "resnet18"):
        shown[f"cpu.{shape}"] = f"{ratios[shape]['AdaTerm(fused=True)']['eager']:.2f}"
        shown[f"cpu.plain.{shape}"] = f"{ratios[shape]['AdaTerm(foreach=False)']['eager']:.0f}"
    readme = (ROOT / "README.md").read_text()
    for name, numbers in shown.items():
        assert f"<!-- {name} -->{numbers}<!-- -->" in readme


def test_the_docs_name_every_method():
    table = (ROOT / "docs/paper.md").read_text().split("## Methods")[1].split("**As published.**")[0]
    listed = [line.split(" | ")[0].removeprefix("| ") for line in table.split("\n") if " | " in line]
    assert listed[1:] == list(PAPER_METHODS)
