"""The published methods, transcribed line by line in NumPy for one tensor: what the engines are held against."""

from math import inf, log, sqrt

import numpy as np
from scipy.special import polygamma

TINY = float(np.finfo(np.float32).tiny)


class AdaTerm:
    def __init__(self, lr=1e-3, beta=0.9, eps=1e-5, weight_decay=0.0, min_dof=1.0, init_dof=None, adaptive_dof=True,
                 uncentered=False, adaptive_bias_correction=False, scale_update="projected", init_scale="eps",
                 decoupled_weight_decay=False, maximize=False):  # fmt: skip
        self.__dict__ |= {key: value for key, value in locals().items() if key != "self"}
        self.t, self.m, self.v, self.c = 0, 0.0, eps**2, 0.0
        self.excess = eps if init_dof is None else max(eps, init_dof - min_dof)

    def step(self, theta, g):
        g = -g if self.maximize else g
        if self.decoupled_weight_decay:
            theta = theta * (1 - self.lr * self.weight_decay)
        else:
            g = g + self.weight_decay * theta
        if self.t == 0 and self.init_scale == "gradient" and np.isfinite(np.mean(g**2)):
            self.v = max(self.eps**2, np.mean(g**2))
        self.t += 1
        robust = self.min_dof < inf
        s = (g - self.m) ** 2
        self.D = np.mean(s / self.v) if robust else np.mean(s)
        excluded = not np.isfinite(self.D)
        if not robust:
            self.trust, self.nu, tau = float(not excluded), inf, 1 - self.beta
        else:
            D, nu = inf if excluded else self.D, self.min_dof + self.excess
            w, w_bar = (nu + 1) / (nu + D), (nu + 1) / nu
            self.trust = w / w_bar
            tau = (1 - self.beta) * self.trust
            if self.adaptive_dof:
                q = w - log(max(w, TINY))
                tau_nu = (1 - self.beta) * q / max(w_bar - log(w_bar), TINY - log(TINY))
                wanted = ((nu + 2) / (nu + 1) + nu) * self.excess / (nu * q) + self.eps
                self.excess = (1 - tau_nu) * self.excess + tau_nu * wanted
            self.nu = self.min_dof + self.excess
        if not excluded:
            if not robust:
                self.v = self.v + tau * (s + self.eps**2 - self.v)
            elif self.scale_update == "projected":
                self.v = self.v + tau * (s + np.maximum(self.eps**2, (s - D * self.v) / nu) - self.v)
            else:
                self.v = self.v + (1 - self.beta) / w_bar * (w * s + self.eps**2 - self.v)
            self.m = self.m + tau * (g - self.m)
            self.c = (1 - tau) * self.c + tau
        c = (self.c or 1.0) if self.adaptive_bias_correction else 1 - self.beta**self.t
        power = self.v + self.m**2 if self.uncentered else self.v
        return theta - self.lr * (self.m / c) / np.sqrt(power / c)

    def state(self):
        return {"excess_dof": self.excess, "bias_correction": self.c}


class TFamily:
    def __init__(self, belief, adaptive=False, lr=1e-3, betas=(0.9, 0.999), eps=None, weight_decay=0.0, dof=1.0,
                 beta_dof=0.999, as_published=False, decoupled_weight_decay=False, maximize=False):  # fmt: skip
        self.__dict__ |= {key: value for key, value in locals().items() if key != "self"}
        self.eps = eps or (1e-16 if belief else 1e-8)
        self.t, self.m, self.v, self.W, self.z, self.var = 0, 0.0, 0.0, betas[0] / (1 - betas[0]), 0.0, None

    def step(self, theta, g):
        g = -g if self.maximize else g
        if self.decoupled_weight_decay:
            theta = theta * (1 - self.lr * self.weight_decay)
        else:
            g = g + self.weight_decay * theta
        (b1, b2), d, eps = self.betas, g.size, self.eps
        psi = float(polygamma(1, d / 2))
        if self.var is None:
            self.var = 2 * (self.dof + 2) / self.dof**2 + psi
        self.t += 1
        robust = self.dof < inf
        self.D = np.sum((g - self.m) ** 2 / (self.v + eps)) if robust else np.mean((g - self.m) ** 2)
        excluded = not np.isfinite(self.D)
        if not robust:
            self.trust, self.nu, r = float(not excluded), inf, 1 - b1
        else:
            D = inf if excluded else self.D
            z, var = self.z, self.var
            if self.adaptive and not excluded:
                delta = log(D + eps) - z
                var = self.beta_dof * (var + (1 - self.beta_dof) * delta**2)
                z = z + (1 - self.beta_dof) * delta
            b = max(var - psi, eps)
            self.nu = d * (1 + sqrt(1 + 4 * b)) / b if self.adaptive else self.dof * d
            w = (self.nu + d) / (self.nu + D)
            self.trust = w / ((self.nu + d) / self.nu)
            r = w / (self.W + w)
            if not self.as_published:
                self.W, self.z, self.var = (2 * b1 - 1) / b1 * self.W + w, z, var
        if not excluded:
            self.m = (1 - r) * self.m + r * g
            if self.belief:
                self.v = b2 * self.v + (1 - b2) * (g - self.m) ** 2 + eps
            else:
                self.v = b2 * self.v + (1 - b2) * g**2
        return theta - self.lr / (1 - b1**self.t) * self.m / (np.sqrt(self.v / (1 - b2**self.t)) + eps)

    def state(self):
        return {"weight_sum": self.W, "log_distance_avg": self.z, "log_distance_var": self.var}


def method(optimizer, options):
    """The transcription of an optimizer's class and options."""
    if optimizer == "AdaTerm":
        return AdaTerm(**options)
    if optimizer == "AdaBelief":
        return TFamily(belief=True, dof=inf, **options)
    return TFamily(belief="Belief" in optimizer, adaptive=optimizer.startswith("At"), **options)
