"""Train Stable-Baselines3's PPO on CartPole while a sensor glitches, and draw what happens.

In a share of the time steps the reward, or the observation, has heavy-tailed (Cauchy) noise. Each optimizer gets the
same learning rates to choose from, by its return on the clean task; what is reported are returns of other seeds, on the
clean task too. Within a seed all optimizers start from the same weights. Writes `rl_sb3.json` and `rl_sb3.png`. The 210
runs take five to ten seconds of a core each; with `--jobs 8` eight of them go on at a time.
"""

import argparse
import json
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from math import inf
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

import torch

import adaterm

try:
    import gymnasium
    import numpy as np
    from matplotlib.figure import Figure
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy
    from tqdm import tqdm
except ImportError as error:
    raise SystemExit(
        f"This example needs {error.name}, which is not installed; in a clone: pip install '.[frameworks]'"
    ) from error

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from provenance import provenance

TASK, ENVIRONMENTS, ROLLOUT, EPISODES = "CartPole-v1", 8, 128, 10
RATES = (1e-4, 3e-4, 1e-3, 3e-3)
CONDITIONS = ("clean", "rewards", "observations")
METHODS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any], float]] = {  # class, options, clipping
    "Adam, not clipped": (torch.optim.Adam, {"eps": 1e-5}, inf),
    "Adam, clipped to 0.5": (torch.optim.Adam, {"eps": 1e-5}, 0.5),  # what SB3 does by default
    "AdaTerm": (adaterm.AdaTerm, {"init_scale": "gradient"}, inf),
    "RobustAdamW": (adaterm.RobustAdamW, {"eps": 1e-5, "weight_decay": 0.0}, inf),
    "RobustAdamW, max_norm=0.5": (adaterm.RobustAdamW, {"eps": 1e-5, "weight_decay": 0.0, "max_norm": 0.5}, inf),
}
BASE = "Adam, clipped to 0.5"
COLOURS = dict(zip(METHODS, ("#8B93A1", "#0072B2", "#009E73", "#D55E00", "#E69F00"), strict=True))


class Glitches(gymnasium.Wrapper):
    """A sensor that gives heavy-tailed noise now and then, on rewards or on observations."""

    def __init__(self, env: gymnasium.Env, condition: str, share: float) -> None:
        super().__init__(env)
        self.condition, self.share, self.noise = condition, share, np.random.default_rng()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Begin an episode; a seed makes the noise repeat, too."""
        if seed is not None:
            self.noise = np.random.default_rng(seed)
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        """One time step, as the glitching sensor shows it."""
        observation, reward, *rest = super().step(action)
        if self.noise.random() < self.share:
            if self.condition == "rewards":
                reward = float(reward) + 10.0 * self.noise.standard_cauchy()
            if self.condition == "observations":
                observation = observation + self.noise.standard_cauchy(observation.shape).astype(np.float32)
        return observation, reward, *rest


class Watch(BaseCallback):
    """Measures the return on the clean task every few rollouts."""

    def __init__(self, every: int) -> None:
        super().__init__()
        self.every, self.curve = every, []
        self.task = make_vec_env(TASK, n_envs=EPISODES, seed=10_000)

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        if self.num_timesteps and self.num_timesteps % self.every == 0:
            self.measure()

    def _on_training_end(self) -> None:
        self.measure()

    def measure(self) -> None:
        """Mean return of the policy without exploration, on the clean task."""
        self.task.seed(10_000)
        self.curve.append(float(evaluate_policy(self.model, self.task, n_eval_episodes=EPISODES, warn=False)[0]))


class Run(NamedTuple):
    """One training."""

    condition: str
    method: str
    lr: float
    seed: int


def train(run: Run, args: argparse.Namespace) -> list[float]:
    """A run's returns on the clean task, on its way and at its end."""
    torch.set_num_threads(1)  # the networks are too small for more
    kind, options, clipping = METHODS[run.method]
    glitches = {"condition": run.condition, "share": args.share}
    model = PPO(
        "MlpPolicy",
        make_vec_env(TASK, n_envs=ENVIRONMENTS, seed=run.seed, wrapper_class=Glitches, wrapper_kwargs=glitches),
        learning_rate=run.lr,
        n_steps=ROLLOUT,
        max_grad_norm=clipping,
        policy_kwargs={"optimizer_class": kind, "optimizer_kwargs": options},
        seed=run.seed,
        device="cpu",
    )
    watch = Watch(args.every)
    model.learn(args.steps, callback=watch)
    return watch.curve


def compare(args: argparse.Namespace) -> dict[str, Any]:
    """For every condition and method: the learning rate it chose, and the returns of the reported seeds."""
    pairs = [(condition, method) for condition in CONDITIONS for method in METHODS]
    count = len(pairs) * (len(RATES) * args.tries + args.seeds)
    processes = ProcessPoolExecutor(args.jobs, multiprocessing.get_context("spawn"))
    with processes as pool, tqdm(total=count, unit=" runs", mininterval=0.2 if sys.stderr.isatty() else 10) as bar:

        def train_all(runs: list[Run]) -> dict[Run, list[float]]:
            futures = {run: pool.submit(train, run, args) for run in runs}
            for future in futures.values():
                future.add_done_callback(lambda _: bar.update())
            return {run: future.result() for run, future in futures.items()}

        others = range(1000, 1000 + args.tries)
        bar.set_description("learning rates")
        tried = train_all([Run(*pair, lr, seed) for pair in pairs for lr in RATES for seed in others])
        returns = {
            pair: {lr: mean(mean(tried[Run(*pair, lr, seed)]) for seed in others) for lr in RATES} for pair in pairs
        }
        best = {pair: max(row, key=row.__getitem__) for pair, row in returns.items()}
        bar.set_description("reported seeds")
        finals = train_all([Run(*pair, best[pair], seed) for pair in pairs for seed in range(args.seeds)])
    found: dict[str, Any] = {condition: {} for condition in CONDITIONS}
    for condition, method in pairs:
        pair = condition, method
        curves = [finals[Run(*pair, best[pair], seed)] for seed in range(args.seeds)]
        found[condition][method] = {"lr": best[pair], "return by lr": returns[pair], "curves": curves}
    return found


def summarize(found: dict[str, Any]) -> None:
    """Add means and differences to the record, and print them."""
    print(f"\n{'return (most: 500)':41}{'lr':>8}{'at the end':>17}{'over the run':>17}{'against SB3':>17}")
    for condition, rows in found.items():
        base = [mean(curve) for curve in rows[BASE]["curves"]]
        for method, row in rows.items():
            columns = {"at the end": [curve[-1] for curve in row["curves"]]}
            columns["over the run"] = [mean(curve) for curve in row["curves"]]
            columns["against SB3"] = [a - b for a, b in zip(columns["over the run"], base, strict=True)]
            row |= {n: {"mean": mean(c), "std": stdev(c) if c[1:] else 0.0} for n, c in columns.items()}
            cells = [f"{row[name]['mean']:.0f} ± {row[name]['std']:.0f}" for name in columns]
            print(f"{condition:14}{method:27}{row['lr']:8g}" + "".join(f"{cell:>17}" for cell in cells))
    print("\nMean ± standard deviation over seeds; the last column compares means over the run, seed by seed.")


def draw(found: dict[str, Any], args: argparse.Namespace, path: Path) -> None:
    """A panel for each condition: mean return on the clean task, and its standard deviation as a band."""
    figure = Figure(figsize=(12, 4.2), dpi=150, layout="constrained")
    for axes, (condition, rows) in zip(figure.subplots(1, 3, sharey=True), found.items(), strict=True):
        for method, row in rows.items():
            curves = torch.tensor(row["curves"])
            middle, spread = curves.mean(0), curves.std(0, correction=min(1, len(curves) - 1))
            steps = [min(args.every * (i + 1), args.steps) / 1000 for i in range(len(middle))]
            low, high = (middle - spread).clamp_min(0), (middle + spread).clamp_max(500)
            axes.fill_between(steps, low, high, color=COLOURS[method], alpha=0.2, linewidth=0)
            axes.plot(steps, middle, color=COLOURS[method], linewidth=2, label=f"{method}, lr {row['lr']:g}")
        share = f"noise on {args.share:.0%} of the {condition}"
        axes.set(xlabel="time steps, thousands", title="no noise" if condition == "clean" else share)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(loc="upper left", frameon=False, fontsize=8)
    figure.axes[0].set(ylabel="return on the clean task", ylim=(0, 750), yticks=range(0, 501, 100))
    figure.suptitle(f"PPO on {TASK} with a glitching sensor: mean ± std, seeds: {args.seeds}", weight="bold")
    figure.savefig(path, backend="agg")


def main() -> None:
    """Train, print the table, write the figure and the numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=14, help="of 1,024 time steps each (%(default)s)")
    parser.add_argument("--seeds", type=int, default=10, help="paired runs that are reported (%(default)s)")
    parser.add_argument("--tries", type=int, default=1, help="other seeds for each learning rate (%(default)s)")
    parser.add_argument("--share", type=float, default=0.05, help="share of noisy time steps, 0 to 1 (%(default)s)")
    parser.add_argument(
        "--jobs", type=int, default=1, help="runs at a time, each in a process of its own (%(default)s)"
    )
    parser.add_argument("--quick", action="store_true", help="a look at it in under a minute")
    parser.add_argument("--out", type=Path, default=Path("results/examples"), help="output folder (%(default)s)")
    args = parser.parse_args()
    if args.quick:
        args.rollouts, args.seeds, args.tries = 2, 2, 1
    rollout = ROLLOUT * ENVIRONMENTS
    args.steps, args.every = args.rollouts * rollout, min(args.rollouts, 2) * rollout
    found = compare(args)
    summarize(found)
    args.out.mkdir(parents=True, exist_ok=True)
    record = {"table": found, "settings": vars(args) | {"out": str(args.out)}, **provenance("cpu, 1 thread")}
    record["versions"] |= {name: version(name) for name in ("stable_baselines3", "gymnasium")}
    (args.out / "rl_sb3.json").write_text(json.dumps(record, indent=1) + "\n")
    draw(found, args, args.out / "rl_sb3.png")
    print(f"\nFigure: {args.out / 'rl_sb3.png'}\nNumbers: {args.out / 'rl_sb3.json'}")


if __name__ == "__main__":
    main()
