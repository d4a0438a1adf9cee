"""Adam whose scale is forgotten as fast as AdaTerm's, to tell what the decay does from what robustness does.

adaterm-bench run distillation --with benchmarks/short_memory.py --methods "Adam (short memory)" --preset paper ...
"""

import torch

from adaterm_bench.methods import register


def adam(params: list[torch.Tensor], lr: float) -> torch.optim.Adam:
    """Steps on a GPU are captured as a graph, which torch's optimizers must be told."""
    return torch.optim.Adam(params, lr, betas=(0.9, 0.9), capturable=params[0].is_cuda)


register("Adam (short memory)", adam, elementwise=True)
