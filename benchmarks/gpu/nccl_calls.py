"""Calibration of NCCL with one rank: calls, wrong arguments, figures, and uses after the end."""

from __future__ import annotations

import ctypes
import struct
import threading
import time
from collections.abc import Callable
from ctypes import c_float, c_int, c_uint, c_void_p
from functools import partial

from benchmarks.gpu.cuda import CAPTURE_GLOBAL, PORTABLE, SharedMemory
from benchmarks.gpu.nccl import (
    OPERATIONS,
    SCALAR_IMMEDIATE,
    SCALAR_ON_DEVICE,
    TYPE,
    WINDOW_DEFAULT,
    WINDOW_SYMMETRIC,
    Rank,
    Result,
    config,
)
from benchmarks.gpu.record import median
from benchmarks.gpu.session import Helper, NcclChecks, Session

REF = ctypes.byref
KIB, MIB = 1 << 10, 1 << 20
OK, BAD_ARGUMENT, BAD_USAGE = Result.Success, Result.InvalidArgument, Result.InvalidUsage
FLOAT = TYPE["float32"].number
SUM = OPERATIONS["sum"]


# ---- calls


def calls(session: Session) -> None:
    """Collectives of one rank, wrong arguments, created operations, groups, registered memory, capture."""
    driver = session.cuda().library
    checks = session.nccl()
    rank = Rank(driver, checks.library)
    rank.communicator = checks.library.communicator()
    groups = (_collectives, _wrong_arguments, _pre_multiplied, _groups, _memory, _captured, _streams, _after_errors)
    session.run(groups, checks, rank)


def _collectives(checks: NcclChecks, rank: Rank) -> None:
    source, target, handles = rank.source, rank.target, (rank.communicator, rank.stream)
    data = struct.pack("<64f", *range(64))
    wanted: tuple[tuple[str, tuple[object, ...]], ...] = (
        ("ncclAllReduce", (source, target, 64, FLOAT, SUM, *handles)),
        ("ncclReduce", (source, target, 64, FLOAT, SUM, 0, *handles)),
        ("ncclBroadcast", (source, target, 64, FLOAT, 0, *handles)),
        ("ncclAllGather", (source, target, 64, FLOAT, *handles)),
        ("ncclReduceScatter", (source, target, 64, FLOAT, SUM, *handles)),
        ("ncclAlltoAll", (source, target, 64, FLOAT, *handles)),
        ("ncclGather", (source, target, 64, FLOAT, 0, *handles)),
        ("ncclScatter", (source, target, 64, FLOAT, 0, *handles)),
        ("ncclBcast", (source, 64, FLOAT, 0, *handles)),
        ("ncclAllReduce", (source, source, 64, FLOAT, SUM, *handles)),
    )
    for call, arguments in wanted:
        place = source if call == "ncclBcast" or arguments[0] == arguments[1] else target
        words = "in place" if place == source else "64 floats"
        rank.driver.upload(source, data)
        rank.driver.upload(target, bytes(256))
        if checks(f"{call}, {words}", call, words, *arguments, expect=OK) == 0:
            rank.settle(5)
            same = rank.driver.download(place, 256) == data
            checks.fact(f"result of {call}, {words}", call, words, same, "True")
    checks("start", "ncclGroupStart", "", expect=OK)
    checks("send to itself", "ncclSend", "64 floats", source, 64, FLOAT, 0, *handles, expect=OK)
    checks("receive from itself", "ncclRecv", "64 floats", target, 64, FLOAT, 0, *handles, expect=OK)
    checks("end", "ncclGroupEnd", "send and receive", expect=OK)
    rank.settle(5)
    for name, number in OPERATIONS.items():
        seen = TYPE["float32"].unpack(rank.reduce(struct.pack("<2f", 3.0, -5.0), TYPE["float32"], number))
        checks.fact(f"{name} of one rank", "ncclAllReduce", "3, -5", seen, "[3.0, -5.0]")


def _wrong_arguments(checks: NcclChecks, rank: Rank) -> None:
    source, target, call, handles = rank.source, rank.target, "ncclAllReduce", (rank.communicator, rank.stream)
    for number in (12, 99, -1):
        arguments = (source, target, 16, number, SUM, *handles)
        checks(f"data type {number}", call, "", *arguments, expect=BAD_ARGUMENT)
    for number in (5, 99, -1):
        arguments = (source, target, 16, FLOAT, number, *handles)
        checks(f"operation {number}", call, "", *arguments, expect=BAD_ARGUMENT)
    for root in (1, -1):
        arguments = (source, target, 16, FLOAT, root, *handles)
        checks(f"root {root}", "ncclBroadcast", "1 rank", *arguments, expect=BAD_ARGUMENT)
    checks.fact("last error of the communicator", "ncclGetLastError", "", checks.library.last_error(rank.communicator))
    checks("count 0", call, "", source, target, 0, FLOAT, SUM, *handles, expect=OK)
    checks("count 0, NULL buffers", call, "", None, None, 0, FLOAT, SUM, *handles, expect=OK)
    checks("NULL stream", call, "16 floats", source, target, 16, FLOAT, SUM, rank.communicator, None, expect=OK)
    rank.driver.must("cuCtxSynchronize")
    checks("bfloat16", call, "16", source, target, 16, TYPE["bfloat16"].number, SUM, *handles, expect=OK)
    checks("float8e4m3", call, "16", source, target, 16, TYPE["float8e4m3"].number, SUM, *handles)
    checks("send to rank 1 of 1", "ncclSend", "", source, 16, FLOAT, 1, *handles, expect=BAD_ARGUMENT)
    state = checks.library.state(rank.communicator)
    checks.fact(
        "state after wrong arguments", "ncclCommGetAsyncError", "", checks.library.code_name(state), "ncclSuccess"
    )
    shared = SharedMemory(4 * KIB)
    rank.driver.must("cuMemHostRegister_v2", shared.address, 4 * KIB, PORTABLE)
    shared.write(0, struct.pack("<16f", *range(16)))
    arguments = (shared.address, target, 16, FLOAT, SUM, *handles)
    checks("registered host memory as a source", call, "16 floats", *arguments)
    checks.fact("stream afterwards", "cuStreamQuery", "", rank.driver.code_name(rank.driver.settle(rank.stream, 5)))


def _pre_multiplied(checks: NcclChecks, rank: Rank) -> None:
    create, destroy = "ncclRedOpCreatePreMulSum", "ncclRedOpDestroy"
    communicator, device = rank.communicator, rank.driver.allocate(16)
    for name, scalar in (("bfloat16", 0.5), ("float32", 0.25), ("float16", 2.0), ("int32", 3)):
        kind, operation = TYPE[name], c_int(-1)
        value = ctypes.create_string_buffer(kind.pack([scalar]), kind.size)
        note = lambda operation=operation: f"operation {operation.value}"  # noqa: E731
        arguments = (REF(operation), value, kind.number, SCALAR_IMMEDIATE, communicator)
        if checks(f"create for {name}", create, f"{scalar}", *arguments, expect=OK, note=note) != 0:
            continue
        result = kind.unpack(rank.reduce(kind.pack([4, 8]), kind, operation.value))
        checks.fact(
            f"result for {name}", "ncclAllReduce", f"4, 8 times {scalar}", result, str([4 * scalar, 8 * scalar])
        )
        if name == "float32":
            wrong = (rank.source, rank.target, 2, TYPE["float64"].number, operation, communicator, rank.stream)
            checks("another data type with it", "ncclAllReduce", "float64", *wrong, expect=BAD_ARGUMENT)
        checks(f"destroy for {name}", destroy, "", operation, communicator, expect=OK)
        if name == "float32":
            checks("destroy twice", destroy, "", operation, communicator, expect=BAD_ARGUMENT)
    checks("destroy a built-in operation", destroy, "sum", SUM, communicator, expect=BAD_ARGUMENT)
    rank.driver.upload(device, struct.pack("<f", 10.0))
    operation = c_int(-1)
    arguments2 = (REF(operation), device, FLOAT, SCALAR_ON_DEVICE, communicator)
    checks("create with the scalar on the device", create, "10", *arguments2, expect=OK)
    result = TYPE["float32"].unpack(rank.reduce(struct.pack("<f", 4.0), TYPE["float32"], operation.value))
    checks.fact("result with the scalar on the device", "ncclAllReduce", "4 times 10", result, "[40.0]")
    checks("destroy it", destroy, "", operation, communicator, expect=OK)


def _groups(checks: NcclChecks, rank: Rank) -> None:
    start, end, call = "ncclGroupStart", "ncclGroupEnd", "ncclAllReduce"
    good = (rank.source, rank.target, 16, FLOAT, SUM, rank.communicator, rank.stream)
    checks("outer start", start, "", expect=OK)
    checks("inner start", start, "", expect=OK)
    checks("allreduce in a nested group", call, "", *good, expect=OK)
    checks("inner end", end, "", expect=OK)
    checks("outer end", end, "", expect=OK)
    checks("one end too many", end, "", expect=BAD_USAGE)
    checks("allreduce after that", call, "", *good, expect=OK)
    rank.settle(5)
    checks("start of a group with an error", start, "", expect=OK)
    checks("good call in it", call, "", *good, expect=OK)
    bad = (rank.source, rank.target, 16, 99, SUM, rank.communicator, rank.stream)
    checks("bad call in it", call, "data type 99", *bad, expect=BAD_ARGUMENT)
    checks("end of a group with an error", end, "")
    checks("allreduce after a group with an error", call, "", *good, expect=OK)
    rank.settle(5)
    state = checks.library.state(rank.communicator)
    checks.fact("state after a group with an error", "ncclCommGetAsyncError", "", checks.library.code_name(state))


def _memory(checks: NcclChecks, rank: Rank) -> None:
    memory, handle, window, second, size = c_void_p(), c_void_p(), c_void_p(), c_void_p(), 4 * MIB
    communicator, window_call = rank.communicator, "ncclCommWindowRegister"
    checks("allocate", "ncclMemAlloc", "4 MiB", REF(memory), size, expect=OK)
    address = memory.value or 0
    for name in ("MEMORY_TYPE", "IS_LEGACY_CUDA_IPC_CAPABLE", "ALLOWED_HANDLE_TYPES", "RANGE_SIZE"):
        checks.fact(f"{name} of it", "cuPointerGetAttribute", "", rank.driver.memory_attribute(name, address)[1])
    checks("register", "ncclCommRegister", "", communicator, memory, size, REF(handle), expect=OK)
    checks("deregister", "ncclCommDeregister", "", communicator, handle, expect=OK)
    note = lambda: "NULL" if window.value is None else "a handle"  # noqa: E731
    arguments = (communicator, memory, size, REF(window), WINDOW_SYMMETRIC)
    checks("window", window_call, "SYMMETRIC, 1 rank", *arguments, note=note)
    checks("window twice", window_call, "the same", communicator, memory, size, REF(second), WINDOW_SYMMETRIC)
    checks("deregister the window", "ncclCommWindowDeregister", "", communicator, window)
    if second.value:
        checks("deregister the second window", "ncclCommWindowDeregister", "", communicator, second)
    plain = rank.driver.allocate(size)
    for words, flags in (("DEFAULT", WINDOW_DEFAULT), ("SYMMETRIC", WINDOW_SYMMETRIC)):
        other = (communicator, plain, size, REF(window), flags)
        if checks(f"window of cuMemAlloc memory, {words}", window_call, words, *other, note=note) == 0:
            checks(f"deregister that, {words}", "ncclCommWindowDeregister", "", communicator, window)
    checks("free", "ncclMemFree", "", memory, expect=OK)
    checks("free NULL", "ncclMemFree", "NULL", None)


def _captured(checks: NcclChecks, rank: Rank) -> None:
    driver, graph, runnable = rank.driver, c_void_p(), c_void_p()
    driver.upload(rank.source, struct.pack("<4f", 1, 2, 3, 4))
    driver.upload(rank.target, bytes(16))
    driver.must("cuStreamBeginCapture_v2", rank.stream, CAPTURE_GLOBAL)
    arguments = (rank.source, rank.target, 4, FLOAT, SUM, rank.communicator, rank.stream)
    checks("allreduce in a capture", "ncclAllReduce", "1 rank, 4 floats", *arguments, expect=OK)
    code = driver.cuStreamEndCapture(rank.stream, REF(graph))
    checks.fact("end of that capture", "cuStreamEndCapture", "", driver.code_name(code), "CUDA_SUCCESS")
    if code == 0:
        driver.must("cuGraphInstantiateWithFlags", REF(runnable), graph, 0)
        driver.must("cuGraphLaunch", runnable, rank.stream)
        rank.settle(5)
        checks.fact(
            "result of the graph", "cuGraphLaunch", "", struct.unpack("<f", driver.download(rank.target, 4))[0], "1.0"
        )
        driver.must("cuGraphExecDestroy", runnable)
        driver.must("cuGraphDestroy", graph)


def _streams(checks: NcclChecks, rank: Rank) -> None:
    """A collective waits for its stream, and the call does not."""
    driver, busy_ms = rank.driver, 60.0
    driver.busy(rank.stream, busy_ms)
    arguments = (rank.source, rank.target, 4, FLOAT, SUM, rank.communicator, rank.stream)
    checks.blocking("call on a busy stream", "ncclAllReduce", "", *arguments, busy_ms=busy_ms, expect="at once")
    checks.fact(
        "stream", "cuStreamQuery", "", driver.code_name(driver.cuStreamQuery(rank.stream)), "CUDA_ERROR_NOT_READY"
    )
    driver.synchronize(rank.stream)


def _after_errors(checks: NcclChecks, rank: Rank) -> None:
    """Calls that may spoil the communicator; each gets one of its own."""
    nccl, driver = checks.library, rank.driver
    spoiled: dict[str, Callable[[int], tuple[str, tuple[object, ...]]]] = {
        "NULL buffers with count 16": lambda it: ("ncclAllReduce", (None, None, 16, FLOAT, SUM, it, rank.stream)),
        "a send to itself outside a group": lambda it: ("ncclSend", (rank.source, 16, FLOAT, 0, it, rank.stream)),
        "more elements than allocated": lambda it: (
            "ncclAllReduce",
            (rank.source, rank.target, rank.size, FLOAT, SUM, it, rank.stream),
        ),
    }
    for words, make in spoiled.items():
        communicator = nccl.communicator()
        call, arguments = make(communicator)
        checks(words, call, words, *arguments)
        checks.fact(f"last error after {words}", "ncclGetLastError", "", nccl.last_error(communicator))
        checks.fact(f"state after {words}", "ncclCommGetAsyncError", "", nccl.code_name(nccl.state(communicator)))
        code = driver.settle(rank.stream, 3)
        checks.fact(f"stream after {words}", "cuStreamQuery", "", driver.code_name(code))
        good = (rank.source, rank.target, 16, FLOAT, SUM, communicator, rank.stream)
        checks(f"allreduce after {words}", "ncclAllReduce", "", *good)
        checks(f"abort after {words}", "ncclCommAbort", "", communicator)


# ---- figures


def figures(session: Session) -> None:
    """Time of initialization and of allreduce of one rank, on the device and on the host."""
    driver = session.cuda().library
    checks = session.nccl()
    rank = Rank(driver, checks.library, size=256 * MIB)
    session.run((_init_times, _allreduce_times, _group_times), checks, rank)


def _init_times(checks: NcclChecks, rank: Rank) -> None:
    times: list[float] = []
    for _ in range(5):
        start = time.perf_counter()
        communicator = checks.library.communicator()
        times.append((time.perf_counter() - start) * 1000)
        checks.library.must("ncclCommDestroy", communicator)
    checks.figure("first communicator", "ncclCommInitRank", "1 rank", times[0], "ms")
    checks.figure("later communicators", "ncclCommInitRank", "1 rank, median of 4", median(times[1:]), "ms")
    rank.communicator = checks.library.communicator()


def _allreduce_times(checks: NcclChecks, rank: Rank) -> None:
    for size, label, repetitions in (
        (4, "4 B", 200),
        (MIB, "1 MiB", 200),
        (16 * MIB, "16 MiB", 50),
        (256 * MIB, "256 MiB", 10),
    ):
        for words, target in (("out of place", rank.target), ("in place", rank.source)):
            allreduce_rows(checks, rank, f"{label}, {words}", size, target, repetitions)


def allreduce_rows(checks: NcclChecks, rank: Rank, words: str, size: int, target: int, repetitions: int) -> None:
    """Device time between two events around an allreduce, and host time of the call; float32 sums."""
    driver, first, second, ms = rank.driver, rank.driver.event(0), rank.driver.event(0), c_float()
    call = partial(
        checks.library.ncclAllReduce, rank.source, target, size // 4, FLOAT, SUM, rank.communicator, rank.stream
    )
    device: list[float] = []
    host: list[float] = []
    deadline = time.monotonic() + 1.5
    for _ in range(repetitions + 3):
        driver.busy(rank.stream, 0.1)  # so that the device does not wait for the host's calls
        driver.cuEventRecord(first, rank.stream)
        start = time.perf_counter()
        code = call()
        host.append((time.perf_counter() - start) * 1e6)
        driver.cuEventRecord(second, rank.stream)
        rank.settle(10)
        if code != 0:
            checks.fact(f"allreduce {words}", "ncclAllReduce", words, checks.library.code_name(code), "ncclSuccess")
            return
        driver.must("cuEventElapsedTime_v2", REF(ms), first, second)
        device.append(ms.value * 1000)
        if rank.ranks == 1 and time.monotonic() > deadline:
            break
    note = (
        f"host {median(host[1:]):.2f} us per call; device min {min(device):.1f}, max {max(device):.1f}; n {len(device)}"
    )
    checks.figure(f"allreduce {words}, device", "ncclAllReduce", words, median(device[1:]), "us", note)
    checks.figure(f"allreduce {words}, host", "ncclAllReduce", words, median(host[1:]), "us")


def _group_times(checks: NcclChecks, rank: Rank) -> None:
    nccl, times = checks.library, list[float]()
    for _ in range(30):
        start = time.perf_counter()
        nccl.ncclGroupStart()
        for index in range(16):
            place = 4 * KIB * index
            nccl.ncclAllReduce(
                rank.source + place, rank.target + place, KIB, FLOAT, SUM, rank.communicator, rank.stream
            )
        nccl.ncclGroupEnd()
        times.append((time.perf_counter() - start) * 1e6)
        rank.settle(5)
    checks.figure("group of 16 allreduces of 4 KiB, host", "ncclGroupEnd", "out of place", median(times), "us")


# ---- uses after the end: each in a process of its own


def hazards(session: Session) -> None:
    """Uses of communicators after their end, each in a process of its own, all at the same time."""
    session.driver()
    session.nccl()
    helpers: dict[str, Helper] = {name: session.helper("nccl_calls:hazard", name=name) for name in HAZARDS}
    for name, helper in helpers.items():
        outcome = helper.finish(35)
        session.recorder.add(f"process with {name}", "", name, outcome.text, None, outcome.seconds * 1000)


def hazard(session: Session, name: str) -> None:
    """One process of the section."""
    driver = session.cuda().library
    checks = session.nccl()
    rank = Rank(driver, checks.library)
    rank.communicator = checks.library.communicator()
    HAZARDS[name](checks, rank)


def _use(checks: NcclChecks, rank: Rank, words: str) -> None:
    arguments = (rank.source, rank.target, 16, FLOAT, SUM, rank.communicator, rank.stream)
    checks(f"allreduce {words}", "ncclAllReduce", words, *arguments)
    checks(f"state {words}", "ncclCommGetAsyncError", words, rank.communicator, REF(c_int()))


def _after_abort(checks: NcclChecks, rank: Rank) -> None:
    checks("abort before a use", "ncclCommAbort", "", rank.communicator, expect=OK)
    _use(checks, rank, "after abort")


def _after_destroy(checks: NcclChecks, rank: Rank) -> None:
    checks("destroy before a use", "ncclCommDestroy", "", rank.communicator, expect=OK)
    _use(checks, rank, "after destroy")


def _abort_twice(checks: NcclChecks, rank: Rank) -> None:
    checks("abort once", "ncclCommAbort", "", rank.communicator, expect=OK)
    checks("abort twice", "ncclCommAbort", "", rank.communicator)


def _destroy_twice(checks: NcclChecks, rank: Rank) -> None:
    checks("destroy once", "ncclCommDestroy", "", rank.communicator, expect=OK)
    checks("destroy twice", "ncclCommDestroy", "", rank.communicator)


def _while_in_progress(checks: NcclChecks, rank: Rank) -> None:
    """A collective on a communicator that is still being initialized."""
    made, values = c_void_p(), config(blocking=0)
    arguments = (REF(made), 1, checks.library.unique_id(), 0, REF(values))
    checks("non-blocking init", "ncclCommInitRankConfig", "", *arguments, expect=Result.InProgress)
    rank.communicator = made.value or 0
    _use(checks, rank, "while init is in progress")
    state = checks.library.until_ready(rank.communicator, 10)
    checks.fact("state in the end", "ncclCommGetAsyncError", "", checks.library.code_name(state))
    checks("abort after all that", "ncclCommAbort", "", rank.communicator)


def _with_faulty_context(checks: NcclChecks, rank: Rank) -> None:
    """A collective after a kernel's fault."""
    rank.driver.launch("store_u32", rank.stream, ctypes.c_uint64(16), c_uint(1))
    checks.fact("stream after a fault", "cuStreamQuery", "", rank.driver.code_name(rank.driver.settle(rank.stream, 5)))
    _use(checks, rank, "after a fault")
    checks.fact("last error after a fault", "ncclGetLastError", "", checks.library.last_error(rank.communicator))
    checks("abort after a fault", "ncclCommAbort", "", rank.communicator)


def _abort_while_busy(checks: NcclChecks, rank: Rank) -> None:
    rank.driver.busy(rank.stream, 500)
    arguments = (rank.source, rank.target, 16, FLOAT, SUM, rank.communicator, rank.stream)
    checks("allreduce behind a delay", "ncclAllReduce", "500 ms", *arguments, expect=OK)
    checks.blocking("abort while its stream is busy", "ncclCommAbort", "", rank.communicator, busy_ms=500)
    checks.fact("stream afterwards", "cuStreamQuery", "", rank.driver.code_name(rank.driver.settle(rank.stream, 5)))


def _four_communicators(checks: NcclChecks, rank: Rank) -> None:
    """Communicators of one device used by four threads at once, against NCCL's rules."""
    failures = list[int]()

    def body() -> None:
        rank.driver.use()
        mine = Rank(rank.driver, checks.library)
        mine.communicator = checks.library.communicator()
        for _ in range(100):
            code = checks.library.ncclAllReduce(
                mine.source, mine.target, 1024, FLOAT, SUM, mine.communicator, mine.stream
            )
            failures.extend([code] if code else [])
        mine.settle(5)

    threads = [threading.Thread(target=body, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(15)
    hanging = sum(thread.is_alive() for thread in threads)
    seen = f"{hanging} threads hang, {len(failures)} errors"
    checks.fact("communicators of four threads", "ncclAllReduce", "100 rounds", seen)


HAZARDS: dict[str, Callable[[NcclChecks, Rank], None]] = {
    "a use after abort": _after_abort,
    "a use after destroy": _after_destroy,
    "two aborts": _abort_twice,
    "two destroys": _destroy_twice,
    "a use while init is in progress": _while_in_progress,
    "a use after a fault": _with_faulty_context,
    "an abort while busy": _abort_while_busy,
    "four communicators": _four_communicators,
}
