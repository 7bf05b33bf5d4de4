"""Rows of numbers that travel in one direction: the calls of exchanges by which tokens are dispatched and combined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from horocache.errors import MismatchError
from horocache.moe.exchanges.exchange import Memory

__all__ = ["TYPES", "Block", "Header", "RowMove", "row_bytes_of"]

# The element types of rows, by name. A header has the position, so the order is that of all ranks.
TYPES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
# Rows begin at multiples of this, so that rows of several ranks in one memory are aligned.
_ALIGNMENT = 8


@dataclass(frozen=True)
class Block:
    """Rows of numbers of one element type, as bytes.

    Attributes:
        memory: uint8, shape ``(rows, width * bytes of an element)``.
        dtype: name of the element type, one of :data:`TYPES`.
    """

    memory: npt.NDArray[np.uint8]
    dtype: str

    @property
    def width(self) -> int:
        """Elements of a row."""
        return int(self.memory.shape[1]) // TYPES[self.dtype]


class Header(NamedTuple):
    """Facts in front of each row, by which ranks in different calls notice it.

    Args:
        operation: a word for errors.
        number: of the handle.
        dtype: element type of the rows.
        weights: element type of the weights; None without weights.
    """

    operation: str
    number: int
    dtype: str
    weights: str | None

    def packed(self, operations: Sequence[str]) -> npt.NDArray[np.int32]:
        """Return the header as two int32."""
        names = list(TYPES)
        weights = 0 if self.weights is None else 1 + names.index(self.weights)
        kind = (operations.index(self.operation) * len(names) + names.index(self.dtype)) * (1 + len(names)) + weights
        return np.array([kind, self.number], np.int32)

    def __str__(self) -> str:
        weights = "no weights" if self.weights is None else f"weights of {self.weights}"
        return f"{self.operation} of {self.dtype} with {weights} and handle {self.number}"


OPERATIONS = ("dispatch", "dispatch by a handle", "combine")
_HEADER_BYTES = 8


def unpacked(header: npt.NDArray[np.int32]) -> Header:
    """Return the header that :meth:`Header.packed` packed."""
    kind, number = (int(each) for each in header)
    names = list(TYPES)
    rest, weights = divmod(kind, 1 + len(names))
    operation, dtype = divmod(rest, len(names))
    return Header(OPERATIONS[operation], number, names[dtype], None if weights == 0 else names[weights - 1])


def row_bytes_of(widths: Sequence[int]) -> int:
    """Return the bytes of a row with fields of these bytes, behind its header."""
    return -(-(_HEADER_BYTES + sum(widths)) // _ALIGNMENT) * _ALIGNMENT


class RowMove:
    """Moves rows to ranks, and none back; see :class:`horocache.moe.exchanges.Call`.

    A row has its header, and then its fields, filled up to a multiple of 8 bytes. Example: a token of 5 float16 and 2
    experts of int32 have a row of 8 + 10 + 8 = 26 bytes, which is rounded up to 32.

    Args:
        rows: of this rank for each rank.
        fields: returns the fields of the rows for a rank: uint8, shape ``(rows, bytes)`` each.
        widths: bytes of each field in a row.
        header: of this rank; that of the others must be equal.
        expected: by rank: the rows that must come; None: any number.
        describe: returns the start of an error about a rank of the set.
    """

    result_row_bytes = 0
    lossless = True

    def __init__(
        self,
        rows: Sequence[int],
        fields: Callable[[int], Sequence[Memory]],
        widths: Sequence[int],
        header: Header,
        expected: Sequence[int] | None,
        describe: Callable[[int], str],
    ) -> None:
        self.rows: Sequence[int] = list(rows)
        self.row_bytes = row_bytes_of(widths)
        self._fields, self._widths, self._expected, self._describe = fields, list(widths), expected, describe
        self._header, self._packed = header, header.packed(OPERATIONS)
        self._came: dict[int, Memory] = {}

    def pack(self, peer: int, memory: Memory) -> None:
        """Write the rows for ``peer``."""
        rows = memory.reshape(-1, self.row_bytes)
        start = _HEADER_BYTES
        rows[:, :start] = self._packed.view(np.uint8)
        for width, field in zip(self._widths, self._fields(peer), strict=True):
            rows[:, start : start + width] = field
            start += width
        rows[:, start:] = 0

    def serve(self, peer: int, rows: int, batch: Memory, result: Memory) -> None:
        """Keep the rows of ``peer``."""
        came = batch.reshape(rows, self.row_bytes)
        theirs = unpacked(came[0, :_HEADER_BYTES].copy().view(np.int32))
        if theirs != self._header:
            raise MismatchError(
                f"{self._describe(peer)} is in a {theirs}, but this rank is in a {self._header}; dispatch and combine "
                "in the same order on all ranks, with the same handles and element types"
            )
        if self._expected is not None and rows != self._expected[peer]:
            raise self._wrong_rows(peer, rows)
        self._came[peer] = came.copy()

    def take(self, peer: int, result: Memory) -> None:
        """Do nothing: results are empty."""

    def received(self) -> tuple[list[Memory], list[int]]:
        """Return the fields of all received rows by source rank, and the rows of each rank.

        Raises:
            MismatchError: a rank sent no rows, although some were expected.
        """
        ranks = range(len(self.rows))
        counts = [len(self._came[peer]) if peer in self._came else 0 for peer in ranks]
        for peer in ranks:
            if self._expected is not None and counts[peer] != self._expected[peer]:
                raise self._wrong_rows(peer, counts[peer])
        fields = []
        start = _HEADER_BYTES
        for width in self._widths:
            parts = [self._came[peer][:, start : start + width] for peer in sorted(self._came)]
            fields.append(np.concatenate([np.empty((0, width), np.uint8), *parts]))
            start += width
        return fields, counts

    def _wrong_rows(self, peer: int, rows: int) -> MismatchError:
        assert self._expected is not None
        return MismatchError(
            f"{self._describe(peer)} sent {rows} rows, but handle {self._header.number} has {self._expected[peer]}; "
            "give all ranks the handle of the same dispatch"
        )
