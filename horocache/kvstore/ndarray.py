"""MXNet's arrays, as NumPy arrays of the same memory, by DLPack."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from horocache.errors import UnsupportedError

_CPU = (1, 3)  # and pinned memory of the CPU
_KINDS = {0: "i", 1: "u", 2: "f", 6: "b"}  # of NumPy's types, by DLPack's codes
_BOOL = (1, 1)  # MXNet's code and bits of bool, which has a byte


class _Tensor(ctypes.Structure):
    """DLPack's DLTensor, with which a capsule of the name "dltensor" begins."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Memory:
    """Keeps a capsule, and with it the memory, as long as a NumPy array needs it."""

    def __init__(self, capsule: Any, interface: dict[str, Any]) -> None:
        self.capsule = capsule
        self.__array_interface__ = interface


# A function object of this module's: others use that of ctypes.pythonapi with types of their own.
_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def is_ndarray(value: object) -> bool:
    """True for an array of MXNet, or another one with its DLPack interface."""
    return hasattr(value, "to_dlpack_for_write")


def view_of(array: Any) -> np.ndarray:
    """Return a NumPy array of the same memory, after MXNet's operations on the array, of those so far, have ended.

    Raises:
        UnsupportedError: the array is on a GPU, or of a type that NumPy lacks.
    """
    capsule = array.to_dlpack_for_write()
    tensor = _Tensor.from_address(_pointer_of(capsule, b"dltensor"))
    if tensor.device_type not in _CPU:
        raise UnsupportedError("the store takes MXNet's arrays on the CPU only; copy it with as_in_context(mx.cpu()).")
    kind, item = _KINDS.get(tensor.code), tensor.bits // 8
    if (tensor.code, tensor.bits) == _BOOL:
        kind, item = "b", 1
    if kind is None or item == 0 or tensor.lanes != 1:
        raise UnsupportedError(f"the store takes no arrays of type {array.dtype}.")
    strides = [item * tensor.strides[axis] for axis in range(tensor.ndim)] if tensor.strides else None
    interface = {
        "version": 3,
        "shape": tuple(tensor.shape[axis] for axis in range(tensor.ndim)),
        "typestr": np.dtype(f"{kind}{item}").str,
        "data": ((tensor.data or 0) + tensor.byte_offset, False),
        "strides": None if strides is None else tuple(strides),
    }
    return np.asarray(_Memory(capsule, interface))
