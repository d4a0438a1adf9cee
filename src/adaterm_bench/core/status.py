"""What a results directory has, and what is missing."""

from adaterm_bench.core.store import Store


def describe_store(store: Store) -> list[str]:
    """Lines: per experiment and method how many trials are done, failed and missing; each error; the space used."""
    asked: dict[tuple[str, str], set[str]] = {}
    for plan in store.plans():
        for method, keys in plan["keys"].items():
            asked.setdefault((f"{plan['experiment']} ({plan['label']})", method), set()).update(keys)
    done, failures = store.done(), store.failures()
    rows = [("experiment", "method", "done", "failed", "missing")]
    for (experiment, method), keys in asked.items():
        failed = (keys - done) & failures.keys()
        rows.append((experiment, method, str(len(keys & done)), str(len(failed)), str(len(keys - done - failed))))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    alike: dict[tuple[str, ...], list[str]] = {}
    for key, failure in failures.items():
        reason = failure["error"].strip().splitlines()[-1]
        alike.setdefault((failure["trial"]["experiment"], failure["trial"]["method"], reason), []).append(key)
    for (experiment, method, reason), (key, *others) in alike.items():
        trial, more = failures[key]["trial"], f" and {len(others)} more" if others else ""
        lines.append(
            f"failed {failures[key]['attempts']} times: {experiment} {method} {trial['condition']} "
            f"seed {trial['seed']}{more}: {reason} (failures/{key}.json)"
        )
    aside = len(list((store.path / "results").glob("*.corrupt")))
    if aside:
        lines.append(f"{aside} damaged files are set aside as results/*.corrupt; their trials count as not done.")
    lines.append(f"{len(done)} results, {store.size() / 1e6:.1f} MB in {store.path}")
    return lines
