"""Time steps of `adaterm.optax` under jit, in turns with Optax's AdamW, and write results/jax_step_time/<device>.json.

    python benchmarks/jax_step_time.py                          # ResNet-18's, GPT-2's and Llama's shapes
    python benchmarks/jax_step_time.py --shapes mlp --seconds 1
    python benchmarks/jax_step_time.py --limit 300              # all of it, where compiling is slow

It needs JAX and Optax, and no torch. Optax is pure Python: where it cannot be installed, a folder with the packages
`optax` and `absl` in PYTHONPATH is enough.

Parameters and state are donated to the step, gradients are not. All methods of a model are compiled at once, and then
take turns, in rounds of a few steps that the host does not wait for one by one. A ratio is the median, over the rounds,
of a method's time in that of its rival, AdamW behind `clip_by_global_norm`. The memory of a step is what XLA plans for
it: arguments, results that are not in their place, scratch.

Cases come in the order of their importance: float32 first. The file is written after each of them; those that would
begin after the limit are left out. benchmarks/jax_table.py puts the numbers on docs/jax.md.
"""

import argparse
import gc
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax_table import BASE, make_table
from model_shapes import SHAPES
from provenance import provenance

from adaterm import optax as ours

METHODS: dict[str, Callable[[], Any]] = {
    BASE: lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)),
    "robust_adamw": lambda: ours.robust_adamw(1e-3),
    "adaterm": lambda: ours.adaterm(1e-3),
    "robust_adamw(max_norm=1.0)": lambda: ours.robust_adamw(1e-3, max_norm=1.0),
    "adamw": lambda: optax.adamw(1e-3),
}
TURN, FEWEST = 10, 5  # steps of a turn, and rounds


class Run:
    """A method with parameters and state of its own, and its step, traced and yet to be compiled."""

    def __init__(self, optimizer: Any, shapes: list[tuple[int, ...]], dtype: Any, gradients: list[Any]) -> None:
        self.gradients = gradients
        self.params = [jnp.full(shape, 0.1, dtype) for shape in shapes]
        self.state = optimizer.init(self.params)

        def step(params: Any, state: Any, gradients: Any) -> tuple[Any, Any]:
            updates, state = optimizer.update(gradients, state, params)
            return optax.apply_updates(params, updates), state

        self.traced = jax.jit(step, donate_argnums=(0, 1)).lower(self.params, self.state, gradients)

    def compile(self) -> None:
        """Make the step ready to run; may be called in a thread of its own."""
        start = time.perf_counter()
        self.step = self.traced.compile()
        self.seconds_to_compile = time.perf_counter() - start
        planned = self.step.memory_analysis()
        self.memory = planned.argument_size_in_bytes + planned.temp_size_in_bytes
        self.memory += planned.output_size_in_bytes - planned.alias_size_in_bytes

    def take(self, steps: int) -> float:
        """The milliseconds a step."""
        start = time.perf_counter()
        for _ in range(steps):
            self.params, self.state = self.step(self.params, self.state, self.gradients)
        jax.block_until_ready((self.params, self.state))
        return 1e3 * (time.perf_counter() - start) / steps


def take_turns(runs: dict[str, Run], seconds: float) -> dict[str, list[float]]:
    """Milliseconds a step of each, in every round."""
    for run in runs.values():
        run.take(2)
    times: dict[str, list[float]] = {name: [] for name in runs}
    end = time.perf_counter() + seconds
    while len(times[BASE]) < FEWEST or time.perf_counter() < end:
        for name, run in runs.items():
            times[name].append(run.take(TURN))
    return times


def measure(shapes: list[tuple[int, ...]], dtype: Any, chosen: list[str], seconds: float) -> dict[str, Any]:
    """What one model's tensors show of the chosen methods, as the parts of the record."""
    keys = jax.random.split(jax.random.key(0), len(shapes))
    gradients = [jax.random.normal(key, shape, dtype) for key, shape in zip(keys, shapes, strict=True)]
    runs = {name: Run(METHODS[name](), shapes, dtype, gradients) for name in dict.fromkeys((BASE, *chosen))}
    with ThreadPoolExecutor() as pool:
        list(pool.map(Run.compile, runs.values()))
    times = take_turns(runs, seconds * len(runs))
    return {
        "elements": sum(map(math.prod, shapes)),
        "tensors": len(shapes),
        "rounds": len(times[BASE]),
        "times": {name: statistics.median(row) for name, row in times.items()},
        "ratios": {
            name: statistics.median(one / other for one, other in zip(row, times[BASE], strict=True))
            for name, row in times.items()
        },
        "memory": {name: run.memory for name, run in runs.items()},
        "memory ratios": {name: run.memory / runs[BASE].memory for name, run in runs.items()},
        "seconds to compile": {name: run.seconds_to_compile for name, run in runs.items()},
    }


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["resnet18", "gpt2", "llama"])
    parser.add_argument("--dtypes", nargs="+", choices=("float32", "bfloat16"), default=["float32", "bfloat16"])
    parser.add_argument("--only", nargs="+", default=[""], metavar="TEXT", help="methods with one of these in the name")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each method's turns, about")
    parser.add_argument("--limit", type=float, default=90.0, help="seconds after which no further model begins")
    parser.add_argument("--out", type=Path, default=Path("results/jax_step_time"))
    return parser.parse_args()


def main() -> None:
    start = time.perf_counter()
    args, device = read_arguments(), jax.devices()[0]
    chosen = [name for name in METHODS if any(text in name for text in args.only)]
    if not chosen:
        sys.exit(f"no method has one of these in its name: {', '.join(args.only)}")
    args.out.mkdir(parents=True, exist_ok=True)
    kind = "cuda" if device.platform == "gpu" else device.platform
    file = args.out / f"{kind}.json"
    record: dict[str, Any] = {"cases": {}, "left out": []}
    for dtype, shape in product(args.dtypes, args.shapes):
        case = shape if dtype == "float32" else f"{shape}, bf16"
        if time.perf_counter() - start > args.limit:
            record["left out"].append(case)
            print(f"{case} is left out: raise --limit")
        else:
            record["cases"][case] = measure(SHAPES[shape], jnp.dtype(dtype), chosen, args.seconds)
            gc.collect()
            print(f"{case} took until {time.perf_counter() - start:.0f} s", flush=True)
        file.write_text(json.dumps({**record, **provenance(device.device_kind)}, indent=1) + "\n")
    print(f"{make_table(record['cases'])}written to {file}")


if __name__ == "__main__":
    main()
