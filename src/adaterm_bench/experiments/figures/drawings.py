"""How the explanatory figures are drawn."""

from collections.abc import Callable
from math import inf
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure as Canvas
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Ellipse

from adaterm_bench.reporting.palette import GRID, INK
from adaterm_bench.reporting.style import WIDTH, use_style

Data = dict[str, Any]

BLUE, ORANGE, GREEN, RED, PURPLE, GREY = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#7f8694"
COLOURS = (BLUE, ORANGE, GREEN, RED, PURPLE)
DOF = "\u03bd\u0303"  # the letter nu with its tilde


def draw(name: str, data: Data) -> Canvas:
    """The figure of this name."""
    with use_style():
        canvas: Canvas = DRAWINGS[name](data)
    return canvas


def _canvas(columns: int = 1, height: float = 3.4, **options: Any) -> tuple[Canvas, list[Axes]]:
    canvas = Canvas(figsize=(WIDTH, height), layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08))
    panels = list(canvas.subplots(1, columns, squeeze=False, **options)[0])
    for panel in panels:
        panel.grid()
    return canvas, panels


def _robust_fit(data: Data) -> Any:
    canvas, panels = _canvas(2, sharey=True)
    student = rf"Student's t fit, $\nu={data['dof']:.1f}$"
    for panel, name, label, colour in zip(
        panels, ("gaussian", "student"), ("Gaussian fit", student), (RED, BLUE), strict=True
    ):
        panel.plot(data["x"], data["true"], color=GREEN, linewidth=2.2, label="true distribution")
        panel.plot(data["x"], data[name], color=colour, linewidth=2.2, linestyle="--", label=label)
        panel.plot(data["sample"], [-0.015] * len(data["sample"]), "|", color=INK, label="observations")
        panel.set(xlabel="$g$")
        panel.legend(fontsize=9)
    panels[0].set_ylabel("density")
    return canvas


def _gaussian_limit(data: Data) -> Any:
    canvas, (panel,) = _canvas(height=3.8)
    dashes = ("-", "--", "-.", ":", "-")
    for dof, values, colour, dash in zip(data["dofs"], data["densities"], (*COLOURS[:4], INK), dashes, strict=True):
        label = r"$\nu\to\infty$ (Gaussian)" if dof == inf else rf"$\nu={dof:g}$"
        panel.plot(data["x"], values, color=colour, linestyle=dash, label=label)
    panel.set(xlabel="$g$", ylabel=r"density of $g$")
    panel.legend(fontsize=9)
    return canvas


def _digamma_bound(data: Data) -> Any:
    canvas, (curves, gaps) = _canvas(2)
    dof = np.array(data["dof"])
    for size, exact, bound, colour in zip(data["sizes"], data["exact"], data["bound"], COLOURS, strict=False):
        curves.plot(dof, exact, color=colour, label=f"$d={size}$, exact")
        curves.plot(dof, bound, color=colour, linestyle="--", label=f"$d={size}$, upper bound")
        gaps.plot(dof, np.array(bound) - np.array(exact), color=colour, label=f"$d={size}$")
    curves.set(xlabel=DOF, ylabel=r"$\psi((\nu+d)/2)-\psi(\nu/2)$")
    gaps.set(xlabel=DOF, ylabel="bound $-$ exact", yscale="log")
    curves.legend(fontsize=8)
    gaps.legend(fontsize=9)
    return canvas


def _surrogate_gradient(data: Data) -> Any:
    canvas, (panel,) = _canvas(height=3.8)
    dashes = ("-", "--", "-.", ":")
    for size, values, colour, dash in zip(data["sizes"], data["gradients"], COLOURS, dashes, strict=False):
        panel.plot(data["weight"], values, color=colour, linestyle=dash, label=f"$d={size:,}$", linewidth=1.8)
    panel.axhline(0.0, color=INK, linewidth=0.8)
    panel.set(xlabel="$w_{mv}$", ylabel=r"surrogate gradient of $\nu$")
    panel.legend(fontsize=9)
    return canvas


def _coupled_scales(data: Data) -> Any:
    canvas, panels = _canvas(2, height=4.3, sharex=True, sharey=True)
    titles = {"student": f"AdaTerm ({DOF} = 1)", "gaussian": f"Gaussian ({DOF} → ∞)"}
    for panel, (name, title) in zip(panels, titles.items(), strict=True):
        panel.add_patch(Ellipse((0, 0), 6, 6, fill=False, color=BLUE, linewidth=2.0, label=r"before: $\sigma=1$"))
        for point, scale, colour in zip(data["points"], data[name], (RED, GREEN, PURPLE, INK), strict=True):
            width, height = 6.0 * np.sqrt(scale)
            panel.add_patch(Ellipse((0, 0), width, height, fill=False, color=colour, linewidth=1.5, linestyle="--"))
            panel.plot(*point, "o", color=colour, markersize=7)
        panel.set(xlabel="$g_1$", xlim=(-5.6, 5.6), ylim=(-5.6, 5.6), aspect="equal", title=title)
        panel.legend(loc="lower left", fontsize=9)
    panels[0].set_ylabel("$g_2$")
    return canvas


def _dof_and_distance(data: Data) -> Any:
    canvas, (plane, near, far) = _canvas(3, height=3.0)
    far.sharey(near)
    levels = [0.5, 1, 2, 4, 8, 16]
    contours = plane.contour(data["axis"], data["axis"], data["distance"], levels=levels, colors=GREY, linewidths=1.0)
    plane.clabel(contours, fontsize=8, fmt="%g")
    plane.contour(data["axis"], data["axis"], data["increment"], levels=[0.0], colors=INK, linestyles="--")
    for point, colour in zip(data["points"], (BLUE, RED), strict=True):
        plane.plot(*point, "o", color=colour)
    plane.set(xlabel="$g_1$", ylabel="$g_2$", aspect="equal", title="distance $D$")
    for panel, index, colour, word in ((near, 1, BLUE, "near"), (far, 2, RED, "far")):
        for at, shade, dash in ((0, GREY, "-"), (index, colour, "--")):
            panel.plot(
                data["x"], data["densities"][at], color=shade, linestyle=dash, label=rf"$\nu={data['dofs'][at]:.1f}$"
            )
            for sign in (-1.0, 1.0):
                panel.axvline(
                    sign * data["central"][at], color=GREEN, linestyle=dash, linewidth=1.0, alpha=1.0 if at else 0.6
                )
        panel.set(xlabel="$g_1$", ylabel="density", yscale="log", title=f"after {data['repeats']:,} {word} ones")
        panel.legend(fontsize=9, loc="lower center")
    return canvas


def _first_moment(data: Data) -> Any:
    canvas, panels = _canvas(2, height=4.3, sharex=True, sharey=True)
    places, true = np.array(data["places"]), np.array(data["true"])
    axis = np.linspace(-3.0, 3.0, 101)
    titles = {"student": "AdaTerm", "gaussian": f"Gaussian ({DOF} → ∞)"}
    for panel, (name, title) in zip(panels, titles.items(), strict=True):
        panel.contour(axis, axis, axis[:, None] ** 2 + axis**2, levels=8, colors=GRID, linewidths=0.8)
        mean = np.array(data[name])
        for vectors, colour, label, width in (
            (true, GREY, r"$-\nabla f$", 0.009),
            (mean, BLUE if name == "student" else RED, "$-m$", 0.006),
        ):
            panel.quiver(
                *places.T, *-vectors.T, color=colour, angles="xy", scale_units="xy", scale=4.0, width=width, label=label
            )
        error = np.linalg.norm(mean - true, axis=1).mean()
        panel.set(xlabel="$x$", xlim=(-3, 3), ylim=(-3, 3), aspect="equal", title=f"{title}: mean error {error:.2f}")
        panel.legend(loc="upper right", fontsize=9)
    panels[0].set_ylabel("$y$")
    return canvas


def _rates(data: Data) -> Any:
    canvas, (left, right) = _canvas(2, height=3.4)
    dof, distance = data["dof"][::2], data["distance"][::2]  # finer contours look the same
    rates, increment = (np.array(data[name])[::2, ::2] for name in ("rate", "increment"))
    rate = left.contourf(dof, distance, rates, levels=np.linspace(0.0, 0.1, 11), cmap="viridis")
    canvas.colorbar(rate, ax=left, label=r"$\tau_{mv}$")
    limits = TwoSlopeNorm(0.0, increment.min(), increment.max())
    levels = np.concatenate([np.linspace(increment.min(), 0.0, 13), np.linspace(0.0, increment.max(), 9)[1:]])
    change = right.contourf(dof, distance, increment, levels=levels, cmap="PuOr", norm=limits)
    right.contour(dof, distance, increment, levels=[0.0], colors=INK, linewidths=1.2)
    bar = canvas.colorbar(change, ax=right, label=f"change of {DOF}")
    ticks = [levels[0], levels[6], 0.0, levels[-1]]
    bar.set_ticks(ticks, labels=[f"{tick:.1e}" if tick else "0" for tick in ticks])
    for panel in (left, right):
        panel.set(xlabel=f"{DOF} before the step", ylabel="$D_t$", yscale="log")
    return canvas


DRAWINGS: dict[str, Callable[[Data], Canvas]] = {
    "robust_fit": _robust_fit,
    "gaussian_limit": _gaussian_limit,
    "digamma_bound": _digamma_bound,
    "surrogate_gradient": _surrogate_gradient,
    "coupled_scales": _coupled_scales,
    "dof_and_distance": _dof_and_distance,
    "first_moment": _first_moment,
    "rates": _rates,
}
