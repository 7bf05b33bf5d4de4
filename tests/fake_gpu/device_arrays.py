"""A framework of arrays on a CUDA device, small enough for tests, and the collectives on its arrays.

It behaves as torch does: work is queued on a stream and runs later, memory comes from a cache that gives freed memory
out again at once, and arrays are read through DLPack's exchange table.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import inspect
import json
import os
import threading
import time
from collections.abc import Iterator
from ctypes import POINTER, c_int, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.gpu.cuda import WAIT_GEQ, Driver
from horocache.collectives.operations import NAMES, Collectives
from horocache.errors import InvalidArgumentError

CUDA = 2  # DLPack's number of the kind of device
CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}  # DLPack's codes of NumPy's kinds
ROUNDED_TO = 512


class Device:
    """The device 0, the framework's stream and its cache of memory."""

    def __init__(self) -> None:
        # A test may give horocache another driver than the framework.
        self.driver = Driver(os.environ.get("FAKE_CUDA", os.environ["HOROCACHE_CUDA_LIBRARY"]))
        self.driver.start()
        self._default = self.driver.stream()
        self._current = threading.local()
        self._free: dict[int, list[int]] = {}

    @property
    def stream(self) -> int:
        """The calling thread's current stream."""
        if not hasattr(self._current, "stream"):
            self.driver.use()
            self._current.stream = self._default
        return int(self._current.stream)

    @contextlib.contextmanager
    def on_stream(self, stream: int) -> Iterator[None]:
        """Make another stream the calling thread's current one."""
        before, self._current.stream = self.stream, stream
        try:
            yield
        finally:
            self._current.stream = before

    def take(self, size: int) -> int:
        """Memory of at least ``size`` bytes; it may be in use by work that is queued on the stream."""
        free = self._free.get(size)
        return free.pop() if free else self.driver.allocate(size)

    def give(self, address: int, size: int) -> None:
        """Take memory back, for the next array."""
        self._free.setdefault(size, []).append(address)


@functools.cache
def device() -> Device:
    """The device of this process."""
    return Device()


class Gate:
    """Work of the framework's stream that is queued from now on waits until the gate is opened."""

    def __init__(self) -> None:
        word = device().driver.pinned(4096)
        self._value = c_uint32.from_address(word)
        self._value.value = 0
        device().driver.must("cuStreamWaitValue32_v2", device().stream, word, 1, WAIT_GEQ)

    def open(self) -> None:
        """Let the stream go on."""
        self._value.value = 1


def pointer() -> Any:
    """Room for a handle that the driver returns."""
    return ctypes.byref(c_void_p())


def calls(function: str) -> int:
    """How often a function of the driver or of NCCL has been called in this process."""
    count = ctypes.CDLL(device().driver.path).fake_gpu_calls
    count.restype = c_uint64
    return int(count(function.encode()))


def wait_for(function: str, count: int) -> None:
    """Wait until a function has been called ``count`` times in this process."""
    deadline = time.monotonic() + 60
    while calls(function) < count:
        assert time.monotonic() < deadline, f"{function} has been called {calls(function)} times, not {count}"
        time.sleep(0.001)


def ledger() -> dict[str, Any]:
    """The streams, events, memory and so on that exist in the driver."""
    text = ctypes.create_string_buffer(4096)
    ctypes.CDLL(device().driver.path).fake_gpu_ledger(text, len(text))
    found: dict[str, Any] = json.loads(text.value)
    return found


class Block:
    """Memory of the device, as long as an array uses it."""

    def __init__(self, size: int) -> None:
        self.size = max(size + ROUNDED_TO - 1, ROUNDED_TO) // ROUNDED_TO * ROUNDED_TO
        self.address = device().take(self.size)

    def __del__(self) -> None:
        device().give(self.address, self.size)


class DeviceArray:
    """Elements on the device, in row-major order without gaps."""

    def __init__(self, shape: tuple[int, ...], dtype: Any, block: Block | None = None, offset: int = 0) -> None:
        self.shape = tuple(int(extent) for extent in shape)
        self.dtype = np.dtype(dtype)
        self.size = int(np.prod(self.shape, dtype=np.int64))
        self.block = block or Block(self.nbytes)
        self.offset = offset
        self.number = 0  # of the device, as DLPack's consumers see it
        self.extents = (c_int64 * max(1, len(self.shape)))(*self.shape)  # that DLPack's consumers read

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def address(self) -> int:
        return self.block.address + self.offset

    @classmethod
    def of(cls, values: Any) -> DeviceArray:
        """Queue a copy of an array to the device. The values are read at once, and arrive later."""
        source = np.array(values, order="C")
        array = cls(source.shape, source.dtype)
        if source.nbytes:
            device().driver.must(
                "cuMemcpyHtoDAsync_v2", array.address, source.ctypes.data, source.nbytes, device().stream
            )
        return array

    def numpy(self) -> np.ndarray[Any, Any]:
        """The values, when the stream has computed them."""
        target = np.empty(self.shape, self.dtype)
        if self.nbytes:
            device().driver.must("cuMemcpyDtoHAsync_v2", target.ctypes.data, self.address, self.nbytes, device().stream)
        device().driver.synchronize(device().stream)
        return target

    def copy_from(self, source: DeviceArray) -> None:
        """Queue a copy of another array's values."""
        if self.nbytes:
            driver = device().driver
            driver.must("cuMemcpyDtoDAsync_v2", self.address, source.address, self.nbytes, device().stream)

    def part(self, shape: tuple[int, ...], first: int = 0) -> DeviceArray:
        """An array on a part of this array's memory, from an element on."""
        return DeviceArray(shape, self.dtype, self.block, self.offset + first * self.dtype.itemsize)

    def __getitem__(self, rows: slice) -> DeviceArray:
        first, last, _ = rows.indices(self.shape[0])
        row = self.size // max(1, self.shape[0])
        return self.part((max(0, last - first), *self.shape[1:]), first * row)


class DLType(ctypes.Structure):
    _fields_ = (("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16))


class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device", c_int32),
        ("ndim", c_int32),
        ("dtype", DLType),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    )


class DLManagedTensor(ctypes.Structure):
    _fields_ = (("tensor", DLTensor), ("manager", c_void_p), ("deleter", c_void_p))


@ctypes.CFUNCTYPE(c_int, c_void_p, POINTER(DLTensor))
def _describe(reference: int, out: Any) -> int:
    array = ctypes.cast(reference, ctypes.py_object).value
    tensor = out.contents
    tensor.data, tensor.device_type, tensor.device = array.address, CUDA, array.number
    tensor.ndim, tensor.shape, tensor.strides = len(array.shape), array.extents, None
    tensor.dtype = DLType(CODES[array.dtype.kind], array.dtype.itemsize * 8, 1)
    tensor.byte_offset = 0
    return 0


@ctypes.CFUNCTYPE(c_int, c_int32, c_int32, POINTER(c_void_p))
def _current_stream(_kind: int, _device: int, stream: Any) -> int:
    stream[0] = device().stream
    return 0


class _Table(ctypes.Structure):
    _fields_ = (
        ("major", c_uint32),
        ("minor", c_uint32),
        ("previous", c_void_p),
        ("allocate", c_void_p),
        ("managed_from_object", c_void_p),
        ("managed_to_object", c_void_p),
        ("tensor_from_object", type(_describe)),
        ("current_work_stream", type(_current_stream)),
    )


_NAME = ctypes.create_string_buffer(b"dlpack_exchange_api")  # a capsule keeps the address
new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = (c_void_p, c_void_p, c_void_p)
_tables: list[_Table] = []


def capsule_of(describe: Any) -> Any:
    """The exchange table of a type whose tensors ``describe`` reads, as the type's attribute."""
    _tables.append(_Table(major=1, minor=3, tensor_from_object=describe, current_work_stream=_current_stream))
    return new_capsule(ctypes.addressof(_tables[-1]), ctypes.addressof(_NAME), None)


DeviceArray.__dlpack_c_exchange_api__ = capsule_of(_describe)


class DeviceAdapter:
    """:class:`horocache.collectives.tensor_adapter.TensorAdapter` for :class:`DeviceArray`."""

    plain_type = None

    def check(self, value: Any) -> DeviceArray:
        if not isinstance(value, DeviceArray):
            raise InvalidArgumentError(f"expected a DeviceArray, got {type(value).__name__}.")
        return value

    def as_is(self, value: Any, writable: bool) -> bool:
        return isinstance(value, DeviceArray)

    def check_writable(self, tensor: DeviceArray) -> None:
        """Every array is."""

    def shape(self, tensor: DeviceArray) -> tuple[int, ...]:
        return tensor.shape

    def dense(self, tensor: DeviceArray) -> tuple[DeviceArray, bool]:
        return tensor, False

    def empty_like(self, tensor: DeviceArray) -> DeviceArray:
        return DeviceArray(tensor.shape, tensor.dtype)

    def on_host(self, tensor: DeviceArray, values: bool) -> Any:
        return tensor.numpy() if values else np.empty(tensor.shape, tensor.dtype)

    def copy_into(self, target: DeviceArray, source: Any) -> None:
        target.copy_from(DeviceArray.of(source) if isinstance(source, np.ndarray) else source)

    def written(self, tensor: DeviceArray, answer: object = None) -> DeviceArray:
        return tensor

    def all_written(self, tensors: Any, answer: object = None) -> list[DeviceArray]:
        return list(tensors)

    def floating(self, tensor: DeviceArray) -> bool:
        return tensor.dtype.kind == "f"

    def float_type(self, tensor: DeviceArray) -> str:
        return tensor.dtype.name if tensor.dtype.kind == "f" else ""

    def to_numpy(self, tensor: DeviceArray) -> np.ndarray:
        return tensor.numpy().astype(np.float64 if tensor.dtype == np.float64 else np.float32)

    def store_numpy(self, target: DeviceArray, values: np.ndarray) -> None:
        target.copy_from(DeviceArray.of(values.astype(target.dtype)))

    def dot(self, a: DeviceArray, b: DeviceArray) -> float:
        return float(np.vdot(a.numpy().astype(np.float64), b.numpy().astype(np.float64)))

    def as_rows(self, tensor: DeviceArray) -> DeviceArray:
        return tensor if tensor.shape else tensor.part((1,))

    def first_rows(self, tensor: DeviceArray, rows: int) -> DeviceArray:
        return tensor[:rows]

    def from_result(self, result: Any) -> DeviceArray:
        assert result.cuda_device == 0, f"the result of an operation on the device says {result.cuda_device}"
        if not result.on_device:
            return DeviceArray.of(np.asarray(result))
        array = DeviceArray(result.shape, result.dtype)
        result.copy_to(array)
        return array

    def dtype_name(self, dtype: Any) -> str:
        return np.dtype(np.float32 if dtype is None else dtype).name

    def integers(self, values: Any) -> DeviceArray:
        return DeviceArray.of(np.array(values, np.int32))


collectives: Collectives[DeviceArray] = Collectives(DeviceAdapter())


def _moved(value: Any) -> Any:
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], np.ndarray):
        return [DeviceArray.of(array) for array in value]
    return DeviceArray.of(value) if isinstance(value, (np.ndarray, np.generic)) else value


def _fetched(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_fetched(item) for item in value)
    return value.numpy() if isinstance(value, DeviceArray) else value


class OnDevice:
    """The package ``horocache``, with collectives that move their NumPy arrays to the device, and results back."""

    def __init__(self, package: ModuleType) -> None:
        self._package = package

    def __getattr__(self, name: str) -> Any:
        return self._collective(name) if name in NAMES else getattr(self._package, name)

    def synchronize(self, handle: Any) -> Any:
        return _fetched(self._package.synchronize(handle))

    def _collective(self, name: str) -> Any:
        function = getattr(collectives, name)
        first = next(iter(inspect.signature(function).parameters))

        @functools.wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            given = arguments[0] if arguments else options[first]
            moved = _moved(given)
            if arguments:
                arguments = (moved, *arguments[1:])
            else:
                options[first] = moved
            result = function(*arguments, **options)
            if not name.endswith("_"):
                return _fetched(result)
            arrays, values = (given, result) if isinstance(given, list) else ([given], [result])
            for array, value in zip(arrays, values, strict=True):
                array[...] = value.numpy()
            return given

        return call
