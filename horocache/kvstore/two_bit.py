"""Gradient compression to two bits for each element, as MXNet's stores have it, with error feedback.

An element is sent as ``+threshold``, ``-threshold`` or 0. The rest stays in a residual, which is added to the next
gradient of the key (Seide et al., 2014).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from horocache.errors import InvalidArgumentError, UnsupportedError
from horocache.kvstore.arrays import is_torch

_SHIFTS = np.array([0, 2, 4, 6], np.uint8)
_PLUS, _MINUS = 1, 2


class TwoBit:
    """The compression of a store, and the residual of each key.

    Role: owned by a store. One operation at a time works on a key.
    """

    def __init__(self, threshold: float) -> None:
        """Begin without residuals."""
        self.threshold = threshold
        self._residuals: dict[object, np.ndarray] = {}

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> TwoBit | None:
        """Return the compression that the arguments of ``set_gradient_compression`` describe; None for type "none".

        Raises:
            InvalidArgumentError: an argument is unknown or out of range.
        """
        unknown = set(params) - {"type", "threshold"}
        kind = params.get("type")
        if unknown or kind not in ("2bit", "none"):
            raise InvalidArgumentError(
                f"gradient compression takes type '2bit' or 'none', and threshold; it was given {dict(params)}."
            )
        threshold = params.get("threshold", 0.5)
        if not isinstance(threshold, (int, float)) or not 0 < threshold < float("inf"):
            raise InvalidArgumentError(f"threshold must be a number above 0; it is {threshold!r}.")
        return None if kind == "none" else cls(float(threshold))

    def size(self, elements: int) -> int:
        """Return the number of bytes for a number of elements."""
        return (elements + 3) // 4

    def check(self, value: Any, key: object) -> None:
        """Raise UnsupportedError for a tensor that is not float32 on the CPU."""
        if str(value.dtype).removeprefix("torch.") != "float32" or (is_torch(value) and not value.is_cpu):
            raise UnsupportedError(f"key {key!r}: 2-bit compression takes float32 on the CPU, not {value.dtype}.")

    @staticmethod
    def mark(key: object) -> np.ndarray:
        """Return bytes that stand for a key, and go before those of its gradient."""
        digest = hashlib.blake2b(repr(key).encode("utf-8", "surrogateescape"), digest_size=8).digest()
        return np.frombuffer(digest, np.uint8)

    def encode(self, key: object, value: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the bytes for a gradient, and the residual to keep once they have been sent."""
        given = flat(value)
        residual = given + self._residuals.get(key, np.float32(0))
        codes = np.zeros(4 * self.size(given.size), np.uint8)
        plus, minus = residual >= self.threshold, residual <= -self.threshold
        codes[: given.size][plus] = _PLUS
        codes[: given.size][minus] = _MINUS
        residual[plus] -= np.float32(self.threshold)
        residual[minus] += np.float32(self.threshold)
        packed: np.ndarray = np.bitwise_or.reduce(codes.reshape(-1, 4) << _SHIFTS, axis=1)
        return packed, residual

    def keep(self, key: object, residual: np.ndarray) -> None:
        """Keep a residual for the key's next gradient."""
        self._residuals[key] = residual

    def add(self, target: Any, packed: np.ndarray) -> None:
        """Add the elements of these bytes to a tensor."""
        into = flat(target)
        codes = ((packed[:, None] >> _SHIFTS) & 3).reshape(-1)[: into.size]
        into += np.float32(self.threshold) * (codes == _PLUS) - np.float32(self.threshold) * (codes == _MINUS)


def flat(value: Any) -> np.ndarray:
    """Return the elements of a contiguous tensor as a NumPy vector, without a copy."""
    elements: np.ndarray = (value.numpy() if is_torch(value) else value).reshape(-1)
    return elements
