"""A step launches few kernels, and needs little memory."""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import adaterm
from gpu_checks.subjects import DEVICE, Findings, give_gradients, optimizer, parameters


def few_kernels() -> Findings:
    for method, most in (("AdaTerm", 2), ("At-Adam", 2), ("RobustAdamW", 4), ("RobustAdamW (clipped)", 4)):
        least = sys.maxsize
        for count in (1, 30, 148, 2000):
            params = parameters(count)
            tested = optimizer(method, params, foreach=True)
            rival = torch.optim.Adam(params, foreach=True)
            single = optimizer(method, params, fused=True)
            for step in range(2):
                give_gradients(params, step)
                for stepped in (tested, rival, single):
                    stepped.step()
            ours, adams = kernels(tested.step), kernels(rival.step)
            least = min(least, ours)
            # torch itself splits a launch of many tensors, Adam's as ours
            assert ours == least or count > 30, (method, count, ours)
            yield f"kernels a step, {method}(foreach=True), {count} tensors", ours
            yield f"kernels a step, Adam(foreach=True), {count} tensors", adams
            held = [p.grad for p in params]  # so that new gradients have new addresses
            give_gradients(params, 2)
            launches, copies = activity(single.step)
            assert (launches, copies) == (most, 1), (method, count, launches, copies)
            yield f"kernels and copies a step, {method}(fused=True), {count} tensors", [launches, copies]
            del held


def few_kernels_of_a_monitor() -> Findings:
    for method in ("AdaTerm", "RobustAdamW"):
        params = parameters(148)
        tested = optimizer(method, params, fused=True)
        counts = []
        for _ in range(2):
            for step in range(2):
                give_gradients(params, step)
                tested.step()
            counts.append(activity(tested.step))
            adaterm.Monitor(tested)
        launches = [watched - alone for alone, watched in zip(*counts, strict=True)]
        assert launches == [2, 0], (method, launches)
    yield "kernels and copies of a monitor in a step, 148 tensors", launches


def memory() -> Findings:
    peaks = {}
    rivals: dict[str, Callable[[list[Tensor]], torch.optim.Optimizer]] = {
        "Adam(foreach=True)": lambda params: torch.optim.Adam(params, foreach=True),
        "AdamW(fused=True)": lambda params: torch.optim.AdamW(params, fused=True),
        "Adam(fused=True)": lambda params: torch.optim.Adam(params, fused=True),
        "AdaTerm(foreach=True)": lambda params: adaterm.AdaTerm(params, foreach=True),
        "AdaTerm(fused=True)": lambda params: adaterm.AdaTerm(params, fused=True),
        "AtAdam(fused=True)": lambda params: adaterm.AtAdam(params, fused=True),
        "RobustAdamW(foreach=True)": lambda params: adaterm.RobustAdamW(params, foreach=True),
        "RobustAdamW(fused=True)": lambda params: adaterm.RobustAdamW(params, fused=True),
        "RobustAdamW(fused=True), clipped": lambda params: adaterm.RobustAdamW(params, max_norm="auto", fused=True),
    }
    for name, make in rivals.items():
        torch.cuda.empty_cache()
        start = torch.cuda.memory_allocated()
        params = [torch.randn(4096, 1024, device=DEVICE) for _ in range(16)]
        model = sum(p.numel() * p.element_size() for p in params)
        tested = make(params)
        for _ in range(3):
            for p in params:
                p.grad = torch.randn_like(p)
            tested.step()
            tested.zero_grad()
        for p in params:
            p.grad = torch.randn_like(p)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        tested.step()
        scratch = (torch.cuda.max_memory_allocated() - before) / model
        peaks[name] = torch.cuda.max_memory_allocated() - start
        yield f"scratch memory of a step, in models, {name}", scratch
        assert scratch < (0.01 if "fused" in name else 2.01), (name, scratch)
        del params, tested
    for name, rival in {
        "AdaTerm(fused=True)": "Adam(fused=True)",
        "AtAdam(fused=True)": "Adam(fused=True)",
        "RobustAdamW(fused=True)": "AdamW(fused=True)",
        "RobustAdamW(fused=True), clipped": "AdamW(fused=True)",
    }.items():
        ratio = peaks[name] / peaks[rival]
        yield f"peak memory relative to {rival}, {name}", ratio
        assert ratio < 1.01, (name, ratio)


def kernels(step: Callable[[], Any]) -> int:
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        step()
        torch.cuda.synchronize()
    return sum(event.count for event in recorded.key_averages() if event.device_type == torch.autograd.DeviceType.CUDA)


def activity(step: Callable[[], Any]) -> tuple[int, int]:
    """The number of kernels and of copies."""
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        step()
        torch.cuda.synchronize()
    events = [e for e in recorded.key_averages() if e.device_type == torch.autograd.DeviceType.CUDA]
    copies = sum(event.count for event in events if event.key.lower().startswith("mem"))
    return sum(event.count for event in events) - copies, copies
