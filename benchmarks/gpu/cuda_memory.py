"""Calibration of the CUDA driver API: bandwidth and call costs, VMM, IPC, and waits on values in host memory."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable
from ctypes import c_float, c_int, c_size_t, c_uint64, c_void_p
from functools import partial

from benchmarks.gpu.cuda import (
    INTERPROCESS,
    NON_BLOCKING,
    PORTABLE,
    POSIX_FD,
    WAIT_EQ,
    WAIT_GEQ,
    AccessDescription,
    AllocationProperties,
    Code,
    CopyAttributes,
    Driver,
    IpcMemHandle,
    Location,
    SharedMemory,
)
from benchmarks.gpu.record import median
from benchmarks.gpu.session import CudaChecks, Session

REF = ctypes.byref
KIB, MIB = 1 << 10, 1 << 20
SIZES = {4 * KIB: 200, MIB: 50, 64 * MIB: 8}  # bytes and repetitions


# ---- figures


def memory(session: Session) -> None:
    """Bandwidth of copies, cost of calls, latencies, batched copies."""
    checks = session.cuda()
    session.run((_bandwidth, _device_bandwidth, _call_costs, _round_trip, _batch), checks)


def _bandwidth(checks: CudaChecks) -> None:
    driver, stream, largest = checks.library, checks.library.stream(), max(SIZES)
    device, shared, plain = driver.allocate(largest), SharedMemory(largest), SharedMemory(largest)
    shared.touch()
    plain.touch()
    driver.must("cuMemHostRegister_v2", shared.address, largest, PORTABLE)
    host = {"pinned": driver.pinned(largest), "registered memfd": shared.address, "pageable memfd": plain.address}
    for kind, address in host.items():
        for size, repetitions in SIZES.items():
            for way, call in (("to the device", "cuMemcpyHtoDAsync_v2"), ("from the device", "cuMemcpyDtoHAsync_v2")):
                pair = (device, address) if call == "cuMemcpyHtoDAsync_v2" else (address, device)
                times = _timed_copies(driver, call, (*pair, size, stream), stream, repetitions)
                _copy_rows(checks, f"{way}, {kind}", call, size, times)


def _device_bandwidth(checks: CudaChecks) -> None:
    driver, stream, size = checks.library, checks.library.stream(), 64 * MIB
    first, second = driver.allocate(size), driver.allocate(size)
    times = _timed_copies(driver, "cuMemcpyDtoDAsync_v2", (second, first, size, stream), stream, 20)
    _copy_rows(checks, "on the device", "cuMemcpyDtoDAsync_v2", size, times)


def _timed_copies(
    driver: Driver, call: str, arguments: tuple[object, ...], stream: int, repetitions: int
) -> list[float]:
    function, times = getattr(driver, call), []
    for _ in range(repetitions + 2):
        start = time.perf_counter()
        code = function(*arguments)
        driver.synchronize(stream)
        times.append(time.perf_counter() - start)
        if code != 0:
            driver.must(call, *arguments)
    return times[2:]


def _copy_rows(checks: CudaChecks, words: str, call: str, size: int, times: list[float]) -> None:
    middle = median(times)
    label = f"{size // KIB} KiB" if size < MIB else f"{size // MIB} MiB"
    spread = f"min {min(times) * 1e6:.1f} us, max {max(times) * 1e6:.1f} us, n {len(times)}"
    note = f"{size / middle / 1e9:.2f} GB/s; {spread}"
    checks.figure(f"copy and wait, {label} {words}", call, label, middle * 1e6, "us", note)


def _call_costs(checks: CudaChecks) -> None:
    """Host time of calls that only enqueue or look, in batches between synchronizations; includes ctypes' own cost."""
    driver = checks.library
    stream, event, device = driver.stream(), driver.event(), driver.allocate(MIB)
    other, shared, number = driver.stream(), SharedMemory(MIB), c_int()
    driver.must("cuMemHostRegister_v2", shared.address, MIB, PORTABLE)
    driver.must("cuEventRecord", event, stream)
    nothing = (driver.functions["nothing"], 1, 1, 1, 1, 1, 1, 0, stream, driver.launch_arguments(), None)
    status, made = c_int(), c_void_p()
    calls: tuple[tuple[str, str, tuple[object, ...]], ...] = (
        ("cuDriverGetVersion", "for comparison: next to nothing but ctypes", (REF(number),)),
        ("cuCtxGetCurrent", "", (REF(made),)),
        ("cuCtxSetCurrent", "the current context", (driver.context,)),
        ("cuEventRecord", "", (event, stream)),
        ("cuEventQuery", "a complete event", (event,)),
        ("cuStreamWaitEvent", "a complete event", (other, event, 0)),
        ("cuStreamQuery", "an idle stream", (other,)),
        ("cuStreamIsCapturing", "", (stream, REF(status))),
        ("cuLaunchKernel", "an empty kernel", nothing),
        ("cuMemcpyHtoDAsync_v2", "4 KiB, registered", (device, shared.address, 4 * KIB, stream)),
        ("cuMemcpyDtoHAsync_v2", "4 KiB, registered", (shared.address, device, 4 * KIB, stream)),
        ("cuMemcpyDtoDAsync_v2", "4 KiB", (device, device + 64 * KIB, 4 * KIB, stream)),
        ("cuMemcpyAsync", "4 KiB, registered, to the device", (device, shared.address, 4 * KIB, stream)),
        ("cuMemsetD8Async", "4 KiB", (device, 1, 4 * KIB, stream)),
        ("cuPointerGetAttribute", "MEMORY_TYPE of device memory", (REF(c_uint64()), 2, device)),
        ("cuStreamWriteValue32_v2", "registered memory", (stream, shared.address, 1, 0)),
    )
    for call, words, arguments in calls:
        function = driver.find(call)
        if function is not None:
            _cost_row(checks, call, words, partial(function, *arguments), partial(driver.must, "cuCtxSynchronize"))
    _cost_row(checks, "cuEventCreate", "and cuEventDestroy_v2", lambda: driver.cuEventDestroy_v2(driver.event()))
    _cost_row(checks, "cuMemAlloc_v2", "1 MiB, and cuMemFree_v2", lambda: driver.cuMemFree_v2(driver.allocate(MIB)))


def _cost_row(
    checks: CudaChecks, call: str, words: str, function: Callable[[], object], settle: Callable[[], None] | None = None
) -> None:
    times: list[float] = []
    for _ in range(12):
        start = time.perf_counter()
        for _ in range(50):
            function()
        times.append((time.perf_counter() - start) / 50 * 1e6)
        if settle is not None:
            settle()
    note = f"median of 12 batches of 50; min {min(times):.2f}, max {max(times):.2f}"
    checks.figure(f"host time of {call}" + (f", {words}" if words else ""), call, words, median(times), "us", note)


def _round_trip(checks: CudaChecks) -> None:
    driver, stream, ms = checks.library, checks.library.stream(), c_float()
    event, first, second = driver.event(), driver.event(0), driver.event(0)
    times: list[float] = []
    for _ in range(200):
        start = time.perf_counter()
        driver.launch("nothing", stream)
        driver.cuEventRecord(event, stream)
        while driver.cuEventQuery(event) == Code.NOT_READY:
            pass
        times.append((time.perf_counter() - start) * 1e6)
    checks.figure("launch, record, poll until complete", "cuEventQuery", "an empty kernel", median(times), "us")
    times = []
    for _ in range(100):
        driver.cuEventRecord(first, stream)
        driver.cuEventRecord(second, stream)
        driver.synchronize(stream)
        driver.must("cuEventElapsedTime_v2", REF(ms), first, second)
        times.append(ms.value * 1000)
    checks.figure("device time between two events", "cuEventElapsedTime_v2", "nothing between", median(times), "us")
    for delay in (0.1, 1.0, 10.0):
        driver.cuEventRecord(first, stream)
        driver.busy(stream, delay)
        driver.cuEventRecord(second, stream)
        driver.synchronize(stream)
        driver.must("cuEventElapsedTime_v2", REF(ms), first, second)
        checks.figure(f"device time of the delay kernel, {delay:g} ms", "cuEventElapsedTime_v2", "", ms.value, "ms")


def _batch(checks: CudaChecks) -> None:
    """cuMemcpyBatchAsync with the interface of CUDA 13.0, without failIdx."""
    driver, stream, count, size = checks.library, checks.library.stream(), 16, 4 * KIB
    source, target = driver.allocate(count * size), driver.allocate(count * size)
    driver.upload(source, bytes(range(count)) * size)
    targets = (c_uint64 * count)(*(target + index * size for index in range(count)))
    sources = (c_uint64 * count)(*(source + index * size for index in range(count)))
    sizes, attributes, first = (c_size_t * count)(*[size] * count), CopyAttributes(srcAccessOrder=1), c_size_t(0)
    name = "cuMemcpyBatchAsync_v2"

    def arguments(where: int | None, attribute: CopyAttributes = attributes) -> tuple[object, ...]:
        return (targets, sources, sizes, count, REF(attribute), REF(first), 1, where)

    if checks("batch of copies", name, "16 of 4 KiB on the device", *arguments(stream), expect=Code.SUCCESS) != 0:
        return
    driver.synchronize(stream)
    same = driver.download(target, count * size) == bytes(range(count)) * size
    checks.fact("result of the batch", name, "16 of 4 KiB", same, "True")
    checks("batch on the default stream", name, "NULL", *arguments(None))
    checks("batch on CU_STREAM_LEGACY", name, "handle 1", *arguments(1))
    checks("batch without an access order", name, "srcAccessOrder 0", *arguments(stream, CopyAttributes()))
    checks("batch of nothing", name, "count 0", targets, sources, sizes, 0, REF(attributes), REF(first), 1, stream)
    driver.must("cuStreamBeginCapture_v2", stream, 0)
    checks("batch in a capture", name, "GLOBAL", *arguments(stream))
    graph = c_void_p()
    checks("end after a batch in a capture", "cuStreamEndCapture", "", stream, REF(graph))
    other = driver.stream()
    function, values = driver.cuMemcpyBatchAsync_v2, arguments(other)
    _cost_row(checks, name, "16 of 4 KiB", lambda: function(*values), lambda: driver.synchronize(other))


# ---- memory that other processes see, and waits on host memory


def sharing(session: Session) -> None:
    """VMM, IPC handles, waits on values in registered memory."""
    checks = session.cuda()
    session.run((_virtual_memory, _ipc, _ipc_events, _wait_values), checks, session)


def _virtual_memory(checks: CudaChecks, session: Session) -> None:
    driver, granularity, allocation, address = checks.library, c_size_t(), c_uint64(), c_uint64()
    place = Location(type=1, id=0)
    properties = AllocationProperties(type=1, requestedHandleTypes=POSIX_FD, location=place)
    note = lambda: f"{granularity.value} bytes"  # noqa: E731
    arguments = (REF(granularity), REF(properties), 0)
    checks("granularity", "cuMemGetAllocationGranularity", "POSIX_FD", *arguments, expect=Code.SUCCESS, note=note)
    size, ok = max(2 * MIB, granularity.value), Code.SUCCESS
    checks("create", "cuMemCreate", "POSIX_FD", REF(allocation), size, REF(properties), 0, expect=ok)
    checks("create an odd size", "cuMemCreate", "4096 bytes", REF(c_uint64()), 4096, REF(properties), 0)
    checks("reserve", "cuMemAddressReserve", "", REF(address), size, 0, 0, 0, expect=ok)
    checks("map", "cuMemMap", "", address, size, 0, allocation, 0, expect=ok)
    access = AccessDescription(location=place, flags=3)
    checks("set access", "cuMemSetAccess", "read and write", address, size, REF(access), 1, expect=ok)
    driver.upload(address.value, b"\x0b" * 16)
    for name in ("MEMORY_TYPE", "IS_LEGACY_CUDA_IPC_CAPABLE", "ALLOWED_HANDLE_TYPES", "RANGE_SIZE"):
        code, value = driver.memory_attribute(name, address.value)
        seen = value if code == 0 else driver.code_name(code)
        checks.fact(f"{name} of VMM memory", "cuPointerGetAttribute", "", seen)
    handle, descriptor = IpcMemHandle(), c_int(-1)
    checks("IPC handle of VMM memory", "cuIpcGetMemHandle", "", REF(handle), address)
    checks("export", "cuMemExportToShareableHandle", "POSIX_FD", REF(descriptor), allocation, POSIX_FD, 0, expect=ok)
    if descriptor.value >= 0:
        helper = session.helper("cuda_memory:import_memory", descriptor=descriptor.value, size=size)
        checks.fact("process that imports", "", "", helper.finish(15).text, "exit status 0")
        checks.fact("what the importer wrote", "", "", driver.download(address.value + 16, 1).hex(), "0c")
        os.close(descriptor.value)
    checks("unmap", "cuMemUnmap", "", address, size, expect=ok)
    checks("release", "cuMemRelease", "", allocation, expect=ok)
    checks("free the addresses", "cuMemAddressFree", "", address, size, expect=ok)


def import_memory(session: Session, descriptor: int, size: int) -> None:
    """The process that imports memory by its file descriptor."""
    checks = session.cuda()
    driver, allocation, address = checks.library, c_uint64(), c_uint64()
    arguments = (REF(allocation), c_void_p(descriptor), POSIX_FD)
    checks("import", "cuMemImportFromShareableHandle", "another process", *arguments, expect=Code.SUCCESS)
    driver.must("cuMemAddressReserve", REF(address), size, 0, 0, 0)
    driver.must("cuMemMap", address, size, 0, allocation, 0)
    driver.must("cuMemSetAccess", address, size, REF(AccessDescription(location=Location(type=1, id=0), flags=3)), 1)
    checks.fact("what the importer reads", "", "", driver.download(address.value, 1).hex(), "0b")
    driver.upload(address.value + 16, b"\x0c")


def _ipc(checks: CudaChecks, session: Session) -> None:
    driver, handle, inner, opened = checks.library, IpcMemHandle(), IpcMemHandle(), c_uint64()
    device, pinned = driver.allocate(4 * MIB), driver.pinned(4 * KIB)
    driver.upload(device, b"\x15" * 16)
    checks("IPC handle", "cuIpcGetMemHandle", "cuMemAlloc memory", REF(handle), device, expect=Code.SUCCESS)
    checks("IPC handle of an inner address", "cuIpcGetMemHandle", "1 MiB inside", REF(inner), device + MIB)
    checks.fact("both handles", "cuIpcGetMemHandle", "", bytes(handle.reserved) == bytes(inner.reserved))
    checks("IPC handle of pinned memory", "cuIpcGetMemHandle", "", REF(IpcMemHandle()), pinned)
    checks("open in the same process", "cuIpcOpenMemHandle_v2", "flags 1", REF(opened), handle, 1)
    helper = session.helper("cuda_memory:open_memory", handle=bytes(handle.reserved).hex())
    checks.fact("process that opens", "", "", helper.finish(15).text, "exit status 0")
    checks.fact("what the other process wrote", "", "", driver.download(device + 16, 1).hex(), "16")
    checks("free after the other process has gone", "cuMemFree_v2", "", device, expect=Code.SUCCESS)
    checks("IPC handle of freed memory", "cuIpcGetMemHandle", "", REF(handle), device, expect=Code.INVALID_VALUE)


def open_memory(session: Session, handle: str) -> None:
    """The process that opens another one's memory."""
    checks = session.cuda()
    driver, opened, again = checks.library, c_uint64(), c_uint64()
    value = IpcMemHandle.from_buffer_copy(bytes.fromhex(handle))
    open_handle, close = "cuIpcOpenMemHandle_v2", "cuIpcCloseMemHandle"
    checks("open with flags 0", open_handle, "another process", REF(again), value, 0)
    checks("open in another process", open_handle, "flags 1", REF(opened), value, 1, expect=Code.SUCCESS)
    note = lambda: f"same address: {again.value == opened.value}"  # noqa: E731
    checks("open twice", open_handle, "flags 1", REF(again), value, 1, note=note)
    checks.fact("what the other process reads", "", "", driver.download(opened.value, 1).hex(), "15")
    driver.upload(opened.value + 16, b"\x16")
    checks("free opened memory", "cuMemFree_v2", "instead of closing it", opened)
    checks("close", close, "", opened)
    checks("close again", close, "", opened)
    checks("close once more", close, "", opened)


def _ipc_events(checks: CudaChecks, session: Session) -> None:
    del session
    driver, handle = checks.library, IpcMemHandle()
    get = ctypes.CDLL(driver.path).cuIpcGetEventHandle if driver.find("cuIpcGetMemHandle") else None
    if get is None:
        return
    get.argtypes = (ctypes.POINTER(IpcMemHandle), c_void_p)
    for words, flags, expect in (
        ("INTERPROCESS and DISABLE_TIMING", INTERPROCESS | 2, "CUDA_SUCCESS"),
        ("DISABLE_TIMING", 2, None),
    ):
        code = driver.code_name(get(REF(handle), driver.event(flags)))
        checks.fact(f"IPC handle of an event, {words}", "cuIpcGetEventHandle", words, code, expect)


def _wait_values(checks: CudaChecks, session: Session) -> None:
    """A stream waits until the CPU writes a value into registered memory."""
    del session
    driver, shared = checks.library, SharedMemory(4 * KIB)
    stream, event = driver.stream(), driver.event()
    driver.must("cuMemHostRegister_v2", shared.address, 4 * KIB, PORTABLE)
    wait, write, place = "cuStreamWaitValue32_v2", "cuStreamWriteValue32_v2", shared.address
    checks("wait that holds already", wait, "GEQ 0", stream, place, 0, WAIT_GEQ, expect=Code.SUCCESS)
    checks("stream after it", "cuStreamSynchronize", "", stream, expect=Code.SUCCESS)
    checks("wait for a value", wait, "GEQ 5, registered memory", stream, place, 5, WAIT_GEQ, expect=Code.SUCCESS)
    driver.must("cuEventRecord", event, stream)
    time.sleep(0.02)
    checks("stream that waits", "cuStreamQuery", "", stream, expect=Code.NOT_READY)
    shared.write(0, (4).to_bytes(4, "little"))
    time.sleep(0.01)
    checks("stream after a smaller value", "cuStreamQuery", "", stream, expect=Code.NOT_READY)
    start = time.perf_counter()
    shared.write(0, (6).to_bytes(4, "little"))
    while driver.cuEventQuery(event) == Code.NOT_READY and time.perf_counter() - start < 5:
        pass
    us = (time.perf_counter() - start) * 1e6
    checks.figure("from the CPU's write to the event", wait, "GEQ 5, value 6", us, "us")
    checks("stream after the value", "cuStreamQuery", "", stream, expect=Code.SUCCESS)
    checks("write a value", write, "77", stream, place + 64, 77, 0, expect=Code.SUCCESS)
    driver.synchronize(stream)
    checks.fact("value that the device wrote", write, "", int.from_bytes(shared.read(64, 4), "little"), "77")
    device = driver.allocate(64)
    driver.upload(device, bytes(64))
    checks("wait on device memory", wait, "EQ 0", stream, device, 0, WAIT_EQ)
    driver.synchronize(stream)
    _calls_behind_a_value(checks, shared)
    plain = ctypes.create_string_buffer(64)
    checks("wait on pageable memory", wait, "", stream, ctypes.addressof(plain), 0, WAIT_GEQ)
    checks("wait at an odd address", wait, "offset 2", stream, place + 2, 0, WAIT_GEQ)
    checks("stream after both", "cuStreamQuery", "", stream, note="settled for 2 s: " + str(driver.settle(stream, 2)))


def _calls_behind_a_value(checks: CudaChecks, shared: SharedMemory) -> None:
    """Calls while a stream waits for a value that another thread writes 60 ms later."""
    driver, idle, waits_ms = checks.library, checks.library.stream(NON_BLOCKING), 60.0
    device = driver.allocate(64 * KIB)
    calls: tuple[tuple[str, Callable[[], tuple[object, ...]]], ...] = (
        ("cuMemcpyHtoDAsync_v2", lambda: (device, shared.address, 64, idle)),
        ("cuMemAlloc_v2", lambda: (REF(c_uint64()), MIB)),
        ("cuMemFree_v2", lambda: (driver.allocate(MIB),)),
        ("cuEventCreate", lambda: (REF(c_void_p()), 2)),
    )
    for number, (call, make) in enumerate(calls):
        stream, place, arguments = driver.stream(), 128 + 64 * number, make()
        driver.must("cuStreamWaitValue32_v2", stream, shared.address + place, 1, WAIT_GEQ)
        timer = threading.Timer(waits_ms / 1000, shared.write, (place, (1).to_bytes(4, "little")))
        timer.start()
        name = f"{call} while a stream waits for a value"
        checks.blocking(name, call, "", *arguments, busy_ms=waits_ms)
        timer.join()
        driver.synchronize(stream)
