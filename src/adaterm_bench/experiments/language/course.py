"""What a run is given, drawn ahead: the batches of all steps, which of them are bad, and what is done to gradients.

All of it depends on the seed and the noise alone, so that methods meet the same batches and the same faults. Batches
are those of clean data wherever the noise leaves them. Steps find their part of the tables by a position on the device:
a CUDA graph can repeat a step, and nothing waits.
"""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Noise(NamedTuple):
    """What happens, and in which share of the steps."""

    kind: str
    share: float


NOISES = {
    "clean": Noise("none", 0.0),
    "tokens 10 %": Noise("tokens", 0.1),
    "targets 5 %": Noise("targets", 0.05),
    "targets 10 %": Noise("targets", 0.1),
    "targets 20 %": Noise("targets", 0.2),
    "targets 30 %": Noise("targets", 0.3),
    "targets 40 %": Noise("targets", 0.4),
    "bursts 10 %": Noise("bursts", 0.1),
    "tensor 2 %": Noise("tensor", 0.02),
    "spike 1 %": Noise("spike", 0.01),
    "garbage 2 %": Noise("garbage", 0.02),
    "overflow 1 %": Noise("overflow", 0.01),
    "trap": Noise("trap", 0.3),
}
"""tokens: the whole batch is random; targets: those of a batch are permuted over all its positions; bursts: the
same, in many batches in a row; tensor: the gradient of one tensor, another one each time, is multiplied; spike: all
gradients are multiplied; garbage: all gradients are noise of variance 1; overflow: in the gradient of every tensor the
elements beyond half of its largest one become infinite, as in float16 with too large a scale of the loss; trap: a
second task takes turns with the first, the same text with tokens renamed, and its loss is multiplied: none of its
batches is bad."""
BURST = 20  # batches in a row
FACTOR = 1000.0
SECOND = 10.0
"""By which the loss of a trap's second task is multiplied."""


class Course(NamedTuple):
    """The tables of a run, on its device: their first dimension is the step."""

    inputs: Tensor  # steps, batch, context
    targets: Tensor
    bad: Tensor
    second: Tensor | None = None  # which batches are of a trap's second task
    weights: Tensor | None = None  # of losses
    factors: Tensor | None = None  # of gradients: steps by tensors, or by one column for all of them
    garbage: Tensor | None = None  # rows of all tensors' elements, to be added; the first is 0
    rows: Tensor | None = None  # which of them, of each step
    overflows: bool = False  # in bad steps

    def select_batch(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets of a step; the position is a tensor of one element."""
        return self.inputs.index_select(0, position)[0], self.targets.index_select(0, position)[0]

    def weigh_loss(self, loss: Tensor, position: Tensor) -> Tensor:
        """The loss of a step as it is to be differentiated."""
        return loss if self.weights is None else loss * self.weights.index_select(0, position)[0]

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
        if self.overflows:
            bad = self.bad.index_select(0, position)[0]
            for gradient in grads:
                size = gradient.abs()
                gradient.div_(((size > 0.5 * size.amax()) & bad).logical_not())  # by 0, which keeps the sign


def choose_steps(noise: Noise, steps: int, seed: int) -> Tensor:
    """Where the noise strikes: its share of the steps, rounded, but one at least; anywhere in the run.

    Of the same kind, a smaller share strikes at some of the steps of a larger one.
    """
    length = BURST if noise.kind == "bursts" else 1
    rows = -(-steps // length)
    struck = torch.zeros(rows, dtype=torch.bool)
    chosen = torch.randperm(rows, generator=_make_generator("steps", noise.kind, seed))
    struck[chosen[: max(round(noise.share * rows), noise.share > 0.0)]] = True
    return struck.repeat_interleave(length)[:steps]


def draw_windows(tokens: Tensor, count: int, batch: int, context: int, generator: torch.Generator) -> Tensor:
    """Pieces of a text, from anywhere in it, with one token more than the context: count, batch, context + 1."""
    starts = torch.randint(len(tokens) - context, (count, batch), generator=generator).to(tokens.device)
    return tokens[starts[..., None] + torch.arange(context + 1, device=tokens.device)]


def rename_tokens(tokens: Tensor, vocabulary: int) -> Tensor:
    """The same text in the words of a trap's second task: another name for each, the same in all runs."""
    names = torch.randperm(vocabulary, generator=_make_generator("names", vocabulary))
    return names.to(tokens.device, tokens.dtype)[tokens.long()]


def draw_course(
    tokens: Tensor,
    vocabulary: int,
    steps: int,
    batch: int,
    context: int,
    noise: Noise,
    seed: int,
    sizes: Sequence[int],
) -> Course:
    """The course of a run, on the device of the tokens; `sizes` are the elements of each parameter tensor."""
    device, kind = tokens.device, noise.kind
    windows = draw_windows(tokens, steps, batch, context, _make_generator("batches", seed))
    struck = choose_steps(noise, steps, seed)
    places, generator = struck.nonzero()[:, 0], _make_generator("corruption", kind, seed)
    if kind == "tokens":
        drawn = torch.randint(vocabulary, (len(places), *windows.shape[1:]), generator=generator)
        windows[places.to(device)] = drawn.to(device, tokens.dtype)
    elif kind == "trap":
        windows[places.to(device)] = rename_tokens(windows[places.to(device)], vocabulary)
    course = Course(windows[..., :-1], windows[..., 1:], struck.to(device))
    if kind in ("targets", "bursts"):
        return course._replace(targets=_permute_targets(course.targets, places, generator))
    if kind == "tensor":
        factors = torch.ones(steps, len(sizes))
        factors[places, torch.randint(len(sizes), (len(places),), generator=generator)] = FACTOR
        return course._replace(factors=factors.to(device))
    if kind == "spike":
        return course._replace(factors=torch.where(course.bad, FACTOR, 1.0)[:, None])
    if kind == "garbage":
        factors, rows = torch.where(course.bad, 0.0, 1.0)[:, None], course.bad.cumsum(0) * course.bad
        return course._replace(factors=factors, garbage=_draw_garbage(course.bad, sum(sizes), seed), rows=rows)
    if kind == "trap":
        weights = torch.where(course.bad, SECOND, 1.0)
        return course._replace(bad=torch.zeros_like(course.bad), second=course.bad, weights=weights)
    return course._replace(overflows=kind == "overflow")


def _permute_targets(targets: Tensor, places: Tensor, generator: torch.Generator) -> Tensor:
    permuted = targets.clone()
    for place in places.tolist():
        order = torch.randperm(targets[place].numel(), generator=generator).to(targets.device)
        permuted[place] = targets[place].flatten()[order].view(targets.shape[1:])
    return permuted


def _draw_garbage(bad: Tensor, elements: int, seed: int) -> Tensor:
    """Nothing, and then noise for each bad step; drawn on the device, as it is too much for the host."""
    generator = torch.Generator(bad.device).manual_seed(_hash("garbage", seed))
    garbage = torch.randn(int(bad.sum()) + 1, elements, generator=generator, device=bad.device)
    garbage[0] = 0.0
    return garbage


def _make_generator(*words: str | int) -> torch.Generator:
    return torch.Generator().manual_seed(_hash(*words))


def _hash(*words: str | int) -> int:
    return int.from_bytes(hashlib.sha256(repr(words).encode()).digest()[:7])
