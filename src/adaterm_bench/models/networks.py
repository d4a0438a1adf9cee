"""Small networks of many trials at once: batched matrices, one for each trial."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import sqrt

import torch
from torch import Tensor


def make_weights(seeds: Sequence[int], widths: Sequence[int], dtype: torch.dtype, device: str) -> list[Tensor]:
    """Weights and biases as torch's layers begin, the same for a seed whatever else there is."""
    trials = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        made = []
        for inputs, outputs in pairwise(widths):
            for shape in ((inputs, outputs), (1, outputs)):
                draws = torch.rand(shape, generator=generator, dtype=torch.float64)
                made.append((2.0 * draws - 1.0) / sqrt(inputs))
        trials.append(made)
    return [torch.stack(tensors).to(device, dtype).requires_grad_() for tensors in zip(*trials, strict=True)]


def apply_perceptron(params: Sequence[Tensor], inputs: Tensor) -> Tensor:
    """A multi-layer perceptron with ReLU: trials by samples by features."""
    for index in range(0, len(params), 2):
        inputs = torch.baddbmm(params[index + 1], inputs, params[index])
        if index + 2 < len(params):
            inputs = inputs.relu()
    return inputs


def make_repeatable(step: Callable[[], None], changed: Sequence[Tensor]) -> Callable[[], None]:
    """A step that is the same every time: on a GPU a CUDA graph of it, which leaves nothing to the host.

    `changed` are the tensors that a step changes: trying it out must not.
    """
    if not changed[0].is_cuda:
        return step
    torch.cuda.set_device(changed[0].device)  # streams and graphs are those of the current device
    before = [tensor.detach().clone() for tensor in changed]
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    with torch.no_grad():
        for tensor, value in zip(changed, before, strict=True):
            tensor.copy_(value)
    return graph.replay
