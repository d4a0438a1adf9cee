"""Write the tables of the paper's claims in docs/reproducing.md, from the report's claims.json.

`python benchmarks/claims_table.py` fills in what stands between the page's marks: a table for each experiment, and how
many claims there are of each verdict. What the last column says is in `claims_reasons.toml`, by experiment and
sentence, without numbers: those are in the column before. Sentences on the paper's tables that have no runs at all come
last in their table. Welch's test is of all pairs of a sentence, whether they were run or not.
"""

import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterable
from math import isfinite, isinf, isnan
from pathlib import Path

from adaterm_bench.core.section import Claim
from adaterm_bench.methods import PAPER_METHODS
from adaterm_bench.reporting.orders import (
    ALONE,
    ANT,
    COLUMNS,
    HOPPER,
    LONG,
    MIXED,
    RIGHT,
    SHORT,
    WRONG,
    Printed,
    list_printed,
)
from adaterm_bench.reporting.statistics import correct_by_holm
from adaterm_bench.reporting.text import format_interval, format_number

ROOT = Path(__file__).parents[1]
PAGE, CLAIMS = ROOT / "docs/reproducing.md", ROOT / "results/bench/report/claims.json"
REASONS = Path(__file__).with_name("claims_reasons.toml")
BLOCK = re.compile(r"(<!-- claims: (.*?) -->\n).*?(<!-- end of claims -->)", re.DOTALL)
TALLY = "all"
COLUMN_NAMES = ("the paper says", "what it shows for that", "what came out", "our verdict", "seeds", "why")
VERDICTS = ("reproduced", "not reproduced", "undecided")
EXPERIMENTS = {
    **dict.fromkeys((RIGHT, WRONG), "Classification"),
    **dict.fromkeys((SHORT, LONG), "Long-term prediction"),
    **dict.fromkeys((HOPPER, ANT), "Reinforcement learning"),
    **dict.fromkeys((ALONE, MIXED), "Policy distillation"),
}
"""Which experiment each column of the paper's tables is of."""
UNITS = {"Classification": " points"}
KINDS = {r"mean of .* less that of .*": "difference of means", r"ratio of the mean errors, .*": "ratio of mean errors"}


def fill_page(page: str, claims: list[dict], reasons: dict[str, dict[str, str]]) -> str:
    """The page with the tables of these claims; an experiment without a place or an unused reason is an error."""
    by_experiment: dict[str, dict[str, list[dict]]] = {}
    for claim in claims:
        if claim["whose"] == "the paper's":
            sentences = by_experiment.setdefault(_name_experiment(claim), {})
            sentences.setdefault(claim["sentence"], []).append(claim)
    lacking: dict[str, list[Printed]] = {}
    for listed in list_printed():
        name = EXPERIMENTS[listed.column]
        if not any(listed.is_said_in(sentence) for sentence in by_experiment.get(name, ())):
            lacking.setdefault(name, []).append(listed)
    names = {name for _, name, _ in BLOCK.findall(page)}
    if homeless := {*by_experiment, *lacking} - names:
        raise ValueError(f"{PAGE.name} has no place for the claims of {', '.join(sorted(homeless))}")
    told = {name: [*by_experiment.get(name, ()), *map(_write_sentence, lacking.get(name, ()))] for name in names}
    used = {name: {_find_key(sentence, reasons.get(name, {})) for sentence in told[name]} for name in names}
    if unused := [key for name, keys in reasons.items() for key in keys if key not in used.get(name, ())]:
        raise ValueError(f"{REASONS.name} has reasons for what the page does not say: {'; '.join(unused)}")

    def fill(match: re.Match[str]) -> str:
        begin, name, end = match.groups()
        if name == TALLY:
            return f"{begin}\n{_count_all(by_experiment, lacking)}\n{end}"
        table = _write_table(name, by_experiment.get(name, {}), lacking.get(name, []), reasons.get(name, {}))
        return f"{begin}\n{table}\n{end}"

    return BLOCK.sub(fill, page)


def _name_experiment(claim: dict) -> str:
    """Without the settings and the version, which are in brackets."""
    return claim["experiment"].partition(" (")[0]


def _count_all(by_experiment: dict[str, dict[str, list[dict]]], lacking: dict[str, list[Printed]]) -> str:
    groups = [group for sentences in by_experiment.values() for group in sentences.values()]
    claims = [claim for group in groups for claim in group]
    single = sum(claim["single"] for claim in claims)
    absent = sum(map(len, lacking.values()))
    shown, kept = _count_shown()
    return (
        f"{len(groups) + absent} sentences of the paper. {len(groups)} of them make {len(claims)} claims: "
        f"{_count_verdicts(claims, ', ')}.\nOf these, {single} rest on one search each, without an interval. For "
        f"{absent} sentences nothing was run.\n\n"
        f"Welch's p is of one pair. It shows {shown} of the pairs that the paper compares. With Holm's correction\n"
        f"within a sentence, which our verdicts have, it would show {kept}.\n"
    )


def _count_shown() -> tuple[int, int]:
    """The pairs that the paper's own numbers show to be in its order: each alone, and corrected within a sentence."""
    alone = corrected = 0
    for listed in list_printed():
        gains, chances = zip(*listed.tests, strict=True)
        for gain, chance, raised in zip(gains, chances, correct_by_holm(chances), strict=True):
            alone += gain > 0.0 and chance < 0.05
            corrected += gain > 0.0 and raised < 0.05
    return alone, corrected


def _write_table(name: str, sentences: dict[str, list[dict]], lacking: list[Printed], reasons: dict[str, str]) -> str:
    rows = [_make_row(name, sentence, group, reasons) for sentence, group in sentences.items()]
    for listed in lacking:
        sentence = _write_sentence(listed)
        evidence = describe_evidence(listed.evidence)
        rows.append(
            [f"{sentence} ({listed.place})", evidence, "no runs", "not run", "0", _find_reason(sentence, reasons)]
        )
    return "".join(f"| {' | '.join(row)} |\n" for row in (COLUMN_NAMES, ["---"] * len(COLUMN_NAMES), *rows))


def _make_row(name: str, sentence: str, group: list[dict], reasons: dict[str, str]) -> list[str]:
    """A pair is known by its evidence: ours may be tested twice, as published too."""
    printed = (listed for listed in list_printed() if listed.is_said_in(sentence))
    tested = dict.fromkeys(claim["evidence"] for claim in group)
    needed = next((listed.evidence for listed in printed), tuple(tested))
    verdicts = _count_verdicts(group, ", ")
    run = sum(piece in tested for piece in needed)
    if run < len(needed):
        verdicts += f"; {run} of {len(needed)} pairs were run"
    return [
        f"{sentence} ({group[0]['place']})",
        describe_evidence(needed),
        describe_measured(group, UNITS.get(name, "")),
        verdicts,
        _list_seeds(group),
        _find_reason(sentence, reasons),
    ]


def _write_sentence(listed: Printed) -> str:
    """A sentence on the paper's tables, of which there are no runs."""
    return f"{COLUMNS[listed.column].start}, {listed.text}."


def _find_reason(sentence: str, reasons: dict[str, str]) -> str:
    """Nothing if nobody has said why."""
    return reasons.get(_find_key(sentence, reasons), "")


def _find_key(sentence: str, reasons: dict[str, str]) -> str:
    """The key of its reason: the sentence itself, or how it begins if the key ends in …."""
    starts = [key for key in reasons if key.endswith("…") and sentence.startswith(key[:-1])]
    return sentence if sentence in reasons else max(starts, key=len, default="")


def describe_evidence(pieces: Iterable[str]) -> str:
    """Welch's test of the paper's own table, of each pair of methods or groups of them, and the p-values."""
    pieces = list(pieces)
    found = [re.search(r": ([^:]*) \(Welch, p (.*)\)$", piece) for piece in pieces]
    tested = [match.groups() for match in found if match]
    if not tested:
        return "; ".join(dict.fromkeys(piece for piece in pieces if piece))
    chances: dict[str, list[str]] = {}
    for kind, chance in tested:
        chances.setdefault(kind, []).append(chance)
    if len(tested) == 1:
        return f"{tested[0][0]} (p {tested[0][1]})"
    many = f" of {len(tested)}" if len(chances) > 1 else ""
    return "; ".join(
        f"{len(values)}{many} pairs: {kind} ({_describe_chances(values)})" for kind, values in chances.items()
    )


def _describe_chances(values: list[str]) -> str:
    """The least and the largest of p-values as they are written."""
    ordered = sorted(values, key=lambda value: (not value.startswith("<"), float(value.split()[1])))
    least, largest = (value.removeprefix("= ") for value in (ordered[0], ordered[-1]))
    return f"p {ordered[0]}" if least == largest else f"p from {least} to {largest}"


def describe_measured(group: list[dict], unit: str) -> str:
    """What the claims are decided by, and how large it is: the interval of one, the range of several."""
    names = "|".join(sorted(map(re.escape, PAPER_METHODS), key=len, reverse=True))
    kinds = [_name_kind(claim["measured"]) for claim in group]
    if len(set(kinds)) > 1:
        kinds = [re.sub(rf"\b(?!AdaTerm\b)({names})(?!\w)", "the other", kind) for kind in kinds]
    parts = []
    for kind in dict.fromkeys(kinds):
        chosen = [claim for claim, named in zip(group, kinds, strict=True) if named == kind]
        parts.append(f"{kind}: {_format_estimates(chosen)}{unit}")
    return "; ".join(parts)


def _name_kind(measured: str) -> str:
    for pattern, kind in KINDS.items():
        if re.fullmatch(pattern, measured):
            return kind
    return re.sub(r", (geometric mean|on the worst) .*$|, geometric mean$", "", measured)


def _format_estimates(group: list[dict]) -> str:
    estimates = [float(claim["estimate"]) for claim in group]
    values = sorted(estimate for estimate in estimates if isfinite(estimate))
    if len(group) > 1 and len({*values}) + len(group) - len(values) > 1:
        beyond, unknown = sum(map(isinf, estimates)), sum(map(isnan, estimates))
        finite = " to ".join(map(format_number, dict.fromkeys((values[0], values[-1])))) if values else ""
        others = (f"{count} {what}" for count, what in ((beyond, "beyond all bounds"), (unknown, "without a value")))
        told = [finite, *(text for text in others if not text.startswith("0 "))]
        return ", and ".join(filter(None, told))
    ends = (float(group[0][end]) for end in ("low", "high"))
    bound = float(group[0]["wants"].split()[1])
    return format_interval(Claim("", "", estimates[0], *ends, bound)).removesuffix(" (no bounds)")


def _count_verdicts(group: list[dict], separator: str) -> str:
    tally = Counter(claim["verdict"] for claim in group)
    if len(tally) == 1:
        (verdict,) = tally
        return f"**{verdict}**" + (f" ({len(group)})" if len(group) > 1 else "")
    return separator.join(f"{tally[verdict]} {verdict}" for verdict in VERDICTS if tally[verdict])


def _list_seeds(group: list[dict]) -> str:
    """How many there are, and which claims are of a former version of the experiment."""
    single = ["one search"] * any(claim["single"] for claim in group)
    seeds = sorted({claim["seeds"] for claim in group if not claim["single"]})
    counts = [" to ".join(str(count) for count in dict.fromkeys((seeds[0], seeds[-1])))] if seeds else []
    former = [found[1] for claim in group if (found := re.search(r", (version \d+)\)$", claim["experiment"]))]
    versions = [
        version if count == len(group) else f"{count} of {version}" for version, count in Counter(former).items()
    ]
    return ", ".join(single + counts) + (f" ({', '.join(versions)})" if versions else "")


def main() -> None:
    """Fill the page."""
    reasons = tomllib.loads(REASONS.read_text())
    PAGE.write_text(fill_page(PAGE.read_text(), json.loads(CLAIMS.read_text()), reasons))


if __name__ == "__main__":
    main()
