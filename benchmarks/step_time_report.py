"""What benchmarks/step_time.py shows of its findings: a table for each model, and a figure of all."""

import math
import statistics
from pathlib import Path
from typing import Any

BASE = "Adam(fused=True)"
"""What all methods are compared with."""
KINDS = {"eager": "eager: Python's part included", "graph": "replayed as a CUDA graph: the kernels alone"}
STRONGEST = 2.0  # the factor's logarithm from which on a colour is as dark as it gets


def show(measured: dict[str, Any]) -> None:
    """A table: milliseconds, multiples of fused Adam, how much of the floor's speed is reached, and memory."""
    times, memory = measured["times"], measured.get("memory ratios", {})
    kinds = [kind for kind in KINDS if any(kind in rows[BASE] for rows in times.values())]
    heads = "".join(f"{kind + ', ms':>12}{'x Adam':>9}" for kind in kinds)
    print(f"  {'':36}{heads}{'of floor':>10}" + (f"{'memory, x AdamW':>17}" if memory else ""))
    base = {
        kind: statistics.median(rows[BASE][kind] for rows in times.values() if kind in rows[BASE]) for kind in kinds
    }
    for name, row in {BASE: base, **{name: rows[name] for name, rows in times.items()}}.items():
        ratios = measured["ratios"].get(name, dict.fromkeys(kinds, 1.0))
        cells = "".join(f"{row[kind]:12.4f}{ratios[kind]:9.3f}" if kind in row else " " * 21 for kind in kinds)
        floor = measured["floors"].get(name.partition("(")[0])
        reached = f"{floor / row.get('graph', row['eager']):10.0%}" if floor else " " * 10
        print(f"  {name:36}{cells}{reached}" + (f"{memory[name]:17.3f}" if name in memory else ""))
    for name, ratios in measured["rivals"].items():
        print(f"  {name}: " + ", ".join(f"{kind} {ratio:.3f}" for kind, ratio in ratios.items()))


def draw(record: dict[str, Any], path: Path) -> None:
    """A table in colours: each method's time as a multiple of fused Adam's, and below a line as one of its rival's."""
    from matplotlib.figure import Figure

    cases = {case: ratios | record.get("rivals", {}).get(case, {}) for case, ratios in record["ratios"].items()}
    labels = [f"{case}\n{_shorten(record['elements'][case])}".replace(", ", "\n") for case in cases]
    names = dict.fromkeys(name for rows in cases.values() for name in rows if not _is_redundant(name))
    tables = {}
    for kind in KINDS:
        lines = {name: [rows.get(name, {}).get(kind, math.nan) for rows in cases.values()] for name in names}
        tables[kind] = {name: line for name, line in lines.items() if not all(map(math.isnan, line))}
    tables = {kind: lines for kind, lines in tables.items() if lines}
    heights = [0.9 + 0.36 * len(lines) for lines in tables.values()]
    figure = Figure(figsize=(3.4 + 0.8 * max(len(cases), 4), 0.7 + sum(heights)), dpi=150, layout="constrained")
    panels = figure.subplots(len(tables), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (kind, lines) in zip(panels, tables.items(), strict=True):
        _fill(axes, lines)
        axes.set_xticks([x + 0.5 for x in range(len(cases))], labels)
        axes.set_yticks([y + 0.5 for y in range(len(lines))], [name.replace(" / ", "\n/ ") for name in lines])
        axes.set_title(KINDS[kind], fontsize=10, loc="left")
        axes.tick_params(length=0, labelsize=8)
        axes.invert_yaxis()
        axes.spines[:].set_visible(False)
    below = "; below the line: of its rival's" if record.get("rivals") else ""
    figure.suptitle(
        f"Time of a step as a multiple of {BASE}'s{below}\n{record['device']}; blue: faster, red: slower", fontsize=11
    )
    figure.savefig(path)


def _shorten(count: int) -> str:
    """A count to three digits."""
    unit, size = next(pair for pair in (("B", 1e9), ("M", 1e6), ("K", 1e3), ("", 1.0)) if count >= pair[1])
    return f"{count / size:.3g} {unit}"


def _is_redundant(name: str) -> bool:
    """Whether a row would say what another one says, or nothing."""
    return name == BASE or name.endswith(f"/ {BASE}")


def _fill(axes: Any, lines: dict[str, list[float]]) -> None:
    """Colours and numbers, and a line above those that compare rivals."""
    import numpy as np

    shades = np.clip(np.log2(list(lines.values())), -STRONGEST, STRONGEST)
    limit = 1.2 * STRONGEST
    axes.pcolormesh(shades, cmap="RdBu_r", vmin=-limit, vmax=limit, edgecolors="white", linewidth=1.5)
    for y, line in enumerate(lines.values()):
        for x, ratio in enumerate(line):
            text = "" if math.isnan(ratio) else f"{ratio:.0f}" if ratio > 9.95 else f"{ratio:.2f}"
            color = "white" if abs(shades[y, x]) > 0.6 * STRONGEST else "black"
            axes.text(x + 0.5, y + 0.5, text, ha="center", va="center", fontsize=9, color=color)
    single = sum(" / " not in name for name in lines)
    if 0 < single < len(lines):
        axes.axhline(single, color="black", linewidth=1.2)
