"""Where a result comes from."""

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import torch

import adaterm


def commit() -> str:
    """The commit of the sources: from ADATERM_COMMIT where they were copied without their history."""
    if "ADATERM_COMMIT" in os.environ:
        return os.environ["ADATERM_COMMIT"]

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], capture_output=True, text=True, check=False).stdout.strip()

    changed = git("status", "--porcelain", "--", "src", "benchmarks", "examples")
    return (git("rev-parse", "HEAD") or "unknown") + (" with changes" if changed else "")


def provenance(device: str) -> dict[str, Any]:
    """Versions, device, commit, command and date, for a result file."""
    return {
        "command": " ".join(["python", *sys.argv]),
        "commit": commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device,
        "versions": {
            "adaterm": adaterm.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            **{name: version(name) for name in ("triton", "numba") if find_spec(name)},
        },
    }
