"""Where a result comes from."""

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = (
    *("adaterm", "torch", "numpy", "numba", "triton", "ray"),
    *("gymnasium", "mujoco", "pybullet", "pybullet-envs-gymnasium", "stable-baselines3"),
)


@cache
def commit() -> str:
    """The commit of the sources: from ADATERM_COMMIT where they were copied without their history."""
    if "ADATERM_COMMIT" in os.environ:
        return os.environ["ADATERM_COMMIT"]
    here = Path(__file__).parent

    def git(*words: str) -> str:
        try:
            return subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            return ""

    if not git("ls-files", "__init__.py"):  # installed, perhaps inside the repository of something else
        return "unknown"
    return git("rev-parse", "HEAD") + (" with changes" if git("status", "--porcelain", "--", "..") else "")


@cache
def versions() -> dict[str, str]:
    """Of Python and of the packages that may decide a result, as far as they are installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def device_name(device: str) -> str:
    """The device with the name of its hardware, which for a GPU only torch knows, where it is loaded."""
    torch = sys.modules.get("torch")
    if device.startswith("cuda") and torch is not None and torch.cuda.is_available():
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return f"{device} ({platform.machine()})" if device == "cpu" else device


def provenance(device: str, origin: dict[str, Any], seconds: float) -> dict[str, Any]:
    """What goes with every result; `origin` holds the commit and the command, which only the coordinator knows."""
    return {
        **origin,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device_name(device),
        "seconds": round(seconds, 3),
        "versions": versions(),
    }
