"""Keras on JAX: a compiled step sends all of its gradients to the host in one call and gets them back reduced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import horocache.jax as functions
from horocache.jax.adapter import collectives
from horocache.jax.compression import Compression
from horocache.jax.functions import call_on_host

from horocache.data_parallel.options import GradientOptions
from horocache.data_parallel.reduce_gradients import reduce_list

__all__ = ["Compression", "functions", "prepare", "reduce_gradients"]


def prepare(distributed: type) -> None:
    """Do nothing: Keras on JAX needs no preparation."""


def reduce_gradients(
    gradients: Sequence[Any], variables: Sequence[Any], options: GradientOptions, prefix: str
) -> list[Any]:
    """Return the gradients of Keras variables, reduced over the ranks; None stays None."""
    if not options.takes_part:
        return list(gradients)
    present = [number for number, gradient in enumerate(gradients) if gradient is not None]

    def reduce(arrays: list[Any], names: str) -> list[Any]:
        every: list[Any] = [None] * len(gradients)
        for number, array in zip(present, arrays, strict=True):
            every[number] = array
        reduced = reduce_list(collectives, every, variables, options, names + prefix)
        return [reduced[number] for number in present]

    result: list[Any] = list(gradients)
    arrays = [gradients[number] for number in present]
    for number, each in zip(present, call_on_host("the optimizer's step", reduce, arrays, arrays), strict=True):
        result[number] = each
    return result
