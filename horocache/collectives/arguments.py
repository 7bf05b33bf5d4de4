"""Checks of the arguments that collectives have in common: names, process sets, roots, numbers, lists."""

from __future__ import annotations

import math
from numbers import Integral
from typing import Any

from horocache.core import context
from horocache.core.process_set import ProcessSet
from horocache.errors import InvalidArgumentError

Name = str | bytes | None


class FullName(str):
    """A name that the ranks compare as it is: :func:`full_name` does not put the operation before it."""

    __slots__ = ()


def check_backend(backend: Any) -> str:
    """Return a backend's name as the core takes it: None, which lets the selector choose, becomes empty."""
    if backend is None:
        return ""
    if not isinstance(backend, str) or not backend:
        raise InvalidArgumentError(f"backend must be the name of a backend, such as 'shm', or None; it is {backend!r}.")
    return backend


def whole_numbers(kind: str, argument: str, values: Any) -> list[int] | None:
    """Convert one number per rank, in a sequence, an array or a tensor, to plain integers; None stays None.

    Raises:
        InvalidArgumentError: the values are not one-dimensional, empty, or not integers of at most 64 bits. The core
            checks that they fit the tensors and the ranks, because it can inform the other ranks.
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


def full_name(kind: str, name: Name) -> str | bytes | None:
    """Return the name that ranks compare: the operation, a dot, the user's name. None: the core makes a name."""
    if name is None:
        return None
    if isinstance(name, bytes):
        return kind.encode() + b"." + name
    if not isinstance(name, (str, int)):  # the text of other objects may not be the same on all ranks
        raise InvalidArgumentError(f"the name of an operation must be a str, bytes or int, not {name!r}.")
    text = str(name) if isinstance(name, FullName) else f"{kind}.{name}"
    try:
        # A file name, for example, may contain bytes that are not UTF-8; Python keeps them as lone surrogates.
        return text if text.isascii() else text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(f"the name {name!r} cannot be encoded as UTF-8: {error.reason}.") from None


def set_id(process_set: ProcessSet) -> int:
    """Return the number of a registered process set. Raises InvalidArgumentError for any other object."""
    number = process_set.process_set_id if isinstance(process_set, ProcessSet) else None
    if number is None:
        context.current()  # before init() that is the error
        raise InvalidArgumentError(
            f"Process set provided does not exist, or has not been registered: {process_set!r}. Use "
            "global_process_set, or give the set to init(process_sets=[...])."
        )
    return number


def checked_root(kind: str, root_rank: int, process_set: ProcessSet) -> int:
    """Return the root's rank within the set. Raises InvalidArgumentError if the root is not in the set."""
    set_id(process_set)
    ranks = process_set.ranks if process_set.process_set_id else range(context.size())
    if root_rank not in ranks:
        raise InvalidArgumentError(
            f"{kind} received invalid root rank {root_rank} for provided process set, "
            f"which has the ranks {list(ranks)}."
        )
    return ranks.index(root_rank)


def check_number(name: str, value: Any) -> None:
    """Raise InvalidArgumentError unless the core takes ``value`` for a number; ``name`` is the argument's name."""
    try:
        math.fabs(value)  # converts as the core does: accepts any object with __float__, but not text
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise InvalidArgumentError(f"{name} must be a number; it is {value!r}.") from None


def check_scales(scales: tuple[Any, Any]) -> None:
    """Raise InvalidArgumentError unless the factors before and after a reduction are numbers."""
    for name, value in zip(("prescale_factor", "postscale_factor"), scales, strict=True):
        check_number(name, value)


def check_priority(priority: Any) -> None:
    """Raise InvalidArgumentError unless ``priority`` is a whole number of 32 bits."""
    if not isinstance(priority, Integral) or not -(1 << 31) <= int(priority) < 1 << 31:
        raise InvalidArgumentError(f"priority must be a whole number of 32 bits; it is {priority!r}.")


# Errors of the core for an argument that it cannot convert. The conversion may call the argument's own __float__.
REFUSED = (TypeError, OverflowError, ValueError, RuntimeError)


def check_numbers(scales: tuple[Any, Any], priority: Any) -> None:
    """Raise InvalidArgumentError if one of these is invalid. Called after the core has refused an argument."""
    check_scales(scales)
    check_priority(priority)


def check_list(tensors: Any, kind: str) -> None:
    """Raise InvalidArgumentError unless ``tensors`` is a list or tuple with elements; ``kind`` is the operation."""
    if not isinstance(tensors, (list, tuple)) or not tensors:
        raise InvalidArgumentError(f"{kind} needs a list with at least one tensor, not {tensors!r}.")
