"""The rules of clipping and skipping that arms of the arena follow, from papers and descriptions, in plain numbers.

`treat` does to gradients what a rule does, and returns None to leave the step out; `signal` is what it judged by.
"""

from collections import deque
from math import inf, sqrt
from statistics import mean, stdev

import torch


def find_norm(grads):
    return sqrt(sum(float(gradient.square().sum()) for gradient in grads))


def clip(grads, most):
    return [gradient * min(1.0, most / find_norm(grads)) for gradient in grads]


class Clipped:
    def treat(self, step, grads, loss, bad):
        self.signal = find_norm(grads)
        return clip(grads, 1.0)


class Oracle:
    def treat(self, step, grads, loss, bad):
        self.signal = float(bad)
        return None if bad else clip(grads, 1.0)


class SkipStep:
    def __init__(self):
        self.past = deque(maxlen=128)

    def treat(self, step, grads, loss, bad):
        now, past = (loss, find_norm(grads)), list(zip(*self.past, strict=True))
        self.past.append(now)
        self.signal = 0.0
        if len(self.past) >= 64:
            self.signal = max((value - mean(known)) / stdev(known) for value, known in zip(now, past, strict=True))
        return None if self.signal > 6.0 else clip(grads, 1.0)


class ZClip:
    def __init__(self, most):
        self.most, self.early, self.mean = most, [], None

    def treat(self, step, grads, loss, bad):
        norm = clipped = find_norm(grads)
        self.signal = 0.0
        if self.mean is None:
            self.early.append(norm)
            if len(self.early) == 25:
                self.mean = mean(self.early)
                self.variance = mean((value - self.mean) ** 2 for value in self.early)
            return clip(grads, self.most)
        self.signal = (norm - self.mean) / sqrt(self.variance)
        if self.signal > 2.5:
            clipped = self.mean + 2.5 * sqrt(self.variance) * 2.5 / self.signal
        self.mean = 0.97 * self.mean + 0.03 * clipped
        self.variance = 0.97 * self.variance + 0.03 * (clipped - self.mean) ** 2
        return clip(grads, min(clipped, self.most))


class AdaGC:
    def __init__(self):
        self.usual = None

    def treat(self, step, grads, loss, bad):
        self.signal = find_norm(grads)
        if step + 1 < 100:
            clipped = clip(grads, 1.0)
            norms = [find_norm([gradient]) for gradient in clipped]
            self.usual = norms if self.usual is None else [min(pair) for pair in zip(self.usual, norms, strict=True)]
            return clipped
        clipped = [clip([gradient], 1.05 * usual)[0] for gradient, usual in zip(grads, self.usual, strict=True)]
        norms = [find_norm([gradient]) for gradient in clipped]
        self.usual = [0.98 * usual + 0.02 * norm for usual, norm in zip(self.usual, norms, strict=True)]
        return clipped


class StableSPAM:
    def __init__(self):
        self.memory = [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]  # largest element, norm and its square

    def treat(self, step, grads, loss, bad):
        self.signal = find_norm(grads)
        return [self.treat_tensor(step + 1, *pair) for pair in zip(grads, self.memory, strict=True)]

    def treat_tensor(self, count, gradient, memory):
        largest = float(gradient.abs().max())
        memory[0] = 0.999 * memory[0] + 0.001 * largest
        bound = memory[0] / (1 - 0.999**count)
        gradient = torch.where(gradient.abs() > bound, gradient / largest * bound, gradient)
        norm = find_norm([gradient])
        memory[1] = 0.7 * memory[1] + 0.3 * norm
        memory[2] = 0.9 * memory[2] + 0.1 * norm**2
        return gradient / norm * memory[1] / (1 - 0.7**count) / sqrt(memory[2] / (1 - 0.9**count))


RULES = {
    "AdamW (clipped)": Clipped,
    "SkipStepAdamW": SkipStep,
    "ZClip": lambda: ZClip(1.0),
    "ZClip (alone)": lambda: ZClip(inf),
    "AdaGC": AdaGC,
    "Stable-SPAM": StableSPAM,
    "Oracle": Oracle,
}
"""By the name of the arm that does the same before AdamW."""


class AdamW:
    """One step after the other on a list of tensors."""

    def __init__(self, params, lr, betas, weight_decay):
        self.params, self.lr, self.betas, self.weight_decay = list(params), lr, betas, weight_decay
        self.means, self.squares, self.count = [0.0] * len(self.params), [0.0] * len(self.params), 0

    def step(self, grads):
        self.count += 1
        (beta1, beta2), lr = self.betas, self.lr
        for index, gradient in enumerate(grads):
            self.means[index] = beta1 * self.means[index] + (1 - beta1) * gradient
            self.squares[index] = beta2 * self.squares[index] + (1 - beta2) * gradient**2
            mean, square = self.means[index] / (1 - beta1**self.count), self.squares[index] / (1 - beta2**self.count)
            kept = (1 - lr * self.weight_decay) * self.params[index]
            self.params[index] = kept - lr * mean / (square.sqrt() + 1e-8)
