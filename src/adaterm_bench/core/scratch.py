"""Where long trials keep what they need to go on after a crash, and what else should stay of them.

Both are folders in the results directory: `checkpoints/`, of which a batch's file goes when it is done, and `kept/`.
"""

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from adaterm_bench.core.files import write_whole

_FOLDER: ContextVar[tuple[Path, str] | None] = ContextVar("folder", default=None)


@contextmanager
def use_folder(out: str, batch: str) -> Iterator[None]:
    """Inside, `save` and `keep` write into a results directory; without one they do nothing."""
    token = _FOLDER.set((Path(out), batch) if out else None)
    try:
        yield
    finally:
        _FOLDER.reset(token)


def save(state: Any) -> None:
    """Keep the state of the batch that runs, in place of what was kept before; tensors and plain data."""
    import torch  # which cleaning up does without

    if (file := _find_checkpoint()) is not None:
        content = io.BytesIO()
        torch.save(state, content)
        write_whole(file, content.getvalue())


def load() -> Any:
    """What was kept last of the batch that runs, or None; a file that is broken counts as none, and is set aside."""
    import torch

    file = _find_checkpoint()
    if file is None or not file.is_file():
        return None
    content = file.read_bytes()
    try:
        return torch.load(io.BytesIO(content), weights_only=True)
    except MemoryError:
        raise
    except Exception as error:
        aside = file.with_suffix(".broken")
        file.rename(aside)
        print(f"{file} cannot be read ({error}): it is now {aside.name}, and its trials start again.", file=sys.stderr)
        return None


def keep(name: str, content: bytes) -> None:
    """Keep a file beside the results for good."""
    if (place := _FOLDER.get()) is not None:
        write_whole(place[0] / "kept" / name, content)


def has_checkpoint(out: str, batch: str) -> bool:
    """Whether an earlier run has left something to go on from."""
    return bool(out) and _name_checkpoint(Path(out), batch).is_file()


def forget(out: str, batch: str) -> None:
    """The batch is done."""
    if out:
        with suppress(OSError):
            _name_checkpoint(Path(out), batch).unlink(missing_ok=True)


def _find_checkpoint() -> Path | None:
    place = _FOLDER.get()
    return None if place is None else _name_checkpoint(*place)


def _name_checkpoint(out: Path, batch: str) -> Path:
    return out / "checkpoints" / f"{batch}.pt"
