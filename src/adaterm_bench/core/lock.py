"""One coordinator per results directory."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    from filelock import FileLock, Timeout
except ImportError as error:
    raise ImportError("adaterm-bench needs the extra bench: pip install '.[bench]' in a clone of adaterm") from error

from adaterm_bench.core.store import StoreError


@contextmanager
def hold_lock(folder: Path) -> Iterator[None]:
    """Hold the directory's lock, or raise an error that names its holder.

    The system gives the lock back when its holder dies, so one that a killed process left is simply taken.
    """
    holder = folder / "lock.holder"  # beside the lock, which the next to ask for it empties
    try:
        if folder.is_file():
            raise StoreError(f"Cannot use {folder} for results: it is a file.")
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / "lock", blocking=False)
        lock.acquire()
    except Timeout:
        name = holder.read_text().strip() if holder.is_file() else ""
        raise StoreError(
            f"{folder} is in use by {name or 'another process'}: "
            f"wait for it, end it, or choose another directory with --out."
        ) from None
    except OSError as error:
        raise StoreError(f"Cannot use {folder} for results: {error.strerror}.") from error
    try:
        holder.write_text(f"process {os.getpid()} on {socket.gethostname()}\n")
        yield
    finally:
        lock.release()
