"""The shapes of the models in the benchmark of gradients."""

import math

import pytest

from benchmarks import architectures


@pytest.mark.parametrize(
    ("model", "tensors", "parameters"),
    [("ResNet-50", 161, 25_557_032), ("VGG19", 38, 143_667_240), ("EfficientNet-B0", 213, 5_288_548)],
)
def test_a_model_has_the_published_number_of_parameters(model: str, tensors: int, parameters: int) -> None:
    shapes = architectures.load(model)
    assert len(shapes) == tensors
    assert architectures.parameters(shapes) == parameters
    assert len({name for name, _ in shapes}) == tensors


@pytest.mark.parametrize("model", list(architectures.MODELS))
def test_the_file_of_a_model_is_up_to_date(model: str) -> None:
    assert architectures.path_of(model).read_text(encoding="utf-8") == architectures.render(model)


@pytest.mark.parametrize(("model", "megabytes"), [("ResNet-50", 102), ("VGG19", 574), ("EfficientNet-B0", 21)])
def test_a_model_has_the_published_size_of_gradients(model: str, megabytes: int) -> None:
    size = 4 * sum(math.prod(shape) for _, shape in architectures.load(model))
    assert int(size / 1e6) == megabytes
