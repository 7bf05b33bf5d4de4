"""Parts of a payload that the codecs share: a reader that checks lengths, and values with their positions."""

from __future__ import annotations

from typing import Any

import numpy as np

from horocache.collectives.compression import Array

_COUNT = np.dtype("<u8")


class Reader:
    """Reads arrays from a payload, one behind the other."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    def take(self, dtype: Any, count: int, what: str) -> Array:
        """Return the next ``count`` elements, in the payload's memory.

        Raises:
            ValueError: the payload ends before.
        """
        size = np.dtype(dtype).itemsize * count
        left = len(self._data) - self._at
        if size > left:
            raise ValueError(f"{count} {what} need {size} bytes, and {left} are left")
        self._at += size
        return np.frombuffer(self._data[self._at - size : self._at], dtype)

    def rest(self) -> memoryview:
        """Return all bytes that are left."""
        return self._data[self._at :]

    def end(self) -> None:
        """Raise ValueError if bytes are left."""
        if self._at != len(self._data):
            raise ValueError(f"{len(self._data) - self._at} bytes follow the last element")


def write_placed(positions: Array, flat: Array) -> list[Array]:
    """Return the elements of ``flat`` at ``positions``, which ascend, as parts: a count, the positions, the values."""
    return [np.array([positions.size], _COUNT), positions.astype(_position_type(flat.size)), flat[positions]]


def read_placed(reader: Reader, count: int, dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """Return the positions and values that :func:`write_placed` has written for ``count`` elements.

    Raises:
        ValueError: the payload is too short, or the positions do not ascend, or go beyond the last element.
    """
    (placed,) = reader.take(_COUNT, 1, "counts")
    if placed > count:
        raise ValueError(f"it has {placed} positions for {count} elements")
    positions = reader.take(_position_type(count), int(placed), "positions").astype(np.int64)
    if positions.size and (positions[-1] >= count or positions[0] < 0 or not np.all(positions[1:] > positions[:-1])):
        raise ValueError(f"the positions of {placed} values do not ascend from 0 to {count - 1}")
    return positions, reader.take(dtype, int(placed), "values")


def _position_type(count: int) -> np.dtype[Any]:
    return np.dtype("<u4" if count <= 1 << 32 else "<u8")


def without_nonfinite(values: Array) -> tuple[Array, Array]:
    """Return the values with 0 for NaN and infinities, and the positions of these in the flat array.

    The result is ``values`` itself if all values are finite.
    """
    finite = np.isfinite(values)
    if finite.all():
        return values, np.empty(0, np.int64)
    return np.where(finite, values, values.dtype.type(0)), np.flatnonzero(~finite)
