"""The bytes of a batch or a result: blocks of numbers, one block after the other."""

from __future__ import annotations

import torch
from horocache.moe.exchanges.exchange import Memory

# A row has whole multiples of this, so that the parts of several ranks in one memory are aligned.
_ALIGNMENT = 8


class Layout:
    """The fields of a batch's rows. Each field is one block, so that it is copied at once.

    Example: 3 rows with a field of 2 int32 and one of 5 float16 have a block of 24 bytes and one of 30. A row has 18
    bytes, which is rounded up to 24, so the memory has 72 bytes, of which the last 18 are zero.

    Args:
        fields: element type and number of elements in a row.
    """

    def __init__(self, *fields: tuple[torch.dtype, int]) -> None:
        self._fields = fields
        used = sum(dtype.itemsize * width for dtype, width in fields)
        self.row_bytes = -(-used // _ALIGNMENT) * _ALIGNMENT

    def write(self, memory: Memory, *tensors: torch.Tensor) -> None:
        """Write one tensor of shape ``(rows, width)`` for each field; tensors are converted to the field's type."""
        start = 0
        for (dtype, _), tensor in zip(self._fields, tensors, strict=True):
            block = tensor.detach().to("cpu", dtype).contiguous().view(-1).view(torch.uint8).numpy()
            memory[start : start + len(block)] = block
            start += len(block)
        memory[start:] = 0

    def read(self, memory: Memory, device: torch.device) -> list[torch.Tensor]:
        """Return new tensors of shape ``(rows, width)`` on a device."""
        rows = len(memory) // self.row_bytes
        tensors = []
        start = 0
        for dtype, width in self._fields:
            tensor = torch.empty((rows, width), dtype=dtype)
            block = tensor.view(-1).view(torch.uint8).numpy()
            block[:] = memory[start : start + len(block)]
            start += len(block)
            tensors.append(tensor.to(device))
        return tensors
