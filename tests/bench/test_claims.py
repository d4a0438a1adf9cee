"""Claims on the test functions say what they rest on: one search or many, which noise, and whose bound."""

import numpy as np
import pytest

from adaterm_bench.core.section import Claim, Section
from adaterm_bench.core.trial import Result, Trial
from adaterm_bench.experiments.test_functions.claims import make_claims as make_claims_of_searches
from adaterm_bench.reporting.selection import Grid, select
from adaterm_bench.reporting.text import summarise

LEVELS = [0.0, 0.01, 0.15]
SEEDS = list(range(20))


def search(errors, seed=0, levels=LEVELS):
    """Errors of methods at noise levels, a few per cent apart between seeds but for those without noise."""
    draws = np.random.default_rng(seed)
    values = {
        method: np.array(
            [level * np.exp(0.03 * draws.normal(size=20) * (place > 0)) for place, level in enumerate(row)]
        )
        for method, row in errors.items()
    }
    return Grid(levels, SEEDS, values)


@pytest.fixture(scope="module")
def searches():
    """AdaTerm is behind without noise and with little, and ahead with much; AdaBelief is like Adam with noise alone."""
    errors = {"Adam": [1e-6, 1e-3, 1.0], "AdaTerm": [1e-3, 3e-3, 1e-2], "AdaBelief": [1e-8, 1.1e-3, 0.9]}
    grids = {name: search(errors, seed) for seed, name in enumerate(("Rosenbrock", "McCormick"))}
    moved = {name: Grid([0.0], SEEDS, {k: v[1:2] for k, v in grid.values.items()}) for name, grid in grids.items()}
    steps = {"Adam": np.full((1, 20), 50.0), "AdaTerm": np.array([[*[10.0] * 15, *[np.inf] * 5]])}
    arrivals = {"Rosenbrock": Grid([0.0], SEEDS, steps)}
    return {claim.text: claim for claim in make_claims_of_searches(grids, {}, moved, arrivals, {"Rosenbrock": {}})}


def test_what_the_papers_discussion_says_of_every_function_is_tested(searches):
    """Its analysis says so of McCormick alone, and the opposite of the others."""
    said = {
        "Rosenbrock": ("Adam ends nearer to the minimum than AdaTerm.", "section 7.1, figure 8"),
        "McCormick": ("AdaTerm ends further from the minimum than Adam.", "sections 5.1 and 7.1, figure 8; appendix C"),
    }
    for name, (text, place) in said.items():
        claim = searches[f"On {name} without noise, {text}"]
        assert (claim.verdict, claim.place, claim.is_single) == ("reproduced", place, True)
        assert claim.estimate == pytest.approx(1000.0)
        elsewhere = searches[f"From other starts, on {name} without noise, {text}"]
        assert (elsewhere.whose, elsewhere.seeds, elsewhere.is_single) == ("ours", 20, False)
    refuted = searches["On Rosenbrock without noise, AdaTerm's error is at most 10 times Adam's."]
    assert refuted.verdict == "not reproduced"
    assert refuted.note.endswith("The bound is ours.")


def test_little_noise_is_tested_where_there_are_seeds(searches):
    claim = searches["On McCormick with 1 % noise, AdaTerm ends further from the minimum than Adam."]
    assert (claim.verdict, claim.seeds) == ("reproduced", 20)
    assert claim.estimate == pytest.approx(3.0, rel=0.05)
    assert "On Rosenbrock with 1 % noise, AdaTerm ends further from the minimum than Adam." not in searches
    of_means = searches["On McCormick with 1 % noise, AdaTerm's mean error is above Adam's."]
    assert (of_means.verdict, of_means.what) == ("reproduced", "AdaTerm's error over Adam's, of means")


def test_the_kind_of_mean_may_decide():
    """Half of Adam's searches end at the minimum, and half far from it."""
    grid = search({"Adam": [1e-6, 1.0], "AdaTerm": [1e-3, 1e-2]}, levels=[0.0, 0.01])
    grid.values["Adam"][1, ::2] = 1e-12
    texts = {claim.text: claim for claim in make_claims_of_searches({"McCormick": grid}, {}, {}, {}, {})}
    start = "On McCormick with 1 % noise, AdaTerm"
    assert texts[f"{start} ends further from the minimum than Adam."].estimate == pytest.approx(100.0, rel=0.1)
    assert texts[f"{start}'s mean error is above Adam's."].estimate == pytest.approx(0.02, rel=0.1)


def test_a_minimum_that_noise_helps_to_find_is_looked_for_at_every_level():
    grid = search({"At-Adam (as published)": [0.7, 0.5, 0.01]})
    claims = make_claims_of_searches({"Michalewicz": grid}, {}, {}, {}, {})
    helped = [claim for claim in claims if claim.family == "With noise, At-Adam finds the minimum of Michalewicz."]
    assert [claim.verdict for claim in helped] == ["not reproduced", "reproduced"]
    assert helped[0].note == "The bound is ours. Missed in 20 of 20 searches."


def test_an_arm_with_few_seeds_does_not_cost_the_others_theirs():
    """It is left out, and the note says so; one that lacks a few seeds is not."""

    def run(method, seeds):
        trials = [Trial("toy", 1, {}, {"noise": level}, method, seed) for level in (0.0, 0.1) for seed in range(seeds)]
        return [Result(trial, {"error": 1.0}, {}) for trial in trials]

    full = [result for method in ("A", "B", "C") for result in run(method, 50)]
    grid = select([*full, *run("New", 5)], "error", "noise", ["A"])
    assert (list(grid.values), len(grid.seeds), grid.left_out) == (["A", "B", "C"], 50, ("New",))
    grid = select([*full, *run("New", 45)], "error", "noise", ["A"])
    assert (list(grid.values), len(grid.seeds), grid.left_out) == (["A", "B", "C", "New"], 45, ())


def test_a_pooled_claim_names_its_least_level(searches):
    claim = searches["On Rosenbrock with noise, AdaTerm's error is below Adam's."]
    assert claim.verdict == "reproduced"
    assert claim.note.startswith("Least with 1 % noise: 0.33")


def test_no_search_is_claimed_twice(searches):
    """The two errors without noise are compared once for each place to start from."""
    compared = [
        claim
        for claim in searches.values()
        if "McCormick without noise" in claim.text and claim.what.startswith("AdaTerm's error over Adam's")
    ]
    assert [claim.whose for claim in compared] == ["the paper's", "ours"]


def test_likeness_is_shown_by_an_interval(searches):
    """Of all levels together; in which it is furthest from equal stands beside it."""
    claim = searches["On McCormick with noise, AdaBelief's error is like Adam's: within a factor of 1.5."]
    assert (claim.verdict, claim.wants) == ("reproduced", "within")
    assert claim.note.startswith("The factor is ours. Furthest from 1 with 15 % noise: 0.908.")


def test_levels_that_cancel_are_told():
    """Eight times Adam's error with little noise, a tenth with much."""
    grid = search({"Adam": [1e-6, 1e-3, 1.0], "AdaBelief": [1e-6, 8e-3, 0.1]})
    claims = make_claims_of_searches({"McCormick": grid}, {}, {}, {}, {})
    (claim,) = (it for it in claims if "with noise, AdaBelief's error is like" in it.text)
    assert claim.verdict == "reproduced"
    assert "Furthest from 1 with 15 % noise: 0.099" in claim.note


def test_searches_that_never_arrive_have_not_diverged(searches):
    claim = searches[
        "From other starts, on Rosenbrock without noise, AdaTerm comes near the minimum in fewer steps than Adam."
    ]
    assert claim.verdict == "reproduced"
    assert "diverged" not in claim.note
    assert claim.note == "The distance is ours. Of 40 searches, of both methods, 5 never came so near."


def test_a_single_search_and_many_count_their_own_arrivals():
    """Adam's path from the paper's start never arrives; all but one from other starts do."""
    trial = Trial("test_functions", 1, {"steps": 2, "kept": 2}, {"function": "Rosenbrock", "noise": 0.0}, "Adam", 0)
    lost, found = ([[9.0, 9.0], [5.0, 5.0], end] for end in ([5.0, 5.0], [1.0, 1.0]))
    paths = {name: Result(trial, {"path": path}, {}) for name, path in (("Adam", lost), ("AdaTerm", found))}
    steps = {"Adam": np.array([[*[50.0] * 19, np.inf]]), "AdaTerm": np.full((1, 20), 10.0)}
    arrivals = {"Rosenbrock": Grid([0.0], SEEDS, steps)}
    claims = make_claims_of_searches({}, {}, {}, arrivals, {"Rosenbrock": paths})
    same, moved = (claim for claim in claims if claim.text.endswith("in fewer steps than Adam."))
    assert (same.estimate, same.is_single, moved.seeds) == (np.inf, True, 20)
    assert same.note.endswith("The distance is ours. Of 2 searches, of both methods, 1 never came so near.")
    assert moved.note == "The distance is ours. Of 40 searches, of both methods, 1 never came so near."


def test_single_searches_are_counted_apart(searches):
    text = summarise([Section("Searches", "", claims=list(searches.values()))])
    single = [claim for claim in searches.values() if claim.is_single]
    assert f"These rest on a single search each, which has no interval either: {len(single)} claims: " in text
    assert not Claim("A", "b", np.nan, -np.inf, np.inf).is_single
    assert "single" not in summarise([Section("One", "", claims=[Claim("A", "b", 1.0, 0.5, 2.0, seeds=9)])])
