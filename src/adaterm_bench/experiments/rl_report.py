"""What the report shows of the reinforcement learning."""

from typing import Literal

import numpy as np

from adaterm_bench import figures
from adaterm_bench.comparison import OURS, RIVALS, by_method, in_pairs, shared, spread_text
from adaterm_bench.environments import TASKS
from adaterm_bench.published import PUBLISHED
from adaterm_bench.report import Claim, Figure, Section, Table, number, plus_minus
from adaterm_bench.statistics import interquartile_mean, mean, mean_std, paired_difference, with_worst
from adaterm_bench.trial import Result

COLUMNS = {"Hopper": "rl_hopper", "Ant": "rl_ant"}
SMOOTH = 50  # episodes over which learning curves are averaged
Case = tuple[str, str]  # a task and a variant of the algorithm


def section(results: list[Result]) -> Section:
    """Learning curves, returns beside the paper's, and its claims."""
    cases = sorted({_case(it) for it in results}, key=lambda it: (list(TASKS).index(it[0]), it[1]))
    return Section(
        "Reinforcement learning",
        "An actor-critic in the manner of PPO-RPE learns after each episode from a replay of its last 10,000 steps. "
        "Returns are those of the final policy in test episodes, without exploration. The first curves are of such "
        "tests while it learns, the others of the episodes that it learns from, in which it explores.",
        tables=[table for case in cases for table in (_table(results, case), *_pairs(results, case))]
        + [_speed(results)],
        figures=[figure for case in cases for figure in (_tests(results, case), _curves(results, case))],
        claims=[claim for case in cases for claim in _claims(results, case)],
    )


def _case(result: Result) -> Case:
    return result.trial.condition["task"], result.trial.condition["variant"]


def _title(case: Case) -> str:
    return case[0] if case[1] == "specified" else f"{case[0]}, {case[1]}"


def _of(results: list[Result], case: Case) -> dict[str, list[Result]]:
    return by_method(results, task=case[0], variant=case[1])


def _table(results: list[Result], case: Case) -> Table:
    paper = PUBLISHED.get(COLUMNS.get(case[0], ""), {})
    rows = []
    for method, own in _of(results, case).items():
        values = np.array([it.outcome["return"] for it in own])
        late = [np.mean(it.outcome["returns"][-SMOOTH:]) for it in own]
        best = [np.max(it.outcome["checks"]) for it in own]
        spread = mean_std(values)
        rows.append(
            [
                method,
                str(len(own)),
                spread_text(spread),
                plus_minus(*paper[method]) if method in paper else "",
                number(float(interquartile_mean(with_worst(values, "higher")))),
                number(float(np.mean(late))),
                number(float(np.mean(best))),
            ]
        )
    columns = ["method", "seeds", "ours", "the paper's", "interquartile mean", "while exploring", "best test"]
    note = (
        "Mean and standard deviation over seeds, the paper's over 24. While exploring: the mean of the last "
        f"{SMOOTH} episodes of training. Best test: of those while it learns, the mean over seeds."
    )
    return Table(f"{_title(case)}: return", columns, rows, note)


def _smooth(returns: list[float]) -> list[float]:
    width = min(SMOOTH, len(returns))
    found: list[float] = np.convolve(returns, np.ones(width) / width, "valid").tolist()
    return found


def _pairs(results: list[Result], case: Case) -> list[Table]:
    return in_pairs(f"{_title(case)}: beside AdaTerm", results, "return", "higher", task=case[0], variant=case[1])


def _speed(results: list[Result]) -> Table:
    """How fast it ran: trials share the core of their batch."""
    rows = []
    for task in dict.fromkeys(it.trial.condition["task"] for it in results):
        own = [it.outcome for it in results if it.trial.condition["task"] == task]
        seconds, steps, updates = (sum(it[name] for it in own) for name in ("seconds", "steps", "updates"))
        hours = seconds / len(own) * 24 * len((OURS, *RIVALS)) / 3600.0
        rows.append(
            [task, number(steps / seconds), number(updates / seconds), f"{seconds / len(own):.0f} s", number(hours)]
        )
    columns = ["task", "steps a second", "updates a second", "a trial", "core hours of 24 seeds of 6 methods"]
    return Table("Speed, of one core", columns, rows, "Cores are shared with whatever else runs on the machine.")


def _tests(results: list[Result], case: Case) -> Figure:
    own = _of(results, case)
    shortest = min(len(it.outcome["checks"]) for of in own.values() for it in of)
    values = {method: np.array([it.outcome["checks"][:shortest] for it in of]) for method, of in own.items()}
    checked = next(iter(own.values()))[0].outcome["checked"][:shortest]
    return Figure(
        f"{_title(case)}: tests while it learns",
        lambda: figures.curves(checked, values, "return", xlabel="episode", log=False, better="higher"),
        "Without exploration. Lines: medians over seeds; bands: quartiles.",
    )


def _curves(results: list[Result], case: Case) -> Figure:
    own = _of(results, case)
    shortest = min(len(it.outcome["returns"]) for of in own.values() for it in of)
    values = {method: np.array([_smooth(it.outcome["returns"][:shortest]) for it in of]) for method, of in own.items()}
    points = len(next(iter(values.values()))[0])
    episodes = np.arange(points) + min(SMOOTH, shortest)
    return Figure(
        f"{_title(case)}: episodes of training",
        lambda: figures.curves(episodes, values, "return", xlabel="episode", log=False, better="higher"),
        f"Means over {SMOOTH} episodes of training. Lines: medians over seeds; bands: quartiles.",
    )


def _claims(results: list[Result], case: Case) -> list[Claim]:
    """The order of the paper's means, where it has any: it ran neither MuJoCo nor a tuned variant."""
    paper = PUBLISHED.get(COLUMNS.get(case[0], ""), {}) if case[1] == "specified" else {}
    claims = []
    for rival in RIVALS:
        ours, own = shared(results, "return", OURS, rival, task=case[0], variant=case[1])
        if len(ours) and paper:
            found = paired_difference(ours, own, mean, better="higher")
            ahead = paper[OURS][0] > paper[rival][0]
            text = (
                f"On {_title(case)}, the return of AdaTerm's final policy is {'above' if ahead else 'below'} {rival}'s."
            )
            wants: Literal["above", "below"] = "above" if ahead else "below"
            claims.append(Claim(text, f"AdaTerm's less {rival}'s, mean", *found[:3], note=found.note, wants=wants))
    return claims
