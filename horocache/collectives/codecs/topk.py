"""The codec ``topk``: the elements with the largest absolute values, with error feedback."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np

from horocache.collectives.codecs.sections import Reader, read_placed, write_placed
from horocache.collectives.compression import Array, Codec
from horocache.errors import InvalidArgumentError


@dataclass(frozen=True, kw_only=True)
class TopK(Codec):
    """Sends the elements of a floating-point tensor with the largest absolute values; the others are 0 in this step.

    The rest, the *residual*, is added to the tensor of the same name and process set in the next step, so that
    everything is sent at some time: the sum of what was sent equals the sum of what was given, except for the last
    residual. Therefore the tensor needs a name, the same in every step; without one, the call raises UnsupportedError.
    ``DistributedOptimizer`` uses the parameter's name. A residual takes the memory of its tensor (for float16 and
    bfloat16, twice that); :meth:`~horocache.collectives.compression.Codec.clear_residuals` frees it.

    Values are sent exactly. Of equal absolute values, the one with the lower index is sent. NaN and infinities are
    always sent, besides the k elements, and leave no residual. Zeros are never sent.

    A message has 8 bytes for each element of float32 that is sent, and 12 for each of float64. A tensor whose
    message would be as large as itself is sent whole, such as one of two elements.

    Args:
        ratio: the part of the elements that is sent, above 0 and at most 1; at least one element is sent.
        k: instead of ``ratio``, the number of elements that is sent. Both must be the same on all ranks.

    Raises:
        InvalidArgumentError: not exactly one of them is given, or it is out of range.
    """

    name: ClassVar[str] = "topk"
    error_feedback: ClassVar[bool] = True
    ratio: float | None = None
    k: int | None = None

    def __post_init__(self) -> None:
        if (self.ratio is None) == (self.k is None):
            raise InvalidArgumentError(
                f"Compression.topk takes ratio or k; it has ratio={self.ratio!r} and k={self.k!r}."
            )
        if self.ratio is not None:
            if not isinstance(self.ratio, Real) or not 0 < self.ratio <= 1:
                raise InvalidArgumentError(f"ratio must be a number above 0 and at most 1; it is {self.ratio!r}.")
            object.__setattr__(self, "ratio", float(self.ratio))
        else:
            if not isinstance(self.k, Integral) or isinstance(self.k, bool) or self.k < 1:
                raise InvalidArgumentError(f"k must be a whole number of at least 1; it is {self.k!r}.")
            object.__setattr__(self, "k", int(self.k))

    def encode(self, values: Array) -> list[Array]:
        """Return positions and values of the elements that are sent."""
        flat = values.reshape(-1)
        return write_placed(self._chosen(flat), flat)

    def decode(self, data: memoryview, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return zeros, except for the elements that were sent."""
        result = np.zeros(shape, dtype)
        reader = Reader(data)
        positions, values = read_placed(reader, result.size, dtype)
        reader.end()
        result.reshape(-1)[positions] = values
        return result

    def _chosen(self, flat: Array) -> Array:
        """Return the positions of the elements that are sent, in ascending order."""
        k = self.k if self.k is not None else max(1, math.ceil(float(self.ratio or 0) * flat.size))
        sizes = np.abs(flat)
        sizes[~np.isfinite(flat)] = np.inf
        more = int(np.count_nonzero(sizes == np.inf))
        k = min(k + more, int(np.count_nonzero(sizes)))
        if k == 0:
            return np.empty(0, np.int64)
        least = np.partition(sizes, flat.size - k)[flat.size - k]  # the k-th largest
        chosen = sizes > least
        equal = np.flatnonzero(sizes == least)[: k - int(np.count_nonzero(chosen))]
        chosen[equal] = True
        return np.flatnonzero(chosen)
