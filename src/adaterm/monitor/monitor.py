"""Watches an optimizer, and tells which batches were bad, since when, in which layers, and how often."""

import csv
from importlib import import_module
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from adaterm.checks import require
from adaterm.monitor.alarms import Alarms
from adaterm.monitor.findings import (
    Aberrant,
    Layer,
    Sample,
    find_aberrant,
    format_findings,
    list_columns,
    list_samples,
    make_plain,
    rank_samples,
    sum_up_layers,
)
from adaterm.monitor.history import History
from adaterm.monitor.meter import Meter
from adaterm.monitor.ring import Ring, Rows, count_steps
from adaterm.optimizer import RobustOptimizer
from adaterm.options import warn_user

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WINDOW = 100  # steps that tell what is usual, for optimizers that have no such option
_MARKS = 8  # that are kept for each step: as many as micro-batches whose gradients are accumulated


class Monitor:
    """Remembers the last steps of an optimizer, from now on; all stays on the device until something is read.

    Args:
        optimizer: one of ours, or a framework's wrapper around it.
        model: its parameter names are used. Without it, they are those given to the optimizer, or group and position.
        length: how many steps are remembered. Each takes 12 bytes of the device's memory for each tensor, and 36 more.

    Examples:
        >>> import torch
        >>> from adaterm import Monitor, RobustAdamW
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Linear(8, 1)
        >>> optimizer = RobustAdamW(model.parameters())
        >>> monitor = Monitor(optimizer, model)
        >>> for step in range(60):
        ...     inputs = torch.randn(16, 8)
        ...     monitor.mark(f"batch {step}")
        ...     optimizer.zero_grad()
        ...     (model(inputs) - (100.0 if step == 50 else 1.0)).square().mean().backward()
        ...     optimizer.step()
        >>> monitor.aberrant(1)[0].mark
        'batch 50'
    """

    def __init__(self, optimizer: Any, model: nn.Module | None = None, length: int = 10_000) -> None:
        while not isinstance(optimizer, RobustOptimizer) and hasattr(optimizer, "optimizer"):
            optimizer = optimizer.optimizer
        if not isinstance(optimizer, RobustOptimizer):
            kind = type(optimizer).__name__
            advice = "watch a BatchJudge beside it; RobustAdamW(dof=inf, threshold=inf) is AdamW, and can be watched"
            advice = "call Monitor(optimizer, model)" if isinstance(optimizer, nn.Module) else advice
            raise TypeError(f"a Monitor watches an optimizer of adaterm, not {kind}: {advice}")
        whole = isinstance(length, Integral) and not isinstance(length, bool)
        require(whole and length >= 1, "length", length, "a whole number of steps to remember, at least 1")
        self.optimizer, self._model, self._length = optimizer, model, length
        if model is not None:
            _warn_of_another_model(model, optimizer)
        self._judged = hasattr(optimizer, "batch_statistics")
        self._marks: dict[int, Any] = {}
        self._mark = self._gathered = 0  # the numbers of the last one, and of the last that is known to all ranks
        self._retired: list[Ring] = []
        self._alarms, self._checked = Alarms(clips=not hasattr(optimizer, "accepts")), 0
        self._begin(count_steps(optimizer))
        self._stop = optimizer.add_watcher(self._observe)

    def _list_params(self) -> list[Tensor]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def _find_device(self) -> torch.device:
        """Where the first parameter is; the CPU if there is none, or none with values."""
        first = [group["params"][0] for group in self.optimizer.param_groups if group["params"]][:1]
        return torch.device("cpu") if not first or first[0].is_meta else first[0].device

    @property
    def _window(self) -> int:
        """How many steps tell what is usual, which may change between two steps."""
        return self.optimizer.rule_of().window or _WINDOW

    def _begin(self, steps: int) -> None:
        """Begin to write into a ring of its own, after so many steps."""
        self._ring = Ring(self._length, len(self._list_params()), self._find_device(), steps)
        self._meter = Meter(self._judged, self._window)

    def _observe(self) -> None:
        width = sum([len(group["params"]) for group in self.optimizer.param_groups])
        if self._ring.width != width or self._ring.device != self._find_device():
            self._move()
        self._ring.write(self.optimizer)

    def _move(self) -> None:
        """Go on in another ring: there are more tensors now, or they are elsewhere."""
        ring, rows = self._ring, self._ring.read(self._length)
        if ring.counted is None:  # a CUDA graph may still write into it
            self._retired.append(ring)
        self._begin(ring.begin)
        self._ring.fill(rows, self._mark, ring.begin)

    def mark(self, batch: Any) -> None:
        """Give the batch of the next step a name: any object, or the indices of its samples.

        Several marks before a step are those of its micro-batches.
        """
        self._mark += 1
        self._marks[self._mark] = batch.detach().clone() if isinstance(batch, Tensor) else batch
        if len(self._marks) > _MARKS * self._length:
            del self._marks[next(iter(self._marks))]
        self._ring.mark(self._mark)

    def gather_marks(self) -> None:
        """Give every rank the marks of all ranks, if each marks its own part of a batch: call it on every rank."""
        fresh = {number: list_samples(mark) for number, mark in self._marks.items() if number > self._gathered}
        parts: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(parts, fresh)
        for number in fresh:
            self._marks[number] = [sample for part in parts for sample in part.get(number, [])]
        self._gathered = self._mark

    def _read(self, last: int | None = None) -> History:
        """The last steps, or all, with warnings of what is wrong with them."""
        history = History(self._ring.read(last or self._length), self._judged, self._window)
        learnt = [parameter.dtype for parameter in self._list_params() if parameter.requires_grad]
        precision = max((torch.finfo(dtype).eps for dtype in learnt), default=0.0)
        self._alarms.check(history, self._name_tensors(), precision)
        return history

    def _name_tensors(self) -> list[str]:
        return name_parameters(self.optimizer.param_groups, self._model)

    def aberrant(self, count: int | None = 10) -> list[Aberrant]:
        """The batches that stood out most, the worst first.

        Those with gradients that are not finite come first, then those that were excluded or have a score of 3 or more,
        then the rest; each of these by score. None gives all: `[batch.mark for batch in monitor.aberrant(None) if
        batch.trust < 0.5]` are those excluded. These are only ranks; `table` lists only what stood out.
        """
        return find_aberrant(self._read(), self._name_tensors(), self._marks, count)

    def aberrant_samples(self, count: int | None = 10) -> list[Sample]:
        """The marked samples whose batches had the highest scores, again and again; None gives all.

        A mark that is no list, array or tensor of indices counts as one sample: a shard, for instance.
        """
        return rank_samples(self._read(), self._marks)[:count]

    def layers(self) -> dict[str, Layer]:
        """What became of each tensor's gradients, by its name."""
        return sum_up_layers(self._read(), self._name_tensors())

    def metrics(self, prefix: str = "adaterm/") -> dict[str, float]:
        """Numbers of the last step, and the share of the window that was excluded, for any logger.

        What is not known yet is left out. This waits for one small copy from the device.
        """
        window = self._window
        if self._meter.window != window:
            self._meter = Meter(self._judged, window)
        needed, counted = self._meter.needed, self._ring.counted
        fresh = needed if counted is None else min(needed, counted - self._meter.step)
        if fresh > 0:
            self._meter.take(self._ring.copy_last(fresh))
        part = self._meter.step // window
        if part != self._checked:  # no run of half a window is missed
            self._checked = part
            self._read(3 * window)
        return self._meter.list_metrics(prefix)

    def table(self, count: int = 10) -> str:
        """The worst of the batches that stood out, in the order of `aberrant`, and the least trusted tensors."""
        history, names = self._read(), self._name_tensors()
        title, clipped = type(self.optimizer).__name__, self._alarms.has_seen_clipping
        return format_findings(history, names, self._marks, count, title, clipped)

    def plot(self, path: str | Path | None = None) -> "Figure":
        """Draw the level of each batch, with those excluded, and the trust in layers; save it if a path is given."""
        from adaterm.monitor.drawing import draw

        figure = draw(self._read(), self._name_tensors(), self._judged)
        if path is not None:
            figure.savefig(path)
        return figure

    def columns(self) -> dict[str, list[Any]]:
        """All steps by column: their numbers, marks and batches, and the trust and the distance of each tensor."""
        return list_columns(self._read(), self._name_tensors(), self._marks)

    def to_csv(self, path: str | Path) -> None:
        """Write the columns into a file, a row for each step."""
        columns = self.columns()
        with Path(path).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([columns, *zip(*columns.values(), strict=True)])

    def to_pandas(self) -> Any:
        """The columns as a data frame, by step."""
        try:
            pandas = import_module("pandas")
        except ImportError as error:
            raise ImportError("to_pandas needs pandas, which is not installed: pip install pandas") from error
        return pandas.DataFrame(self.columns()).set_index("step")

    def state_dict(self) -> dict[str, Any]:
        """The history and its marks, for a checkpoint: what is not of numbers, text, lists and dicts becomes text."""
        marks = {number: make_plain(mark) for number, mark in self._marks.items()}
        rows = self._ring.read(self._length)._asdict()
        return {"rows": rows, "begin": self._ring.begin, "marks": marks, "mark": self._mark}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the history of a checkpoint, as far back as there is room for."""
        rows = Rows(**state["rows"])
        if rows.tensors.shape[2] != self._ring.width:
            raise ValueError(
                f"this is the history of {rows.tensors.shape[2]} tensors, and the optimizer has {self._ring.width}: "
                "load it into a Monitor of the optimizer that it was saved with"
            )
        self._marks, self._mark, self._gathered = dict(state["marks"]), state["mark"], 0
        self._meter = Meter(self._judged, self._window)
        self._ring.fill(rows, self._mark, state["begin"])

    def warn_of_clipping(self, what: str, remedy: str) -> None:
        """Say, once, that a framework clips gradients before the optimizer judges batches by them, if it does judge."""
        if self._judged:
            self._alarms.warn_of_clipping(what, remedy)

    @property
    def nbytes(self) -> int:
        """How much of the device's memory the history takes."""
        return sum(ring.nbytes for ring in (self._ring, *self._retired))

    def __repr__(self) -> str:
        room = f"room for {self._length:,} steps of {self._ring.width} tensors, {self.nbytes / 1e6:.1f} MB"
        return f"{type(self).__name__}({type(self.optimizer).__name__}: {room} on {self._ring.device})"

    def remove(self) -> None:
        """Stop watching."""
        self._stop()
        self._stop = lambda: None


def _warn_of_another_model(model: nn.Module, optimizer: RobustOptimizer) -> None:
    """Say so if the optimizer trains nothing of the model; master weights of it have names that the optimizer knows."""
    groups, own = optimizer.param_groups, dict(model.named_parameters())
    trained = {id(parameter) for group in groups for parameter in group["params"]}
    named = {name for group in groups for name in group.get("param_names", ())}
    if not trained & set(map(id, own.values())) and not named & set(own):
        warn_user(
            f"the optimizer trains no parameter of this {type(model).__name__}, and a Monitor takes names from the "
            "model that its optimizer trains: give it that one, and make the optimizer after to_empty or fully_shard"
        )


def name_parameters(groups: list[dict[str, Any]], model: nn.Module | None) -> list[str]:
    """Names from the model, or those that the optimizer was given if each has another, or group and position."""
    known = {} if model is None else {id(parameter): name for name, parameter in model.named_parameters()}
    given = [name for group in groups for name in group.get("param_names", ())]
    params = [id(parameter) for group in groups for parameter in group["params"]]
    positions = [f"{number}.{index}" for number, group in enumerate(groups) for index in range(len(group["params"]))]
    names = given if len(set(given)) == len(params) else positions
    named = [known.get(parameter, name) for parameter, name in zip(params, names, strict=True)]
    return [name.replace("_orig_mod.", "").removeprefix("module.") for name in named]  # of torch.compile and DDP
