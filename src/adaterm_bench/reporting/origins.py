"""Where the results of a report come from."""

from typing import Any

from adaterm_bench.core.section import Section, Table
from adaterm_bench.core.trial import Result, canonical
from adaterm_bench.reporting.text import number


def describe_origins(results: list[Result]) -> Section:
    """Where the results come from: how many of which experiment, made with what, where and when."""
    title = "Where the results come from"
    if not results:
        return Section(title, "There are no results yet.")
    names = sorted({it.trial.experiment for it in results})
    grouped = {name: [it for it in results if it.trial.experiment == name] for name in names}
    columns = ["Experiment", "Version", "Trials", "Methods", "Seeds", "Computing time", "First", "Last"]
    made = [[name, *_amounts(of)] for name, of in grouped.items()]
    parts = {"versions": "Software", "device": "Device", "commit": "Commit", "command": "Command"}
    seen: dict[tuple[str, str], int] = {}
    for result in results:
        for key, label in parts.items():
            pair = (label, _words(result.provenance.get(key)))
            seen[pair] = seen.get(pair, 0) + 1
    order = list(parts.values())
    rows = [[*pair, f"{seen[pair]}"] for pair in sorted(seen, key=lambda it: (order.index(it[0]), it[1]))]
    return Section(
        title,
        "Each result holds the versions, device, commit and command that it was made with.",
        [Table("Trials", columns, made), Table("Software and machines", ["What", "Value", "Trials"], rows)],
    )


def _amounts(results: list[Result]) -> list[str]:
    batches = {canonical(it.provenance): it.provenance for it in results}  # all trials of a batch have its seconds
    seconds = [float(it.get("seconds") or 0.0) for it in batches.values()]
    dates = sorted(str(it.provenance["date"])[:10] for it in results if it.provenance.get("date"))
    return [
        ", ".join(str(it) for it in sorted({it.trial.version for it in results})),
        str(len(results)),
        str(len({it.trial.method for it in results})),
        _ranges(sorted({it.trial.seed for it in results})),
        _duration(sum(seconds)),
        dates[0] if dates else "not recorded",
        dates[-1] if dates else "not recorded",
    ]


def _ranges(numbers: list[int]) -> str:
    """Such as 0–9, 12, 20–23."""
    runs: list[list[int]] = []
    for it in numbers:
        if runs and it == runs[-1][-1] + 1:
            runs[-1].append(it)
        else:
            runs.append([it])
    return ", ".join(str(it[0]) if len(it) == 1 else f"{it[0]}\u2013{it[-1]}" for it in runs)


def _duration(seconds: float) -> str:
    if seconds < 60.0:
        return f"{number(seconds)} s"
    if seconds < 3600.0:
        return f"{number(seconds / 60.0)} min"
    return f"{number(seconds / 3600.0)} h"


def _words(value: Any) -> str:
    if value is None or value == "":
        return "not recorded"
    if isinstance(value, dict):
        return ", ".join(f"{key} {value[key]}" for key in sorted(value))
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
