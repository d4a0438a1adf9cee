"""What the report shows of the reinforcement learning."""

from math import isfinite, nan

import numpy as np

from adaterm_bench.core.section import Figure, Section, Table
from adaterm_bench.core.trial import Result, canonical
from adaterm_bench.datasets.data import DataError
from adaterm_bench.datasets.environments import TASKS
from adaterm_bench.experiments.rl.claims import COLUMNS, Case, make_claims, tabulate_returns_checks
from adaterm_bench.experiments.rl.experiment import VARIANTS
from adaterm_bench.reporting import figures
from adaterm_bench.reporting.comparison import (
    OURS,
    RIVALS,
    compare_in_pairs,
    describe_how,
    describe_middle,
    describe_spread,
    group_by_method,
    list_by_seed,
)
from adaterm_bench.reporting.each_seed import show_each_seed
from adaterm_bench.reporting.published import AS_PUBLISHED, find_published
from adaterm_bench.reporting.statistics import mean_std
from adaterm_bench.reporting.text import format_number

SMOOTH = 50  # episodes over which learning curves are averaged
HERE = 2  # cores that times are projected for
TABLE = 24 * len((OURS, *RIVALS))  # trials of the paper's table


def section(results: list[Result]) -> Section:
    """Learning curves, returns next to the paper's, and its claims."""
    present = {_find_case(result) for result in results}
    cases = [(task, variant) for task in TASKS for variant in VARIANTS if (task, variant) in present]
    for case in cases:
        if len({canonical(result.trial.condition["choices"]) for result in results if _find_case(result) == case}) > 1:
            raise DataError(f"these results of {_name_case(case)} are of variants that differ: keep them apart")
    returns = {case: list_by_seed(_select_results(results, case), "return") for case in cases}
    return Section(
        "Reinforcement learning",
        "An actor-critic in the manner of PPO-RPE learns after each episode from a replay of its last 10,000 steps. "
        "Returns are those of the final policy in test episodes, without exploration. The first curves are of such "
        "tests while it learns, the others of the episodes that it learns from, in which it explores.",
        tables=[table for case in cases for table in (_make_table(results, case), *_compare_pairs(results, case))]
        + [*_tabulate_variants(results, cases), *tabulate_returns_checks(returns), _tabulate_speed(results, cases)],
        figures=[
            figure
            for case in cases
            for figure in (
                _draw_tests(f"{_name_case(case)}: tests while it learns", _select_results(results, case)),
                *_draw_seeds(results, case),
                _draw_curves(results, case),
            )
        ]
        + _draw_variants(results, cases),
        claims=make_claims(returns),
    )


def _find_case(result: Result) -> Case:
    return result.trial.condition["task"], result.trial.condition["variant"]


def _name_case(case: Case) -> str:
    return f"{case[0]}, {case[1]}"


def _select_results(results: list[Result], case: Case) -> dict[str, list[Result]]:
    return group_by_method(results, task=case[0], variant=case[1])


def _make_table(results: list[Result], case: Case) -> Table:
    rows = []
    for method, runs in _select_results(results, case).items():
        values = np.array([result.outcome["return"] for result in runs])
        early = mean_std([np.mean(result.outcome["returns"][: _choose_width(result)]) for result in runs])
        late = mean_std([np.mean(result.outcome["returns"][-_choose_width(result) :]) for result in runs])
        best = mean_std([max(filter(isfinite, result.outcome["checks"]), default=nan) for result in runs])
        rows.append(
            [
                method,
                str(len(runs)),
                describe_spread(mean_std(values)),
                find_published(COLUMNS.get(case[0], ""), method),
                describe_middle(values, "higher"),
                format_number(early.mean),
                format_number(late.mean),
                format_number(best.mean),
            ]
        )
    theirs = "the paper's" if case[1] in ("specified", "adaptive") else "the paper's, not tuned"
    columns = ["method", "seeds", "ours", theirs, "interquartile mean", "at first", "at last", "best test"]
    width = _choose_width(results[0])
    note = (
        "Mean and standard deviation over seeds, the paper's over 24. The interquartile mean of fewer than four seeds "
        f"is their mean. {describe_how(results)} At first and at last: means of {width} episodes of training, in which "
        "it explores; the first are nearly those of a random policy. Best test: the highest of those while it learns, "
        f"which flatters; the mean over seeds. {AS_PUBLISHED} "
        "The paper's algorithm was another in its details."
    )
    return Table(f"{_name_case(case)}: return", columns, rows, note)


def _group_variants(results: list[Result], cases: list[Case]) -> dict[str, dict[str, dict[str, list[Result]]]]:
    """By task, variant of the algorithm and method, of the tasks that have several variants."""
    by_task: dict[str, dict[str, dict[str, list[Result]]]] = {}
    for case in cases:
        by_task.setdefault(case[0], {})[case[1]] = _select_results(results, case)
    return {task: variants for task, variants in by_task.items() if len(variants) > 1}


def _tabulate_variants(results: list[Result], cases: list[Case]) -> list[Table]:
    tables = []
    for task, variants in _group_variants(results, cases).items():
        methods = list(dict.fromkeys(method for runs in variants.values() for method in runs))
        rows = [
            [variant, *(_describe_return(runs.get(method, [])) for method in methods)]
            for variant, runs in variants.items()
        ]
        note = "Return of the final policy: mean and standard deviation over seeds."
        tables.append(Table(f"{task}: variants of the algorithm", ["variant", *methods], rows, note))
    return tables


def _draw_variants(results: list[Result], cases: list[Case]) -> list[Figure]:
    figures_drawn = []
    for task, variants in _group_variants(results, cases).items():
        ours = {variant: runs[OURS] for variant, runs in variants.items() if OURS in runs}
        if len(ours) > 1:
            figures_drawn.append(_draw_tests(f"{task}: variants, tests with {OURS}", ours))
    return figures_drawn


def _describe_return(runs: list[Result]) -> str:
    return describe_spread(mean_std([result.outcome["return"] for result in runs])) if runs else ""


def _choose_width(result: Result) -> int:
    """The number of episodes to average over."""
    return min(SMOOTH, max(1, len(result.outcome["returns"]) // 4))


def _smooth(result: Result) -> list[float]:
    width = _choose_width(result)
    means: list[float] = np.convolve(result.outcome["returns"], np.ones(width) / width, "valid").tolist()
    return means


def _compare_pairs(results: list[Result], case: Case) -> list[Table]:
    return compare_in_pairs(
        f"{_name_case(case)}: compared with AdaTerm", results, "return", "higher", task=case[0], variant=case[1]
    )


def _tabulate_speed(results: list[Result], cases: list[Case]) -> Table:
    """How fast it ran, in CPU seconds of training, and how long a trial would have taken from its first step on."""
    rows = []
    groups = sorted({(cases.index(_find_case(result)), result.outcome["measured"]["together"]) for result in results})
    for case, together in ((cases[place], together) for place, together in groups):
        runs = [
            result
            for result in results
            if _find_case(result) == case and result.outcome["measured"]["together"] == together
        ]
        steps, episodes, seconds = (
            sum(result.outcome["measured"][name] for result in runs) for name in ("steps", "episodes", "seconds")
        )
        if seconds > 0.0:
            trial = seconds / steps * float(np.mean([result.outcome["steps"] for result in runs])) / 3600.0
            speeds = [
                format_number(steps / seconds),
                format_number(episodes * runs[0].trial.settings["batches"] / seconds),
            ]
            rows.append(
                [
                    _name_case(case),
                    str(together),
                    *speeds,
                    *(format_number(times * trial) for times in (1, TABLE, TABLE / HERE)),
                ]
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
    if any(result.outcome["measured"]["episodes"] < settings["episodes"] for result in results):
        note += (
            " Some trials were timed only from where they were resumed. Early episodes are short, with as many "
            "updates, so that the hours of these are somewhat too low."
        )
    return Table("Speed", columns, rows, note)


def _draw_tests(title: str, runs: dict[str, list[Result]]) -> Figure:
    values = {name: np.array([result.outcome["checks"] for result in results]) for name, results in runs.items()}
    checked = next(iter(runs.values()))[0].outcome["checked"]
    return Figure(
        title,
        lambda: figures.draw_curves(checked, values, "return", xlabel="episode", log=False, better="higher"),
        f"Without exploration. {figures.CURVES}",
    )


def _draw_seeds(results: list[Result], case: Case) -> list[Figure]:
    runs = _select_results(results, case)
    values = {method: [result.outcome["checks"] for result in group] for method, group in runs.items()}
    checked, what = next(iter(runs.values()))[0].outcome["checked"], "Tests while it learns, without exploration."
    return show_each_seed(f"{_name_case(case)}: every seed", checked, values, "return", "episode", what)


def _draw_curves(results: list[Result], case: Case) -> Figure:
    runs = _select_results(results, case)
    values = {method: np.array([_smooth(result) for result in group]) for method, group in runs.items()}
    points = next(iter(values.values())).shape[1]
    episodes = np.arange(points) + results[0].trial.settings["episodes"] - points + 1
    return Figure(
        f"{_name_case(case)}: episodes of training",
        lambda: figures.draw_curves(episodes, values, "return", xlabel="episode", log=False, better="higher"),
        f"Means over {_choose_width(results[0])} episodes of training. {figures.CURVES}",
    )
