"""What an actor-critic learns from: the last steps of many seeds."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Replay:
    """The last steps of every seed, in the order in which they were taken."""

    def __init__(self, seeds: int, size: int, observation: int, action: int) -> None:
        self.size, self.count = size, np.zeros(seeds, dtype=np.int64)  # of steps that were ever added
        self.fields = {
            "state": np.zeros((seeds, size, observation), np.float32),
            "next": np.zeros((seeds, size, observation), np.float32),
            "action": np.zeros((seeds, size, action), np.float32),
            "log_density": np.zeros((seeds, size), np.float32),  # of the action, when it was drawn
            "reward": np.zeros((seeds, size), np.float32),
            "goes_on": np.zeros((seeds, size), np.float32),  # 0 where the task has ended
            "last": np.zeros((seeds, size), np.float32),  # 1 at the end of an episode, by a time limit too
        }

    def add(self, seed: int, **steps: Any) -> None:
        """Keep steps in place of the oldest."""
        count = len(steps["reward"])
        places = (self.count[seed] + np.arange(count))[-self.size :] % self.size
        for name, values in steps.items():
            self.fields[name][seed, places] = np.asarray(values)[-self.size :]
        self.count[seed] += count

    def filled(self) -> dict[str, NDArray[np.float32]]:
        """The part that is in use."""
        return {name: each[:, : min(int(self.count.max()), self.size)] for name, each in self.fields.items()}

    def indices(self, generators: Sequence[np.random.Generator], batches: int, size: int) -> NDArray[np.int64]:
        """Which steps to learn from: seeds by batches by samples, each from its own generator."""
        filled = np.minimum(self.count, self.size)
        return np.stack(
            [generator.integers(0, end, (batches, size)) for generator, end in zip(generators, filled, strict=True)]
        )
