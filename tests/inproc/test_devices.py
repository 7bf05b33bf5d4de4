"""A tensor on a device without a backend raises before anything is sent."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from horocache import _core
from horocache.errors import UnsupportedError

from .operations import ALLREDUCE, submit, submit_sum

CUDA, ROCM = 2, 10  # DLPack's device types


class _DlTensor(ctypes.Structure):
    """DLPack's DLManagedTensor with a null deleter."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


class OnDevice:
    """Three floats that claim to be on a device; their memory must never be touched."""

    def __init__(self, device_type):
        self._shape = (ctypes.c_int64 * 1)(3)
        self._tensor = _DlTensor(16, device_type, 0, 1, 2, 32, 1, self._shape, None, 0, None, None)

    def __dlpack__(self, **_):
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self._tensor), b"dltensor", None)


@pytest.mark.parametrize(
    ("device", "words"), [(CUDA, "on a CUDA device does not tell its stream"), (ROCM, "neither in CPU memory nor on")]
)
def test_a_tensor_on_a_device_without_a_backend_raises(device, words):
    (runtime,) = _core.start_in_process(1, {})
    try:
        with pytest.raises(UnsupportedError, match=rf"{words}.*to the CPU first"):
            submit(runtime, ALLREDUCE, [OnDevice(device)], None, name="x")
        array = np.ones(3, np.float32)
        runtime.wait(submit_sum(runtime, array, name="x"))  # the name is free again
    finally:
        runtime.stop()
