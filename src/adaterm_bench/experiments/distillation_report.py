"""What the report shows of the policy distillation."""

import numpy as np

from adaterm_bench import figures
from adaterm_bench.comparison import OURS, RIVALS, compared
from adaterm_bench.published import PUBLISHED
from adaterm_bench.report import Claim, Figure, Section, Table, number, plus_minus
from adaterm_bench.selection import Grid, selected
from adaterm_bench.statistics import interquartile_mean, mean, mean_std, paired_difference
from adaterm_bench.trial import Result

COLUMNS = {"without": "distillation_without_amateur", "with": "distillation_with_amateur"}


def section(results: list[Result]) -> Section:
    """Returns beside the paper's, and its claims."""
    grid = selected(results, "return", "amateur", [*RIVALS, OURS])
    return Section(
        "Policy distillation",
        "Small networks learn by heart what three teachers do, without and with an amateur among them, and are then "
        "tested in the teachers' task. The teachers are ours, so that returns cannot be compared with the paper's.",
        tables=[
            table
            for level in grid.levels
            for table in (_table(grid, level), *compared(f"{_name(level)}: beside AdaTerm", grid, level, "higher"))
        ],
        figures=[_figure(grid, level) for level in grid.levels],
        claims=[claim for level in grid.levels for claim in _claims(grid, level)],
    )


def _name(level: str) -> str:
    return f"{level.capitalize()} the amateur"


def _table(grid: Grid, level: str) -> Table:
    paper, rows = PUBLISHED[COLUMNS[level]], []
    for method in grid.values:
        values = grid.at(method, level)
        spread = mean_std(values)
        ours = number(spread.mean) if spread.seeds == 1 else plus_minus(spread.mean, spread.std)
        theirs = plus_minus(*paper[method]) if method in paper else ""
        rows.append([method, ours, theirs, number(float(interquartile_mean(np.asarray(values))))])
    note = (
        f"Return of the student: mean and standard deviation of {len(grid.seeds)} seeds, the paper's of 24.{grid.note}"
    )
    return Table(f"{_name(level)}: return", ["method", "ours", "the paper's", "interquartile mean"], rows, note)


def _figure(grid: Grid, level: str) -> Figure:
    values = {method: grid.at(method, level) for method in grid.values}
    return Figure(
        f"{_name(level)}: students",
        lambda: figures.bars_with_spread(values, "return", start=None),
        "Dots: seeds; markers: mean and standard deviation.",
    )


def _claims(grid: Grid, level: str) -> list[Claim]:
    claims = []
    for rival in RIVALS:
        if {rival, OURS} <= set(grid.values):
            found = paired_difference(grid.at(OURS, level), grid.at(rival, level), mean, better="higher")
            text = f"{_name(level)}, AdaTerm's students have a higher return than those of {rival}."
            claims.append(Claim(text, "mean difference", *found[:3], note=found.note))
    return claims
