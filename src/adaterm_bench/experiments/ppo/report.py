"""What the report shows of Stable-Baselines3's PPO."""

from math import inf, isfinite, nan

import numpy as np

from adaterm_bench.core.section import Figure, Section, Table
from adaterm_bench.core.trial import Result
from adaterm_bench.reporting import figures
from adaterm_bench.reporting.comparison import HOW, by_method, change_text, in_pairs, middle_text, paired, spread_text
from adaterm_bench.reporting.statistics import mean_std

POINTS = 50  # of a curve


def section(results: list[Result]) -> Section:
    """Learning curves, and returns with each optimizer."""
    tasks = list(dict.fromkeys(it.trial.condition["task"] for it in results))
    return Section(
        "Stable-Baselines3's PPO",
        "Not in the paper: the same tasks with what many would use, PPO with its own settings, one optimizer or "
        "another, and with and without clipping of gradients to a norm of 0.5. Returns are those of the final policy "
        "in test episodes.",
        tables=[
            table
            for task in tasks
            for table in (_table(task, _arms(results, task)), *_pairs(results, task), *_clipping(results, task))
        ],
        figures=[_curves(task, _arms(results, task)) for task in tasks],
    )


def _arms(results: list[Result], task: str) -> dict[str, list[Result]]:
    arms: dict[str, list[Result]] = {}
    for it in results:
        if it.trial.condition["task"] == task:
            arms.setdefault(f"{it.trial.method}, {it.trial.condition['clipping']}", []).append(it)
    return arms


def _pairs(results: list[Result], task: str) -> list[Table]:
    return [
        table
        for clipping in ("clipped", "not clipped")
        for table in in_pairs(
            f"{task}, {clipping}: beside AdaTerm", results, "return", "higher", task=task, clipping=clipping
        )
    ]


def _clipping(results: list[Result], task: str) -> list[Table]:
    """The same seeds with and without it."""
    rows = []
    clipped, not_clipped = (by_method(results, task=task, clipping=arm) for arm in ("clipped", "not clipped"))
    for method, own in clipped.items():
        held, free = paired(own, not_clipped.get(method, ()), "return")
        if len(held):
            rows.append([method, str(len(held)), change_text(held, free, "higher")])
    note = f"Over the seeds that both have. {HOW}"
    columns = ["optimizer", "seeds", "change of the mean return without clipping"]
    return [Table(f"{task}: without clipping beside with it", columns, rows, note)] if rows else []


def _table(task: str, arms: dict[str, list[Result]]) -> Table:
    rows = []
    for arm, own in arms.items():
        values = np.array([it.outcome["return"] for it in own])
        rows.append([arm, str(len(own)), spread_text(mean_std(values)), middle_text(values, "higher")])
    note = f"Mean and standard deviation over seeds. {HOW}"
    return Table(f"{task}: return", ["optimizer", "seeds", "return", "interquartile mean"], rows, note)


def _curves(task: str, arms: dict[str, list[Result]]) -> Figure:
    steps = next(iter(arms.values()))[0].trial.settings["steps"]
    ends = np.linspace(steps / POINTS, steps, POINTS)
    values = {arm: np.array([_curve(it, ends) for it in own]) for arm, own in arms.items()}
    return Figure(
        f"{task}: learning curves",
        lambda: figures.curves(ends, values, "return", xlabel="step", log=False, better="higher"),
        f"Means of the last twenty training episodes. {figures.CURVES}",
    )


def _curve(result: Result, ends: np.ndarray) -> list[float]:
    """The mean return of the last twenty episodes before each point, or of the first; none after an agent diverged."""
    found = np.array(result.outcome["episodes"], dtype=np.float64).reshape(-1, 2)
    until = found[-1, 0] if len(found) else -inf
    counts = np.maximum(np.searchsorted(found[:, 0], ends, "right"), 1)
    lost = (ends > until) & (not len(found) or not isfinite(result.outcome["return"]))
    return [
        nan if gone else float(found[max(0, count - 20) : count, 1].mean())
        for gone, count in zip(lost, counts, strict=True)
    ]
