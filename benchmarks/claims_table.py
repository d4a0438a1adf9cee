"""Write the table of the paper's claims in docs/reproducing.md, from the report's claims.json.

`python benchmarks/claims_table.py` fills in all columns but the last, which is written by hand and stays. A sentence of
the paper that the report no longer tests goes, and a new one has an empty last column until somebody says why.
Sentences on the paper's tables that have no runs at all come last, and Welch's test is of all pairs of a sentence,
whether they were run or not.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from adaterm_bench.reporting.orders import COLUMNS, Printed, list_printed

ROOT = Path(__file__).parents[1]
PAGE, CLAIMS = ROOT / "docs/reproducing.md", ROOT / "results/bench/report/claims.json"
BEGIN, END = "<!-- claims -->\n", "<!-- end of claims -->"
HEAD = "| the paper says | where | what it shows for that | our verdict | seeds | why |\n|---|---|---|---|---|---|\n"
VERDICTS = ("reproduced", "not reproduced", "undecided")
NOT_RUN, WHY_NOT = "not run", "no pair of its methods was run"


def fill_page(page: str, claims: list[dict]) -> str:
    """The page with the table of these claims."""
    before, rest = page.split(BEGIN)
    table, after = rest.split(END)
    reasons = dict(re.findall(r"^\| (.*?) \|.*\| (.*?) \|$", table, re.MULTILINE))
    sentences: dict[str, list[dict]] = {}
    for claim in claims:
        if claim["whose"] == "the paper's":
            sentences.setdefault(claim["sentence"], []).append(claim)
    printed = list_printed()
    rows = [_make_row(sentence, group, printed) for sentence, group in sentences.items()]
    lacking = [listed for listed in printed if not any(listed.is_said_in(sentence) for sentence in sentences)]
    for listed in lacking:
        sentence = f"{COLUMNS[listed.column].start}, {listed.text}."
        rows.append([sentence, listed.place, _count_evidence(listed.evidence), NOT_RUN, "0"])
        reasons.setdefault(sentence, WHY_NOT)
    lines = "".join(f"| {' | '.join(row)} | {reasons.get(row[0], '')} |\n" for row in rows)
    tally = Counter(claim["verdict"] for group in sentences.values() for claim in group)
    counted = ", ".join(f"{tally[verdict]} {verdict}" for verdict in VERDICTS)
    words = (
        f"{len(rows)} sentences of the paper. {len(sentences)} of them make {sum(tally.values())} claims: {counted}.\n"
        f"For {len(lacking)} nothing was run.\n\n"
    )
    return before + BEGIN + words + HEAD + lines + END + after


def _make_row(sentence: str, group: list[dict], printed: list[Printed]) -> list[str]:
    """All columns but the last. A pair is known by its evidence: ours may be tested twice, as published too."""
    tested = dict.fromkeys(claim["evidence"] for claim in group)
    needed = next((listed.evidence for listed in printed if listed.is_said_in(sentence)), tuple(tested))
    verdicts = _count_verdicts(group)
    run = sum(piece in tested for piece in needed)
    if run < len(needed):
        verdicts += f"; {run} of {len(needed)} pairs were run"
    return [sentence, group[0]["place"], _count_evidence(needed), verdicts, _list_seeds(group)]


def _count_evidence(pieces: Iterable[str]) -> str:
    """Welch's test of the paper's own table, one for each pair of methods or groups of them."""
    pieces = list(pieces)
    tested = [piece for piece in pieces if "(Welch" in piece]
    if not tested:
        return "; ".join(dict.fromkeys(piece for piece in pieces if piece))
    if len(tested) == 1:
        shown, chance = re.findall(r": ([^:]*) \(Welch, (.*)\)$", tested[0])[0]
        return f"{shown} ({chance})"
    kinds = Counter(re.findall(r": ([^:]*) \(Welch", piece)[0] for piece in tested)
    return "; ".join(f"{count} of {len(tested)}: {kind}" for kind, count in kinds.items())


def _count_verdicts(group: list[dict]) -> str:
    tally = Counter(claim["verdict"] for claim in group)
    if len(tally) == 1:
        (verdict,) = tally
        return f"**{verdict}**" + (f" ({len(group)})" if len(group) > 1 else "")
    return ", ".join(f"{tally[verdict]} {verdict}" for verdict in VERDICTS if tally[verdict])


def _list_seeds(group: list[dict]) -> str:
    seeds = sorted({claim["seeds"] for claim in group})
    if seeds == [0]:
        return "one search"
    return f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"


if __name__ == "__main__":
    PAGE.write_text(fill_page(PAGE.read_text(), json.loads(CLAIMS.read_text())))
