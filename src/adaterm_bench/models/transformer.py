"""A small decoder-only transformer: learned positions, norms before the layers, and a head that shares no weights."""

from math import sqrt
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional


class Sizes(NamedTuple):
    """What decides the number of parameters."""

    vocabulary: int = 256
    context: int = 256
    width: int = 256
    layers: int = 4
    heads: int = 4


BYTES = Sizes()
"""Of a model of bytes, with 3.3 million parameters."""
WORDS = Sizes(vocabulary=8192)
"""Of a model of words, with 7.4 million parameters."""
LARGE = Sizes(vocabulary=50_000, layers=6)
"""Of a model of more words, with 30 million parameters, most of them in embeddings and head."""


class Block(nn.Module):
    """Causal attention, then a perceptron, each added to what it is given."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.RMSNorm(width, eps=1e-6)
        self.attention = nn.Linear(width, 3 * width, bias=False)  # queries, keys and values
        self.attention_out = nn.Linear(width, width, bias=False)
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Batch, positions and features."""
        batch, length, width = x.shape
        parts = self.attention(self.attention_norm(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind()
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention_out(seen.transpose(1, 2).reshape(batch, length, width))
        out: Tensor = x + self.down(functional.gelu(self.up(self.norm(x))))
        return out


class Transformer(nn.Module):
    """Predicts at every position which token comes next."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.tokens = nn.Embedding(sizes.vocabulary, sizes.width)
        self.positions = nn.Parameter(torch.empty(sizes.context, sizes.width))
        self.blocks = nn.Sequential(*(Block(sizes.width, sizes.heads) for _ in range(sizes.layers)))
        self.norm = nn.RMSNorm(sizes.width, eps=1e-6)
        self.head = nn.Linear(sizes.width, sizes.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next tokens: batch, positions and vocabulary."""
        x = self.tokens(tokens.long()) + self.positions[: tokens.shape[1]]
        out: Tensor = self.head(self.norm(self.blocks(x)))
        return out

    @torch.no_grad()
    def begin(self, seed: int) -> None:
        """Set all weights, in place, to those that the seed decides: the same on every device."""
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 1:  # the gain of a norm
                parameter.fill_(1.0)
                continue
            adds = name.endswith(("attention_out.weight", "down.weight"))  # so that the sum does not grow with depth
            std = 0.02 / sqrt(2 * self.sizes.layers) if adds else 0.02
            parameter.copy_(std * torch.randn(parameter.shape, generator=generator))


def make_transformer(sizes: Sizes, seed: int, device: str | torch.device = "cpu") -> Transformer:
    """A transformer whose initial weights the seed decides, whatever else was drawn before."""
    with torch.random.fork_rng(devices=[]):
        network = Transformer(sizes).to(device)
    network.begin(seed)
    return network


def measure_loss(network: Transformer, inputs: Tensor, targets: Tensor, bf16: bool) -> Tensor:
    """The mean cross entropy, in nats a token; a function of its own, so that a compiler can take it as a whole."""
    with torch.autocast(inputs.device.type, torch.bfloat16, enabled=bf16):
        logits = network(inputs)
    return functional.cross_entropy(logits.float().flatten(0, 1), targets.long().flatten())
