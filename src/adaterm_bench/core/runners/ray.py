"""Batches as tasks of a Ray cluster; only results travel back, and only the coordinator writes them."""

import importlib
import os
import secrets
import time
from contextlib import suppress
from typing import Any

from adaterm_bench.core.coordinator import Event
from adaterm_bench.core.work import Attempt, Batch, attempt, describe_loss

PATIENCE = 0.5  # seconds
SPARE = (
    16  # batches that wait at the cluster beside those that run, so that no node is idle and an autoscaler sees them
)


class MissingError(Exception):
    """Ray is not installed."""


class Ray:
    """A cluster: the one at an address, or one on this machine that lives as long as this."""

    def __init__(self, address: str | None, device: str, workers: int, cpus: float, gpus: float) -> None:
        starts_cluster = address is None and "RAY_ADDRESS" not in os.environ
        if starts_cluster and "RAY_AUTH_MODE" not in os.environ:
            # Its ports are open to the network. A token given so is not written into the home folder, as Ray's own is.
            os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        try:
            self._ray: Any = importlib.import_module("ray")
        except ImportError as error:
            raise MissingError("Ray is not installed: pip install '.[ray]' in a clone of adaterm") from error
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if starts_cluster:
            options |= {"address": "local", "num_cpus": workers * cpus, "include_dashboard": False}
        else:
            options["address"] = address
        self._ray.init(**options)
        self._device, self._cpus = device, cpus
        self._batches: dict[Any, Batch] = {}  # by the reference to what will come back
        # Ray's own retries are off: the coordinator counts, and knows what is done already.
        self._task = self._ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=0)(_run)
        here = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            self._ray.get_runtime_context().get_node_id(), soft=True
        )
        self._board = self._ray.remote(num_cpus=0)(_Board).options(scheduling_strategy=here).remote()
        self._read = time.monotonic()

    interrupts = False  # there are no checkpoints on a cluster

    @property
    def capacity(self) -> int:
        """As many batches as the cluster can run now, and a few more."""
        return int(self._ray.cluster_resources().get("CPU", 0) / self._cpus) + SPARE

    def submit(self, batch: Batch) -> None:
        """Make it a task."""
        self._batches[self._task.remote(batch, self._device, self._board)] = batch

    def wait(self) -> list[Event]:
        """Which tasks have ended, and how far the others are."""
        references = list(self._batches)
        self._ray.wait(references, num_returns=1, timeout=PATIENCE)
        ended, _ = self._ray.wait(references, num_returns=len(references), timeout=0)
        events = []
        for reference in ended:
            batch = self._batches.pop(reference)
            events.append(Event(batch, 1.0, self._collect(reference, batch)))
        return events + self._read_progress()

    def close(self) -> None:
        """Leave the cluster, which ends what still runs there; one that was started here ends too."""
        self._ray.shutdown()

    def _collect(self, reference: Any, batch: Batch) -> Attempt:
        exceptions = self._ray.exceptions
        try:
            attempt: Attempt = self._ray.get(reference)
            return attempt
        except (exceptions.NodeDiedError, exceptions.ObjectLostError) as error:
            return describe_loss(
                batch, self._device, f"A node of the cluster was lost: {_first_line(error)}", blameless=True
            )
        except exceptions.RayError as error:
            return describe_loss(batch, self._device, f"{error}\n{type(error).__name__}: {_first_line(error)}")

    def _read_progress(self) -> list[Event]:
        if time.monotonic() - self._read < PATIENCE:
            return []
        self._read = time.monotonic()
        fractions: dict[str, float] = {}
        with suppress(self._ray.exceptions.RayError):  # without the board, progress is all that is missing
            fractions = self._ray.get(self._board.take.remote(), timeout=PATIENCE)
        return [Event(batch, fractions[batch.key]) for batch in self._batches.values() if batch.key in fractions]


class _Board:
    """An actor where tasks leave how far they are."""

    def __init__(self) -> None:
        self._fractions: dict[str, float] = {}

    def put(self, key: str, fraction: float) -> None:
        self._fractions[key] = fraction

    def take(self) -> dict[str, float]:
        fractions, self._fractions = self._fractions, {}
        return fractions


def _run(batch: Batch, device: str, board: Any) -> Attempt:
    """Run a batch on a node of the cluster; this is the task."""
    last = time.monotonic()
    board.put.remote(batch.key, 0.0)

    def tell(fraction: float) -> None:
        nonlocal last
        if time.monotonic() - last >= 10 * PATIENCE:  # rarely: there may be thousands of tasks
            last = time.monotonic()
            board.put.remote(batch.key, float(fraction))

    return attempt(batch, device, tell)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
