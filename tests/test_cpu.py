"""The fused engine on a CPU: what the tests over all engines do not show."""

import dataclasses
import os
import subprocess
import sys
from math import inf, nan

import pytest
import torch
from catalogue import JUDGING, OPTIMIZERS, RULES, SHAPES, assert_close, give_gradients, make, parameters, train

import adaterm
from adaterm.engines.cpu import engine as cpu

pytestmark = pytest.mark.skipif(not cpu.is_available(), reason="Numba is not installed")
LARGE = [(460_001,), (70_000,), (70, 1000), (5,)]
"""Tensors that threads share, one of more than a piece that they do not, and a small one."""


@pytest.fixture(autouse=True)
def _threads(monkeypatch):
    """As many threads as a test asks for, also where there are not so many processors."""
    monkeypatch.setattr(cpu, "count_processors", torch.get_num_threads)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def end(threads, rule="AdaTerm", dtype=torch.float32):
    """Steps with large tensors: as many as a rule needs to do all that it does."""
    torch.set_num_threads(threads)
    params = parameters(LARGE, dtype)
    optimizer = make(rule, params, lr=0.1, fused=True)
    train(optimizer, params, count_steps(rule))
    return params, optimizer


def count_steps(rule):
    return 13 if rule in JUDGING else 4


@pytest.mark.parametrize(
    ("rule", "dtype"),
    [
        ("AdaTerm", torch.float32),
        ("AdaTerm (gradient init)", torch.float32),
        ("AdaTerm (gradient init)", torch.float64),  # which hides nothing of the order of sums
        ("RobustAdamW, usual norm", torch.float32),
    ],
)
def test_any_number_of_threads_gives_the_same_bits(rule, dtype):
    wanted, right = end(1, rule, dtype)
    for threads in (2, 3, 7):
        params, optimizer = end(threads, rule, dtype)
        for a, b in zip(params, wanted, strict=True):
            assert torch.equal(a, b), (threads, tuple(a.shape))
            for name, value in right.state[b].items():
                assert torch.equal(optimizer.state[a][name], value), (threads, name)


def test_no_more_threads_than_processors(monkeypatch):
    monkeypatch.setattr(cpu, "count_processors", lambda: 3)
    torch.set_num_threads(7)
    assert cpu.count_threads() == 3


def test_fewer_threads_than_asked_for_are_noticed(monkeypatch):
    """OpenMP may give fewer: the caller's thread then works alone, and nobody waits for threads that are not there."""
    wanted, _ = end(1)
    team = cpu.find_team()
    stingy = dataclasses.replace(team, run=lambda work, data, threads, flags: team.run(work, data, 1, flags))
    monkeypatch.setattr(cpu, "find_team", lambda: stingy)
    torch.set_num_threads(4)
    assert cpu.count_threads() == 1
    params, _ = end(4)
    assert all(torch.equal(a, b) for a, b in zip(params, wanted, strict=True))


def test_without_openmp_the_callers_thread_works_alone(monkeypatch):
    wanted, _ = end(2)
    monkeypatch.setattr(cpu, "find_team", lambda: None)
    params, _ = end(2)
    assert all(torch.equal(a, b) for a, b in zip(params, wanted, strict=True))


def follow(rule, shapes, steps, spoil):
    """Fused and reference, after ordinary steps and, if wanted, one with gradients that are not finite."""
    ends = []
    for flags in ({"fused": True}, {"foreach": False}):
        params = parameters(shapes)
        optimizer = make(rule, params, **flags)
        train(optimizer, params, steps)
        if spoil:
            params[0].grad[-1], params[2].grad[7, 7] = nan, inf
            optimizer.step()
        ends.append((params, optimizer))
    (params, tested), (others, wanted) = ends
    for a, b in zip(params, others, strict=True):
        assert_close(a, b, 1e-5)
        for name, value in wanted.state[b].items():
            assert_close(tested.state[a][name], value, 1e-5, name)


@pytest.mark.parametrize("rule", ["AdaTerm", "At-Adam", "AdaTerm + L2 decay", "RobustAdamW, usual norm"])
def test_large_tensors_follow_the_reference(rule):
    torch.set_num_threads(2)
    follow(rule, LARGE, count_steps(rule), spoil=True)


@pytest.mark.parametrize("rule", RULES)
def test_it_follows_the_reference_for_long(rule):
    follow(rule, SHAPES, 80 if rule in JUDGING else 200, spoil=False)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_gradscalers_contract(name):
    params, others = parameters(), parameters()
    tested, plain = (getattr(adaterm, name)(p, lr=0.1, **f) for p, f in ((params, {"fused": True}), (others, {})))
    assert tested._step_supports_amp_scaling
    tested.grad_scale, tested.found_inf = torch.tensor([8.0]), torch.tensor([0.0])
    give_gradients(params, 0, scale=8.0)
    give_gradients(others, 0)
    tested.step()
    plain.step()
    for a, b in zip(params, others, strict=True):
        assert_close(a, b, 1e-6)
    before = [p.detach().clone() for p in params]
    tested.found_inf.fill_(1.0)
    tested.step()
    assert all(torch.equal(a, b) for a, b in zip(params, before, strict=True))
    assert all(tested.state[p]["step"] == 1 for p in params)
    assert all(trust.isnan() for _, trust, _ in tested.statistics().values())


STEP = """
import sys, torch, adaterm
parameter = torch.zeros(5, requires_grad=True)
parameter.grad = torch.ones(5)
getattr(adaterm, sys.argv[1])([parameter], fused=True).step()
"""


@pytest.mark.parametrize("name", ["AdaTerm", pytest.param("RobustAdamW", marks=pytest.mark.slow)])
def test_what_was_compiled_is_found_again(tmp_path, name):
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "NUMBA_DEBUG_CACHE": "1", "TRITON_INTERPRET": "0"}
    command = [sys.executable, "-c", STEP, name]
    runs = [subprocess.run(command, env=environment, check=True, capture_output=True, text=True) for _ in range(2)]
    assert ["data loaded from" in run.stdout for run in runs] == [False, True]
    assert "data saved to" not in runs[1].stdout
