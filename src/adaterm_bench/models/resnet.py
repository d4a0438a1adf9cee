"""ResNet-18 (He et al., 2016) for images of 32 by 32: its first convolution is 3 by 3, and no pooling follows it."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class Block(nn.Module):
    """Two convolutions, and a way around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = _make_convolution(inputs, outputs, 3, stride)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = _make_convolution(outputs, outputs, 3, 1)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.around: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.around = nn.Sequential(_make_convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Batch, channels, height and width."""
        inner = functional.relu(self.first_norm(self.first(x)))
        return functional.relu(self.second_norm(self.second(inner)) + self.around(x))


class ResNet18(nn.Module):
    """Four stages of two blocks, each stage twice as wide as the one before."""

    def __init__(self, classes: int, width: int = 64) -> None:
        super().__init__()
        self.stem = nn.Sequential(_make_convolution(3, width, 3, 1), nn.BatchNorm2d(width), nn.ReLU())
        widths = [width, width, 2 * width, 4 * width, 8 * width]
        blocks = []
        for stage in range(4):
            blocks.append(Block(widths[stage], widths[stage + 1], 1 if stage == 0 else 2))
            blocks.append(Block(widths[stage + 1], widths[stage + 1], 1))
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(widths[-1], classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images: batch, colours, height and width."""
        out: Tensor = self.head(self.blocks(self.stem(x)).mean((2, 3)))
        return out


def make_network(seed: int, classes: int, width: int) -> ResNet18:
    """A network whose initial weights the seed decides, whatever else was drawn before."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ResNet18(classes, width)


def _make_convolution(inputs: int, outputs: int, size: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
