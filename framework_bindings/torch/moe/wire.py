"""The bytes of a batch or a result: blocks of numbers, one block after the other."""

from __future__ import annotations

import torch
from horocache.moe.exchanges.exchange import Memory

# A row has whole multiples of this, so that the parts of several ranks in one memory are aligned.
_ALIGNMENT = 8


class Layout:
    """The fields of a batch's rows. Each field is one block, so that it is copied at once.

    Blocks are ordered by the size of their elements, the largest first, so that each one is aligned. Example: 3 rows
    with a field of 5 float16 and one of 2 int32 have a block of 24 bytes for the second field, and then one of 30. A
    row has 18 bytes, which is rounded up to 24, so the memory has 72 bytes, of which the last 18 are zero.

    Args:
        fields: element type and number of elements in a row.
    """

    def __init__(self, *fields: tuple[torch.dtype, int]) -> None:
        self._fields = fields
        self._order = sorted(range(len(fields)), key=lambda number: -fields[number][0].itemsize)
        self._used = sum(dtype.itemsize * width for dtype, width in fields)
        self.row_bytes = -(-self._used // _ALIGNMENT) * _ALIGNMENT

    def open(self, memory: Memory) -> list[torch.Tensor]:
        """Return for each field a tensor of shape ``(rows, width)`` in the memory, which has one row at least."""
        rows = len(memory) // self.row_bytes
        found: dict[int, torch.Tensor] = {}
        start = 0
        for number in self._order:
            dtype, width = self._fields[number]
            end = start + rows * width * dtype.itemsize
            found[number] = torch.from_numpy(memory[start:end]).view(dtype).view(rows, width)
            start = end
        return [found[number] for number in range(len(self._fields))]

    def new(self, memory: Memory) -> list[torch.Tensor]:
        """Return the same as :meth:`open` for memory that is to be written; bytes that no field has are set to zero."""
        memory[len(memory) // self.row_bytes * self._used :] = 0
        return self.open(memory)


def gather(source: torch.Tensor, rows: torch.Tensor, into: torch.Tensor) -> None:
    """Copy rows of a tensor, converted to the element type and device of the target.

    Args:
        source: shape ``(n, width)``.
        rows: int64, on the device of ``source``.
        into: shape ``(len(rows), width)``.
    """
    source = source.detach()
    if source.dtype == into.dtype and source.device == into.device:
        torch.index_select(source, 0, rows, out=into)
    else:
        into.copy_(source.index_select(0, rows))
