"""What the report shows of the classification."""

from typing import Any

import numpy as np

from adaterm_bench.core.experiment import list_checks
from adaterm_bench.core.section import Claim, Figure, Section, Table
from adaterm_bench.core.trial import Result
from adaterm_bench.methods import PAPER_METHODS
from adaterm_bench.reporting import figures
from adaterm_bench.reporting.claims import Sentence, correct_families, make_claim, tabulate_checks
from adaterm_bench.reporting.comparison import (
    OURS,
    compare_in_pairs,
    describe_how,
    describe_middle,
    describe_spread,
    group_by_method,
    list_by_seed,
    pair_methods,
)
from adaterm_bench.reporting.each_seed import show_each_seed
from adaterm_bench.reporting.intervals import Bootstrap
from adaterm_bench.reporting.orders import check_means, claim_orders
from adaterm_bench.reporting.published import AS_PUBLISHED, PUBLISHED, find_published
from adaterm_bench.reporting.statistics import bootstrap_interval, mean, mean_std, paired_difference
from adaterm_bench.reporting.text import format_number

SHOWN = ("Adam", "AdamW (clipped)", "t-Adam", "At-Adam", OURS, "Large init", "RobustAdamW")
EPOCHS = 100  # the paper's
COLUMNS = {"0 %": "classification_0", "10 %": "classification_10"}
NAMES = {"0 %": "right labels", "10 %": "10 % wrong labels", "human": "the labels of CIFAR-100N, 40 % of them wrong"}


def section(results: list[Result]) -> Section:
    """Accuracies next to the paper's, learning curves, and its claims."""
    present = [labels for labels in NAMES if any(result.trial.condition["labels"] == labels for result in results)]
    return Section(
        "Classification",
        "A ResNet-18 learns from images of CIFAR-100, of which a share has a wrong label, and is tested on right ones. "
        "Methods with the same seed have the same initial weights, batches, crops and wrong labels. A wrong label is "
        "memorised if the network ends by predicting it for its training image.",
        tables=[
            table for labels in present for table in (_make_table(results, labels), *_compare_pairs(results, labels))
        ]
        + tabulate_checks(
            {
                f"mean accuracies, {NAMES[labels]}": check_means(COLUMNS[labels], accuracies)
                for labels in present
                if labels in COLUMNS
                and (accuracies := list_by_seed(group_by_method(results, labels=labels), "accuracy").get(OURS))
            }
        ),
        figures=[
            figure
            for labels in present
            for figure in (
                *_draw_curves(results, labels),
                _draw_losses(results, labels),
                _draw_spread(results, labels),
            )
        ],
        claims=correct_families(claim for labels in present for claim in _make_claims(results, labels)),
    )


def _list_percent(results: list[Result], outcome: str) -> list[float]:
    values = (result.outcome[outcome] for result in results)
    return [float("nan") if value is None else 100.0 * value for value in values]


def _make_table(results: list[Result], labels: str) -> Table:
    rows = []
    for method, runs in group_by_method(results, labels=labels).items():
        accuracy, memorised = mean_std(_list_percent(runs, "accuracy")), mean_std(_list_percent(runs, "memorised"))
        dofs = [
            result.outcome["dof"]
            for result in runs
            if result.outcome["dof"] is not None and PAPER_METHODS.get(method, ("",))[0] == OURS
        ]
        row = [
            method,
            str(len(runs)),
            describe_spread(accuracy),
            find_published(COLUMNS.get(labels, ""), method, 100.0),
            describe_middle(np.array(_list_percent(runs, "accuracy")), "higher"),
        ]
        row += [f"{memorised.mean:.1f}"] if labels != "0 %" else []
        rows.append([*row, format_number(float(np.mean(dofs))) if dofs else ""])
    columns = ["method", "seeds", "ours", "the paper's", "interquartile mean"]
    columns += [*(["memorised, %"] if labels != "0 %" else []), "dof"]
    note = (
        "Test accuracy after the last epoch, in %: mean and standard deviation over seeds; the paper's of 24 trials. "
        f"AdaTerm's degrees of freedom are the median over tensors, after the last step. {describe_how(results)} "
        f"{AS_PUBLISHED}"
    )
    return Table(f"Test accuracy, {NAMES[labels]}", columns, rows, note)


def _compare_pairs(results: list[Result], labels: str) -> list[Table]:
    title = f"Test accuracy in % compared with AdaTerm, {NAMES[labels]}"
    return compare_in_pairs(title, results, "accuracy", "higher", 100.0, labels=labels)


def _draw_curves(results: list[Result], labels: str) -> list[Figure]:
    """Of some methods; of all of them, seed by seed, where the first figure has bands."""
    values = {
        method: [[100.0 * accuracy for accuracy in result.outcome["accuracies"]] for result in runs]
        for method, runs in group_by_method(results, labels=labels).items()
    }
    settings, ylabel = results[0].trial.settings, "test accuracy, %"
    epochs = list_checks(settings["epochs"], settings["checks"])
    shown = {method: runs for method, runs in values.items() if method in SHOWN}
    medians = Figure(
        f"Learning curves, {NAMES[labels]}",
        lambda: figures.draw_curves(epochs, shown, ylabel, xlabel="epoch", log=False, better="higher"),
        f"{figures.CURVES} Of some methods only, so that lines can be told apart.",
    )
    return [medians, *show_each_seed(f"Every seed, {NAMES[labels]}", epochs, values, ylabel, "epoch")]


def _draw_losses(results: list[Result], labels: str) -> Figure:
    groups = {method: runs for method, runs in group_by_method(results, labels=labels).items() if method in SHOWN}
    values = {method: np.array([result.outcome["losses"] for result in runs]) for method, runs in groups.items()}
    epochs = range(1, results[0].trial.settings["epochs"] + 1)
    return Figure(
        f"Training loss, {NAMES[labels]}",
        lambda: figures.draw_curves(list(epochs), values, "cross-entropy", xlabel="epoch", log=False),
        f"With smoothed labels, over each epoch. {figures.CURVES} Of some methods only.",
    )


def _draw_spread(results: list[Result], labels: str) -> Figure:
    values: dict[str, Any] = {
        method: _list_percent(runs, "accuracy") for method, runs in group_by_method(results, labels=labels).items()
    }
    return Figure(
        f"Final accuracy, {NAMES[labels]}",
        lambda: figures.draw_bars(values, "test accuracy, %", start=None),
        "Dots: seeds; markers: mean and standard deviation.",
    )


def _make_claims(results: list[Result], labels: str) -> list[Claim]:
    """What the paper says of its labels, in points; of those that it has not, what we say."""
    if labels in COLUMNS:
        accuracies = list_by_seed(group_by_method(results, labels=labels), "accuracy")
        reached = _claim_accuracy(results, labels) if results[0].trial.settings["epochs"] >= EPOCHS else []
        return [*claim_orders(COLUMNS[labels], accuracies, scale=100.0), *reached]
    claims = []
    for rival in ("Adam", "AdamW (clipped)"):
        ours, theirs = pair_methods(results, "accuracy", OURS, rival, labels=labels)
        if len(ours):
            bootstrap = Bootstrap(against=0.0)
            difference = paired_difference(100.0 * ours, 100.0 * theirs, mean, better="higher", bootstrap=bootstrap)
            text = f"With {NAMES[labels]}, {OURS} is more accurate than {rival}."
            sentence = Sentence(f"With {NAMES[labels]}, {OURS} is more accurate than what is used today.")
            claims.append(make_claim(sentence, text, "mean difference in points", difference))
    return claims


def _claim_accuracy(results: list[Result], labels: str) -> list[Claim]:
    """Whether our AdaTerm is as accurate as the paper's, or more."""
    runs = group_by_method(results, labels=labels).get(OURS)
    if not runs:
        return []
    accuracy = bootstrap_interval(_list_percent(runs, "accuracy"), mean, better="higher")
    theirs, spread = (100.0 * number for number in PUBLISHED[COLUMNS[labels]][OURS])
    text = f"With {NAMES[labels]}, AdaTerm reaches the paper's accuracy of {theirs:.2f} %, less its standard deviation."
    return [make_claim(Sentence(text), text, "mean accuracy, %", accuracy, bound=round(theirs - spread, 2))]
