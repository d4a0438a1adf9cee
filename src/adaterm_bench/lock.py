"""One coordinator per results directory."""

import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from adaterm_bench.store import StoreError


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the directory's lock, or raise an error that names its holder.

    The system gives the lock back when its holder dies, so one that a killed process left is simply taken.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / "lock").open("a+")
    except OSError as error:
        raise StoreError(f"Cannot use {folder} for results: {error.strerror}.") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise StoreError(f"{folder} is on a file system without locks ({error.strerror}).") from error
            file.seek(0)
            raise StoreError(
                f"{folder} is in use by {file.read().strip() or 'another process'}: "
                f"wait for it, end it, or choose another directory with --out."
            ) from None
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield
