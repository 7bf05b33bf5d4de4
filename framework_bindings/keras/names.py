"""What gradients of Keras variables are called, and which is which."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from horocache.gradient_lists import gradient_names


def names_of(gradients: Sequence[Any], variables: Sequence[Any], prefix: str) -> list[str]:
    """Names that are the same on all ranks; see :func:`horocache.gradient_lists.gradient_names`."""
    kinds = ["" if each is None else f"{each.dtype}{tuple(each.shape)}" for each in gradients]
    return gradient_names(kinds, variables, prefix)


def numbers_of(variables: Sequence[Any]) -> Callable[[Any], int | None]:
    """From a variable to its number in the list."""
    number_of = {id(variable): number for number, variable in enumerate(variables)}
    return lambda variable: number_of.get(id(variable))
