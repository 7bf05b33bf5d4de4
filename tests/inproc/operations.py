"""Operations of one rank, submitted to its runtime as the collectives submit them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from horocache.base import operation_codes as codes
from horocache.base.request import Request

from .conftest import PATIENCE_S

ALLREDUCE, ALLGATHER, BROADCAST = codes.OP_ALLREDUCE, codes.OP_ALLGATHER, codes.OP_BROADCAST
REDUCESCATTER, ALLTOALL, REDUCE = codes.OP_REDUCESCATTER, codes.OP_ALLTOALL, codes.OP_REDUCE
GATHER, SCATTER, BARRIER, JOIN = codes.OP_GATHER, codes.OP_SCATTER, codes.OP_BARRIER, codes.OP_JOIN
SEND, RECV = codes.OP_SEND, codes.OP_RECV
AVERAGE, SUM, MIN, MAX, PRODUCT, AND, OR, XOR = 0, 1, 3, 4, 5, 6, 7, 8  # numbers of horocache.ReduceOp


def submit(runtime: Any, *arguments: Any, **more: Any) -> int:
    """Submit an operation with the fields of a Request; return its handle."""
    return runtime.submit(Request(*arguments, **more))


def blocking(runtime: Any, op: int, inputs: list[Any], outputs: list[Any] | None = None, **options: Any) -> Any:
    """Submit an operation and wait for it; return its results."""
    return runtime.wait(submit(runtime, op, inputs, outputs, wait_follows=True, **options), PATIENCE_S)


def submit_sum(runtime: Any, array: np.ndarray, **options: Any) -> int:
    """Submit an allreduce in place; return its handle."""
    return submit(runtime, ALLREDUCE, [array], [array], **options)


def finish(runtime: Any, *handles: int) -> None:
    """Wait for each operation."""
    for handle in handles:
        runtime.wait(handle, PATIENCE_S)


def allreduce_ones(runtime: Any, name: str | bytes, shape: tuple[int, ...] = (3,)) -> Any:
    """Allreduce an array of ones, without a time limit."""
    array = np.ones(shape, np.float32)
    return runtime.wait(submit(runtime, ALLREDUCE, [array], [array], name=name, wait_follows=True))


def caught(action: Callable[[], Any]) -> Exception | None:
    """The exception that a call raises, or None."""
    try:
        action()
    except Exception as error:
        return error
    return None
