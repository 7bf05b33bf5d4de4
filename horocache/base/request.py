"""The request of an operation, as the runtime takes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class Request(NamedTuple):
    """An operation and its tensors, for ``Runtime.submit``.

    A named tuple, because the core reads the fields by their positions: see ``RequestField`` in
    ``cpp_core/python/runtime/py_runtime.cc``.
    """

    op: int  # a code of horocache.base.operation_codes
    # Tensors, read by DLPack's exchange table, the buffer protocol or __dlpack__; kept alive until the operation ends.
    inputs: Sequence[Any]
    # One for each input, contiguous and writable: it may be the input itself, or None if this rank gets no result for
    # that input. Of operations on rows (allgather, alltoall, gather, reducescatter, scatter) it may be larger than the
    # result, and keeps its values behind it and in rows that no part covers; it shares no memory with the inputs, and
    # is not on a GPU. None instead of the list: the core allocates the results.
    outputs: Sequence[Any] | None = None
    name: str | bytes | None = None  # of the tensor or the group; None: the lowest free automatic name
    names: Sequence[str | bytes | None] | None = None  # of a group's members; None: derived from `name`
    reduce_op: int = 1  # a number of horocache.collectives.reduce_op
    prescale: float = 1.0  # multiplies the inputs of a reduction
    postscale: float = 1.0  # multiplies the result of a reduction
    root: int = -1  # the root's rank in the set; of a message, the other rank, as a rank of the job
    splits: Sequence[int] | None = None  # rows for each rank: alltoall, scatter at the root, reducescatter
    process_set: int = 0
    backend: str = ""  # empty: the selector chooses
    layers: str = ""  # how the tensors were transformed; equal on all ranks
    group: bool = False  # the tensors are one group even if there is only one
    wait_follows: bool = False  # the caller waits next, so the progress thread need not be woken
    send_starts: Sequence[int] | None = None  # rows at which the parts begin: alltoall, scatter at the root
    receive_rows: Sequence[int] | None = None  # expected from each rank: allgather, alltoall, gather at the root
    receive_starts: Sequence[int] | None = None  # rows of the result at which these parts begin
    priority: int = 0  # of the operations agreed in one round, higher ones run earlier; equal on all ranks
    divide_by: str = "all"  # join: "all" or "active"
    tag: int = 0  # of a message; the output of a recv is its input
    first_ready_ns: int = 0  # of a group, for the timeline: time.monotonic_ns() when its first tensor was ready
    patient: bool = False  # of a recv: no stall limit and no warning while its send has not come
