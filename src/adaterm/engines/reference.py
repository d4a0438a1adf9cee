"""The reference engine: the equations on one tensor after the other; it defines what is right."""

from math import nan
from typing import Any

import torch
from torch import Tensor

from adaterm.binding import bind, stages_of
from adaterm.engines.base import Block, Evidence, read_verdict
from adaterm.equations import Batch, Size, Totals, direct
from adaterm.options import Number
from adaterm.rules import measure
from adaterm.torch_primitives import PRIMITIVES, TORCH, find_widest, push, round_stochastically


def _shift_in_place(value: Tensor, direction: Tensor, rate: Number) -> Tensor:
    return value.add_(direction * rate) if isinstance(rate, Tensor) else value.add_(direction, alpha=rate)


_IN_PLACE = bind(PRIMITIVES | {"shift": _shift_in_place})


def judge(block: Block, evidence: Evidence) -> Tensor:
    """The verdict on a batch, in torch's operations."""
    rule, stages = block.rule, stages_of(block.rule.family, TORCH)
    size = Size(evidence.sizes, measure(1).trigamma)
    widest = find_widest(evidence.sums)
    parts = stages.summarize(evidence.sums.unbind(), size, rule.flags)
    totals = Totals(*(values.sum(dtype=widest) for values in parts))
    levels, norms, *rest = evidence.history
    norms = norms.clamp_min(torch.finfo(norms.dtype).tiny)  # autograd would divide by a usual norm of 0
    batch, statistics, notes = stages.judge(totals, levels, norms, *rest, rule.numbers, rule.flags)
    verdict, found_inf = torch.stack([*statistics, batch.clip, batch.excess, notes.norm]), block.scaling.found_inf
    remembered = push(evidence.history, torch.stack(list(notes)).detach())
    if found_inf is not None:  # of a step that is skipped nothing is known
        taken = found_inf.reshape(()).to(verdict.device) == 0.0
        verdict, remembered = torch.where(taken, verdict, nan), torch.where(taken, remembered, evidence.history)
    if evidence.remember:
        evidence.history.copy_(remembered)
    return verdict.to(evidence.history.dtype)


class ReferenceEngine:
    """Steps a block's tensors one by one."""

    skips_on_device = False

    def __init__(self, block: Block) -> None:
        self.block = block
        self.statistics = block.means[0].new_full((3, len(block.params)), nan)

    def step(self) -> None:
        """Take a whole step."""
        self.finish(self.gauge(), None)

    def gauge(self) -> Tensor:
        """The sums of every tensor: a row for each sum of the rule."""
        return torch.stack([self._gauge_tensor(index) for index in range(len(self.block.params))], dim=1)

    def judge(self, evidence: Evidence) -> Tensor:
        """The verdict on a batch."""
        return judge(self.block, evidence)

    def finish(self, sums: Tensor, verdict: Tensor | None) -> None:
        """Weigh and move, with the sums of whole tensors."""
        batch = read_verdict(verdict)
        rows = [self._finish_tensor(index, sums[:, index], batch) for index in range(len(self.block.params))]
        self.statistics = torch.stack(rows, dim=1).detach()

    def _gauge_tensor(self, index: int) -> Tensor:
        block, mean = self.block, self.block.means[index]
        gradient = self._gradient(index, block.params[index].to(mean.dtype))
        gauge = stages_of(block.rule.family, TORCH).gauge
        scalars = self._scalars(index)
        sums = gauge(gradient, mean, block.scales[index], scalars, block.rule.numbers, block.rule.flags)
        return torch.stack(sums[: block.rule.sum_count])

    def _finish_tensor(self, index: int, sums: Tensor, batch: Batch | None) -> Tensor:
        block, rule, options = self.block, self.block.rule, self.block.options
        stored, mean, scale, step = (lists[index] for lists in (block.params, block.means, block.scales, block.steps))
        library = TORCH if options.differentiable else _IN_PLACE

        parameter = stored.clone() if options.differentiable else stored.to(mean.dtype)  # its graph needs what was
        gradient = self._gradient(index, parameter)

        step += 1
        pace = block.read_pace(step.item() if block.on_host else step.to(mean.dtype))
        size, window = measure(block.sizes[index], rule.needs_trigamma), block.windows[index] if rule.window else None
        weigh, move = stages_of(rule.family, TORCH).weigh, stages_of(rule.family, library).move
        rates, scalars, note, statistics = weigh(
            sums, size, self._scalars(index), window, batch, pace, rule.numbers, rule.flags
        )
        if options.shrinks:
            parameter = library.shift(parameter, parameter, -rates.shrinkage)
        mean, scale, parameter = move(gradient, mean, scale, parameter, rates, rule.numbers, rule.flags)

        if options.stochastic_rounding and stored.dtype == torch.bfloat16:
            stored.copy_(round_stochastically(parameter, step.long(), block.streams[index]))
        elif parameter is not stored:
            stored.copy_(parameter)
        self._keep(index, mean, scale, scalars)
        if window is not None:
            window.copy_(push(window, note.detach()))
        return torch.stack(list(statistics))

    def _gradient(self, index: int, parameter: Tensor) -> Tensor:
        block, options = self.block, self.block.options
        gradient = block.grads[index].to(parameter.dtype)
        return direct(  # type: ignore[no-any-return]
            gradient, parameter, block.read_sign(), options.weight_decay, options.adds_decay
        )

    def _scalars(self, index: int) -> Any:
        return self.block.gather_scalars({name: values[index] for name, values in self.block.scalars.items()})

    def _keep(self, index: int, mean: Tensor, scale: Tensor, scalars: Any) -> None:
        """Store the state; a differentiable step replaces the tensors, which carry its graph, in the block's lists."""
        block = self.block
        if block.options.differentiable:
            block.means[index], block.scales[index] = mean, scale
        for name, values in block.scalars.items():
            if block.options.differentiable:
                values[index] = getattr(scalars, name)
            else:
                values[index].copy_(getattr(scalars, name))
