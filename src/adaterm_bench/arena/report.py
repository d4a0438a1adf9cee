"""What a report shows of a task of the arena, whatever subset of its results there is."""

from collections.abc import Collection, Mapping, Sequence

from adaterm_bench.arena import drawings
from adaterm_bench.arena.claims import make_claims
from adaterm_bench.arena.finals import ORACLE, Finals, choose_on, order_methods, select_finals, select_second_track
from adaterm_bench.arena.judgement import make_judgement_tables
from adaterm_bench.arena.measure import Measure
from adaterm_bench.arena.protocol import CLEAN, RATES, TUNING_SEEDS
from adaterm_bench.arena.tables import (
    list_noises,
    make_cost_table,
    make_outcome_tables,
    make_rank_table,
    make_trap_table,
)
from adaterm_bench.core.section import Figure, Section, Table
from adaterm_bench.core.trial import Result
from adaterm_bench.reporting.intervals import Values
from adaterm_bench.reporting.statistics import diverged


def make_section(title: str, text: str, results: Sequence[Result], measure: Measure, models: Sequence[str]) -> Section:
    """Tables, figures and claims of each model; the models that are named come first."""
    present = dict.fromkeys(result.trial.condition["model"] for result in results)
    names = [*(model for model in models if model in present), *(model for model in present if model not in models)]
    tracks = {model: select_finals(results, measure, model) for model in names}
    return Section(
        title,
        f"{text}\n\n{_describe_seeds(results, tracks.values())} {_describe_lost(results, measure, names)}{measure.how}",
        tables=[table for model in names for table in _make_tables(results, tracks[model], measure)],
        figures=[figure for model in names for figure in _make_figures(results, tracks[model], measure)],
        claims=[claim for model in names for claim in make_claims(tracks[model], measure)],
    )


def _make_tables(results: Sequence[Result], finals: Finals, measure: Measure) -> list[Table]:
    model = finals.model
    second = select_second_track(results, measure, model)
    label = measure.label
    rates = "learning rates not tuned" if set(finals.methods) <= set(finals.untuned) else "rates tuned on clean data"
    return [
        *make_outcome_tables(finals, measure, f"{model}: {label}, {rates}"),
        *make_cost_table(finals, measure, f"{model}: what noise costs"),
        *make_rank_table(finals, measure, f"{model}: ranks, {rates}"),
        *make_trap_table(finals, measure, f"{model}: the trap"),
        *make_judgement_tables(finals, measure, f"{model}: good and bad batches"),
        *make_outcome_tables(second, measure, f"{model}: {label}, rates tuned per condition", per_condition=True),
    ]


def _make_figures(results: Sequence[Result], finals: Finals, measure: Measure) -> list[Figure]:
    tuning = measure.tuning
    choices = choose_on(results, measure, finals.model, CLEAN)
    choices = {method: choice for method, choice in choices.items() if len(choice.outcomes) > 1}
    ends = [method for method, choice in choices.items() if choice.rate in (RATES[0], RATES[-1])]
    edge = f" Chosen at an end of the grid, beyond which may be a better one: {', '.join(ends)}." if ends else ""
    caption = (
        f"Clean {tuning.noun}, mean of the tuning seeds, against the learning rate; the large dot is the rate that was "
        f"chosen, the light line AdamW with clipping. Rates with fewer seeds than others of the method are not drawn. "
        f"{drawings.EDGE}{edge}"
    )
    title = f"{finals.model}: sensitivity to the learning rate"
    sensitivity = Figure(title, lambda: drawings.draw_sensitivity(choices, tuning), caption)
    return [*_draw_shares(finals, measure), *_draw_noises(finals, measure), *([sensitivity] if choices else [])]


def _draw_shares(finals: Finals, measure: Measure) -> list[Figure]:
    """The outcome against the share of bad batches.

    Of methods that were run at the least and the largest share, and of those that lead anywhere, with what they judge.
    """
    shares = [noise for noise in measure.shares if noise in finals.noises]
    if len(shares) < 2:
        return []
    values = {
        method: {
            measure.shares[noise]: finals.values(method, noise, measure.outcome)
            for noise in shares
            if (method, noise) in finals.runs
        }
        for method in finals.methods
    }
    ends = {measure.shares[shares[0]], measure.shares[shares[-1]]}
    leaders = {_find_leader(values, measure.shares[noise], measure) for noise in shares}
    leaders |= {leader.partition(" (judged")[0] for leader in leaders if leader is not None}
    drawn = {
        method: runs for method, runs in values.items() if ends <= runs.keys() or (method in leaders and len(runs) > 1)
    }
    if not drawn:
        return []
    partly = [method for method, runs in drawn.items() if not ends <= runs.keys()]
    led = (
        f" Not run at all shares, and drawn because they lead at one, or are what a leader judges: {', '.join(partly)}."
        if partly
        else ""
    )
    missing = [method for method in finals.methods if method not in drawn]
    rest = f" Run at too few shares to be drawn: {', '.join(missing)}." if missing else ""
    caption = (
        f"Mean {measure.noun} of final seeds, at the learning rates of the table, with Student's intervals at "
        f"the level 95 % where there are three seeds (bands or bars). The dotted line knows which batches are bad. "
        f"{drawings.EDGE}{led}{rest}"
    )
    title = f"{finals.model}: {measure.noun} against the share of bad batches"
    return [Figure(title, lambda: drawings.draw_against_share(drawn, measure), caption)]


def _find_leader(values: Mapping[str, Mapping[float, Values]], share: float, measure: Measure) -> str | None:
    """Who has the best mean at a share, of two seeds at least; nobody who lost a run, and not the oracle."""
    means = {
        method: measure.sign * float(runs[share].mean())
        for method, runs in values.items()
        if method != ORACLE and len(runs.get(share, ())) > 1 and not diverged(runs[share])
    }
    return min(means, key=lambda method: means[method], default=None)


def _draw_noises(finals: Finals, measure: Measure) -> list[Figure]:
    """The noises that are no steps of a share, and clean data, as points."""
    noises = [noise for noise in list_noises(finals, measure) if noise == CLEAN or noise not in measure.shares]
    values: dict[str, dict[str, Values]] = {
        method: {
            noise: finals.values(method, noise, measure.outcome) for noise in noises if (method, noise) in finals.runs
        }
        for method in finals.methods
    }
    values = {method: runs for method, runs in values.items() if runs}
    if not values:
        return []
    caption = (
        f"Mean {measure.noun} of final seeds, at the learning rates of the table, with Student's intervals at "
        f"the level 95 %. The line is RobustAdamW's mean. {drawings.EDGE} No mark: not run. "
        "Each panel has its own scale."
    )
    title = f"{finals.model}: {measure.noun} by noise"
    return [Figure(title, lambda: drawings.draw_by_noise(values, measure), caption)]


def _describe_seeds(results: Sequence[Result], tracks: Collection[Finals]) -> str:
    tuning = {result.trial.seed for result in results} & set(TUNING_SEEDS)
    parts = [f"{len(finals.seeds)} ({finals.model})" for finals in tracks]
    compared = {method for finals in tracks for method in finals.methods}
    hidden = [method for method in order_methods(result.trial.method for result in results) if method not in compared]
    untuned = f" Without final runs at a chosen rate, and so in no table: {', '.join(hidden)}." if hidden else ""
    decide = (
        "decide learning rates, and the defaults of RobustAdamW, and nothing else: final numbers are of other seeds"
    )
    return f"Final seeds: {', '.join(parts) or 'none'}. Tuning seeds, {len(tuning) or 'none'} here, {decide}.{untuned}"


def _describe_lost(results: Sequence[Result], measure: Measure, models: Sequence[str]) -> str:
    lost = [
        f"{method} ({model})"
        for model in models
        for method, choice in choose_on(results, measure, model, CLEAN).items()
        if choice.rate is None
    ]
    return f"No rate was chosen, because clean runs were lost at all of them: {', '.join(lost)}. " if lost else ""
