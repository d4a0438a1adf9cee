"""What a run is given, drawn ahead: the batches of all steps, which of them are bad, and what is done to gradients.

All of it depends on the seed and the condition alone, so that methods meet the same batches and the same accidents.
Batches are those of the clean condition wherever they are not bad. Steps find their part of the tables by a position on
the device: a CUDA graph can repeat a step, and nothing waits.
"""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Condition(NamedTuple):
    """What happens, and in which share of the steps."""

    kind: str
    share: float


CONDITIONS = {
    "clean": Condition("none", 0.0),
    "tokens": Condition("tokens", 0.1),
    "targets": Condition("targets", 0.2),
    "tensor": Condition("tensor", 0.02),
    "garbage": Condition("garbage", 0.02),
    "spike": Condition("spike", 0.01),
}
"""tokens: the whole batch is random; targets: those of a batch are permuted over all its positions; tensor: the
gradient of one tensor, another one each time, is multiplied; garbage: all gradients are noise of variance 1; spike: all
gradients are multiplied."""
FACTOR = 1000.0


class Course(NamedTuple):
    """The tables of a run: their first dimension is the step."""

    inputs: Tensor  # steps, batch, context
    targets: Tensor
    bad: Tensor  # steps, on the host
    factors: Tensor | None  # of gradients: steps by tensors, or by one column for all of them
    garbage: Tensor | None  # rows of all tensors' elements, to be added; the first is 0
    rows: Tensor | None  # which of them, of each step

    def select_batch(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets of a step; the position is a tensor of one element."""
        return self.inputs.index_select(0, position)[0], self.targets.index_select(0, position)[0]

    def corrupt_gradients(self, grads: list[Tensor], position: Tensor) -> None:
        """Do to gradients, in place, what this step has in store for them: most often nothing."""
        if self.factors is not None:
            row = self.factors.index_select(0, position)[0]
            if len(row) == 1:
                torch._foreach_mul_(grads, row[0])
            else:
                torch._foreach_mul_(grads, list(row.unbind()))
        if self.garbage is not None and self.rows is not None:
            noise = self.garbage.index_select(0, self.rows.index_select(0, position))[0]
            pieces = torch.split(noise, [gradient.numel() for gradient in grads])
            shaped = [piece.view(gradient.shape) for piece, gradient in zip(pieces, grads, strict=True)]
            torch._foreach_add_(grads, shaped)


def choose_bad_steps(condition: Condition, steps: int, seed: int) -> Tensor:
    """Which steps are bad: the share of them, rounded to whole steps, but one at least; anywhere in the run."""
    bad = torch.zeros(steps, dtype=torch.bool)
    chosen = torch.randperm(steps, generator=_make_generator("steps", condition.kind, seed))
    bad[chosen[: max(round(condition.share * steps), condition.share > 0.0)]] = True
    return bad


def draw_windows(tokens: Tensor, count: int, batch: int, context: int, generator: torch.Generator) -> Tensor:
    """Pieces of a text, from anywhere in it, with one token more than the context: count, batch, context + 1."""
    starts = torch.randint(len(tokens) - context, (count, batch), generator=generator).to(tokens.device)
    return tokens[starts[..., None] + torch.arange(context + 1, device=tokens.device)]


def draw_course(
    tokens: Tensor,
    vocabulary: int,
    steps: int,
    batch: int,
    context: int,
    condition: Condition,
    seed: int,
    sizes: Sequence[int],
) -> Course:
    """The course of a run, on the device of the tokens; `sizes` are the elements of each parameter tensor."""
    device, kind = tokens.device, condition.kind
    windows = draw_windows(tokens, steps, batch, context, _make_generator("batches", seed))
    bad = choose_bad_steps(condition, steps, seed)
    places, generator = bad.nonzero()[:, 0], _make_generator("corruption", kind, seed)
    if kind == "tokens":
        drawn = torch.randint(vocabulary, (len(places), *windows.shape[1:]), generator=generator)
        windows[places.to(device)] = drawn.to(device, tokens.dtype)
    inputs, targets = windows[..., :-1], windows[..., 1:]
    if kind == "targets":
        targets = targets.clone()
        for place in places.tolist():
            order = torch.randperm(batch * context, generator=generator).to(device)
            targets[place] = targets[place].flatten()[order].view(batch, context)
    factors = garbage = rows = None
    if kind == "tensor":
        factors = torch.ones(steps, len(sizes))
        factors[places, torch.randint(len(sizes), (len(places),), generator=generator)] = FACTOR
    elif kind == "spike":
        factors = torch.where(bad, FACTOR, 1.0)[:, None]
    elif kind == "garbage":
        factors = torch.where(bad, 0.0, 1.0)[:, None]
        rows = (bad.cumsum(0) * bad).to(device)
        on_device = torch.Generator(device).manual_seed(_hash("garbage", seed))  # too many for the host
        garbage = torch.randn(len(places) + 1, sum(sizes), generator=on_device, device=device)
        garbage[0] = 0.0
    return Course(inputs, targets, bad, None if factors is None else factors.to(device), garbage, rows)


def _make_generator(*words: str | int) -> torch.Generator:
    return torch.Generator().manual_seed(_hash(*words))


def _hash(*words: str | int) -> int:
    return int.from_bytes(hashlib.sha256(repr(words).encode()).digest()[:7])
