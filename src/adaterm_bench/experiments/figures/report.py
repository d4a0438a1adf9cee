"""What the report shows of the explanatory figures."""

from functools import partial
from typing import Any

from adaterm_bench.core.section import Figure, Section
from adaterm_bench.core.trial import Result


def section(results: list[Result]) -> Section:
    """The figures whose data there are, in the paper's order."""
    data = {result.trial.condition["figure"]: result.outcome for result in results if result.trial.seed == 0}
    figures = [
        Figure(title, partial(_draw, name, data[name]), caption)
        for name, (title, caption) in FIGURES.items()
        if name in data
    ]
    text = "The paper's explanatory figures, drawn from the equations that the optimizer runs."
    return Section("Explanatory figures", text, figures=figures)


def _draw(name: str, data: dict[str, Any]) -> Any:
    from adaterm_bench.experiments.figures.drawings import draw  # needs matplotlib

    return draw(name, data)


FIGURES = {
    "robust_fit": (
        "Robustness of Student's t",
        "Maximum-likelihood fits to a sample of which a tenth are outliers: Gaussian, left, and Student's t, right.",
    ),
    "gaussian_limit": (
        "Student's t tends to the Gaussian",
        "The density for growing degrees of freedom.",
    ),
    "digamma_bound": (
        "Tightness of the digamma bound",
        "Left: the difference of digamma functions in the gradient of the dof, and the bound that replaces it; right: "
        "by how much the bound is too large.",
    ),
    "surrogate_gradient": (
        "Surrogate gradient of the degrees of freedom",
        "Against the weight of a gradient, for nu = d. It is positive around a weight of 1 for every d, but for "
        "large d so little and so briefly that the paper calls it always negative.",
    ),
    "coupled_scales": (
        "Interdependence of the scale entries",
        "Ellipses of 3 sigma: before, in blue, and after one observation, in the colour of the point. An anomaly along "
        "one axis widens that axis and narrows the other; along both, AdaTerm's scale hardly changes.",
    ),
    "dof_and_distance": (
        "Degrees of freedom and distance",
        "Left: contours of D; inside the dashed line an observation raises nu, outside it lowers it. Right: the "
        "density of one coordinate before (grey) and after observations at the point of the same colour; green lines "
        "hold the central 90 %.",
    ),
    "first_moment": (
        "First moment under noise",
        "After ten noisy gradients of x² + y² at every place, 15 % of them outliers, from the true gradient and noise.",
    ),
    "rates": (
        "Rate and change of the degrees of freedom",
        "Left: the rate of mean and scale. Right: the change of the dof by one step; it is zero on the line, "
        "positive (violet) below and negative (orange) above.",
    ),
}
"""Title, drawing and caption of each figure."""
