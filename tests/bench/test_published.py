"""The paper's numbers are the paper's."""

import json
from pathlib import Path

import pytest

from adaterm_bench.methods import PAPER_METHODS
from adaterm_bench.reporting.orders import COLUMNS, SAYINGS, claim_orders, list_printed
from adaterm_bench.reporting.published import PUBLISHED, describe_evidence

TABLES = Path(__file__).parents[3] / "shared" / "paper" / "tables.json"


@pytest.mark.skipif(not TABLES.is_file(), reason="the paper's tables are not here")
def test_every_number_is_that_of_the_tables():
    tables = json.loads(TABLES.read_text())
    found = {
        (column, method, value["mean"], value["std"])
        for name in ("table_experiments", "table_ablation", "table_variants")
        for method, row in tables[name].items()
        for column, value in row.items()
    }
    assert found == {(column, method, *it) for column, row in PUBLISHED.items() for method, it in row.items()}


def test_every_saying_names_columns_and_methods_that_there_are():
    assert COLUMNS.keys() == PUBLISHED.keys()
    for saying in SAYINGS:
        assert set(saying.columns) <= COLUMNS.keys()
        assert {name for pair in saying.pairs for side in pair for name in side} <= PAPER_METHODS.keys()


@pytest.mark.parametrize(
    ("column", "ahead", "behind", "words"),
    [
        ("prediction_30", "AdaTerm", "t-Adam", "not shown in the paper either (Welch, p = 0.16)"),
        ("prediction_30", "AdaTerm", "At-Adam", "not shown in the paper either (Welch, p = 0.094)"),
        ("prediction_30", "AdaTerm", "Adam", "shown in the paper (Welch, p = 0.0046)"),
        ("rl_hopper", "AdaTerm", "Adam", "not shown in the paper either (Welch, p = 0.95)"),
        ("rl_hopper", "t-Adam", "Adam", "not shown in the paper either (Welch, p = 0.52)"),
        ("rl_ant", "t-Adam", "AdaTerm", "shown in the paper (Welch, p = 0.018)"),
        ("prediction_1", "AdaTerm", "Large init", "its own table has it the other way round"),
        ("prediction_1", "AdaTerm", "AdaTerm2", "figures without numbers"),
    ],
)
def test_the_papers_own_numbers_are_tested(column, ahead, behind, words):
    assert words in describe_evidence(column, [ahead], [behind])


@pytest.mark.parametrize(("column", "sign"), [("prediction_30", -1.0), ("distillation_with_amateur", 1.0)])
def test_claims_follow_whoever_is_ahead(column, sign):
    """Whether lower is better or higher; t-Adam as published stands for the paper's too."""
    outcomes = {
        method: {seed: 100.0 + sign * gain + 0.1 * seed for seed in range(8)}
        for method, gain in {"AdaTerm": 9.0, "Adam": 5.0, "t-Adam": 1.0, "t-Adam (as published)": 20.0}.items()
    }
    verdicts = {claim.text: claim.verdict for claim in claim_orders(column, outcomes)}
    start, ahead, _ = COLUMNS[column]
    assert verdicts[f"{start}, AdaTerm {ahead} Adam."] == "reproduced"
    assert verdicts[f"{start}, AdaTerm {ahead} t-Adam."] == "reproduced"
    assert verdicts[f"{start}, AdaTerm {ahead} t-Adam (as published)."] == "not reproduced"
    assert not any("RAdam" in text for text in verdicts)  # it was not run


def test_few_seeds_decide_nothing_whatever_their_sign():
    outcomes = {"AdaTerm": {0: 3.0, 1: 3.0, 2: 3.0}, "Adam": {0: 1.0, 1: 1.0, 2: 1.0, 3: 1.0}}
    (claim,) = claim_orders("rl_hopper", outcomes, start="On Hopper (tuned)")
    assert claim.text.startswith("On Hopper (tuned), AdaTerm")
    assert (claim.verdict, claim.seeds) == ("undecided", 3)


@pytest.mark.parametrize(
    ("sentence", "pairs", "shown"),
    [
        ("On Hopper (tuned), AdaTerm is second, after t-Adam.", 5, 1),
        ("On Ant (tuned), t-Adam is the best, then At-Adam, then AdaTerm.", 2, 1),
        ("On Ant, methods that are not robust fail.", 3, 3),
        ("On Hopper (adaptive), a robust method, t-Adam, has the highest return.", 3, 1),
        ("On Ant (tuned), t-Adam, whose robustness is fixed, is ahead of AdaTerm.", 1, 1),
        ("On Ant (tuned, methods that are not robust fail.", 0, 0),
    ],
)
def test_a_sentence_has_the_evidence_of_all_its_pairs(sentence, pairs, shown):
    """Also of those that nobody has run here."""
    evidence = [piece for listed in list_printed() if listed.is_said_in(sentence) for piece in listed.evidence]
    assert (len(evidence), sum(": shown in the paper" in piece for piece in evidence)) == (pairs, shown)
