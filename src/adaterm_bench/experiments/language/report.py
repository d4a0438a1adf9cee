"""What the report shows of the language models."""

from adaterm_bench.arena.measure import Measure
from adaterm_bench.arena.report import make_section
from adaterm_bench.core.section import Section
from adaterm_bench.core.trial import Result

SHARES = {"clean": 0.0, **{f"targets {share} %": float(share) for share in (5, 10, 20, 30, 40)}}
OTHERS = ("bursts 10 %", "tensor 2 %", "spike 1 %", "garbage 2 %", "overflow 1 %")
DIRTY = ("tokens 10 %", *(noise for noise in SHARES if noise != "clean"), *OTHERS)
MEASURE = Measure("loss", "validation loss", "lower", DIRTY, SHARES, "trap")
MODELS = ("bytes", "words", "large")


def section(results: list[Result]) -> Section:
    """Losses under every noise, ranks, what was made of bad batches, and our claims."""
    return make_section(
        "Language models",
        "Transformers learn the Python sources of the installed torch. In some runs a share of the batches, or of the "
        "gradients, is bad: tokens are random, targets are permuted, here and there or in 20 batches in a row, one "
        "tensor's gradient or all are 1000 times as large, all are noise, or some are infinite. Methods with the same "
        "seed have the same weights, batches and faults. Where there are tuning runs, the learning rate of each "
        "method is chosen on clean data, and kept.",
        results,
        MEASURE,
        MODELS,
    )
