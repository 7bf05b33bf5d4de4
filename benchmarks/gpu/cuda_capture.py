"""Calibration of the CUDA driver API: stream capture, and calls of other threads during a capture."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_int, c_size_t, c_uint64, c_void_p

from benchmarks.gpu.cuda import (
    CAPTURE_GLOBAL,
    CAPTURE_RELAXED,
    CAPTURE_THREAD_LOCAL,
    PORTABLE,
    Code,
    Driver,
    SharedMemory,
)
from benchmarks.gpu.record import in_thread
from benchmarks.gpu.session import CudaChecks, Session

REF = ctypes.byref
MIB = 1 << 20
MODES = {"GLOBAL": CAPTURE_GLOBAL, "THREAD_LOCAL": CAPTURE_THREAD_LOCAL, "RELAXED": CAPTURE_RELAXED}


def capture(session: Session) -> None:
    """Capture: states, queries, forks and joins, wrong uses, other threads with each capture mode, a graph's launch."""
    checks = session.cuda()
    groups = (_states, _queries, _forks, _wrong_uses, _own_thread, _other_threads, _graph, _destroyed_capture)
    session.run(groups, checks)


def _end(driver: Driver, stream: int) -> int:
    """End a capture and drop its graph; the code of cuStreamEndCapture."""
    graph = c_void_p()
    code = int(driver.cuStreamEndCapture(stream, REF(graph)))
    if graph.value:
        driver.must("cuGraphDestroy", graph)
    return code


def _states(checks: CudaChecks) -> None:
    driver, stream, event = checks.library, checks.library.stream(), checks.library.event()
    status, identity, graph, count = c_int(-1), c_uint64(), c_void_p(), c_size_t()
    note = lambda: f"status {status.value}"  # noqa: E731
    checks("no capture", "cuStreamIsCapturing", "", stream, REF(status), expect=Code.SUCCESS, note=note)
    checks("default stream", "cuStreamIsCapturing", "NULL", None, REF(status), note=note)
    checks("begin", "cuStreamBeginCapture_v2", "GLOBAL", stream, CAPTURE_GLOBAL, expect=Code.SUCCESS)
    checks("capture runs", "cuStreamIsCapturing", "", stream, REF(status), expect=Code.SUCCESS, note=note)
    info = lambda: f"status {status.value}, id {identity.value}, {count.value} dependencies"  # noqa: E731
    arguments = (stream, REF(status), REF(identity), REF(graph), None, None, REF(count))
    checks("state of the capture", "cuStreamGetCaptureInfo_v3", "", *arguments, expect=Code.SUCCESS, note=info)
    checks("record an event", "cuEventRecord", "in the captured stream", event, stream, expect=Code.SUCCESS)
    launch = driver.functions["nothing"], 1, 1, 1, 1, 1, 1, 0, stream, driver.launch_arguments(), None
    checks("launch", "cuLaunchKernel", "in the captured stream", *launch, expect=Code.SUCCESS)
    checks("state after a launch", "cuStreamGetCaptureInfo_v3", "", *arguments, expect=Code.SUCCESS, note=info)
    checks("end", "cuStreamEndCapture", "", stream, REF(graph), expect=Code.SUCCESS)
    checks("event after the capture", "cuEventQuery", "recorded in the capture", event)
    checks("no capture any more", "cuStreamIsCapturing", "", stream, REF(status), expect=Code.SUCCESS, note=note)
    checks("state without a capture", "cuStreamGetCaptureInfo_v3", "", *arguments, expect=Code.SUCCESS, note=info)


def _queries(checks: CudaChecks) -> None:
    """Calls on the captured stream itself that a capture does not allow; each in a capture of its own."""
    driver, device, shared = checks.library, checks.library.allocate(MIB), SharedMemory(MIB)
    driver.must("cuMemHostRegister_v2", shared.address, MIB, PORTABLE)
    plain, target = ctypes.create_string_buffer(64), c_uint64()
    for mode, number in MODES.items():
        stream, event, other = driver.stream(), driver.event(), driver.event()
        calls: tuple[tuple[str, str, tuple[object, ...], Code | None], ...] = (
            ("cuStreamQuery", "the captured stream", (stream,), Code.STREAM_CAPTURE_UNSUPPORTED),
            ("cuStreamSynchronize", "the captured stream", (stream,), Code.STREAM_CAPTURE_UNSUPPORTED),
            ("cuEventQuery", "an event recorded in the capture", (event,), Code.CAPTURED_EVENT),
            ("cuEventSynchronize", "an event recorded in the capture", (event,), Code.CAPTURED_EVENT),
            ("cuEventQuery", "another event", (other,), None),
            ("cuMemcpyHtoDAsync_v2", "from registered memory", (device, shared.address, 64, stream), None),
            ("cuMemcpyHtoDAsync_v2", "from pageable memory", (device, plain, 64, stream), None),
            ("cuMemcpyDtoHAsync_v2", "to pageable memory", (plain, device, 64, stream), None),
            ("cuMemAlloc_v2", "64 bytes", (REF(target), 64), None),
        )
        for call, words, arguments, expect in calls:
            driver.must("cuStreamBeginCapture_v2", stream, number)
            driver.must("cuEventRecord", event, stream)
            name = f"{call} of the capturing thread, {words}, {mode} capture"
            checks(name, call, words, *arguments, expect=expect)
            checks.fact(f"end after {name}", "cuStreamEndCapture", "", driver.code_name(_end(driver, stream)))


def _forks(checks: CudaChecks) -> None:
    driver, status = checks.library, c_int()
    first, second = driver.stream(), driver.stream()
    event, back, outside = driver.event(), driver.event(), driver.event()
    note = lambda: f"status {status.value}"  # noqa: E731
    driver.must("cuEventRecord", outside, second)
    driver.synchronize(second)
    driver.must("cuStreamBeginCapture_v2", first, CAPTURE_GLOBAL)
    driver.must("cuEventRecord", event, first)
    checks("another stream joins", "cuStreamWaitEvent", "event of the capture", second, event, 0, expect=Code.SUCCESS)
    checks("the other stream captures", "cuStreamIsCapturing", "", second, REF(status), expect=Code.SUCCESS, note=note)
    unjoined = driver.code_name(_end(driver, first))
    checks.fact(
        "end without the way back", "cuStreamEndCapture", "", unjoined, "CUDA_SUCCESS"
    )  # nothing was queued there
    first, second = driver.stream(), driver.stream()
    driver.must("cuStreamBeginCapture_v2", first, CAPTURE_GLOBAL)
    driver.must("cuEventRecord", event, first)
    driver.must("cuStreamWaitEvent", second, event, 0)
    driver.must("cuEventRecord", back, second)
    driver.must("cuStreamWaitEvent", first, back, 0)
    joined = driver.code_name(_end(driver, first))
    checks.fact("end with the way back", "cuStreamEndCapture", "", joined, "CUDA_SUCCESS")
    driver.must("cuStreamBeginCapture_v2", first, CAPTURE_GLOBAL)
    isolation = Code.STREAM_CAPTURE_ISOLATION
    words = "an event recorded before the capture"
    checks("wait for an event from outside", "cuStreamWaitEvent", words, first, outside, 0, expect=isolation)
    checks.fact("end after that wait", "cuStreamEndCapture", "", driver.code_name(_end(driver, first)))


def _wrong_uses(checks: CudaChecks) -> None:
    driver, stream, graph, device = checks.library, checks.library.stream(), c_void_p(), checks.library.allocate(64)
    begin, end = "cuStreamBeginCapture_v2", "cuStreamEndCapture"
    checks("end without begin", end, "", stream, REF(graph), expect=Code.ILLEGAL_STATE)
    checks("begin on the default stream", begin, "NULL", None, CAPTURE_GLOBAL, expect=Code.STREAM_CAPTURE_UNSUPPORTED)
    driver.busy(stream, 20)
    checks("begin on a busy stream", begin, "GLOBAL", stream, CAPTURE_GLOBAL, expect=Code.SUCCESS)
    checks("begin twice", begin, "GLOBAL", stream, CAPTURE_GLOBAL, expect=Code.ILLEGAL_STATE)

    def body() -> None:
        driver.use()
        wrong = Code.STREAM_CAPTURE_WRONG_THREAD
        checks("end in another thread", end, "GLOBAL capture", stream, REF(graph), expect=wrong)

    in_thread(body)
    checks.fact("end after all that", end, "", driver.code_name(_end(driver, stream)))
    blocking = driver.stream(0)
    driver.must(begin, blocking, CAPTURE_GLOBAL)
    implicit = Code.STREAM_CAPTURE_IMPLICIT
    arguments = (device, 1, 4, None)
    checks("default stream beside a blocking capture", "cuMemsetD8Async", "NULL stream", *arguments, expect=implicit)
    checks.fact("end after the default stream's use", end, "", driver.code_name(_end(driver, blocking)))


def _own_thread(checks: CudaChecks) -> None:
    mode = c_int(CAPTURE_THREAD_LOCAL)
    exchange, note = "cuThreadExchangeStreamCaptureMode", lambda: f"was {mode.value}"
    checks("exchange the mode", exchange, "THREAD_LOCAL", REF(mode), expect=Code.SUCCESS, note=note)
    mode.value = CAPTURE_GLOBAL
    checks("exchange it back", exchange, "GLOBAL", REF(mode), expect=Code.SUCCESS, note=note)
    mode.value = 7
    checks("exchange for an unknown mode", exchange, "7", REF(mode), expect=Code.SUCCESS)

    def body() -> None:
        mode.value = CAPTURE_GLOBAL
        checks("mode of a new thread", exchange, "GLOBAL", REF(mode), expect=Code.SUCCESS, note=note)

    in_thread(body)


def _other_threads(checks: CudaChecks) -> None:
    """While this thread captures, another thread makes one call; does it succeed, and does the capture survive?"""
    driver = checks.library
    event, idle, device = driver.event(), driver.stream(), driver.allocate(MIB)
    shared, extra = SharedMemory(MIB), SharedMemory(MIB)
    driver.must("cuMemHostRegister_v2", shared.address, MIB, PORTABLE)
    driver.must("cuEventRecord", event, idle)
    driver.synchronize(idle)
    launch = (driver.functions["nothing"], 1, 1, 1, 1, 1, 1, 0, idle, driver.launch_arguments(), None)
    calls: dict[str, Callable[[], tuple[object, ...]]] = {
        "cuEventQuery": lambda: (event,),
        "cuEventRecord": lambda: (event, idle),
        "cuEventSynchronize": lambda: (event,),
        "cuStreamWaitEvent": lambda: (idle, event, 0),
        "cuStreamQuery": lambda: (idle,),
        "cuStreamSynchronize": lambda: (idle,),
        "cuMemcpyHtoDAsync_v2": lambda: (device, shared.address, 64, idle),
        "cuLaunchKernel": lambda: launch,
        "cuEventCreate": lambda: (REF(c_void_p()), 2),
        "cuStreamCreate": lambda: (REF(c_void_p()), 1),
        "cuMemAlloc_v2": lambda: (REF(c_uint64()), 64),
        "cuMemFree_v2": lambda: (driver.allocate(64),),
        "cuMemHostRegister_v2": lambda: (extra.address, MIB, PORTABLE),
        "cuMemHostUnregister": lambda: (extra.address,),
        "cuPointerGetAttributes": lambda: (0, None, None, device),
        "cuStreamWaitValue32_v2": lambda: (idle, shared.address, 0, 0),
    }
    for mode, thread_mode in (("GLOBAL", "GLOBAL"), ("GLOBAL", "THREAD_LOCAL"), ("THREAD_LOCAL", "GLOBAL")):
        for call, make in calls.items():
            driver.synchronize(idle)  # the work of the call before
            _one_call_of_another_thread(checks, mode, thread_mode, call, make())


def _one_call_of_another_thread(
    checks: CudaChecks, mode: str, thread_mode: str, call: str, arguments: tuple[object, ...]
) -> None:
    driver, stream = checks.library, checks.library.stream()
    words = f"{call} of another thread with mode {thread_mode}, {mode} capture"
    polling, safe = call == "cuEventQuery", (mode, thread_mode) != ("GLOBAL", "GLOBAL")
    driver.must("cuStreamBeginCapture_v2", stream, MODES[mode])

    def body() -> None:
        driver.use()
        if thread_mode != "GLOBAL":
            driver.must("cuThreadExchangeStreamCaptureMode", REF(c_int(MODES[thread_mode])))
        expect = None
        if polling:
            expect = Code.SUCCESS if safe else Code.STREAM_CAPTURE_UNSUPPORTED
        checks(words, call, "nothing of the capture", *arguments, expect=expect)

    try:
        in_thread(body)
    finally:
        code = driver.code_name(_end(driver, stream))
    expect = None
    if polling:
        expect = "CUDA_SUCCESS" if safe else "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"
    checks.fact(f"end after {words}", "cuStreamEndCapture", "", code, expect)
    driver.must("cuStreamDestroy_v2", stream)


def _graph(checks: CudaChecks) -> None:
    driver, stream, graph, runnable = checks.library, checks.library.stream(), c_void_p(), c_void_p()
    shared, device = SharedMemory(4096), driver.allocate(4096)
    driver.must("cuMemHostRegister_v2", shared.address, 4096, PORTABLE)
    driver.must("cuStreamBeginCapture_v2", stream, CAPTURE_GLOBAL)
    driver.must("cuMemsetD8Async", device, 5, 4096, stream)
    driver.must("cuMemcpyDtoHAsync_v2", shared.address, device, 4096, stream)
    driver.must("cuStreamEndCapture", stream, REF(graph))
    before = shared.read(0, 2).hex()
    checks.fact("captured work has not run", "cuStreamEndCapture", "a memset and a copy", before, "0000")
    name = "cuGraphInstantiateWithFlags"
    checks("instantiate", name, "", REF(runnable), graph, 0, expect=Code.SUCCESS)
    checks("launch the graph", "cuGraphLaunch", "", runnable, stream, expect=Code.SUCCESS)
    driver.synchronize(stream)
    checks.fact("the graph's work", "cuGraphLaunch", "a memset and a copy", shared.read(0, 2).hex(), "0505")
    checks("destroy the runnable graph", "cuGraphExecDestroy", "", runnable, expect=Code.SUCCESS)
    checks("destroy the graph", "cuGraphDestroy", "", graph, expect=Code.SUCCESS)


def _destroyed_capture(checks: CudaChecks) -> None:
    """The last group: what follows may not be allowed any more."""
    stream = checks.library.stream()
    checks.library.must("cuStreamBeginCapture_v2", stream, CAPTURE_GLOBAL)
    checks("destroy a capturing stream", "cuStreamDestroy_v2", "", stream)
    checks("allocate after that", "cuMemAlloc_v2", "64 bytes", REF(c_uint64()), 64)
