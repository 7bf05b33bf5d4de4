"""The codec ``zfp``: the compressed floating-point arrays of LLNL's library zfp, through its Python package zfpy.

Source: Lindstrom, "Fixed-Rate Compressed Floating-Point Arrays", IEEE TVCG 20(12), 2014. As a step of communication:
Awan et al., "MCR-DL: Mix-and-Match Communication Runtime for Deep Learning", IPDPS 2023, section V-E.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from horocache.collectives.codecs.sections import Reader, read_placed, without_nonfinite, write_placed
from horocache.collectives.compression import Array, Codec
from horocache.errors import InvalidArgumentError, UnsupportedError

_MOST_DIMENSIONS = 4  # that zfp knows
_LEAST_RATE, _MOST_RATE = 4, 64  # with blocks of few bits, zfp 1.0 writes beyond its buffer
_MOST_PRECISION = 64


@dataclass(frozen=True)
class _Limits:
    """Where zfp's arithmetic in whole numbers keeps its promise, with some bits to spare; found by experiment."""

    least_part: float  # a tolerance must be at least this part of the largest absolute value
    least: float  # and at least this: blocks of smaller values overflow when they are scaled
    most: float  # absolute values beyond this could become infinite


_LIMITS = {4: _Limits(2.0**-22, 2.0**-90, 2.0**126), 8: _Limits(2.0**-50, 2.0**-950, 2.0**1022)}  # by bytes


@functools.cache
def load_zfpy() -> ModuleType:
    """Return the package zfpy. Raises UnsupportedError if it is missing."""
    try:
        import zfpy  # noqa: PLC0415  (an optional package)
    except ImportError as error:
        raise UnsupportedError(
            "Compression.zfp needs the package zfpy, which cannot be imported here: pip install "
            "horocache[compression]. Every rank needs it."
        ) from error
    return zfpy  # type: ignore[no-any-return]


@dataclass(frozen=True, kw_only=True)
class Zfp(Codec):
    """Sends tensors of float32 and float64 as zfp streams. Tensors of other types are sent uncompressed.

    With ``tolerance``, each decoded value differs from the given one by at most the tolerance; so the error of a sum
    over P ranks is at most ``P * tolerance``, and that of an average at most ``tolerance``, besides the rounding of the
    sum. ``prescale_factor`` and ``postscale_factor`` multiply the error, too. Smooth data become small; noise does not.
    A tensor is sent as it is if it does not become smaller, or if zfp cannot keep the tolerance: that is below
    ``2**-22`` (float64: ``2**-50``) of the largest absolute value.

    With ``rate`` or ``precision``, the size or the effort is fixed and the error is not: values far below the largest
    of their block are lost.

    NaN and infinities are sent beside the stream and come out as they are. A tensor keeps its dimensions, except those
    of size 1; with more than four others, it is flat for zfp.

    Args:
        tolerance: the largest absolute error of a value.
        rate: bits for each value, from 4 to 64.
        precision: bit planes that are kept, from 1 to 64. All parameters must be the same on all ranks.

    Raises:
        InvalidArgumentError: not exactly one of them is given, or it is out of range.
    """

    name: ClassVar[str] = "zfp"
    dtypes: ClassVar[frozenset[str]] = frozenset(("float32", "float64"))
    tolerance: float | None = None
    rate: float | None = None
    precision: int | None = None

    def __post_init__(self) -> None:
        given = {name: value for name, value in vars(self).items() if value is not None}
        if len(given) != 1:
            raise InvalidArgumentError(
                f"Compression.zfp takes one of tolerance, rate and precision; it has {given or 'none'}."
            )
        if self.tolerance is not None:
            _check("tolerance", self.tolerance, "number above 0", Real, lambda value: 0 < value < math.inf)
            object.__setattr__(self, "tolerance", float(self.tolerance))
        elif self.rate is not None:
            _check("rate", self.rate, "number from 4 to 64", Real, lambda value: _LEAST_RATE <= value <= _MOST_RATE)
            object.__setattr__(self, "rate", float(self.rate))
        elif self.precision is not None:
            wanted = "whole number from 1 to 64"
            _check("precision", self.precision, wanted, Integral, lambda value: 1 <= value <= _MOST_PRECISION)
            object.__setattr__(self, "precision", int(self.precision))

    def _mode(self) -> dict[str, float]:
        return {name: value for name, value in vars(self).items() if value is not None}

    def encode(self, values: Array) -> list[Any] | None:
        """Return the non-finite values and the stream; None if zfp cannot keep the tolerance."""
        zfpy = load_zfpy()
        clean, positions = without_nonfinite(values)
        limits = _LIMITS[values.dtype.itemsize]
        largest = max(float(clean.max()), -float(clean.min()))
        if largest > limits.most:
            return None
        if self.tolerance is not None and self.tolerance < max(limits.least, limits.least_part * largest):
            return None
        stream = zfpy.compress_numpy(clean.reshape(_zfp_shape(values.shape)), write_header=False, **self._mode())
        return [*write_placed(positions, values.reshape(-1)), stream]

    def decode(self, data: memoryview, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return the values of the stream, with the non-finite ones in their places."""
        zfpy = load_zfpy()
        reader = Reader(data)
        positions, others = read_placed(reader, math.prod(shape), dtype)
        stream = reader.rest()
        if not stream:
            raise ValueError("it has no zfp stream")
        result: Array = zfpy._decompress(bytes(stream), zfpy.dtype_to_ztype(dtype), _zfp_shape(shape), **self._mode())
        flat = result.reshape(-1)
        flat[positions] = others
        return flat.reshape(shape)


def _zfp_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    kept = tuple(size for size in shape if size != 1) or (1,)
    return kept if len(kept) <= _MOST_DIMENSIONS else (math.prod(kept),)


def _check(name: str, value: Any, wanted: str, kind: type, fits: Callable[[Any], bool]) -> None:
    if not isinstance(value, kind) or isinstance(value, bool) or not fits(value):
        raise InvalidArgumentError(f"{name} must be a {wanted}; it is {value!r}.")
