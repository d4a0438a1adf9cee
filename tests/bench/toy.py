"""An experiment that does nothing but what the tests of the machinery need: wait, fail, die, and say that it ran."""

import os
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from adaterm_bench.core.experiment import Experiment, grid, setting
from adaterm_bench.core.section import Section


@dataclass(frozen=True)
class Toy(Experiment):
    """Every execution of a trial adds a line with the process to a file; what a method does is in its name."""

    name: ClassVar[str] = "toy"
    title: ClassVar[str] = "Nothing in particular"
    version: ClassVar[int] = 1
    methods: ClassVar[tuple[str, ...]] = ("steady", "pair", "fails", "dies", "leaves", "bulky", "strange")
    presets: ClassVar[dict[str, dict[str, Any]]] = {"smoke": {"seeds": 1}, "quick": {}, "paper": {"seeds": 5}}

    seeds: int = grid(3, "number of seeds")
    log: str = grid("", "folder of the files that executions add to")
    sleep: float = grid(0.0, "seconds that a trial takes")
    failures: int = grid(1, "how often a trial fails, or dies, before it succeeds")
    level: float = setting(1.0, "decides results, 100 % of them")
    widths: tuple[int, ...] = setting((1, 2), "is a tuple")

    def conditions(self):
        return [{"noise": 0.5}]

    def together(self, trial):
        return trial.method if trial.method == "pair" else trial.key

    def run(self, trials, device, progress):
        for trial in trials:
            self._one(trial, progress)
        if trials[0].method == "strange":
            return [{"value": object()} for _ in trials]
        draw = random.Random(0)
        values = [draw.random() for _ in range(20_000)] if trials[0].method == "bulky" else [float("nan")]
        threads = [os.environ.get("OMP_NUM_THREADS"), os.environ.get("MKL_NUM_THREADS")]
        return [{"value": self.level * trial.seed, "list": values, "threads": threads} for trial in trials]

    def _one(self, trial, progress):
        runs = Path(self.log) / f"{trial.method}-{trial.seed}-{trial.key}"
        with runs.open("a") as file:
            file.write(f"{os.getpid()}\n")
        for step in range(10):
            time.sleep(self.sleep / 10)
            progress(step / 10)
        if len(runs.read_text().splitlines()) <= self.failures:
            if trial.method == "fails":
                raise RuntimeError(f"seed {trial.seed} fails on purpose")
            if trial.method == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            if trial.method == "leaves":
                os._exit(7)

    def section(self, results):
        return Section(self.title, f"{len(results)} results at level {self.level}, widths {self.widths!r}")
