"""Optimizers of the arena that no package has as they are here: they also say what they made of a batch."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_, get_total_norm

from adaterm import AdaTerm, BatchJudge, LossJudge, RobustAdamW, TAdam
from adaterm.optimizer import RobustOptimizer
from adaterm_bench.arena.arm import Observed, Rate


class Watching(torch.optim.Optimizer):
    """An optimizer that looks at gradients, and may change them, before its step."""

    observed: Observed

    def look(self, params: list[Tensor]) -> Observed:
        """What it makes of the gradients of these parameters."""
        raise NotImplementedError

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Look, then step."""
        loss = None if closure is None else closure()
        with torch.no_grad():
            self.observed = self.look(list_stepped(self))
        super().step()
        return loss

    def observe(self) -> Observed:
        """Of the last step."""
        return self.observed


class NormWatching(Watching):
    """For optimizers that judge gradients by their norms and keep what they found to themselves."""

    def look(self, params: list[Tensor]) -> Observed:
        """The norm of all gradients."""
        norm = get_total_norm([parameter.grad for parameter in params if parameter.grad is not None])
        return Observed(norm, torch.ones_like(norm))


class ClippedAdamW(Watching, torch.optim.AdamW):
    """AdamW after clipping all gradients together to a norm of 1, as language models are trained."""

    def look(self, params: list[Tensor]) -> Observed:
        """Clip; what stands out is the norm before."""
        norm = clip_grad_norm_(params, 1.0)
        return Observed(norm, torch.ones_like(norm))


class OracleAdamW(ClippedAdamW):
    """Clipped AdamW that is told which batches are bad, and does nothing on them: a bound, not a method."""

    def inform(self, loss: Tensor, bad: Tensor) -> None:
        """Take whether the batch is bad."""
        # By this name GradScaler tells fused optimizers to leave a step out, step count included, without waiting.
        self.found_inf = bad.to(torch.float32)

    def look(self, params: list[Tensor]) -> Observed:
        """Clip; what stands out is what it was told."""
        clip_grad_norm_(params, 1.0)
        return Observed(self.found_inf, 1.0 - self.found_inf)


class ZClippedAdamW(Watching, torch.optim.AdamW):
    """AdamW after the package's ZClip, which is to be called with a model before each step."""

    def __init__(self, params: list[Tensor], clipper: Any, **options: Any) -> None:
        super().__init__(params, **options)
        self.clipper = clipper

    def look(self, params: list[Tensor]) -> Observed:
        """Clip; trust is what the z-score leaves of the norm: a fixed bound beside it judges nothing."""
        clipper, zscore, trust = self.clipper, 0.0, 1.0
        usual = (clipper.mean, clipper.var**0.5) if clipper.initialized else None
        norm = clipper.step(SimpleNamespace(parameters=lambda: iter(params), modules=lambda: ()))
        if usual is not None:
            mean, std = usual
            zscore = (norm - mean) / (std + clipper.eps)
            if zscore > clipper.z_thresh:
                trust = min(1.0, (mean + clipper.z_thresh**2 * std / zscore) / norm)
        return Observed(*torch.tensor([zscore, trust], device=params[0].device).unbind())


class MuonWithAdamW(torch.optim.Optimizer):
    """Muon for the matrices of hidden layers, AdamW for all other parameters.

    Muon's steps are scaled to be as large as AdamW's usually are, so that one learning rate serves both.
    """

    def __init__(
        self, hidden: list[Tensor], others: list[Tensor], lr: Rate, betas: tuple[float, float], weight_decay: float
    ) -> None:
        muon = torch.optim.Muon(
            hidden,
            lr=lr,  # type: ignore[arg-type]  # a tensor will do, too
            weight_decay=weight_decay,
            adjust_lr_fn="match_rms_adamw",
        )
        adamw = torch.optim.AdamW(others, lr=lr, betas=betas, weight_decay=weight_decay, fused=True)
        self.parts = (muon, adamw)
        super().__init__([group for part in self.parts for group in part.param_groups], {})

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step with both; groups and state are this optimizer's, which may have been loaded since."""
        loss = None if closure is None else closure()
        for part, group in zip(self.parts, self.param_groups, strict=True):
            part.param_groups, part.state = [group], self.state
            part.step()
        return loss


class Judged(torch.optim.Optimizer):
    """An optimizer that leaves out the batches that a judge does not accept."""

    judge: BatchJudge | LossJudge

    def accepts(self) -> bool:
        """Whether to step."""
        raise NotImplementedError

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step, or do not."""
        loss = None if closure is None else closure()
        if self.accepts():
            super().step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Of the optimizer, and of the judge."""
        return {**super().state_dict(), "judge": self.judge.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from such a state."""
        own = dict(state_dict)
        self.judge.load_state_dict(own.pop("judge"))
        super().load_state_dict(own)

    def observe(self) -> Observed:
        """Of the last batch."""
        return _observe_batch(self.judge)


class JudgedMuonWithAdamW(Judged, MuonWithAdamW):
    """Muon and AdamW, whose batches are judged by all gradients."""

    judge: BatchJudge

    def __init__(
        self, hidden: list[Tensor], others: list[Tensor], lr: Rate, betas: tuple[float, float], weight_decay: float
    ) -> None:
        super().__init__(hidden, others, lr, betas, weight_decay)
        self.judge = BatchJudge([*hidden, *others], betas=betas)

    def accepts(self) -> bool:
        """Whether the gradients are ordinary."""
        return self.judge.accepts()


class JudgedByLoss(Judged):
    """An optimizer whose batches are judged by their losses."""

    judge: LossJudge

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.judge = LossJudge()
        self.loss: Tensor | None = None

    def inform(self, loss: Tensor, bad: Tensor) -> None:
        """Take the loss of a batch."""
        self.loss = loss

    def accepts(self) -> bool:
        """Whether the loss is ordinary."""
        if self.loss is None:
            raise RuntimeError("it judges by the loss: inform it of each batch before the step")
        loss, self.loss = self.loss, None
        return self.judge.accepts(loss)


class AdamWJudgedByLoss(JudgedByLoss, ClippedAdamW):
    """Clipped AdamW, whose batches are judged by their losses."""


class MuonJudgedByLoss(JudgedByLoss, MuonWithAdamW):
    """Muon and AdamW, whose batches are judged by their losses."""


class ObservingRobustAdamW(RobustAdamW):
    """RobustAdamW, with what it made of the last batch."""

    def observe(self) -> Observed:
        """Of the last step."""
        return _observe_batch(self)


def _observe_batch(judge: RobustAdamW | LossJudge) -> Observed:
    """What stands out is the z-score of a batch's level, or the level while nothing is usual yet."""
    level, zscore, trust = map(torch.as_tensor, judge.batch_statistics())
    return Observed(torch.where(zscore.isfinite(), zscore, level), trust)


class TrustObserving(RobustOptimizer):
    """For our optimizers that trust tensors, and not batches; what stands out is a lack of trust."""

    def observe(self) -> Observed:
        """The mean trust over all tensors in the last step."""
        _, tables, _ = self.tell_last_step()
        trust = torch.cat([table[1] for table in tables]).mean()
        return Observed(-trust, trust)


class ObservingAdaTerm(TrustObserving, AdaTerm):
    """AdaTerm, with the trust it had."""


class ObservingTAdam(TrustObserving, TAdam):
    """t-Adam, with the trust it had."""


def list_stepped(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """The parameters that have gradients."""
    params = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return [parameter for parameter in params if parameter.grad is not None]
