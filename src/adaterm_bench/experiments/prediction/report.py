"""What the report shows of the long-term prediction."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from adaterm_bench.core.section import Claim, Figure, Section, Table
from adaterm_bench.core.trial import Result
from adaterm_bench.datasets.data import DataError
from adaterm_bench.methods import PAPER_METHODS
from adaterm_bench.reporting import figures
from adaterm_bench.reporting.claims import Sentence, correct_families, make_claim, tabulate_checks
from adaterm_bench.reporting.comparison import (
    RIVALS,
    compare_in_pairs,
    describe_how,
    describe_middle,
    describe_spread,
    group_by_method,
    list_by_seed,
)
from adaterm_bench.reporting.intervals import wilson
from adaterm_bench.reporting.orders import COLUMNS, check_means, claim_orders
from adaterm_bench.reporting.palette import INK, choose_look
from adaterm_bench.reporting.published import AS_PUBLISHED, find_published
from adaterm_bench.reporting.statistics import mean_std, with_worst
from adaterm_bench.reporting.style import WIDTH, use_style
from adaterm_bench.reporting.text import format_interval, format_number

CURVES = (*RIVALS, "AdaTerm", "No robustness", "AdaTerm2")
EXAMPLES = ("AdaTerm", "Adam")
NOTICED = 0.2
LATELY = 20  # per cent of the checks
JUMP = 2.0  # times the median so far: a validation error above that is a sign of instability


def section(results: list[Result]) -> Section:
    """Errors next to the paper's, stability, learning curves, examples, and the paper's claims."""
    horizons = sorted({result.trial.condition["horizon"] for result in results})
    data = sorted({str(result.outcome["data"]) for result in results})
    if len(data) > 1:
        raise DataError(f"these results are of different data ({', '.join(data)}): keep them apart")
    drawn = [
        draw
        for horizon in horizons
        for draw in (
            _draw_curves(results, horizon),
            _draw_losses(results, horizon),
            *_make_examples(results, horizon),
        )
    ]
    return Section(
        "Long-term prediction",
        "A recurrent network predicts the joints of a walking hexapod, of which it sees the true state at the begin of "
        "each interval, and then samples of its own predictions. The error is that of the sample at an interval's last "
        "step, as a mean square over the test trajectories, in units of the training set's standard deviations. Unless "
        "the paper's recording was given, walks are simulated, so that the order of methods can be compared and their "
        f"numbers cannot. The data's fingerprint is {data[0]}.",
        tables=[
            *(
                table
                for horizon in horizons
                for table in (_make_table(results, horizon), *_compare_pairs(results, horizon))
            ),
            _tabulate_stability(results, horizons),
            *_tabulate_checks(results, horizons),
        ],
        figures=drawn,
        claims=correct_families(claim for horizon in horizons for claim in _make_claims(results, horizon)),
    )


def _make_table(results: list[Result], horizon: int) -> Table:
    rows = []
    for method, runs in group_by_method(results, horizon=horizon).items():
        values, of_means = (np.array([result.outcome[name] for result in runs]) for name in ("mse", "mse_mean"))
        theirs = find_published(f"prediction_{horizon}", method)
        ours = describe_spread(mean_std(values))
        lately = [np.median(result.outcome["mses"][-LATELY * len(result.outcome["mses"]) // 100 :]) for result in runs]
        row = [method, ours, theirs, describe_middle(values), describe_middle(of_means), str(len(values))]
        rows.append([*row, describe_spread(mean_std(lately)), *(_describe_best(runs) if _has_best(results) else ())])
    held = next(result.outcome["held"] for result in results if result.trial.condition["horizon"] == horizon)
    note = (
        "Ours and the paper's: mean ± standard deviation over seeds; the data differ. Then the interquartile mean, the "
        "same when means are fed back and compared in place of samples, and the number of seeds. "
        f"To predict that nothing changes has an error of {format_number(held)}. {describe_how(results)} "
        f"{AS_PUBLISHED} Lately: the validation error, as its median over the last {LATELY} % of the checks. All seeds "
        "have the same truncation points, so that errors jump in the same epochs, of which the last may be one."
    )
    columns = ["method", "ours", "paper", "interquartile mean", "of means", "seeds", "validation, lately"]
    if _has_best(results):
        columns += ["ours, where it validates best", "epoch of that"]
        note += (
            " Then the last two columns: the networks as they were at the epoch that validates best, and its median."
        )
    return Table(f"Error of predicting {_format_steps(horizon)}", columns, rows, note)


def _has_best(results: list[Result]) -> bool:
    """Whether networks were tested as they were when they validated best, too."""
    return all("best_mse" in result.outcome for result in results)


def _describe_best(runs: list[Result]) -> list[str]:
    errors, epochs = ([result.outcome[name] for result in runs] for name in ("best_mse", "best_epoch"))
    return [describe_spread(mean_std(errors)), f"{np.median(epochs):g}"]


def _compare_pairs(results: list[Result], horizon: int) -> list[Table]:
    return compare_in_pairs(
        f"Error of {_format_steps(horizon)}, compared with AdaTerm", results, "mse", "lower", horizon=horizon
    )


def _tabulate_stability(results: list[Result], horizons: list[int]) -> Table:
    """How many runs were unstable, of all methods."""
    rows = []
    for method in dict.fromkeys(method for horizon in horizons for method in group_by_method(results, horizon=horizon)):
        unstable = [
            [is_unstable(result.outcome["mses"]) for result in _select_results(results, horizon, method)]
            for horizon in horizons
        ]
        rows.append([method, *(f"{sum(runs)} of {len(runs)}" if runs else "" for runs in unstable)])
    note = (
        f"Runs that diverged, or whose validation error was at some check more than {JUMP:g} times the median of the "
        "checks before it. The paper saw signs of instability in AdaTerm2 with 30 steps."
    )
    return Table("Unstable runs", ["method", *(_format_steps(horizon) for horizon in horizons)], rows, note)


def _tabulate_checks(results: list[Result], horizons: list[int]) -> list[Table]:
    checks = {}
    for horizon in horizons:
        column = f"prediction_{horizon}"
        errors = list_by_seed(group_by_method(results, horizon=horizon), "mse")
        for method in ("AdaTerm", "Adam", "RAdam"):  # runs of the last two have errors that jump
            if method in errors and column in COLUMNS:
                checks[f"mean errors of {method}, {_format_steps(horizon)}"] = check_means(column, errors[method])
    return tabulate_checks(checks)


def is_unstable(errors: Sequence[float]) -> bool:
    """Whether a validation error jumps above what was usual before, or is not finite."""
    ordered = with_worst(errors)
    jumps = (now > JUMP * np.median(ordered[:place]) for place, now in enumerate(ordered) if place)
    return bool(np.isinf(ordered).any() or any(jumps))


def _make_claims(results: list[Result], horizon: int) -> list[Claim]:
    """What the paper says, of means as its tables are."""
    column, groups = f"prediction_{horizon}", group_by_method(results, horizon=horizon)
    if column not in COLUMNS:
        return []
    claims = claim_orders(column, list_by_seed(groups, "mse"))
    if _has_best(results):
        best = claim_orders(column, list_by_seed(groups, "best_mse"))
        notes = [f"Where networks validate best: {format_interval(claim)}." for claim in best]
        claims = [
            replace(claim, note=f"{claim.note} {note}".strip()) for claim, note in zip(claims, notes, strict=True)
        ]
    return [*claims, *_claim_unstable(results, horizon)]


def _claim_unstable(results: list[Result], horizon: int) -> list[Claim]:
    runs = _select_results(results, horizon, "AdaTerm2")
    if not runs or horizon == 1:
        return []
    unstable = [is_unstable(result.outcome["mses"]) for result in runs]
    share = wilson(float(np.mean(unstable)), len(unstable))
    text = f"With {_format_steps(horizon)}, AdaTerm2 shows signs of instability."
    sentence = Sentence(text, "appendix H", "a figure without numbers")
    note = f"Wilson's interval. The bound is ours: one seed in {1 / NOTICED:g} would show in the mean of a figure"
    what = "share of seeds whose validation error jumps"
    return [make_claim(sentence, text, what, share, bound=NOTICED, note=note)]


def _draw_curves(results: list[Result], horizon: int) -> Figure:
    errors = {
        method: [result.outcome["mses"] for result in _select_results(results, horizon, method)]
        for method in group_by_method(results, horizon=horizon)
        if method in CURVES or method not in PAPER_METHODS
    }
    epochs = next(result.outcome["checked"] for result in results if result.trial.condition["horizon"] == horizon)
    return Figure(
        f"Validation error of {_format_steps(horizon)}",
        lambda: figures.draw_curves(epochs, errors, "mean square error", xlabel="epoch"),
        figures.CURVES,
    )


def _draw_losses(results: list[Result], horizon: int) -> Figure:
    losses = {
        method: [result.outcome["losses"] for result in runs]
        for method, runs in group_by_method(results, horizon=horizon).items()
        if method in CURVES or method not in PAPER_METHODS
    }
    checked = next(result.outcome["checked"] for result in results if result.trial.condition["horizon"] == horizon)
    count = len(next(iter(losses.values()))[0]) if losses else 0
    epochs = checked if count == len(checked) else range(1, count + 1)
    return Figure(
        f"Training loss of {_format_steps(horizon)}",
        lambda: figures.draw_curves(list(epochs), losses, "negative log-likelihood", xlabel="epoch", log=False),
        figures.CURVES,
    )


def _make_examples(results: list[Result], horizon: int) -> list[Figure]:
    examples = {
        method: result.outcome["example"]
        for method in EXAMPLES
        for result in _select_results(results, horizon, method)
        if result.outcome["example"] is not None
    }
    caption = (
        "Thin line: the first test trajectory. Thick line: the mean of many sampled predictions, with a band of two "
        "standard deviations. Dotted: where the network saw the true state."
    )
    title = f"True and predicted angles with {_format_steps(horizon)}"
    return [Figure(title, lambda: _draw_examples(examples, horizon), caption)] if examples else []


def _draw_examples(examples: dict[str, Any], horizon: int) -> Any:
    from matplotlib import figure as canvas  # only where something is drawn

    with use_style():
        figure = canvas.Figure(figsize=(WIDTH, 4.4), layout="constrained")
        panels = figure.subplots(2, len(examples), squeeze=False, sharex=True, sharey="row")
        for column, (method, example) in zip(panels.T, examples.items(), strict=True):
            colour = choose_look(method).colour
            for joint, panel in enumerate(column):
                true, mean, std = (np.asarray(example[name][joint]) for name in ("true", "mean", "std"))
                steps = np.arange(1, len(true) + 1)
                panel.plot(steps, true, color=INK, linewidth=1.0)
                panel.plot(steps, mean, color=colour)
                panel.fill_between(steps, mean - 2.0 * std, mean + 2.0 * std, color=colour, alpha=0.2, linewidth=0)
                for begin in range(0, len(true), horizon) if horizon > 1 else ():
                    panel.axvline(begin, color=INK, linewidth=0.7, linestyle=":")
                span = true.max() - true.min()
                panel.set_ylim(true.min() - 0.6 * span, true.max() + 0.6 * span)
            column[0].set_title(method)
            column[-1].set_xlabel("step")
        for name, panel in zip(example["joints"], panels[:, 0], strict=True):
            panel.set_ylabel(f"{name.replace('_', ' ')}, rad")
    return figure


def _select_results(results: list[Result], horizon: int, method: str) -> list[Result]:
    return group_by_method(results, horizon=horizon).get(method, [])


def _format_steps(horizon: int) -> str:
    return "1 step" if horizon == 1 else f"{horizon} steps"
