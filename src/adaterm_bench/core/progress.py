"""Live progress: one line that changes in a terminal, and elsewhere a plain line now and then."""

import shutil
import sys
import time
from typing import TextIO

TERMINAL, PLAIN = 0.2, 10.0  # seconds between two lines
SOON = 60.0  # seconds after which there is an estimate of the time that is left


class Display:
    """Shows how many trials are done, running and failed, and when the rest will be."""

    def __init__(self, total: int, before: int = 0, stream: TextIO | None = None) -> None:
        self.total, self.before = total, float(before)  # trials' worth that was done before
        self.done, self.running, self.failed = before, 0, 0
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self._begun = time.monotonic()
        self._shown = float("-inf")

    def show(self, partly: float = 0.0, at_once: bool = False) -> None:
        """Show the numbers, if it is time; `partly` is how many trials' worth of the running ones is done."""
        now = time.monotonic()
        if not at_once and now - self._shown < (TERMINAL if self._live else PLAIN):
            return
        self._shown = now
        line = self.line(partly, now - self._begun)
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(f"\r{line[:width]}\x1b[K")
        else:
            self._stream.write(line + "\n")
        self._stream.flush()

    def say(self, text: str) -> None:
        """A line that stays."""
        self._stream.write(("\r\x1b[K" if self._live else "") + text + "\n")
        self._stream.flush()
        if self._live:
            self.show(at_once=True)

    def close(self) -> None:
        """The last numbers, which stay."""
        self.show(at_once=True)
        if self._live:
            self._stream.write("\n")
            self._stream.flush()

    def line(self, partly: float, seconds: float) -> str:
        """The numbers as text."""
        parts = [f"{self.done}/{self.total} trials done", f"{self.running} running"]
        if self.failed:
            parts.append(f"{self.failed} failed")
        worked = self.done + self.failed - self.before + partly
        left = self.total - self.done - self.failed - partly
        if left > 0 and (
            worked > 0.02 * (worked + left) or (worked > 0 and seconds > SOON)
        ):  # else it mostly starts up
            parts.append(f"about {format_duration(seconds / worked * left)} left")
        else:
            parts.append(f"{format_duration(seconds)} so far")
        return ", ".join(parts)


def format_duration(seconds: float) -> str:
    """A time in its two largest units."""
    whole = round(seconds)
    for size, unit, smaller, rest in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // smaller} {rest}"
    return f"{whole} s"
