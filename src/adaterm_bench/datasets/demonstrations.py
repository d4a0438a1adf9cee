"""Trajectories of trained policies, for students to learn from: states, and the actions that were taken in them."""

import argparse
import gzip
import hashlib
import io
import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray

from adaterm_bench.core.files import write_whole
from adaterm_bench.core.provenance import describe_run
from adaterm_bench.core.store import Store
from adaterm_bench.core.trial import canonical
from adaterm_bench.datasets import environments
from adaterm_bench.datasets.data import DataError, fingerprint
from adaterm_bench.datasets.environments import MissingSimulatorError
from adaterm_bench.models.actor_critic import draw, head, normalised, split, trunk

FILE, DESCRIPTION = "demonstrations.npy.gz", "demonstrations.json"
VARIABLE = "ADATERM_DEMONSTRATIONS"
COMMAND = "python -m adaterm_bench.datasets.demonstrations RESULTS --task TASK --variant VARIANT --out DIR"
TEACHERS, EACH, OF_AMATEUR = 3, 10, 3
Array = NDArray[np.float32]


class Demonstrations(NamedTuple):
    """Steps of all trajectories, one after the other; `amateur` says which are the amateur's."""

    task: str
    states: Array
    actions: Array
    amateur: NDArray[np.bool_]
    policies: tuple[str, ...]  # what they are and how well they did, the amateur last
    fingerprint: str


class Policy:
    """A policy as the reinforcement learning keeps it."""

    def __init__(self, file: Path) -> None:
        try:
            kept = np.load(io.BytesIO(file.read_bytes()))
            names = sorted((it for it in kept.files if it.startswith("layer")), key=lambda it: int(it[5:]))
            self.layers = [torch.from_numpy(kept[name]).unsqueeze(0) for name in names]
            self.moments = kept["moments"][:, None] if kept["normalise"] else None
            self.bounded = bool(kept["bounded"])
        except (OSError, EOFError, ValueError, KeyError, zlib.error, BadZipFile) as error:
            raise DataError(f"{file} is no policy of the reinforcement learning: {error}") from error

    def act(self, state: Array, generator: np.random.Generator) -> Array:
        """A drawn action, clipped to what the environment takes."""
        location, scale, dof = self._given(state)
        return np.clip(draw(location, scale, float(dof[0]), generator), -1.0, 1.0)

    def location(self, state: Array) -> Array:
        """The action in the middle of all, clipped likewise."""
        return np.clip(self._given(state)[0], -1.0, 1.0)

    @torch.inference_mode()
    def _given(self, state: Array) -> tuple[Array, Array, Array]:
        seen = np.asarray(state, np.float32)[None]
        seen = seen if self.moments is None else normalised(seen, self.moments)
        out = head(self.layers[-2:], trunk(self.layers[:-2], torch.from_numpy(seen)[:, None]))
        location, scale, dof = (it[0, 0].numpy() for it in split(out, self.bounded))
        return location, scale, dof


def record(task: str, files: Sequence[Path], episodes: Sequence[int], seed: int) -> dict[str, Any]:
    """So many episodes of each policy: their steps, and by episode the policy, the length and the return."""
    world, steps, kept = environments.make(task), [], []
    for number, (file, count) in enumerate(zip(files, episodes, strict=True)):
        policy = Policy(file)
        for turn in range(count):
            generator = np.random.default_rng([seed, number, turn])
            state, done, total, length = world.reset(seed=seed + 1000 * number + turn)[0], False, 0.0, 0
            while not done:
                state = np.asarray(state, np.float32)
                action = policy.act(state, generator)
                steps.append(np.concatenate([state, action]))
                state, reward, terminated, truncated, _ = world.step(action)
                total, length, done = total + float(reward), length + 1, terminated or truncated
            kept.append({"policy": number, "steps": length, "return": round(total, 2)})
    world.close()
    return {"steps": np.stack(steps), "episodes": kept, "states": len(state)}


def save(task: str, policies: Sequence[dict[str, Any]], found: dict[str, Any], folder: Path, seed: int) -> None:
    """Write the steps, and a description of them with their checksum; the last policy is the amateur."""
    array = io.BytesIO()
    np.lib.format.write_array(array, found["steps"], (1, 0))
    content = gzip.compress(array.getvalue(), mtime=0)
    describe = {
        "what": "States and actions of trained policies; the last policy is an amateur",
        "task": task,
        "seed": seed,
        "policies": policies,
        "states": found["states"],
        "episodes": found["episodes"],
        **describe_run("cpu"),
        "file": {"name": FILE, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()},
    }
    write_whole(folder / FILE, content)
    write_whole(folder / DESCRIPTION, (json.dumps(describe, indent=1) + "\n").encode())


def load(folder: Path) -> Demonstrations:
    """What was saved, if it is whole and finite."""
    for file in (folder / FILE, folder / DESCRIPTION):
        if not file.is_file():
            raise DataError(f"There is no {file}. Make it from the policies that `rl` has learnt: {COMMAND}")
    file = folder / FILE
    try:
        about = json.loads((folder / DESCRIPTION).read_bytes())
        lengths = [(it["policy"], it["steps"]) for it in about["episodes"]]
        told = _told(about["policies"], about["episodes"])
        states, checksum, task = int(about["states"]), about["file"]["sha256"], about["task"]
        rows = np.lib.format.read_array(io.BytesIO(gzip.decompress(file.read_bytes())))
    except (ValueError, TypeError, KeyError, ArithmeticError, EOFError, OSError, zlib.error) as error:
        raise DataError(f"{folder}: {FILE} and {DESCRIPTION} cannot be read ({error}). Make them again.") from error
    if rows.ndim != 2 or len(rows) != sum(length for _, length in lengths) or rows.shape[1] <= states:
        raise DataError(f"{file} has the shape {rows.shape}, which does not go with {DESCRIPTION}. Make it again.")
    wrong = np.argwhere(~np.isfinite(rows))
    if len(wrong):
        raise DataError(f"{file}, row {wrong[0][0]}: number {wrong[0][1]} is {rows[tuple(wrong[0])]}. Make it again.")
    if hashlib.sha256(file.read_bytes()).hexdigest() != checksum:
        raise DataError(f"{file} does not have the SHA-256 that {DESCRIPTION} says, {checksum}. Make it again.")
    policies = np.repeat([policy for policy, _ in lengths], [length for _, length in lengths])
    return Demonstrations(
        task, rows[:, :states], rows[:, states:], policies == max(policies), told, fingerprint([rows])
    )


def _told(policies: Sequence[dict[str, Any]], episodes: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """What each policy is, and how it did where it was recorded."""
    told = []
    for number, policy in enumerate(policies):
        own = [it for it in episodes if it["policy"] == number]
        mean = sum(it["return"] for it in own) / len(own)
        steps = sum(it["steps"] for it in own)
        told.append(f"{policy['what']} (return {mean:.0f} in {len(own)} episodes of {steps} steps)")
    return tuple(told)


def synthetic(seed: int = 0) -> Demonstrations:
    """Of the task `Swing`, which needs no simulator: a controller that does well, and one that pushes the wrong way."""
    rows, amateur = [], []
    for number in range(12):
        world, generator = environments.Swing(), np.random.default_rng([seed, number])
        (state, _), done, wrong = world.reset(seed=number), False, number >= 10
        while not done:
            wanted = (-1.0 if wrong else 1.0) * (2.0 * (1.0 - state[0]) - state[1]) + 0.1 * generator.standard_normal()
            action = np.clip(np.array([wanted], np.float32), -1.0, 1.0)
            rows.append(np.concatenate([state, action]))
            amateur.append(wrong)
            state, _, terminated, truncated, _ = world.step(action)
            done = terminated or truncated
    table = np.stack(rows)
    told = ("a controller that does well", "one that pushes the wrong way")
    return Demonstrations("Swing", table[:, :2], table[:, 2:], np.array(amateur), told, f"synthetic {seed}")


def ranked(results: Path, task: str, variant: str) -> list[tuple[float, Path, str]]:
    """The policies that `rl` has kept, the best first: the return when it was tested, the file, and what it is."""
    found, kinds = [], set()
    for it in Store(results).results("rl"):
        file = results / "kept" / f"{it.trial.key}.npz"
        wanted = it.trial.condition["task"] == task and it.trial.condition["variant"] == variant
        if wanted and np.isfinite(it.outcome["return"]) and file.is_file():
            about = f"{it.trial.method}, {variant}, {it.trial.settings['episodes']} episodes, seed {it.trial.seed}"
            found.append((float(it.outcome["return"]), file, about))
            kinds.add(canonical([it.trial.version, it.trial.settings, it.trial.condition]))
    if len(kinds) > 1:
        raise DataError(
            f"{results} has policies of {task} ({variant}) that were learnt with different settings, such as a try and "
            "the real run: give each its own --out when `rl` is run."
        )
    return sorted(found, key=lambda it: -it[0])


def _variants(results: Path, task: str) -> str:
    kept = (it for it in Store(results).results("rl") if (results / "kept" / f"{it.trial.key}.npz").is_file())
    return ", ".join(sorted({it.trial.condition["variant"] for it in kept if it.trial.condition["task"] == task}))


def main(words: Sequence[str] | None = None) -> None:
    """Record the three best policies, and the worst, or the one that is named, as the amateur."""
    parser = argparse.ArgumentParser("python -m adaterm_bench.datasets.demonstrations", description=__doc__)
    parser.add_argument("results", type=Path, help="directory in which `adaterm-bench run rl` has left its results")
    parser.add_argument("--task", default="Ant", choices=list(environments.TASKS))
    parser.add_argument("--variant", required=True, help="of the algorithm that the teachers are of")
    parser.add_argument(
        "--amateur-variant", metavar="VARIANT", help="that the amateur is of; else that of the teachers"
    )
    parser.add_argument("--amateur", metavar="KEY", help="of the trial whose policy is the amateur's; else the worst")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(words)
    try:
        if not given.results.is_dir():
            raise DataError(f"There is no directory {given.results}.")
        amateurs = given.amateur_variant or given.variant
        good = ranked(given.results, given.task, given.variant)
        teachers = good[:TEACHERS]
        others = [it for it in ranked(given.results, given.task, amateurs) if it not in teachers]
        if len(teachers) < TEACHERS or not others:
            raise DataError(
                f"{given.results} lacks policies of {given.task}: it takes three teachers ({given.variant}; there are "
                f"{len(good)}) and an amateur beside them ({amateurs}; there are {len(others)}). Variants that are "
                f"there: {_variants(given.results, given.task) or 'none'}. `adaterm-bench run rl` keeps policies on "
                "this machine, not on Ray."
            )
        named = [it for it in others if given.amateur in (None, it[1].stem)]
        if not named:
            keys = "\n".join(f"  {file.stem}: {about}, return {value:.0f}" for value, file, about in others)
            raise DataError(f"--amateur {given.amateur}: choose from the policies that are no teachers:\n{keys}")
        chosen = [*teachers, named[-1]]
        files = [file for _, file, _ in chosen]
        found = record(given.task, files, [EACH] * TEACHERS + [OF_AMATEUR], given.seed)
    except (DataError, MissingSimulatorError) as error:
        parser.exit(2, f"{error}\n")
    about_them = [
        {"key": file.stem, "what": about, "return_without_exploration": round(value, 2)}
        for value, file, about in chosen
    ]
    save(given.task, about_them, found, given.out, given.seed)
    for told in _told(about_them, found["episodes"]):
        print(told)
    print(f"{len(found['steps'])} steps of {len(found['episodes'])} episodes in {given.out / FILE}")


if __name__ == "__main__":
    main()
