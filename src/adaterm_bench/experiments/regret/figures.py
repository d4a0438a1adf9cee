"""How regret and its bounds are drawn."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from adaterm_bench.reporting.palette import INK, choose_look
from adaterm_bench.reporting.style import WIDTH, use_style

Values = NDArray[np.float64]
Means = dict[tuple[str, str], dict[str, Values]]
"""By problem and method: times, regret, bounds and their terms."""

SHOWN = ("linear", "heavy tails, dof 2", "one in 3")  # problems whose bounds are drawn
TERMS = {
    "last": ("#cc79a7", "term 1, of $v_T$"),
    "path": ("#d55e00", r"term 2, $\propto\Sigma_t$ √($t\,v_t$)"),
    "recent": ("#e69f00", "term 3, of recent $g^2$"),
    "history": ("#0072b2", r"term 4, $\propto$ √(ln $T$) $\|g^2\|_2$"),
}

RELATED = {"AdaTerm (gradient init)": "AdaTerm", "AMSGrad": "Adam"}  # drawn as these, but dashed: they often coincide


def draw_regret(means: Means) -> Figure:
    """The regret of every method, a panel for each problem."""
    problems = list(dict.fromkeys(problem for problem, _ in means))
    with use_style():
        canvas = Figure(figsize=(WIDTH, 2.3 * -(-len(problems) // 2) + 0.7), layout="constrained")
        panels = canvas.subplots(-(-len(problems) // 2), 2, squeeze=False, sharex=True).ravel()
        for panel, problem in zip(panels, problems, strict=False):
            runs = {method: run for (where, method), run in means.items() if where == problem}
            for method, run in runs.items():
                colour = choose_look(RELATED.get(method, method)).colour if method != "No robustness" else "#009e73"
                dash = "--" if method in RELATED else "-"
                panel.plot(run["time"], keep_positive(run["regret"]), color=colour, linestyle=dash, label=method)
            times, least = run["time"], min(keep_positive(value["regret"])[-1] for value in runs.values())
            panel.plot(times, least * np.sqrt(times / times[-1]), color=INK, linestyle=":", label=r"$\propto$ √$T$")
            _set_log_axes(panel, problem)
        for panel in panels[len(problems) :]:
            panel.set_visible(False)
        _add_frame(canvas, panels[0], r"regret $R_T$")
    return canvas


def draw_bounds(means: Means) -> Figure:
    """The printed bound and its terms, the trivial bound and the regret: methods by some of the problems."""
    bounded = [key for key, run in means.items() if "bound" in run]
    methods = list(dict.fromkeys(method for _, method in bounded))
    every = list(dict.fromkeys(problem for problem, _ in bounded))
    problems = [problem for problem in SHOWN if problem in every] or every[:3]
    with use_style():
        canvas = Figure(figsize=(WIDTH, 2.5 * len(methods) + 0.9), layout="constrained")
        panels = canvas.subplots(len(methods), len(problems), squeeze=False, sharex=True, sharey="row")
        for line, method in zip(panels, methods, strict=True):
            for panel, problem in zip(line, problems, strict=True):
                if run := means.get((problem, method)):
                    _draw_bound(panel, run)
                _set_log_axes(panel, f"{problem}\n{method}")
        _add_frame(canvas, panels[0, 0], "regret and bounds")
    return canvas


def _draw_bound(panel: Axes, run: dict[str, Values]) -> None:
    times = run["time"]
    panel.plot(times, run["bound"], color="#7f8694", linewidth=5, alpha=0.5, label="printed bound")
    for name, (colour, label) in TERMS.items():
        panel.plot(times, keep_positive(run[name]), color=colour, linewidth=1.2, label=label)
    panel.plot(times, run["trivial"], color=INK, linestyle="--", label="trivial bound")
    panel.plot(times, keep_positive(run["regret"]), color=INK, label=r"regret $R_T$")


def keep_positive(values: Values) -> Values:
    """Without what a logarithmic axis cannot show."""
    return np.where(values > 0.0, values, np.nan)


def _set_log_axes(panel: Axes, title: str) -> None:
    panel.set(xscale="log", yscale="log", title=title)
    panel.grid()


def _add_frame(canvas: Figure, first: Axes, ylabel: str) -> None:
    canvas.supxlabel("number of losses $T$", fontsize=9)
    canvas.supylabel(ylabel, fontsize=9)
    canvas.legend(*first.get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=8)
