"""Adam whose scale is forgotten as fast as AdaTerm's, to tell what the decay does from what robustness does.

adaterm-bench run distillation --with benchmarks/short_memory.py --methods "Adam (short memory)" --preset paper ...
"""

import torch

from adaterm_bench.methods import register

register("Adam (short memory)", lambda params, lr: torch.optim.Adam(params, lr, betas=(0.9, 0.9)), elementwise=True)
