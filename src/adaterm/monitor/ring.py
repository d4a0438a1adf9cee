"""The last steps of an optimizer, written down on its device."""

from ctypes import c_int64, memmove
from math import nan
from typing import Any, NamedTuple

import torch
from torch import Tensor

from adaterm.optimizer import RobustOptimizer


class Rows(NamedTuple):
    """Steps on the host, oldest first: their numbers, what they made of tensors and batches, and their marks."""

    steps: Tensor  # counted from 1
    tensors: Tensor  # steps by distance, trust and dof by tensors
    batches: Tensor  # steps by level, z-score and trust; NaN if the optimizer does not judge batches
    marks: Tensor  # the number of the last mark before each step; 0 before the first


class Ring:
    """A row for each of the last steps, in tensors that are overwritten in turn.

    Where the next row goes is counted on the device: a CUDA graph that is replayed writes its rows, and so does a
    compiled step. Nothing waits for the device, and there are as many launches for many tensors as for one.
    """

    def __init__(self, length: int, tensors: int, device: torch.device, judges: bool, begin: int = 0) -> None:
        self.begin = begin  # steps before the first row
        self._judges = judges
        with torch.inference_mode(False):
            self._tensors = torch.full((length, 3, tensors), nan, device=device)
            self._batches = torch.full((length, 3), nan, device=device)
            self._marks = torch.zeros(length, dtype=torch.int64, device=device)
            self._mark = torch.zeros(1, dtype=torch.int64, device=device)
            self._count = torch.full((1,), begin, device=device)
            self._unknown = torch.full((3,), nan, device=device)
        self._on_host = device.type == "cpu"
        if self._on_host:  # the memory of the tensors, as torch's operations cost more than all the rest
            numbers = self._count, self._mark
            self._host_count, self._host_mark = (c_int64.from_address(number.data_ptr()) for number in numbers)
            self._host_marks = (c_int64 * length).from_address(self._marks.data_ptr())
        self._every = tuple(range(tensors))
        self._columns: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}

    @property
    def width(self) -> int:
        """Of how many tensors it tells."""
        return len(self._every)

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self._tensors.device

    @property
    def nbytes(self) -> int:
        """How much of the device's memory it takes."""
        return self._tensors.nbytes + self._batches.nbytes + self._marks.nbytes

    def mark(self, number: int) -> None:
        """Note that what follows has a mark of this number."""
        if self._on_host:
            self._host_mark.value = number
        else:
            self._mark.fill_(number)

    def write(self, optimizer: RobustOptimizer) -> None:
        """Write down the step that was just taken; one that GradScaler had skipped is a row of NaN."""
        positions, tables, verdict = optimizer.tell_last_step()
        if not positions:
            return
        if torch.compiler.is_compiling() or not self._on_host:
            self._write(positions, tables, verdict)
            return
        verdict = self._unknown if verdict is None else verdict
        plain = all(each.is_cpu and each.dtype is torch.float32 and each.is_contiguous() for each in (*tables, verdict))
        if plain and len(tables) == 1 and positions == self._every:
            self._write_on_host(tables[0], verdict)
        else:
            self._write(positions, tables, verdict)

    def _write_on_host(self, table: Tensor, verdict: Tensor) -> None:
        """Copy memory: on a CPU, a few small operations of torch would take as long as a hundredth of a small step."""
        slot = self._host_count.value % len(self._host_marks)
        memmove(self._tensors.data_ptr() + slot * table.nbytes, table.data_ptr(), table.nbytes)
        if self._judges:
            memmove(self._batches.data_ptr() + slot * 12, verdict.data_ptr(), 12)
        self._host_marks[slot] = self._host_mark.value
        self._host_count.value += 1

    @torch.no_grad()
    def _write(self, positions: tuple[int, ...], tables: list[Tensor], verdict: Tensor | None) -> None:
        tables = [table.to(self._tensors) for table in tables]
        row = tables[0] if len(tables) == 1 else torch.cat(tables, dim=1)
        if positions != self._every:
            row = torch.full_like(self._tensors[0], nan).index_copy_(1, self._find_columns(positions), row)
        slot = self._count.remainder(len(self._tensors))
        self._tensors.index_copy_(0, slot, row[None])
        if self._judges:
            batch = self._unknown if verdict is None else verdict[:3].to(self._batches)
            self._batches.index_copy_(0, slot, batch[None])
        self._marks.index_copy_(0, slot, self._mark)
        self._count.add_(1)

    def _find_columns(self, positions: tuple[int, ...]) -> Tensor:
        """Where to write what these parameters have; the host's copy lives on, as a graph may copy it again."""
        if torch.compiler.is_compiling():
            return torch.tensor(positions, device=self.device)
        if positions not in self._columns:
            on_host = torch.tensor(positions, device="cpu")
            on_host = on_host.pin_memory() if self._tensors.is_cuda else on_host
            self._columns[positions] = on_host, on_host.to(self.device, non_blocking=True)
        return self._columns[positions][1]

    def read(self, last: int) -> Rows:
        """The last so many steps; this waits for the device."""
        length = len(self._tensors)
        numbers = self._count + torch.arange(-min(last, length), 0, device=self.device)
        slots = numbers.remainder(length)
        tables = [table.index_select(0, slots).cpu() for table in (self._tensors, self._batches, self._marks)]
        numbers = numbers.cpu()
        written = numbers >= self.begin
        return Rows(numbers[written] + 1, *(table[written] for table in tables))

    def fill(self, rows: Rows, mark: int) -> None:
        """Take over rows, as many of the last as there is room for, and go on after them."""
        last = Rows(*(table[-len(self._tensors) :] for table in rows))
        slots = ((last.steps - 1) % len(self._tensors)).to(self.device)
        self._tensors[slots, :, : last.tensors.shape[2]] = last.tensors.to(self.device)
        self._batches[slots] = last.batches.to(self.device)
        self._marks[slots] = last.marks.to(self.device)
        self._mark.fill_(mark)
        if len(last.steps):
            self._count.fill_(last.steps[-1])
            self.begin = int(last.steps[0]) - 1


def count_steps(optimizer: RobustOptimizer) -> int:
    """How many steps an optimizer has taken; this waits for the device."""
    states: list[dict[str, Any]] = list(optimizer.state.values())
    return int(max((float(entry["step"]) for entry in states if "step" in entry), default=0.0))
