"""Calibration of the CUDA driver API: versions, calls before cuInit, contexts, fork, and pointers."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import json
import os
import platform
import resource
import select
import signal
import time
from ctypes import c_char_p, c_int, c_uint, c_uint64, c_void_p
from pathlib import Path
from typing import Any

from benchmarks.gpu.cuda import (
    DEVICE_ATTRIBUTES,
    DEVICEMAP,
    MEMORY_DEVICE,
    MEMORY_HOST,
    POINTER_ATTRIBUTES,
    PORTABLE,
    Code,
    SharedMemory,
    handle,
)
from benchmarks.gpu.nccl import Nccl, dotted
from benchmarks.gpu.record import CallError, Checks, UnavailableError, in_thread
from benchmarks.gpu.session import CudaChecks, Session

REF = ctypes.byref
NAMED_CODES = (0, 1, 2, 3, 4, 34, 100, 201, 218, 222, 400, 500, 600, 700, 709, 712, 719, 800, 801, 900, 901, 907, 999)
PAGE = 4096
MIB = 1 << 20


def about(session: Session) -> None:
    """The facts that every row of the run carries: the versions and the card."""
    facts = {
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cuda_library": session.cuda_path,
        "nccl_library": session.nccl_path,
        "torch": _installed("torch"),
        "driver": "none",
        "nccl": "none",
        "card": "none",
    }
    with contextlib.suppress(UnavailableError):
        facts["nccl"] = dotted(Nccl(session.nccl_path).version())
    session.recorder.about(facts)
    with contextlib.suppress(UnavailableError, CallError):
        driver = session.driver()
        version, name = c_int(), ctypes.create_string_buffer(128)
        driver.must("cuDriverGetVersion", REF(version))
        facts["driver"] = f"CUDA {version.value // 1000}.{version.value % 1000 // 10}, {_kernel_driver()}"
        driver.must("cuInit", 0)
        driver.must("cuDeviceGetName", name, 128, 0)
        facts["card"] = name.value.decode()
    session.recorder.about(facts)


def keep_device(session: Session) -> None:
    """Keep the device initialized while the sections come and go: without any client the driver puts it to sleep."""
    session.driver().must("cuInit", 0)
    time.sleep(3600)


def _installed(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def _kernel_driver() -> str:
    path = Path("/proc/driver/nvidia/version")
    first = path.read_text().splitlines()[0] if path.is_file() else "no kernel module"
    return next((word for word in first.split() if word[:1].isdigit() and "." in word), first)


# ---- versions


def versions(session: Session) -> None:
    """Installed software, the card, and the limits of the machine."""
    checks = Checks(session.recorder, session.driver())
    session.run((_machine, _device, _exported), checks)
    for package in ("torch", "nvidia-nccl-cu13", "cupy-cuda13x", "jax", "nvidia-cuda-runtime"):
        checks.fact(f"version of {package}", "importlib.metadata", package, _installed(package))
    nccl = session.nccl()
    version = c_int()
    nccl("version of NCCL", "ncclGetVersion", "", REF(version), note=lambda: f"{version.value} {session.nccl_path}")


def _machine(checks: CudaChecks) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    checks.fact("limit of locked memory", "getrlimit", "RLIMIT_MEMLOCK", f"{soft} of {hard}")
    checks.fact("processors", "sched_getaffinity", "", len(os.sched_getaffinity(0)), value=os.cpu_count())
    shm = os.statvfs("/dev/shm")
    checks.figure("size of shared memory", "statvfs", "/dev/shm", shm.f_blocks * shm.f_frsize / MIB, "MiB")
    checks.fact("C library", "confstr", "", " ".join(platform.libc_ver()))
    configured = {name: value for name, value in os.environ.items() if name.startswith(("CUDA", "NCCL", "NVIDIA"))}
    checks.fact("environment", "environ", "CUDA*, NCCL*, NVIDIA*", "", note=json.dumps(configured))
    checks.fact("system configuration of NCCL", "stat", "/etc/nccl.conf", Path("/etc/nccl.conf").exists())
    interfaces = sorted(os.listdir("/sys/class/net"))  # noqa: PTH208
    checks.fact("network interfaces", "listdir", "/sys/class/net", ", ".join(interfaces))
    programs = [
        name
        for name in ("nvidia-cuda-mps-control", "nvcc", "gcc", "cc", "xz")
        if any((Path(folder) / name).is_file() for folder in os.get_exec_path())
    ]
    checks.fact("programs", "stat", "on PATH", ", ".join(programs))


def _device(checks: CudaChecks) -> None:
    driver, version, count, name, total = checks.library, c_int(), c_int(), ctypes.create_string_buffer(128), c_uint64()
    checks(
        "driver's version", "cuDriverGetVersion", "", REF(version), expect=Code.SUCCESS, note=lambda: str(version.value)
    )
    checks("initialize", "cuInit", "0", 0, expect=Code.SUCCESS)
    checks("devices", "cuDeviceGetCount", "", REF(count), expect=Code.SUCCESS, note=lambda: str(count.value))
    checks(
        "name", "cuDeviceGetName", "device 0", name, 128, 0, expect=Code.SUCCESS, note=lambda: f"{name.value.decode()}"
    )
    checks("memory", "cuDeviceTotalMem_v2", "device 0", REF(total), 0, note=lambda: f"{total.value // MIB} MiB")
    for attribute, number in DEVICE_ATTRIBUTES.items():
        value = c_int(-1)
        code = driver.cuDeviceGetAttribute(REF(value), number, 0)
        seen = value.value if code == 0 else driver.code_name(code)
        checks.fact(f"attribute {attribute}", "cuDeviceGetAttribute", f"{number}", seen, value=value.value)


def _exported(checks: CudaChecks) -> None:
    missing = checks.library.missing
    checks.fact("functions looked up by name", "dlsym", "all", ", ".join(missing) or "all exported", "all exported")


# ---- before a context exists


def init(session: Session) -> None:
    """Calls before cuInit, error names, the loader, calls without a context, retain and release, fork."""
    checks = Checks(session.recorder, session.driver())
    groups = (_before_init, _error_names, _initialize, _addresses, _no_context, _retain, _other_thread, _fork, _release)
    session.run(groups, checks)


def _before_init(checks: CudaChecks) -> None:
    number, pointer, context = c_int(), c_uint64(), c_void_p()
    missing = Code.NOT_INITIALIZED
    checks("version before cuInit", "cuDriverGetVersion", "", REF(number), expect=Code.SUCCESS)
    checks("count before cuInit", "cuDeviceGetCount", "", REF(number), expect=missing)
    checks("device before cuInit", "cuDeviceGet", "0", REF(number), 0, expect=missing)
    checks("current context before cuInit", "cuCtxGetCurrent", "", REF(context))
    checks("allocate before cuInit", "cuMemAlloc_v2", "4096 bytes", REF(pointer), 4096, expect=missing)
    checks("stream before cuInit", "cuStreamCreate", "", REF(context), 1, expect=missing)
    checks("retain before cuInit", "cuDevicePrimaryCtxRetain", "device 0", REF(context), 0, expect=missing)
    checks("capture mode before cuInit", "cuThreadExchangeStreamCaptureMode", "1", REF(c_int(1)))


def _error_names(checks: CudaChecks) -> None:
    for code in NAMED_CODES:
        for call in ("cuGetErrorName", "cuGetErrorString"):
            text = c_char_p()
            note = lambda text=text: (text.value or b"NULL").decode()  # noqa: E731
            checks(f"{call} of {code}", call, f"{code}", code, REF(text), expect=Code.SUCCESS, note=note)
    for code in (5000, -1):
        for call in ("cuGetErrorName", "cuGetErrorString"):
            text = c_char_p(b"unchanged")
            note = lambda text=text: (text.value or b"NULL").decode()  # noqa: E731
            checks(f"{call} of {code}", call, f"{code}", code, REF(text), expect=Code.INVALID_VALUE, note=note)


def _initialize(checks: CudaChecks) -> None:
    number = c_int()
    checks("flags other than 0", "cuInit", "1", 1, expect=Code.INVALID_VALUE)
    checks("initialize", "cuInit", "0", 0, expect=Code.SUCCESS)
    checks("initialize twice", "cuInit", "0", 0, expect=Code.SUCCESS)
    checks("device past the last", "cuDeviceGet", "999", REF(number), 999, expect=Code.INVALID_DEVICE)
    checks("negative device", "cuDeviceGet", "-1", REF(number), -1, expect=Code.INVALID_DEVICE)
    checks("NULL result", "cuDeviceGetCount", "NULL", None, expect=Code.INVALID_VALUE)
    mode = c_int()
    note = lambda: {1: "eager", 2: "lazy"}.get(mode.value, "")  # noqa: E731
    checks("loading mode", "cuModuleGetLoadingMode", "", REF(mode), note=note)


def _addresses(checks: CudaChecks) -> None:
    wanted = (
        ("cuMemcpyBatchAsync", 12080, ("cuMemcpyBatchAsync", "cuMemcpyBatchAsync_v2")),
        ("cuMemcpyBatchAsync", 13000, ("cuMemcpyBatchAsync", "cuMemcpyBatchAsync_v2")),
        ("cuMemcpyBatchAsync", 12000, ()),
        ("cuEventElapsedTime", 12000, ("cuEventElapsedTime", "cuEventElapsedTime_v2")),
        ("cuEventElapsedTime", 13000, ("cuEventElapsedTime", "cuEventElapsedTime_v2")),
        ("cuMemAlloc", 12000, ("cuMemAlloc", "cuMemAlloc_v2")),
        ("cuMemAlloc_v2", 12000, ()),
        ("cuNoSuchFunction", 12000, ()),
        ("cuInit", 99000, ()),
    )
    library = ctypes.CDLL(checks.library.path)
    for name, version, candidates in wanted:
        address, status = c_void_p(), c_int(-1)

        def note(address: c_void_p = address, status: c_int = status, candidates: tuple[str, ...] = candidates) -> str:
            exported = ((entry, getattr(library, entry, None)) for entry in candidates)
            same = [
                entry
                for entry, function in exported
                if function is not None and ctypes.cast(function, c_void_p).value == address.value
            ]
            where = f"the exported {same[0]}" if same else "an address not exported"
            return f"status {status.value}, {where if address.value else 'NULL'}"

        arguments = (name.encode(), REF(address), version, 0, REF(status))
        checks(f"{name} of {version}", "cuGetProcAddress_v2", f"{name}, {version}", *arguments, note=note)


def _no_context(checks: CudaChecks) -> None:
    pointer, result = c_uint64(), c_void_p(1)
    none = Code.INVALID_CONTEXT
    note = lambda: handle(result)  # noqa: E731
    checks("no context yet", "cuCtxGetCurrent", "", REF(result), expect=Code.SUCCESS, note=note)
    checks("device without a context", "cuCtxGetDevice", "", REF(c_int()), expect=none)
    checks("allocate without a context", "cuMemAlloc_v2", "4096 bytes", REF(pointer), 4096, expect=none)
    checks("stream without a context", "cuStreamCreate", "", REF(result), 1, expect=none)
    checks("event without a context", "cuEventCreate", "", REF(result), 2, expect=none)
    checks("synchronize without a context", "cuCtxSynchronize", "", expect=none)
    checks("query the default stream without a context", "cuStreamQuery", "NULL", None)
    shared = SharedMemory(PAGE)
    checks("register without a context", "cuMemHostRegister_v2", "a memfd", shared.address, PAGE, 1, expect=none)
    memory = c_int()
    arguments = (REF(memory), POINTER_ATTRIBUTES["MEMORY_TYPE"], shared.address)
    checks("pointer's type without a context", "cuPointerGetAttribute", "a memfd", *arguments)


def _retain(checks: CudaChecks) -> None:
    flags, active = c_uint(), c_int()

    def state() -> str:
        return f"flags {flags.value}, active {active.value}"

    first, second, current = c_void_p(), c_void_p(), c_void_p()
    arguments = (0, REF(flags), REF(active))
    checks("state before retain", "cuDevicePrimaryCtxGetState", "device 0", *arguments, note=state)
    checks("retain", "cuDevicePrimaryCtxRetain", "device 0", REF(first), 0, expect=Code.SUCCESS)
    checks("retain again", "cuDevicePrimaryCtxRetain", "device 0", REF(second), 0, expect=Code.SUCCESS)
    checks.fact("both handles", "cuDevicePrimaryCtxRetain", "", first.value == second.value, "True")
    checks("state after retain", "cuDevicePrimaryCtxGetState", "device 0", *arguments, note=state)
    note = lambda: handle(current)  # noqa: E731
    checks("retain does not make it current", "cuCtxGetCurrent", "", REF(current), expect=Code.SUCCESS, note=note)
    checks("make it current", "cuCtxSetCurrent", "the context", first, expect=Code.SUCCESS)
    checks("release the second reference", "cuDevicePrimaryCtxRelease_v2", "device 0", 0, expect=Code.SUCCESS)
    checks("retain of a wrong device", "cuDevicePrimaryCtxRetain", "7", REF(second), 7, expect=Code.INVALID_DEVICE)
    pointer = c_uint64()
    checks("allocate", "cuMemAlloc_v2", "1 MiB", REF(pointer), MIB, expect=Code.SUCCESS)
    checks("free", "cuMemFree_v2", "that", pointer, expect=Code.SUCCESS)
    checks.library.context = first.value


def _other_thread(checks: CudaChecks) -> None:
    driver = checks.library
    stream, event, pointer = driver.stream(), driver.event(), driver.allocate(PAGE)
    shared, current, made = SharedMemory(PAGE), c_void_p(1), c_void_p()
    driver.must("cuMemHostRegister_v2", shared.address, PAGE, PORTABLE)
    driver.must("cuEventRecord", event, stream)
    driver.synchronize(stream)

    def body() -> None:
        words = "in a thread without a context"
        note = lambda: handle(current)  # noqa: E731
        checks(f"current context {words}", "cuCtxGetCurrent", "", REF(current), expect=Code.SUCCESS, note=note)
        checks(f"query an event {words}", "cuEventQuery", "", event)
        checks(f"record an event {words}", "cuEventRecord", "", event, stream)
        checks(f"wait for an event {words}", "cuStreamWaitEvent", "", stream, event, 0)
        checks(f"synchronize a stream {words}", "cuStreamSynchronize", "", stream)
        checks(f"query a stream {words}", "cuStreamQuery", "", stream)
        checks(f"copy {words}", "cuMemcpyAsync", "to the device", pointer, shared.address, 64, stream)
        checks(f"create an event {words}", "cuEventCreate", "", REF(made), 2)
        checks(f"free {words}", "cuMemFree_v2", "", pointer)
        checks(f"unregister {words}", "cuMemHostUnregister", "", shared.address)
        checks(f"push {words}", "cuCtxPushCurrent_v2", "the context", driver.context, expect=Code.SUCCESS)
        checks(f"query an event after a push {words}", "cuEventQuery", "", event, expect=Code.SUCCESS)
        checks(f"pop {words}", "cuCtxPopCurrent_v2", "", REF(current), expect=Code.SUCCESS)
        checks(f"pop once more {words}", "cuCtxPopCurrent_v2", "", REF(current), expect=Code.INVALID_CONTEXT)

    in_thread(body)


def _fork(checks: CudaChecks) -> None:
    """A child of fork after cuInit: CUDA does not work there."""
    driver = checks.library
    calls: tuple[tuple[str, tuple[Any, ...]], ...] = (
        ("cuInit", (0,)),
        ("cuDeviceGetCount", (REF(c_int()),)),
        ("cuCtxGetCurrent", (REF(c_void_p()),)),
        ("cuMemAlloc_v2", (REF(c_uint64()), PAGE)),
        ("cuStreamCreate", (REF(c_void_p()), 1)),
        ("cuDriverGetVersion", (REF(c_int()),)),
    )
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            codes = [int(getattr(driver, name)(*arguments)) for name, arguments in calls]
            os.write(writing, json.dumps(codes).encode())
        finally:
            os._exit(0)
    os.close(writing)
    ready, _, _ = select.select([reading], [], [], 8.0)
    answer = os.read(reading, 4096) if ready else b""
    if not answer:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    for (name, _), code in zip(calls, json.loads(answer) if answer else [], strict=False):
        expect = None if name in ("cuInit", "cuDriverGetVersion") else "CUDA_ERROR_NOT_INITIALIZED"
        checks.fact(f"{name} in a fork child", name, "fork after cuInit", driver.code_name(code), expect)
    checks.fact("fork child", "fork", "after cuInit", f"wait status {status}", "wait status 0")
    pointer = c_uint64()
    checks("parent after the fork", "cuMemAlloc_v2", "4096 bytes", REF(pointer), PAGE, expect=Code.SUCCESS)


def _release(checks: CudaChecks) -> None:
    driver = checks.library
    pointer = c_uint64()
    flags, active, current, again = c_uint(), c_int(), c_void_p(), c_void_p()
    checks("release the last reference", "cuDevicePrimaryCtxRelease_v2", "device 0", 0, expect=Code.SUCCESS)
    note = lambda: f"active {active.value}"  # noqa: E731
    arguments = (0, REF(flags), REF(active))
    checks("state after the last release", "cuDevicePrimaryCtxGetState", "device 0", *arguments, note=note)
    checks("current context after the last release", "cuCtxGetCurrent", "", REF(current), note=lambda: handle(current))
    checks("allocate after the last release", "cuMemAlloc_v2", "4096 bytes", REF(pointer), PAGE)
    checks("one release too many", "cuDevicePrimaryCtxRelease_v2", "device 0", 0, expect=Code.INVALID_CONTEXT)
    checks("retain anew", "cuDevicePrimaryCtxRetain", "device 0", REF(again), 0, expect=Code.SUCCESS)
    checks.fact("handle after retain anew", "cuDevicePrimaryCtxRetain", "", again.value == driver.context)
    checks("make it current anew", "cuCtxSetCurrent", "the new handle", again, expect=Code.SUCCESS)
    checks("allocate anew", "cuMemAlloc_v2", "4096 bytes", REF(pointer), PAGE, expect=Code.SUCCESS)
    # A query of an event that was made before the release ends the process with SIGSEGV.


# ---- pointers


def pointers(session: Session) -> None:
    """Allocation, wrong pointers, registration of host memory, pointer attributes."""
    checks = session.cuda(kernels=False)
    groups = (_allocations, _registrations, _odd_registrations, _large, _attributes, _second_process)
    session.run(groups, checks, session)


def _allocations(checks: CudaChecks, session: Session) -> None:
    del session
    wrong, pointer, host = Code.INVALID_VALUE, c_uint64(), ctypes.create_string_buffer(PAGE)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    checks("memory left", "cuMemGetInfo_v2", "", REF(free), REF(total), note=lambda: f"{free.value} of {total.value}")
    checks("allocate nothing", "cuMemAlloc_v2", "0 bytes", REF(pointer), 0, expect=wrong)
    checks("allocate too much", "cuMemAlloc_v2", "1 TiB", REF(pointer), 1 << 40, expect=Code.OUT_OF_MEMORY)
    checks("allocate after running out", "cuMemAlloc_v2", "1 byte", REF(pointer), 1, expect=Code.SUCCESS)
    second = checks.library.allocate(1)
    checks.fact("alignment", "cuMemAlloc_v2", "1 byte, twice", f"{pointer.value % 512}, {second % 512}", "0, 0")
    checks.fact("distance", "cuMemAlloc_v2", "of two allocations of 1 byte", second - pointer.value)
    checks("free NULL", "cuMemFree_v2", "0", 0)
    checks("free the middle", "cuMemFree_v2", "64 bytes into an allocation", pointer.value + 64, expect=wrong)
    checks("free host memory", "cuMemFree_v2", "a pageable address", ctypes.addressof(host), expect=wrong)
    checks("free", "cuMemFree_v2", "an allocation", pointer, expect=Code.SUCCESS)
    checks("free twice", "cuMemFree_v2", "a freed allocation", pointer, expect=wrong)
    checks("free pageable memory", "cuMemFreeHost", "a pageable address", ctypes.addressof(host), expect=wrong)


def _registrations(checks: CudaChecks, session: Session) -> None:
    del session
    size, twice, device = 4 * MIB, Code.HOST_MEMORY_ALREADY_REGISTERED, c_uint64()
    shared = SharedMemory(size)
    register, unregister = "cuMemHostRegister_v2", "cuMemHostUnregister"
    base = shared.address
    checks("register a memfd", register, "4 MiB, PORTABLE", base, size, PORTABLE, expect=Code.SUCCESS)
    checks("register twice", register, "the same", base, size, PORTABLE, expect=twice)
    checks("register a part again", register, "the second MiB", base + MIB, MIB, PORTABLE, expect=twice)
    checks("device address", "cuMemHostGetDevicePointer_v2", "no DEVICEMAP", REF(device), base, 0, expect=Code.SUCCESS)
    checks.fact("device address is the host's", "cuMemHostGetDevicePointer_v2", "", device.value == base, "True")
    flags = c_uint()
    checks("flags", "cuMemHostGetFlags", "", REF(flags), base, note=lambda: str(flags.value))
    checks("unregister the middle", unregister, "the second MiB", base + MIB)
    checks("unregister", unregister, "the memfd", base, expect=Code.SUCCESS)
    checks("unregister twice", unregister, "the same", base, expect=Code.HOST_MEMORY_NOT_REGISTERED)
    checks("register anew", register, "PORTABLE and DEVICEMAP", base, size, PORTABLE | DEVICEMAP, expect=Code.SUCCESS)
    checks("unregister anew", unregister, "", base, expect=Code.SUCCESS)
    checks("two parts, the first", register, "the first MiB", base, MIB, PORTABLE, expect=Code.SUCCESS)
    checks("two parts, the second", register, "the second MiB", base + MIB, MIB, PORTABLE, expect=Code.SUCCESS)
    checks("unregister the first part", unregister, "", base, expect=Code.SUCCESS)
    checks("unregister the second part", unregister, "", base + MIB, expect=Code.SUCCESS)
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes, dont_fork = (c_void_p, ctypes.c_size_t, c_int), 10
    checks.fact("not inherited", "madvise", "MADV_DONTFORK", madvise(base, size, dont_fork), "0")
    checks("register with MADV_DONTFORK", register, "4 MiB", base, size, PORTABLE, expect=Code.SUCCESS)
    checks("unregister with MADV_DONTFORK", unregister, "", base, expect=Code.SUCCESS)


def _odd_registrations(checks: CudaChecks, session: Session) -> None:
    del session
    register, unregister = "cuMemHostRegister_v2", "cuMemHostUnregister"
    shared, plain = SharedMemory(MIB), ctypes.create_string_buffer(8 * PAGE)
    start = shared.address + 100
    if checks("register an odd range", register, "offset 100, 5000 bytes", start, 5000, PORTABLE) == 0:
        checks("neighbour of an odd range", register, "the same pages, other bytes", start + 5000, 1000, PORTABLE)
        checks("unregister an odd range", unregister, "offset 100", start)
        checks("unregister its neighbour", unregister, "", start + 5000)
    address = ctypes.addressof(plain)
    if checks("register memory of malloc", register, "28,672 bytes of the heap", address, 7 * PAGE, PORTABLE) == 0:
        checks("unregister memory of malloc", unregister, "", address, expect=Code.SUCCESS)
    checks("unregister unknown memory", unregister, "", address, expect=Code.HOST_MEMORY_NOT_REGISTERED)
    checks("register nothing", register, "0 bytes", shared.address, 0, PORTABLE, expect=Code.INVALID_VALUE)
    checks("register NULL", register, "NULL, 4096 bytes", None, PAGE, PORTABLE, expect=Code.INVALID_VALUE)
    checks("register an unmapped range", register, "address 65536", 65536, PAGE, PORTABLE)
    checks("register unknown flags", register, "flags 64", shared.address, PAGE, 64, expect=Code.INVALID_VALUE)
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = c_void_p
    library.mmap.argtypes = (c_void_p, ctypes.c_size_t, c_int, c_int, c_int, ctypes.c_long)
    read_only = library.mmap(None, MIB, 1, 1, shared.descriptor, 0)  # PROT_READ, MAP_SHARED
    if checks("register a read-only mapping", register, "no READ_ONLY flag", read_only, MIB, PORTABLE) == 0:
        checks("unregister a read-only mapping", unregister, "", read_only)
    if checks("register a read-only mapping with READ_ONLY", register, "flags 8", read_only, MIB, 8) == 0:
        checks("unregister the one with READ_ONLY", unregister, "", read_only)


def _large(checks: CudaChecks, session: Session) -> None:
    """How much memory may be pinned, and how long that takes."""
    del session
    for size, touched in ((256 * MIB, False), (256 * MIB, True), (1024 * MIB, True)):
        shared, words = SharedMemory(size), f"{size // MIB} MiB, {'touched' if touched else 'not touched'}"
        if touched:
            shared.touch()
        arguments = (shared.address, size, PORTABLE)
        if checks(f"register {words}", "cuMemHostRegister_v2", words, *arguments, expect=Code.SUCCESS) == 0:
            checks(f"unregister {words}", "cuMemHostUnregister", words, shared.address, expect=Code.SUCCESS)
        os.ftruncate(shared.descriptor, 0)
    for size in (256 * MIB, 2048 * MIB):
        pointer = c_void_p()
        words = f"{size // MIB} MiB"
        pinned = (REF(pointer), size, PORTABLE)
        if checks(f"pinned {words}", "cuMemHostAlloc", words, *pinned, expect=Code.SUCCESS) == 0:
            checks(f"free pinned {words}", "cuMemFreeHost", words, pointer, expect=Code.SUCCESS)


def _attributes(checks: CudaChecks, session: Session) -> None:
    """Each kind of address, each attribute, asked for alone and together."""
    del session
    driver = checks.library
    shared, plain = SharedMemory(MIB), ctypes.create_string_buffer(PAGE)
    device, freed = driver.allocate(MIB), c_uint64()
    driver.must("cuMemHostRegister_v2", shared.address, MIB, PORTABLE)
    freed.value = driver.allocate(64 * MIB)
    driver.must("cuMemFree_v2", freed)
    kinds = {
        "device": device,
        "the middle of device": device + 1000,
        "registered": shared.address,
        "pinned": driver.pinned(PAGE),
        "pageable": ctypes.addressof(plain),
        "freed device": freed.value,
        "NULL": 0,
    }
    types = dict.fromkeys(("device", "the middle of device"), MEMORY_DEVICE)
    types |= dict.fromkeys(("registered", "pinned"), MEMORY_HOST)
    for kind, address in kinds.items():
        code, value = driver.memory_attribute("MEMORY_TYPE", address)
        seen = str(value) if code == 0 else driver.code_name(code)
        expect = str(types[kind]) if kind in types else "CUDA_ERROR_INVALID_VALUE"
        checks.fact(f"memory type of {kind} memory", "cuPointerGetAttribute", "MEMORY_TYPE", seen, expect)
        _attributes_together(checks, kind, address)


def _attributes_together(checks: CudaChecks, kind: str, address: int) -> None:
    names = list(POINTER_ATTRIBUTES)
    values = [c_uint64() for _ in names]
    numbers = (c_int * len(names))(*(POINTER_ATTRIBUTES[name] for name in names))
    places = (c_void_p * len(names))(*(ctypes.addressof(value) for value in values))

    def note() -> str:
        shown = ("=" if value.value == address and address else f"{value.value:x}" for value in values)
        return ", ".join(f"{name} {text}" for name, text in zip(names, shown, strict=True))

    arguments = (len(names), numbers, places, address)
    words = f"all attributes of {kind} memory"
    checks(words, "cuPointerGetAttributes", kind, *arguments, expect=Code.SUCCESS, note=note)


def _second_process(checks: CudaChecks, session: Session) -> None:
    """Two processes register the same shared memory, as the ranks of a host do."""
    shared = SharedMemory(MIB)
    arguments = (shared.address, MIB, PORTABLE)
    checks("first process registers", "cuMemHostRegister_v2", "a memfd", *arguments, expect=Code.SUCCESS)
    helper = session.helper("cuda_basics:register_shared", descriptor=shared.descriptor)
    checks.fact("second process", "", "", helper.finish(15).text, "exit status 0")
    checks.fact("what the second process's device wrote", "", "", shared.read(0, 4).hex(), "07070707")


def register_shared(session: Session, descriptor: int) -> None:
    """The second process."""
    checks = session.cuda(kernels=False)
    driver, shared = checks.library, SharedMemory(MIB, descriptor)
    arguments = (shared.address, MIB, PORTABLE)
    checks("second process registers", "cuMemHostRegister_v2", "the same memfd", *arguments, expect=Code.SUCCESS)
    stream, device = driver.stream(), driver.allocate(PAGE)
    driver.must("cuMemsetD8Async", device, 7, PAGE, stream)
    copy = (shared.address, device, PAGE, stream)
    checks("second process copies", "cuMemcpyDtoHAsync_v2", "into it", *copy, expect=Code.SUCCESS)
    driver.synchronize(stream)
