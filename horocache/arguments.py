"""Checks of arguments that know nothing of tensors and frameworks."""

from __future__ import annotations

from numbers import Integral
from typing import Any

from horocache.errors import InvalidArgumentError


def check_backend(backend: Any) -> str:
    """The name of a backend as the core takes it; empty for None, which leaves the choice to the selector."""
    if backend is None:
        return ""
    if not isinstance(backend, str) or not backend:
        raise InvalidArgumentError(f"backend must be the name of a backend, such as 'shm', or None; it is {backend!r}.")
    return backend


def whole_numbers(kind: str, argument: str, values: Any) -> list[int] | None:
    """Plain integers from what a caller gives for each rank: a sequence, an array or a tensor; None stays None.

    Raises:
        InvalidArgumentError: not one-dimensional, empty, or not integers of at most 64 bits. Whether they fit the
            tensors and the ranks is for the core to find out, which tells the other ranks.
    """
    if values is None:
        return None
    shape = getattr(values, "shape", None)
    if shape is not None and len(shape) != 1:
        raise InvalidArgumentError(f"{kind} expects a 1D {argument} tensor, not shape {tuple(shape)}.")
    plain = values.numpy() if not hasattr(values, "tolist") and hasattr(values, "numpy") else values
    plain = plain.tolist() if hasattr(plain, "tolist") else plain
    if not isinstance(plain, (list, tuple, range)) or not all(map(_is_whole, plain)):
        if shape is not None:
            raise InvalidArgumentError(
                f"{kind} expects a {argument} tensor with integer elements, not {values.dtype}: {values!r}."
            )
        raise InvalidArgumentError(f"{kind} expects integers as {argument}, not {values!r}.")
    if not plain:
        raise InvalidArgumentError(f"{kind} expects one integer for each rank as {argument}, not {values!r}.")
    return [int(number) for number in plain]


def _is_whole(number: Any) -> bool:
    return isinstance(number, Integral) and not isinstance(number, bool) and -(2**63) <= int(number) < 2**63
