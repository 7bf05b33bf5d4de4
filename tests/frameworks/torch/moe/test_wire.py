"""The bytes of batches: the places of fields, and copies of rows into them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from horocache.torch.moe.wire import Layout, gather

TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("rows", [1, 3, 5])
@pytest.mark.parametrize(("k", "hidden"), [(1, 5), (2, 3), (3, 8)])
def test_fields_are_aligned_apart_from_each_other_and_within_the_memory(dtype, rows, k, hidden):
    layout = Layout((torch.int32, 1 + k), (torch.float32, k), (dtype, hidden))
    used = 4 * (1 + 2 * k) + dtype.itemsize * hidden
    assert layout.row_bytes % 8 == 0 and used <= layout.row_bytes < used + 8
    memory = np.full(rows * layout.row_bytes, 255, np.uint8)
    blocks = layout.new(memory)
    assert [(each.dtype, tuple(each.shape)) for each in blocks] == [
        (torch.int32, (rows, 1 + k)),
        (torch.float32, (rows, k)),
        (dtype, (rows, hidden)),
    ]
    start = memory.ctypes.data
    for number, block in enumerate(blocks):
        assert (block.data_ptr() - start) % block.element_size() == 0
        block.fill_(number + 1)
    for number, block in enumerate(layout.open(memory)):
        assert (block == number + 1).all()
    assert (memory[rows * used :] == 0).all()  # two runs send equal bytes


def test_rows_are_copied_and_converted():
    source = torch.arange(12.0).view(4, 3).requires_grad_()
    rows = torch.tensor([3, 0])
    for dtype in TYPES:
        into = torch.zeros(2, 3, dtype=dtype)
        gather(source, rows, into)
        assert torch.equal(into, source.detach()[[3, 0]].to(dtype)) and not into.requires_grad
