"""In a second job of the same processes, one rank dies, or cannot start, after MPI has connected the ranks."""

import ctypes
import errno
import os
import platform
import struct
import sys
import time
from pathlib import Path

from common import pretend_hosts

import horocache as hc

LIBC = ctypes.CDLL(None)
CONNECT = {"x86_64": 42, "aarch64": 203}
SENDMSG = {"x86_64": 46, "aarch64": 211}


def answer_calls(numbers: dict[str, int], action: int) -> None:
    """From now on, the kernel takes ``action`` instead of a system call of this thread (seccomp)."""
    load_number, equal, answer, allow = 0x20, 0x15, 0x06, 0x7FFF0000
    steps = [
        (load_number, 0, 0, 0),
        (equal, 0, 1, numbers[platform.machine()]),
        (answer, 0, 0, action),
        (answer, 0, 0, allow),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("HP", len(steps), ctypes.addressof(code)))
    no_new_privileges, seccomp, filtered = 38, 22, 2
    assert LIBC.prctl(no_new_privileges, 1, 0, 0, 0) == 0
    assert LIBC.prctl(seccomp, filtered, program) == 0


def die_after_the_connection() -> None:
    """Die when this process sends its memory to the ranks of its host: all ranks are connected by then."""
    kill = 0x80000000
    answer_calls(SENDMSG, kill)


def come_late() -> None:
    """Refuse this rank's connections, so that the first rank of its host keeps waiting for it."""
    give_error = 0x00050000
    answer_calls(CONNECT, give_error | errno.ECONNREFUSED)


def start_no_more_threads() -> None:
    """Give the next thread a stack that exceeds all memory."""
    attributes = ctypes.create_string_buffer(256)
    LIBC.pthread_attr_init(attributes)
    LIBC.pthread_attr_setstacksize(attributes, ctypes.c_size_t(1 << 50))
    assert LIBC.pthread_setattr_default_np(attributes) == 0


how, layout, victim, late = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
pretend_hosts(layout)
hc.init()
rank = hc.rank()
others = [Path(f"/proc/{pid}") for pid in hc.allgather_object(os.getpid()) if pid != os.getpid()]
hc.shutdown()
if how == "ends":
    start_no_more_threads()
    sys.exit()
if rank == late:
    come_late()
if rank == victim:
    {"dies": die_after_the_connection, "cannot start": start_no_more_threads}[how]()
try:
    hc.init()
except hc.HorocacheError as error:
    print("refused", error, flush=True)
    while rank == 1 and any(other.exists() for other in others):
        time.sleep(0.01)  # a rank that waited for rank 1 in MPI_Finalize would never end
