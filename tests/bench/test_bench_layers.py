"""The suite stands on the library and its folders are layers: imports point one way, and each loads what it needs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import adaterm
import adaterm_bench
from adaterm_bench.core.registry import EXPERIMENTS

ROOT = Path(adaterm_bench.__file__).parent
LAYERS = {
    "core": set(),
    "reporting": {"core"},
    "steppers": set(),
    "equations": set(),
    "methods": {"core", "equations", "steppers"},
    "models": {"core", "methods", "steppers"},
    "datasets": {"core", "models"},
    "arena": {"core", "equations", "reporting", "methods"},
    "experiments": {"core", "reporting", "steppers", "methods", "models", "datasets", "arena"},
    "cli_run": {"core", "methods"},
    "cli": {"core", "reporting", "datasets", "cli_run"},
}
"""What the modules of a folder, or a module beside the folders, may import of the rest."""


def imports(path):
    """The modules that a file imports, at its top or inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def layer(parts):
    return parts[0].removesuffix(".py")


def loaded(code, *modules):
    """Which of the modules a fresh process has loaded after running the code."""
    listing = f"import sys\n{code}\nprint(*(it for it in {modules!r} if it in sys.modules))"
    return subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.parametrize("name", LAYERS)
def test_imports_point_one_way(name):
    files = [ROOT / f"{name}.py"] if (ROOT / f"{name}.py").is_file() else list((ROOT / name).rglob("*.py"))
    assert files
    for path in files:
        for module in imports(path):
            package, _, rest = module.partition(".")
            if package == "adaterm_bench" and rest:
                assert layer(rest.split(".")) in {name, *LAYERS[name]}, f"{path} imports {module}"


def test_every_module_is_in_a_layer():
    found = {layer(path.relative_to(ROOT).parts) for path in ROOT.rglob("*.py")}
    assert found - {"__init__", "__main__"} == set(LAYERS)


def test_experiments_know_each_other_only_where_one_is_a_variant_of_another():
    pairs = set()
    for path in (ROOT / "experiments").rglob("*.py"):
        for module in imports(path):
            if module.startswith("adaterm_bench.experiments."):
                pairs.add((path.parent.name, module.split(".")[2]))
    variants = {("batch_size", "regression"), ("images", "classification")}
    assert {pair for pair in pairs if pair[0] != pair[1]} == variants


def test_the_library_does_not_know_the_suite():
    for path in Path(adaterm.__file__).parent.rglob("*.py"):
        assert not [module for module in imports(path) if module.split(".")[0] == "adaterm_bench"], path


def test_reporting_and_the_machinery_need_no_torch():
    files = [*(ROOT / "reporting").glob("*.py"), *(ROOT / "core").rglob("*.py"), ROOT / "cli.py"]
    names = [".".join(["adaterm_bench", *path.relative_to(ROOT).with_suffix("").parts]) for path in files]
    code = "\n".join(f"import {name.removesuffix('.__init__')}" for name in names)
    assert loaded(code, "torch", "matplotlib") == []


def test_naming_an_experiment_imports_no_other_and_draws_nothing():
    name = "regression"
    others = [f"adaterm_bench.{target.partition(':')[0]}" for it, target in EXPERIMENTS.items() if it != name]
    code = f"from adaterm_bench.core.registry import choose\nassert choose([{name!r}])[0].experiment.name == {name!r}"
    assert loaded(code, "matplotlib", *others) == []


def test_the_table_names_what_the_folders_hold():
    assert {path.parent.name for path in (ROOT / "experiments").glob("*/experiment.py")} == set(EXPERIMENTS)
    assert all((ROOT / "experiments" / name / "report.py").is_file() for name in EXPERIMENTS)


def test_public_names_are_there():
    for name in adaterm_bench.__all__:
        assert getattr(adaterm_bench, name).__name__ if name != "PAPER_METHODS" else adaterm_bench.PAPER_METHODS
    with pytest.raises(AttributeError, match="nothing"):
        _ = adaterm_bench.nothing
