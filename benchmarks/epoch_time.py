"""Measure epochs of the CIFAR-100 classification with different optimizers, one after the other in turns.

Images are random bytes: the time does not depend on them. `steps` are the replayed steps alone, without the copies of
each batch's draws; `epoch` is what a user waits for. Writes results/epoch_time/<device>.json.
"""

import argparse
import json
import time
from pathlib import Path
from statistics import median

import torch
from provenance import provenance

from adaterm_bench.datasets.cifar import CLASSES, SIDE, Labelled
from adaterm_bench.experiments.classification.experiment import Classification, Training

METHODS = ("Adam", "AdaTerm", "RAdam", "AdaBelief", "t-Adam", "AdamW (clipped)")


def wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def measure(training: Training, device: str, number: int) -> tuple[float, float]:
    """Seconds of an epoch, and of its steps alone."""
    wait(device)
    start = time.perf_counter()
    training.epoch(number)
    wait(device)
    middle = time.perf_counter()
    assert training.repeated is not None
    for _ in range(training.steps):
        training.repeated()
    wait(device)
    return middle - start, time.perf_counter() - middle


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--out", type=Path, default=Path("results/epoch_time"))
    arguments = parser.parse_args()
    precision = "bfloat16" if arguments.device.startswith("cuda") else "float32"
    settings = Classification(images=arguments.images, width=arguments.width, precision=precision)
    pixels = torch.randint(0, 256, (settings.images, SIDE, SIDE, 3), dtype=torch.uint8)
    data = Labelled(pixels, torch.randint(0, CLASSES, (settings.images,)))
    trainings = {method: Training(settings, method, data, 0, arguments.device) for method in arguments.methods}
    for training in trainings.values():
        training.epoch(0)  # compiles, captures, warms up
    times: dict[str, list[tuple[float, float]]] = {method: [] for method in trainings}
    for number in range(arguments.rounds):
        for method, training in trainings.items():
            times[method].append(measure(training, arguments.device, number + 1))
    epochs, steps = ({method: median(turn[k] for turn in turns) for method, turns in times.items()} for k in (0, 1))
    record = {
        "images": settings.images,
        "batch_size": settings.batch_size,
        "seconds of an epoch": epochs,
        "seconds of its steps": steps,
        "steps, in those of Adam": {method: steps[method] / steps["Adam"] for method in steps if "Adam" in steps},
        **provenance(torch.cuda.get_device_name() if precision == "bfloat16" else "cpu"),
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    file = arguments.out / f"{arguments.device.partition(':')[0]}.json"
    file.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
