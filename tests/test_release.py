"""What would go out: an sdist and a wheel that hold what they should, and work without extras."""

import os
import re
import subprocess
import sys
import tarfile
from email.parser import HeaderParser
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile

import pytest

import adaterm

ROOT = Path(__file__).parents[1]
EXTRAS = {"all", "bench", "cpu", "gpu", "jax"}
"""What users may rely on; the rest is for the project's own tests and experiments."""
TRAIN = """
import sys
for name in ("filelock", "jax", "matplotlib", "numba", "numpy", "optax", "scipy", "tqdm", "triton"):
    sys.modules[name] = None  # as if it were not installed
import torch, adaterm
weights = torch.nn.Linear(3, 1)
optimizer = adaterm.RobustAdamW(weights.parameters(), fused=False)
monitor = adaterm.Monitor(optimizer)
for _ in range(12):
    weights(torch.randn(4, 3)).square().mean().backward()
    optimizer.step()
print(adaterm.__file__, monitor.layers(), optimizer)
"""


def run(*command, **options):
    done = subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True, **options)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder with an sdist, and the wheel that was built from it."""
    for package in ("build", "hatchling", "twine"):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed: pip install 'adaterm[dev]'")
    folder = tmp_path_factory.mktemp("dist")
    run("-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    return folder


@pytest.fixture
def wheel(built):
    (path,) = built.glob("*.whl")
    return path


def read_metadata(wheel):
    with ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        return HeaderParser().parsestr(archive.read(name).decode())


@pytest.mark.slow
def test_a_registry_would_take_it(built):
    files = sorted(built.iterdir())
    assert [file.name for file in files] == [
        f"adaterm-{adaterm.__version__}-py3-none-any.whl",
        f"adaterm-{adaterm.__version__}.tar.gz",
    ]
    assert run("-m", "twine", "check", "--strict", *files).count("PASSED") == 2


@pytest.mark.slow
def test_the_wheel_holds_the_sources_and_nothing_else(wheel):
    sources = {
        path.relative_to(ROOT / "src").as_posix()
        for package in ("adaterm", "adaterm_bench")
        for path in (ROOT / "src" / package).rglob("*")
        if path.suffix in (".py", ".css") or path.name == "py.typed"
    }
    with ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        assert names == sources
        assert {"adaterm/py.typed", "adaterm_bench/py.typed"} <= names
        assert any(name.endswith("licenses/LICENSE") for name in archive.namelist())
    assert wheel.stat().st_size < 1_000_000


@pytest.mark.slow
def test_the_sdist_has_what_the_wheel_is_built_from(built):
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "SECURITY.md"} <= names
    assert not any(name.startswith(("results/", "docs/", "tests/")) for name in names)


@pytest.mark.slow
def test_users_need_torch_alone(wheel):
    metadata = read_metadata(wheel)
    needed = [entry for entry in metadata.get_all("Requires-Dist") if "extra ==" not in entry]
    assert len(needed) == 1
    assert needed[0].startswith("torch>=")
    assert set(metadata.get_all("Provides-Extra")) >= EXTRAS
    assert metadata["Version"] == adaterm.__version__


@pytest.mark.slow
def test_what_was_installed_trains_without_extras(wheel, tmp_path):
    run("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", tmp_path, wheel)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    shown = run("-c", TRAIN, cwd=tmp_path, env=environment)
    assert shown.startswith(str(tmp_path / "adaterm"))
    assert "Engines: reference" in shown


def test_the_version_is_in_one_place():
    """Files that name the version or the oldest torch name the same one."""
    project = (ROOT / "pyproject.toml").read_text()
    assert 'dynamic = ["version"]' in project
    assert re.search(r"^version", (ROOT / "CITATION.cff").read_text(), re.MULTILINE) is None
    assert adaterm.__version__ in (ROOT / "CHANGELOG.md").read_text()
    oldest = re.search(r'dependencies = \["torch>=([\d.]+)"\]', project)[1]
    assert f"torch>={oldest}" in (ROOT / "constraints.txt").read_text()
    assert f"PyTorch {oldest} or newer" in (ROOT / "docs/supported.md").read_text()
    assert f"torch=={oldest}" in (ROOT / ".github/workflows/tests.yml").read_text()
