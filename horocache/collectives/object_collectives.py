"""Collectives on Python objects. The only module that uses pickle.

Unpickling runs code that the sender chooses. That is safe here because ranks are authenticated processes of one job of
one user, which run the same program anyway. Data from outside the job never gets here.
"""

from __future__ import annotations

import pickle
from types import ModuleType
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import numpy as np

from horocache.collectives.arguments import Name
from horocache.collectives.compression import Array
from horocache.collectives.numpy import collectives
from horocache.core import context
from horocache.core.process_set import ProcessSet, global_process_set
from horocache.errors import InvalidArgumentError, MismatchError, UnsupportedError


def dumps(value: object, by_value: ModuleType | None = None) -> bytes:
    """Pickle an object; functions and classes of scripts, and of the module ``by_value``, are pickled by value.

    Raises:
        InvalidArgumentError: the object cannot be pickled; the message says why.
    """
    if by_value is not None:
        cloudpickle.register_pickle_by_value(by_value)
        try:
            return dumps(value)
        finally:
            cloudpickle.unregister_pickle_by_value(by_value)
    try:
        return bytes(cloudpickle.dumps(value))
    except Exception as error:
        raise InvalidArgumentError(f"an object of type {type(value).__name__} cannot be pickled: {error}") from error


def loads(data: bytes) -> Any:
    """Unpickle an object. Only for bytes from :func:`dumps` in a process of the same job."""
    return pickle.loads(data)  # noqa: S301  (from a rank of this job, see the module's text)


def _exchange(
    payload: bytes, facts: list[int], name: Name, process_set: ProcessSet, backend: str | None
) -> tuple[list[int], list[bytes], Array]:
    """Exchange payloads and facts; returns the ranks that have not joined, and the payloads and facts of these ranks.

    This is an allgather, because its first dimension is not part of the signature: objects of any size hit the response
    cache.
    """
    rows = np.array([facts], dtype=np.int64)
    tensors: list[Array] = [np.frombuffer(payload, dtype=np.uint8), rows]
    gathered = collectives.allgather_with_rows(tensors, name, process_set, backend=backend)
    (data, sizes), (table, rows_of) = gathered
    ranks, parts = [], []
    start = 0
    for rank, size, row in zip(process_set.ranks, sizes, rows_of, strict=True):
        if row:
            ranks.append(rank)
            parts.append(data[start : start + size].tobytes())
        start += size
    return ranks, parts, table


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: Name = None,
    process_set: ProcessSet = global_process_set,
    *,
    backend: str | None = None,
) -> Any:
    """Send one rank's object to all ranks.

    Args:
        obj: any object that can be pickled; only the root's is used.
        root_rank: a global rank in the set.
        name: identifies the operation across ranks; calls without a name must not overlap in time.
        process_set: the ranks that take part.
        backend: name of the backend, such as ``"shm"``; the same on all ranks. None: the selector chooses.

    Returns:
        On the root the object itself, on other ranks a copy of it.

    Raises:
        InvalidArgumentError: the root's object cannot be pickled (all ranks raise it), or ``root_rank`` is not in the
            set. MismatchError: the ranks name different roots. UnsupportedError: the root has joined.
    """
    is_root = context.rank() == root_rank
    payload, failed = _dumps_or_reason(obj) if is_root else (b"", False)
    ranks, parts, table = _exchange(payload, [failed, root_rank], name or "broadcast_object", process_set, backend)
    for position, (_, root) in enumerate(table):
        if root != table[0, 1]:
            raise MismatchError(
                f"broadcast_object {name!r}: rank {ranks[0]} gave root_rank={table[0, 1]}, "
                f"rank {ranks[position]} gave root_rank={root}."
            )
    if root_rank not in process_set.ranks:
        raise InvalidArgumentError(
            f"broadcast_object received invalid root rank {root_rank}; there are {process_set.ranks}."
        )
    if root_rank not in ranks:
        raise UnsupportedError(
            f"broadcast_object {name!r}: its root, rank {root_rank}, has joined and has nothing to send. Use a root "
            "that has not joined, or call it before join()."
        )
    position = ranks.index(root_rank)
    _raise_failures(parts[position : position + 1], table[position : position + 1, 0], [root_rank])
    return obj if is_root else loads(parts[position])


def allgather_object(
    obj: Any, name: Name = None, process_set: ProcessSet = global_process_set, *, backend: str | None = None
) -> list[Any]:
    """Send every rank's object to all ranks.

    Args:
        obj: any object that can be pickled.
        name: identifies the operation across ranks; calls without a name must not overlap in time.
        process_set: the ranks that take part.
        backend: name of the backend, such as ``"shm"``; the same on all ranks. None: the selector chooses.

    Returns:
        The objects of the ranks that have not joined, in rank order.

    Raises:
        InvalidArgumentError: a rank's object cannot be pickled; all ranks raise it; it names the first such rank.
    """
    payload, failed = _dumps_or_reason(obj)
    ranks, parts, table = _exchange(payload, [failed], name or "allgather_object", process_set, backend)
    _raise_failures(parts, table[:, 0], ranks)
    return [loads(part) for part in parts]


def _dumps_or_reason(obj: Any) -> tuple[bytes, bool]:
    """Return (pickled object, False), or (reason, True) on failure: the other ranks wait and must be informed."""
    try:
        return dumps(obj), False
    except InvalidArgumentError as error:
        return str(error).encode(), True


def _raise_failures(parts: list[bytes], failed: Array, ranks: list[int]) -> None:
    for part, bad, rank in zip(parts, failed, ranks, strict=True):
        if bad:
            raise InvalidArgumentError(f"rank {rank}: {part.decode(errors='replace')}")
