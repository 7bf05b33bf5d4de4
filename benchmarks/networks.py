"""Convolutional networks for images of 32 x 32, as lists of blocks of which each gets the output of the one before.

Residual network: He et al. 2015 (arXiv 1512.03385), section 3.3, the network of 18 layers with the first convolution
that is usual for small images: 3 x 3, stride 1, and no pooling after it.

Inception with batch normalization: Ioffe and Szegedy 2015 (arXiv 1502.03167) for the layers; Szegedy et al. 2014 (arXiv
1409.4842) for the blocks, of which a network for small images needs the 1 x 1 and the 3 x 3 branch only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

CLASSES = 10
_RESNET_STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))  # channels and stride of the first of two blocks
_BRANCHES = (  # channels of the 1 x 1 and the 3 x 3 branch; or of the 3 x 3 branch beside a pooling, with stride 2
    *((32, 32), (32, 48), 80),
    *((112, 48), (96, 64), (80, 80), (48, 96), 96),
    *((176, 160), (176, 160)),
)


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> list[Any]:
    import torch

    return [
        torch.nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False),
        torch.nn.BatchNorm2d(outputs),
        torch.nn.ReLU(),
    ]


def _classifier(inputs: int) -> Any:
    import torch

    nn = torch.nn
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, CLASSES))


def _sum_of(main: Any, shortcut: Any) -> Any:
    import torch

    class Residual(torch.nn.Module):
        """The sum of two branches."""

        def __init__(self) -> None:
            super().__init__()
            self.main, self.shortcut = main, shortcut

        def forward(self, x: Any) -> Any:
            """Run both."""
            return torch.relu(self.main(x) + self.shortcut(x))

    return Residual()


def _joined(*branches: Any) -> Any:
    import torch

    class Inception(torch.nn.Module):
        """Branches whose channels are put side by side."""

        def __init__(self) -> None:
            super().__init__()
            self.branches = torch.nn.ModuleList(branches)

        def forward(self, x: Any) -> Any:
            """Run all."""
            return torch.cat([branch(x) for branch in self.branches], 1)

    return Inception()


def resnet18(width: float = 1.0) -> list[Any]:
    """11,173,962 parameters in 10 blocks. ``width`` is a factor of all channels."""
    import torch

    nn = torch.nn
    inputs = max(1, int(64 * width))
    blocks: list[Any] = [nn.Sequential(*_conv(3, inputs, 3))]
    for channels, first_stride in _RESNET_STAGES:
        outputs = max(1, int(channels * width))
        for stride in (first_stride, 1):
            main = nn.Sequential(*_conv(inputs, outputs, 3, stride), *_conv(outputs, outputs, 3)[:-1])
            same = stride == 1 and inputs == outputs
            blocks.append(
                _sum_of(main, nn.Identity() if same else nn.Sequential(*_conv(inputs, outputs, 1, stride)[:-1]))
            )
            inputs = outputs
    return [*blocks, _classifier(inputs)]


def inception_bn(width: float = 1.0) -> list[Any]:
    """1,651,114 parameters in 12 blocks. ``width`` is a factor of all channels."""
    import torch

    nn = torch.nn

    def scaled(channels: int) -> int:
        return max(1, int(channels * width))

    inputs = scaled(96)
    blocks: list[Any] = [nn.Sequential(*_conv(3, inputs, 3))]
    for branch in _BRANCHES:
        if isinstance(branch, tuple):
            one, three = map(scaled, branch)
            blocks.append(_joined(nn.Sequential(*_conv(inputs, one, 1)), nn.Sequential(*_conv(inputs, three, 3))))
            inputs = one + three
        else:
            three = scaled(branch)
            blocks.append(_joined(nn.Sequential(*_conv(inputs, three, 3, 2)), nn.MaxPool2d(3, 2, 1)))
            inputs += three
    return [*blocks, _classifier(inputs)]


NETWORKS: dict[str, Callable[[float], list[Any]]] = {"ResNet-18": resnet18, "Inception-BN": inception_bn}
