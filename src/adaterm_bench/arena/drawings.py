"""The arena's figures: ours stand out, the others are muted, and the oracle is dotted.

What lies far beyond the best, or was lost, is drawn at the edge.
"""

from collections.abc import Mapping, Sequence
from math import isfinite
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from adaterm_bench.arena.finals import BASELINE, CLIPPED, JUDGED, JUDGED_BY_LOSS, ORACLE, ORDER, OUR_ARMS, OURS
from adaterm_bench.arena.measure import Measure
from adaterm_bench.arena.protocol import Choice
from adaterm_bench.reporting.figures import place_names
from adaterm_bench.reporting.intervals import Interval, Values
from adaterm_bench.reporting.pairs import student_interval
from adaterm_bench.reporting.palette import DASHES, INK, MARKERS, Look
from adaterm_bench.reporting.statistics import with_worst
from adaterm_bench.reporting.style import use_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OUR_LOOKS = {
    OURS: Look("#d55e00", "solid", "o"),
    CLIPPED: Look("#e69f00", (0, (5, 1.5)), "s"),
    JUDGED: Look("#6e8b2f", "solid", "X"),  # as Muon, and darker
    JUDGED_BY_LOSS[0]: Look("#2f8f7f", (0, (5, 1.5)), "D"),
    JUDGED_BY_LOSS[1]: Look("#4d6b1f", (0, (5, 1.5)), "P"),
}
MUTED = ("#6b8fc2", "#5fa08f", "#a481b5", "#8b93a1", "#8fa357", "#c17f92", "#5ba3b8")  # seen on light and dark pages
EDGE = "Crosses at the edge: worse than the figure shows, or lost."
WIDTH = 6.6  # inches
WHOLE = 3.0  # a reach beyond which a model has learnt all but nothing


def choose_arm_look(method: str) -> Look:
    """The look of a method of the arena, the same in every figure."""
    if method in OUR_LOOKS:
        return OUR_LOOKS[method]
    if method == ORACLE:
        return Look(INK, (0, (2, 2)), "")
    place = ORDER.index(method) if method in ORDER else len(ORDER) + sum(map(ord, method))
    turn = place // len(MUTED)
    return Look(MUTED[place % len(MUTED)], DASHES[turn % len(DASHES)], MARKERS[(place + 2 * turn) % len(MARKERS)])


def draw_against_share(values: Mapping[str, Mapping[float, Values]], measure: Measure) -> "Figure":
    """Means and intervals against the share of bad batches, in per cent: one line a method.

    A line is named on the right; a dotted one leads there if it ends before the others.
    """
    from matplotlib.figure import Figure

    shares = sorted({share for runs in values.values() for share in runs})
    points = {
        method: {share: _summarise(runs[share], measure) for share in sorted(runs)} for method, runs in values.items()
    }
    with use_style():
        figure = Figure(figsize=(WIDTH, 4.7))
        axes = figure.add_axes((0.105, 0.11, 0.565, 0.85))
        axes.set(xlabel="share of the batches with permuted targets, %", ylabel=measure.label)
        axes.set_xticks(shares, [f"{share:g}" for share in shares])
        axes.set_xlim(shares[0] - 0.8, shares[-1] + 0.8)
        axes.grid(axis="y")
        limits = _find_limits([point for line in points.values() for point in line.values()], measure, WHOLE)
        axes.set_ylim(*limits)
        ends = {}
        for method in sorted(values, key=lambda name: name in OUR_ARMS):  # ours on top
            _draw_line(axes, method, points[method])
            places = [_place_inside(point.estimate, limits) for point in points[method].values()]
            ends[method], last = places[-1], max(points[method])
            if last < shares[-1]:
                colour = choose_arm_look(method).colour
                axes.plot([last, axes.get_xlim()[1]], [ends[method]] * 2, ":", color=colour, linewidth=1.0)
        _name_ends(axes, shares[-1], ends)
    return figure


def _draw_line(axes: "Axes", method: str, points: Mapping[float, Interval]) -> None:
    look, ours, limits = choose_arm_look(method), method in OUR_ARMS, axes.get_ylim()
    x, y = np.array(list(points)), np.array([point.estimate for point in points.values()])
    low, high = (np.clip([point[end] for point in points.values()], *limits) for end in (1, 2))
    known = np.array([point.seeds > 2 and isfinite(point.low) for point in points.values()])  # two seeds say little
    if ours:
        axes.fill_between(x, low, high, where=known, color=look.colour, alpha=0.18, linewidth=0)
    else:
        axes.vlines(x[known], low[known], high[known], color=look.colour, linewidth=0.9, alpha=0.8)
    width, size = (2.6, 5.0) if ours else (1.7 if method in (BASELINE, ORACLE) else 1.2, 3.5)
    style: dict[str, Any] = {"color": look.colour, "linestyle": look.dash, "zorder": 4.0 if ours else 2.5}
    line = np.where(np.isfinite(y), y, np.nan)
    axes.plot(x, line, marker=look.marker, linewidth=width, markersize=size, **style)
    beyond = (y < limits[0]) | (y > limits[1])
    edge = [_place_inside(value, limits) for value in y[beyond]]
    axes.plot(x[beyond], edge, "x", color=look.colour, markersize=6.5, clip_on=False, zorder=5.0)


def draw_by_noise(values: Mapping[str, Mapping[str, Values]], measure: Measure) -> "Figure":
    """Points and intervals: a panel a noise, a row a method; the upright line is RobustAdamW's."""
    from matplotlib.figure import Figure

    methods = list(values)
    noises = list(dict.fromkeys(noise for runs in values.values() for noise in runs))
    with use_style():
        height = 1.15 + 0.225 * len(methods)
        figure = Figure(figsize=(WIDTH, height))
        panels = figure.subplots(1, len(noises), sharey=True, squeeze=False)[0]
        figure.subplots_adjust(0.25, 0.55 / height, 0.985, 1.0 - 0.45 / height, wspace=0.16)
        for panel, noise in zip(panels, noises, strict=True):
            scaled = {method: measure.scale * values[method][noise] for method in methods if noise in values[method]}
            points = {method: _summarise(runs, measure) for method, runs in scaled.items()}
            rivals = [point for method, point in points.items() if method != ORACLE]
            panel.set_xlim(*_find_limits(list(points.values()), measure, 0.3, rivals))
            panel.set_title(noise.replace(" ", "\n", 1), fontsize=8.5, loc="center")
            panel.grid(axis="both")
            panel.tick_params(axis="y", length=0)
            panel.tick_params(axis="x", labelsize=7.0)
            panel.spines["left"].set_visible(False)
            panel.set_xticks(*_choose_ticks(panel.get_xlim(), 72.0 / len(noises)))
            for row, method in enumerate(methods):
                if method in points:
                    _draw_point(panel, method, row, points[method])
        panels[0].set_yticks(range(len(methods)), methods, fontsize=8.0)
        panels[0].set_ylim(len(methods) - 0.5, -0.5)
        for label, method in zip(panels[0].get_yticklabels(), methods, strict=True):
            label.set_fontweight("bold" if method in OUR_ARMS else "normal")
        figure.text(0.62, 0.08 / height, measure.label, ha="center", fontsize=9.5)
    return figure


def _draw_point(panel: "Axes", method: str, row: int, point: Interval) -> None:
    look, ours, limits = choose_arm_look(method), method in OUR_ARMS, panel.get_xlim()
    inside = limits[0] <= point.estimate <= limits[1]
    if inside and isfinite(point.low):
        ends = np.clip([point.low, point.high], *limits)
        panel.plot(ends, [row, row], color=look.colour, linewidth=2.4 if ours else 1.3, solid_capstyle="butt")
    if inside and method == OURS:
        panel.axvline(point.estimate, color=look.colour, linewidth=0.9, alpha=0.6)
    marker = (look.marker or "d") if inside else "x"
    place = _place_inside(point.estimate, limits)
    panel.plot(place, row, marker, color=look.colour, markersize=6.0 if ours else 4.2, clip_on=False, zorder=4.0)


def draw_sensitivity(choices: Mapping[str, Choice], measure: Measure) -> "Figure":
    """The clean outcome of tuning runs against the learning rate: a panel a method, beside AdamW with clipping."""
    from matplotlib.figure import Figure

    columns = min(4, max(1, len(choices)))
    rows = -(-len(choices) // columns)
    points = [measure.scale * mean for choice in choices.values() for mean in choice.outcomes.values()]
    limits = _find_limits([Interval(mean, mean, mean, 1) for mean in points], measure, 0.3)
    rates = sorted({rate for choice in choices.values() for rate in choice.outcomes})
    ticks = rates if len(rates) <= 3 else [1e-4, 1e-3, 1e-2]
    with use_style():
        height = 0.75 + 1.15 * rows
        figure = Figure(figsize=(WIDTH, height))
        panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        figure.subplots_adjust(0.1, 0.52 / height, 0.985, 1.0 - 0.25 / height, wspace=0.16, hspace=0.5)
        for panel in panels.flat[len(choices) :]:
            panel.set_visible(False)
        for place, (method, choice) in enumerate(choices.items()):
            panel, colour, ours = panels.flat[place], choose_arm_look(method).colour, method in OUR_ARMS
            panel.set_xscale("log")
            panel.set_ylim(*limits)
            panel.set_xticks(ticks, [f"{tick:.0e}".replace("e-0", "e\u2212") for tick in ticks])
            panel.xaxis.set_minor_formatter("")
            panel.tick_params(labelsize=7.5, labelbottom=place + columns >= len(choices))
            panel.tick_params(axis="x", labelsize=6.0)  # clear of its neighbours' labels
            panel.tick_params(axis="x", which="minor", length=0)
            panel.grid(axis="y")
            size = 7.5 if len(method) < 20 else 6.5  # of names as long as a panel is wide
            panel.set_title(method, fontsize=size, fontweight="bold" if ours else "normal", pad=6.0)
            if BASELINE in choices and method != BASELINE:
                _draw_rates(panel, choices[BASELINE], measure, color=MUTED[3], alpha=0.45, linewidth=1.0)
            _draw_rates(panel, choice, measure, color=colour, linewidth=2.2 if ours else 1.5, marker=".")
            if choice.rate is not None:
                best = measure.scale * choice.outcomes[choice.rate]
                inside = _place_inside(best, limits)
                panel.plot(
                    choice.rate, inside, "o" if inside == best else "X", color=colour, markersize=5.5, clip_on=False
                )
        figure.text(0.54, 0.08 / height, "learning rate", ha="center", fontsize=9.5)
        label = measure.label if rows > 1 else fill(measure.label, 20)  # as long as a single row is high
        figure.text(0.012, 0.54, label, va="center", rotation="vertical", fontsize=9.5 if rows > 1 else 8.0)
    return figure


def _draw_rates(panel: "Axes", choice: Choice, measure: Measure, **style: Any) -> None:
    limits = panel.get_ylim()
    rates = np.array(sorted(choice.outcomes))
    y = measure.scale * np.array([choice.outcomes[rate] for rate in rates])
    panel.plot(rates, np.where(np.isfinite(y), y, np.nan), markersize=4.0, **style)
    beyond = (y < limits[0]) | (y > limits[1])
    edge = [_place_inside(value, limits) for value in y[beyond]]
    panel.plot(rates[beyond], edge, markersize=4.5, clip_on=False, **{**style, "marker": "x", "linestyle": ""})


def _summarise(runs: Values, measure: Measure) -> Interval:
    """The mean with its interval, worst of all if a run was lost."""
    return student_interval(with_worst(runs, measure.better))


def _find_limits(
    points: Sequence[Interval], measure: Measure, reach: float, rivals: Sequence[Interval] = ()
) -> tuple[float, float]:
    """Limits that hold all means that are not far beyond the best, and a margin.

    With rivals, theirs is the best, and intervals are held, too, as far as means would be.
    """
    finite = [point for point in points if isfinite(point.estimate)] or [Interval(1.0, 1.0, 1.0, 1)]
    ranked = [point for point in rivals if isfinite(point.estimate)] or finite
    best = min(measure.sign * point.estimate for point in ranked) * measure.sign
    limit = measure.sign * measure.limit(best, reach)
    inside = [point for point in finite if measure.sign * point.estimate <= limit]
    ends = [point.estimate for point in inside]
    if rivals:
        lowest, highest = sorted((measure.limit(best, reach), measure.limit(best, -reach)))
        ends += [_place_inside(end, (lowest, highest)) for point in inside if point.seeds > 2 for end in point[1:3]]
    low, high = min(ends), max(ends)
    margin = 0.05 * ((high - low) or abs(high) or 1.0)
    more = margin * (len(inside) < len(points))  # for crosses
    return low - margin - more * (not measure.relative), high + margin + more * measure.relative


def _choose_ticks(limits: tuple[float, float], characters: float) -> tuple[list[float], list[str]]:
    """Two ticks whose labels lie inside a panel so many characters wide; the second is lower if they would touch."""
    from matplotlib.ticker import MaxNLocator

    span = limits[1] - limits[0]
    inside: list[float] = []
    for bins in range(2, 12):
        ticks = [float(tick) for tick in MaxNLocator(bins).tick_values(*limits)]
        half = 0.5 * span * max(len(f"{tick:.6g}") for tick in ticks) / characters
        inside = [tick for tick in ticks if limits[0] + half <= tick <= limits[1] - half]
        if len(inside) > 1:
            chosen = [inside[0], inside[-1]]
            gap = "" if chosen[1] - chosen[0] > 2.2 * half else "\n"
            return chosen, [f"{chosen[0]:.6g}", f"{gap}{chosen[1]:.6g}"]
    return inside, [f"{tick:.6g}" for tick in inside]


def _place_inside(value: float, limits: tuple[float, float]) -> float:
    return float(np.clip(value, *limits))


def _name_ends(axes: "Axes", x: float, ends: Mapping[str, float]) -> None:
    """Each method's name beside the end of its line."""
    for method, end, place in place_names(axes, x, ends, room=1.05, limit=1.01):
        look, ours = choose_arm_look(method), method in OUR_ARMS
        style: dict[str, Any] = {"color": look.colour, "transform": axes.transAxes, "clip_on": False}
        width = 2.2 if ours else 1.1
        axes.plot([1.0, 1.045, 1.1], [end, place, place], linewidth=width, linestyle=look.dash, **style)
        axes.plot([1.075], [place], marker=look.marker, markersize=4.0, linestyle="", **style)
        weight = "bold" if ours else "normal"
        axes.text(1.115, place, method, transform=axes.transAxes, va="center", fontsize=8.5, fontweight=weight)
