"""Draw `hexapod.png` beside this file: how the hexapod walks, and what its servos make of their references.

Rendering without a window needs EGL: `MUJOCO_GL=egl python docs/images/hexapod.py`.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import mujoco
import numpy as np

from adaterm_bench.datasets.hexapod.gait import Walk, draw_walk
from adaterm_bench.datasets.hexapod.ground import draw_ground
from adaterm_bench.datasets.hexapod.robot import JOINTS
from adaterm_bench.datasets.hexapod.simulation import RATE, SETTLING, STEPS, model, simulate
from adaterm_bench.reporting.palette import COLOURS, INK
from adaterm_bench.reporting.style import use_style

FRAMES, PIXELS = 6, (520, 420)
LONG = Walk(stride=0.08, lift=0.04, frequency=1.0, phase=0.0, direction=0.0, turn=0.0, height=0.1, friction=0.8)
SHOWN = {
    "right_middle_coxa": "Coxa of the right middle leg",
    "right_middle_femur": "Its femur",
    "right_middle_tibia": "Its tibia",
}


def frame(renderer, recording, step, towards):
    """The robot at one step, as recorded, seen from the front and right."""
    x, y, height, yaw, _ = recording.body[step]
    data = mujoco.MjData(model())
    data.qpos[:7] = x, y, height, np.cos(yaw / 2), 0.0, 0.0, np.sin(yaw / 2)
    data.qpos[7:] = recording.angles[step]
    mujoco.mj_forward(model(), data)
    camera = mujoco.MjvCamera()
    camera.lookat[:] = *towards, 0.04
    camera.distance, camera.azimuth, camera.elevation = 0.85, 115.0, -33.0
    renderer.update_scene(data, camera)
    return renderer.render()


def strip(axes, recording):
    """One period on flat ground, with a camera that stands still."""
    steps = np.linspace(0, RATE / LONG.frequency, FRAMES).round().astype(int)
    middle = recording.body[steps, :2].mean(0)
    with mujoco.Renderer(model(), PIXELS[1], PIXELS[0]) as renderer:
        for axis, step in zip(axes, steps, strict=True):
            axis.imshow(frame(renderer, recording, step, middle))
            axis.set_title(f"{step / RATE:.1f} s", loc="center")
            axis.set_axis_off()


def paths(axis):
    """The body's way over the ground in a dozen walks of the data set: its test trajectories."""
    for number in range(12):
        draws, events = np.random.default_rng([0, 2, number]), np.random.default_rng([0, 2, number, 1])
        walk = draw_walk(draws)
        ground = draw_ground(walk, round(SETTLING * RATE) + STEPS, RATE, events)
        x, y, _, yaw, _ = simulate(walk, draws, ground).body.T
        way = ((x - x[0]) + 1j * (y - y[0])) * np.exp(-1j * yaw[0])  # ahead and to the left, from where it began
        colour = COLOURS[number % len(COLOURS)]
        axis.plot(-way.imag, way.real, color=colour, lw=1.3)
        axis.plot(-way.imag[-1], way.real[-1], "o", color=colour)
    axis.set(title="Twelve walks of 5 s, from above", xlabel="to the right (m)", ylabel="ahead (m)", aspect="equal")
    axis.grid()


def traces(axes, recording):
    """The joints of one leg: what they are told, and what is measured."""
    seconds = np.arange(100) / RATE
    for number, (axis, joint) in enumerate(zip(axes, SHOWN, strict=True)):
        column = JOINTS.index(joint)
        axis.plot(seconds, recording.references[:100, column], color=INK, lw=1.0, ls=(0, (4, 2)), label="told")
        axis.plot(seconds, recording.angles[:100, column], color=COLOURS[1], label="measured")
        axis.set(title=SHOWN[joint], xlabel="time (s)", ylabel="angle (rad)" if number == 0 else "")
        axis.grid()
    axes[-1].legend(
        frameon=False,
        loc="lower right",
        bbox_to_anchor=(1.02, 0.98),
        ncols=2,
        columnspacing=1.0,
        handlelength=1.5,
        fontsize=9,
    )


def main():
    """Write the picture."""
    recording = simulate(LONG, np.random.default_rng(0))
    with use_style():
        figure = plt.figure(figsize=(12, 4.9), layout="constrained")
        above, below = figure.subfigures(2, 1, height_ratios=(1, 1.45))
        strip(above.subplots(1, FRAMES, gridspec_kw={"wspace": 0.01}), recording)
        left, *right = below.subplots(1, 4, width_ratios=(1.15, 1, 1, 1))
        paths(left)
        traces(right, recording)
        figure.savefig(Path(__file__).with_suffix(".png"), dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    main()
