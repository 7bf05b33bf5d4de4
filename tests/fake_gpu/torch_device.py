"""torch's tensors on the fake CUDA driver: the device ``fakecuda``, which ``horocache.torch`` takes for CUDA.

An operator copies its tensors from the device, computes on the CPU, and queues copies of the results to the device, on
the stream of :mod:`device_arrays`. The memory of a tensor and its views is one block of the device, with one copy on
the host in between, so that views and operators in place work as they do in torch.
"""

from __future__ import annotations

import contextlib
import ctypes
from ctypes import POINTER, c_int, c_int64, c_void_p
from typing import Any, ClassVar

import device_arrays
import horocache.torch as hvd  # noqa: F401  (the adapter's module exists once the package is imported)
import torch
from device_arrays import Block, DLManagedTensor, DLTensor, DLType, capsule_of, device
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from horocache import _core

NAME = "fakecuda"
_setup_privateuseone_for_python_backend(NAME)
# The guard of a backend in Python cannot be used by autograd's threads for devices.
torch.autograd.set_multithreading_enabled(False)

CODES = {torch.bool: 6, torch.bfloat16: 4}


def _code(dtype: torch.dtype) -> int:
    if dtype in CODES:
        return CODES[dtype]
    if dtype.is_complex:
        return 5
    if dtype.is_floating_point:
        return 2
    return 0 if dtype.is_signed else 1


class Memory:
    """A block of the device and the storage on the host that stands for it while an operator runs."""

    of_storage: ClassVar[dict[int, Memory]] = {}

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.storage = storage
        self.block = Block(max(1, storage.nbytes()))
        Memory.of_storage[storage.data_ptr()] = self

    @classmethod
    def of(cls, value: torch.Tensor) -> tuple[Memory, bool]:
        """The memory of a tensor of the host, and whether it is new."""
        storage = value.untyped_storage()
        found = cls.of_storage.get(storage.data_ptr()) if storage.nbytes() else None
        if found is not None and found.storage.nbytes() == storage.nbytes():
            return found, False
        return cls(storage), True

    def fetch(self) -> None:
        """Copy from the device, when its stream has computed the elements."""
        size = self.storage.nbytes()
        if size:
            device().driver.must(
                "cuMemcpyDtoHAsync_v2", self.storage.data_ptr(), self.block.address, size, device().stream
            )
            device().driver.synchronize(device().stream)

    def send(self, value: torch.Tensor) -> None:
        """Queue a copy of a tensor's elements to the device, and of nothing beyond: operations may work on that."""
        if value.numel():
            steps = zip(value.shape, value.stride(), strict=True)
            size = (1 + sum((count - 1) * step for count, step in steps)) * value.element_size()
            start = value.storage_offset() * value.element_size()
            place, source = self.block.address + start, self.storage.data_ptr() + start
            device().driver.must("cuMemcpyHtoDAsync_v2", place, source, size, device().stream)


class CudaTensor(torch.Tensor):
    """A tensor on the device; ``value`` is the tensor of the host that stands for it while an operator runs."""

    value: torch.Tensor
    memory: Memory

    @staticmethod
    def __new__(cls, value: torch.Tensor, memory: Memory) -> CudaTensor:
        place = torch.device(NAME, 0)
        layout = {"strides": value.stride(), "storage_offset": value.storage_offset()}
        make = torch.Tensor._make_wrapper_subclass  # noqa: SLF001  (torch has no other name for it)
        tensor = make(cls, value.shape, dtype=value.dtype, device=place, **layout)
        tensor.value, tensor.memory = value, memory
        extents = c_int64 * max(1, value.dim())
        tensor.extents = (extents(*value.shape), extents(*value.stride()))
        return tensor

    def data_ptr(self) -> int:
        """The address on the device, as torch gives it."""
        return self.memory.block.address + self.value.storage_offset() * self.value.element_size()

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = {id(t.value): t for t in tree_leaves((args, kwargs)) if isinstance(t, CudaTensor)}
        for memory in {id(t.memory): t.memory for t in given.values()}.values():
            memory.fetch()
        answer = function(*tree_map(_on_host, args), **tree_map(_on_host, kwargs))
        if function._schema.is_mutable:  # noqa: SLF001  (torch has no other name for it)
            for tensor in given.values():
                tensor.memory.send(tensor.value)
        to_host = "device" in kwargs and torch.device(kwargs["device"]).type == "cpu"
        return tree_map(lambda out: out if to_host else _on_device(out, given), answer)


def _on_host(value: Any) -> Any:
    if isinstance(value, CudaTensor):
        return value.value
    return torch.device("cpu") if isinstance(value, torch.device) and value.type == NAME else value


def _on_device(value: Any, given: dict[int, CudaTensor]) -> Any:
    if not isinstance(value, torch.Tensor) or isinstance(value, CudaTensor):
        return value
    if id(value) in given:
        return given[id(value)]
    memory, new = Memory.of(value)
    if new:
        memory.send(torch.empty(0, dtype=torch.uint8).set_(memory.storage))
    return CudaTensor(value, memory)


_library = torch.library.Library("aten", "IMPL")


def _empty(size: Any, *, dtype: Any = None, **_: Any) -> Any:
    return _on_device(torch.empty(size, dtype=dtype), {})


def _empty_strided(size: Any, stride: Any, *, dtype: Any = None, **_: Any) -> Any:
    return _on_device(torch.empty_strided(size, stride, dtype=dtype), {})


def _copy_from(source: Any, target: Any, non_blocking: bool = False) -> Any:
    for tensor in (source, target):
        if isinstance(tensor, CudaTensor):
            tensor.memory.fetch()
    _on_host(target).copy_(_on_host(source))
    if isinstance(target, CudaTensor):
        target.memory.send(target.value)
    return target


_library.impl("empty.memory_format", _empty, "PrivateUse1")
_library.impl("empty_strided", _empty_strided, "PrivateUse1")
_library.impl("_copy_from", _copy_from, "PrivateUse1")


def _fill(described: DLTensor, tensor: CudaTensor) -> None:
    value = tensor.value
    described.data = tensor.data_ptr()
    described.device_type, described.device = device_arrays.CUDA, 0
    described.ndim, (described.shape, described.strides) = value.dim(), tensor.extents
    described.dtype = DLType(_code(value.dtype), value.element_size() * 8, 1)
    described.byte_offset = 0


@ctypes.CFUNCTYPE(c_int, c_void_p, POINTER(DLTensor))
def _describe(reference: int, out: Any) -> int:
    _fill(out.contents, ctypes.cast(reference, ctypes.py_object).value)
    return 0


def _to_capsule(tensor: CudaTensor) -> Any:
    """DLPack's capsule, as torch's ``to_dlpack`` makes it."""
    tensor.managed = DLManagedTensor()
    _fill(tensor.managed.tensor, tensor)
    return device_arrays.new_capsule(ctypes.addressof(tensor.managed), ctypes.addressof(_CAPSULE_NAME), None)


_CAPSULE_NAME = ctypes.create_string_buffer(b"dltensor")  # a capsule keeps the address


CudaTensor.__dlpack_c_exchange_api__ = capsule_of(_describe)


class Event:
    """The work of a stream so far, as ``torch.cuda.Event``."""

    def __init__(self, stream: int) -> None:
        self.handle = device().driver.event()
        device().driver.must("cuEventRecord", self.handle, stream)


class Stream:
    """A stream, as ``torch.cuda.Stream``."""

    def __init__(self, handle: int | None = None) -> None:
        assert device().stream, "makes the context current in this thread"
        self.handle = device().driver.stream() if handle is None else handle

    def record_event(self) -> Event:
        """Return an event behind the work so far."""
        return Event(self.handle)

    def wait_event(self, event: Event) -> None:
        """Let later work wait for the event."""
        device().driver.must("cuStreamWaitEvent", self.handle, event.handle, 0)


def _module_of_the_device() -> Any:
    """torch's module of the device, with what ``torch.cuda`` has, too."""
    module: Any = torch.get_device_module(NAME)
    module.current_stream = lambda _device=None: Stream(device().stream)
    module.device = lambda _device: contextlib.nullcontext()
    module.stream = lambda stream: device().on_stream(stream.handle)
    return module


def accept(without_table: bool = False) -> None:
    """Let ``horocache.torch`` take tensors of this device for CUDA tensors.

    Args:
        without_table: as if torch were older than 2.10.
    """
    if without_table:
        CudaTensor.__dlpack_c_exchange_api__ = None
        _core.read_with(CudaTensor, _to_capsule, lambda _device: device().stream)
    from horocache.torch import adapter
    from horocache.torch.distributed import future_threads
    from horocache.torch.optimizer import bucket_views

    module = _module_of_the_device()

    def with_own_storage(tensor: torch.Tensor) -> torch.Tensor:
        return CudaTensor(tensor.value, tensor.memory) if isinstance(tensor, CudaTensor) else of_torch(tensor)

    def future_of(wait: Any, devices: Any) -> Any:
        """As torch does for its own devices: a callback runs on another stream, for which the future's users wait."""

        def on_another_stream() -> Any:
            other = Stream()
            with module.stream(other):
                answer = wait()
            module.current_stream().wait_event(other.record_event())
            return answer

        return of_cpu(on_another_stream if devices else wait, [])

    adapter.CUDA, of_torch = NAME, adapter.with_own_storage
    bucket_views.with_own_storage = with_own_storage
    of_cpu, future_threads._future_of = future_threads._future_of, future_of  # noqa: SLF001
