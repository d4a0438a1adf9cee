"""The engines: each runs a rule over the tensors of one parameter group, and they alone change state.

An engine is a module with `run(job)`. `reference` follows the equations tensor by tensor and defines what is right;
`foreach` runs the same equations over lists of tensors; `fused` runs them in kernels for a `gpu` or a `cpu`. Each also
has the two halves of a step, `gauge(job)` and `finish(job, totals)`, between which `sharded` lets the ranks meet.
"""

from adaterm.engines import foreach, fused, reference, sharded

__all__ = ["foreach", "fused", "reference", "sharded"]
