"""What the report shows of the regression, and of its batch sizes."""

from math import inf

from adaterm import PAPER
from adaterm_bench import figures
from adaterm_bench.comparison import RIVALS, at_levels
from adaterm_bench.report import Claim, Figure, Section, Table
from adaterm_bench.selection import Grid, selected
from adaterm_bench.statistics import mean_std, median, quartiles, ratio_interval, trend
from adaterm_bench.trial import Result

MAIN = (*RIVALS, "AdaTerm")
ON_PAR = 1.5


def section(results: list[Result]) -> Section:
    """Errors and degrees of freedom against noise, and the paper's claims."""
    errors = selected(results, "error", "noise", list(PAPER))
    dofs = selected(results, "dof", "noise", list(PAPER))
    variants = tuple(method for method in _variants(errors) if method != "AdaTerm")
    claims = [*_below_all(errors), *_below_all(errors, variants), *_on_par(errors), *_dof_falls(dofs)]
    return Section(
        "Regression",
        "A curve is learnt in one pass over samples, of which a share has noise with a Student's t-distribution of one "
        "degree of freedom. The error is the mean square over the curve without noise. Medians are shown: with such "
        "tails the means say little.",
        tables=[
            _table("Test error", errors),
            *at_levels("Test error", errors, [*(it for it in errors.levels if it == 0.1), *errors.levels[-1:]]),
            _table("Median degrees of freedom of the tensors", dofs, 4),
        ],
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
            claims.append(Claim(text, "ratio of the median errors", *found[:3], bound=1.0, note=found.note))
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
    note = f"Median and quartiles of {len(grid.seeds)} trials.{grid.note}"
    return Table(title, ["method", *(f"{100 * level:g} %" for level in grid.levels)], rows, note)


def _against(title: str, grid: Grid, ylabel: str, methods: tuple[str, ...]) -> Figure:
    shown = {method: it for method, it in grid.values.items() if method in methods or method not in PAPER}
    percent = [100.0 * level for level in grid.levels]
    return Figure(
        title,
        lambda: figures.against_noise(percent, shown, ylabel, xlabel="noise, %"),
        "Lines: medians over trials; bands: quartiles.",
    )


def _below_all(grid: Grid, rivals: tuple[str, ...] = RIVALS, where: str = "") -> list[Claim]:
    """One claim for each rival: of the ratios at all noisy levels the least."""
    claims, levels = [], [level for level in grid.levels if level >= 0.1]
    for rival in rivals:
        if not levels or not {rival, "AdaTerm"} <= set(grid.values):
            continue
        found = [ratio_interval(grid.at(rival, level), grid.at("AdaTerm", level), median) for level in levels]
        estimate, low, high = (min(it[place] for it in found) for place in range(3))
        text = f"AdaTerm's test error is below that of {rival} {_at(levels)}{where}."
        what = f"median error of {rival}, in AdaTerm's, at the worst level"
        claims.append(Claim(text, what, estimate, low, high, bound=1.0, note=found[0].note))
    return claims


def _at(levels: list[float]) -> str:
    """Which levels were looked at."""
    if len(levels) == 1:
        return f"with {100 * levels[0]:g} % noise"
    return f"at every noise level from {100 * levels[0]:g} % to {100 * levels[-1]:g} %"


def _on_par(grid: Grid) -> list[Claim]:
    levels = [level for level in grid.levels if level >= 0.1]
    if not levels or not {"AdaTerm2", "AdaTerm"} <= set(grid.values):
        return []
    found = [ratio_interval(grid.at("AdaTerm2", level), grid.at("AdaTerm", level), median) for level in levels]
    apart = [_apart(*it[:3]) for it in found]
    estimate, low, high = (max(it[place] for it in apart) for place in range(3))
    text = f"AdaTerm2 is on par with AdaTerm: they differ by less than a factor of {ON_PAR} {_at(levels)}."
    what = "factor between the median errors, at the worst level"
    return [Claim(text, what, estimate, low, high, bound=ON_PAR, note=found[0].note, wants="below")]


def _apart(estimate: float, low: float, high: float) -> tuple[float, float, float]:
    """A ratio and its interval as factors above 1, whichever side is larger."""
    factors = [inf if it <= 0.0 else max(it, 1.0 / it) for it in (estimate, low, high)]
    return factors[0], 1.0 if low <= 1.0 <= high else min(factors[1:]), max(factors[1:])


def _dof_falls(grid: Grid) -> list[Claim]:
    if "AdaTerm" not in grid.values or len(grid.levels) < 2:
        return []
    values = grid.values["AdaTerm"]
    found = trend(grid.levels, values)
    first, last = (float(median(it)) for it in (values[0], values[-1]))
    note = f"From {first:.4f} to {last:.4f}; the least value there is is 1."
    text = "AdaTerm's degrees of freedom fall as the share of noisy samples rises."
    return [Claim(text, "rank correlation of noise and dof", *found[:3], note=note, wants="below")]
