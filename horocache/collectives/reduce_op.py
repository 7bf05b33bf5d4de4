"""The reduce operations, and the checks of the arguments that choose one."""

from __future__ import annotations

import sys
import warnings

from horocache.errors import InvalidArgumentError, UnsupportedError

# The numbers of the core's wire::ReduceOp; the first six are also Horovod's.
Average = 0
Sum = 1
Adasum = 2
Min = 3
Max = 4
Product = 5
And = 6
Or = 7
Xor = 8
_REDUCE_OPS = {
    Average: "Average",
    Sum: "Sum",
    Adasum: "Adasum",
    Min: "Min",
    Max: "Max",
    Product: "Product",
    And: "And",
    Or: "Or",
    Xor: "Xor",
}
RUNNABLE = frozenset(_REDUCE_OPS) - {Adasum}


def resolve_op(op: int | None, average: bool | None) -> int:
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
    op = Average if op is None else op
    return op if op == Adasum else check_op(op)


def _users_level() -> int:
    """Return the stacklevel of the user's line for a warning in the function that calls this one."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "horocache":
        level, frame = level + 1, frame.f_back
    return level


def check_op(op: int) -> int:
    """Return ``op`` if the core can run it. Raises ValueError or, for Adasum, UnsupportedError."""
    if not isinstance(op, int) or op not in _REDUCE_OPS:
        allowed = ", ".join(f"{name} ({number})" for number, name in _REDUCE_OPS.items())
        raise InvalidArgumentError(f"op={op!r} is no reduce operation; there are {allowed}.")
    if op == Adasum:
        raise UnsupportedError("Adasum is for allreduce and DistributedOptimizer only; use Average or Sum.")
    return op
