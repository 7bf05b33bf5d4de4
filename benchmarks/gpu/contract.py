"""The calls on which a backend relies, without any measure of time: memory holds streams until it is written.

The other sections keep a stream busy for some milliseconds; a machine with other work to do may be late. These rows are
the same on every machine, so that tests check a fake driver with them.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable
from ctypes import c_float, c_int, c_uint, c_uint64, c_void_p

from benchmarks.gpu.cuda import (
    CAPTURE_THREAD_LOCAL,
    DEVICEMAP,
    DISABLE_TIMING,
    PORTABLE,
    WAIT_GEQ,
    Code,
    HostFunction,
    SharedMemory,
)
from benchmarks.gpu.nccl import OPERATIONS, SCALAR_IMMEDIATE, TYPE, Rank, Result, UniqueId, config
from benchmarks.gpu.party import RANKS, SHARED_GPU
from benchmarks.gpu.record import in_thread
from benchmarks.gpu.session import CudaChecks, NcclChecks, Session
from benchmarks.gpu.two_ranks import shared_gpu

REF = ctypes.byref
KIB = 1 << 10
OK, PENDING = Code.SUCCESS, Code.NOT_READY
FLOAT, SUM = TYPE["float32"].number, OPERATIONS["sum"]


class _Hold:
    """Holds streams until it is opened. Each is used once."""

    def __init__(self, checks: CudaChecks) -> None:
        self._driver = checks.library
        self.memory = SharedMemory(64 * KIB)
        self._driver.must("cuMemHostRegister_v2", self.memory.address, 64 * KIB, PORTABLE | DEVICEMAP)

    def close(self, stream: int | None) -> None:
        """Let the stream wait from here on."""
        self._driver.must("cuStreamWaitValue32_v2", stream, self.memory.address, 1, WAIT_GEQ)

    def open(self) -> None:
        """Let the streams go on."""
        self.memory.write(0, (1).to_bytes(4, "little"))


def contract(session: Session) -> None:
    """Streams, events, copies, kernels, captures and one rank of NCCL."""
    checks = session.cuda()
    groups = (_events, _copies, _legacy_stream, _launches, _calls_beside, _destroyed_stream, _another_thread_captures)
    session.run(groups, checks)
    nccl = session.nccl()
    rank = Rank(checks.library, nccl.library)
    session.run((_one_rank, _groups), nccl, checks, rank)


def _events(checks: CudaChecks) -> None:
    driver, hold = checks.library, _Hold(checks)
    held, waiting, idle = driver.stream(), driver.stream(), driver.stream()
    event, later, timed, ms = driver.event(), driver.event(), driver.event(0), c_float()
    checks("query before any record", "cuEventQuery", "", event, expect=OK)
    checks("wait before any record", "cuStreamWaitEvent", "", waiting, event, 0, expect=OK)
    checks("stream that waited for nothing", "cuStreamSynchronize", "", waiting, expect=OK)
    driver.must("cuEventRecord", timed, held)
    hold.close(held)
    checks("query a held stream", "cuStreamQuery", "", held, expect=PENDING)
    checks("record on a held stream", "cuEventRecord", "", event, held, expect=OK)
    checks("query an event of a held stream", "cuEventQuery", "", event, expect=PENDING)
    checks("another stream waits for it", "cuStreamWaitEvent", "", waiting, event, 0, expect=OK)
    checks("record on the waiting stream", "cuEventRecord", "", later, waiting, expect=OK)
    checks("query the waiting stream", "cuStreamQuery", "", waiting, expect=PENDING)
    checks("record the event again elsewhere", "cuEventRecord", "an idle stream", event, idle, expect=OK)
    checks("synchronize the idle stream", "cuStreamSynchronize", "", idle, expect=OK)
    checks("query the event recorded again", "cuEventQuery", "", event, expect=OK)
    checks("the waiter of the first record", "cuStreamQuery", "", waiting, expect=PENDING)
    checks("an event behind a wait", "cuEventQuery", "", later, expect=PENDING)
    checks("elapsed without timing", "cuEventElapsedTime_v2", "", REF(ms), timed, event, expect=Code.INVALID_HANDLE)
    driver.must("cuEventRecord", timed, held)
    second = driver.event(0)
    driver.must("cuEventRecord", second, idle)
    driver.synchronize(idle)
    checks("elapsed while pending", "cuEventElapsedTime_v2", "", REF(ms), second, timed, expect=PENDING)
    hold.open()
    checks("synchronize the waiting stream", "cuStreamSynchronize", "", waiting, expect=OK)
    checks("synchronize the held stream", "cuStreamSynchronize", "", held, expect=OK)
    checks("an event behind a wait, at the end", "cuEventQuery", "", later, expect=OK)
    checks("destroy an idle event", "cuEventDestroy_v2", "", event, expect=OK)


def _copies(checks: CudaChecks) -> None:
    driver, hold, size = checks.library, _Hold(checks), 4 * KIB
    stream, beside = driver.stream(), driver.stream()
    first, second, third = driver.allocate(size), driver.allocate(size), driver.allocate(size)
    plain, shared = ctypes.create_string_buffer(size), SharedMemory(4 * size)
    driver.must("cuMemHostRegister_v2", shared.address, 4 * size, PORTABLE)
    ctypes.memset(plain, 1, size)
    shared.write(0, b"\1" * size)
    hold.close(stream)
    checks("copy of registered memory", "cuMemcpyHtoDAsync_v2", "held", first, shared.address, size, stream, expect=OK)
    words = "pageable memory, held"
    checks("copy of pageable memory", "cuMemcpyHtoDAsync_v2", words, second, plain, size, stream, expect=OK)
    checks("copy on the device", "cuMemcpyDtoDAsync_v2", "held", third, first, size, stream, expect=OK)
    checks("fill", "cuMemsetD8Async", "held", third, 7, 16, stream, expect=OK)
    back = (shared.address + size, third, size, stream)
    checks("copy to registered memory", "cuMemcpyDtoHAsync_v2", "held", *back, expect=OK)
    ctypes.memset(plain, 2, size)
    shared.write(0, b"\2" * size)
    other = (shared.address + 2 * size, first, 16, beside)
    checks("copy on another stream", "cuMemcpyDtoHAsync_v2", "not held", *other, expect=OK)
    checks("synchronize the other stream", "cuStreamSynchronize", "", beside, expect=OK)
    checks.fact("what the held copy has written so far", "", "", shared.read(size, 4).hex(), "00000000")
    hold.open()
    checks("synchronize", "cuStreamSynchronize", "", stream, expect=OK)
    checks.fact("registered memory is read by the stream", "", "", driver.download(first, 1).hex(), "02")
    checks.fact("pageable memory is read by the call", "", "", driver.download(second, 1).hex(), "01")
    seen = shared.read(size, size)
    checks.fact("order of a stream", "", "copy, fill, copy", (seen[:17] + seen[-1:]).hex(), "07" * 16 + "02" * 2)
    wrong = Code.INVALID_VALUE
    checks("copy past the end", "cuMemcpyHtoDAsync_v2", "", first, shared.address, size + 1, stream, expect=wrong)
    checks("fill past the end", "cuMemsetD8Async", "", first, 1, size + 1, stream, expect=wrong)
    checks("fill of nothing", "cuMemsetD8Async", "0 bytes", first, 1, 0, stream, expect=OK)


def _legacy_stream(checks: CudaChecks) -> None:
    """The default stream and blocking streams wait for each other; a stream of the backend's own does not."""
    driver, event, target = checks.library, checks.library.event(), checks.library.allocate(4 * KIB)
    for words, flags, expect in (("blocking", 0, PENDING), ("non-blocking", 1, OK)):
        hold, held = _Hold(checks), driver.stream(flags)
        hold.close(held)
        driver.must("cuMemsetD8Async", target, 1, 4, None)
        driver.must("cuEventRecord", event, None)
        if expect is OK:
            checks("the default stream beside a non-blocking one", "cuStreamSynchronize", "NULL", None, expect=OK)
        checks(f"the default stream beside a held {words} one", "cuEventQuery", "", event, expect=expect)
        hold.open()
        driver.must("cuCtxSynchronize")
    hold, own = _Hold(checks), driver.stream()
    hold.close(None)
    driver.must("cuMemsetD8Async", target, 1, 4, own)
    checks("a non-blocking stream beside the held default stream", "cuStreamSynchronize", "", own, expect=OK)
    hold.open()
    driver.must("cuCtxSynchronize")


def _launches(checks: CudaChecks) -> None:
    driver, hold, stream = checks.library, _Hold(checks), checks.library.stream()
    device, value, seen = driver.allocate(4), c_uint(41), list[int]()
    hold.close(stream)
    pointers = driver.launch_arguments(c_uint64(device), value)
    arguments = (driver.functions["store_u32"], 1, 1, 1, 1, 1, 1, 0, stream, pointers, None)
    checks("launch", "cuLaunchKernel", "held", *arguments, expect=OK)
    value.value = 99
    function = HostFunction(lambda argument: seen.append(argument or 0))
    checks("host function", "cuLaunchHostFunc", "held", stream, function, 5, expect=OK)
    write = (stream, hold.memory.address + 64, 77, 0)
    checks("write a value", "cuStreamWriteValue32_v2", "held", *write, expect=OK)
    checks.fact("the host function so far", "", "", seen, "[]")
    hold.open()
    driver.synchronize(stream)
    stored = int.from_bytes(driver.download(device, 4), "little")
    checks.fact("arguments are read by the call", "cuLaunchKernel", "", stored, "41")
    checks.fact("the host function ran", "cuLaunchHostFunc", "", seen, "[5]")
    written = int.from_bytes(hold.memory.read(64, 4), "little")
    checks.fact("the value is written", "cuStreamWriteValue32_v2", "", written, "77")
    missing = (REF(c_void_p()), driver.module(".version 7.0\n.target sm_70\n.address_size 64\n"), b"nothing")
    checks("an entry that is not there", "cuModuleGetFunction", "", *missing, expect=Code.NOT_FOUND)


def _calls_beside(checks: CudaChecks) -> None:
    """Calls that do not wait for a held stream; each would hang here otherwise."""
    driver, hold = checks.library, _Hold(checks)
    held, made, pointer, shared = driver.stream(), c_void_p(), c_uint64(), SharedMemory(64 * KIB)
    hold.close(held)
    checks("allocate", "cuMemAlloc_v2", "beside a held stream", REF(pointer), 4 * KIB, expect=OK)
    checks("allocate pinned memory", "cuMemHostAlloc", "", REF(made), 4 * KIB, PORTABLE, expect=OK)
    checks("register", "cuMemHostRegister_v2", "", shared.address, 64 * KIB, PORTABLE, expect=OK)
    checks("create an event", "cuEventCreate", "", REF(made), DISABLE_TIMING, expect=OK)
    checks("create a stream", "cuStreamCreate", "", REF(made), 1, expect=OK)
    checks("destroy an idle stream", "cuStreamDestroy_v2", "", driver.stream(), expect=OK)
    checks("is it capturing", "cuStreamIsCapturing", "", held, REF(c_int()), expect=OK)
    hold.open()
    driver.must("cuCtxSynchronize")
    checks("free", "cuMemFree_v2", "", pointer, expect=OK)
    checks("unregister", "cuMemHostUnregister", "", shared.address, expect=OK)


def _destroyed_stream(checks: CudaChecks) -> None:
    driver, hold, held, target = checks.library, _Hold(checks), checks.library.stream(), checks.library.allocate(4)
    hold.close(held)
    driver.must("cuMemsetD8Async", target, 9, 4, held)
    checks("destroy a held stream", "cuStreamDestroy_v2", "", held, expect=OK)
    hold.open()
    driver.must("cuCtxSynchronize")
    checks.fact("its work", "", "a fill", driver.download(target, 4).hex(), "09090909")


def _another_thread_captures(checks: CudaChecks) -> None:
    """A thread that polls events while the program captures a graph, as the backend's threads do."""
    driver, event, idle = checks.library, checks.library.event(), checks.library.stream()
    driver.must("cuEventRecord", event, idle)
    driver.synchronize(idle)
    for thread_mode, expect, end in (
        (0, Code.STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"),
        (CAPTURE_THREAD_LOCAL, OK, "CUDA_SUCCESS"),
    ):
        stream, graph = driver.stream(), c_void_p()
        driver.must("cuStreamBeginCapture_v2", stream, 0)

        def body(mode: int = thread_mode, expect: Code = expect) -> None:
            driver.use()
            driver.must("cuThreadExchangeStreamCaptureMode", REF(c_int(mode)))
            checks(f"query with mode {mode} beside a capture", "cuEventQuery", "", event, expect=expect)

        in_thread(body)
        code = driver.code_name(driver.cuStreamEndCapture(stream, REF(graph)))
        checks.fact(f"end of the capture beside mode {thread_mode}", "cuStreamEndCapture", "", code, end)


# ---- NCCL


def _one_rank(checks: NcclChecks, cuda: CudaChecks, rank: Rank) -> None:
    driver, hold, event = rank.driver, _Hold(cuda), rank.driver.event()
    made, values = c_void_p(), config("2.18", blocking=1)
    arguments = (REF(made), 1, checks.library.unique_id(), 0, REF(values))
    checks("connect", "ncclCommInitRankConfig", "1 rank, layout of 2.18", *arguments, expect=Result.Success)
    rank.communicator = made.value or 0
    driver.upload(rank.source, struct.pack("<4f", 1, 2, 3, 4))
    hold.close(rank.stream)
    handles = (rank.communicator, rank.stream)
    call = (rank.source, rank.target, 4, FLOAT, SUM, *handles)
    checks("allreduce", "ncclAllReduce", "held", *call, expect=Result.Success)
    driver.must("cuEventRecord", event, rank.stream)
    cuda("event behind it", "cuEventQuery", "held", event, expect=PENDING)
    checks("state meanwhile", "ncclCommGetAsyncError", "", made, REF(c_int()), expect=Result.Success)
    hold.open()
    driver.synchronize(rank.stream)
    seen = struct.unpack("<4f", driver.download(rank.target, 16))
    checks.fact("result", "ncclAllReduce", "", list(seen), "[1.0, 2.0, 3.0, 4.0]")
    for words, kind, scalar, data in (
        ("float32", "float32", struct.pack("<f", 0.5), [2.0, 4.0]),
        ("float16", "float16", struct.pack("<e", 0.5), [2.0, 4.0]),
        ("bfloat16", "bfloat16", TYPE["bfloat16"].pack([0.5]), [2.0, 4.0]),
        ("int32", "int32", struct.pack("<i", 3), [2, 4]),
    ):
        operation, data_type = c_int(), TYPE[kind]
        scalar_memory = ctypes.create_string_buffer(scalar, len(scalar))
        create = (REF(operation), scalar_memory, data_type.number, SCALAR_IMMEDIATE, rank.communicator)
        checks(f"create a factor, {words}", "ncclRedOpCreatePreMulSum", words, *create, expect=Result.Success)
        result = data_type.unpack(rank.reduce(data_type.pack(list(map(float, data))), data_type, operation.value))
        expect = [6, 12] if kind == "int32" else [1.0, 2.0]
        checks.fact(f"result with a factor, {words}", "ncclAllReduce", words, result, str(expect))
        destroy = (operation, rank.communicator)
        checks(f"destroy a factor, {words}", "ncclRedOpDestroy", words, *destroy, expect=Result.Success)


def _groups(checks: NcclChecks, cuda: CudaChecks, rank: Rank) -> None:
    driver, handles = rank.driver, (rank.communicator, rank.stream)
    data = struct.pack("<8f", *range(8))
    driver.upload(rank.source, data)
    driver.upload(rank.target, bytes(64))
    checks("start", "ncclGroupStart", "", expect=Result.Success)
    for half in range(2):
        place = 16 * half
        call = (rank.source + place, rank.target + place, 4, FLOAT, SUM, *handles)
        checks(f"allreduce {half} in a group", "ncclAllReduce", "", *call, expect=Result.Success)
    checks("send to itself", "ncclSend", "in a group", rank.source, 8, FLOAT, 0, *handles, expect=Result.Success)
    place = rank.target + 32
    checks("receive from itself", "ncclRecv", "in a group", place, 8, FLOAT, 0, *handles, expect=Result.Success)
    checks("end", "ncclGroupEnd", "", expect=Result.Success)
    driver.synchronize(rank.stream)
    checks.fact("results of the group", "", "", driver.download(rank.target, 64) == data * 2, "True")
    checks("end without start", "ncclGroupEnd", "", expect=Result.InvalidUsage)
    wrong = (rank.source, rank.target, 4, 99, SUM, *handles)
    checks("a data type that is not there", "ncclAllReduce", "99", *wrong, expect=Result.InvalidArgument)
    checks("abort", "ncclCommAbort", "idle", rank.communicator, expect=Result.Success)
    cuda("stream after the abort", "cuStreamSynchronize", "", rank.stream, expect=OK)


# ---- two ranks


def two(session: Session) -> None:
    """Two ranks as threads: a rank whose stream is held keeps the other one, results, abort, and a new communicator."""
    if shared_gpu(session):
        session.helper("contract:both", SHARED_GPU).finish(60)


def both(session: Session) -> None:
    """The process of both ranks."""
    checks = session.cuda()
    session.run((_held_peer, _abort_of_both), checks, session.nccl())


class _Pair:
    """Two ranks of one communicator, each with a thread for its calls."""

    def __init__(self, checks: CudaChecks, nccl: NcclChecks, words: str) -> None:
        self.checks, self.nccl, self.words = checks, nccl, words
        self.ranks = [Rank(checks.library, nccl.library, RANKS, number) for number in range(RANKS)]
        unique_id = nccl.library.unique_id()
        codes = self.each(lambda rank: self._connect(rank, unique_id))
        nccl.fact(f"connect, {words}", "ncclCommInitRank", "2 ranks", codes, "[0, 0]")

    def _connect(self, rank: Rank, unique_id: UniqueId) -> int:
        made = c_void_p()
        code = int(rank.nccl.ncclCommInitRank(REF(made), RANKS, unique_id, rank.rank))
        rank.communicator = made.value or 0
        return code

    def each(self, act: Callable[[Rank], int]) -> list[int]:
        """Call a function for each rank at the same time; the results by rank."""
        results = [-1] * RANKS

        def body(rank: Rank) -> None:
            rank.driver.use()
            results[rank.rank] = act(rank)

        threads = [threading.Thread(target=body, args=(rank,), daemon=True) for rank in self.ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        return results

    def allreduce(self, rank: Rank) -> int:
        """A sum of four numbers."""
        arguments = (rank.source, rank.target, 4, FLOAT, SUM, rank.communicator, rank.stream)
        return int(rank.nccl.ncclAllReduce(*arguments))

    def results(self) -> list[float]:
        """The first element of each rank's result, once the streams are idle."""
        for rank in self.ranks:
            rank.driver.synchronize(rank.stream)
        return [struct.unpack("<f", rank.driver.download(rank.target, 4))[0] for rank in self.ranks]

    def abort(self) -> None:
        """Abort both at the same time."""
        codes = self.each(lambda rank: int(rank.nccl.ncclCommAbort(rank.communicator)))
        self.nccl.fact(f"abort, {self.words}", "ncclCommAbort", "both", codes, "[0, 0]")


def _held_peer(checks: CudaChecks, nccl: NcclChecks) -> None:
    pair = _Pair(checks, nccl, "held")
    for rank in pair.ranks:
        rank.driver.upload(rank.source, struct.pack("<4f", *[rank.rank + 1.0] * 4))
    nccl.fact("first allreduce", "ncclAllReduce", "both", pair.each(pair.allreduce), "[0, 0]")
    nccl.fact("first results", "ncclAllReduce", "1 + 2", pair.results(), "[3.0, 3.0]")
    hold, event = _Hold(checks), checks.library.event()
    hold.close(pair.ranks[0].stream)
    nccl.fact("second allreduce", "ncclAllReduce", "rank 0 held", pair.each(pair.allreduce), "[0, 0]")
    checks.library.must("cuEventRecord", event, pair.ranks[1].stream)
    checks("the other rank's event", "cuEventQuery", "rank 0 held", event, expect=PENDING)
    hold.open()
    nccl.fact("second results", "ncclAllReduce", "1 + 2", pair.results(), "[3.0, 3.0]")
    pair.abort()


def _abort_of_both(checks: CudaChecks, nccl: NcclChecks) -> None:
    """One rank waits in a collective; after the abort of both, new communicators work."""
    pair = _Pair(checks, nccl, "one waits")
    pair.each(pair.allreduce)
    pair.results()
    alone = pair.ranks[0]
    nccl.fact("allreduce of rank 0 alone", "ncclAllReduce", "", pair.allreduce(alone), "0")
    checks("its stream", "cuStreamQuery", "", alone.stream, expect=PENDING)
    pair.abort()
    checks("its stream after the abort", "cuStreamSynchronize", "", alone.stream, expect=OK)
    again = _Pair(checks, nccl, "again")
    for rank in again.ranks:
        rank.driver.upload(rank.source, struct.pack("<4f", *[rank.rank + 1.0] * 4))
    again.each(again.allreduce)
    nccl.fact("results afterwards", "ncclAllReduce", "1 + 2", again.results(), "[3.0, 3.0]")
    again.abort()
