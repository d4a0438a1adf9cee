"""Batches in processes on this machine, each process one batch at a time; or in this process, for debugging."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import connection, get_context, parent_process
from typing import Any

from adaterm_bench.core.coordinator import Event
from adaterm_bench.core.work import Batch, attempt, describe_loss

PATIENCE = 0.5  # seconds


def count_cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def throttle(tell: Callable[[float], None]) -> Callable[[float], None]:
    """The same, but only every now and then: an experiment may report every step."""
    last = time.monotonic()

    def pace(fraction: float) -> None:
        nonlocal last
        if time.monotonic() - last >= PATIENCE:
            last = time.monotonic()
            tell(float(fraction))

    return pace


class Inline:
    """Runs a batch when it is waited for, in this process, where a debugger sees it."""

    capacity = 1
    interrupts = False

    def __init__(self, device: str) -> None:
        self._device = device
        self._batches: list[Batch] = []

    def submit(self, batch: Batch) -> None:
        """Run it at the next `wait`."""
        self._batches.append(batch)

    def wait(self) -> list[Event]:
        """Run what was submitted."""
        batches, self._batches = self._batches, []
        return [Event(batch, 1.0, attempt(batch, self._device, lambda fraction: None)) for batch in batches]

    def close(self) -> None:
        """Nothing goes on."""


class Processes:
    """Worker processes; one that dies, or had a batch fail, is replaced by a fresh one."""

    interrupts = True

    def __init__(self, workers: int, devices: Sequence[str]) -> None:
        self.capacity = workers
        self._free = [devices[i % len(devices)] for i in range(workers)]  # the devices of workers not yet started
        self._idle: list[_Worker] = []
        self._busy: list[_Worker] = []
        self._threads = max(count_cores() // workers, 1)

    def submit(self, batch: Batch) -> None:
        """Give the batch to an idle worker, or to a new one."""
        worker = self._idle.pop() if self._idle else _Worker(self._free.pop(), self._threads)
        if not worker.process.is_alive():
            worker = _Worker(worker.device, self._threads)
        self._busy.append(worker)
        worker.begin(batch)

    def wait(self) -> list[Event]:
        """What the workers report, and which of them have died."""
        ready = connection.wait([worker.pipe for worker in self._busy], PATIENCE)
        events = []
        for worker in list(self._busy):
            if worker.pipe in ready or not worker.process.is_alive():
                events.append(worker.listen())
                if events[-1].attempt is not None:
                    self._release(worker, succeeded=events[-1].attempt.outcomes is not None)
        return events

    def _release(self, worker: "_Worker", succeeded: bool) -> None:
        self._busy.remove(worker)
        if succeeded:
            self._idle.append(worker)
        else:  # what failed may have left it in a bad state, as an error on a GPU does
            worker.end()
            self._free.append(worker.device)

    def close(self) -> None:
        """End the workers, whatever they are at."""
        workers = [*self._busy, *self._idle]
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            worker.end()
        self._busy, self._idle = [], []


class _Worker:
    """A process, its end of the pipe here, and the batch it is at."""

    batch: Batch

    def __init__(self, device: str, threads: int) -> None:
        context = get_context("spawn")
        self.device = device
        self.pipe, its = context.Pipe()
        # Not a daemon, for an experiment may have processes of its own.
        self.process = context.Process(target=_serve, args=(its, device, threads))
        with _ignore_interrupts():
            self.process.start()
        its.close()  # so that the pipe ends when the worker does

    def begin(self, batch: Batch) -> None:
        self.batch = batch
        with suppress(OSError):  # it has died, as `listen` will find
            self.pipe.send(batch)

    def listen(self) -> Event:
        try:
            if not self.pipe.poll():
                raise EOFError
            message = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(PATIENCE)
            return Event(
                self.batch, attempt=describe_loss(self.batch, self.device, _explain_death(self.process.exitcode))
            )
        if isinstance(message, float):
            return Event(self.batch, message)
        return Event(self.batch, 1.0, message)

    def end(self) -> None:
        self.process.terminate()
        self.process.join(2.0)
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _serve(pipe: Any, device: str, threads: int) -> None:
    """Run batches until there are no more; this is the worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the coordinator too, which ends the workers
    threading.Thread(target=_follow_parent, daemon=True).start()
    chosen = os.environ.setdefault("OMP_NUM_THREADS", str(threads))  # before torch is imported
    os.environ.setdefault("MKL_NUM_THREADS", chosen)  # torch heeds this one more than the other
    with suppress(EOFError, BrokenPipeError):
        while True:
            batch = pipe.recv()
            pipe.send(0.0)
            pipe.send(attempt(batch, device, throttle(pipe.send)))


def _follow_parent() -> None:
    """Die with the coordinator, even one that was killed, instead of working on for nobody."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _explain_death(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        hint = ": by hand, or by the system because memory ran out" if name == "SIGKILL" else ""
        return f"The worker process was killed by {name} (signal {-code}{hint})."
    return f"The worker process ended in the middle of the batch, with exit code {code}."


@contextmanager
def _ignore_interrupts() -> Iterator[None]:
    """What is started here ignores Ctrl-C from its first moment, and prints no traceback of its own."""
    if threading.current_thread() is not threading.main_thread():
        yield  # handlers can be set in the main thread only
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
