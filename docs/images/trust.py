"""Draw images/trust.svg: AdaTerm's trust against distance, for a few degrees of freedom."""

from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "trust", "font.size": 11})
figure = Figure(figsize=(8, 4), layout="constrained")
axes = figure.subplots()
distances = np.logspace(-2, 4, 200)
for dof, style in ((1, "-"), (10, "--"), (100, ":")):
    axes.semilogx(distances, dof / (dof + distances), style, color="#0072B2", linewidth=2, label=f"{dof}")
axes.legend(title="degrees of freedom", frameon=False)
axes.set(xlabel="distance", ylabel="trust", xlim=(1e-2, 1e4), ylim=(0, 1.02))
axes.spines[["top", "right"]].set_visible(False)
figure.savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None})
