"""Where the results of a report come from."""

from typing import Any

from adaterm_bench.core.section import Section, Table
from adaterm_bench.core.trial import Result, canonical
from adaterm_bench.reporting.text import format_number


def describe_origins(results: list[Result]) -> Section:
    """Where the results come from: how many of which experiment, made with what, where and when."""
    title = "Where the results come from"
    if not results:
        return Section(title, "There are no results yet.")
    names = sorted({result.trial.experiment for result in results})
    grouped = {name: [result for result in results if result.trial.experiment == name] for name in names}
    columns = ["Experiment", "Version", "Trials", "Methods", "Seeds", "Computing time", "First", "Last"]
    made = [[name, *_count_amounts(group)] for name, group in grouped.items()]
    parts = {"versions": "Software", "device": "Device", "commit": "Commit", "command": "Command"}
    seen: dict[tuple[str, str], int] = {}
    for result in results:
        for key, label in parts.items():
            pair = (label, _format_value(result.provenance.get(key)))
            seen[pair] = seen.get(pair, 0) + 1
    order = list(parts.values())
    rows = [[*pair, f"{seen[pair]}"] for pair in sorted(seen, key=lambda pair: (order.index(pair[0]), pair[1]))]
    return Section(
        title,
        "Each result holds the versions, device, commit and command that it was made with.",
        [Table("Trials", columns, made), Table("Software and machines", ["What", "Value", "Trials"], rows)],
    )


def _count_amounts(results: list[Result]) -> list[str]:
    # All trials of a batch have its seconds.
    batches = {canonical(result.provenance): result.provenance for result in results}
    seconds = [float(provenance.get("seconds") or 0.0) for provenance in batches.values()]
    dates = sorted(str(result.provenance["date"])[:10] for result in results if result.provenance.get("date"))
    return [
        ", ".join(map(str, sorted({result.trial.version for result in results}))),
        str(len(results)),
        str(len({result.trial.method for result in results})),
        _format_ranges(sorted({result.trial.seed for result in results})),
        _format_duration(sum(seconds)),
        dates[0] if dates else "not recorded",
        dates[-1] if dates else "not recorded",
    ]


def _format_ranges(numbers: list[int]) -> str:
    """Such as 0–9, 12, 20–23."""
    runs: list[list[int]] = []
    for seed in numbers:
        if runs and seed == runs[-1][-1] + 1:
            runs[-1].append(seed)
        else:
            runs.append([seed])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}\u2013{run[-1]}" for run in runs)


def _format_duration(seconds: float) -> str:
    if seconds < 60.0:
        return f"{format_number(seconds)} s"
    if seconds < 3600.0:
        return f"{format_number(seconds / 60.0)} min"
    return f"{format_number(seconds / 3600.0)} h"


def _format_value(value: Any) -> str:
    if value is None or value == "":
        return "not recorded"
    if isinstance(value, dict):
        return ", ".join(f"{key} {value[key]}" for key in sorted(value))
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
