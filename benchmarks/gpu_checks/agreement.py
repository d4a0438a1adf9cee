"""Engines, devices, precisions, runs and ranks agree."""

from typing import Any

import torch
from catalogue import measure_error
from changes import CHANGES, CHANGES_OF_JUDGEMENT, compare, is_allowed
from on_ranks import LAYOUTS, follow
from ranks import Ranks
from torch import Tensor

from adaterm.engines.cpu import engine as cpu
from gpu_checks.subjects import DEVICE, ENGINES, FEW, MAIN, METHODS, Findings, give_gradients, optimizer, parameters

TOLERANCE = {torch.float64: 1e-11, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-2}
"""Relative to the largest entry; parameters in half precision differ by a rounding, their state by STATE_TOLERANCE."""
STATE_TOLERANCE = {torch.float64: 1e-11, torch.float32: 1e-5, torch.bfloat16: 2e-4, torch.float16: 2e-4}


def engines_agree() -> Findings:
    steps = 200
    for dtype, bound in TOLERANCE.items():
        worst = {(name, part): 0.0 for name in ENGINES for part in ("parameters", "state")}
        for method in METHODS if dtype == torch.float32 else FEW:
            ends = {}
            for name, flags in ENGINES.items():
                params = parameters(dtype=dtype)
                tested = optimizer(method, params, **flags)
                for step in range(steps):
                    give_gradients(params, step)
                    tested.step()
                ends[name] = params, tested
            wanted, right = ends["reference"]
            for name, (params, tested) in ends.items():
                for a, b in zip(params, wanted, strict=True):
                    worst[name, "parameters"] = max(worst[name, "parameters"], measure_error(a, b))
                for key in right.state[wanted[0]]:
                    # relative to the largest of all tensors: the mean of a tensor of one element may be all but 0
                    states = gather_state(tested, params, key), gather_state(right, wanted, key)
                    worst[name, "state"] = max(worst[name, "state"], measure_error(*states))
        for (name, part), difference in worst.items():
            if name != "reference":
                short = str(dtype).removeprefix("torch.")
                yield f"largest relative difference after {steps} steps, {name}, {part}, {short}", difference
                most = bound if part == "parameters" else STATE_TOLERANCE[dtype]
                assert difference < most, (dtype, name, part, difference)


def gather_state(tested: Any, params: list[Tensor], key: str) -> Tensor:
    """A state of all parameters that have it: what batches were like is in that of the first alone."""
    states = (tested.state[parameter] for parameter in params)
    return torch.cat([state[key].to(DEVICE).flatten() for state in states if key in state])


def devices_agree() -> Findings:
    """The fused engines of GPU and CPU, for the same gradients; with those of a model, half precisions would differ."""
    for dtype in TOLERANCE if cpu.is_available() else ():
        worst = 0.0
        for method in (
            "AdaTerm",
            "AdaTerm2",
            "At-Adam",
            "RobustAdamW, usual norm",
        ):  # every one is compiled for the CPU
            params = parameters(dtype=dtype)
            others = [p.detach().cpu().requires_grad_() for p in params]
            tested, right = optimizer(method, params, fused=True), optimizer(method, others, fused=True)
            for step in range(50):
                give_gradients(params, step)
                for a, b in zip(params, others, strict=True):
                    b.grad = a.grad.cpu()
                tested.step()
                right.step()
            for a, b in zip(params, others, strict=True):
                for key, value in right.state[b].items():
                    worst = max(worst, measure_error(tested.state[a][key].cpu(), value))
        assert worst < STATE_TOLERANCE[dtype], (dtype, worst)
        yield f"largest relative difference of the states on GPU and CPU, {str(dtype).removeprefix('torch.')}", worst


def changes_are_noticed() -> Findings:
    """Whatever a user does between two steps, on the GPU's engines."""
    for tested, changes in (("AdaTerm", CHANGES), ("RobustAdamW", CHANGES + CHANGES_OF_JUDGEMENT)):
        for name in ("fused", "foreach"):
            allowed = [change for change in changes if is_allowed(change, name)]
            difference = max(compare(change, DEVICE, tested, **ENGINES[name]) for change in allowed)
            yield (
                f"largest relative difference after one of {len(changes)} changes between steps, {tested}, {name}",
                difference,
            )
            assert difference < 1e-5, (tested, name, difference)


def complex_beside_real() -> Findings:
    """One group with real and complex parameters, default options."""
    for kind in MAIN:
        ends = []
        for flags in ({}, ENGINES["reference"]):
            flat = [p.detach().reshape(-1, 2) for p in parameters(1)]
            params = [*parameters(3), *(torch.view_as_complex(pairs).clone() for pairs in flat)]
            params = [parameter.detach().requires_grad_() for parameter in params]
            tested = kind(params, lr=0.1, **flags)
            for step in range(20):
                give_gradients([torch.view_as_real(p.detach()) if p.is_complex() else p for p in params], step)
                for p in params:
                    if p.is_complex():
                        p.grad = torch.ones_like(p) * (step + 1j)
                tested.step()
            ends.append(params)
        pairs = [map(torch.view_as_real, pair) if pair[0].is_complex() else pair for pair in zip(*ends, strict=True)]
        difference = max(measure_error(*pair) for pair in pairs)
        yield f"largest relative difference, real and complex parameters in one group, {kind.__name__}", difference
        assert difference < 1e-5, difference


def runs_repeat() -> Findings:
    for method in ("AdaTerm", "RobustAdamW, usual norm"):
        ends = []
        for _ in range(3):
            generator = torch.Generator(DEVICE).manual_seed(0)
            params = [torch.randn(size, generator=generator, device=DEVICE) for size in (3_000_001, 5, 70_000)]
            tested = optimizer(method, params, fused=True)
            for step in range(50):
                give_gradients(params, step)
                tested.step()
            ends.append([tensor for p in params for tensor in (p, *tested.state[p].values())])
        assert all(torch.equal(a, b) for end in ends[1:] for a, b in zip(end, ends[0], strict=True))
        yield f"runs that were equal bit for bit, fused, {method}", len(ends)


def huge_tensor() -> Findings:
    size = 2**31 + 12_345
    for method in ("AdaTerm (gradient init)", "RobustAdamW (clipped)"):
        ends = []
        for flags in ({"fused": True}, {"foreach": False}):
            generator = torch.Generator(DEVICE).manual_seed(0)
            parameter = torch.zeros(size, device=DEVICE)
            tested = optimizer(method, [parameter], lr=0.1, **flags)
            for _ in range(2):
                parameter.grad = torch.randn(size, generator=generator, device=DEVICE)
                tested.step()
            ends.append(parameter)
            del tested
            parameter.grad = None
            torch.cuda.empty_cache()
        worst = max(
            ((a - b).abs().max() / b.abs().max()).item() for a, b in zip(*(e.split(2**28) for e in ends), strict=True)
        )
        assert worst < 1e-5, worst
        yield f"largest relative difference of fused and reference, a tensor of {size} elements, {method}", worst
        del ends, parameter


def rounding() -> Findings:
    """Updates of a thousandth of the parameter's unit in the last place: lost by plain rounding."""
    for method in ("AdaTerm (gradient init)", "RobustAdamW, usual norm"):
        ends = {}
        for name, flags in ENGINES.items():
            for stochastic in (False, True):
                parameter = torch.ones(100_000, device=DEVICE, dtype=torch.bfloat16)
                tested = optimizer(method, [parameter], lr=1e-5, stochastic_rounding=stochastic, **flags)
                for step in range(200):
                    parameter.grad = torch.ones_like(parameter) * (1.0 + 0.1 * (step % 3))
                    tested.step()
                ends[name, stochastic] = parameter
        exact = torch.ones(1, device=DEVICE)
        tested = optimizer(method, [exact], lr=1e-5, foreach=False)
        for step in range(200):
            exact.grad = torch.ones_like(exact) * (1.0 + 0.1 * (step % 3))
            tested.step()
        wanted = 1.0 - exact.item()
        for (name, stochastic), parameter in ends.items():
            moved = 1.0 - parameter.double().mean().item()
            case = f"{method}, {name}, stochastic rounding {stochastic}"
            yield f"path in bfloat16, of that in float32, {case}", moved / wanted
            assert (abs(moved / wanted - 1.0) < 0.05) if stochastic else moved == 0.0, (case, moved, wanted)
        same = (ends["fused", True] == ends["reference", True]).double().mean().item()
        yield f"parameters that fused and reference round alike, {method}", same


def state_moves_between_devices() -> Findings:
    for kind, capturable in ((kind, capturable) for kind in MAIN for capturable in (False, True)):
        host = [p.detach().cpu().requires_grad_() for p in parameters()]
        device = [p.detach().to(DEVICE).requires_grad_() for p in host]
        one, other = kind(host, capturable=capturable), kind(device)
        for p in host:
            p.grad = torch.ones_like(p)
        one.step()
        other.load_state_dict(one.state_dict())
        assert all(value.is_cuda for p in device for key, value in other.state[p].items() if key != "step")
        for p in device:
            p.grad = torch.ones_like(p)
        other.step()
    yield "a host's state steps on the device", True


def shards_follow() -> Findings:
    """Two ranks that share this device, over gloo, against whole tensors on it."""
    ranks = Ranks(2)
    few = ["AdaTerm", "AdaTerm2", "At-Adam", "AdaTerm + L2 decay", "AdaTerm (gradient init)", "RobustAdamW, usual norm"]
    for layout in ("fsdp", "tensor parallel", "with plain tensors"):
        assert layout in LAYOUTS
        for engine in ENGINES:
            for dtype in (torch.float64, torch.float32):
                ranks.run(2, follow, layout, engine, few, dtype, 20, 7, DEVICE)
    ranks.stop()
    yield "two ranks follow one process, all engines, with a gradient of NaN", True
