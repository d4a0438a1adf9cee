"""`adaterm-bench run` on the toy experiment, in a process of its own, and what it leaves."""

import re
import subprocess
import sys
import time
from pathlib import Path

from adaterm_bench.core.store import Store

TOY = str(Path(__file__).with_name("toy.py"))
PATIENCE = 60  # seconds


def read_report(folder):
    """A report's Markdown: the first page, and then those of its sections in their order."""
    contents = (folder / "report.md").read_text()
    pages = dict.fromkeys(re.findall(r"\]\((pages/.*?\.md)\)", contents))
    return "\n".join([contents, *((folder / page).read_text() for page in pages)])


class Bench:
    """A folder with results and with a file for every trial that ran."""

    def __init__(self, folder):
        self.folder = folder
        self.out, self.log = folder / "out", folder / "log"
        self.log.mkdir()

    def words(self, *words, methods=("steady",), workers=2):
        fixed = ["--log", self.log, "--out", self.out, "--workers", workers, "--methods", *methods]
        return [str(it) for it in [sys.executable, "-m", "adaterm_bench", "run", TOY, *fixed, *words]]

    def start(self, *words, methods=("steady",), workers=2, **options):
        """The process, whose output is read as text."""
        words = self.words(*words, methods=methods, workers=workers)
        pipe = subprocess.PIPE
        return subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True, cwd=self.folder, **options)

    def run(self, *words, methods=("steady",), workers=2, **options):
        """Exit code and output, errors last."""
        process = self.start(*words, methods=methods, workers=workers, **options)
        out, err = process.communicate(timeout=PATIENCE)
        return process.returncode, out + err

    def runs(self):
        """How often each trial was executed, by key."""
        return {key: len(pids) for key, pids in self.pids().items()}

    def pids(self):
        """The processes that executed each trial, by key."""
        return {path.name.split("-")[-1]: [int(it) for it in path.read_text().split()] for path in self.log.iterdir()}

    def until_done(self, number):
        """Wait until so many trials are done, and say which."""
        return until(lambda: len(found := Store(self.out).done()) >= number and found)


def until(condition, patience=PATIENCE):
    """Wait until something holds."""
    deadline = time.monotonic() + patience
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def command(*words, **options):
    """Exit code and output of `adaterm-bench`, errors last."""
    words = [sys.executable, "-m", "adaterm_bench", *map(str, words)]
    found = subprocess.run(words, capture_output=True, text=True, check=False, timeout=PATIENCE, **options)
    return found.returncode, found.stdout + found.stderr
