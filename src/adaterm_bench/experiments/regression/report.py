"""What the report shows of the regression."""

from functools import partial
from math import nan

from adaterm_bench.core.section import Claim, Figure, Section, Table
from adaterm_bench.core.trial import Result
from adaterm_bench.methods import OUR_METHODS, PAPER_METHODS
from adaterm_bench.reporting import figures
from adaterm_bench.reporting.claims import FEWER, Check, Sentence, correct_families, make_claim, tabulate_checks
from adaterm_bench.reporting.comparison import RIVALS, compare_at_levels
from adaterm_bench.reporting.intervals import Bootstrap, Interval
from adaterm_bench.reporting.pooling import pooled_ratio
from adaterm_bench.reporting.selection import Grid, select
from adaterm_bench.reporting.statistics import mean_std, median, quartiles, trend
from adaterm_bench.reporting.text import format_number

MAIN = (*RIVALS, "AdaTerm")
NOT_ROBUST, ROBUST = RIVALS[:3], (*RIVALS[3:], "t-Adam (as published)", "At-Adam (as published)")
ON_PAR = 1.5
LEAST = 0.1  # share of noisy samples from which methods are compared

MORE_ROBUST = Sentence(
    "AdaTerm is even more robust than t-Adam and At-Adam.", "section 5.2, figure 10", "a figure without numbers"
)
CONSTANT = Sentence(
    "AdaTerm's test loss is almost constant over all noise ratios.",
    "section 5.2, figure 10",
    "a figure without numbers",
)
PAR = Sentence("AdaTerm2 is on par with AdaTerm on the regression.", "appendix H", "a figure without numbers")
BELOW_PLAIN = Sentence("On noisy samples AdaTerm is ahead of methods that are not robust.")
BELOW_VARIANTS = Sentence("On noisy samples AdaTerm is ahead of its variants.")
BELOW_OURS = Sentence("On noisy samples AdaTerm is ahead of RobustAdamW.")


def section(results: list[Result]) -> Section:
    """Errors and degrees of freedom against noise, and the paper's claims."""
    errors = select(results, "error", "noise", list(PAPER_METHODS))
    dofs = select(results, "dof", "noise", list(PAPER_METHODS))
    variants = tuple(method for method in _list_variants(errors) if method != "AdaTerm")
    claims = [
        *claim_below(errors, ROBUST, MORE_ROBUST),
        *_claim_constant(errors),
        *_claim_on_par(errors),
        *claim_below(errors, NOT_ROBUST, BELOW_PLAIN),
        *claim_below(errors, variants, BELOW_VARIANTS),
        *claim_below(errors, tuple(OUR_METHODS), BELOW_OURS),
        *_claim_dof_falls(dofs),
    ]
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
            *check_levels(errors),
        ],
        figures=[
            draw_errors("Test error", errors, "mean square error", MAIN),
            draw_errors("Test error of AdaTerm's variants", errors, "mean square error", _list_variants(errors)),
            draw_errors("Degrees of freedom", dofs, "median dof", ("AdaTerm", "Large init", "AdaTerm2")),
        ],
        claims=correct_families(claims),
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


def check_levels(grid: Grid) -> list[Table]:
    """What the claims' statistic finds of AdaTerm beside itself."""
    noisy = [place for place, level in enumerate(grid.levels) if level >= LEAST]
    if "AdaTerm" not in grid.values or not noisy:
        return []
    check = Check(grid.values["AdaTerm"][noisy], partial(pooled_ratio, bootstrap=FEWER), 1.0)
    return tabulate_checks({f"errors, {_format_levels(grid, noisy).lower()}": check})


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


def claim_below(grid: Grid, rivals: tuple[str, ...], sentence: Sentence, where: str = "") -> list[Claim]:
    """One claim for each rival: the ratio over all noisy levels at once."""
    claims, noisy = [], [place for place, level in enumerate(grid.levels) if level >= LEAST]
    for rival in rivals:
        if not noisy or not {rival, "AdaTerm"} <= set(grid.values):
            continue
        ratio = _compare_levels(grid, rival, noisy)
        each = {grid.levels[place]: _compare_levels(grid, rival, [place]).estimate for place in noisy}
        least = min(each, key=lambda level: each[level])
        text = f"{_format_levels(grid, noisy)}{where}, AdaTerm's test error is below that of {rival}."
        what = f"error of {rival} over AdaTerm's, geometric mean over noise levels and seeds"
        note = f"least at {100 * least:g} % noise: {format_number(each[least])}"
        claims.append(make_claim(sentence, text, what, ratio, bound=1.0, note=note))
    return claims


def _compare_levels(grid: Grid, rival: str, places: list[int]) -> Interval:
    first, second = (grid.values[method][places] for method in (rival, "AdaTerm"))
    return pooled_ratio(first, second, bootstrap=Bootstrap(against=1.0))


def _format_levels(grid: Grid, places: list[int]) -> str:
    """Which levels were looked at."""
    first, last = (f"{100 * grid.levels[place]:g} %" for place in (places[0], places[-1]))
    return f"With {first} noise" if first == last else f"From {first} to {last} noise"


def _claim_constant(grid: Grid) -> list[Claim]:
    if "AdaTerm" not in grid.values or grid.levels[:1] != [0.0] or len(grid.levels) < 2:
        return []
    values = grid.values["AdaTerm"]
    ratio = pooled_ratio(values[-1], values[0])
    text = f"AdaTerm's test error is almost constant from 0 to {100 * grid.levels[-1]:g} % noise."
    what = "its error with most noise over that without, geometric mean over seeds"
    note = "The bound is ours: twice is almost constant"
    return [make_claim(CONSTANT, text, what, ratio, bound=2.0, wants="within", note=note)]


def _claim_on_par(grid: Grid) -> list[Claim]:
    noisy = [place for place, level in enumerate(grid.levels) if level >= LEAST]
    if not noisy or not {"AdaTerm2", "AdaTerm"} <= set(grid.values):
        return []
    ratio = _compare_levels(grid, "AdaTerm2", noisy)._replace(chance=nan)
    text = f"{_format_levels(grid, noisy)}, AdaTerm2 is on par with AdaTerm: within a factor of {ON_PAR}."
    what = "AdaTerm2's error over AdaTerm's, geometric mean over noise levels and seeds"
    return [make_claim(PAR, text, what, ratio, bound=ON_PAR, wants="within", note="The factor is ours")]


def _claim_dof_falls(grid: Grid) -> list[Claim]:
    if "AdaTerm" not in grid.values or len(grid.levels) < 2:
        return []
    values = grid.values["AdaTerm"]
    correlation = trend(grid.levels, values, bootstrap=Bootstrap(against=0.0))
    first, last = (float(median(value)) for value in (values[0], values[-1]))
    note = f"From {first:.4f} to {last:.4f}; the least value there is is 1"
    text = "AdaTerm's degrees of freedom fall as the share of noisy samples rises."
    what = "rank correlation of noise and dof"
    return [make_claim(Sentence(text), text, what, correlation, note=note, wants="below")]
