"""The message that carries the encoded values of one tensor, with what the receiving rank checks.

=========  =====  ======================================================================
bytes      type   content
=========  =====  ======================================================================
4                 ``hcz1``
4          u32    CRC-32 of all bytes that follow
1          u8     element type of the tensor: its place in ``FLOATS``
1          u8     number of dimensions
1          u8     form: 0, the values as they are; 1, encoded
1                 0
8          u64    bytes of the payload
8 each     u64    dimensions
=========  =====  ======================================================================

The payload follows. All numbers are little-endian. Without the checksum, damaged bytes could make a library such as zfp
read beyond the end of the message.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from horocache.collectives.compression import FLOATS, Array, Codec

_HEAD = struct.Struct("<4sI")
_ABOUT = struct.Struct("<BBBxQ")
_MAGIC = b"hcz1"
_AS_THEY_ARE, _ENCODED = 0, 1


class Kind(NamedTuple):
    """Type and shape of a tensor, which the messages of all ranks for it have in common."""

    type: str  # of the tensor, one of FLOATS
    shape: tuple[int, ...]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the values that are encoded: float64, or float32 for all other tensors."""
        return np.dtype(np.float64 if self.type == "float64" else np.float32)

    @property
    def tensor_bytes(self) -> int:
        """The bytes of the tensor."""
        return math.prod(self.shape) * (2 if self.type in ("float16", "bfloat16") else self.dtype.itemsize)

    def __str__(self) -> str:
        return f"{self.type}{list(self.shape)}"


class Values(NamedTuple):
    """The values of a tensor, on the host."""

    kind: Kind
    array: Array  # in C order, of the kind's shape and dtype


class BadMessage(Exception):  # noqa: N818  (the caller makes an error of it that names the rank and the tensor)
    """A message cannot be decoded."""

    def __init__(self, why: str, other: Kind | None = None) -> None:
        super().__init__(why)
        self.other = other  # if the message is undamaged, and of another kind of tensor than expected: that kind
        self.member = 0  # the tensor's number in its group


def encoded(codec: Codec, values: Values) -> Array:
    """Return the message for a tensor's values, an array of uint8."""
    kind, array = values
    parts: Sequence[Any] | None = codec.encode(array) if array.size else None
    form = _ENCODED
    if parts is None or sum(map(_size, parts)) >= array.nbytes:
        form, parts = _AS_THEY_ARE, [array]
    about = _ABOUT.pack(FLOATS.index(kind.type), len(kind.shape), form, sum(map(_size, parts)))
    message = bytearray(_HEAD.size)
    message += about
    message += struct.pack(f"<{len(kind.shape)}Q", *kind.shape)
    for part in parts:
        if _size(part):  # memory without elements cannot be cast
            message += memoryview(part).cast("B")
    _HEAD.pack_into(message, 0, _MAGIC, zlib.crc32(memoryview(message)[_HEAD.size :]))
    return np.frombuffer(message, np.uint8)


def _size(part: Any) -> int:
    return memoryview(part).nbytes


def decoded(codec: Codec, message: Array, expected: Kind) -> Array:
    """Return a new array with the values of a message.

    Raises:
        BadMessage: the message is damaged, or of another kind of tensor than ``expected``.
    """
    data = memoryview(np.ascontiguousarray(message).data)
    form, payload = _opened(data, expected)
    if form == _AS_THEY_ARE:
        if len(payload) != math.prod(expected.shape) * expected.dtype.itemsize:
            raise BadMessage(f"it has {len(payload)} bytes of values, which is not the size of {expected}")
        return np.frombuffer(payload, expected.dtype).reshape(expected.shape).copy()
    try:
        array = codec.decode(payload, expected.shape, expected.dtype)
    except Exception as error:
        raise BadMessage(f"{codec.wire_name} cannot decode it: {error}") from error
    if (array.shape, array.dtype) != (expected.shape, expected.dtype):
        raise BadMessage(f"{codec.wire_name} decoded {array.dtype}{list(array.shape)} instead of {expected}")
    return array if array.flags.writeable else array.copy()


def _opened(data: memoryview, expected: Kind) -> tuple[int, memoryview]:
    """Check everything around the payload; return its form and the payload."""
    least = _HEAD.size + _ABOUT.size
    if len(data) < least:
        raise BadMessage(f"it has {len(data)} bytes, and the shortest message has {least}")
    magic, checksum = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        raise BadMessage(f"it begins with {magic!r}, not with {_MAGIC!r}")
    if zlib.crc32(data[_HEAD.size :]) != checksum:
        raise BadMessage(f"the checksum of its {len(data)} bytes is wrong")
    number, dimensions, form, size = _ABOUT.unpack_from(data, _HEAD.size)
    if len(data) != least + 8 * dimensions + size:
        raise BadMessage(f"it has {len(data)} bytes, and its lengths add up to {least + 8 * dimensions + size}")
    if number >= len(FLOATS) or form not in (_AS_THEY_ARE, _ENCODED):
        raise BadMessage(f"its element type is {number} and its form {form}, which this version does not know")
    kind = Kind(FLOATS[number], struct.unpack_from(f"<{dimensions}Q", data, least))
    if kind != expected:
        raise BadMessage(f"it is of a tensor {kind}", kind)
    return form, data[least + 8 * dimensions :]
