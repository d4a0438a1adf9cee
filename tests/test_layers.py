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
    {"jax_primitives", "torch_primitives", "plain_primitives"},
    {"optax"},
    {"engines.base"},
    {
        "engines.agreement",
        "engines.reference",
        "engines.layout",
        "engines.fused",
        "engines.cpu.intrinsics",
        "engines.cpu.orders",
    },
    {"engines.foreach"},
    {"engines.cpu.primitives", "engines.gpu.case"},
    {"engines.cpu.elements", "engines.gpu.access"},
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
    {"judge", "loss_judge", "monitor.history"},
    {"monitor.alarms", "monitor.drawing", "monitor.findings", "monitor.meter"},
    {"monitor.monitor"},
    {"monitor"},
    {"integrations.huggingface", "integrations.lightning"},
    {"integrations"},
    {""},
]
"""From the lowest up; a module imports from the layers below it only."""
NEED_JAX = {"jax_primitives", "optax"}
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


def test_type_checkers_see_the_public_names():
    """Those that are imported for them are those that are imported when used, each marked as public by its alias."""
    block = next(node for node in ast.parse(MODULES[""].read_text()).body if isinstance(node, ast.If))
    for_checkers = [(node.module, alias.name, alias.asname) for node in block.body for alias in node.names]
    when_used = {f"adaterm.{module}": names for module, names in adaterm._MODULES.items()}
    assert for_checkers == [(module, name, name) for module, names in when_used.items() for name in names]


def test_type_checkers_refuse_other_names(tmp_path):
    api = pytest.importorskip("mypy.api", reason="mypy is not installed: pip install 'adaterm[dev]'")
    program, settings = tmp_path / "program.py", tmp_path / "mypy.ini"
    program.write_text("from adaterm import RobustAdamW, RobustAdmW\nimport adaterm\nadaterm.AdaTrem\n")
    quick = "[mypy-torch.*]\nfollow_imports = skip\n"
    settings.write_text(f"[mypy]\nmypy_path = {SOURCES.parent}\nfollow_imports = silent\n{quick}")
    shown = api.run(["--cache-dir", str(tmp_path), "--config-file", str(settings), str(program)])[0]
    assert '"adaterm" has no attribute "RobustAdmW"' in shown
    assert 'Module has no attribute "AdaTrem"' in shown
    assert "Found 2 errors" in shown


def test_modules_are_imported_when_they_are_used():
    list_imported(
        "import adaterm; adaterm.equations, adaterm.rules, adaterm.options, adaterm.engines, adaterm.optimizers"
    )


@pytest.mark.parametrize("module", [name for name in MODULES if name.isidentifier() and name not in NEED_JAX])
def test_modules_are_attributes(module, monkeypatch):
    monkeypatch.delattr(adaterm, module, raising=False)  # as if nothing had imported it
    assert getattr(adaterm, module).__name__ == f"adaterm.{module}"
