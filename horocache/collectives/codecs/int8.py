"""The codec ``int8``: whole numbers of 8 bits, with one scale for each block of elements."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar

import numpy as np

from horocache.collectives.codecs.sections import Reader, read_placed, without_nonfinite, write_placed
from horocache.collectives.compression import Array, Codec
from horocache.errors import InvalidArgumentError

_STEPS = 127  # on each side of 0
_LARGEST = 2.0**127  # beyond it, a scale that is rounded up could make a value infinite


@dataclass(frozen=True)
class Int8(Codec):
    """Sends floating-point tensors as 8-bit numbers, ``q = round(x / s)``, with a float32 scale ``s`` for each block.

    The scale of a block is the largest absolute value over 127, rounded up, so that a decoded value differs from the
    given one by at most ``s / 2``, which is the largest absolute value of the block over 254, and the rounding of one
    multiplication. The error of a sum over P ranks is at most the sum of the ranks' errors. NaN and infinities are sent
    beside the numbers and come out as they are; they do not enter the scale. A tensor with absolute values beyond
    ``2**127`` is sent as it is.

    A message has ``n + 4 * ceil(n / block)`` bytes for n elements: a quarter of float32's, for the default block.

    Args:
        block: the number of elements with a common scale; the same on all ranks.

    Raises:
        InvalidArgumentError: ``block`` is not a whole number from 1 on.
    """

    name: ClassVar[str] = "int8"
    block: int = 256

    def __post_init__(self) -> None:
        if not isinstance(self.block, Integral) or isinstance(self.block, bool) or self.block < 1:
            raise InvalidArgumentError(f"block must be a whole number of at least 1; it is {self.block!r}.")
        object.__setattr__(self, "block", int(self.block))

    def encode(self, values: Array) -> list[Array] | None:
        """Return the non-finite values, the scales and the numbers; None if a scale is beyond float32."""
        flat = values.reshape(-1)
        clean, positions = without_nonfinite(flat)
        blocks = _in_blocks(clean, self._block_of(flat.size))
        largest = np.maximum(blocks.max(axis=1), -blocks.min(axis=1)).astype(np.float64)
        if largest.max() > _LARGEST:
            return None
        scales = (largest / _STEPS).astype(np.float32)
        too_small = scales.astype(np.float64) * _STEPS < largest
        scales[too_small] = np.nextafter(scales[too_small], np.float32(np.inf))
        steps = np.where(scales == 0, 1, scales).astype(values.dtype)
        numbers = np.rint(blocks / steps[:, None]).astype(np.int8).reshape(-1)[: flat.size]
        return [*write_placed(positions, flat), scales, numbers]

    def decode(self, data: memoryview, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return each number times the scale of its block."""
        count = int(np.prod(shape, dtype=np.int64))
        reader = Reader(data)
        positions, others = read_placed(reader, count, dtype)
        block = self._block_of(count)
        rows = -(-count // block)
        scales = reader.take(np.float32, rows, "scales")
        numbers = reader.take(np.int8, count, "numbers")
        reader.end()
        if not (np.isfinite(scales).all() and (scales >= 0).all()):
            raise ValueError("a scale is negative or not finite")
        flat = np.zeros(rows * block, dtype)
        flat[:count] = numbers
        flat.reshape(rows, block)[...] *= scales.astype(dtype)[:, None]
        flat = flat[:count]
        flat[positions] = others
        return flat.reshape(shape)

    def _block_of(self, count: int) -> int:
        """Return the block size for ``count`` elements: a block that is not full takes no memory for the rest."""
        return min(self.block, max(count, 1))


def _in_blocks(flat: Array, block: int) -> Array:
    """Return the elements as rows of ``block``; the last row is filled with zeros."""
    rows = -(-flat.size // block)
    if flat.size == rows * block:
        return flat.reshape(rows, block)
    padded = np.zeros(rows * block, flat.dtype)
    padded[: flat.size] = flat
    return padded.reshape(rows, block)
