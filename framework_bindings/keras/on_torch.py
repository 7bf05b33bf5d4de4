"""Keras on torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from horocache.torch.adapter import collectives
from horocache.torch.compression import Compression

from horocache import torch as functions
from horocache.data_parallel.options import GradientOptions
from horocache.data_parallel.reduce_gradients import reduce_list

__all__ = ["Compression", "functions", "prepare", "reduce_gradients"]


def prepare(distributed: type) -> None:
    """Do nothing: Keras on torch needs no preparation."""


def reduce_gradients(
    gradients: Sequence[Any], variables: Sequence[Any], options: GradientOptions, prefix: str
) -> list[Any]:
    """Return the gradients of Keras variables, reduced over the ranks; None stays None."""
    return reduce_list(collectives, gradients, variables, options, prefix)
