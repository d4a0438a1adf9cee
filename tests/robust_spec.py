"""RobustAdamW, transcribed from its equations (docs/robust_adamw.md) in NumPy: slow, in float64.

Tensors are judged together, so there is one object for all groups. λ is a log-distance, ν the dof, w a weight, x the
trust in a batch, z0 the threshold, b the bound; m, v, c1 and c2 are mean, scale and their corrections.
"""

from math import exp, inf, log, nan, sqrt

import numpy as np

DEFAULTS = {
    "lr": 1e-3,
    "betas": (0.9, 0.999),
    "eps": 1e-8,
    "weight_decay": 1e-2,
    "dof": 3.0,
    "window": 100,
    "threshold": 3.0,
    "minority": 0.25,
    "max_norm": None,
    "maximize": False,
}
ENOUGH = 10
"""Values that must be remembered before one is judged by them."""


class Tensor:
    """A parameter tensor and its state."""

    def __init__(self, theta):
        self.theta = np.array(theta, dtype=np.float64)
        self.step, self.m, self.v = 0, np.zeros_like(self.theta), np.zeros_like(self.theta)
        self.c1, self.c2, self.window = 0.0, 0.0, []

    def gauge(self, g, eps):
        """D_e, D_n and λ of a gradient, and what it adds to the global norm; λ is None where there is no history."""
        self.g, self.squares, self.lam = g, np.sum(g**2), None
        self.finite = np.isfinite(self.squares)
        if np.sum(self.v) > 0:
            v_hat = self.v / self.c2
            self.D_e = np.mean((g - self.m) ** 2 / (np.sqrt(v_hat) + eps) ** 2)
            self.D_n = np.sum((g - self.m) ** 2) / np.sum(v_hat)
            self.finite = np.isfinite(self.D_e) and np.isfinite(self.D_n)
            if self.finite:
                self.lam = (log(self.D_e) + log(self.D_n)) / 2 if self.D_e > 0 and self.D_n > 0 else -inf

    def weigh(self, nu, excess):
        """w, from this tensor's own past; a batch of a minority is as far away as its level says."""
        self.w = 1.0 if self.finite else 0.0
        if self.has_level and nu < inf:
            usual = max(0.0, np.median(self.window)) + excess if len(self.window) >= ENOUGH else self.lam
            self.w = (nu + 1) / (nu + np.exp(self.lam - usual))

    @property
    def has_level(self):
        """Whether λ is a number: it is then recorded, and part of the step's level."""
        return self.lam is not None and self.lam > -inf

    def move(self, x, factor, lr, betas, eps, weight_decay):
        self.step += 1
        if not self.finite:
            return
        g, (beta1, beta2) = factor * self.g, betas
        r1, r2 = min(1.0, (1 - beta1) * x * self.w), min(1.0, (1 - beta2) * x * self.w)
        self.m = self.m + r1 * (g - self.m)
        self.v = self.v + r2 * (g**2 - self.v)
        self.c1 += r1 * (1 - self.c1)
        self.c2 += r2 * (1 - self.c2)
        if self.c1 > 0:
            trust = x * min(1.0, self.w)
            self.theta = (1 - lr * trust * weight_decay) * self.theta
            self.theta = self.theta - lr * trust * (self.m / self.c1) / (np.sqrt(self.v / self.c2) + eps)


class RobustAdamW:
    """Groups are dicts with `tensors` (arrays at first) and options, as torch's; what a group lacks is in `options`."""

    def __init__(self, groups, **options):
        self.options, self.groups = DEFAULTS | options, []
        self.levels, self.norms = [], []
        self.far, self.past, self.count = 0.0, 0.0, 0
        for group in groups:
            self.add(group)

    def add(self, group):
        tensors = [Tensor(theta) for theta in group["tensors"]]
        self.groups.append(self.options | group | {"tensors": tensors})

    @property
    def tensors(self):
        return [tensor for group in self.groups for tensor in group["tensors"]]

    def load_adamw(self, states):
        """Go on from the step, m and v of an AdamW's tensors."""
        for group in self.groups:
            for tensor in group["tensors"]:
                tensor.step, tensor.m, tensor.v = states.pop(0)
                tensor.c1, tensor.c2 = (1 - beta**tensor.step for beta in group["betas"])

    def change(self, options):
        """Give the first group other options; the window is that of all."""
        self.groups[0] |= options
        self.options = self.options | {name: options[name] for name in ("window",) if name in options}

    def step(self, gradients):
        """Take a step; one gradient for each tensor of all groups, None where there is none."""
        with np.errstate(all="ignore"):
            stepped = self._gauge(list(gradients))
            self._place([tensor for tensors in stepped for tensor in tensors])
            self._count([group for group, tensors in zip(self.groups, stepped, strict=True) if tensors])
            for group, tensors in zip(self.groups, stepped, strict=True):
                x, excess = self._judge(group)
                factor = self._clip(group, exp(-excess / 2))
                for tensor in tensors:
                    tensor.x = x
                    tensor.weigh(group["dof"], excess)
                    tensor.move(x, factor, *(group[name] for name in ("lr", "betas", "eps", "weight_decay")))
            self._record([tensor for tensors in stepped for tensor in tensors])

    def _gauge(self, gradients):
        """The tensors of each group that have a gradient, gauged."""
        stepped = []
        for group in self.groups:
            stepped.append([])
            for tensor in group["tensors"]:
                g = gradients.pop(0)
                if g is not None:
                    tensor.gauge(np.asarray(-g if group["maximize"] else g, dtype=np.float64), group["eps"])
                    stepped[-1].append(tensor)
        return stepped

    def _place(self, stepped):
        """The level of the step, and its place among the last ones."""
        known = [tensor.lam for tensor in stepped if tensor.has_level]
        self.level = np.mean(known) if known else nan
        self.norm = sqrt(sum(tensor.squares for tensor in stepped if tensor.finite))
        self.zs, self.zscore, self.excess = np.array([]), nan, 0.0
        self.judges = len(self.levels) >= self.options["window"]
        if len(self.levels) >= ENOUGH:
            usual = np.median(self.levels)
            spread = max(0.35, usual - np.quantile(self.levels, 0.159))
            self.zs, self.zscore = (self.levels - usual) / spread, (self.level - usual) / spread
            self.excess = max(0.0, self.level - usual - spread)
        nothing_is_finite = bool(stepped) and not any(tensor.finite for tensor in stepped)
        self.nothing_is_finite = nothing_is_finite

    def _count(self, stepped):
        """How many batches were far away, by the least threshold of all groups; over four windows, then forgotten."""
        if self.judges and not np.isnan(self.zscore):
            before, self.count = self.count, min(self.count + 1, 4 * self.options["window"])
            self.past = self.far * (self.count - 1) / before if before else 0.0
            self.far = self.past + (self.zscore > 0.75 * min(group["threshold"] for group in stepped))
        self.trust = 0.0 if self.nothing_is_finite else self._judge(self.groups[0])[0]

    def _judge(self, group):
        """x for the tensors of a group, and how much further than usual and its spread they may be."""
        z0 = group["threshold"]
        if np.isnan(self.zscore) or not self.judges:
            return 1.0, 0.0
        b, excess = z0, 0.0
        far = self.past + (self.zscore > 0.75 * z0)
        frequent = self.count >= self.options["window"] and far >= group["minority"] * self.count
        if frequent and self.zs.max() + 1.0 > z0:
            b, excess = self.zs.max() + 1.0, self.excess
        if b == inf:
            return 1.0, 0.0
        row = 0
        while row < len(self.zs) and self.zs[-1 - row] > b:
            row += 1
        if row % 8 == 7:
            return 1.0, excess
        exponent = (max(self.zscore, 0.0) ** 2 - b**2) / 2
        return (1 + exp(-(b**2) / 2)) / (1 + exp(exponent)) if exponent < 700 else 0.0, excess

    def _clip(self, group, shrinks):
        """What scales the gradients of a group, after they were gauged; those of a minority are shrunk."""
        max_norm = group["max_norm"]
        if max_norm == "auto":
            max_norm = np.median(self.norms) if len(self.norms) >= ENOUGH else None
        return shrinks if max_norm is None else shrinks * min(1.0, max_norm / (shrinks * self.norm + 1e-6))

    def _record(self, stepped):
        """Remember this step: the last `window` of everything."""
        window = self.options["window"]
        for tensor in stepped:
            if tensor.has_level:
                tensor.window = [*tensor.window, tensor.lam][-window:]
        if not np.isnan(self.level):
            self.levels = [*self.levels, self.level][-window:]
        if any(tensor.finite for tensor in stepped):
            self.norms = [*self.norms, self.norm][-window:]
