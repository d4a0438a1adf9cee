"""The same batches on a cluster: every trial is done once, though nodes are lost."""

import os
import signal
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest
from bench_command import Bench, until

from adaterm_bench.core.archive import decode
from adaterm_bench.core.store import Store

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install '.[ray]'")


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


def stored(store):
    """How often each trial is in the files."""
    files = (store.path / "results").iterdir()
    return Counter(result.trial.key for path in files for result in decode(path.read_bytes()))


def test_a_cluster_of_its_own(bench):
    """Results, a failure that is retried, and one that dies."""
    asked = {"methods": ("steady", "pair", "fails", "dies")}
    code, text = bench.run("--runner", "ray", "--seeds", 2, **asked)
    assert (code, "8 of 8 trials are done" in text) == (0, True), text
    assert Counter(bench.runs().values()) == {1: 4, 2: 4}
    assert set(stored(Store(bench.out)).values()) == {1}
    bench.run("--runner", "ray", "--seeds", 2, **asked)
    assert Counter(bench.runs().values()) == {1: 4, 2: 4}


def test_what_keeps_dying_is_a_failure(bench):
    code, _ = bench.run("--runner", "ray", "--seeds", 1, "--failures", 9, methods=("steady", "fails", "dies"))
    assert code == 1
    failures = {it["trial"]["method"]: it for it in Store(bench.out).failures().values()}
    assert "RuntimeError: seed 0 fails on purpose" in failures["fails"]["error"]
    assert "WorkerCrashedError" in failures["dies"]["error"]
    assert {it["attempts"] for it in failures.values()} == {2}
    assert len(Store(bench.out).done()) == 1


@pytest.mark.filterwarnings("ignore")
def test_a_lost_node_costs_no_result(bench, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        doomed = cluster.add_node(num_cpus=2)
        asked = ["--runner", "ray", "--ray-address", cluster.address, "--retries", 0, "--seeds", 9, "--sleep", 2.0]
        process = bench.start(*asked)
        before = bench.until_done(3)
        daemon = doomed.all_processes["raylet"][0].process.pid
        workers = {pid for pids in bench.pids().values() for pid in pids if parent(pid) == daemon}
        assert workers
        for pid in [daemon, *workers]:  # all at once, as when a machine is switched off
            os.kill(pid, signal.SIGKILL)
        text = "".join(process.communicate())
        assert process.returncode == 0, text
        assert "A node of the cluster was lost" in text
        runs = bench.runs()
        assert stored(Store(bench.out)) == Counter(runs.keys())
        assert (len(runs), max(runs.values())) == (9, 2)
        assert {runs[key] for key in before} == {1}
    finally:
        cluster.shutdown()


def parent(pid):
    """The process that started another."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_an_interrupted_run_goes_on(bench):
    process = bench.start("--runner", "ray", "--seeds", 8, "--sleep", 0.5)
    done = bench.until_done(2)
    process.send_signal(signal.SIGINT)
    text = "".join(process.communicate())
    assert process.returncode == 130, text
    assert "To go on from there" in text
    until(lambda: bench.run("--seeds", 8)[0] == 0)
    assert {bench.runs()[key] for key in done} == {1}
    assert len(Store(bench.out).done()) == 8
