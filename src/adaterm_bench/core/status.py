"""What a results directory has, and what is missing."""

from adaterm_bench.core.store import Store


def describe_store(store: Store) -> list[str]:
    """Lines: a sum first, then per experiment how many trials are done, failed and missing; each error; the space used.

    Methods have lines of their own only where something is failed or missing.
    """
    asked: dict[str, dict[str, set[str]]] = {}
    for plan in store.plans():
        methods = asked.setdefault(f"{plan['experiment']} ({plan['label']})", {})
        for method, keys in plan["keys"].items():
            methods.setdefault(method, set()).update(keys)
    done, failures = store.done(), store.failures()

    def count(keys: set[str]) -> tuple[str, str, str]:
        failed = (keys - done) & failures.keys()
        return str(len(keys & done)), str(len(failed)), str(len(keys - done - failed))

    rows = [("experiment", "methods", "done", "failed", "missing")]
    for experiment, methods in asked.items():
        rows.append((experiment, str(len(methods)), *count(set().union(*methods.values()))))
        rows += [("", method, *count(keys)) for method, keys in methods.items() if keys - done]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    every = {key for methods in asked.values() for keys in methods.values() for key in keys}
    complete, failed, missing = map(int, count(every))
    lines = [_sum_up(complete, failed, missing, len(asked))]
    lines += [
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


def _sum_up(done: int, failed: int, missing: int, experiments: int) -> str:
    where = f"of {experiments} experiment{'s' * (experiments != 1)}"
    if not failed + missing:
        return f"All {done} planned trials {where} are done."
    return f"{done} of {done + failed + missing} planned trials {where} are done; {failed} failed, {missing} missing."
