"""What the report shows of Stable-Baselines3's PPO."""

from itertools import chain
from math import inf, isfinite, nan

import numpy as np

from adaterm_bench.core.section import Figure, Section, Table
from adaterm_bench.core.trial import Result
from adaterm_bench.reporting import figures
from adaterm_bench.reporting.comparison import (
    compare_in_pairs,
    describe_change,
    describe_how,
    describe_middle,
    describe_spread,
    group_by_method,
    pair_outcomes,
)
from adaterm_bench.reporting.each_seed import show_each_seed
from adaterm_bench.reporting.statistics import mean_std

POINTS = 50  # of a curve
USUAL = "Adam"


def section(results: list[Result]) -> Section:
    """Learning curves, and returns with each optimizer."""
    tasks = list(dict.fromkeys(result.trial.condition["task"] for result in results))
    return Section(
        "Stable-Baselines3's PPO",
        "Not in the paper: the same tasks with what many would use, PPO with its own settings, one optimizer or "
        "another, and with and without clipping of gradients to a norm of 0.5. Returns are those of the final policy "
        "in test episodes.",
        tables=[
            table
            for task in tasks
            for table in (
                _make_table(task, _group_arms(results, task)),
                *_compare_pairs(results, task),
                *_compare_clipping(results, task),
            )
        ],
        figures=[figure for task in tasks for figure in _draw_curves(task, _group_arms(results, task))],
    )


def _group_arms(results: list[Result], task: str) -> dict[str, list[Result]]:
    arms: dict[str, list[Result]] = {}
    for result in results:
        if result.trial.condition["task"] == task:
            arms.setdefault(f"{result.trial.method}, {result.trial.condition['clipping']}", []).append(result)
    return arms


def _compare_pairs(results: list[Result], task: str) -> list[Table]:
    """Every optimizer beside Adam, which is what people use."""
    return [
        table
        for clipping in ("clipped", "not clipped")
        for table in compare_in_pairs(
            f"{task}, {clipping}: compared with {USUAL}",
            results,
            "return",
            "higher",
            than=USUAL,
            task=task,
            clipping=clipping,
        )
    ]


def _compare_clipping(results: list[Result], task: str) -> list[Table]:
    """The same seeds with and without it."""
    rows = []
    clipped, not_clipped = (group_by_method(results, task=task, clipping=arm) for arm in ("clipped", "not clipped"))
    for method, runs in clipped.items():
        held, free = pair_outcomes(runs, not_clipped.get(method, ()), "return")
        if len(held):
            rows.append([method, str(len(held)), describe_change(held, free, "higher")])
    note = f"Over the seeds that both have. {describe_how(results)}"
    columns = ["optimizer", "seeds", "change of the mean return without clipping"]
    return [Table(f"{task}: without clipping compared with clipping", columns, rows, note)] if rows else []


def _make_table(task: str, arms: dict[str, list[Result]]) -> Table:
    rows = []
    for arm, runs in arms.items():
        values = np.array([result.outcome["return"] for result in runs])
        rows.append([arm, str(len(runs)), describe_spread(mean_std(values)), describe_middle(values, "higher")])
    note = f"Mean and standard deviation over seeds. {describe_how(chain(*arms.values()))}"
    return Table(f"{task}: return", ["optimizer", "seeds", "return", "interquartile mean"], rows, note)


def _draw_curves(task: str, arms: dict[str, list[Result]]) -> list[Figure]:
    steps = next(iter(arms.values()))[0].trial.settings["steps"]
    ends = np.linspace(steps / POINTS, steps, POINTS)
    values = {arm: [make_curve(result, ends) for result in runs] for arm, runs in arms.items()}
    what = "Means of the last twenty training episodes."
    medians = Figure(
        f"{task}: learning curves",
        lambda: figures.draw_curves(ends, values, "return", xlabel="step", log=False, better="higher"),
        f"{what} {figures.CURVES}",
    )
    return [medians, *show_each_seed(f"{task}: every seed", ends, values, "return", "step", what)]


def make_curve(result: Result, ends: np.ndarray) -> list[float]:
    """The mean return of the last twenty episodes before each point, or of the first; none after an agent diverged."""
    episodes = np.array(result.outcome["episodes"], dtype=np.float64).reshape(-1, 2)
    until = episodes[-1, 0] if len(episodes) else -inf
    counts = np.maximum(np.searchsorted(episodes[:, 0], ends, "right"), 1)
    lost = (ends > until) & (not len(episodes) or not isfinite(result.outcome["return"]))
    return [
        nan if gone else float(episodes[max(0, count - 20) : count, 1].mean())
        for gone, count in zip(lost, counts, strict=True)
    ]
