import gc
import os
import signal

import pytest

pytest.register_assert_rewrite("robust_checks", "robust_scenarios")

os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported: its kernels then run on a CPU
os.environ["OMP_NUM_THREADS"] = "1"  # before torch is: the tensors are small, and threads would only wait

signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background jobs, and all they start, ignore


TOGETHER = {
    "tests/test_sharded.py": "ranks",
    "tests/test_robust_adamw.py::test_ranks_follow_one_process": "ranks",
    "tests/test_monitor.py::test_two_ranks_have_the_whole_picture": "ranks",
    "tests/test_site.py": "site",
}
"""Tests that one worker does, by how their names begin: what they share is made once."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Groups by name: since pytest 9.2 the marks of pytest-xdist 3.8 have no effect.

    They keep their place. What needs the same kernels is a group too, or both workers would compile them at once.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            known = (group for start, group in TOGETHER.items() if nodeid.startswith(start))
            return next(known, nodeid.partition("fused")[0])

    config.option.loadscopereorder = False
    return Scheduling(config, log)


def pytest_addoption(parser):
    parser.addoption("--all", action="store_true", help="also run the tests that are marked slow")


def pytest_collection_modifyitems(config, items):
    items.sort(key=lambda item: item.module.__name__ != "test_tutorials")  # last, they would leave a worker idle
    if not config.getoption("--all"):
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.skip(reason="slow: make test-all runs it"))


def pytest_collection_finish():
    """Let the garbage collector look at what tests leave, not at all that was imported: compilers make much of both."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000)


def pytest_sessionfinish():
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _kernels_of_the_device(request, monkeypatch):
    """On a CPU the fused engine is the CPU's, but for the tests of the GPU's kernels, which run in the interpreter."""
    interpreted = request.module.__name__ == "test_gpu"
    monkeypatch.setattr("adaterm.engines.gpu.engine.interpreted", interpreted)
    if interpreted:
        from interpreter import patch_once

        patch_once()


@pytest.fixture(scope="session")
def ranks():
    """Four processes for distributed tests."""
    from ranks import Ranks

    started = Ranks(4)
    yield started
    started.stop()
