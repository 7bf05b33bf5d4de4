"""The CUDA driver API by ctypes: codes, prototypes, the calibration's kernels, and short helpers over them.

Prototypes follow cuda.h of CUDA 13.0. Of the functions with a suffix such as ``_v2``, the table has those that the
header's macros pick.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from enum import IntEnum
from typing import Any, ClassVar

from benchmarks.gpu.record import CallError, Library, UnavailableError


class Code(IntEnum):
    """``CUresult`` without its prefix: ``CUDA_SUCCESS``, ``CUDA_ERROR_...``."""

    SUCCESS = 0
    INVALID_VALUE = 1
    OUT_OF_MEMORY = 2
    NOT_INITIALIZED = 3
    DEINITIALIZED = 4
    STUB_LIBRARY = 34
    CALL_REQUIRES_NEWER_DRIVER = 36
    DEVICE_UNAVAILABLE = 46
    NO_DEVICE = 100
    INVALID_DEVICE = 101
    DEVICE_NOT_LICENSED = 102
    INVALID_IMAGE = 200
    INVALID_CONTEXT = 201
    CONTEXT_ALREADY_CURRENT = 202
    MAP_FAILED = 205
    UNMAP_FAILED = 206
    ARRAY_IS_MAPPED = 207
    ALREADY_MAPPED = 208
    NO_BINARY_FOR_GPU = 209
    ALREADY_ACQUIRED = 210
    NOT_MAPPED = 211
    ECC_UNCORRECTABLE = 214
    UNSUPPORTED_LIMIT = 215
    CONTEXT_ALREADY_IN_USE = 216
    PEER_ACCESS_UNSUPPORTED = 217
    INVALID_PTX = 218
    INVALID_GRAPHICS_CONTEXT = 219
    NVLINK_UNCORRECTABLE = 220
    JIT_COMPILER_NOT_FOUND = 221
    UNSUPPORTED_PTX_VERSION = 222
    JIT_COMPILATION_DISABLED = 223
    UNSUPPORTED_EXEC_AFFINITY = 224
    UNSUPPORTED_DEVSIDE_SYNC = 225
    CONTAINED = 226
    INVALID_SOURCE = 300
    FILE_NOT_FOUND = 301
    SHARED_OBJECT_SYMBOL_NOT_FOUND = 302
    SHARED_OBJECT_INIT_FAILED = 303
    OPERATING_SYSTEM = 304
    INVALID_HANDLE = 400
    ILLEGAL_STATE = 401
    LOSSY_QUERY = 402
    NOT_FOUND = 500
    NOT_READY = 600
    ILLEGAL_ADDRESS = 700
    LAUNCH_OUT_OF_RESOURCES = 701
    LAUNCH_TIMEOUT = 702
    LAUNCH_INCOMPATIBLE_TEXTURING = 703
    PEER_ACCESS_ALREADY_ENABLED = 704
    PEER_ACCESS_NOT_ENABLED = 705
    PRIMARY_CONTEXT_ACTIVE = 708
    CONTEXT_IS_DESTROYED = 709
    ASSERT = 710
    TOO_MANY_PEERS = 711
    HOST_MEMORY_ALREADY_REGISTERED = 712
    HOST_MEMORY_NOT_REGISTERED = 713
    HARDWARE_STACK_ERROR = 714
    ILLEGAL_INSTRUCTION = 715
    MISALIGNED_ADDRESS = 716
    INVALID_ADDRESS_SPACE = 717
    INVALID_PC = 718
    LAUNCH_FAILED = 719
    COOPERATIVE_LAUNCH_TOO_LARGE = 720
    TENSOR_MEMORY_LEAK = 721
    NOT_PERMITTED = 800
    NOT_SUPPORTED = 801
    SYSTEM_NOT_READY = 802
    SYSTEM_DRIVER_MISMATCH = 803
    COMPAT_NOT_SUPPORTED_ON_DEVICE = 804
    MPS_CONNECTION_FAILED = 805
    MPS_RPC_FAILURE = 806
    MPS_SERVER_NOT_READY = 807
    MPS_MAX_CLIENTS_REACHED = 808
    MPS_MAX_CONNECTIONS_REACHED = 809
    MPS_CLIENT_TERMINATED = 810
    STREAM_CAPTURE_UNSUPPORTED = 900
    STREAM_CAPTURE_INVALIDATED = 901
    STREAM_CAPTURE_MERGE = 902
    STREAM_CAPTURE_UNMATCHED = 903
    STREAM_CAPTURE_UNJOINED = 904
    STREAM_CAPTURE_ISOLATION = 905
    STREAM_CAPTURE_IMPLICIT = 906
    CAPTURED_EVENT = 907
    STREAM_CAPTURE_WRONG_THREAD = 908
    TIMEOUT = 909
    GRAPH_EXEC_UPDATE_FAILURE = 910
    EXTERNAL_DEVICE = 911
    INVALID_CLUSTER_SIZE = 912
    FUNCTION_NOT_LOADED = 913
    INVALID_RESOURCE_TYPE = 914
    INVALID_RESOURCE_CONFIGURATION = 915
    KEY_ROTATION = 916
    UNKNOWN = 999


NON_BLOCKING = 1  # stream flag
BLOCKING_SYNC, DISABLE_TIMING, INTERPROCESS = 1, 2, 4  # event flags
PORTABLE, DEVICEMAP = 1, 2  # cuMemHostRegister and cuMemHostAlloc
CAPTURE_GLOBAL, CAPTURE_THREAD_LOCAL, CAPTURE_RELAXED = 0, 1, 2
WAIT_GEQ, WAIT_EQ = 0, 1
MEMORY_HOST, MEMORY_DEVICE = 1, 2
POSIX_FD = 1
DEVICE_ATTRIBUTES = {
    "MULTIPROCESSOR_COUNT": 16,
    "COMPUTE_MODE": 20,
    "PCI_BUS_ID": 33,
    "ASYNC_ENGINE_COUNT": 40,
    "UNIFIED_ADDRESSING": 41,
    "COMPUTE_CAPABILITY_MAJOR": 75,
    "COMPUTE_CAPABILITY_MINOR": 76,
    "PAGEABLE_MEMORY_ACCESS": 88,
    "CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM": 91,
    "HOST_REGISTER_SUPPORTED": 99,
    "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED": 102,
    "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED": 103,
    "MEMORY_POOLS_SUPPORTED": 115,
    "GPU_DIRECT_RDMA_SUPPORTED": 116,
    "CAN_USE_STREAM_WAIT_VALUE_NOR": 123,
    "IPC_EVENT_SUPPORTED": 125,
}
POINTER_ATTRIBUTES = {
    "CONTEXT": 1,
    "MEMORY_TYPE": 2,
    "DEVICE_POINTER": 3,
    "HOST_POINTER": 4,
    "DEVICE_ORDINAL": 9,
    "IS_LEGACY_CUDA_IPC_CAPABLE": 10,
    "RANGE_START_ADDR": 11,
    "RANGE_SIZE": 12,
    "MAPPED": 13,
    "ALLOWED_HANDLE_TYPES": 14,
}


class IpcMemHandle(ctypes.Structure):
    """``CUipcMemHandle``: passed by value to cuIpcOpenMemHandle."""

    _fields_ = [("reserved", c_ubyte * 64)]


class Location(ctypes.Structure):
    """``CUmemLocation``; type 1 is a device."""

    _fields_ = [("type", c_int), ("id", c_int)]


class AllocationFlags(ctypes.Structure):
    """``CUmemAllocationProp::allocFlags``."""

    _fields_ = [
        ("compressionType", c_ubyte),
        ("gpuDirectRDMACapable", c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", c_ubyte * 4),
    ]


class AllocationProperties(ctypes.Structure):
    """``CUmemAllocationProp``; type 1 is pinned."""

    _fields_ = [
        ("type", c_int),
        ("requestedHandleTypes", c_int),
        ("location", Location),
        ("win32HandleMetaData", c_void_p),
        ("allocFlags", AllocationFlags),
    ]


class AccessDescription(ctypes.Structure):
    """``CUmemAccessDesc``; flags 3 allow reading and writing."""

    _fields_ = [("location", Location), ("flags", c_int)]


class CopyAttributes(ctypes.Structure):
    """``CUmemcpyAttributes``; srcAccessOrder 1 is stream order."""

    _fields_ = [("srcAccessOrder", c_int), ("srcLocHint", Location), ("dstLocHint", Location), ("flags", c_uint)]


HostFunction = ctypes.CFUNCTYPE(None, c_void_p)
_I, _U, _L, _S, _P, _T = c_int, c_uint, c_uint64, c_size_t, c_void_p, c_char_p
_PI, _PU, _PL, _PS, _PP, _PT = POINTER(_I), POINTER(_U), POINTER(_L), POINTER(_S), POINTER(_P), POINTER(_T)

PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "cuInit": (_U,),
    "cuDriverGetVersion": (_PI,),
    "cuGetErrorName": (_I, _PT),
    "cuGetErrorString": (_I, _PT),
    "cuGetProcAddress_v2": (_T, _PP, _I, _L, _PI),
    "cuDeviceGet": (_PI, _I),
    "cuDeviceGetCount": (_PI,),
    "cuDeviceGetName": (_T, _I, _I),
    "cuDeviceGetAttribute": (_PI, _I, _I),
    "cuDeviceTotalMem_v2": (_PS, _I),
    "cuDevicePrimaryCtxRetain": (_PP, _I),
    "cuDevicePrimaryCtxRelease_v2": (_I,),
    "cuDevicePrimaryCtxGetState": (_I, _PU, _PI),
    "cuCtxGetCurrent": (_PP,),
    "cuCtxSetCurrent": (_P,),
    "cuCtxPushCurrent_v2": (_P,),
    "cuCtxPopCurrent_v2": (_PP,),
    "cuCtxGetDevice": (_PI,),
    "cuCtxSynchronize": (),
    "cuCtxGetStreamPriorityRange": (_PI, _PI),
    "cuModuleLoadData": (_PP, _P),
    "cuModuleUnload": (_P,),
    "cuModuleGetFunction": (_PP, _P, _T),
    "cuModuleGetLoadingMode": (_PI,),
    "cuMemGetInfo_v2": (_PS, _PS),
    "cuMemAlloc_v2": (_PL, _S),
    "cuMemFree_v2": (_L,),
    "cuMemHostAlloc": (_PP, _S, _U),
    "cuMemFreeHost": (_P,),
    "cuMemHostRegister_v2": (_P, _S, _U),
    "cuMemHostUnregister": (_P,),
    "cuMemHostGetDevicePointer_v2": (_PL, _P, _U),
    "cuMemHostGetFlags": (_PU, _P),
    "cuPointerGetAttribute": (_P, _I, _L),
    "cuPointerGetAttributes": (_U, _PI, _PP, _L),
    "cuMemcpyAsync": (_L, _L, _S, _P),
    "cuMemcpyHtoD_v2": (_L, _P, _S),
    "cuMemcpyDtoH_v2": (_P, _L, _S),
    "cuMemcpyHtoDAsync_v2": (_L, _P, _S, _P),
    "cuMemcpyDtoHAsync_v2": (_P, _L, _S, _P),
    "cuMemcpyDtoDAsync_v2": (_L, _L, _S, _P),
    "cuMemsetD8Async": (_L, c_ubyte, _S, _P),
    "cuMemsetD32Async": (_L, _U, _S, _P),
    "cuMemcpyBatchAsync_v2": (_PL, _PL, _PS, _S, POINTER(CopyAttributes), _PS, _S, _P),
    "cuStreamCreate": (_PP, _U),
    "cuStreamCreateWithPriority": (_PP, _U, _I),
    "cuStreamGetPriority": (_P, _PI),
    "cuStreamGetFlags": (_P, _PU),
    "cuStreamWaitEvent": (_P, _P, _U),
    "cuStreamQuery": (_P,),
    "cuStreamSynchronize": (_P,),
    "cuStreamDestroy_v2": (_P,),
    "cuStreamBeginCapture_v2": (_P, _I),
    "cuStreamEndCapture": (_P, _PP),
    "cuStreamIsCapturing": (_P, _PI),
    "cuStreamGetCaptureInfo_v3": (_P, _PI, _PL, _PP, _PP, _PP, _PS),
    "cuThreadExchangeStreamCaptureMode": (_PI,),
    "cuGraphInstantiateWithFlags": (_PP, _P, _L),
    "cuGraphLaunch": (_P, _P),
    "cuGraphExecDestroy": (_P,),
    "cuGraphDestroy": (_P,),
    "cuEventCreate": (_PP, _U),
    "cuEventRecord": (_P, _P),
    "cuEventQuery": (_P,),
    "cuEventSynchronize": (_P,),
    "cuEventDestroy_v2": (_P,),
    "cuEventElapsedTime_v2": (POINTER(ctypes.c_float), _P, _P),
    "cuLaunchKernel": (_P, _U, _U, _U, _U, _U, _U, _U, _P, _PP, _PP),
    "cuLaunchHostFunc": (_P, HostFunction, _P),
    "cuStreamWaitValue32_v2": (_P, _L, _U, _U),
    "cuStreamWriteValue32_v2": (_P, _L, _U, _U),
    "cuIpcGetMemHandle": (POINTER(IpcMemHandle), _L),
    "cuIpcOpenMemHandle_v2": (_PL, IpcMemHandle, _U),
    "cuIpcCloseMemHandle": (_L,),
    "cuMemGetAllocationGranularity": (_PS, POINTER(AllocationProperties), _I),
    "cuMemCreate": (_PL, _S, POINTER(AllocationProperties), _L),
    "cuMemRelease": (_L,),
    "cuMemAddressReserve": (_PL, _S, _S, _L, _L),
    "cuMemAddressFree": (_L, _S),
    "cuMemMap": (_L, _S, _S, _L, _L),
    "cuMemUnmap": (_L, _S),
    "cuMemSetAccess": (_L, _S, POINTER(AccessDescription), _S),
    "cuMemExportToShareableHandle": (_P, _L, _I, _L),
    "cuMemImportFromShareableHandle": (_PL, _P, _I),
}

PTX_HEADER = ".version 7.0\n.target sm_70\n.address_size 64\n"
KERNELS = ("spin_ns", "nothing", "store_u32", "trap_now")
PTX = (
    PTX_HEADER
    + """
// Runs for at least `duration` nanoseconds.
.visible .entry spin_ns(.param .u64 duration)
{
  .reg .u64 %rd<5>;
  .reg .pred %p<2>;
  ld.param.u64 %rd1, [duration];
  mov.u64 %rd2, %globaltimer;
SPIN:
  mov.u64 %rd3, %globaltimer;
  sub.u64 %rd4, %rd3, %rd2;
  setp.lt.u64 %p1, %rd4, %rd1;
  @%p1 bra SPIN;
  ret;
}

.visible .entry nothing()
{
  ret;
}

// Stores `value` at `address` without any check.
.visible .entry store_u32(.param .u64 address, .param .u32 value)
{
  .reg .u64 %rd<2>;
  .reg .u32 %r<2>;
  ld.param.u64 %rd1, [address];
  ld.param.u32 %r1, [value];
  st.global.u32 [%rd1], %r1;
  ret;
}

.visible .entry trap_now()
{
  trap;
  ret;
}
"""
)


class Driver(Library):
    """libcuda with the primary context of device 0."""

    def __init__(self, path: str) -> None:
        super().__init__(path, PROTOTYPES, Code)
        self.device = 0
        self.context: int | None = None
        self.functions: dict[str, int] = {}
        self._keep: list[object] = []  # images and arguments that the library may still read

    def spell(self, code: IntEnum) -> str:
        """``CUDA_SUCCESS`` or ``CUDA_ERROR_...``."""
        return "CUDA_SUCCESS" if code == 0 else f"CUDA_ERROR_{code.name}"

    def start(self) -> None:
        """Initialize, and make the primary context of device 0 current in this thread.

        Raises:
            UnavailableError: no device is usable.
        """
        try:
            self.must("cuInit", 0)
            self.must("cuDeviceGet", ctypes.byref(c_int()), 0)
            self.context = self.retain()
            self.use()
        except CallError as error:
            raise UnavailableError(f"no usable device: {error}") from None

    def retain(self) -> int | None:
        """Retain the primary context."""
        context = c_void_p()
        self.must("cuDevicePrimaryCtxRetain", ctypes.byref(context), self.device)
        return context.value

    def use(self) -> None:
        """Make the primary context current in this thread."""
        self.must("cuCtxSetCurrent", self.context)

    def load_kernels(self) -> None:
        """Load the calibration's module and run its delay kernel once."""
        module = self.module(PTX)
        self.functions = {name: self.function(module, name) for name in KERNELS}
        stream = self.stream()
        self.busy(stream, 0.01)
        self.must("cuStreamSynchronize", stream)
        self.must("cuStreamDestroy_v2", stream)

    def warm_up(self) -> None:
        """Use the driver's own kernels and copy engines once, so that no later call loads anything."""
        stream, first, second, host = self.stream(), self.allocate(4096), self.allocate(4096), self.pinned(4096)
        self.launch("nothing", stream)
        self.must("cuMemsetD8Async", first, 1, 4096, stream)
        self.must("cuMemsetD32Async", first, 1, 1024, stream)
        self.must("cuMemcpyDtoDAsync_v2", second, first, 4096, stream)
        self.must("cuMemcpyDtoHAsync_v2", host, second, 4096, stream)
        self.must("cuMemcpyHtoDAsync_v2", first, host, 4096, stream)
        self.must("cuStreamSynchronize", stream)
        self.must("cuStreamDestroy_v2", stream)

    def module(self, text: str) -> int:
        """Load PTX text."""
        module, image = c_void_p(), ctypes.create_string_buffer(text.encode())
        self._keep.append(image)
        self.must("cuModuleLoadData", ctypes.byref(module), ctypes.addressof(image))
        return module.value or 0

    def function(self, module: int, name: str) -> int:
        """Look up an entry of a module."""
        function = c_void_p()
        self.must("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        return function.value or 0

    def stream(self, flags: int = NON_BLOCKING) -> int:
        """Create a stream."""
        stream = c_void_p()
        self.must("cuStreamCreate", ctypes.byref(stream), flags)
        return stream.value or 0

    def event(self, flags: int = DISABLE_TIMING) -> int:
        """Create an event."""
        event = c_void_p()
        self.must("cuEventCreate", ctypes.byref(event), flags)
        return event.value or 0

    def allocate(self, size: int) -> int:
        """Allocate device memory."""
        pointer = c_uint64()
        self.must("cuMemAlloc_v2", ctypes.byref(pointer), size)
        return pointer.value

    def pinned(self, size: int) -> int:
        """Allocate pinned host memory."""
        pointer = c_void_p()
        self.must("cuMemHostAlloc", ctypes.byref(pointer), size, PORTABLE)
        return pointer.value or 0

    def launch_arguments(self, *arguments: Any) -> Any:
        """The array of pointers that cuLaunchKernel takes; ``arguments`` are ctypes values."""
        array = (c_void_p * max(1, len(arguments)))(*(ctypes.addressof(value) for value in arguments))
        self._keep = [*self._keep[-64:], (array, arguments)]
        return array

    def launch(self, name: str, stream: int, *arguments: Any) -> int:
        """Launch one thread of a kernel; returns the code."""
        pointers = self.launch_arguments(*arguments)
        return int(self.cuLaunchKernel(self.functions[name], 1, 1, 1, 1, 1, 1, 0, stream, pointers, None))

    def busy(self, stream: int, ms: float) -> None:
        """Keep a stream busy for at least ``ms`` milliseconds."""
        code = self.launch("spin_ns", stream, c_uint64(int(ms * 1e6)))
        if code != 0:
            raise CallError(f"cuLaunchKernel of the delay kernel: {self.code_name(code)}", code)

    def synchronize(self, stream: int) -> None:
        """Wait until a stream is idle."""
        self.must("cuStreamSynchronize", stream)

    def settle(self, stream: int, limit_s: float) -> int:
        """Poll a stream until it is idle, fails or ``limit_s`` is over; the last code of cuStreamQuery."""
        deadline = time.monotonic() + limit_s
        while True:
            code = int(self.cuStreamQuery(stream))
            if code != Code.NOT_READY or time.monotonic() > deadline:
                return code
            time.sleep(0.0002)

    def upload(self, pointer: int, data: bytes) -> None:
        """Copy to the device and wait."""
        if data:
            self.must("cuMemcpyHtoD_v2", pointer, ctypes.create_string_buffer(data, len(data)), len(data))

    def download(self, pointer: int, size: int) -> bytes:
        """Copy from the device and wait."""
        buffer = ctypes.create_string_buffer(max(1, size))
        if size:
            self.must("cuMemcpyDtoH_v2", buffer, pointer, size)
        return buffer.raw[:size]

    def memory_attribute(self, name: str, pointer: int) -> tuple[int, int]:
        """One attribute of an address: the code and the value."""
        value = c_uint64()
        code = self.cuPointerGetAttribute(ctypes.byref(value), POINTER_ATTRIBUTES[name], pointer)
        return int(code), value.value


class SharedMemory:
    """A memfd, mapped shared, as horocache's arenas are. It stays mapped to the end of the process.

    Memory that is unmapped while it is registered stays registered: the driver then refuses to register the next
    mapping at its address (712), and allocations of device memory that would get the address (208).
    """

    _all: ClassVar[list[mmap.mmap]] = []

    def __init__(self, size: int, descriptor: int | None = None) -> None:
        self.size = size
        self.descriptor = os.memfd_create("calibrate") if descriptor is None else descriptor
        if descriptor is None:
            os.ftruncate(self.descriptor, size)
        self._map = mmap.mmap(self.descriptor, size)
        SharedMemory._all.append(self._map)
        self.address = ctypes.addressof(c_ubyte.from_buffer(self._map))

    def touch(self) -> None:
        """Write to each page."""
        ctypes.memset(self.address, 1, self.size)

    def read(self, offset: int, size: int) -> bytes:
        """Bytes as the host sees them."""
        return ctypes.string_at(self.address + offset, size)

    def write(self, offset: int, data: bytes) -> None:
        """Change bytes."""
        ctypes.memmove(self.address + offset, data, len(data))


def handle(value: c_void_p) -> str:
    """NULL or an address, for notes."""
    return "NULL" if value.value is None else f"{value.value:#x}"
