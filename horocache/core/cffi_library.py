"""Loads the C library with cffi, and wraps the tensors that the library allocates."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import cffi
import numpy as np

from horocache.errors import UnsupportedError


def library_path() -> Path:
    """Return the path of this build's C library."""
    return Path(__file__).parents[1] / "libhorocache.so"


def load() -> tuple[cffi.FFI, Any]:
    """Load the library, with the declarations that it carries.

    Raises:
        UnsupportedError: this build has no C library.
    """
    if not library_path().exists():
        msg = (
            f"binding=cffi needs {library_path()}, which is not there; this build has the native binding only. "
            "Set binding=native, or install horocache again."
        )
        raise UnsupportedError(msg)
    probe = cffi.FFI()
    probe.cdef("const char* hc_header(void);")
    header = probe.string(probe.dlopen(str(library_path())).hc_header()).decode()
    ffi = cffi.FFI()
    ffi.cdef(_declarations(header))
    return ffi, ffi.dlopen(str(library_path()))


def _declarations(header: str) -> str:
    """Return the C declarations of ``header``, without the parts that only a C compiler needs."""
    text = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    text = re.sub(r"#ifdef __cplusplus.*?#endif", "", text, flags=re.DOTALL)
    return "\n".join(line for line in text.splitlines() if not line.startswith("#")).replace("HC_API ", "")


class Result:
    """A tensor that the core allocated, as a NumPy array; the counterpart of :class:`horocache._core.Result`.

    The results of operations are copied out of the core once. A tensor of ``Runtime.empty`` is not copied.
    """

    def __init__(self, array: np.ndarray[Any, Any], dtype: str, rows: list[int]) -> None:
        self._array = array
        self.dtype = dtype
        self.rows = rows

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the tensor."""
        return tuple(self._array.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(self._array, dtype=dtype, copy=copy) if copy else np.asarray(self._array, dtype=dtype)

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self._array.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)
