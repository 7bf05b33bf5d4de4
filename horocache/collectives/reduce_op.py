"""The reduce operations, and the checks of the arguments that choose one."""

from __future__ import annotations

import sys
import warnings
from enum import IntEnum
from typing import Any

from horocache.errors import InvalidArgumentError, UnsupportedError


class ReduceOp(IntEnum):
    """How an operation combines the ranks' tensors. The numbers are the core's; the first six are also Horovod's."""

    Average = 0
    Sum = 1
    Adasum = 2
    Min = 3
    Max = 4
    Product = 5
    And = 6
    Or = 7
    Xor = 8

    def __str__(self) -> str:
        return self.name

    def __format__(self, specification: str) -> str:
        if specification and specification[-1] in "bcdnoxXeEfFgG%":
            return int.__format__(self, specification)
        return format(self.name, specification)


Average = ReduceOp.Average
Sum = ReduceOp.Sum
Adasum = ReduceOp.Adasum
Min = ReduceOp.Min
Max = ReduceOp.Max
Product = ReduceOp.Product
And = ReduceOp.And
Or = ReduceOp.Or
Xor = ReduceOp.Xor
_NUMBERS = frozenset(int(op) for op in ReduceOp)


def resolve_op(op: int | None, average: bool | None) -> ReduceOp:
    """Return the reduce operation that the two arguments select; ``average`` is Horovod's older argument.

    Args:
        op: a reduce operation, or None.
        average: True, False or None.

    Raises:
        ValueError: both are given, or ``op`` is not a reduce operation.
    """
    if average is not None:
        if op is not None:
            raise InvalidArgumentError("The op parameter supersedes average. Please provide only one of them.")
        warnings.warn("average is deprecated; use op=Average or op=Sum.", DeprecationWarning, stacklevel=_users_level())
        return Average if average else Sum
    return _known(Average if op is None else op)


def _users_level() -> int:
    """Return the stacklevel of the user's line for a warning in the function that calls this one."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "horocache":
        level, frame = level + 1, frame.f_back
    return level


def check_op(op: int) -> ReduceOp:
    """Return ``op`` if the core can run it. Raises ValueError or, for Adasum, UnsupportedError."""
    known = _known(op)
    if known is Adasum:
        raise UnsupportedError("Adasum is for allreduce and DistributedOptimizer only; use Average or Sum.")
    return known


def _known(op: Any) -> ReduceOp:
    if type(op) is ReduceOp:
        return op
    if not isinstance(op, int) or op not in _NUMBERS:
        allowed = ", ".join(f"{each.name} ({each.value})" for each in ReduceOp)
        raise InvalidArgumentError(f"op={op!r} is not a reduce operation; these are: {allowed}.")
    return ReduceOp(op)
