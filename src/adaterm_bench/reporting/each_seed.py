"""Every seed's curve on its own, where a figure of medians has bands: returns come in humps, which bands hide."""

from collections.abc import Mapping

from numpy.typing import ArrayLike

from adaterm_bench.core.section import Figure
from adaterm_bench.reporting import figures

HOW = "Thin: seeds; thick: their median."


def show_each_seed(
    title: str, steps: ArrayLike, values: Mapping[str, list[list[float]]], ylabel: str, xlabel: str, what: str = ""
) -> list[Figure]:
    """The figure of (seeds × steps) by method, higher is better; none where every seed has a line already."""
    if not any(figures.has_band(len(runs)) for runs in values.values()):
        return []
    caption = f"{what} {HOW}".strip()
    return [Figure(title, lambda: figures.draw_each_seed(steps, values, ylabel, xlabel=xlabel), caption)]
