"""Draw policies that the reinforcement learning has kept, at work; PyBullet renders them in software.

`python docs/images/walkers.py RESULTS` draws `walkers.png` beside this file: the best policy of each task in a results
directory, without exploration, as in a test. With `--demonstrations DIR` it draws `demonstrators.png`: the best teacher
and the amateur, in the second episode of each that was recorded.
"""

import argparse
import json
from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from adaterm_bench.datasets import environments
from adaterm_bench.datasets.demonstrations import DESCRIPTION, Policy, rank_policies
from adaterm_bench.reporting.style import use_style

FRAMES, BEGIN, PIXELS = 7, 240, (420, 400)
CAMERAS = {  # the steps between frames; what it looks at, ahead of and above the robot; its distance, yaw and pitch
    "Hopper": (6, (0.0, 0.6), (2.4, 0.0, -12.0)),
    "Ant": (4, (0.35, 0.2), (3.3, -20.0, -35.0)),
}


def frame(world, task):
    """What a camera sees that stands beside the way."""
    client, (_, (ahead, above), angles) = world.unwrapped._p, CAMERAS[task]
    x, y = world.unwrapped.robot.body_xyz[:2]
    view = client.computeViewMatrixFromYawPitchRoll([x + ahead, y, above], *angles, 0.0, 2)
    lens = client.computeProjectionMatrixFOV(50.0, PIXELS[0] / PIXELS[1], 0.1, 100.0)
    _, _, pixels, _, _ = client.getCameraImage(*PIXELS, view, lens, renderer=client.ER_TINY_RENDERER)
    return np.reshape(pixels, (PIXELS[1], PIXELS[0], 4))[:, :, :3].astype(np.uint8)


def strip(part, task, act, seed, about):
    """Frames of one episode, from where it walks."""
    world = environments.make(task)
    state, total, frames, done = world.reset(seed=seed)[0], 0.0, [], False
    step = 0
    while not done:
        if step >= BEGIN and (step - BEGIN) % CAMERAS[task][0] == 0 and len(frames) < FRAMES:
            frames.append((step, world.unwrapped.robot.body_xyz[0], frame(world, task)))
        state, reward, terminated, truncated, _ = world.step(act(state))
        total, step, done = total + reward, step + 1, terminated or truncated
    if len(frames) < FRAMES:
        raise SystemExit(f"{task}: {about} falls after {step} steps, before there is enough to show.")
    for axis, (number, ahead, image) in zip(part.subplots(1, FRAMES), frames, strict=True):
        axis.imshow(image)
        axis.set_title(f"{number / 60:.2f} s, {ahead:.1f} m", loc="center", fontsize=9)
        axis.set_axis_off()
    part.suptitle(f"{about}; return of this episode {total:.0f}", x=0.01, ha="left", fontsize=10)


def walkers(results, variant):
    """The best policy of each task: the task, how it acts, where it begins, and what it is."""
    for task in ("Hopper", "Ant"):
        policies = rank_policies(results, task, variant)
        if not policies:
            raise SystemExit(f"{results} has no policy of {task} ({variant}).")
        _, file, about = policies[0]
        yield task, Policy(file).location, 0, f"{task}: {about}"


def demonstrators(results, folder):
    """The best teacher and the amateur likewise, who draw the actions that they drew when they were recorded."""
    known = json.loads((folder / DESCRIPTION).read_bytes())
    for number, role in ((0, "A teacher"), (len(known["policies"]) - 1, "The amateur")):
        policy, generator = known["policies"][number], np.random.default_rng([known["seed"], number, 1])
        kept = Policy(results / "kept" / f"{policy['key']}.npz")
        act = partial(kept.act, generator=generator)
        yield known["task"], act, known["seed"] + 1000 * number + 1, f"{role}: {policy['what']}"


def main():
    """Write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--variant", default="tuned")
    parser.add_argument("--demonstrations", type=Path)
    given = parser.parse_args()
    name = "demonstrators" if given.demonstrations else "walkers"
    rows = (
        demonstrators(given.results, given.demonstrations)
        if given.demonstrations
        else walkers(given.results, given.variant)
    )
    with use_style():
        figure = plt.figure(figsize=(12, 4.4), layout="constrained")
        for part, row in zip(figure.subfigures(2, 1), rows, strict=True):
            strip(part, *row)
        figure.savefig(Path(__file__).with_name(f"{name}.png"), dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    main()
