"""What the report shows of the batch sizes."""

from itertools import product

import numpy as np

from adaterm_bench.core.section import Claim, Section
from adaterm_bench.core.trial import Result
from adaterm_bench.experiments.regression.report import (
    LEAST,
    MAIN,
    NOT_ROBUST,
    check_levels,
    claim_below,
    draw_errors,
    table_errors,
)
from adaterm_bench.methods import PAPER_METHODS
from adaterm_bench.reporting.claims import Sentence, correct_families, make_claim
from adaterm_bench.reporting.intervals import Bootstrap
from adaterm_bench.reporting.pooling import pooled_ratio
from adaterm_bench.reporting.selection import Grid, Values, select

ROBUST = ("AdaTerm", "t-Adam", "At-Adam")
FIGURE = "a figure without numbers"
GROWS = Sentence("Without noise, every method gets worse with larger batches.", "appendix F", FIGURE)
PRONOUNCED = Sentence(
    "Without noise, larger batches cost AdaTerm, t-Adam and At-Adam more than the others.", "appendix F", FIGURE
)
NOISY = Sentence("The robust methods get worse with larger batches.", "appendix F", FIGURE)
SENSITIVE = Sentence("Adam and AdaBelief stay sensitive to noise with large batches.", "appendix F", FIGURE)
ABOVE_ONE = Bootstrap(against=1.0)


def section(results: list[Result]) -> Section:
    """Errors against noise for every batch size."""
    sizes = sorted({result.trial.condition["batch_size"] for result in results})
    grids = {size: select(results, "error", "noise", list(PAPER_METHODS), batch_size=size) for size in sizes}
    claims = _claim_sizes(grids) if len(sizes) > 1 else []
    for size, grid in grids.items():
        ours = Sentence(f"With batches of {size}, AdaTerm is ahead of Adam on noisy samples.")
        claims += claim_below(grid, ("Adam",), ours, f" and batches of {size}")
    return Section(
        "Batch sizes",
        "The same regression with other batches: large ones hide wrong samples among right ones and leave fewer steps.",
        tables=[table_errors(f"Test error, batches of {size}", grid) for size, grid in grids.items()]
        + check_levels(grids[sizes[-1]]),
        figures=[
            draw_errors(f"Test error, batches of {size}", grid, "mean square error", MAIN)
            for size, grid in grids.items()
        ],
        claims=correct_families(claims),
    )


def _claim_sizes(grids: dict[int, Grid]) -> list[Claim]:
    """What the paper says of the smallest and the largest batches, of the methods and levels that both have."""
    (smallest, small), *_, (largest, large) = grids.items()
    methods = [method for method in MAIN if method in small.values and method in large.values]
    if small.levels != large.levels or small.seeds != large.seeds:
        return []
    clean = [place for place, level in enumerate(small.levels) if level == 0.0]
    noisy = [place for place, level in enumerate(small.levels) if level >= LEAST]
    span, claims = f"from {smallest} to {largest}", []
    if clean:
        growth = {method: large.values[method][clean] / small.values[method][clean] for method in methods}
        claims += [*_claim_growth(growth, GROWS, "Without noise", span), *_claim_pronounced(growth, span)]
    if noisy:
        growth = {method: large.values[method][noisy] / small.values[method][noisy] for method in methods}
        robust = {method: growth[method] for method in ROBUST if method in growth}
        claims += _claim_growth(robust, NOISY, "With 10 % noise and more", span)
    if clean and noisy:
        for method in ("Adam", "AdaBelief"):
            if method in methods:
                values = large.values[method]
                ratio = pooled_ratio(values[noisy], _repeat(values[clean], len(noisy)), bootstrap=ABOVE_ONE)
                text = f"With batches of {largest}, the error of {method} is larger with noise than without."
                what = "error with noise over that without, geometric mean over noise levels and seeds"
                claims.append(make_claim(SENSITIVE, text, what, ratio, bound=1.0))
    return claims


def _claim_growth(growth: dict[str, Values], sentence: Sentence, where: str, span: str) -> list[Claim]:
    claims = []
    for method, values in growth.items():
        ratio = pooled_ratio(values, np.ones_like(values), bootstrap=ABOVE_ONE)
        text = f"{where}, the error of {method} grows with the batch ({span})."
        claims.append(make_claim(sentence, text, "by which factor, geometric mean", ratio, bound=1.0))
    return claims


def _claim_pronounced(growth: dict[str, Values], span: str) -> list[Claim]:
    """Each robust method against each that is not."""
    claims = []
    for method, rival in product(ROBUST, NOT_ROBUST):
        if {method, rival} <= growth.keys():
            ratio = pooled_ratio(growth[method], growth[rival], bootstrap=ABOVE_ONE)
            text = f"Without noise, the error of {method} grows more with the batch ({span}) than that of {rival}."
            what = f"its growth over that of {rival}, geometric mean"
            claims.append(make_claim(PRONOUNCED, text, what, ratio, bound=1.0))
    return claims


def _repeat(row: Values, count: int) -> Values:
    return np.repeat(row, count, 0)
