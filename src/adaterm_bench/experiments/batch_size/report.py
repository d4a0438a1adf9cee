"""What the report shows of the batch sizes."""

from adaterm_bench.core.section import Claim, Section
from adaterm_bench.core.trial import Result
from adaterm_bench.experiments.regression.report import MAIN, claim_below, draw_errors, table_errors
from adaterm_bench.methods import PAPER_METHODS
from adaterm_bench.reporting.selection import select
from adaterm_bench.reporting.statistics import median, ratio_interval


def section(results: list[Result]) -> Section:
    """Errors against noise for every batch size."""
    sizes = sorted({result.trial.condition["batch_size"] for result in results})
    grids = {size: select(results, "error", "noise", list(PAPER_METHODS), batch_size=size) for size in sizes}
    across = select(
        [result for result in results if result.trial.condition["noise"] == 0.0],
        "error",
        "batch_size",
        list(PAPER_METHODS),
    )
    claims = []
    for method in MAIN if len(across.levels) > 1 else ():
        if method in across.values:
            smallest, largest = across.levels[0], across.levels[-1]
            ratio = ratio_interval(across.at(method, largest), across.at(method, smallest), median)
            text = f"Without noise, the error of {method} grows with the batch (from {smallest} to {largest})."
            claims.append(Claim(text, "ratio of the median errors", *ratio[:3], bound=1.0, note=ratio.note))
    for size, grid in grids.items():
        claims += claim_below(grid, ("Adam",), f" with batches of {size}")
    return Section(
        "Batch sizes",
        "The same regression with other batches: large ones hide wrong samples among right ones and leave fewer steps.",
        tables=[table_errors(f"Test error, batches of {size}", grid) for size, grid in grids.items()],
        figures=[
            draw_errors(f"Test error, batches of {size}", grid, "mean square error", MAIN)
            for size, grid in grids.items()
        ],
        claims=claims,
    )
