"""Pictures of a history."""

from io import BytesIO
from math import ceil, inf, nan
from typing import Any

import torch
from torch import Tensor

try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
except ImportError as error:
    raise ImportError("Monitor.plot needs matplotlib, which is not installed: pip install matplotlib") from error

from adaterm.monitor.history import History

ROWS = 40  # of the heat map, whose labels can be read; of more, only some are named
FEW = 10  # rows that hide too much
COLUMNS = 1000
LONGEST = 36  # label
TAKEN, BAD, COLOURS = "#6b7f92", "#D55E00", "Blues_r"


class Picture(Figure):
    """A figure that a notebook shows as the value of a cell, even where nobody has imported pyplot."""

    def _repr_png_(self) -> bytes:
        file = BytesIO()
        self.savefig(file, format="png")
        return file.getvalue()


def draw(history: History, names: list[str], judged: bool) -> Picture:
    """The level of each batch, and below it the trust in layers, over the same steps."""
    layers = group_names(names)
    height = 2.6 + 0.9 + 0.16 * min(max(len(layers), 12), ROWS)
    figure = Picture(figsize=(11, height), dpi=130, layout="constrained")
    top, below = figure.subplots(2, 1, sharex=True, height_ratios=(2.6, height - 2.6))
    _draw_levels(top, history, judged)
    _draw_trust(figure, below, history, layers, judged)
    return figure


def group_names(names: list[str]) -> dict[str, list[int]]:
    """Columns by layer: tensors, or modules that have several where there are too many tensors to name each.

    Where modules are too few to tell much, their parts are shown, even if these are too many to name each.
    """
    parts = [name.split(".") for name in names]
    finer: dict[str, list[int]] = {}
    for depth in range(max(map(len, parts), default=1), 0, -1):
        groups: dict[str, list[int]] = {}
        for column, words in enumerate(parts):
            groups.setdefault(".".join(words[:depth]), []).append(column)
        if len(groups) <= ROWS:
            return groups if len(groups) >= FEW or not finer else finer
        finer = groups
    return finer


def _draw_levels(axes: Axes, history: History, judged: bool) -> None:
    def put(label: str, chosen: Tensor, **style: Any) -> None:
        axes.scatter(history.steps[chosen].tolist(), history.level[chosen].tolist(), label=label, **style)

    known = ~history.level.isnan()
    put("taken" if judged else "ordinary", ~history.excluded & known, s=5, color=TAKEN, linewidths=0)
    put("excluded" if judged else "stands out", history.excluded & known, s=24, color=BAD, marker="x")
    broken = history.nonfinite.any(1)
    if broken.any():
        label, steps = "with gradients that are not finite", history.steps[broken].tolist()
        top = axes.get_xaxis_transform()
        axes.scatter(steps, [0.98] * len(steps), s=24, color="black", marker="v", label=label, transform=top)
    axes.set_ylabel("level of the batch:\nmean log-distance")
    axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3, frameon=False, borderaxespad=0.2, markerscale=1.4)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_trust(figure: Figure, axes: Axes, history: History, layers: dict[str, list[int]], judged: bool) -> None:
    together = ceil(max(len(history), 1) / COLUMNS)
    pick = _find_least if judged else Tensor.nanmean  # where trust varies anyway, the least says little
    trusts = torch.stack([pick(history.trusts[:, columns], 1) for columns in layers.values()])
    missing = -len(history) % together
    padded = torch.cat([trusts, trusts.new_full((len(layers), missing), nan)], dim=1)
    binned = padded.view(len(layers), -1, together)
    drawn = pick(binned, 2)
    first, last = (int(history.steps[place]) for place in (0, -1)) if len(history) else (0, 1)
    edges = (first - 0.5, last + 0.5 + missing, len(layers) - 0.5, -0.5)
    image = axes.imshow(
        drawn.tolist(), aspect="auto", interpolation="nearest", cmap=COLOURS, vmin=0.0, vmax=1.0, extent=edges
    )
    every = ceil(len(layers) / ROWS)
    labels = list(layers)[::every]
    axes.set_yticks(range(0, len(layers), every), [_shorten(label) for label in labels], fontsize=8)
    axes.set(xlabel="step", xlim=(first - 0.5, last + 0.5))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    what = "trust" if together == 1 else f"{'least' if judged else 'mean'} trust in {together} steps"
    figure.colorbar(image, ax=axes, label=what, pad=0.01, aspect=30)


def _find_least(values: Tensor, dimension: int) -> Tensor:
    least = torch.where(values.isnan(), inf, values).amin(dimension)
    return torch.where(least < inf, least, nan)


def _shorten(label: str) -> str:
    return label if len(label) <= LONGEST else f"…{label[1 - LONGEST :]}"
