"""NCCL by ctypes: codes, data types, the configuration's layout, prototypes, and where to find the library.

Prototypes follow nccl.h of 2.30.7; a function that an older library lacks is reported as not exported.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import math
import struct
import sys
import time
from collections.abc import Callable
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from benchmarks.gpu.cuda import Driver
from benchmarks.gpu.record import CallError, Library

UNDEFINED_INT = -(2**31)
CONFIG_MAGIC = 0xCAFEBEEF
NO_COLOR = -1
OPERATIONS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}
SCALAR_ON_DEVICE, SCALAR_IMMEDIATE = 0, 1
WINDOW_DEFAULT, WINDOW_SYMMETRIC = 0, 1


class Result(IntEnum):
    """``ncclResult_t``."""

    Success = 0
    UnhandledCudaError = 1
    SystemError = 2
    InternalError = 3
    InvalidArgument = 4
    InvalidUsage = 5
    RemoteError = 6
    InProgress = 7
    Timeout = 8


class UniqueId(ctypes.Structure):
    """``ncclUniqueId``: passed by value."""

    _fields_ = [("internal", c_ubyte * 128)]


class Config(ctypes.Structure):
    """``ncclConfig_t`` of 2.32; ``size`` says how much of it a library may read."""

    _fields_ = [
        ("size", c_size_t),
        ("magic", c_uint),
        ("version", c_uint),
        ("blocking", c_int),
        ("cgaClusterSize", c_int),
        ("minCTAs", c_int),
        ("maxCTAs", c_int),
        ("netName", c_char_p),
        ("splitShare", c_int),
        ("trafficClass", c_int),
        ("commName", c_char_p),
        ("collnetEnable", c_int),
        ("CTAPolicy", c_int),
        ("shrinkShare", c_int),
        ("nvlsCTAs", c_int),
        ("nChannelsPerNetPeer", c_int),
        ("nvlinkCentricSched", c_int),
        ("graphUsageMode", c_int),
        ("numRmaCtx", c_int),
        ("maxP2pPeers", c_int),
        ("graphStreamOrdering", c_int),
        ("launchOrderImplicit", c_int),
        ("numRmaSig", c_int),
        ("rmaEagerInit", c_int),
        ("hostCftMode", c_int),
        ("nvlsHostMode", c_int),
    ]


CONFIG_SIZES = {"2.14": (24, 21400), "2.18": (48, 21801), "2.27": (72, 22703), "2.28": (80, 22809), "2.30": (96, 23007)}


def config(layout: str = "2.27", **values: Any) -> Config:
    """A configuration of an old layout with its true size and version; fields not named are undefined."""
    size, number = CONFIG_SIZES[layout]
    result = Config(size=size, magic=CONFIG_MAGIC, version=number)
    for name, kind in Config._fields_[3:]:  # type: ignore[misc]
        if kind is c_int:
            setattr(result, name, UNDEFINED_INT)
    for name, value in values.items():
        setattr(result, name, value)
    return result


_I, _S, _P, _U = c_int, c_size_t, c_void_p, c_uint
_PI, _PP, _PC = POINTER(_I), POINTER(_P), POINTER(Config)

PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "ncclGetVersion": (_PI,),
    "ncclGetUniqueId": (POINTER(UniqueId),),
    "ncclCommInitRank": (_PP, _I, UniqueId, _I),
    "ncclCommInitRankConfig": (_PP, _I, UniqueId, _I, _PC),
    "ncclCommInitRankScalable": (_PP, _I, _I, _I, POINTER(UniqueId), _PC),
    "ncclCommInitAll": (_PP, _I, _PI),
    "ncclCommFinalize": (_P,),
    "ncclCommDestroy": (_P,),
    "ncclCommAbort": (_P,),
    "ncclCommRevoke": (_P, _I),
    "ncclCommSplit": (_P, _I, _I, _PP, _PC),
    "ncclCommShrink": (_P, _PI, _I, _PP, _PC, _I),
    "ncclCommGetAsyncError": (_P, _PI),
    "ncclCommCount": (_P, _PI),
    "ncclCommCuDevice": (_P, _PI),
    "ncclCommUserRank": (_P, _PI),
    "ncclCommRegister": (_P, _P, _S, _PP),
    "ncclCommDeregister": (_P, _P),
    "ncclCommWindowRegister": (_P, _P, _S, _PP, _I),
    "ncclCommWindowDeregister": (_P, _P),
    "ncclMemAlloc": (_PP, _S),
    "ncclMemFree": (_P,),
    "ncclRedOpCreatePreMulSum": (_PI, _P, _I, _I, _P),
    "ncclRedOpDestroy": (_I, _P),
    "ncclGroupStart": (),
    "ncclGroupEnd": (),
    "ncclAllReduce": (_P, _P, _S, _I, _I, _P, _P),
    "ncclReduce": (_P, _P, _S, _I, _I, _I, _P, _P),
    "ncclBroadcast": (_P, _P, _S, _I, _I, _P, _P),
    "ncclBcast": (_P, _S, _I, _I, _P, _P),
    "ncclAllGather": (_P, _P, _S, _I, _P, _P),
    "ncclReduceScatter": (_P, _P, _S, _I, _I, _P, _P),
    "ncclSend": (_P, _S, _I, _I, _P, _P),
    "ncclRecv": (_P, _S, _I, _I, _P, _P),
    "ncclAlltoAll": (_P, _P, _S, _I, _P, _P),
    "ncclGather": (_P, _P, _S, _I, _I, _P, _P),
    "ncclScatter": (_P, _P, _S, _I, _I, _P, _P),
    "ncclCommGrow": (_P, _I, POINTER(UniqueId), _I, _PP, _PC),
    "ncclCommGetUniqueId": (_P, POINTER(UniqueId)),
    "ncclCommSuspend": (_P, _I),
    "ncclCommResume": (_P,),
    "ncclCommMemStats": (_P, _I, POINTER(c_uint64)),
    "ncclWinGetUserPtr": (_P, _P, _PP),
    "ncclPutSignal": (_P, _S, _I, _I, _P, _S, _I, _I, _U, _P, _P),
    "ncclSignal": (_I, _I, _I, _U, _P, _P),
    "ncclWaitSignal": (_I, _P, _P, _P),
}
"""In the order of nccl.h, apart from the last nine, which 2.28.9 lacks."""


class Nccl(Library):
    """libnccl."""

    def __init__(self, path: str) -> None:
        super().__init__(path, PROTOTYPES, Result)
        self._error_string = self.text_function("ncclGetErrorString", c_int)
        self._last_error = self.text_function("ncclGetLastError", c_void_p)

    def spell(self, code: IntEnum) -> str:
        """``ncclSuccess`` and so on."""
        return f"nccl{code.name}"

    def version(self) -> int:
        """For example 22809; 0 if the library does not say."""
        number = c_int()
        return number.value if self.ncclGetVersion(ctypes.byref(number)) == 0 else 0

    def error_string(self, code: int) -> str:
        """ncclGetErrorString."""
        return _text(self._error_string, code)

    def last_error(self, communicator: int | None = None) -> str:
        """ncclGetLastError."""
        return _text(self._last_error, communicator)

    def unique_id(self) -> UniqueId:
        """A new id."""
        result = UniqueId()
        self.must("ncclGetUniqueId", ctypes.byref(result))
        return result

    def communicator(self, ranks: int = 1, rank: int = 0, unique_id: UniqueId | None = None) -> int:
        """A communicator with the default configuration."""
        result = c_void_p()
        self.must("ncclCommInitRank", ctypes.byref(result), ranks, unique_id or self.unique_id(), rank)
        return result.value or 0

    def state(self, communicator: int) -> int:
        """The communicator's asynchronous error; the call's own code if it failed."""
        state = c_int(UNDEFINED_INT)
        code = int(self.ncclCommGetAsyncError(communicator, ctypes.byref(state)))
        return state.value if code == 0 else code

    def until_ready(self, communicator: int, limit_s: float) -> int:
        """Poll a non-blocking communicator until it is not in progress any more; its last state."""
        deadline = time.monotonic() + limit_s
        while (state := self.state(communicator)) == Result.InProgress and time.monotonic() < deadline:
            time.sleep(0.0005)
        return state


def _text(function: Callable[..., Any] | None, *arguments: Any) -> str:
    text = function(*arguments) if function is not None else b""
    return "NULL" if text is None else text.decode(errors="replace")


def dotted(number: int) -> str:
    """A version number such as 22809 as 2.28.9."""
    if number < 10000:
        return f"{number // 1000}.{number % 1000 // 100}.{number % 100}"
    return f"{number // 10000}.{number % 10000 // 100}.{number % 100}"


def find_library() -> str:
    """The copy that torch's wheel depends on; the plain name if there is none."""
    name = Path("nvidia/nccl/lib/libnccl.so.2")
    for folder in sys.path:
        if folder and (found := Path(folder) / name).is_file():
            return str(found)
    for wheel in ("nvidia-nccl-cu13", "nvidia-nccl-cu12"):
        try:
            found = Path(str(importlib.metadata.distribution(wheel).locate_file(name)))
        except importlib.metadata.PackageNotFoundError:
            continue
        if found.is_file():
            return str(found)
    return name.name


@dataclass(frozen=True)
class DataType:
    """A data type of NCCL, and how Python reads and writes it."""

    name: str
    number: int
    size: int
    format: str = ""  # of module struct, for types that it knows
    exponent_bits: int = 0  # of small floating-point types
    mantissa_bits: int = 0

    @property
    def floating(self) -> bool:
        """True for floating-point types."""
        return self.format in ("e", "f", "d") or self.exponent_bits > 0

    @property
    def signed(self) -> bool:
        """True if the type has negative values."""
        return self.floating or self.format.islower()

    def pack(self, values: list[float]) -> bytes:
        """The values in memory; each must be a value of the type."""
        if self.format:
            plain = values if self.floating else [int(value) for value in values]
            return struct.pack(f"<{len(plain)}{self.format}", *plain)
        return b"".join(self._encode(value).to_bytes(self.size, "little") for value in values)

    def unpack(self, data: bytes) -> list[float]:
        """The values of what is in memory."""
        if self.format:
            return list(struct.unpack(f"<{len(data) // self.size}{self.format}", data))
        pieces = (data[at : at + self.size] for at in range(0, len(data), self.size))
        return [self._decode(int.from_bytes(piece, "little")) for piece in pieces]

    def _encode(self, value: float) -> int:
        sign = 1 if math.copysign(1.0, value) < 0 else 0
        sign <<= self.exponent_bits + self.mantissa_bits
        if value == 0:
            return sign
        fraction, exponent = math.frexp(abs(value))
        biased = exponent - 1 + (1 << (self.exponent_bits - 1)) - 1
        mantissa = (fraction * 2 - 1) * (1 << self.mantissa_bits)
        if mantissa != int(mantissa) or biased <= 0:
            raise ValueError(f"{value} is not a normal value of {self.name}")
        return sign | biased << self.mantissa_bits | int(mantissa)

    def _decode(self, bits: int) -> float:
        mantissa = bits & ((1 << self.mantissa_bits) - 1)
        exponent = bits >> self.mantissa_bits & ((1 << self.exponent_bits) - 1)
        sign = -1.0 if bits >> (self.mantissa_bits + self.exponent_bits) else 1.0
        bias = (1 << (self.exponent_bits - 1)) - 1
        largest = (1 << self.exponent_bits) - 1
        if exponent == largest and self.name != "float8e4m3":
            return sign * math.inf if mantissa == 0 else math.nan
        if self.name == "float8e4m3" and bits & 0x7F == 0x7F:
            return math.nan
        if exponent == 0:
            return sign * mantissa * 2.0 ** (1 - bias - self.mantissa_bits)
        return float(sign * (1 + mantissa / (1 << self.mantissa_bits)) * 2.0 ** (exponent - bias))


DATA_TYPES = (
    DataType("int8", 0, 1, "b"),
    DataType("uint8", 1, 1, "B"),
    DataType("int32", 2, 4, "i"),
    DataType("uint32", 3, 4, "I"),
    DataType("int64", 4, 8, "q"),
    DataType("uint64", 5, 8, "Q"),
    DataType("float16", 6, 2, "e"),
    DataType("float32", 7, 4, "f"),
    DataType("float64", 8, 8, "d"),
    DataType("bfloat16", 9, 2, exponent_bits=8, mantissa_bits=7),
    DataType("float8e4m3", 10, 1, exponent_bits=4, mantissa_bits=3),
    DataType("float8e5m2", 11, 1, exponent_bits=5, mantissa_bits=2),
)
TYPE = {kind.name: kind for kind in DATA_TYPES}


class Rank:
    """One rank: a communicator, a stream and two buffers."""

    def __init__(self, driver: Driver, nccl: Nccl, ranks: int = 1, rank: int = 0, size: int = 1 << 20) -> None:
        self.driver = driver
        self.nccl = nccl
        self.ranks = ranks
        self.rank = rank
        self.size = size
        self.communicator = 0
        self.stream = driver.stream()
        self.source = driver.allocate(size)
        self.target = driver.allocate(size)

    def reduce(self, data: bytes, kind: DataType, operation: int, limit_s: float = 8.0) -> bytes:
        """Allreduce from the first into the second buffer.

        Raises:
            CallError: a call failed, or the stream was still busy after ``limit_s``.
        """
        self.driver.upload(self.source, data)
        count = len(data) // kind.size
        self.nccl.must(
            "ncclAllReduce", self.source, self.target, count, kind.number, operation, self.communicator, self.stream
        )
        self.settle(limit_s)
        return self.driver.download(self.target, len(data))

    def settle(self, limit_s: float) -> None:
        """Wait until the stream is idle.

        Raises:
            CallError: the stream failed, or was still busy after ``limit_s``.
        """
        code = self.driver.settle(self.stream, limit_s)
        if code != 0:
            raise CallError(f"stream after {limit_s:g} s: {self.driver.code_name(code)}", code)
