"""The reduce operations of mcr_dl, by PyTorch's names."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from horocache.collectives.reduce_op import Adasum, check_op
from horocache.collectives.reduce_op import ReduceOp as CoreOp
from horocache.errors import InvalidArgumentError, UnsupportedError


class ReduceOp(IntEnum):
    """How a reduction combines the ranks' tensors. The numbers are those of :class:`horocache.ReduceOp`.

    SUM, PRODUCT, MIN and MAX are for every dtype, except MIN and MAX of complex numbers; BAND, BOR and BXOR for
    integers and bool. AVG divides the sum by the number of ranks; the average of integers is rounded towards zero.
    """

    AVG = 0
    SUM = 1
    MIN = 3
    MAX = 4
    PRODUCT = 5
    BAND = 6
    BOR = 7
    BXOR = 8


def core_op(op: Any) -> int:
    """Return the core's number of a reduce operation.

    Args:
        op: a :class:`ReduceOp`, a :class:`horocache.ReduceOp`, or a reduce operation of ``torch.distributed``.

    Raises:
        InvalidArgumentError: ``op`` is something else. UnsupportedError: it is ``Adasum`` or ``PREMUL_SUM``.
    """
    if type(op) is ReduceOp:
        return op
    if isinstance(op, CoreOp):
        return check_op(op)
    name = getattr(op, "name", None)
    if type(op).__module__.startswith("torch.") and isinstance(name, str):
        if name in ReduceOp.__members__:
            return ReduceOp[name]
        raise UnsupportedError(f"the reduce operation {name} of torch.distributed is not available in mcr_dl.")
    if isinstance(op, int) and not isinstance(op, bool) and op in ReduceOp.__members__.values():
        return int(op)
    if op == Adasum:
        return check_op(Adasum)
    raise InvalidArgumentError(f"op={op!r} is not a reduce operation; these are: {', '.join(ReduceOp.__members__)}.")
