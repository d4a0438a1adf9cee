"""The notebooks run from top to bottom, and what is committed of their outputs is small and of no machine."""

import base64
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "docs/tutorials"
NEEDED = {
    "corrupt_batches": ("matplotlib",),
    "fsdp2": (),
    "huggingface_trainer": ("transformers", "accelerate"),
    "stable_baselines3": ("stable_baselines3",),
}
"""The notebooks, and the packages that each needs beside torch."""


def read_cells(name, kind="code"):
    cells = json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == kind]


def read_output(name):
    """What the committed notebook shows as text."""
    outputs = [output for cell in read_cells(name) for output in cell["outputs"]]
    return "".join("".join(output.get("text", [])) for output in outputs)


def test_all_notebooks_are_tested():
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(NEEDED)


@pytest.mark.parametrize(
    "name", [name if name == "corrupt_batches" else pytest.param(name, marks=pytest.mark.slow) for name in NEEDED]
)
def test_a_notebook_runs_from_top_to_bottom(name, tmp_path):
    for package in NEEDED[name]:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: pip install 'adaterm[frameworks]'")
    program = "\n\n".join("".join(cell["source"]) for cell in read_cells(name))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert [line.split()[:2] for line in done.stdout.splitlines()[:1]] == [
        line.split()[:2] for line in read_output(name).splitlines()[:1]
    ]


@pytest.mark.parametrize("name", NEEDED)
def test_what_is_committed_of_a_notebook_is_small_and_of_no_machine(name):
    text = (FOLDER / f"{name}.ipynb").read_text(encoding="utf-8")
    assert len(text) < 60_000
    assert not re.search(r"/(tmp|root|home|Users|work)/|site-packages", text)
    for number, cell in enumerate(read_cells(name), start=1):
        assert cell["execution_count"] == number, "run it again from top to bottom: make tutorials"
        for output in cell["outputs"]:
            if output["output_type"] == "display_data":  # a picture, and in words what is to be seen there
                assert set(output["data"]) == {"image/png", "text/plain"}
                assert base64.b64decode(output["data"]["image/png"]).startswith(b"\x89PNG")
                assert "".join(cell["source"]).endswith(f"  # {''.join(output['data']['text/plain'])}")
            else:
                assert (output["output_type"], output["name"]) == ("stream", "stdout")


def test_the_notebooks_show_what_their_words_say():
    assert "the same weights: True" in read_output("fsdp2")
    assert read_output("fsdp2").count("worst batch 150, trust 0.00") == 2
    assert "RobustAdamW 6656" in read_output("stable_baselines3")
    assert len(set(re.findall(r"^step \d+, rollout (\d+)", read_output("stable_baselines3"), re.MULTILINE))) == 1
    before, after = map(int, re.findall(r"return (\d+) before, (\d+) after", read_output("stable_baselines3"))[0])
    assert after > 5 * before
    assert [output["output_type"] for output in read_cells("corrupt_batches")[-1]["outputs"]] == ["display_data"]
    suspects = re.findall("in truth: (slipped|good)", read_output("huggingface_trainer"))
    assert len(suspects) == 8
    assert suspects.count("slipped") >= 6
