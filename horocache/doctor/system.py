"""Findings of ``doctor`` about the system: cores, memory and limits."""

import mmap
import os
import platform
import resource
from collections.abc import Iterator

import psutil

from horocache.base.processors import find_cores, memory_limit
from horocache.doctor import start_up
from horocache.doctor.finding import Finding, State

_FEW_DESCRIPTORS = 256
_MIB = 1 << 20


def look() -> Iterator[Finding]:
    """Check the machine as this process may use it."""
    yield Finding("system", "host", f"{platform.node()}, Linux {platform.release()}, {platform.machine()}")
    yield _cores()
    yield _memory()
    yield _shared_memory()
    yield _pidfd()
    yield from start_up.look()
    yield from _limits()


def memory_bytes() -> int:
    """Return the bytes that all processes can use together: the machine's memory, or the container's limit."""
    limit = memory_limit()
    total: int = psutil.virtual_memory().total
    return total if limit is None else min(total, limit)


def _cores() -> Finding:
    cores = find_cores()
    if cores.quota is not None and cores.quota < 1:
        fix = "ranks will be throttled in the middle of operations: give the container at least one core per rank"
        return Finding("system", "cores", f"{cores}: {cores.quota:g}", State.WARNING, fix)
    return Finding("system", "cores", str(cores))


def _memory() -> Finding:
    machine = psutil.virtual_memory()
    limit = memory_limit()
    text = f"{machine.available // _MIB} MiB available of {machine.total // _MIB} MiB"
    return Finding(
        "system", "memory", text if limit is None else f"{text}; the container's limit is {limit // _MIB} MiB"
    )


def _shared_memory() -> Finding:
    size = 16 * _MIB
    try:
        fd = os.memfd_create("horocache-doctor", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(fd, 0, size)
            with mmap.mmap(fd, size):
                pass
        finally:
            os.close(fd)
    except OSError as error:
        fix = "allow memfd_create in the container's seccomp profile, and raise its memory limit and `ulimit -f`"
        return Finding("system", "shared memory", f"memfd: {error.strerror}", State.PROBLEM, fix)
    return Finding("system", "shared memory", "memfd works; /dev/shm is not used")


def _pidfd() -> Finding:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        fix = "Linux 5.3 or newer is needed, and a seccomp profile that allows pidfd_open"
        return Finding("system", "pidfd", str(error.strerror), State.PROBLEM, fix)
    return Finding("system", "pidfd", "works: a rank's death is seen at once")


def _limits() -> Iterator[Finding]:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY and files < _FEW_DESCRIPTORS:
        fix = f"ulimit -n {_FEW_DESCRIPTORS} or more"
        yield Finding("limits", "open files", str(files), State.PROBLEM, fix)
    else:
        yield Finding("limits", "open files", _amount(files))
    for name, number, unit in (
        ("address space", resource.RLIMIT_AS, _MIB),
        ("file size", resource.RLIMIT_FSIZE, _MIB),
        ("locked memory", resource.RLIMIT_MEMLOCK, _MIB),
        ("processes", resource.RLIMIT_NPROC, 1),
    ):
        limit, _ = resource.getrlimit(number)
        yield _limit(name, limit, unit)


def _limit(name: str, limit: int, unit: int) -> Finding:
    small = limit != resource.RLIM_INFINITY and name in ("address space", "file size") and limit < 1024 * _MIB
    value = _amount(limit, unit)
    if small:
        flag = "-v" if name == "address space" else "-f"
        fix = f"shared memory of the ranks counts here: ulimit {flag} unlimited"
        return Finding("limits", name, value, State.WARNING, fix)
    return Finding("limits", name, value)


def _amount(limit: int, unit: int = 1) -> str:
    if limit == resource.RLIM_INFINITY:
        return "unlimited"
    return f"{limit // unit} MiB" if unit == _MIB else str(limit)
