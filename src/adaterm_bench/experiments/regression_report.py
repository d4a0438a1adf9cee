"""What the report shows of the regression, and of its batch sizes."""

from math import inf

from adaterm import PAPER
from adaterm_bench import figures
from adaterm_bench.report import Claim, Figure, Section, Table
from adaterm_bench.selection import Grid, selected
from adaterm_bench.statistics import mean_std, median, quartiles, ratio_interval, trend
from adaterm_bench.trial import Result

RIVALS = ("Adam", "AdaBelief", "RAdam", "t-Adam", "At-Adam")
MAIN = (*RIVALS, "AdaTerm")
ON_PAR = 1.5


def section(results: list[Result]) -> Section:
    """Errors and degrees of freedom against noise, and the paper's claims."""
    errors = selected(results, "error", "noise", list(PAPER))
    dofs = selected(results, "dof", "noise", list(PAPER))
    claims = [*_below_all(errors), *_on_par(errors), *_dof_falls(dofs)]
    return Section(
        "Regression",
        "A curve is learnt in one pass over samples, of which a share has noise with a Student's t-distribution of one "
        "degree of freedom. The error is the mean square over the curve without noise. Medians are shown: with such "
        "tails the means say little.",
        tables=[_table("Test error", errors), _table("Median degrees of freedom of the tensors", dofs, 4)],
        figures=[
            _against("Test error", errors, "mean square error", MAIN),
            _against("Test error of AdaTerm's variants", errors, "mean square error", _variants(errors)),
            _against("Degrees of freedom", dofs, "median dof", ("AdaTerm", "Large init", "AdaTerm2")),
        ],
        claims=claims,
    )


def batch_section(results: list[Result]) -> Section:
    """Errors against noise for every batch size."""
    sizes = sorted({it.trial.condition["batch_size"] for it in results})
    grids = {size: selected(results, "error", "noise", list(PAPER), batch_size=size) for size in sizes}
    across = selected([it for it in results if it.trial.condition["noise"] == 0.0], "error", "batch_size", list(PAPER))
    claims = []
    for method in MAIN if len(across.levels) > 1 else ():
        if method in across.values:
            smallest, largest = across.levels[0], across.levels[-1]
            found = ratio_interval(across.at(method, largest), across.at(method, smallest), median)
            text = f"Without noise, the error of {method} grows with the batch (from {smallest} to {largest})."
            claims.append(Claim(text, "ratio of the median errors", *found[:3], bound=1.0))
    for size, grid in grids.items():
        claims += _below_all(grid, ("Adam",), f" with batches of {size}")
    return Section(
        "Batch sizes",
        "The same regression with other batches: large ones hide wrong samples among right ones and leave fewer steps.",
        tables=[_table(f"Test error, batches of {size}", grid) for size, grid in grids.items()],
        figures=[
            _against(f"Test error, batches of {size}", grid, "mean square error", MAIN) for size, grid in grids.items()
        ],
        claims=claims,
    )


def _variants(grid: Grid) -> tuple[str, ...]:
    return tuple(method for method in grid.values if method.startswith(("AdaTerm", "No ", "Large")))


def _table(title: str, grid: Grid, digits: int = 2) -> Table:
    rows = []
    for method, values in grid.values.items():
        cells = []
        for level in values:
            low, middle, high = (float(it) for it in quartiles(level))
            diverged = mean_std(level).diverged
            lost = f", {diverged} diverged" if diverged else ""
            cells.append(f"{middle:.{digits}g} ({low:.{digits}g} to {high:.{digits}g})" + lost)
        rows.append([method, *cells])
    note = f"Median and quartiles of {len(grid.seeds)} trials."
    return Table(title, ["method", *(f"{level:.0%}" for level in grid.levels)], rows, note)


def _against(title: str, grid: Grid, ylabel: str, methods: tuple[str, ...]) -> Figure:
    shown = {method: it for method, it in grid.values.items() if method in methods or method not in PAPER}
    percent = [100.0 * level for level in grid.levels]
    return Figure(
        title,
        lambda: figures.against_noise(percent, shown, ylabel, xlabel="noise, %"),
        "Lines: medians over trials; bands: quartiles.",
    )


def _below_all(grid: Grid, rivals: tuple[str, ...] = RIVALS, where: str = "") -> list[Claim]:
    """One claim for each rival, and at each the least of the ratios at all levels from 10 %."""
    claims, levels = [], [level for level in grid.levels if level >= 0.1]
    for rival in rivals:
        if not levels or not {rival, "AdaTerm"} <= set(grid.values):
            continue
        found = [ratio_interval(grid.at(rival, level), grid.at("AdaTerm", level), median)[:3] for level in levels]
        estimate, low, high = (min(column) for column in zip(*found, strict=True))
        text = f"AdaTerm's test error is below that of {rival} at every noise level from 10 %{where}."
        claims.append(Claim(text, "least ratio of the median errors", estimate, low, high, bound=1.0))
    return claims


def _on_par(grid: Grid) -> list[Claim]:
    levels = [level for level in grid.levels if level >= 0.1]
    if not levels or not {"AdaTerm2", "AdaTerm"} <= set(grid.values):
        return []
    worst = (0.0, -inf, inf)
    for level in levels:
        estimate, low, high, *_ = ratio_interval(grid.at("AdaTerm2", level), grid.at("AdaTerm", level), median)
        apart = [max(it, 1.0 / it) for it in (estimate, low, high)]
        least = 1.0 if low <= 1.0 <= high else min(apart[1:])
        if ON_PAR - apart[0] < worst[0] or worst[1] == -inf:
            worst = (ON_PAR - apart[0], ON_PAR - max(apart[1:]), ON_PAR - least)
    text = f"AdaTerm2 is on par with AdaTerm: at no noise level from 10 % do they differ by a factor of {ON_PAR}."
    return [Claim(text, f"{ON_PAR} less the largest factor", *worst)]


def _dof_falls(grid: Grid) -> list[Claim]:
    if "AdaTerm" not in grid.values or len(grid.levels) < 2:
        return []
    values = grid.values["AdaTerm"]
    estimate, low, high, *_ = trend(grid.levels, values)
    first, last = (float(median(it)) for it in (values[0], values[-1]))
    note = f"From {first:.4f} to {last:.4f}: in so short a run they hardly leave their least value, which is 1."
    text = "AdaTerm's degrees of freedom fall as the share of noisy samples rises."
    return [Claim(text, "rank correlation of noise and dof, with its sign turned", -estimate, -high, -low, note=note)]
