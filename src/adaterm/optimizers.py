"""The optimizers: each a rule with its options."""

from collections.abc import Mapping
from math import nan
from typing import Any, Literal, Unpack

import torch
from torch.optim.optimizer import ParamsT

from adaterm.checks import require
from adaterm.equations import BatchStatistics
from adaterm.optimizer import RobustOptimizer
from adaterm.options import Common, Modes, Number
from adaterm.rules import (
    ADABELIEF,
    ADATERM,
    AT_ADABELIEF,
    AT_ADAM,
    ROBUST_ADAM,
    T_ADABELIEF,
    T_ADAM,
    AdaTermRule,
    RobustAdamRule,
    Rule,
    TRule,
)


class AdaTerm(RobustOptimizer, template=ADATERM):
    """AdaTerm (Ilboudo, Kobayashi and Matsubara): Adam for gradients that follow a Student's t-distribution.

    Mean, scale and degrees of freedom of each tensor's gradients are estimated online. The further a gradient lies from
    what they lead to expect, the less it is trusted. For a tensor of d elements:

        s = (g - m)^2,  D = sum(s / v) / d,  trust = dof / (dof + D)
        m += (1 - beta) trust (g - m)
        v += (1 - beta) trust (s + max(eps^2, (s - D v) / dof) - v)
        parameter -= lr m / sqrt(v) / sqrt(1 - beta^t)

    The dof grow while distances are small, and shrink when one is large.

    Args:
        params: parameters, named parameters or parameter groups, as for every torch optimizer.
        lr: step size, a number or a 1-element tensor.
        beta: decay of all moving averages, for a gradient that is fully trusted.
        eps: its square is the least scale; also the least excess of the degrees of freedom over `min_dof`.
        weight_decay: L2 decay, added to the gradient, unless `decoupled_weight_decay`.
        min_dof: least degrees of freedom, per dimension: the smaller, the more robust. inf switches robustness off.
        init_dof: their initial value; None is `min_dof + eps`.
        adaptive_dof: whether they adapt to the noise.
        uncentered: divide by the root of scale + mean^2, as Adam does: smaller steps.
        adaptive_bias_correction: correct for what the averages really took in, not for the number of steps.
        scale_update: "projected", or "analytic" for the paper's AdaTerm2.
        init_scale: "eps" for the paper's slow start, or "gradient" to begin with the first gradient's mean square.
        decoupled_weight_decay: decay the parameters themselves, as AdamW does.
        maximize: ascend.
        stochastic_rounding: round bfloat16 parameters up or down by chance, so that updates too small for plain
            rounding are not lost. It does not touch other precisions, nor the state.
        foreach: run over lists of tensors; None does so on an accelerator, as in torch.
        fused: run in fused kernels: Triton's on a GPU, Numba's on a CPU. None chooses them where available.
        capturable: keep the step count on the device, so that a CUDA graph can capture the step.
        differentiable: let autograd through the step, which then needs parameters that are not leaves.

    Examples:
        >>> import torch
        >>> from adaterm import AdaTerm
        >>> model = torch.nn.Linear(8, 1)
        >>> optimizer = AdaTerm(model.named_parameters(), lr=1e-3, init_scale="gradient")
        >>> model(torch.ones(16, 8)).square().mean().backward()
        >>> optimizer.step()
        >>> [round(float(seen.trust), 1) for seen in optimizer.statistics().values()]
        [0.5, 0.5]
    """

    def __init__(
        self,
        params: ParamsT,
        lr: Number = 1e-3,
        beta: float = 0.9,
        eps: float = 1e-5,
        weight_decay: float = 0.0,
        *,
        min_dof: float = 1.0,
        init_dof: float | None = None,
        adaptive_dof: bool = True,
        uncentered: bool = False,
        adaptive_bias_correction: bool = False,
        scale_update: Literal["projected", "analytic"] = "projected",
        init_scale: Literal["eps", "gradient"] = "eps",
        decoupled_weight_decay: bool = False,
        maximize: bool = False,
        stochastic_rounding: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        rule = AdaTermRule(
            beta, eps, min_dof, init_dof, adaptive_dof, uncentered, adaptive_bias_correction, scale_update, init_scale
        )
        modes = (foreach, fused, capturable, differentiable)
        common = Common(lr, weight_decay, decoupled_weight_decay, maximize, stochastic_rounding, *modes)
        super().__init__(params, rule, common)


class TAdam(RobustOptimizer, template=T_ADAM, fixed=("belief", "beta_dof")):
    """t-Adam (Ilboudo et al., 2020): Adam whose mean is a t-momentum with `dof` degrees of freedom for each dimension.

    `as_published` leaves the sum of weights at its initial value, as the authors' released code does. The other options
    are those of `torch.optim.Adam` and `AdaTerm`.

    Examples:
        >>> import torch
        >>> from adaterm import TAdam
        >>> model = torch.nn.Linear(8, 1)
        >>> optimizer = TAdam(model.parameters(), lr=1e-3, dof=1.0)
        >>> model(torch.ones(16, 8)).square().mean().backward()
        >>> optimizer.step()
    """

    def __init__(
        self,
        params: ParamsT,
        lr: Number = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        dof: float = 1.0,
        as_published: bool = False,
        **modes: Unpack[Modes],
    ) -> None:
        super().__init__(
            params, TRule(False, betas, eps, dof, as_published=as_published), Common(lr, weight_decay, **modes)
        )


class AtAdam(RobustOptimizer, template=AT_ADAM, fixed=("belief",)):
    """At-Adam (Ilboudo et al., 2021): t-Adam that estimates its degrees of freedom, beginning at `dof`.

    `beta_dof` is the decay of that estimate. `as_published` keeps only mean and scale from step to step, as the
    authors' released code does: the degrees of freedom then follow only the last gradient.

    Examples:
        >>> import torch
        >>> from adaterm import AtAdam
        >>> model = torch.nn.Linear(8, 1)
        >>> optimizer = AtAdam(model.parameters(), lr=1e-3, beta_dof=0.999)
        >>> model(torch.ones(16, 8)).square().mean().backward()
        >>> optimizer.step()
    """

    def __init__(
        self,
        params: ParamsT,
        lr: Number = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        dof: float = 1.0,
        beta_dof: float = 0.999,
        as_published: bool = False,
        **modes: Unpack[Modes],
    ) -> None:
        super().__init__(
            params, TRule(False, betas, eps, dof, beta_dof, as_published), Common(lr, weight_decay, **modes)
        )


class TAdaBelief(RobustOptimizer, template=T_ADABELIEF, fixed=("belief", "beta_dof")):
    """t-AdaBelief: the t-momentum of `TAdam` over AdaBelief.

    Examples:
        >>> import torch
        >>> from adaterm import TAdaBelief
        >>> model = torch.nn.Linear(8, 1)
        >>> optimizer = TAdaBelief(model.parameters(), lr=1e-3)
        >>> model(torch.ones(16, 8)).square().mean().backward()
        >>> optimizer.step()
    """

    def __init__(
        self,
        params: ParamsT,
        lr: Number = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-16,
        weight_decay: float = 0.0,
        *,
        dof: float = 1.0,
        as_published: bool = False,
        **modes: Unpack[Modes],
    ) -> None:
        super().__init__(
            params, TRule(True, betas, eps, dof, as_published=as_published), Common(lr, weight_decay, **modes)
        )


class AtAdaBelief(RobustOptimizer, template=AT_ADABELIEF, fixed=("belief",)):
    """At-AdaBelief: the At-momentum of `AtAdam` over AdaBelief.

    Examples:
        >>> import torch
        >>> from adaterm import AtAdaBelief
        >>> model = torch.nn.Linear(8, 1)
        >>> optimizer = AtAdaBelief(model.parameters(), lr=1e-3)
        >>> model(torch.ones(16, 8)).square().mean().backward()
        >>> optimizer.step()
    """

    def __init__(
        self,
        params: ParamsT,
        lr: Number = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-16,
        weight_decay: float = 0.0,
        *,
        dof: float = 1.0,
        beta_dof: float = 0.999,
        as_published: bool = False,
        **modes: Unpack[Modes],
    ) -> None:
        super().__init__(
            params, TRule(True, betas, eps, dof, beta_dof, as_published), Common(lr, weight_decay, **modes)
        )


class AdaBelief(RobustOptimizer, template=ADABELIEF, fixed=("belief", "dof", "beta_dof", "as_published")):
    """AdaBelief (Zhuang et al., 2020): Adam whose scale is the gradient's variance around its mean; not robust.

    Examples:
        >>> import torch
        >>> from adaterm import AdaBelief
        >>> model = torch.nn.Linear(8, 1)
        >>> optimizer = AdaBelief(model.parameters(), lr=1e-3)
        >>> model(torch.ones(16, 8)).square().mean().backward()
        >>> optimizer.step()
    """

    def __init__(
        self,
        params: ParamsT,
        lr: Number = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-16,
        weight_decay: float = 0.0,
        **modes: Unpack[Modes],
    ) -> None:
        super().__init__(params, TRule(True, betas, eps), Common(lr, weight_decay, **modes))


class RobustAdamW(RobustOptimizer, template=ROBUST_ADAM):
    """AdamW that notices aberrant batches.

    It acts almost like AdamW while gradients are ordinary, and leaves out batches whose gradients are not. Each
    tensor's own recent past tells what is ordinary. The distance of a gradient from its mean, in units of its scale, is
    compared with the median of the last ones: the larger it is, the less the tensor weighs and moves. The mean
    log-distance of all tensors is the level of the batch. If it lies far above the usual one, the batch is excluded:
    averages, decay and parameters stay as they are. The documentation's page on RobustAdamW has the equations, advice
    and limits.

    Args:
        params: parameters, named parameters or parameter groups, as for every torch optimizer.
        lr: step size, a number or a 1-element tensor.
        betas: decay of the averages of gradients and of their squares.
        eps: added to the denominator.
        weight_decay: decoupled decay, as in AdamW.
        amsgrad: must be False; it is here for AdamW's signature.
        dof: degrees of freedom of a tensor's weights: the smaller, the more a distant gradient is toned down. inf
            switches the weights off.
        window: how many of the last steps tell what is usual. Before there are so many, no batch is excluded unless
            none of its gradients is finite. The same in all groups.
        threshold: z-score above which a batch is mostly excluded. inf excludes none.
        minority: if at least this share of the batches of about four windows is near the threshold, or beyond, they
            are a kind of their own: they are trusted, with gradients scaled down to nearly the usual size. That takes
            two windows from the start.
        max_norm: clip the norm of all gradients together in the step, as `clip_grad_norm_` would: a number, or "auto"
            for the median of the last norms. Do not clip before the step: batches are judged by what that hides.
        maximize: ascend.
        foreach: run over lists of tensors; None does so on an accelerator, as in torch.
        capturable: keep the step count on the device, so that a CUDA graph can capture the step.
        differentiable: let autograd through the step, which then needs parameters that are not leaves.
        fused: run one kernel over all tensors: Triton's on a GPU, Numba's on a CPU. None chooses them where available.
        stochastic_rounding: round bfloat16 parameters up or down by chance, so that updates too small for plain
            rounding are not lost. It does not touch other precisions, nor the state.

    Examples:
        >>> import torch
        >>> from adaterm import RobustAdamW
        >>> model = torch.nn.Linear(8, 1)
        >>> optimizer = RobustAdamW(model.named_parameters(), lr=1e-3, max_norm=1.0)
        >>> model(torch.ones(16, 8)).square().mean().backward()
        >>> optimizer.step()
        >>> optimizer.batch_statistics().trust  # too little is known to distrust a batch
        tensor(1.)
    """

    def __init__(
        self,
        params: ParamsT,
        lr: Number = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        dof: float = 3.0,
        window: int = 100,
        threshold: float = 3.0,
        minority: float = 0.25,
        max_norm: float | Literal["auto"] | None = None,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        stochastic_rounding: bool = False,
    ) -> None:
        allowed = "False: it never forgets the largest gradients, so one bad batch would slow all later steps"
        require(not amsgrad, "amsgrad", amsgrad, allowed)
        rule = RobustAdamRule(betas, eps, dof, window, threshold, minority, max_norm)
        modes = (foreach, fused, capturable, differentiable)
        super().__init__(params, rule, Common(lr, weight_decay, True, maximize, stochastic_rounding, *modes))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, with options of its own if it names any, and the window of the others."""
        if isinstance(param_group, dict) and self.param_groups:
            param_group.setdefault("window", self.param_groups[0]["window"])
        super().add_param_group(param_group)

    def _check_options(self, group: Mapping[str, Any]) -> tuple[Rule, Common]:
        rule, common = super()._check_options(group)
        assert isinstance(rule, RobustAdamRule)
        decoupled = common.decoupled_weight_decay
        require(decoupled, "decoupled_weight_decay", decoupled, "True: use AdaTerm for L2 decay")
        for other in self.param_groups:
            if other.get("window", rule.window) != rule.window:
                raise ValueError(
                    f"window={other['window']} and window={rule.window} are not possible in one optimizer: its groups "
                    "are judged together, so window must be the same in all. Pass it once, as a constructor argument"
                )
        return rule, common

    def batch_statistics(self) -> BatchStatistics:
        """Level, z-score and trust of the last step's batch, as tensors on the device.

        They are the numbers that the step computed anyway: nothing waits for a device until you read them. The trust is
        that of the first group, if thresholds differ. All are NaN before the first step, and if GradScaler skipped it.
        """
        verdict = self._memory.verdict
        return BatchStatistics(*(torch.full((3,), nan) if verdict is None else verdict[:3].clone()).unbind())
