"""For Hugging Face Trainer."""

import json
from math import inf
from pathlib import Path
from typing import Any

import torch

from adaterm.monitor import Monitor
from adaterm.options import warn_user

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
        if hasattr(self, "monitor"):
            self.monitor.remove()
        self.monitor = Monitor(kwargs["optimizer"], kwargs["model"], self._length)
        if state.global_step:
            self._resume(args, state)
        if args.max_grad_norm and args.max_grad_norm < inf:
            self.monitor.warn_of_clipping(
                f"Trainer clips gradients to a norm of {args.max_grad_norm:g}",
                f"Set max_grad_norm=0.0 in TrainingArguments and pass max_norm={args.max_grad_norm:g} to RobustAdamW",
            )

    def _resume(self, args: Any, state: Any) -> None:
        folder = _name_folder(args, state)
        for place in (Path(args.resume_from_checkpoint or folder), folder):
            if (place / FILE).exists() and _is_of_run(place, state):
                self.monitor.load_state_dict(torch.load(place / FILE))
                return
        if state.is_world_process_zero:
            warn_user(
                f"adaterm.Monitor: there is no history of this run in {folder}, so that it begins anew. If the "
                "checkpoint is in another folder, also give that to TrainingArguments(resume_from_checkpoint=...)"
            )

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Add the numbers of the last step to what is logged with the loss."""
        if logs is not None and "loss" in logs:
            logs |= self.monitor.metrics()
            state.log_history[-1] |= logs

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Put the history beside the optimizer's state, where that is in `output_dir`: Trainer does not say."""
        folder = _name_folder(args, state)
        if state.is_world_process_zero and _is_of_run(folder, state):
            torch.save(self.monitor.state_dict(), folder / FILE)


def _name_folder(args: Any, state: Any) -> Path:
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"


def _is_of_run(folder: Path, state: Any) -> bool:
    """Whether this is the checkpoint of a run, by what it has logged."""
    file = folder / "trainer_state.json"
    saved = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    found = [saved.get("global_step"), saved.get("log_history")]
    return json.dumps(found, sort_keys=True) == json.dumps([state.global_step, state.log_history], sort_keys=True)
