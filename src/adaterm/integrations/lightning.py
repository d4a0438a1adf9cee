"""For Lightning."""

from collections.abc import Callable
from math import inf
from typing import Any

from adaterm.monitor import Monitor

try:
    from lightning import Callback
except ImportError as error:
    raise ImportError(f"this needs {error.name}, which is not installed: pip install lightning") from error


class MonitorCallback(Callback):  # type: ignore[misc]
    """Watches an optimizer of a Trainer: its `monitor` is there from the first step on.

    Args:
        mark: what to call a batch, from the batch and its index; else by epoch and index.
        length: how many steps are remembered.
        optimizer: which of the module's optimizers is watched.

    Numbers go to the trainer's loggers every `log_every_n_steps`, and the history to its checkpoints.
    """

    monitor: Monitor

    def __init__(self, mark: Callable[[Any, int], Any] | None = None, length: int = 10_000, optimizer: int = 0) -> None:
        self._mark, self._length, self._place = mark, length, optimizer
        self._saved: dict[str, Any] | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Forget the history of another run's checkpoint; that of this run's is loaded next."""
        self._saved = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to watch, or go on as the checkpoint did."""
        if hasattr(self, "monitor"):
            self.monitor.remove()
        self._logged = trainer.global_step
        self.monitor = Monitor(trainer.optimizers[self._place], pl_module, self._length)
        if self._saved is not None:
            self.monitor.load_state_dict(self._saved)
        if trainer.gradient_clip_val and trainer.gradient_clip_val < inf:
            by_value = trainer.gradient_clip_algorithm == "value"
            limit = "max_norm" if by_value else f"max_norm={trainer.gradient_clip_val:g}"
            self.monitor.warn_of_clipping(
                f"Trainer clips gradients, by gradient_clip_val={trainer.gradient_clip_val:g},",
                f"Leave that out and pass {limit} to RobustAdamW",
            )

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Mark the batch."""
        named = f"epoch {trainer.current_epoch}, batch {batch_idx}"
        self.monitor.mark(named if self._mark is None else self._mark(batch, batch_idx))

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Log the numbers of the last step, as often as others are."""
        step, every = trainer.global_step, trainer.log_every_n_steps
        if trainer.loggers and every and step % every == 0 and step != self._logged:
            self._logged = step  # which is that of several batches, where gradients are accumulated
            metrics = self.monitor.metrics()
            for logger in trainer.loggers:
                logger.log_metrics(metrics, step=step)

    def state_dict(self) -> dict[str, Any]:
        """The history, for a checkpoint; there is none before training."""
        return self.monitor.state_dict() if hasattr(self, "monitor") else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take a history, for the optimizer that there will be."""
        self._saved = state_dict
