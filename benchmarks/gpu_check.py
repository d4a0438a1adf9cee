"""Check on a CUDA device what a CPU cannot show, and write the findings to results/gpu_check/.

    python benchmarks/gpu_check.py --jobs 8   # needs torch and the package only

No step after the first waits for the device (torch's sync debug mode raises if one does), a CUDA graph replays what
eager steps do, also between them, the engines agree in every precision, and repeat themselves bit for bit. The fused
engine launches two kernels (four where it judges batches) and copies one table however many tensors there are, needs no
more memory than fused Adam, and takes a tensor of more than 2^31 elements; foreach launches as many kernels for 30
tensors as for one (torch splits longer lists: those counts are only reported) and stays within two scratch lists.
torch.compile makes one graph that a new learning rate does not break, GradScaler skips bad steps, and stochastic
rounding keeps what plain bfloat16 loses. Ranks that share parameters follow a single process.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from gpu_checks.agreement import (
    changes_are_noticed,
    complex_beside_real,
    devices_agree,
    engines_agree,
    huge_tensor,
    rounding,
    runs_repeat,
    shards_follow,
    state_moves_between_devices,
)
from gpu_checks.costs import few_kernels, few_kernels_of_a_monitor, memory
from gpu_checks.graphs import compiles, graphs_last, graphs_replay, monitor_watches, no_synchronisation, scaler_skips
from gpu_checks.subjects import Check
from provenance import provenance

CHECKS = (
    huge_tensor,
    no_synchronisation,
    engines_agree,
    changes_are_noticed,
    complex_beside_real,
    devices_agree,
    runs_repeat,
    graphs_replay,
    graphs_last,
    monitor_watches,
    state_moves_between_devices,
    few_kernels,
    few_kernels_of_a_monitor,
    memory,
    rounding,
    compiles,
    scaler_skips,
    shards_follow,
)
ALONE = (huge_tensor, few_kernels, few_kernels_of_a_monitor, memory)
"""They need the whole device, or measure it."""


def run_check(check: Check) -> tuple[dict[str, Any], list[str]]:
    """What a check finds, and why it failed if it did."""
    findings: dict[str, Any] = {}
    try:
        for name, value in check():
            print(f"{name}: {value}", flush=True)
            findings[name] = value
    except Exception as error:  # the others go on
        print(f"FAILED {check.__name__}: {error}", flush=True)
        return findings, [f"{check.__name__}: {str(error).partition(chr(10))[0]}"]  # the rest is a trace
    return findings, []


def run_apart(name: str) -> tuple[dict[str, Any], list[str]]:
    """The same in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.run([sys.executable, __file__, "--only", name, "--out", folder], check=False)
        file = Path(folder) / "gpu_check.json"
        if not file.is_file():
            return {}, [f"{name}: its process ended with code {process.returncode}"]
        record = json.loads(file.read_text())
    return record["findings"], record["failed"]


class Record:
    """All that is found, in a file that is written after every check: one that is stopped loses no other."""

    def __init__(self, file: Path, planned: list[str]) -> None:
        self.file, self.findings, self.failed = file, dict[str, Any](), list[str]()
        self.missing = list(planned)
        self._write()

    def add(self, name: str, outcome: tuple[dict[str, Any], list[str]]) -> None:
        """Add a check's findings and failures."""
        self.findings |= outcome[0]
        self.failed += outcome[1]
        self.missing.remove(name)
        self._write()

    def _write(self) -> None:
        record = {"findings": self.findings, "failed": self.failed, "not finished": self.missing}
        self.file.parent.mkdir(parents=True, exist_ok=True)
        whole = record | provenance(torch.cuda.get_device_name())
        self.file.write_text(json.dumps(whole, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/gpu_check"))
    parser.add_argument("--only", nargs="+", choices=[check.__name__ for check in CHECKS], help="default: all")
    parser.add_argument(
        "--jobs", type=int, default=1, help="checks at a time; those that measure run alone, at the end"
    )
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("gpu_check needs a CUDA device; there is none")
    chosen = {check.__name__: check for check in CHECKS if not args.only or check.__name__ in args.only}
    record = Record(args.out / "gpu_check.json", list(chosen))
    if args.jobs > 1:
        with ThreadPoolExecutor(args.jobs) as pool:
            together = {pool.submit(run_apart, name): name for name, check in chosen.items() if check not in ALONE}
            for future in as_completed(together):
                record.add(together[future], future.result())
        chosen = {name: check for name, check in chosen.items() if check in ALONE}
    for name, check in chosen.items():
        record.add(name, run_check(check))
    sys.exit(bool(record.failed))


if __name__ == "__main__":
    main()
