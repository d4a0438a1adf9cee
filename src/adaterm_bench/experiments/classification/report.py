"""What the report shows of the classification."""

from typing import Any

import numpy as np

from adaterm_bench.core.experiment import looks
from adaterm_bench.core.section import Claim, Figure, Section, Table
from adaterm_bench.core.trial import Result
from adaterm_bench.methods import PAPER_METHODS
from adaterm_bench.reporting import figures
from adaterm_bench.reporting.comparison import CLAIMED, HOW, OURS, by_method, in_pairs, middle_text, shared, spread_text
from adaterm_bench.reporting.published import AS_PUBLISHED, PUBLISHED, published
from adaterm_bench.reporting.statistics import bootstrap_interval, mean, mean_std, paired_difference
from adaterm_bench.reporting.text import number

SHOWN = ("Adam", "AdamW (clipped)", "t-Adam", "At-Adam", OURS, "Large init")
EPOCHS = 100  # the paper's
COLUMNS = {"0 %": "classification_0", "10 %": "classification_10"}
NAMES = {"0 %": "right labels", "10 %": "10 % wrong labels", "human": "the labels of CIFAR-100N, 40 % of them wrong"}


def section(results: list[Result]) -> Section:
    """Accuracies beside the paper's, learning curves, and its claims."""
    present = [labels for labels in NAMES if any(it.trial.condition["labels"] == labels for it in results)]
    return Section(
        "Classification",
        "A ResNet-18 learns from images of CIFAR-100, of which a share has a wrong label, and is tested on right ones. "
        "Methods with the same seed have the same initial weights, batches, crops and wrong labels. A wrong label is "
        "memorised if the network ends by predicting it for its training image.",
        tables=[table for labels in present for table in (_table(results, labels), *_pairs(results, labels))],
        figures=[figure for labels in present for figure in (_curves(results, labels), _spread(results, labels))],
        claims=[claim for labels in present for claim in _claims(results, labels)],
    )


def _percent(results: list[Result], outcome: str) -> list[float]:
    values = (it.outcome[outcome] for it in results)
    return [float("nan") if it is None else 100.0 * it for it in values]


def _table(results: list[Result], labels: str) -> Table:
    rows = []
    for method, own in by_method(results, labels=labels).items():
        accuracy, memorised = mean_std(_percent(own, "accuracy")), mean_std(_percent(own, "memorised"))
        dofs = [
            it.outcome["dof"]
            for it in own
            if it.outcome["dof"] is not None and PAPER_METHODS.get(method, ("",))[0] == OURS
        ]
        row = [
            method,
            str(len(own)),
            spread_text(accuracy),
            published(COLUMNS.get(labels, ""), method, 100.0),
            middle_text(np.array(_percent(own, "accuracy")), "higher"),
        ]
        row += [f"{memorised.mean:.1f}"] if labels != "0 %" else []
        rows.append([*row, number(float(np.mean(dofs))) if dofs else ""])
    columns = ["method", "seeds", "ours", "the paper's", "interquartile mean"]
    columns += [*(["memorised, %"] if labels != "0 %" else []), "dof"]
    note = (
        "Test accuracy after the last epoch, in %: mean and standard deviation over seeds; the paper's of 24 trials. "
        f"AdaTerm's degrees of freedom are the median over tensors, after the last step. {HOW} {AS_PUBLISHED}"
    )
    return Table(f"Test accuracy, {NAMES[labels]}", columns, rows, note)


def _pairs(results: list[Result], labels: str) -> list[Table]:
    title = f"Test accuracy in % beside AdaTerm, {NAMES[labels]}"
    return in_pairs(title, results, "accuracy", "higher", 100.0, labels=labels)


def _curves(results: list[Result], labels: str) -> Figure:
    own = {method: it for method, it in by_method(results, labels=labels).items() if method in SHOWN}
    values = {method: 100.0 * np.array([it.outcome["accuracies"] for it in of]) for method, of in own.items()}
    settings = results[0].trial.settings
    epochs = looks(settings["epochs"], settings["checks"])
    return Figure(
        f"Learning curves, {NAMES[labels]}",
        lambda: figures.curves(epochs, values, "test accuracy, %", xlabel="epoch", log=False, better="higher"),
        f"{figures.CURVES} Of some methods only, so that lines can be told apart.",
    )


def _spread(results: list[Result], labels: str) -> Figure:
    values: dict[str, Any] = {
        method: _percent(of, "accuracy") for method, of in by_method(results, labels=labels).items()
    }
    return Figure(
        f"Final accuracy, {NAMES[labels]}",
        lambda: figures.bars_with_spread(values, "test accuracy, %", start=None),
        "Dots: seeds; markers: mean and standard deviation.",
    )


def _claims(results: list[Result], labels: str) -> list[Claim]:
    rivals = ("Adam", "AdamW (clipped)") if labels == "human" else CLAIMED
    pairs = [(OURS, rival) for rival in rivals]
    pairs += [("Large init", OURS)] if labels != "human" else []
    claims = []
    for better, worse in pairs:
        pair = shared(results, "accuracy", better, worse, labels=labels)
        if len(pair[0]):
            found = paired_difference(100.0 * pair[0], 100.0 * pair[1], mean, better="higher")
            text = f"With {NAMES[labels]}, {better} is more accurate than {worse}."
            claims.append(Claim(text, "mean difference in points", *found[:3], note=found.note))
    if labels in COLUMNS and results[0].trial.settings["epochs"] >= EPOCHS:
        claims += _as_accurate(results, labels)
    return claims


def _as_accurate(results: list[Result], labels: str) -> list[Claim]:
    """Whether our AdaTerm is as accurate as the paper's, or more."""
    own = by_method(results, labels=labels).get(OURS)
    if not own:
        return []
    found = bootstrap_interval(_percent(own, "accuracy"), mean, better="higher")
    theirs, spread = (100.0 * it for it in PUBLISHED[COLUMNS[labels]][OURS])
    text = f"With {NAMES[labels]}, AdaTerm reaches the paper's accuracy of {theirs:.2f} %, less its standard deviation."
    return [Claim(text, "mean accuracy, %", *found[:3], bound=round(theirs - spread, 2), note=found.note)]
