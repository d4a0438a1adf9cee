"""RobustAdamW's judgement of batches, for any optimizer."""

from collections.abc import Mapping
from typing import Any

import torch
from torch.optim.optimizer import ParamsT, StateDict

from adaterm.checks import require
from adaterm.engines.agreement import get_local_gradient
from adaterm.optimizers import RobustAdamW
from adaterm.options import Common, warn_user
from adaterm.rules import Rule

_FIXED = {
    **{"lr": 0, "weight_decay": 0, "max_norm": None},
    **dict.fromkeys(("maximize", "differentiable", "stochastic_rounding"), False),
}
"""Options of RobustAdamW that a judge has not, as it moves nothing."""


class BatchJudge(RobustAdamW):
    """Says whether a batch is ordinary, for any optimizer, or several; it moves no parameters.

    Ask `accepts()` before each step of the optimizer, and step only if the answer is True: a batch whose gradients are
    far from what is usual is then left out, as RobustAdamW leaves it out. The judge keeps the two averages that
    RobustAdamW keeps, in as much memory. It judges whole batches, and has no part in the steps: it neither weighs nor
    clips gradients there. So it refuses a batch with any gradient that is not finite.

    Args:
        params: what the optimizers move: parameters, named parameters or parameter groups.
        betas: decay of the averages of gradients and of their squares, as AdamW would have them here.
        eps: added to the denominator.
        dof: degrees of freedom of a tensor's weights in the judge's own averages. inf switches the weights off.
        window: how many of the last batches tell what is usual. Before there are so many, every batch is accepted
            whose gradients are finite.
        threshold: z-score above which a batch is not accepted. inf accepts all whose gradients are finite.
        minority: if at least this share of the batches of about four windows is near the threshold, or beyond, they
            are a kind of their own, and accepted.
        foreach: run over lists of tensors; None does so on an accelerator, as in torch.
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
            fused=fused,
        )

    def _check_options(self, group: Mapping[str, Any]) -> tuple[Rule, Common]:
        checked = super()._check_options(group)
        _refuse_moves(group, "a BatchJudge moves no parameters")
        for name in ("threshold", "minority"):
            for other in self.param_groups:
                allowed = f"{other.get(name)} as in the other groups: a batch gets one answer"
                require(other.get(name, group[name]) == group[name], name, group[name], allowed)
        return checked

    def state_dict(self) -> StateDict:
        """The state, with a mark by which optimizers refuse it: their learning rate would become 0."""
        state_dict = super().state_dict()
        return state_dict | {"param_groups": [group | {"judges": True} for group in state_dict["param_groups"]]}

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Load the state of a judge; that of an optimizer, which moves parameters, is refused."""
        if isinstance(state_dict, Mapping) and "param_groups" in state_dict:
            groups = [{k: v for k, v in group.items() if k != "judges"} for group in state_dict["param_groups"]]
            for group in groups:
                _refuse_moves(group, "this is the state of an optimizer, and not of a BatchJudge")
            state_dict = {**state_dict, "param_groups": groups}
        super().load_state_dict(state_dict)

    def step(self, closure: Any = None) -> Any:
        """A judge takes no steps: this raises, unless torch's checkpoints ask for state, with gradients of 0."""
        params = [parameter for group in self.param_groups for parameter in group["params"]]
        if self.state or any(bool(get_local_gradient(each).any()) for each in params if each.grad is not None):
            raise RuntimeError("a BatchJudge takes no steps: ask judge.accepts(), and step the optimizer if it is True")
        return super().step(closure)

    step.hooked = True  # type: ignore[attr-defined]  # or torch would wrap it, and accepts() would call no hooks

    def accepts(self) -> bool:
        """Judge the gradients that are there, and remember what is usual: False if the batch is to be left out.

        Ask once for each step of the optimizer, after backward and before anything clips. The answer is the same on all
        ranks that share parameters, or have the same ones. On a GPU this waits for the answer.
        """
        super().step()
        _, tables, verdict = self.tell_last_step()
        if verdict is None:
            if all(parameter.grad is None for group in self.param_groups for parameter in group["params"]):
                warn_user("BatchJudge.accepts() found no gradients to judge: ask after backward, and before zero_grad")
            return True
        farthest = torch.stack([table[0].max().to(verdict) for table in tables])  # infinite if a gradient is not finite
        return bool((verdict[2] >= 0.5) & farthest.isfinite().all())


def _refuse_moves(group: Mapping[str, Any], why: str) -> None:
    for name, value in _FIXED.items():
        found = group.get(name, value)
        require(found == value, name, found, f"{value}: {why}")
