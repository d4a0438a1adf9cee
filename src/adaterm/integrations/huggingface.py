"""For Hugging Face Trainer."""

from math import inf
from pathlib import Path
from typing import Any

import torch

from adaterm.monitor import Monitor

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise ImportError(
        f"this needs {error.name}, which is not installed: pip install transformers accelerate"
    ) from error

FILE = "monitor.pt"


class MonitorCallback(TrainerCallback):  # type: ignore[misc]
    """Watches the optimizer of a Trainer: its `monitor` is there from the first step on.

    Numbers go to the logs whenever the loss does, and the history to the checkpoints, from which it resumes.
    """

    monitor: Monitor

    def __init__(self, length: int = 10_000) -> None:
        self._length = length

    def attach(self, trainer: Any) -> "MonitorCallback":
        """Become the first callback of a trainer, so that callbacks that report logs also report our numbers."""
        trainer.callback_handler.callbacks.insert(0, self)
        return self

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin to watch, or go on as the checkpoint did."""
        self.monitor = Monitor(kwargs["optimizer"], kwargs["model"], self._length)
        saved = self._find_file(args, state)
        if saved.exists():
            self.monitor.load_state_dict(torch.load(saved))
        if args.max_grad_norm and args.max_grad_norm < inf:
            self.monitor.warn_of_clipping(
                f"Trainer clips gradients to a norm of {args.max_grad_norm:g}",
                f"Set max_grad_norm=0.0 in TrainingArguments and pass max_norm={args.max_grad_norm:g} to RobustAdamW",
            )

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Add the numbers of the last step to what is logged with the loss."""
        if logs is not None and "loss" in logs:
            logs |= self.monitor.metrics()
            state.log_history[-1] |= logs

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Put the history beside the optimizer's state."""
        if state.is_world_process_zero:
            torch.save(self.monitor.state_dict(), self._find_file(args, state))

    def _find_file(self, args: Any, state: Any) -> Path:
        return Path(args.output_dir) / f"checkpoint-{state.global_step}" / FILE
