"""What the experiments show of the results in a directory."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import MISSING, fields, replace
from functools import partial
from typing import Any

from adaterm_bench.core.experiment import Experiment
from adaterm_bench.core.flags import restore_experiment
from adaterm_bench.core.registry import is_built_in, load, rank
from adaterm_bench.core.section import Section
from adaterm_bench.core.store import Store
from adaterm_bench.core.trial import Result, canonical, keep_newest_equations

SMOKE = (
    "These are runs of the preset `smoke`: few seeds, short and small. They show that everything runs, and prove "
    "nothing; no verdict and no number here is a result."
)


def make_sections(store: Store) -> tuple[list[tuple[Section, list[Result]]], list[str]]:
    """A section for each experiment, and for each of its settings that decide results, with the results it shows.

    Then a sentence for everything that cannot be shown, such as an experiment that has changed since it was run.
    """
    groups: dict[str, list[dict[str, Any]]] = {}
    complaints = []
    for plan in store.plans():
        try:
            experiment = restore_experiment(load(plan["source"], plan["experiment"]), plan["settings"])
        except Exception as error:
            complaints.append(
                f"{plan['experiment']} ({plan['label']}) of {plan['source']} is not shown: {_format_error(error)}"
            )
            continue
        source = "" if is_built_in(plan["source"]) else plan["source"]
        same = canonical([source, plan["experiment"], experiment.decisive()])
        groups.setdefault(same, []).append({**plan, "made": experiment})
    results = {result.trial.key: result for result in store.results()}
    entries: list[tuple[Section, list[Result], str]] = []
    tested: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)  # by experiment and label: the seeds of claims
    # A former version may have had other settings, and then has plans of its own: the latest come first.
    for plans in sorted(groups.values(), key=partial(_find_latest_version, results), reverse=True):
        widest = max(plans, key=lambda plan: sum(map(len, plan["keys"].values())))
        experiment, title = widest["made"], f"{widest['experiment']} ({widest['label']})"
        keys = dict.fromkeys(key for plan in plans for keys in plan["keys"].values() for key in keys)
        planned = [results[key] for key in keys if key in results]
        missing = len(keys) - len(planned)
        partly = f" {len(planned)} of {len(keys)} planned trials are done." if missing else ""
        versions = (experiment.version, *sorted(experiment.former, reverse=True))
        others = [result for result in planned if result.trial.version not in versions]
        if others:
            complaints.append(f"{title}: {len(others)} results of other versions are not shown")
        seeds = tested[widest["experiment"], widest["label"]]
        for version in versions:
            present = [result for result in planned if result.trial.version == version]
            newest = keep_newest_equations(present)
            if not newest:
                continue
            try:
                section = experiment.section(newest)
            except Exception as error:
                complaints.append(f"{title} is not shown: its section failed with {_format_error(error)}")
                continue
            section = _mark_version(section, experiment, version, widest["label"], seeds)
            changes = _describe_changes(experiment) + partly if version == experiment.version else ""
            changes += describe_dropped(present, newest)
            for claim in section.claims:
                seeds[claim.text] = max(claim.seeds, seeds.get(claim.text, 0))
            warning = SMOKE if widest["label"].split(",")[0] == "smoke" else ""
            section = replace(section, text=section.text + changes, warning=warning)
            entries.append((section, newest, widest["experiment"]))
    entries.sort(key=lambda entry: rank(entry[2]))
    return [(section, planned) for section, planned, _ in entries], complaints


def _find_latest_version(results: dict[str, Result], plans: list[dict[str, Any]]) -> int:
    keys = (key for plan in plans for keys in plan["keys"].values() for key in keys)
    return max((results[key].trial.version for key in keys if key in results), default=0)


def _mark_version(
    section: Section, experiment: Experiment, version: int, label: str, tested: dict[str, int]
) -> Section:
    """The section with its label; one of a former version says so.

    It leaves out the claims that a later version has tested with as many seeds, or more.
    """
    if version == experiment.version:
        return replace(section, title=f"{section.title} ({label})")
    return replace(
        section,
        title=f"{section.title} ({label}, version {version})",
        text=f"Results of a former version of this experiment: {experiment.former[version]}\n\n{section.text}",
        claims=[claim for claim in section.claims if tested.get(claim.text, -1) < claim.seeds],
    )


def describe_dropped(present: Sequence[Result], newest: Sequence[Result]) -> str:
    """A sentence on results of equations or defaults that a method no longer has; nothing if there are none."""
    keys = {result.trial.key for result in newest}
    dropped = [result.trial.method for result in present if result.trial.key not in keys]
    names = ", ".join(dict.fromkeys(dropped))
    if not dropped:
        return ""
    return f" Left out, because their equations or defaults are older: {len(dropped)} results of {names}."


def _describe_changes(experiment: Experiment) -> str:
    """A sentence on the settings that are not the defaults, most of which are the paper's; nothing if all are."""
    defaults = {field.name: field.default for field in fields(experiment) if field.default is not MISSING}
    changed = [
        f"{name.replace('_', ' ')} {_format_value(value)} ({_format_value(defaults[name])})"
        for name, value in experiment.decisive().items()
        if name in defaults and canonical(value) != canonical(defaults[name])
    ]
    return f" Not the usual settings, which are in brackets: {', '.join(changed)}." if changed else ""


def _format_value(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def _format_error(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
