"""Calibration of NCCL with one rank: the library without a device, initialization, split and end."""

from __future__ import annotations

import ctypes
import time
from ctypes import c_int, c_void_p

from benchmarks.gpu.cuda import Driver
from benchmarks.gpu.nccl import (
    CONFIG_SIZES,
    NO_COLOR,
    OPERATIONS,
    PROTOTYPES,
    TYPE,
    Config,
    Result,
    UniqueId,
    config,
)
from benchmarks.gpu.record import in_thread
from benchmarks.gpu.session import NcclChecks, Session

REF = ctypes.byref
KIB, MIB = 1 << 10, 1 << 20
OK, BAD_ARGUMENT, BAD_USAGE = Result.Success, Result.InvalidArgument, Result.InvalidUsage
FLOAT = TYPE["float32"].number
SUM = OPERATIONS["sum"]


# ---- what works without a device


def library(session: Session) -> None:
    """Version, error texts, ids, NULL arguments, exported functions; needs no device."""
    checks = session.nccl()
    session.run((_version, _error_texts, _ids, _null_arguments, _exported), checks)


def _version(checks: NcclChecks) -> None:
    number = c_int()
    checks("version", "ncclGetVersion", "", REF(number), expect=OK, note=lambda: str(number.value))
    checks("version into NULL", "ncclGetVersion", "NULL", None, expect=BAD_ARGUMENT)


def _error_texts(checks: NcclChecks) -> None:
    for code in (*range(10), 99, -1):
        checks.fact(f"text of {code}", "ncclGetErrorString", f"{code}", checks.library.error_string(code))
    checks.fact("last error at the start", "ncclGetLastError", "NULL", checks.library.last_error())


def _ids(checks: NcclChecks) -> None:
    first, second = UniqueId(), UniqueId()
    note = lambda: bytes(first.internal).rstrip(b"\0").hex()  # noqa: E731
    checks("new id", "ncclGetUniqueId", "", REF(first), expect=OK, note=note)
    checks("second id", "ncclGetUniqueId", "", REF(second), expect=OK)
    checks.fact("both ids differ", "ncclGetUniqueId", "", bytes(first.internal) != bytes(second.internal), "True")
    checks("id into NULL", "ncclGetUniqueId", "NULL", None, expect=BAD_ARGUMENT)


def _null_arguments(checks: NcclChecks) -> None:
    number = c_int()
    checks("count of NULL", "ncclCommCount", "NULL", None, REF(number), expect=BAD_ARGUMENT)
    checks("rank of NULL", "ncclCommUserRank", "NULL", None, REF(number), expect=BAD_ARGUMENT)
    checks("device of NULL", "ncclCommCuDevice", "NULL", None, REF(number), expect=BAD_ARGUMENT)
    checks("state of NULL", "ncclCommGetAsyncError", "NULL", None, REF(number), expect=BAD_ARGUMENT)
    checks("destroy NULL", "ncclCommDestroy", "NULL", None)
    checks("abort NULL", "ncclCommAbort", "NULL", None)
    checks("finalize NULL", "ncclCommFinalize", "NULL", None)
    checks("allreduce on NULL", "ncclAllReduce", "NULL", None, None, 0, FLOAT, SUM, None, None, expect=BAD_ARGUMENT)
    checks("end without start", "ncclGroupEnd", "", expect=BAD_USAGE)
    checks("start", "ncclGroupStart", "", expect=OK)
    checks("end of an empty group", "ncclGroupEnd", "", expect=OK)
    checks.fact("last error", "ncclGetLastError", "NULL", checks.library.last_error())


def _exported(checks: NcclChecks) -> None:
    missing = checks.library.missing
    checks.fact(
        "functions", "dlsym", "of nccl.h", len(PROTOTYPES) - len(missing), note=f"missing: {', '.join(missing)}"
    )
    for name in ("ncclAlltoAll", "ncclGather", "ncclScatter", "ncclCommRevoke", "ncclCommWindowRegister"):
        checks.fact(f"{name} is there", "dlsym", name, name not in missing)


# ---- initialization


def init(session: Session) -> None:
    """Communicators of one rank: arguments, configurations, non-blocking initialization, split, end."""
    driver = session.cuda(kernels=False).library
    checks = session.nccl()
    session.run((_first, _arguments, _configurations, _non_blocking, _split, _end), checks, driver)
    session.run((_without_context, _absent_peer), checks, driver)


def _first(checks: NcclChecks, driver: Driver) -> None:
    del driver
    nccl, made, number = checks.library, c_void_p(), c_int(-1)
    arguments = (REF(made), 1, nccl.unique_id(), 0)
    checks("first communicator", "ncclCommInitRank", "1 rank", *arguments, expect=OK)
    note = lambda: str(number.value)  # noqa: E731
    for call in ("ncclCommCount", "ncclCommUserRank", "ncclCommCuDevice", "ncclCommGetAsyncError"):
        checks(f"{call} of it", call, "", made, REF(number), expect=OK, note=note)
    checks("finalize it", "ncclCommFinalize", "", made, expect=OK)
    checks("destroy it", "ncclCommDestroy", "", made, expect=OK)
    arguments = (REF(made), 1, nccl.unique_id(), 0)
    checks("second communicator", "ncclCommInitRank", "1 rank", *arguments, expect=OK)
    checks("destroy without finalize", "ncclCommDestroy", "", made, expect=OK)
    arguments = (REF(made), 1, nccl.unique_id(), 0)
    checks("third communicator", "ncclCommInitRank", "1 rank", *arguments, expect=OK)
    checks("abort an idle communicator", "ncclCommAbort", "", made, expect=OK)


def _arguments(checks: NcclChecks, driver: Driver) -> None:
    del driver
    nccl, made = checks.library, c_void_p()
    for words, ranks, rank in (("no rank", 0, 0), ("rank 1 of 1", 1, 1), ("rank -1", 1, -1), ("-1 ranks", -1, 0)):
        arguments = (REF(made), ranks, nccl.unique_id(), rank)
        checks(f"init with {words}", "ncclCommInitRank", words, *arguments, expect=BAD_ARGUMENT)
    checks("init into NULL", "ncclCommInitRank", "NULL", None, 1, nccl.unique_id(), 0, expect=BAD_ARGUMENT)
    checks.fact("last error", "ncclGetLastError", "NULL", nccl.last_error())
    code = checks("init with an id of zeros", "ncclCommInitRank", "1 rank", REF(made), 1, UniqueId(), 0)
    if code == 0:
        checks("destroy that", "ncclCommDestroy", "", made, expect=OK)


def _configurations(checks: NcclChecks, driver: Driver) -> None:
    del driver
    for version in CONFIG_SIZES:
        size, number = CONFIG_SIZES[version]
        words = f"{version}: {size} bytes, version {number}"
        _one_configuration(checks, words, config(version, blocking=1), OK)
    _one_configuration(checks, "wrong magic", config(magic=1), BAD_ARGUMENT)
    _one_configuration(checks, "blocking 2", config(blocking=2), BAD_ARGUMENT)
    _one_configuration(checks, "minCTAs above maxCTAs", config(minCTAs=4, maxCTAs=2), None)
    _one_configuration(checks, "maxCTAs 0", config(maxCTAs=0), None)
    _one_configuration(checks, "a network that is not there", config(netName=b"no such network"), None)
    _one_configuration(checks, "size 10000", config(size=10000), None)
    _one_configuration(checks, "size 8", config(size=8), None)
    _one_configuration(checks, "version 2.99.0 with 72 bytes", config(version=29900), None)
    _one_configuration(checks, "a name", config(commName=b"calibrate"), OK)
    _one_configuration(checks, "NULL", None, OK)


def _one_configuration(checks: NcclChecks, words: str, values: Config | None, expect: Result | None) -> None:
    nccl, made = checks.library, c_void_p()
    pointer = None if values is None else REF(values)
    arguments = (REF(made), 1, nccl.unique_id(), 0, pointer)
    code = checks(f"configuration {words}", "ncclCommInitRankConfig", words, *arguments, expect=expect)
    if code in (OK, Result.InProgress) and made.value:
        nccl.until_ready(made.value, 10)
        nccl.ncclCommDestroy(made)


def _non_blocking(checks: NcclChecks, driver: Driver) -> None:
    nccl, made, number = checks.library, c_void_p(), c_int()
    values = config(blocking=0)
    progress = Result.InProgress
    arguments = (REF(made), 1, nccl.unique_id(), 0, REF(values))
    start = time.perf_counter()
    checks("non-blocking init", "ncclCommInitRankConfig", "blocking 0", *arguments, expect=progress)
    note = lambda: nccl.code_name(number.value)  # noqa: E731
    checks("state at once", "ncclCommGetAsyncError", "", made, REF(number), expect=OK, note=note)
    checks("count while in progress", "ncclCommCount", "", made, REF(c_int()))
    state = nccl.until_ready(made.value or 0, 20)
    ms = (time.perf_counter() - start) * 1000
    checks.fact("state in the end", "ncclCommGetAsyncError", "", nccl.code_name(state), "ncclSuccess", ms=ms)
    checks("count when ready", "ncclCommCount", "", made, REF(c_int()), expect=OK)
    stream, buffer = driver.stream(), driver.allocate(KIB)
    arguments2 = (buffer, buffer, 16, FLOAT, SUM, made, stream)
    checks("allreduce, non-blocking", "ncclAllReduce", "16 floats", *arguments2)
    checks.fact("state after it", "ncclCommGetAsyncError", "", nccl.code_name(nccl.until_ready(made.value or 0, 10)))
    driver.synchronize(stream)
    checks("finalize, non-blocking", "ncclCommFinalize", "", made)
    state = nccl.until_ready(made.value or 0, 10)
    checks.fact("state after finalize", "ncclCommGetAsyncError", "", nccl.code_name(state), "ncclSuccess")
    checks("destroy, non-blocking", "ncclCommDestroy", "", made, expect=OK)


def _absent_peer(checks: NcclChecks, driver: Driver) -> None:
    """Non-blocking initialization of two ranks, of which one never comes; the abort may not return, so it is last."""
    del driver
    nccl, absent, values = checks.library, c_void_p(), config(blocking=0)
    arguments = (REF(absent), 2, nccl.unique_id(), 0, REF(values))
    name = "non-blocking init of 2 ranks, alone"
    checks(name, "ncclCommInitRankConfig", "", *arguments, expect=Result.InProgress)
    state = nccl.until_ready(absent.value or 0, 1.0)
    checks.fact(
        "state after 1 s without the peer", "ncclCommGetAsyncError", "", nccl.code_name(state), "ncclInProgress"
    )
    code = in_thread(lambda: checks("abort without the peer", "ncclCommAbort", "", absent), 8)
    checks.fact("abort without the peer returns", "ncclCommAbort", "", code is not None, "True")


def _split(checks: NcclChecks, driver: Driver) -> None:
    del driver
    nccl, child = checks.library, c_void_p(1)
    parent, none = nccl.communicator(), None
    note = lambda: "NULL" if child.value is None else "a handle"  # noqa: E731
    arguments = (parent, NO_COLOR, 0, REF(child), none)
    checks("split with NOCOLOR", "ncclCommSplit", "color -1", *arguments, expect=OK, note=note)
    arguments = (parent, 0, 0, REF(child), none)
    checks("split with a color", "ncclCommSplit", "color 0, NULL config", *arguments, expect=OK, note=note)
    checks("destroy the child", "ncclCommDestroy", "", child, expect=OK)
    arguments = (parent, -5, 0, REF(child), none)
    checks("split with a negative color", "ncclCommSplit", "color -5", *arguments, expect=OK)
    checks("destroy the parent", "ncclCommDestroy", "", parent, expect=OK)


def _end(checks: NcclChecks, driver: Driver) -> None:
    nccl, stream, buffer = checks.library, driver.stream(), driver.allocate(KIB)
    communicator = nccl.communicator()
    checks("finalize", "ncclCommFinalize", "", communicator, expect=OK)
    arguments = (buffer, buffer, 16, FLOAT, SUM, communicator, stream)
    checks("allreduce after finalize", "ncclAllReduce", "", *arguments)
    checks("finalize twice", "ncclCommFinalize", "", communicator)
    checks("destroy after finalize", "ncclCommDestroy", "", communicator)
    revoked = nccl.communicator()
    if checks("revoke", "ncclCommRevoke", "flags 0", revoked, 0) == 0:
        arguments = (buffer, buffer, 16, FLOAT, SUM, revoked, stream)
        checks("allreduce after revoke", "ncclAllReduce", "", *arguments)
        checks.fact("state after revoke", "ncclCommGetAsyncError", "", nccl.code_name(nccl.until_ready(revoked, 5)))
    checks("abort after revoke", "ncclCommAbort", "", revoked)


def _without_context(checks: NcclChecks, driver: Driver) -> None:
    """A thread in which no context is current."""
    stream, buffer, current = driver.stream(), driver.allocate(KIB), c_void_p()
    ready = checks.library.communicator()

    def body() -> None:
        made, words = c_void_p(), "in a thread without a context"
        arguments = (buffer, buffer, 16, FLOAT, SUM, ready, stream)
        checks(f"allreduce {words}", "ncclAllReduce", words, *arguments)
        arguments2 = (REF(made), 1, checks.library.unique_id(), 0)
        checks(f"init {words}", "ncclCommInitRank", words, *arguments2)
        driver.cuCtxGetCurrent(REF(current))
        checks.fact("context current afterwards", "cuCtxGetCurrent", words, current.value == driver.context)

    in_thread(body)
