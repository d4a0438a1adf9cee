"""Where a result comes from: the command, commit, versions, device and date, of experiments and benchmarks alike."""

import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = (
    *("adaterm", "torch", "numpy", "numba", "triton", "ray", "jax", "jaxlib", "optax", "flax"),
    *("gymnasium", "mujoco", "pybullet", "pybullet-envs-gymnasium", "stable-baselines3"),
)
SOURCES = ("src", "benchmarks", "examples")  # where an uncommitted change may change a result
VARIABLE = "ADATERM_COMMIT"


@cache
def find_commit() -> str:
    """The commit of the sources: from ADATERM_COMMIT where they were copied without their history."""
    if VARIABLE in os.environ:
        return os.environ[VARIABLE]
    package = Path(__file__).parents[1]
    if not _git(package, "ls-files", "__init__.py"):  # installed, perhaps inside the repository of something else
        return "unknown"
    root = Path(_git(package, "rev-parse", "--show-toplevel"))
    changed = _git(root, "status", "--porcelain", "--", *SOURCES)
    return _git(root, "rev-parse", "HEAD") + (" with changes" if changed else "")


def find_command() -> str:
    """What was typed to start this process, as far as Python knows."""
    module = getattr(sys.modules["__main__"], "__spec__", None)
    start = [sys.argv[0]] if module is None else ["-m", module.name.removesuffix(".__main__")]
    return shlex.join(["python", *start, *sys.argv[1:]])


@cache
def find_versions() -> dict[str, str]:
    """Of Python and of the packages that may decide a result, as far as they are installed."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def name_device(device: str) -> str:
    """The device with the name of its hardware, which for a GPU only torch knows, where it is loaded."""
    torch = sys.modules.get("torch")
    if device.startswith("cuda") and torch is not None and torch.cuda.is_available():
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return f"{device} ({platform.machine()})" if device == "cpu" else device


def describe_run(device: str, command: str = "", commit: str = "", **more: Any) -> dict[str, Any]:
    """What goes with every result; a worker is given the command and the commit, which only its coordinator knows."""
    return {
        "command": command or find_command(),
        "commit": commit or find_commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": name_device(device),
        "versions": find_versions(),
        **more,
    }


def _git(folder: Path, *words: str) -> str:
    try:
        return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
