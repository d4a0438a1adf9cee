"""What the report shows of the regression."""

from math import inf

from adaterm_bench.core.section import Claim, Figure, Section, Table
from adaterm_bench.core.trial import Result
from adaterm_bench.methods import PAPER_METHODS
from adaterm_bench.reporting import figures
from adaterm_bench.reporting.comparison import RIVALS, compare_at_levels
from adaterm_bench.reporting.selection import Grid, select
from adaterm_bench.reporting.statistics import mean_std, median, quartiles, ratio_interval, trend

MAIN = (*RIVALS, "AdaTerm")
ON_PAR = 1.5


def section(results: list[Result]) -> Section:
    """Errors and degrees of freedom against noise, and the paper's claims."""
    errors = select(results, "error", "noise", list(PAPER_METHODS))
    dofs = select(results, "dof", "noise", list(PAPER_METHODS))
    variants = tuple(method for method in _list_variants(errors) if method != "AdaTerm")
    claims = [*claim_below(errors), *claim_below(errors, variants), *_claim_on_par(errors), *_claim_dof_falls(dofs)]
    return Section(
        "Regression",
        "A curve is learnt in one pass over samples, of which a share has noise with a Student's t-distribution of one "
        "degree of freedom. The error is the mean square over the curve without noise. Medians are shown: with such "
        "tails the means say little.",
        tables=[
            table_errors("Test error", errors),
            *compare_at_levels(
                "Test error", errors, [*(level for level in errors.levels if level == 0.1), *errors.levels[-1:]]
            ),
            table_errors("Median degrees of freedom of the tensors", dofs, 4),
        ],
        figures=[
            draw_errors("Test error", errors, "mean square error", MAIN),
            draw_errors("Test error of AdaTerm's variants", errors, "mean square error", _list_variants(errors)),
            draw_errors("Degrees of freedom", dofs, "median dof", ("AdaTerm", "Large init", "AdaTerm2")),
        ],
        claims=claims,
    )


def _list_variants(grid: Grid) -> tuple[str, ...]:
    return tuple(method for method in grid.values if method.startswith(("AdaTerm", "No ", "Large")))


def table_errors(title: str, grid: Grid, digits: int = 2) -> Table:
    """Medians and quartiles: methods by noise levels."""
    rows = []
    for method, values in grid.values.items():
        cells = []
        for level in values:
            low, middle, high = (float(quartile) for quartile in quartiles(level))
            diverged = mean_std(level).diverged
            lost = f", {diverged} diverged" if diverged else ""
            cells.append(f"{middle:.{digits}g} ({low:.{digits}g} to {high:.{digits}g})" + lost)
        rows.append([method, *cells])
    note = f"Median and quartiles of {len(grid.seeds)} trials.{grid.note}"
    return Table(title, ["method", *(f"{100 * level:g} %" for level in grid.levels)], rows, note)


def draw_errors(title: str, grid: Grid, ylabel: str, methods: tuple[str, ...]) -> Figure:
    """Some methods, and those that are not of the paper, against the noise level."""
    values = {
        method: value for method, value in grid.values.items() if method in methods or method not in PAPER_METHODS
    }
    percent = [100.0 * level for level in grid.levels]
    return Figure(
        title,
        lambda: figures.draw_against_noise(percent, values, ylabel, xlabel="noise, %"),
        "Lines: medians over trials; bands: quartiles.",
    )


def claim_below(grid: Grid, rivals: tuple[str, ...] = RIVALS, where: str = "") -> list[Claim]:
    """One claim for each rival: of the ratios at all noisy levels the least."""
    claims, levels = [], [level for level in grid.levels if level >= 0.1]
    for rival in rivals:
        if not levels or not {rival, "AdaTerm"} <= set(grid.values):
            continue
        ratios = [ratio_interval(grid.at(rival, level), grid.at("AdaTerm", level), median) for level in levels]
        estimate, low, high = (min(ratio[place] for ratio in ratios) for place in range(3))
        text = f"AdaTerm's test error is below that of {rival} {_format_levels(levels)}{where}."
        what = f"median error of {rival}, in AdaTerm's, at the worst level"
        claims.append(Claim(text, what, estimate, low, high, bound=1.0, note=ratios[0].note))
    return claims


def _format_levels(levels: list[float]) -> str:
    """Which levels were looked at."""
    if len(levels) == 1:
        return f"with {100 * levels[0]:g} % noise"
    return f"at every noise level from {100 * levels[0]:g} % to {100 * levels[-1]:g} %"


def _claim_on_par(grid: Grid) -> list[Claim]:
    levels = [level for level in grid.levels if level >= 0.1]
    if not levels or not {"AdaTerm2", "AdaTerm"} <= set(grid.values):
        return []
    ratios = [ratio_interval(grid.at("AdaTerm2", level), grid.at("AdaTerm", level), median) for level in levels]
    apart = [_measure_factor(*ratio[:3]) for ratio in ratios]
    estimate, low, high = (max(factors[place] for factors in apart) for place in range(3))
    text = f"AdaTerm2 is on par with AdaTerm: they differ by less than a factor of {ON_PAR} {_format_levels(levels)}."
    what = "factor between the median errors, at the worst level"
    return [Claim(text, what, estimate, low, high, bound=ON_PAR, note=ratios[0].note, wants="below")]


def _measure_factor(estimate: float, low: float, high: float) -> tuple[float, float, float]:
    """A ratio and its interval as factors above 1, whichever side is larger."""
    factors = [inf if ratio <= 0.0 else max(ratio, 1.0 / ratio) for ratio in (estimate, low, high)]
    return factors[0], 1.0 if low <= 1.0 <= high else min(factors[1:]), max(factors[1:])


def _claim_dof_falls(grid: Grid) -> list[Claim]:
    if "AdaTerm" not in grid.values or len(grid.levels) < 2:
        return []
    values = grid.values["AdaTerm"]
    correlation = trend(grid.levels, values)
    first, last = (float(median(value)) for value in (values[0], values[-1]))
    note = f"From {first:.4f} to {last:.4f}; the least value there is is 1."
    text = "AdaTerm's degrees of freedom fall as the share of noisy samples rises."
    return [Claim(text, "rank correlation of noise and dof", *correlation[:3], note=note, wants="below")]
