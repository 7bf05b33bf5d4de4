"""Calibration of what PyTorch does with streams, DLPack and NCCL. This is the only module that imports torch."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import tempfile
import time
from collections.abc import Callable
from ctypes import c_char_p, c_int, c_int32, c_uint32, c_uint64, c_void_p, py_object
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu.cuda import Driver
from benchmarks.gpu.record import Recorder, UnavailableError, median, run_groups
from benchmarks.gpu.session import Session

ATTRIBUTES = ("__dlpack_c_exchange_api__", "__c_dlpack_exchange_api__")
CPU, CUDA_DEVICE, CUDA_HOST = 1, 2, 3
MIB = 1 << 20


class ExchangeApi(ctypes.Structure):
    """``DLPackExchangeAPI``: the header, then five functions."""

    _fields_ = [
        ("major", c_uint32),
        ("minor", c_uint32),
        ("previous", c_void_p),
        ("managed_tensor_allocator", c_void_p),
        ("managed_tensor_from_py_object_no_sync", c_void_p),
        ("managed_tensor_to_py_object_no_sync", c_void_p),
        ("dltensor_from_py_object_no_sync", c_void_p),
        ("current_work_stream", c_void_p),
    ]


class Tensor(ctypes.Structure):
    """``DLTensor``."""

    _fields_ = [
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", c_uint64),
    ]


class Facts:
    """torch, and rows."""

    def __init__(self, session: Session) -> None:
        start = time.perf_counter()
        try:
            self.torch: Any = importlib.import_module("torch")
        except ImportError as error:
            raise UnavailableError(f"cannot import torch: {error}") from None
        self.recorder: Recorder = session.recorder
        self.cuda_path = session.cuda_path
        self.row("import", "import torch", self.torch.__version__, ms=(time.perf_counter() - start) * 1000)

    def row(self, name: str, call: str, seen: object, expect: str | None = None, ms: float = 0, note: str = "") -> None:
        """Write a row."""
        self.recorder.add(name, call, "", str(seen), expect, ms, note=note)

    def raises(self, name: str, call: str, function: Callable[[], object], expect: str | None = None) -> None:
        """A row with the class of the exception, or with the result's type."""
        self.recorder.begin(name, call)
        try:
            result = function()
        except Exception as error:
            self.row(name, call, type(error).__name__, expect, note=str(error).splitlines()[0] if str(error) else "")
        else:
            self.row(name, call, f"a {type(result).__name__}", expect)


def facts(session: Session) -> None:
    """Streams, DLPack, the exchange API, memory and libraries of torch."""
    known = Facts(session)
    run_groups(session.recorder, (_attributes, _libraries), known)
    if not known.torch.cuda.is_available():
        raise UnavailableError("torch.cuda.is_available() is False")
    run_groups(session.recorder, (_streams, _dlpack, _exchange_api, _memory, _ready_event), known)


def _attributes(known: Facts) -> None:
    for name in ATTRIBUTES:
        known.row(f"attribute {name}", "hasattr", hasattr(known.torch.Tensor, name))
    known.row("CUDA version of torch", "torch.version.cuda", known.torch.version.cuda)
    known.row("NCCL version of torch", "torch.cuda.nccl.version", known.torch.cuda.nccl.version())


def _libraries(known: Facts) -> None:
    """Which copies of the libraries are mapped, and whether a loader finds them without a path."""
    mapped = sorted({line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if ".so" in line})
    for name in ("libnccl", "libcuda.so", "libcudart", "libnvshmem"):
        paths = ", ".join(path for path in mapped if name in path)
        known.row(f"{name} mapped after the import", "/proc/self/maps", paths)
    for name in ("libnccl.so.2", "libcuda.so.1"):
        already_loaded = os.RTLD_NOLOAD | os.RTLD_NOW
        try:
            ctypes.CDLL(name, mode=already_loaded)
            known.row(f"{name} with RTLD_NOLOAD", "dlopen", "found")
        except OSError as error:
            known.row(f"{name} with RTLD_NOLOAD", "dlopen", "not found", note=str(error))


def _streams(known: Facts) -> None:
    torch, driver, current, state = known.torch, Driver(known.cuda_path), c_void_p(), c_int()
    default = torch.cuda.current_stream().cuda_stream
    known.row("handle of the default stream", "torch.cuda.current_stream", default, "0")
    torch.zeros(1, device="cuda")
    driver.must("cuCtxGetCurrent", ctypes.byref(current))
    primary = driver.retain()
    known.row("context of torch is the primary one", "cuCtxGetCurrent", current.value == primary, "True")
    stream = torch.cuda.Stream()
    flags, priority = ctypes.c_uint(), c_int()
    driver.must("cuStreamGetFlags", stream.cuda_stream, ctypes.byref(flags))
    driver.must("cuStreamGetPriority", stream.cuda_stream, ctypes.byref(priority))
    known.row("flags of a torch stream", "cuStreamGetFlags", flags.value, "1", note=f"priority {priority.value}")
    with torch.cuda.stream(stream):
        inside = torch.cuda.current_stream().cuda_stream
        known.row("handle inside a stream context", "torch.cuda.current_stream", inside == stream.cuda_stream, "True")
    driver.must("cuStreamIsCapturing", None, ctypes.byref(state))
    known.row("capture state of the default stream", "cuStreamIsCapturing", state.value, "0")


def _dlpack(known: Facts) -> None:
    torch = known.torch
    tensor, call = torch.ones(8, device="cuda"), "torch.Tensor.__dlpack__"
    pinned = torch.ones(8).pin_memory()
    for words, made, device in (
        ("CUDA", tensor, "(2, 0)"),
        ("pinned", pinned, "(3, 0)"),
        ("CPU", torch.ones(8), "(1, 0)"),
    ):
        seen = tuple(map(int, made.__dlpack_device__()))
        known.row(f"device of a {words} tensor", "__dlpack_device__", seen, device)
    known.raises("no argument", call, tensor.__dlpack__, "a PyCapsule")
    other = torch.cuda.Stream().cuda_stream
    streams = {
        "None": (None, "a PyCapsule"),
        "-1": (-1, "a PyCapsule"),
        "0": (0, None),
        "1": (1, "a PyCapsule"),
        "2": (2, "BufferError"),
        "a handle": (other, "a PyCapsule"),
        "a text": ("x", None),
    }
    for words, (stream, expect) in streams.items():
        known.raises(f"stream={words}", call, partial(tensor.__dlpack__, stream=stream), expect)
    version = {"max_version": (1, 3)}
    known.raises("max_version=(1, 3)", call, lambda: tensor.__dlpack__(**version), "a PyCapsule")
    wanting = torch.ones(8, device="cuda", requires_grad=True)
    known.raises("requires_grad", call, wanting.__dlpack__, "BufferError")
    known.raises("requires_grad, detached", call, wanting.detach().__dlpack__, "a PyCapsule")
    conjugate = torch.ones(8, dtype=torch.complex64, device="cuda").conj()
    known.raises("conjugate", call, conjugate.__dlpack__, "BufferError")
    known.raises("sparse", call, torch.ones(8, device="cuda").to_sparse().__dlpack__, "BufferError")
    known.raises("pinned, no argument", call, pinned.__dlpack__)
    known.raises("pinned, stream=1", call, lambda: pinned.__dlpack__(stream=1))
    for kind in ("bool", "float8_e4m3fn", "bfloat16", "complex64"):
        made = torch.zeros(8, device="cuda").to(getattr(torch, kind))
        known.raises(f"data type {kind}", call, made.__dlpack__)


def _exchange_api(known: Facts) -> None:
    torch, python = known.torch, ctypes.pythonapi
    attribute = next((getattr(torch.Tensor, name) for name in ATTRIBUTES if hasattr(torch.Tensor, name)), None)
    known.row("type of the exchange API", "getattr", type(attribute).__name__, "PyCapsule")
    if attribute is None:
        return
    address = attribute if isinstance(attribute, int) else None
    if address is None:
        python.PyCapsule_GetName.restype, python.PyCapsule_GetName.argtypes = c_char_p, (py_object,)
        python.PyCapsule_GetPointer.restype = c_void_p
        python.PyCapsule_GetPointer.argtypes = (py_object, c_char_p)
        name = python.PyCapsule_GetName(attribute)
        known.row("name of its capsule", "PyCapsule_GetName", (name or b"").decode(), "dlpack_exchange_api")
        address = python.PyCapsule_GetPointer(attribute, name)
    api = ExchangeApi.from_address(address)
    known.row("version of its header", "DLPackExchangeAPIHeader", f"{api.major}.{api.minor}")
    known.row("previous version", "prev_api", "NULL" if not api.previous else "a pointer")
    for field, _ in ExchangeApi._fields_[3:]:  # type: ignore[misc]
        known.row(f"function {field}", "DLPackExchangeAPI", "NULL" if not getattr(api, field) else "there")
    if api.major != 1 or not api.current_work_stream:
        return
    _exchange_calls(known, api)


def _exchange_calls(known: Facts, api: ExchangeApi) -> None:
    torch, stream = known.torch, c_void_p(77)
    work_stream = ctypes.PYFUNCTYPE(c_int, c_int, c_int32, ctypes.POINTER(c_void_p))(api.current_work_stream)
    code = work_stream(CUDA_DEVICE, 0, ctypes.byref(stream))
    known.row("work stream, default", "current_work_stream", f"{code}, {stream.value or 0}", "0, 0")
    own = torch.cuda.Stream()
    with torch.cuda.stream(own):
        code = work_stream(CUDA_DEVICE, 0, ctypes.byref(stream))
        seen = f"{code}, {stream.value == own.cuda_stream}"
        known.row("work stream in a context", "current_work_stream", seen, "0, True")
    for words, kind in (("the CPU", CPU), ("pinned memory", CUDA_HOST)):
        stream.value = 77
        try:
            code = work_stream(kind, 0, ctypes.byref(stream))
            known.row(f"work stream of {words}", "current_work_stream", f"{code}, {stream.value or 0}")
        except Exception as error:  # the function sets a Python exception when it refuses
            known.row(f"work stream of {words}", "current_work_stream", type(error).__name__, note=str(error))
    if not api.dltensor_from_py_object_no_sync:
        return
    borrow = ctypes.PYFUNCTYPE(c_int, py_object, ctypes.POINTER(Tensor))(api.dltensor_from_py_object_no_sync)
    tensors = {
        "a CUDA tensor": torch.ones(2, 3, device="cuda"),
        "a tensor that requires a gradient": torch.ones(2, 3, device="cuda", requires_grad=True),
        "a pinned tensor": torch.ones(2, 3).pin_memory(),
    }
    for words, tensor in tensors.items():
        view = Tensor()

        def call(tensor: Any = tensor, view: Tensor = view) -> str:
            code = borrow(tensor, ctypes.byref(view))
            same = (view.data or 0) + view.byte_offset == tensor.data_ptr()
            return f"{code}, device {view.device_type}:{view.device_id}, {view.ndim} dimensions, same address {same}"

        try:
            known.row(f"borrow {words}", "dltensor_from_py_object_no_sync", call())
        except Exception as error:  # the function sets a Python exception when it refuses
            known.row(f"borrow {words}", "dltensor_from_py_object_no_sync", type(error).__name__, note=str(error))


def _memory(known: Facts) -> None:
    torch, driver = known.torch, Driver(known.cuda_path)
    tensors = {"a CUDA tensor": torch.ones(1 << 20, device="cuda"), "a pinned tensor": torch.ones(1024).pin_memory()}
    for words, tensor in tensors.items():
        for name in ("MEMORY_TYPE", "IS_LEGACY_CUDA_IPC_CAPABLE", "ALLOWED_HANDLE_TYPES", "RANGE_SIZE"):
            code, value = driver.memory_attribute(name, tensor.data_ptr())
            known.row(f"{name} of {words}", "cuPointerGetAttribute", value if code == 0 else driver.code_name(code))
    first = torch.ones(1024, device="cuda")
    address = first.data_ptr()
    del first
    second = torch.ones(1024, device="cuda")
    known.row("freed memory is given out again at once", "torch.ones", second.data_ptr() == address)


def _ready_event(known: Facts) -> None:
    """An event of ours on torch's default stream, as the backend records it at submission."""
    torch, driver = known.torch, Driver(known.cuda_path)
    driver.must("cuInit", 0)
    event, matrix = driver.event(), torch.ones(8192, 8192, device="cuda")
    torch.cuda.synchronize()
    for _ in range(10):
        matrix = matrix @ matrix * 1e-4
    driver.must("cuEventRecord", event, torch.cuda.current_stream().cuda_stream)
    code = driver.cuEventQuery(event)
    known.row("our event on torch's stream", "cuEventQuery", driver.code_name(code), "CUDA_ERROR_NOT_READY")
    torch.cuda.synchronize()
    code = driver.cuEventQuery(event)
    known.row("our event after torch is done", "cuEventQuery", driver.code_name(code), "CUDA_SUCCESS")


def distributed(session: Session) -> None:
    """torch.distributed with one rank: what an allreduce costs there."""
    known = Facts(session)
    if not known.torch.cuda.is_available():
        raise UnavailableError("torch.cuda.is_available() is False")
    run_groups(session.recorder, (_allreduces,), known)
    with contextlib.suppress(Exception):
        known.torch.distributed.destroy_process_group()


def _allreduces(known: Facts) -> None:
    torch, group = known.torch, known.torch.distributed
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        device = torch.device("cuda", 0)
        group.init_process_group("nccl", init_method=f"file://{folder}/store", rank=0, world_size=1, device_id=device)
        known.row("init", "init_process_group", "done", ms=(time.perf_counter() - start) * 1000)
        for count, label, repetitions in ((1, "4 B", 300), (4 * MIB, "16 MiB", 100)):
            tensor = torch.ones(count, device="cuda")
            for _ in range(5):
                group.all_reduce(tensor)
            torch.cuda.synchronize()
            host, whole = [], []
            first, second = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            for _ in range(repetitions):
                first.record()
                start = time.perf_counter()
                group.all_reduce(tensor)
                host.append((time.perf_counter() - start) * 1e6)
                second.record()
                torch.cuda.synchronize()
                whole.append(first.elapsed_time(second) * 1000)
            for words, times in (("host", host), ("device", whole)):
                seen = f"{median(times):.4g} us"
                name = f"all_reduce of {label}, 1 rank, {words}"
                known.recorder.add(name, "torch.distributed.all_reduce", label, seen, None, 0, median(times), "us")
