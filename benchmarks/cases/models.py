"""Two small models to train: one of many small tensors, one of fewer, larger tensors with more arithmetic."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def mlp(layers: int = 150, width: int = 64, inputs: int = 64, classes: int = 10) -> nn.Module:
    """A deep perceptron of ``2 * layers`` tensors: 300 by default."""
    modules: list[nn.Module] = [nn.Linear(inputs, width), nn.ReLU()]
    for _ in range(layers - 2):
        modules += [Residual(width)]
    modules.append(nn.Linear(width, classes))
    return nn.Sequential(*modules)


class Residual(nn.Module):
    """One hidden layer with a shortcut, without which 150 layers would not train."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        nn.init.normal_(self.linear.weight, std=0.1 / width)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.relu(self.linear(x))


def _norm(channels: int) -> nn.Module:
    # No running averages: DistributedDataParallel would broadcast them, which DistributedOptimizer does not do.
    return nn.BatchNorm2d(channels, track_running_stats=False)


class _Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = _norm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = _norm(outputs)
        changed = stride != 1 or inputs != outputs
        self.shortcut: nn.Module = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if changed else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


def cnn(classes: int = 10) -> nn.Module:
    """A residual network of 20 layers for 32x32 images: 61 tensors."""
    modules: list[nn.Module] = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), _norm(16), nn.ReLU()]
    inputs = 16
    for width in (16, 32, 64):
        for block in range(3):
            modules.append(_Block(inputs, width, 2 if block == 0 and width > 16 else 1))
            inputs = width
    modules += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes)]
    return nn.Sequential(*modules)
