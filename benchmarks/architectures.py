"""Shapes of well-known models' parameters, from the published architectures: ``python -m benchmarks.architectures``.

Writes shapes/*.json, which the gradients benchmark reads. Order: as the layers come in the forward pass, so that
gradients become ready in reverse.

ResNet-50: He et al. 2015 (arXiv 1512.03385), table 1, stride on the 3x3 convolution, as is usual since. VGG19: Simonyan
and Zisserman 2014 (arXiv 1409.1556), configuration E. EfficientNet-B0: Tan and Le 2019 (arXiv 1905.11946), table 1,
with squeeze-and-excitation to a quarter of the block's input channels.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).with_name("shapes")
Shape = tuple[str, list[int]]


def _conv_norm(name: str, outputs: int, inputs: int, kernel: int) -> Iterator[Shape]:
    yield f"{name}.conv.weight", [outputs, inputs, kernel, kernel]
    yield f"{name}.norm.weight", [outputs]
    yield f"{name}.norm.bias", [outputs]


def _conv_bias(name: str, outputs: int, inputs: int, kernel: int) -> Iterator[Shape]:
    yield f"{name}.weight", [outputs, inputs, kernel, kernel]
    yield f"{name}.bias", [outputs]


def _linear(name: str, outputs: int, inputs: int) -> Iterator[Shape]:
    yield f"{name}.weight", [outputs, inputs]
    yield f"{name}.bias", [outputs]


def resnet50() -> Iterator[Shape]:
    """25,557,032 parameters in 161 tensors."""
    yield from _conv_norm("stem", 64, 3, 7)
    inputs = 64
    for stage, (blocks, width) in enumerate([(3, 64), (4, 128), (6, 256), (3, 512)], start=2):
        for block in range(1, blocks + 1):
            name, outputs = f"conv{stage}_{block}", 4 * width
            yield from _conv_norm(f"{name}.reduce", width, inputs, 1)
            yield from _conv_norm(f"{name}.spatial", width, width, 3)
            yield from _conv_norm(f"{name}.expand", outputs, width, 1)
            if block == 1:
                yield from _conv_norm(f"{name}.shortcut", outputs, inputs, 1)
            inputs = outputs
    yield from _linear("classifier", 1000, inputs)


def vgg19() -> Iterator[Shape]:
    """143,667,240 parameters in 38 tensors."""
    inputs = 3
    for stage, (layers, width) in enumerate([(2, 64), (2, 128), (4, 256), (4, 512), (4, 512)], start=1):
        for layer in range(1, layers + 1):
            yield from _conv_bias(f"conv{stage}_{layer}", width, inputs, 3)
            inputs = width
    yield from _linear("fc6", 4096, inputs * 7 * 7)
    yield from _linear("fc7", 4096, 4096)
    yield from _linear("fc8", 1000, 4096)


def efficientnet_b0() -> Iterator[Shape]:
    """5,288,548 parameters in 213 tensors."""
    yield from _conv_norm("stem", 32, 3, 3)
    inputs = 32
    stages = [
        (1, 1, 3, 16),
        (2, 6, 3, 24),
        (2, 6, 5, 40),
        (3, 6, 3, 80),
        (3, 6, 5, 112),
        (4, 6, 5, 192),
        (1, 6, 3, 320),
    ]
    for stage, (blocks, factor, kernel, outputs) in enumerate(stages, start=2):
        for block in range(1, blocks + 1):
            name, width = f"stage{stage}_{block}", inputs * factor
            if factor > 1:
                yield from _conv_norm(f"{name}.expand", width, inputs, 1)
            yield from _conv_norm(f"{name}.depthwise", width, 1, kernel)
            squeezed = inputs // 4
            yield from _conv_bias(f"{name}.squeeze", squeezed, width, 1)
            yield from _conv_bias(f"{name}.excite", width, squeezed, 1)
            yield from _conv_norm(f"{name}.project", outputs, width, 1)
            inputs = outputs
    yield from _conv_norm("head", 1280, inputs, 1)
    yield from _linear("classifier", 1000, 1280)


MODELS = {"ResNet-50": resnet50, "EfficientNet-B0": efficientnet_b0, "VGG19": vgg19}


def path_of(model: str) -> Path:
    """Return the path of the file of the model's shapes."""
    return FOLDER / f"{model.lower().replace('-', '_')}.json"


def load(model: str) -> list[Shape]:
    """Read names and shapes of the model's parameters from its file."""
    content = json.loads(path_of(model).read_text(encoding="utf-8"))
    return [(name, shape) for name, shape in content["tensors"]]


def parameters(shapes: list[Shape]) -> int:
    """Return the number of elements of all shapes."""
    return sum(math.prod(shape) for _, shape in shapes)


def render(model: str) -> str:
    """Return the text of the model's file: one tensor per line."""
    shapes = list(MODELS[model]())
    lines = ",\n".join(f"    {json.dumps([name, shape])}" for name, shape in shapes)
    head = f'  "model": {json.dumps(model)},\n  "parameters": {parameters(shapes)},\n'
    return f'{{\n{head}  "tensors": [\n{lines}\n  ]\n}}\n'


if __name__ == "__main__":
    for model in MODELS:
        path_of(model).write_text(render(model), encoding="utf-8")
