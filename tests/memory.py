"""The memory of a process, for tests that it does not grow."""

import ctypes
import gc


class _Mallinfo2(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",  # bytes in mappings of their own
            "usmblks",
            "fsmblks",
            "uordblks",  # bytes on the heaps that are in use
            "fordblks",
            "keepcost",
        )
    ]


def allocated_kib() -> int:
    """The memory that malloc has handed out, without what Python's garbage keeps.

    Small objects of Python are on heaps of its own, and count only with ``PYTHONMALLOC=malloc``. Resident memory would
    also depend on the pages of files that the kernel evicts and reads again.
    """
    gc.collect()
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _Mallinfo2
    info = mallinfo2()
    return (info.uordblks + info.hblkhd) >> 10
