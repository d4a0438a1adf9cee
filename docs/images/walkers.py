"""Draw `walkers.png` beside this file: policies that the reinforcement learning has kept, at work.

`python docs/images/walkers.py RESULTS` takes the best policy of each task in a results directory; without
exploration, as in a test. PyBullet renders it in software.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from adaterm_bench import environments
from adaterm_bench.demonstrations import Policy, ranked
from adaterm_bench.style import style

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


def strip(axes, task, file):
    """Frames of one episode, from where it walks."""
    policy, world = Policy(file), environments.make(task)
    state, total, frames, done = world.reset(seed=0)[0], 0.0, [], False
    step = 0
    while not done:
        if step >= BEGIN and (step - BEGIN) % CAMERAS[task][0] == 0 and len(frames) < FRAMES:
            frames.append((step, world.unwrapped.robot.body_xyz[0], frame(world, task)))
        action = policy.location(np.asarray(state, np.float32))
        state, reward, terminated, truncated, _ = world.step(action)
        total, step, done = total + reward, step + 1, terminated or truncated
    if len(frames) < FRAMES:
        raise SystemExit(f"{task}: {file} falls after {step} steps, before there is enough to show.")
    for axis, (number, ahead, image) in zip(axes, frames, strict=True):
        axis.imshow(image)
        axis.set_title(f"{number / 60:.2f} s, {ahead:.1f} m", loc="center", fontsize=9)
        axis.set_axis_off()
    return total


def main():
    """Write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--variant", default="tuned")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".png"))
    given = parser.parse_args()
    with style():
        figure = plt.figure(figsize=(12, 4.4), layout="constrained")
        for part, task in zip(figure.subfigures(2, 1), ("Hopper", "Ant"), strict=True):
            policies = ranked(given.results, task, given.variant)
            if not policies:
                raise SystemExit(f"{given.results} has no policy of {task} ({given.variant}).")
            _, file, about = policies[0]
            total = strip(part.subplots(1, FRAMES), task, file)
            part.suptitle(f"{task}: {about}; return of this episode {total:.0f}", x=0.01, ha="left", fontsize=10)
        figure.savefig(given.out, dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    main()
