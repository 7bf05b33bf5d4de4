"""Arrays that begin or end at an inaccessible page."""

from __future__ import annotations

import ctypes
import mmap
from typing import Literal

import numpy as np

_LIBC = ctypes.CDLL(None, use_errno=True)
_PROT_NONE = 0
_MARK = 0x5A


class _Fenced(np.ndarray):
    """An array, and the other bytes of its pages."""

    rest: np.ndarray | None = None


def fenced(count: int, dtype: type, where: Literal["before", "behind"]) -> _Fenced:
    """Return ``count`` elements with an inaccessible page before or behind them, and marks on their other side.

    Any access to that page ends the process.
    """
    page = mmap.PAGESIZE
    size = count * np.dtype(dtype).itemsize
    pages = -(-size // page)
    memory = mmap.mmap(-1, (pages + 2) * page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for at in (0, pages + 1):
        if _LIBC.mprotect(ctypes.c_void_p(start + at * page), ctypes.c_size_t(page), _PROT_NONE) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")
    inside = np.frombuffer(memory, np.uint8, pages * page, page)
    inside[:] = _MARK
    own, rest = (inside[-size:], inside[:-size]) if where == "behind" else (inside[:size], inside[size:])
    array = own.view(dtype).view(_Fenced)
    array.rest = rest
    return array


def check_fence(array: _Fenced) -> None:
    """Fail if the marks beside the array have changed."""
    assert array.rest is not None
    assert (array.rest == _MARK).all(), "the operation wrote beside its tensor"
