"""What the report shows of the reinforcement learning."""

from math import isfinite, nan
from typing import Literal

import numpy as np

from adaterm_bench.core.section import Claim, Figure, Section, Table
from adaterm_bench.core.trial import Result, canonical
from adaterm_bench.datasets.data import DataError
from adaterm_bench.datasets.environments import TASKS
from adaterm_bench.experiments.rl.experiment import VARIANTS
from adaterm_bench.reporting import figures
from adaterm_bench.reporting.comparison import (
    CLAIMED,
    HOW,
    OURS,
    RIVALS,
    by_method,
    in_pairs,
    middle_text,
    shared,
    spread_text,
)
from adaterm_bench.reporting.published import AS_PUBLISHED, PUBLISHED, published
from adaterm_bench.reporting.statistics import mean, mean_std, paired_difference
from adaterm_bench.reporting.text import number

COLUMNS = {"Hopper": "rl_hopper", "Ant": "rl_ant"}
SMOOTH = 50  # episodes over which learning curves are averaged
HERE = 2  # cores that times are projected for
TABLE = 24 * len((OURS, *RIVALS))  # trials of the paper's table
Case = tuple[str, str]  # a task and a variant of the algorithm


def section(results: list[Result]) -> Section:
    """Learning curves, returns beside the paper's, and its claims."""
    found = {_case(it) for it in results}
    cases = [it for task in TASKS for variant in VARIANTS if (it := (task, variant)) in found]
    for case in cases:
        if len({canonical(it.trial.condition["choices"]) for it in results if _case(it) == case}) > 1:
            raise DataError(f"these results of {_title(case)} are of variants that differ: keep them apart")
    return Section(
        "Reinforcement learning",
        "An actor-critic in the manner of PPO-RPE learns after each episode from a replay of its last 10,000 steps. "
        "Returns are those of the final policy in test episodes, without exploration. The first curves are of such "
        "tests while it learns, the others of the episodes that it learns from, in which it explores.",
        tables=[table for case in cases for table in (_table(results, case), *_pairs(results, case))]
        + [*_variant_tables(results, cases), _speed(results, cases)],
        figures=[
            figure
            for case in cases
            for figure in (_tests(f"{_title(case)}: tests while it learns", _of(results, case)), _curves(results, case))
        ]
        + _variant_figures(results, cases),
        claims=[claim for case in cases for claim in _claims(results, case)],
    )


def _case(result: Result) -> Case:
    return result.trial.condition["task"], result.trial.condition["variant"]


def _title(case: Case) -> str:
    return f"{case[0]}, {case[1]}"


def _of(results: list[Result], case: Case) -> dict[str, list[Result]]:
    return by_method(results, task=case[0], variant=case[1])


def _table(results: list[Result], case: Case) -> Table:
    rows = []
    for method, own in _of(results, case).items():
        values = np.array([it.outcome["return"] for it in own])
        early = mean_std([np.mean(it.outcome["returns"][: _width(it)]) for it in own])
        late = mean_std([np.mean(it.outcome["returns"][-_width(it) :]) for it in own])
        best = mean_std([max(filter(isfinite, it.outcome["checks"]), default=nan) for it in own])
        rows.append(
            [
                method,
                str(len(own)),
                spread_text(mean_std(values)),
                published(COLUMNS.get(case[0], ""), method),
                middle_text(values, "higher"),
                number(early.mean),
                number(late.mean),
                number(best.mean),
            ]
        )
    theirs = "the paper's" if case[1] == "specified" else "the paper's, not tuned"
    columns = ["method", "seeds", "ours", theirs, "interquartile mean", "at first", "at last", "best test"]
    width = _width(results[0])
    note = (
        "Mean and standard deviation over seeds, the paper's over 24. The interquartile mean of fewer than four seeds "
        f"is their mean. {HOW} At first and at last: means of {width} episodes of training, in which it "
        "explores; the first are nearly those of a random policy. Best test: the highest of those while it learns, "
        f"which flatters; the mean over seeds. {AS_PUBLISHED} "
        "The paper's algorithm was another in its details."
    )
    return Table(f"{_title(case)}: return", columns, rows, note)


def _variants(results: list[Result], cases: list[Case]) -> dict[str, dict[str, dict[str, list[Result]]]]:
    """By task, variant of the algorithm and method, of the tasks that have several variants."""
    found: dict[str, dict[str, dict[str, list[Result]]]] = {}
    for case in cases:
        found.setdefault(case[0], {})[case[1]] = _of(results, case)
    return {task: own for task, own in found.items() if len(own) > 1}


def _variant_tables(results: list[Result], cases: list[Case]) -> list[Table]:
    tables = []
    for task, own in _variants(results, cases).items():
        methods = list(dict.fromkeys(method for of in own.values() for method in of))
        rows = [[variant, *(_mean_return(of.get(method, [])) for method in methods)] for variant, of in own.items()]
        note = "Return of the final policy: mean and standard deviation over seeds."
        tables.append(Table(f"{task}: variants of the algorithm", ["variant", *methods], rows, note))
    return tables


def _variant_figures(results: list[Result], cases: list[Case]) -> list[Figure]:
    found = []
    for task, own in _variants(results, cases).items():
        ours = {variant: of[OURS] for variant, of in own.items() if OURS in of}
        if len(ours) > 1:
            found.append(_tests(f"{task}: variants, tests with {OURS}", ours))
    return found


def _mean_return(own: list[Result]) -> str:
    return spread_text(mean_std([it.outcome["return"] for it in own])) if own else ""


def _width(result: Result) -> int:
    """The number of episodes to average over."""
    return min(SMOOTH, max(1, len(result.outcome["returns"]) // 4))


def _smooth(result: Result) -> list[float]:
    width = _width(result)
    found: list[float] = np.convolve(result.outcome["returns"], np.ones(width) / width, "valid").tolist()
    return found


def _pairs(results: list[Result], case: Case) -> list[Table]:
    return in_pairs(f"{_title(case)}: beside AdaTerm", results, "return", "higher", task=case[0], variant=case[1])


def _speed(results: list[Result], cases: list[Case]) -> Table:
    """How fast it ran, in CPU seconds of training, and how long a trial would have taken from its first step on."""
    rows = []
    found = sorted({(cases.index(_case(it)), it.outcome["measured"]["together"]) for it in results})
    for case, together in ((cases[place], together) for place, together in found):
        own = [it for it in results if _case(it) == case and it.outcome["measured"]["together"] == together]
        steps, episodes, seconds = (
            sum(it.outcome["measured"][name] for it in own) for name in ("steps", "episodes", "seconds")
        )
        if seconds > 0.0:
            trial = seconds / steps * float(np.mean([it.outcome["steps"] for it in own])) / 3600.0
            speeds = [number(steps / seconds), number(episodes * own[0].trial.settings["batches"] / seconds)]
            rows.append(
                [_title(case), str(together), *speeds, *(number(it * trial) for it in (1, TABLE, TABLE / HERE))]
            )
    columns = [
        *("task", "side by side", "steps a second", "updates a second", "hours of a trial"),
        "of 24 seeds of 6 methods",
        f"of these on {HERE} cores",
    ]
    settings = results[0].trial.settings
    tests = settings["checks"] * settings["check_episodes"] + settings["test_episodes"]
    note = (
        f"Of one core, while it simulates and learns; the tests, {tests} episodes beside {settings['episodes']}, come "
        "on top. Side by side: seeds that shared a core, each with its share of the time. Hours of 24 seeds of 6 "
        f"methods are core hours. On a Ray cluster with a core for each trial (`--side-by-side 1`), {TABLE} in all, "
        "they take as long as one trial alone; more cores are of no use."
    )
    if any(it.outcome["measured"]["episodes"] < settings["episodes"] for it in results):
        note += (
            " Some trials were timed only from where they were resumed. Early episodes are short, with as many "
            "updates, so that the hours of these are somewhat too low."
        )
    return Table("Speed", columns, rows, note)


def _tests(title: str, own: dict[str, list[Result]]) -> Figure:
    values = {name: np.array([it.outcome["checks"] for it in of]) for name, of in own.items()}
    checked = next(iter(own.values()))[0].outcome["checked"]
    return Figure(
        title,
        lambda: figures.curves(checked, values, "return", xlabel="episode", log=False, better="higher"),
        f"Without exploration. {figures.CURVES}",
    )


def _curves(results: list[Result], case: Case) -> Figure:
    own = _of(results, case)
    values = {method: np.array([_smooth(it) for it in of]) for method, of in own.items()}
    points = next(iter(values.values())).shape[1]
    episodes = np.arange(points) + results[0].trial.settings["episodes"] - points + 1
    return Figure(
        f"{_title(case)}: episodes of training",
        lambda: figures.curves(episodes, values, "return", xlabel="episode", log=False, better="higher"),
        f"Means over {_width(results[0])} episodes of training. {figures.CURVES}",
    )


def _claims(results: list[Result], case: Case) -> list[Claim]:
    """The order of the paper's means, where it has any: it ran neither MuJoCo nor a tuned variant."""
    paper = PUBLISHED.get(COLUMNS.get(case[0], ""), {}) if case[1] == "specified" else {}
    claims = []
    for rival in CLAIMED:
        ours, own = shared(results, "return", OURS, rival, task=case[0], variant=case[1])
        if len(ours) and paper:
            found = paired_difference(ours, own, mean, better="higher")
            ahead = paper[OURS][0] > paper[rival.removesuffix(" (as published)")][0]
            text = (
                f"On {_title(case)}, the return of AdaTerm's final policy is {'above' if ahead else 'below'} {rival}'s."
            )
            wants: Literal["above", "below"] = "above" if ahead else "below"
            claims.append(Claim(text, f"AdaTerm's less {rival}'s, mean", *found[:3], note=found.note, wants=wants))
    return claims
