"""The report's pictures, of arrays or statistics; what diverged is shown at the edge, or in words, and not left out."""

from collections.abc import Callable, Mapping
from itertools import pairwise
from math import floor, log10
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from adaterm_bench.reporting.intervals import Values, too_few
from adaterm_bench.reporting.palette import GRID, INK, choose_look
from adaterm_bench.reporting.statistics import Better, mean_std, quartiles
from adaterm_bench.reporting.style import WIDTH, use_style
from adaterm_bench.reporting.text import tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POINTS = 160  # as many as a line of this width can show
SHADES = 40  # colours along a path
CURVES = "Lines: medians over seeds; bands: quartiles, or thin lines for seeds that are too few for quartiles."
TIME = ("#0072b2", "#cc79a7", "#d55e00")  # seen on light and dark pages


def draw_against_noise(
    levels: ArrayLike,
    values: Mapping[str, ArrayLike],
    ylabel: str,
    *,
    xlabel: str = "noise level",
    log: bool = True,
    better: Better = "lower",
) -> "Figure":
    """Median and interquartile band of (levels × seeds) for each method; a cross at the edge where the median diverged.

    The scale is logarithmic if it is asked for and all values are positive.
    """
    ticks = np.asarray(levels, dtype=np.float64)
    gaps = np.diff(ticks)
    close = gaps.size > 0 and gaps.min() < 0.06 * gaps.sum()  # labels would overlap: space the levels evenly
    places = np.arange(ticks.size, dtype=np.float64) if close else ticks
    with use_style():
        figure, axes = _make_axes(xlabel, ylabel, log and _is_positive(values))
        axes.set_xticks(places, [tidy(f"{tick:g}") for tick in ticks])
        bands = {method: quartiles(runs, better) for method, runs in values.items()}
        _draw_bands(axes, places, bands, better, markers=True)
    return figure


def draw_curves(
    steps: ArrayLike,
    values: Mapping[str, ArrayLike],
    ylabel: str,
    *,
    xlabel: str = "step",
    log: bool = True,
    better: Better = "lower",
) -> "Figure":
    """Median and interquartile band of (seeds × steps) for each method, thinned to what can be seen.

    Where seeds are too few for that, each has a thin line.
    """
    along = np.asarray(steps, dtype=np.float64)
    indices = np.unique(np.linspace(0, along.size - 1, min(along.size, POINTS)).astype(int))
    thinned = {method: np.atleast_2d(np.asarray(runs, dtype=np.float64))[:, indices] for method, runs in values.items()}
    with use_style():
        figure, axes = _make_axes(xlabel, ylabel, log and _is_positive(thinned))
        bands = {method: quartiles(runs.T, better) for method, runs in thinned.items()}
        few = {method: runs for method, runs in thinned.items() if not has_band(len(runs))}
        _draw_bands(axes, along[indices], bands, better, markers=False, single=few)
    return figure


def has_band(seeds: int) -> bool:
    """Whether so many seeds have a band of quartiles in `draw_curves`; fewer have a line each."""
    return not too_few(seeds, 0.95)


def draw_each_seed(steps: ArrayLike, values: Mapping[str, ArrayLike], ylabel: str, *, xlabel: str = "step") -> "Figure":
    """A panel for each method, with a thin line for each row of (seeds × steps) and a thick one for their median.

    Higher is better: a seed that diverged ends there, is the lowest for the median from then on, and is counted in the
    title.
    """
    from matplotlib.figure import Figure

    along = np.asarray(steps, dtype=np.float64)
    columns = min(3, max(1, len(values)))
    rows = max(1, -(-len(values) // columns))
    with use_style():
        figure = Figure(figsize=(WIDTH, 0.4 + 1.9 * rows), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        for axes in grid.flat[len(values) :]:
            axes.set_visible(False)
        for axes, (method, runs) in zip(grid.flat, values.items(), strict=False):
            lines, colour = np.atleast_2d(np.asarray(runs, dtype=np.float64)), choose_look(method).colour
            axes.plot(along, lines.T, color=colour, linewidth=0.7, alpha=0.6)
            axes.plot(along, quartiles(lines.T, "higher")[1], color=colour)
            lost = int(np.count_nonzero(~np.isfinite(lines).all(1)))
            axes.set_title(f"{method}, {lost} diverged" if lost else method)
        for column in grid.T:
            lowest = [axes for axes in column if axes.get_visible()][-1]
            lowest.tick_params(labelbottom=True)
            lowest.set_xlabel(xlabel)
        for axes in grid[:, 0]:
            axes.set_ylabel(ylabel)
    return figure


def draw_bars(values: Mapping[str, ArrayLike], xlabel: str, *, start: float | None = 0.0) -> "Figure":
    """Mean, standard deviation and single runs of each method; without a start there are points and no bars."""
    with use_style():
        figure, axes = _make_rows(list(values), xlabel)
        for row, (method, runs) in enumerate(values.items()):
            spread, look_ = mean_std(runs), choose_look(method)
            finished = np.asarray(runs, dtype=np.float64).ravel()
            finished = finished[np.isfinite(finished)]
            if start is not None and finished.size:
                axes.barh(row, spread.mean - start, left=start, height=0.62, color=look_.colour, alpha=0.35)
            offsets = row + 0.22 * np.cos(np.pi * np.arange(finished.size))  # two rows of dots hide each other less
            axes.plot(finished, offsets, ".", color=look_.colour, markersize=3.0, alpha=0.7)
            error = spread.std if np.isfinite(spread.std) else 0.0
            axes.errorbar(spread.mean, row, xerr=error, fmt=look_.marker, color=look_.colour, capsize=3)
            if spread.diverged:
                label = f"{spread.diverged} of {spread.seeds + spread.diverged} diverged"
                axes.annotate(
                    label, (1.0, row), xycoords=("axes fraction", "data"), ha="right", va="center", fontsize=9
                )
    return figure


def draw_distributions(values: Mapping[str, ArrayLike], xlabel: str) -> "Figure":
    """How many of each method's runs have at most a value: a step at each, and flat where there are none."""
    with use_style():
        figure, axes = _make_axes(xlabel, "share of them below", log=False)
        for method, runs in values.items():
            finished = np.asarray(runs, dtype=np.float64).ravel()
            finished = np.sort(finished[np.isfinite(finished)])
            if finished.size:
                look_ = choose_look(method)
                shares = np.arange(1, finished.size + 1) / finished.size
                axes.step(finished, shares, where="post", color=look_.colour, linestyle=look_.dash, label=method)
        if values:
            axes.legend(fontsize=8)
    return figure


def draw_paths(
    paths: Mapping[str, ArrayLike],
    surface: Callable[[Values, Values], Values],
    *,
    limits: tuple[float, float, float, float],
    optimum: tuple[float, float] | None = None,
    log: bool = True,
    columns: int = 3,
) -> "Figure":
    """The path (steps × 2) of each method over a surface's contours, blue at its start and orange at its end."""
    from matplotlib.collections import LineCollection
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

    columns = min(columns, max(1, len(paths)))
    rows = max(1, -(-len(paths) // columns))
    left, right, bottom, top = limits
    x, y = np.meshgrid(np.linspace(left, right, 80), np.linspace(bottom, top, 80))
    height = np.asarray(surface(x, y), dtype=np.float64)
    height = np.log1p(height - height.min()) if log else height  # any surface has a logarithm above its floor
    with use_style():
        figure = Figure(figsize=(WIDTH, 0.6 + 7.4 / columns * rows), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        for axes in grid.flat[len(paths) :]:
            axes.set_visible(False)
        colours = LinearSegmentedColormap.from_list("time", TIME)
        drawn: LineCollection | None = None
        for axes, (method, path) in zip(grid.flat, paths.items(), strict=False):
            axes.contour(x, y, height, levels=12, colors=GRID, linewidths=0.7)
            points = np.asarray(path, dtype=np.float64)
            points = points[np.unique(np.linspace(0, len(points) - 1, min(len(points), 400)).astype(int))]
            cuts = np.unique(np.linspace(0, len(points) - 1, min(len(points), SHADES + 1)).astype(int))
            pieces = [points[first : last + 1] for first, last in pairwise(cuts)]  # of one colour each
            drawn = LineCollection(pieces, cmap=colours, linewidths=1.3)
            drawn.set_array(np.linspace(0.0, 1.0, len(pieces)))
            drawn.set_clim(0.0, 1.0)
            axes.add_collection(drawn, autolim=False)
            if optimum is not None:
                axes.plot(*optimum, "*", color=INK, markersize=7)
            axes.set(xlim=(left, right), ylim=(bottom, top))
            axes.set_title(method, fontsize=8.5)
        if drawn is not None:
            bar = figure.colorbar(drawn, ax=grid, location="bottom", aspect=50, pad=0.02, fraction=0.04)
            bar.set_ticks([0.0, 1.0], labels=["first step", "last step"])
            bar.outline.set_visible(False)
    return figure


def _make_axes(xlabel: str, ylabel: str, log: bool) -> "tuple[Figure, Axes]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, 4.2), layout="constrained")
    axes = figure.add_subplot()
    axes.set(xlabel=xlabel, ylabel=ylabel)
    if log:
        axes.set_yscale("log")
    axes.grid(axis="y")
    return figure, axes


def _make_rows(names: list[str], xlabel: str) -> "tuple[Figure, Axes]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, 0.8 + 0.3 * max(1, len(names))), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(xlabel)
    axes.set_yticks(range(len(names)), [_shorten_name(name) for name in names])
    axes.set_ylim(max(1, len(names)) - 0.4, -0.6)  # the first method on top
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x")
    return figure, axes


def _is_positive(values: Mapping[str, ArrayLike]) -> bool:
    arrays = [np.asarray(value, dtype=np.float64) for value in values.values()]
    return all(np.all(array[np.isfinite(array)] > 0.0) for array in arrays)


def _draw_bands(
    axes: "Axes",
    x: Values,
    bands: Mapping[str, tuple[Values, Values, Values]],
    better: Better,
    markers: bool,
    single: Mapping[str, Values] | None = None,
) -> None:
    """Lines, bands and names; what is infinite is drawn at the edge, where limits are those of the finite values.

    Methods with single runs have these in place of a band.
    """
    if not bands or not len(x):
        axes.text(0.5, 0.5, "no results", transform=axes.transAxes, ha="center")
        return
    from matplotlib.ticker import MaxNLocator

    single = single or {}
    drawn = np.concatenate(
        [*(np.ravel(values) for values in bands.values()), *(values.ravel() for values in single.values())]
    )
    finite = drawn[np.isfinite(drawn)]
    if finite.size:
        axes.update_datalim([(x[0], finite.min()), (x[-1], finite.max())])
    axes.margins(x=0.02, y=0.06)
    axes.autoscale_view()
    bottom, top = axes.get_ylim()
    if axes.get_yscale() == "log":
        axes.yaxis.set_major_formatter(lambda value, _: tidy(f"{value:g}"))
        axes.yaxis.set_minor_formatter(_format_two_and_five if top < 60.0 * bottom else "")
        if top < 4.0 * bottom:  # it may hold none of these
            axes.yaxis.set_major_locator(MaxNLocator(5))
            axes.yaxis.set_minor_formatter("")
    for method, band in bands.items():
        colour, dash, marker = choose_look(method)
        low, middle, high = (np.clip(edge, bottom, top) for edge in band)
        lost = ~np.isfinite(band[1])
        if method in single:
            axes.plot(x, np.clip(single[method], bottom, top).T, color=colour, alpha=0.4, linewidth=0.7)
        else:
            axes.fill_between(x, low, high, color=colour, alpha=0.13, linewidth=0)
        line = np.where(lost, np.nan, middle)
        axes.plot(x, line, color=colour, linestyle=dash, marker=marker if markers else "", label=method)
        axes.plot(x[lost], middle[lost], "x", color=colour, markersize=6.0, clip_on=False)
    axes.set_ylim(bottom, top)
    axes.set_autoscale_on(False)
    _name_ends(axes, x[-1], {method: float(np.clip(band[1][-1], bottom, top)) for method, band in bands.items()})


def place_names(
    axes: "Axes", x: float, ends: Mapping[str, float], room: float, limit: float
) -> list[tuple[str, float, float]]:
    """Each method, with the heights of its line's end and of its name, moved apart where names would overlap.

    Heights are shares of the axes; names have so much room together, below the limit.
    """
    to_share = axes.transData + axes.transAxes.inverted()
    by_height = sorted((float(to_share.transform((x, y))[1]), method) for method, y in ends.items())
    gap = min(0.056, room / max(1, len(by_height)))
    places = [height for height, _ in by_height]
    for index in range(1, len(places)):
        places[index] = max(places[index], places[index - 1] + gap)
    for index in reversed(range(len(places))):
        places[index] = min(places[index], limit)
        limit = places[index] - gap
    return [(method, height, place) for (height, method), place in zip(by_height, places, strict=True)]


def _name_ends(axes: "Axes", x: float, ends: Mapping[str, float]) -> None:
    """Each method's name beside the end of its line."""
    for method, end, place in place_names(axes, x, ends, room=1.1, limit=1.0):
        colour, dash, _ = choose_look(method)
        track = ([1.0, 1.035, 1.085], [end, place, place])
        axes.plot(*track, color=colour, linestyle=dash, linewidth=1.2, transform=axes.transAxes, clip_on=False)
        axes.text(1.1, place, _shorten_name(method), transform=axes.transAxes, va="center", fontsize=9.0)


def _format_two_and_five(value: float, _: object = None) -> str:
    """Names only 2 and 5 of each decade, where one decade or two are all there is."""
    return tidy(f"{value:g}") if round(value / 10.0 ** floor(log10(value))) in (2, 5) else ""


def _shorten_name(name: str, length: int = 36) -> str:
    return name if len(name) <= length else name[: length - 1] + "…"
