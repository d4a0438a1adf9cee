"""Whatever is killed, and whenever, nothing finished is lost and nothing finished runs again."""

import os
import resource
import signal
from pathlib import Path

import pytest
from bench_command import Bench, until

from adaterm_bench.core.coordinator import Times
from adaterm_bench.core.runners.local import count_cores
from adaterm_bench.core.store import Store
from adaterm_bench.core.trial import Result, Trial
from adaterm_bench.core.work import Batch


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_everything_runs_once(bench, workers):
    code, text = bench.run("--seeds", "3-6", methods=("steady", "pair"), workers=workers)
    assert (code, text.count("\r")) == (0, 0)
    assert "8 of 8 trials are done" in text
    results = Store(bench.out).results()
    assert sorted((it.trial.method, it.outcome["value"]) for it in results) == [
        (method, float(seed)) for method in ("pair", "steady") for seed in range(3, 7)
    ]
    assert len(list((bench.out / "results").iterdir())) == 4 + 1  # the pairs ran together
    provenance = results[0].provenance
    assert provenance.keys() == {"command", "commit", "date", "device", "seconds", "versions"}
    assert provenance["command"].startswith("adaterm-bench run")
    assert bench.run("--seeds", "0-6", methods=("steady", "pair"), workers=workers)[0] == 0
    assert set(bench.runs().values()) == {1}
    assert len(bench.runs()) == 14


def test_workers_share_the_cores(bench, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    bench.run("--seeds", 1, workers=1)
    bench.run("--seeds", "1,2", workers=10 * count_cores())
    monkeypatch.setenv("OMP_NUM_THREADS", "3")  # a wish, which both libraries are to heed
    bench.run("--seeds", "3,4", workers=1)
    threads = {it.trial.seed: it.outcome["threads"] for it in Store(bench.out).results()}
    cores = str(count_cores())
    assert threads == {0: [cores, cores], 1: ["1", "1"], 2: ["1", "1"], 3: ["3", "3"], 4: ["3", "3"]}


@pytest.mark.parametrize(
    ("method", "reason"), [("dies", "SIGKILL"), ("leaves", "exit code 7"), ("fails", "RuntimeError: seed 0 fails")]
)
def test_a_failure_is_retried_and_stops_nobody(bench, method, reason):
    code, text = bench.run("--seeds", 2, "--retries", 2, "--failures", 9, methods=(method, "steady"))
    assert code == 1
    assert reason in text
    failures = Store(bench.out).failures()
    assert [it["trial"]["method"] for it in failures.values()] == [method] * 2
    for key, failure in failures.items():
        assert failure["attempts"] == bench.runs()[key] == 3
    assert any(reason in it["error"] for it in failures.values())
    if method == "fails":
        assert all("Traceback" in it["error"] and "toy.py" in it["error"] for it in failures.values())
    assert {it.trial.method for it in Store(bench.out).results()} == {"steady"}

    assert bench.run("--seeds", 2, "--failures", 0, methods=(method, "steady"))[0] == 0
    assert Store(bench.out).failures() == {}
    assert sorted(bench.runs().values()) == [1, 1, 4, 4]


def test_a_killed_worker_is_replaced(bench):
    process = bench.start("--seeds", 4, "--sleep", 0.5)
    victim = until(lambda: next(iter(bench.pids().values()), None))[0]
    os.kill(victim, signal.SIGKILL)
    text = "".join(process.communicate())
    assert process.returncode == 0
    assert "SIGKILL" in text
    assert sorted(bench.runs().values()) == [1, 1, 1, 2]
    assert len(Store(bench.out).done()) == 4


def test_a_killed_coordinator_loses_nothing_finished(bench):
    process = bench.start("--seeds", 8, "--sleep", 0.3)
    bench.until_done(3)
    process.kill()
    process.communicate()
    done = Store(bench.out).done()
    assert 3 <= len(done) < 8
    until(lambda: not any(map(alive, {pid for pids in bench.pids().values() for pid in pids})))
    assert bench.run("--seeds", 8)[0] == 0
    runs = bench.runs()
    assert len(Store(bench.out).done()) == len(runs) == 8
    assert {runs[key] for key in done} == {1}
    assert max(runs.values()) <= 2


def test_workers_do_not_outlive_a_killed_coordinator(bench):
    process = bench.start("--seeds", 2, "--sleep", 100)  # whose first sign of life comes after 10 seconds
    until(lambda: len(bench.pids()) == 2 and all(bench.pids().values()))
    process.kill()
    process.wait()
    process.stdout.close()
    process.stderr.close()
    workers = [pid for pids in bench.pids().values() for pid in pids]
    until(lambda: not any(map(alive, workers)), patience=5)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("workers", [0, 2])
def test_an_interrupted_run_goes_on(bench, number, workers):
    process = bench.start("--seeds", 8, "--sleep", 0.3, workers=workers, start_new_session=True)
    bench.until_done(2)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as a terminal does
    else:
        process.send_signal(number)
    text = "".join(process.communicate())
    assert process.returncode == 130
    assert "To go on from there: adaterm-bench run" in text
    assert "Traceback" not in text
    assert not any(map(alive, {pid for pids in bench.pids().values() for pid in pids}))
    done = Store(bench.out).done()
    assert f"Interrupted: {len(done)} of 8 trials" in text
    assert bench.run("--seeds", 8)[0] == 0
    assert {bench.runs()[key] for key in done} == {1}
    assert len(Store(bench.out).done()) == 8


def test_a_full_disk_stops_the_run_and_loses_nothing(bench):
    def small_files_only():
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    asked = {"methods": ("steady", "bulky"), "workers": 1}
    code, text = bench.run("--seeds", 2, **asked, preexec_fn=small_files_only)
    assert code == 1
    assert "All 2 finished trials" in text
    assert "run the same command again" in text
    assert len(Store(bench.out).done()) == 2
    assert not list(bench.out.rglob("*.tmp"))
    assert bench.run("--seeds", 2, **asked)[0] == 0
    assert len(Store(bench.out).done()) == 4
    assert sorted(bench.runs().values()) == [1, 1, 1, 2]


def test_what_a_damaged_file_held_runs_again(bench):
    bench.run()
    damaged = sorted((bench.out / "results").iterdir())[0]
    damaged.write_bytes(damaged.read_bytes()[:-9])
    code, text = bench.run()
    assert code == 0
    assert "set aside" in text
    assert sorted(bench.runs().values()) == [1, 1, 2]


def test_outcomes_that_are_no_plain_data_fail_where_they_were_made(bench):
    code, _ = bench.run("--seeds", 1, methods=("strange",))
    assert code == 1
    (failure,) = Store(bench.out).failures().values()
    assert "not JSON serializable" in failure["error"]


def test_one_coordinator_at_a_time(bench):
    first = bench.start("--seeds", 2, "--sleep", 1.0)
    until(lambda: bench.log.exists() and bench.pids())
    code, text = bench.run()
    assert code == 1
    assert f"in use by process {first.pid}" in text
    first.communicate()
    assert first.returncode == 0


def test_other_settings_are_other_trials(bench):
    bench.run("--seeds", 1)
    bench.run("--seeds", 1, "--level", 2, "--widths", "3,4")
    bench.run("--seeds", 1, "--level", 2.0, "--widths", "3,4", "--sleep", 0.01)  # which decides nothing
    assert sorted(bench.runs().values()) == [1, 1]


def alive(pid):
    """Whether a process runs: one that ended may still have an entry."""
    status = Path(f"/proc/{pid}/status")
    try:
        return "State:\tZ" not in status.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_what_would_end_too_late_is_not_begun(bench):
    code, text = bench.run("--seeds", 4, "--sleep", 1.5, "--minutes", 0.027, workers=0)  # which knows after one trial
    assert (code, "1 of 4 trials are done" in text, "The time is up" in text) == (1, True, True), text
    assert bench.run("--seeds", 4, "--sleep", 1.5, "--minutes", 0.02, workers=0)[0] == 1  # which knows from the first
    assert len(bench.runs()) == 1
    assert bench.run("--seeds", 4, workers=0)[0] == 0
    assert set(bench.runs().values()) == {1}


def test_a_batch_is_due_to_take_as_long_as_the_longest_of_its_kind():
    near, far, other = (Trial("x", 1, {}, {"horizon": it}, "Adam", 0) for it in (1, 30, 60))
    times = Times([Result(near, {}, {"seconds": 2.0}), Result(near, {}, {"seconds": 1.0})])
    times.add(far, 9.0)
    due = [times.due(Batch("", "x", {}, [it], {})) for it in (near, far, other)]
    assert due == [2.0, 9.0, 9.0]  # of what was never run, no more is known
    assert times.due(Batch("", "y", {}, [Trial("y", 1, {}, {}, "Adam", 0)], {})) == 0.0
