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
from adaterm_bench.models.t_policy import apply_head, apply_trunk, draw_action, normalise, split_policy

FILE, DESCRIPTION = "demonstrations.npy.gz", "demonstrations.json"
VARIABLE = "ADATERM_DEMONSTRATIONS"
COMMAND = "python -m adaterm_bench.datasets.demonstrations RESULTS --task TASK --variant VARIANT --out DIR"
DRAWN = "as drawn"
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
            archive = np.load(io.BytesIO(file.read_bytes()))
            names = sorted((name for name in archive.files if name.startswith("layer")), key=lambda name: int(name[5:]))
            self.layers = [torch.from_numpy(archive[name]).unsqueeze(0) for name in names]
            self.moments = archive["moments"][:, None] if archive["normalise"] else None
            self.bounded = bool(archive["bounded"])
        except (OSError, EOFError, ValueError, KeyError, zlib.error, BadZipFile) as error:
            raise DataError(f"{file} is not a policy of the reinforcement learning: {error}") from error

    def sample(self, state: Array, generator: np.random.Generator) -> Array:
        """A drawn action, however far it lies from what an environment takes."""
        location, scale, dof = self.distribution(state)
        return draw_action(location, scale, float(dof[0]), generator)

    def act(self, state: Array, generator: np.random.Generator) -> Array:
        """A drawn action, clipped to what the environment takes."""
        return np.clip(self.sample(state, generator), -1.0, 1.0)

    def location(self, state: Array) -> Array:
        """The action in the middle of all, clipped in the same way."""
        return np.clip(self.distribution(state)[0], -1.0, 1.0)

    @torch.inference_mode()
    def distribution(self, state: Array) -> tuple[Array, Array, Array]:
        """Location, scale and degrees of freedom of the action in a state."""
        seen = np.asarray(state, np.float32)[None]
        seen = seen if self.moments is None else normalise(seen, self.moments)
        out = apply_head(self.layers[-2:], apply_trunk(self.layers[:-2], torch.from_numpy(seen)[:, None]))
        location, scale, dof = (part[0, 0].numpy() for part in split_policy(out, self.bounded))
        return location, scale, dof


def record(task: str, files: Sequence[Path], episodes: Sequence[int], seed: int) -> dict[str, Any]:
    """So many episodes of each policy: their steps, and by episode the policy, the length and the return.

    Actions are kept as the policy drew them; the environment gets them clipped.
    """
    world, steps, episodes_recorded = environments.make(task), [], []
    for number, (file, count) in enumerate(zip(files, episodes, strict=True)):
        policy = Policy(file)
        for turn in range(count):
            generator = np.random.default_rng([seed, number, turn])
            state, done, total, length = world.reset(seed=seed + 1000 * number + turn)[0], False, 0.0, 0
            while not done:
                state = np.asarray(state, np.float32)
                action = policy.sample(state, generator)
                steps.append(np.concatenate([state, action]))
                state, reward, terminated, truncated, _ = world.step(np.clip(action, -1.0, 1.0))
                total, length, done = total + float(reward), length + 1, terminated or truncated
            episodes_recorded.append({"policy": number, "steps": length, "return": round(total, 2)})
    world.close()
    return {"steps": np.stack(steps), "episodes": episodes_recorded, "states": len(state)}


def save(task: str, policies: Sequence[dict[str, Any]], recorded: dict[str, Any], folder: Path, seed: int) -> None:
    """Write the steps, and a description of them with their checksum; the last policy is the amateur."""
    array = io.BytesIO()
    np.lib.format.write_array(array, recorded["steps"], (1, 0))
    content = gzip.compress(array.getvalue(), mtime=0)
    describe = {
        "what": "States of trained policies, and the actions they drew, unclipped; the last policy is an amateur",
        "actions": DRAWN,
        "task": task,
        "seed": seed,
        "policies": policies,
        "states": recorded["states"],
        "episodes": recorded["episodes"],
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
        lengths = [(episode["policy"], episode["steps"]) for episode in about["episodes"]]
        descriptions = _describe_policies(about["policies"], about["episodes"])
        states, checksum, task = int(about["states"]), about["file"]["sha256"], about["task"]
        drawn = about.get("actions")
        rows = np.lib.format.read_array(io.BytesIO(gzip.decompress(file.read_bytes())))
    except (ValueError, TypeError, KeyError, ArithmeticError, EOFError, OSError, zlib.error) as error:
        raise DataError(f"{folder}: {FILE} and {DESCRIPTION} cannot be read ({error}). Make them again.") from error
    if drawn != DRAWN:
        raise DataError(f"{file} has clipped actions, as a former version recorded them. Make it again: {COMMAND}")
    if rows.ndim != 2 or len(rows) != sum(length for _, length in lengths) or rows.shape[1] <= states:
        raise DataError(f"{file} has the shape {rows.shape}, which does not go with {DESCRIPTION}. Make it again.")
    wrong = np.argwhere(~np.isfinite(rows))
    if len(wrong):
        raise DataError(f"{file}, row {wrong[0][0]}: number {wrong[0][1]} is {rows[tuple(wrong[0])]}. Make it again.")
    if hashlib.sha256(file.read_bytes()).hexdigest() != checksum:
        raise DataError(f"{file} does not have the SHA-256 that {DESCRIPTION} says, {checksum}. Make it again.")
    policies = np.repeat([policy for policy, _ in lengths], [length for _, length in lengths])
    return Demonstrations(
        task, rows[:, :states], rows[:, states:], policies == max(policies), descriptions, fingerprint([rows])
    )


def _describe_policies(policies: Sequence[dict[str, Any]], episodes: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """What each policy is, and how it did where it was recorded."""
    descriptions = []
    for number, policy in enumerate(policies):
        recorded = [episode for episode in episodes if episode["policy"] == number]
        mean = sum(episode["return"] for episode in recorded) / len(recorded)
        steps = sum(episode["steps"] for episode in recorded)
        descriptions.append(f"{policy['what']} (return {mean:.0f} in {len(recorded)} episodes of {steps} steps)")
    return tuple(descriptions)


def make_synthetic(seed: int = 0) -> Demonstrations:
    """Of the task `Swing`, which needs no simulator: a controller that does well, and one that pushes the wrong way."""
    rows, amateur = [], []
    for number in range(12):
        world, generator = environments.Swing(), np.random.default_rng([seed, number])
        (state, _), done, wrong = world.reset(seed=number), False, number >= 10
        while not done:
            push = (-1.0 if wrong else 1.0) * (2.0 * (1.0 - state[0]) - state[1]) + 0.1 * generator.standard_normal()
            action = np.array([push], np.float32)
            rows.append(np.concatenate([state, action]))
            amateur.append(wrong)
            state, _, terminated, truncated, _ = world.step(np.clip(action, -1.0, 1.0))
            done = terminated or truncated
    table = np.stack(rows)
    descriptions = ("a controller that does well", "one that pushes the wrong way")
    return Demonstrations(
        "Swing", table[:, :2], table[:, 2:], np.array(amateur), descriptions, f"synthetic {seed}, as drawn"
    )


def rank_policies(results: Path, task: str, variant: str) -> list[tuple[float, Path, str]]:
    """The policies that `rl` has kept, the best first: the return when it was tested, the file, and what it is."""
    policies, kinds = [], set()
    for result in Store(results).results("rl"):
        file = results / "kept" / f"{result.trial.key}.npz"
        matches = result.trial.condition["task"] == task and result.trial.condition["variant"] == variant
        if matches and np.isfinite(result.outcome["return"]) and file.is_file():
            trial = result.trial
            about = f"{trial.method}, {variant}, {trial.settings['episodes']} episodes, seed {trial.seed}"
            policies.append((float(result.outcome["return"]), file, about))
            kinds.add(canonical([result.trial.version, result.trial.settings, result.trial.condition]))
    if len(kinds) > 1:
        raise DataError(
            f"{results} has policies of {task} ({variant}) that were learnt with different settings, such as a try and "
            "the real run: give each its own --out when `rl` is run."
        )
    return sorted(policies, key=lambda policy: -policy[0])


def _list_variants(results: Path, task: str) -> str:
    trials = [result.trial for result in Store(results).results("rl")]
    with_policy = [trial for trial in trials if (results / "kept" / f"{trial.key}.npz").is_file()]
    return ", ".join(sorted({trial.condition["variant"] for trial in with_policy if trial.condition["task"] == task}))


def main(words: Sequence[str] | None = None) -> None:
    """Record the three best policies, and the worst, or the one that is named, as the amateur."""
    parser = argparse.ArgumentParser("python -m adaterm_bench.datasets.demonstrations", description=__doc__)
    parser.add_argument("results", type=Path, help="directory in which `adaterm-bench run rl` has left its results")
    parser.add_argument("--task", default="Ant", choices=list(environments.TASKS))
    parser.add_argument("--variant", required=True, help="of the algorithm that teachers and amateur are of")
    parser.add_argument(
        "--amateurs", type=Path, metavar="DIR", help="results that the amateur is of, such as of fewer episodes"
    )
    parser.add_argument("--amateur", metavar="KEY", help="of the trial whose policy is the amateur's; else the worst")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args(words)
    try:
        amateurs = arguments.amateurs or arguments.results
        for folder in (arguments.results, amateurs):
            if not folder.is_dir():
                raise DataError(f"There is no directory {folder}.")
        good, bad = (
            rank_policies(folder, arguments.task, arguments.variant) for folder in (arguments.results, amateurs)
        )
        teachers = good[:TEACHERS]
        others = [policy for policy in bad if policy not in teachers]
        if len(teachers) < TEACHERS or not others:
            raise DataError(
                f"{arguments.results} has too few policies of {arguments.task}: three teachers are needed "
                f"({arguments.variant}; there are {len(good)}), and an amateur (in {amateurs}; there are "
                f"{len(others)}). Variants: {_list_variants(arguments.results, arguments.task) or 'none'}. "
                "`adaterm-bench run rl` keeps policies on this machine, not on Ray."
            )
        named = [other for other in others if arguments.amateur in (None, other[1].stem)]
        if not named:
            keys = "\n".join(f"  {file.stem}: {about}, return {value:.0f}" for value, file, about in others)
            raise DataError(f"--amateur {arguments.amateur}: choose from the policies that are not teachers:\n{keys}")
        chosen = [*teachers, named[-1]]
        files = [file for _, file, _ in chosen]
        recorded = record(arguments.task, files, [EACH] * TEACHERS + [OF_AMATEUR], arguments.seed)
    except (DataError, MissingSimulatorError) as error:
        parser.exit(2, f"{error}\n")
    about_them = [
        {"key": file.stem, "what": about, "return_without_exploration": round(value, 2)}
        for value, file, about in chosen
    ]
    save(arguments.task, about_them, recorded, arguments.out, arguments.seed)
    for line in _describe_policies(about_them, recorded["episodes"]):
        print(line)
    print(f"{len(recorded['steps'])} steps of {len(recorded['episodes'])} episodes in {arguments.out / FILE}")


if __name__ == "__main__":
    main()
