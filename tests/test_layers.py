"""The layout is the design: what may import what, what is public, and what is optional."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import adaterm

SOURCES = Path(adaterm.__file__).parent
LAYERS = [
    {"checks", "equations.primitives", "rounding"},
    {"options", "equations.adaterm", "equations.t_family", "equations.robust_adam"},
    {"equations"},
    {"binding", "rules", "statistics"},
    {"optax", "torch_primitives"},
    {"engines.base"},
    {"engines.agreement", "engines.reference", "engines.layout", "engines.fused", "engines.cpu.intrinsics"},
    {"engines.foreach"},
    {"engines.gpu.case"},
    {"engines.cpu.loops", "engines.gpu.kernels"},
    {"engines.cpu.engine", "engines.gpu.engine"},
    {"engines.cpu", "engines.gpu"},
    {"engines.choice"},
    {"engines.group_step"},
    {"engines.memory"},
    {"engines"},
    {"state"},
    {"optimizer"},
    {"optimizers", "monitor.ring"},
    {"monitor.history"},
    {"monitor.alarms", "monitor.drawing", "monitor.findings"},
    {"monitor.monitor"},
    {"monitor"},
    {"integrations.huggingface", "integrations.lightning"},
    {"integrations"},
    {""},
]
"""From the lowest up; a module imports from the layers below it only."""
OPTIONAL = (
    *("triton", "numba", "jax", "optax", "ray", "mujoco", "pybullet", "gymnasium", "numpy", "matplotlib", "tqdm"),
    *("pandas", "transformers", "lightning"),
)


def module_name(path):
    return ".".join(path.relative_to(SOURCES).with_suffix("").parts).removesuffix("__init__").removesuffix(".")


MODULES = {module_name(path): path for path in SOURCES.rglob("*.py")}


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_every_module_has_its_layer():
    assert set(MODULES) == set().union(*LAYERS)


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_down(module):
    below = set().union(*LAYERS[: next(i for i, layer in enumerate(LAYERS) if module in layer)])
    own = {
        name.removeprefix("adaterm").removeprefix(".")
        for name in imported(MODULES[module])
        if name.startswith("adaterm")
    }
    packages = {"", module, *(module.rsplit(".", count)[0] for count in range(1, module.count(".") + 1))}
    packages |= {name.rpartition(".")[0] for name in below}
    assert {name for name in own if name in MODULES and name not in packages} <= below


def list_imported(program):
    """The packages that a program imports, in a process of its own."""
    listing = f"import sys; {program}; print(*sys.modules)"
    shown = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True).stdout
    return {name.split(".")[0] for name in shown.split()}


def test_importing_needs_torch_alone():
    """None of the optional packages is imported, even where it is installed, except by torch itself."""
    assert not (list_imported("from adaterm import *") - list_imported("import torch")) & set(OPTIONAL)


def test_torch_is_imported_when_it_is_needed():
    assert "torch" not in list_imported("import adaterm.rules, adaterm.binding, adaterm.equations, adaterm.rounding")


def test_public_names():
    assert set(adaterm.__all__) <= set(dir(adaterm))
    assert {getattr(adaterm, name).__name__ for name in adaterm.__all__} == set(adaterm.__all__)
    assert set(adaterm.__all__) == {
        name for name, value in vars(adaterm).items() if getattr(value, "__module__", "").startswith("adaterm.")
    }
    with pytest.raises(AttributeError, match="no attribute 'Adaterm'"):
        adaterm.Adaterm  # noqa: B018
    assert (SOURCES / "py.typed").exists()
