"""OLMo-core's SkipStepAdamW, from its description: AdamW that leaves steps out whose loss or norm is too unusual."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from adaterm_bench.arena.arm import Observed, Rate
from adaterm_bench.arena.peers import list_stepped


class SkipStepAdamW(torch.optim.Optimizer):
    """AdamW, clipped, that skips a step if loss or gradient norm is `sigmas` standard deviations above the mean.

    Both are compared with the `window` steps before, skipped ones included, once there are half as many with this one;
    the norm is that before clipping. To skip is to multiply decay, new parts of averages, and the step by 0, as there:
    a gradient that is not finite is not stopped by that. All is on the device, and nothing waits for it.
    """

    def __init__(
        self,
        params: list[Tensor],
        lr: Rate = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        window: int = 128,
        sigmas: float = 6.0,
        max_norm: float = 1.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self.window, self.sigmas, self.max_norm = window, sigmas, max_norm
        self.loss: Tensor | None = None
        self.observed: Observed | None = None

    def inform(self, loss: Tensor, bad: Tensor) -> None:
        """Take the loss of the batch."""
        self.loss = loss.detach()

    def observe(self) -> Observed:
        """Of the last step: the larger z-score of loss and norm, and 1 or 0."""
        assert self.observed is not None
        return self.observed

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Judge the batch, of which `inform` has told the loss, and step or not."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self.loss is None:
            raise RuntimeError("SkipStepAdamW judges by the loss, too: call inform before each step")
        norm = clip_grad_norm_(list_stepped(self), self.max_norm)
        shared = self._find_shared_state()
        self.observed = self._judge(torch.stack([self.loss.to(norm), norm]).to(shared["past"]), shared)
        self.loss = None
        for group in self.param_groups:
            self._move(group, self.observed.trust, shared["steps"])
        shared["steps"] += self.observed.trust
        return loss

    def _find_shared_state(self) -> dict[str, Any]:
        """What all tensors share, in the state of the first: past losses and norms, how many, and steps taken."""
        first = self.param_groups[0]["params"][0]
        shared: dict[str, Any] = self.state[first]
        if "past" not in shared:
            shared["past"] = torch.zeros(2, self.window, device=first.device)
            shared["seen"] = torch.zeros(1, device=first.device)
            shared["steps"] = torch.zeros((), device=first.device)
        return shared

    def _judge(self, values: Tensor, shared: dict[str, Any]) -> Observed:
        """Compare loss and norm with those before, then note them in the place of the oldest."""
        past, seen = shared["past"], shared["seen"]
        known = torch.arange(self.window, device=past.device) < seen
        count = seen.clamp(2.0, self.window)
        mean = torch.where(known, past, 0.0).sum(1) / count
        variance = torch.where(known, (past - mean[:, None]).square(), 0.0).sum(1) / (count - 1.0)
        excess, std = values - mean, variance.sqrt()
        judged = (seen + 1.0 >= max(2, self.window // 2))[0]
        usual = (excess <= self.sigmas * std).all() | ~judged
        past.index_copy_(1, seen.remainder(self.window).long(), values[:, None])
        seen += 1.0
        return Observed(torch.where(judged, (excess / std).max(), 0.0), usual.to(values.dtype))

    def _move(self, group: dict[str, Any], factor: Tensor, steps: Tensor) -> None:
        """AdamW's step, multiplied by the factor; `steps` is how many were taken before."""
        params = [parameter for parameter in group["params"] if parameter.grad is not None]
        for parameter in params:
            if "exp_avg" not in self.state[parameter]:
                self.state[parameter]["exp_avg"] = torch.zeros_like(parameter)
                self.state[parameter]["exp_avg_sq"] = torch.zeros_like(parameter)
        grads = [parameter.grad for parameter in params]
        means, squares = ([self.state[parameter][name] for parameter in params] for name in ("exp_avg", "exp_avg_sq"))
        for averages, values, beta in (
            (means, grads, group["betas"][0]),
            (squares, torch._foreach_mul(grads, grads), group["betas"][1]),
        ):
            rate = factor * (1.0 - beta)
            torch._foreach_mul_(averages, 1.0 - rate)
            torch._foreach_add_(averages, torch._foreach_mul(values, rate))
        corrections = [1.0 - beta ** (steps + 1.0) for beta in group["betas"]]
        updates = torch._foreach_sqrt(squares)
        torch._foreach_div_(updates, corrections[1].sqrt())
        torch._foreach_add_(updates, group["eps"])
        updates = torch._foreach_div(means, updates)
        torch._foreach_mul_(updates, -factor * group["lr"] / corrections[0])
        torch._foreach_mul_(params, 1.0 - factor * group["lr"] * group["weight_decay"])
        torch._foreach_add_(params, updates)
