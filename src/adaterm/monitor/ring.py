"""The last steps of an optimizer, written down on its device."""

from ctypes import memmove
from math import nan
from sys import byteorder
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from adaterm.engines.base import VERDICT
from adaterm.engines.memory import are_same
from adaterm.optimizer import RobustOptimizer

MORE = VERDICT // 3 + 1  # columns beside those of the tensors


class Rows(NamedTuple):
    """Steps on the host, oldest first: their numbers, what they made of tensors and batches, and their marks."""

    steps: Tensor  # counted from 1
    tensors: Tensor  # steps by distance, trust and dof by tensors
    batches: Tensor  # steps by the numbers of a verdict; NaN if the optimizer does not judge batches
    marks: Tensor  # the number of the last mark before each step; 0 before the first


class Ring:
    """A row for each of the last steps, in one tensor whose rows are overwritten in turn.

    A row has the tensors' distances, trusts and dofs, and three more columns: two for the verdict on the batch; the
    number of the step, the number of the last mark before it, and 0, as integers. Nothing waits for the device, and
    there are as many launches for many tensors as for one.

    Steps are counted on the device, so that a CUDA graph that is replayed writes its rows, and so does a compiled step.
    As long as there was neither, the host knows where a row goes, which saves launches.
    """

    def __init__(self, length: int, tensors: int, device: torch.device, begin: int = 0) -> None:
        self.begin, self.width = begin, tensors  # steps before the first row, and of how many tensors it tells
        self.counted: int | None = begin  # how many steps there were; None if only the device knows
        with torch.inference_mode(False):
            self._rows = torch.full((length, 3, tensors + MORE), nan, device=device)
            self._rows[:, :, -1] = 0.0
            self._numbers = torch.tensor([[begin], [0], [0]], dtype=torch.int32, device=device)
            self._unknown = torch.full((VERDICT,), nan, device=device)
            self._count, self._mark = self._numbers[0], self._numbers[1]
            self._column = self._numbers.view(torch.float32)
        self._on_host = device.type == "cpu"
        self._blocks: list[list[int]] = []  # of the last step
        self._plain = False  # whether they are all tensors in order, and nothing has to be converted
        self._verdict, self._verdict_columns = self._unknown, self._unknown.view(3, -1)
        self._columns: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self._rows.device

    @property
    def nbytes(self) -> int:
        """How much of the device's memory it takes."""
        return self._rows.nbytes

    def mark(self, number: int) -> None:
        """Note that what follows has a mark of this number."""
        if self._on_host:
            memmove(self._mark.data_ptr(), number.to_bytes(4, byteorder), 4)
        else:
            self._mark.fill_(number)

    def write(self, optimizer: RobustOptimizer) -> None:
        """Write down the step that was just taken; one that GradScaler had skipped is a row of NaN."""
        blocks, tables, verdict = optimizer.tell_last_step()
        if not blocks:
            return
        if torch.compiler.is_compiling():
            self.counted = None
            self._write(blocks, tables, verdict)
            return
        if not are_same(blocks, self._blocks):
            positions = [position for block in blocks for position in block]
            types = {(table.dtype, table.device, table.is_contiguous()) for table in tables}
            fitting = types == {(torch.float32, self.device, True)}
            self._blocks, self._plain = blocks, fitting and positions == list(range(self.width))
        if self._rows.is_cuda and torch.cuda.is_current_stream_capturing():
            self.counted = None
        if self.counted is not None:
            self.counted += 1
        verdict = self._unknown if verdict is None else verdict
        if self.counted is None or not self._plain or tables[0].requires_grad or verdict.requires_grad:
            self._write(blocks, tables, verdict)
            return
        if verdict is not self._verdict:  # most engines have one tensor for all verdicts
            self._verdict, self._verdict_columns = verdict, verdict.to(self._rows).view(3, -1)
        parts = [*tables, self._verdict_columns, self._column]
        if self._on_host:
            self._copy_memory(parts, self.counted)
        else:
            self._count.add_(1)
            torch.cat(parts, 1, out=self._rows[self.counted % len(self._rows)])

    def _copy_memory(self, parts: list[Tensor], counted: int) -> None:
        """Write a row on a CPU, where an operation of torch takes as long as a hundredth of a small step."""
        memmove(self._count.data_ptr(), counted.to_bytes(4, byteorder), 4)
        target = self._rows.data_ptr() + counted % len(self._rows) * 12 * (self.width + MORE)
        columns = [(part.data_ptr(), 4 * part.shape[1]) for part in parts]
        for line in range(3):
            for source, size in columns:
                memmove(target, source + line * size, size)
                target += size

    @torch.no_grad()
    def _write(self, blocks: list[list[int]], tables: list[Tensor], verdict: Tensor | None) -> None:
        """Write where the device's count says, whatever there is."""
        positions = tuple([position for block in blocks for position in block])
        tables = [table.to(self._rows) for table in tables]
        table = tables[0] if len(tables) == 1 else torch.cat(tables, dim=1)
        if positions != tuple(range(self.width)):
            table = table.new_full((3, self.width), nan).index_copy_(1, self._find_columns(positions), table)
        verdict = self._unknown if verdict is None else verdict.to(self._rows)
        self._numbers[0].add_(1)
        row = torch.cat([table, verdict.view(3, -1), self._numbers.view(torch.float32)], dim=1)
        self._rows.index_copy_(0, self._numbers[0].long().remainder(len(self._rows)), row[None])

    def _find_columns(self, positions: tuple[int, ...]) -> Tensor:
        """Where to write what these parameters have; the host's copy lives on, as a graph may copy it again."""
        if torch.compiler.is_compiling():
            return torch.tensor(positions, device=self.device)
        if positions not in self._columns:
            on_host = torch.tensor(positions, device="cpu")
            on_host = on_host.pin_memory() if self._rows.is_cuda else on_host
            self._columns[positions] = on_host, on_host.to(self.device, non_blocking=True)
        return self._columns[positions][1]

    def copy_last(self, last: int) -> Tensor:
        """The last so many rows on the host, oldest first; this waits for the device. The next step may overwrite them.

        The number of a row that was not written yet is 0.
        """
        length = len(self._rows)
        last = min(last, length)
        if self.counted is None:
            numbers = self._count + torch.arange(1 - last, 1, device=self.device)
            return self._rows.index_select(0, numbers.remainder(length)).cpu()
        end = self.counted % length + 1
        if last <= end:
            return self._rows[end - last : end].cpu()
        return torch.cat([self._rows[end - last :], self._rows[:end]]).cpu()

    def read(self, last: int) -> Rows:
        """The last so many steps; this waits for the device."""
        rows = self.copy_last(last)
        rows = rows[list_numbers(rows)[:, 0] > 0]
        steps, marks, _ = list_numbers(rows).long().unbind(1)
        return Rows(steps, rows[:, :, :-MORE], rows[:, :, -MORE:-1].flatten(1), marks)

    def fill(self, rows: Rows, mark: int, begin: int) -> None:
        """Hold these rows instead, as many of the last as there is room for, and go on after them, or after `begin`."""
        last = Rows(*(table[-len(self._rows) :].cpu() for table in rows))
        filled = torch.full((len(last.steps), 3, self.width + MORE), nan, device="cpu")
        filled[:, :, : last.tensors.shape[2]] = last.tensors
        known = last.batches.shape[1]  # an older version had fewer
        filled[:, :, -MORE:-1] = pad(last.batches, (0, VERDICT - known), value=nan).view(-1, 3, MORE - 1)
        list_numbers(filled).copy_(torch.stack([last.steps, last.marks, 0 * last.marks], dim=1))
        self._rows.fill_(nan)
        self._rows[:, :, -1] = 0.0
        self._rows[(last.steps % len(self._rows)).to(self.device)] = filled.to(self.device)
        self._mark.fill_(mark)
        self.begin, counted = (int(last.steps[0]) - 1, int(last.steps[-1])) if len(last.steps) else (begin, begin)
        self._count.fill_(counted)
        if self.counted is not None:  # else a graph goes on writing here
            self.counted = counted


def list_numbers(rows: Tensor) -> Tensor:
    """The numbers of steps and of marks, and 0, of rows on the host."""
    return rows.select(2, -1).view(torch.int32)


def count_steps(optimizer: RobustOptimizer) -> int:
    """How many steps an optimizer has taken; this waits for the device."""
    states: list[dict[str, Any]] = list(optimizer.state.values())
    return int(max((float(entry["step"]) for entry in states if "step" in entry), default=0.0))
