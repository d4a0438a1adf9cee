"""The mathematics, written once, as pure functions of arrays.

A step has stages: *gauge* asks how far a gradient lies from what was expected, *weigh* turns sums over a tensor
into rates, *move* applies them elementwise. Every family of methods has the three as functions of one shape:

    <family>_gauge(gradient, mean, scale, scalars, numbers, flags)                  -> sums over the tensor
    <family>_weigh(sums, size, scalars, window, batch, pace, numbers, flags)        -> rates, scalars, note, statistics
    <family>_move(gradient, mean, scale, parameter, rates, numbers, flags)          -> mean, scale, parameter

A family that remembers has a `window` of each tensor's last notes. One that judges whole batches has two more stages,
between gauge and weigh:

    <family>_summarize(sums, size, flags)                                   -> numbers, to be added up over all tensors
    <family>_judge(totals, *history, numbers, flags)                        -> batch, statistics, notes

The history has a window of each of the last batches' notes.

The engines run them on a tensor, on lists of tensors or inside a kernel: through `adaterm.binding.bind` they bring
their own primitives. Sections, algorithms and appendices are the paper's; `docs/paper.md` maps its symbols to the names
used here, and `docs/robust_adamw.md` those of RobustAdamW, which is ours.
"""

from adaterm.equations.adaterm import *  # noqa: F403
from adaterm.equations.primitives import *  # noqa: F403
from adaterm.equations.robust_adam import *  # noqa: F403
from adaterm.equations.t_family import *  # noqa: F403
