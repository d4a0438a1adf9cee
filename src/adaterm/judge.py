"""RobustAdamW's judgement of batches, for any optimizer."""

from collections.abc import Mapping
from typing import Any

from torch.optim.optimizer import ParamsT

from adaterm.checks import require
from adaterm.optimizers import RobustAdamW
from adaterm.options import Common
from adaterm.rules import Rule


class BatchJudge(RobustAdamW):
    """Says whether a batch is ordinary, for any optimizer, or several; it moves no parameters.

    Ask `accepts()` before each step of the optimizer, and step only if the answer is True: a batch whose gradients are
    far from what is usual is then left out, as RobustAdamW leaves it out. The judge keeps the two averages that
    RobustAdamW keeps, so it takes as much memory as AdamW's state. It judges whole batches, and has no part in the
    steps: tensors have no weights there, and nothing is clipped.

    Args:
        params: what the optimizers move: parameters, named parameters or parameter groups.
        betas: decay of the averages of gradients and of their squares, as AdamW would have them here.
        eps: added to the denominator.
        dof: degrees of freedom of a tensor's weights in the judge's own averages. inf switches the weights off.
        window: how many of the last batches tell what is usual. Before there are so many, every batch is accepted
            unless none of its gradients is finite.
        threshold: z-score above which a batch is not accepted. inf accepts all whose gradients are finite.
        minority: if at least this share of the batches of about four windows is near the threshold, or beyond, they
            are a kind of their own, and accepted.
        foreach: run over lists of tensors; None does so on an accelerator, as in torch.
        capturable: keep the step count on the device.
        fused: run one kernel over all tensors: Triton's on a GPU, Numba's on a CPU. None chooses them where available.

    Examples:
        >>> import torch
        >>> from adaterm import BatchJudge
        >>> model = torch.nn.Linear(8, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        >>> judge = BatchJudge(model.named_parameters())
        >>> model(torch.ones(16, 8)).square().mean().backward()
        >>> if judge.accepts():  # after backward, and before anything clips
        ...     optimizer.step()
    """

    def __init__(
        self,
        params: ParamsT,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        dof: float = 3.0,
        window: int = 100,
        threshold: float = 3.0,
        minority: float = 0.25,
        foreach: bool | None = None,
        capturable: bool = False,
        fused: bool | None = None,
    ) -> None:
        super().__init__(
            params,
            lr=0.0,
            betas=betas,
            eps=eps,
            weight_decay=0.0,
            dof=dof,
            window=window,
            threshold=threshold,
            minority=minority,
            foreach=foreach,
            capturable=capturable,
            fused=fused,
        )

    def _check_options(self, group: Mapping[str, Any]) -> tuple[Rule, Common]:
        checked = super()._check_options(group)
        for name in ("lr", "weight_decay"):
            require(float(group[name]) == 0.0, name, group[name], "0: a BatchJudge moves no parameters")
        return checked

    def accepts(self) -> bool:
        """Judge the gradients that are there, and remember what is usual: False if the batch is to be left out.

        Ask once for each step of the optimizer, after backward and before anything clips. The answer is the same on all
        ranks that share parameters, or have the same ones. On a GPU this waits for the answer.
        """
        self.step()
        return not bool(self.batch_statistics().trust < 0.5)  # NaN, and accepted, where there is nothing to judge
