"""What a Mac or a Windows machine lacks is done without; here it is taken away."""

import ctypes
import sys

import pytest
import torch
from catalogue import ENGINES, assert_close, give_gradients, make, parameters, train
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from adaterm import state
from adaterm.engines import reference
from adaterm.engines.cpu import engine as cpu
from adaterm.engines.gpu import engine as gpu


class NoDoubles(TorchDispatchMode):
    """Refuses float64, as Apple's GPUs do."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        tensors = [each for each in tree_leaves((args, kwargs, result)) if isinstance(each, torch.Tensor)]
        assert not any(tensor.dtype == torch.float64 for tensor in tensors), function
        return result


@pytest.mark.parametrize("engine", ["reference", "foreach"])
@pytest.mark.parametrize(
    "rule", ["AdaTerm", "AdaTerm (gradient init)", "At-Adam", "RobustAdamW, usual norm", "RobustAdamW, soon judging"]
)
def test_a_step_needs_no_float64(rule, engine, monkeypatch):
    for module in (reference, state):
        monkeypatch.setattr(module, "find_widest", lambda tensor: torch.float32)
    params = parameters(dtype=torch.float32)
    optimizer = make(rule, params, **ENGINES[engine])
    for step in range(14):
        give_gradients(params, step)
        with NoDoubles():
            optimizer.step()
    assert all(parameter.isfinite().all() for parameter in params)


def test_without_gnu_openmp_one_thread_works(monkeypatch):
    load = ctypes.CDLL

    def refuse(name, *args, **options):
        if name is None:
            raise TypeError("the process itself is no library")  # on Windows
        return load(name, *args, **options)

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    monkeypatch.setattr(cpu, "find_team", cpu.find_team.__wrapped__)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert cpu.count_threads() == 1
    tested, plain = parameters([(600, 600)]), parameters([(600, 600)])
    train(make("AdaTerm", tested, fused=True), tested, 2)
    train(make("AdaTerm", plain, foreach=False), plain, 2)
    assert_close(tested[0], plain[0], 1e-5)


def test_processors_are_counted_without_affinity(monkeypatch):
    monkeypatch.delattr("os.sched_getaffinity", raising=False)
    assert cpu.count_processors.__wrapped__() >= 1


@pytest.mark.parametrize(("platform", "version"), [("win32", "3.9.0"), ("darwin", "3.9.0"), ("linux", "3.5.1")])
def test_triton_is_used_where_it_is_known_to_work(platform, version, monkeypatch):
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(gpu, "find_spec", lambda name: object())
    monkeypatch.setattr(gpu, "version", lambda name: version)
    monkeypatch.setattr(gpu, "which", lambda name: name)
    assert not gpu._can_compile()
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(gpu, "version", lambda name: "3.6.0")
    assert gpu._can_compile()
