"""Keras on torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from horocache.torch.adapter import collectives
from horocache.torch.compression import Compression

from horocache import torch as functions
from horocache.gradient_lists import reduce_list
from horocache.training import GradientOptions

__all__ = ["Compression", "functions", "prepare", "reduce_gradients"]


def prepare() -> None:
    """Nothing has to be done."""


def reduce_gradients(
    gradients: Sequence[Any], variables: Sequence[Any], options: GradientOptions, prefix: str
) -> list[Any]:
    """The gradients of Keras variables, reduced over the ranks; None stays."""
    return reduce_list(collectives, gradients, variables, options, prefix)
