"""Results are whole or not there, and what is there is what was put in."""

import errno
import gzip
import hashlib
import json
import lzma
import math
import os
import subprocess
import sys
from dataclasses import asdict, replace

import pytest

from adaterm_bench.core.lock import hold_lock
from adaterm_bench.core.store import Store, StoreError
from adaterm_bench.core.trial import Trial, group_trials, shorten

TRIALS = [Trial("toy", 1, {"widths": [1, 2], "level": 1.0}, {"noise": 0.5}, "steady", seed) for seed in range(3)]
OUTCOMES = [{"value": seed / 3, "curve": [math.nan, math.inf, -math.inf, 1e-300]} for seed in range(3)]
WHERE = {"commit": "abc", "seconds": 1.0}


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path / "out")
    store.add(TRIALS, OUTCOMES, WHERE)
    return store


def the_file(store):
    (path,) = (store.path / "results").iterdir()
    return path


def change(path, old, new):
    path.write_bytes(lzma.compress(lzma.decompress(path.read_bytes()).replace(old, new)))


def test_results_come_back_as_they_were(store):
    again = Store(store.path)
    assert again.done() == {trial.key for trial in TRIALS}
    for found, trial, outcome in zip(again.results("toy"), TRIALS, OUTCOMES, strict=True):
        assert (found.trial, found.provenance) == (trial, WHERE)
        assert repr(found.outcome) == repr(outcome)  # nan is not equal to itself
    assert again.results("another") == []


def test_a_file_says_what_it_is(store):
    header, batch = map(json.loads, lzma.decompress(the_file(store).read_bytes()).splitlines())
    assert header["format"] == 2
    assert batch["provenance"] == WHERE
    assert (batch["experiment"], batch["method"], batch["seed"]) == ("toy", "steady", [0, 1, 2])


def test_files_of_the_format_before_are_read(store):
    lines = [WHERE, *({"trial": asdict(trial), "outcome": {"value": trial.seed}} for trial in TRIALS)]
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    header = {"format": 1, "sha256": hashlib.sha256(content).hexdigest()}
    path = the_file(store)
    path.with_name("toy-0.jsonl.gz").write_bytes(gzip.compress(json.dumps(header).encode() + b"\n" + content))
    path.unlink()
    results = Store(store.path).results()
    assert [(result.trial, result.outcome, result.provenance) for result in results] == [
        (trial, {"value": trial.seed}, WHERE) for trial in TRIALS
    ]


def test_packing_leaves_one_file_and_every_result(store):
    """Results of different conditions, methods, outcomes and origins come back as they were."""
    others = [replace(TRIALS[0], condition={"noise": 0.0}), replace(TRIALS[1], method="other")]
    store.add(others, [{"value": 1.0}, {"curve": [0.123456, 2]}], {"commit": "def"})
    store.add([replace(TRIALS[0], experiment="another")], [{}], WHERE)
    before = {result.trial.key: repr(result) for result in store.results()}
    store.pack()
    assert len(list((store.path / "results").iterdir())) == 2
    assert {result.trial.key: repr(result) for result in Store(store.path).results()} == before
    store.pack(lambda result: replace(result, outcome={**result.outcome, "value": 0.0}))
    assert len(list((store.path / "results").iterdir())) == 2
    assert {result.outcome["value"] for result in Store(store.path).results()} == {0.0}


def make_plan(trials, label="full", date="2026", **settings):
    methods, seeds = list(dict.fromkeys(trial.method for trial in trials)), [trial.seed for trial in trials]
    plan = {"source": "toy.py", "experiment": "toy", "label": label, "settings": settings, "seeds": seeds}
    return {**plan, "methods": methods, "trials": group_trials(trials), "date": date}


def list_wanted(store):
    return {key for plan in store.plans() for keys in plan["keys"].values() for key in keys}


def test_merging_brings_what_is_new_and_leaves_the_other_as_it_was(store, tmp_path):
    """Results, plans and kept files; of a trial that both have, what was there first stays."""
    other = Store(tmp_path / "other")
    fourth = replace(TRIALS[0], seed=3)
    other.add([TRIALS[0], fourth], [{"value": -1.0}, {"value": 1.0}], {"commit": "def"})
    other.plan(make_plan([TRIALS[0], fourth]))
    (other.path / "kept").mkdir()
    for name in (f"{fourth.key}.npz", f"{TRIALS[0].key}.npz", f"{fourth.key}.npz.12.tmp"):
        (other.path / "kept" / name).write_bytes(b"policy")
    store.fail([fourth], "it broke", 2, WHERE)
    before = {path: path.read_bytes() for path in other.path.rglob("*") if path.is_file()}
    assert store.take(other) == 1
    assert store.take(other) == 0
    assert {path: path.read_bytes() for path in other.path.rglob("*") if path.is_file()} == before
    found = {result.trial.seed: result for result in Store(store.path).results()}
    assert found[0].outcome["value"] == OUTCOMES[0]["value"]
    assert (found[3].outcome["value"], found[3].provenance) == (1.0, {"commit": "def"})
    assert [path.name for path in (store.path / "kept").iterdir()] == [f"{fourth.key}.npz"]
    assert list_wanted(store) == {TRIALS[0].key, fourth.key}
    assert not list((store.path / "failures").iterdir())


def test_merging_ignores_what_is_damaged_and_does_not_touch_it(store, tmp_path):
    other = Store(tmp_path / "other", sets_aside=False)
    other.add([replace(TRIALS[0], seed=3)], [{}], WHERE)
    the_file(other).write_bytes(b"nothing")
    (other.path / "plans").mkdir()
    (other.path / "plans" / "bad.json").write_bytes(b"{")
    other = Store(other.path, sets_aside=False)
    assert store.take(other) == 0
    assert len(other.corrupt) == 2
    assert sorted(path.name for path in other.path.rglob("*.*")) == sorted(["bad.json", the_file(other).name])
    assert store.plans() == []


def test_results_of_other_data_are_not_merged(store, tmp_path):
    """Nothing is written then; other settings may have other data."""
    for name, level, data, refused in (("a", 2.0, "x", False), ("b", 2.0, "y", True), ("c", 3.0, "y", False)):
        other = Store(tmp_path / name)
        other.add([replace(TRIALS[0], settings={"level": level}, seed=len(name) + ord(name))], [{"data": data}], WHERE)
        other.plan(make_plan(TRIALS, label=name))
        if refused:
            with pytest.raises(StoreError, match=r"results of toy with other data \(y\) than .* has \(x\)"):
                store.take(other)
        else:
            assert store.take(other) == 1
    assert {plan["label"] for plan in Store(store.path).plans()} == {"a", "c"}


@pytest.mark.parametrize("newest_first", [False, True])
def test_no_plan_is_forgotten_where_a_command_means_other_trials_by_now(tmp_path, newest_first):
    """As of another version, or of other equations: neither by merging nor by joining."""
    newer = [replace(trial, version=2) for trial in TRIALS]
    renamed = [replace(trial, condition={**trial.condition, "equations": "new"}) for trial in TRIALS]
    store, asked = Store(tmp_path / "out"), [TRIALS, newer, renamed]
    for number, trials in enumerate(reversed(asked) if newest_first else asked):
        other = Store(tmp_path / str(number))
        other.plan(make_plan(trials[:2], date=f"202{number}"))
        other.plan(make_plan(trials[1:], date=f"202{number}"))
        other.plan({**make_plan(trials[:1]), "trials": group_trials([replace(trials[0], seed=9)])})
        store.take(other)
    wanted = {trial.key for trials in asked for trial in [*trials, replace(trials[0], seed=9)]}
    assert list_wanted(store) == wanted
    store.join_plans()
    assert list_wanted(store) == wanted
    assert len(store.plans()) == 2  # of the two versions


def test_joined_plans_ask_for_the_same_trials(store):
    """One plan is left of those with the same label and settings; others stay apart."""
    longer = [replace(trial, settings={**trial.settings, "level": 2.0}) for trial in TRIALS]
    for number, trials in enumerate([TRIALS[:2], TRIALS[1:], [replace(TRIALS[0], method="other")], longer]):
        store.plan(make_plan(trials, date=f"202{number}", noises=[number // 2], steps=number, hidden=[8, 8]))
    store.plan(make_plan(TRIALS, label="quick"))
    wanted = list_wanted(store)
    store.join_plans()
    assert list_wanted(store) == wanted
    assert [(plan["label"], plan["methods"]) for plan in store.plans()] == [
        ("full", ["steady", "other"]),
        ("full", ["steady"]),
        ("quick", ["steady"]),
    ]
    assert (store.plans()[0]["date"], store.plans()[0]["seeds"]) == ("2022", [0, 1, 2])
    assert store.plans()[0]["settings"] == {"noises": [0, 1], "steps": 2, "hidden": [8, 8]}
    store.join_plans()
    assert list_wanted(store) == wanted


@pytest.mark.parametrize(
    ("value", "digits", "short"),
    [
        (0.123456, 3, 0.123),
        ([1234567.8, -1e-9, 5], 2, [1.2e6, -1e-9, 5]),
        ([[math.inf], None], 3, [[math.inf], None]),
        (7, 1, 7),
    ],
)
def test_curves_are_stored_with_few_digits(value, digits, short):
    assert shorten(value, digits) == short


def test_a_plan_holds_its_trials_in_few_words(tmp_path):
    trials = [
        Trial("toy", 1, {"level": 1.0}, {"noise": noise}, method, seed)
        for method in ("a", "b")
        for noise in (0.0, 0.5)
        for seed in ([0, 1, 2, 7] if method == "a" else [3])
    ]
    plan = {"source": "toy.py", "experiment": "toy", "label": "", "settings": {}, "seeds": None, "methods": ["a", "b"]}
    Store(tmp_path).plan({**plan, "trials": group_trials(trials), "date": "2026"})
    (found,) = Store(tmp_path).plans()
    assert found["keys"] == {name: [trial.key for trial in trials if trial.method == name] for name in ("a", "b")}
    assert [group["seeds"] for group in found["trials"]] == ["0-2,7", "3", "0-2,7", "3"]


def test_the_first_result_of_a_trial_stays(store):
    before = the_file(store).read_bytes()
    store.add(TRIALS[:2], [{"value": -1.0}] * 2, WHERE)
    Store(store.path).add(TRIALS[1:], [{"value": -1.0}] * 2, WHERE)
    assert the_file(store).read_bytes() == before


@pytest.mark.parametrize("change", [{"version": 2}, {"settings": {}}, {"condition": {}}, {"method": "x"}, {"seed": 9}])
def test_whatever_decides_a_result_is_in_the_key(store, change):
    assert replace(TRIALS[0], **change).key not in store.done()


def test_half_a_file_does_not_count(store):
    """Cut at any length, a file is set aside, said so, and its trials can be added again."""
    path = the_file(store)
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        cut = Store(store.path)
        assert cut.done() == set()
        assert "set aside" in cut.corrupt[0]
        aside = path.with_name(path.name + ".corrupt")
        assert aside.read_bytes() == whole[:length]
    cut.add(TRIALS, OUTCOMES, WHERE)
    assert path.read_bytes() == whole


def test_a_changed_byte_is_noticed(store):
    path = the_file(store)
    change(path, b'"value":[0.0', b'"value":[5.0')
    damaged = Store(store.path)
    assert damaged.results() == []
    assert "checksum" in damaged.corrupt[0]
    assert not path.exists()


def test_another_format_is_refused_and_kept(store):
    path = the_file(store)
    change(path, b'"format":2', b'"format":3')
    with pytest.raises(StoreError, match="format 3"):
        Store(store.path).done()
    assert path.exists()


def test_what_a_killed_process_had_begun_is_nothing(store):
    begun = store.path / "results" / "toy-0.jsonl.xz.123.tmp"
    begun.write_bytes(b"half")
    again = Store(store.path)
    assert len(again.done()) == 3
    assert again.corrupt == []
    again.sweep()
    assert not begun.exists()


@pytest.mark.parametrize(("moment", "finished"), [("write", 3), ("replace", 3), ("close", 4)])
def test_killed_while_writing(store, moment, finished):
    """Before the new name is there the batch is not; after that it is, as a whole."""
    adding = f"""
import io, os, pathlib, signal
from adaterm_bench.core.store import Store
from test_store import TRIALS, replace

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

class Dying(io.FileIO):
    def write(self, content):
        super().write(content[:50])
        die()

store = Store({str(store.path)!r})
store.done()
if {moment!r} == "write":
    pathlib.Path.open = lambda path, mode: Dying(path, mode)
elif {moment!r} == "replace":
    pathlib.Path.replace = die
else:
    os.close = die
store.add([replace(TRIALS[0], seed=7)], [{{}}], {{}})
"""
    died = subprocess.run([sys.executable, "-c", adding], check=False, cwd=os.path.dirname(__file__))
    assert died.returncode == -9
    again = Store(store.path)
    again.sweep()
    assert len(again.done()) == finished
    assert again.corrupt == []
    assert {path.suffix for path in (store.path / "results").iterdir()} == {".xz"}


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_a_full_disk_keeps_what_is_done(store, monkeypatch, moment):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    new = replace(TRIALS[0], seed=7)
    with monkeypatch.context() as patch:
        patch.setattr(os, moment, full)
        with pytest.raises(StoreError, match=r"No space left.*All 3 finished trials.*run the same command again"):
            store.add([new], [{}], WHERE)
    assert store.done() == {trial.key for trial in TRIALS}
    assert not list(store.path.rglob("*.tmp"))
    store.add([new], [{}], WHERE)
    assert new.key in Store(store.path).done()


def test_a_failure_is_kept_until_the_trial_succeeds(tmp_path):
    store = Store(tmp_path)
    store.fail(TRIALS[:2], "Traceback\nValueError: no", 2, WHERE)
    failure = Store(tmp_path).failures()[TRIALS[0].key]
    assert (failure["error"], failure["attempts"], failure["provenance"]) == ("Traceback\nValueError: no", 2, WHERE)
    assert store.done() == set()
    store.add(TRIALS[:1], OUTCOMES[:1], WHERE)
    assert set(store.failures()) == {TRIALS[1].key}
    assert [path.stem for path in (tmp_path / "failures").iterdir()] == [TRIALS[1].key]


def test_the_lock_names_its_holder(tmp_path):
    with hold_lock(tmp_path), pytest.raises(StoreError, match=f"process {os.getpid()} "), hold_lock(tmp_path):
        pass
    with hold_lock(tmp_path):  # it was given back
        pass


def test_the_lock_of_a_dead_process_is_taken(tmp_path):
    holding = (
        "import os, signal, pathlib; from adaterm_bench.core.lock import hold_lock; "
        f"hold_lock(pathlib.Path({str(tmp_path)!r})).__enter__(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    died = subprocess.run([sys.executable, "-c", holding], check=False)
    assert died.returncode == -9
    assert "process" in (tmp_path / "lock.holder").read_text()
    with hold_lock(tmp_path):
        assert f"process {os.getpid()} " in (tmp_path / "lock.holder").read_text()
