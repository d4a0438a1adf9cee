"""What the experiments show of the results in a directory."""

from dataclasses import replace
from typing import Any

from adaterm_bench.flags import restored
from adaterm_bench.registry import in_source, place
from adaterm_bench.report import Section
from adaterm_bench.store import Store
from adaterm_bench.trial import Result, canonical


def sections(store: Store) -> list[tuple[Section, list[Result]]]:
    """A section for each experiment, and for each of its settings that decide results, with the results it shows."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for plan in store.plans():
        experiment = restored(in_source(plan["source"])[plan["experiment"]].kind, plan["settings"])
        same = canonical([plan["source"], plan["experiment"], experiment.decisive()])
        groups.setdefault(same, []).append({**plan, "made": experiment})
    results = {it.trial.key: it for it in store.results()}
    found: list[tuple[Section, list[Result], dict[str, Any]]] = []
    for plans in groups.values():
        keys = dict.fromkeys(key for plan in plans for keys in plan["keys"].values() for key in keys)
        own = [results[key] for key in keys if key in results]
        if own:
            found.append((plans[-1]["made"].section(own), own, plans[-1]))
    found.sort(key=lambda it: place(it[2]["experiment"]))
    return [(replace(section, title=f"{section.title} ({plan['label']})"), own) for section, own, plan in found]
