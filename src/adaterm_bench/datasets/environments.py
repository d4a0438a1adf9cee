"""The tasks of the reinforcement learning, from simulators that are only needed where they are run."""

import contextlib
import io
import os
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

TASKS = {
    "Swing": "",  # ours, for tests: it needs no simulator
    "Hopper": "HopperBulletEnv-v0",
    "Ant": "AntBulletEnv-v0",
    "Hopper (MuJoCo)": "Hopper-v5",
    "Ant (MuJoCo)": "Ant-v5",
}


class MissingSimulatorError(Exception):
    """A simulator is not installed; the message says how to get it."""


def make(task: str) -> Any:
    """The environment of a task, through gymnasium."""
    name = TASKS[task]
    if not name:
        return Swing()
    try:
        import gymnasium

        if "Bullet" in name:
            with _silence_output():
                import pybullet_envs_gymnasium  # noqa: F401 (registers the environments)
        with _silence_output():
            environment = gymnasium.make(name)
            environment.reset()  # PyBullet's first greets the world
        if "Bullet" in name:
            _bind_functions(environment.unwrapped._p)
        return environment
    except Exception as error:
        if not isinstance(error, ImportError) and type(error).__name__ != "DependencyNotInstalled":  # gymnasium's own
            raise
        raise MissingSimulatorError(
            f"The task {task!r} cannot be simulated here ({error}); in a clone: pip install '.[rl]'"
        ) from error


class Swing:
    """A mass on a spring that is to be held at a height: an environment in all that the learner needs of one."""

    observation_space, action_space = SimpleNamespace(shape=(2,)), SimpleNamespace(shape=(1,))

    def reset(self, seed: int = 0) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Somewhere, at rest."""
        self.place, self.speed, self.steps = np.random.default_rng(seed).uniform(-1.0, 1.0), 0.0, 0
        return self._observe(), {}

    def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Push; it ends early, and badly, if the mass leaves the room."""
        self.speed += 0.1 * (float(action[0]) - 0.5 * self.place - 0.2 * self.speed)
        self.place += 0.1 * self.speed
        self.steps += 1
        return self._observe(), 1.0 - abs(self.place - 1.0), abs(self.place) > 3.0, self.steps >= 50, {}

    def close(self) -> None:
        """Nothing is open."""

    def _observe(self) -> NDArray[np.float32]:
        return np.array([self.place, self.speed], np.float32)


def _bind_functions(client: Any) -> None:
    """Let PyBullet's client keep its functions: it looks them up and wraps them again at each of many calls a step."""
    for name in (
        "getBasePositionAndOrientation",
        "getBaseVelocity",
        "getContactPoints",
        "getJointState",
        "getLinkState",
        "setJointMotorControl2",
        "stepSimulation",
    ):
        setattr(client, name, getattr(client, name))


@contextlib.contextmanager
def _silence_output() -> Iterator[None]:
    """Without what PyBullet prints from C, on either stream, and gymnasium's advice on the age of its environments."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        saved = [os.dup(number) for number in (1, 2)]
        with open(os.devnull, "w") as nowhere:
            for number in (1, 2):
                os.dup2(nowhere.fileno(), number)
            try:
                yield
            finally:
                for number, old in zip((1, 2), saved, strict=True):
                    os.dup2(old, number)
                    os.close(old)
