"""The regression with batches of other sizes (appendix F)."""

from dataclasses import dataclass
from typing import Any, ClassVar

from adaterm_bench.core.experiment import grid
from adaterm_bench.core.section import Section
from adaterm_bench.core.trial import Result
from adaterm_bench.experiments.regression.experiment import Regression
from adaterm_bench.methods import PAPER_METHODS


@dataclass(frozen=True)
class BatchSize(Regression):
    """The same with batches of other sizes."""

    name: ClassVar[str] = "batch_size"
    title: ClassVar[str] = "Batch sizes"
    methods: ClassVar[tuple[str, ...]] = tuple(PAPER_METHODS)[:6]
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "smoke": {"seeds": 2, "samples": 512, "noises": (0.5,)},
        "quick": {"seeds": 5, "samples": 10_000, "noises": (0.5,)},
        "paper": {},
    }

    batch_sizes: tuple[int, ...] = grid((8, 16, 32, 64), "samples of a step", least=1)

    def section(self, results: list[Result]) -> Section:
        """Errors against batch sizes."""
        from adaterm_bench.experiments.batch_size.report import section

        return section(results)
