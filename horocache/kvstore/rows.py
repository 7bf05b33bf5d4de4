"""The rows of a stored value that a worker pulls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from horocache.errors import InvalidArgumentError
from horocache.kvstore.arrays import assign
from horocache.kvstore.entry import Entry


def rows_of(row_ids: Any, targets: Sequence[tuple[Entry, Any]]) -> list[np.ndarray]:
    """Return the numbers of the rows that each target gets, sorted, each once.

    Args:
        row_ids: a vector of numbers for each target, or one for all.
        targets: the key of each tensor, and the tensor.

    Raises:
        InvalidArgumentError: a row is out of range, or there are too few vectors.
    """
    if row_ids is None:
        raise InvalidArgumentError("row_sparse_pull() needs row_ids.")
    many = isinstance(row_ids, (list, tuple)) and any(
        getattr(each, "ndim", 0) > 0 or isinstance(each, (list, tuple)) for each in row_ids
    )
    ids = row_ids if many else [row_ids] * len(targets)
    if len(ids) != len(targets):
        raise InvalidArgumentError(f"{len(targets)} tensors need one vector of row_ids or {len(targets)}.")
    return [_rows(each, entry) for each, (entry, _) in zip(ids, targets, strict=True)]


def copy_rows(target: Any, stored: Any, rows: np.ndarray) -> None:
    """Copy rows of ``stored``; the other rows of ``target`` become 0."""
    assign(target, 0)
    if rows.size:
        target[rows] = stored[rows]


def _rows(row_ids: Any, entry: Entry) -> np.ndarray:
    rows = np.unique(np.asarray(row_ids))
    shape = entry.kind[2]
    if rows.size and (not np.issubdtype(rows.dtype, np.integer) or not shape):
        raise InvalidArgumentError(f"key {entry.key!r}: row_ids must be integers, and the value must have rows.")
    if rows.size and (rows[0] < 0 or rows[-1] >= shape[0]):
        raise InvalidArgumentError(
            f"key {entry.key!r}: row_ids go from {rows[0]} to {rows[-1]}, and the value has rows 0 to {shape[0] - 1}."
        )
    return rows.astype(np.int64)
