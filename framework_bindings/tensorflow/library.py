"""Loads horocache's TensorFlow operations once, and attaches their kernels to the running session."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import horocache
import tensorflow as tf
from horocache.core import context
from horocache.core.session import Session
from horocache.errors import UnsupportedError

_PATH = Path(horocache.__file__).parent / "libhorocache_tf.so"


def _load() -> tuple[Any, ctypes.CDLL]:
    if not _PATH.exists():
        raise UnsupportedError(f"horocache.tensorflow needs {_PATH}, which is not there. Install horocache again.")
    # TensorFlow loads the library before ctypes does: it assigns operations to the library that registers them while
    # TensorFlow loads it.
    operations = tf.load_op_library(str(_PATH))
    library = ctypes.CDLL(str(_PATH))
    library.hc_tf_problem.restype = ctypes.c_char_p
    problem = library.hc_tf_problem().decode()
    if problem:
        raise UnsupportedError(
            f"TensorFlow {tf.__version__} cannot run the operations of horocache: {problem}. They need the C interface "
            "for kernels and operations of TensorFlow 2.16 or newer, for Linux."
        )
    library.hc_tf_attach.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    library.hc_tf_detach.argtypes = [ctypes.c_int]
    library.hc_tf_attach.restype = library.hc_tf_detach.restype = library.hc_tf_forked_child.restype = None
    return operations, library


operations, _library = _load()
_raise_interrupt = ctypes.PyDLL(str(_PATH)).hc_tf_raise_interrupt
_raise_interrupt.restype = None


def wait(operation: Callable[..., Any], **arguments: Any) -> Any:
    """Call a waiting operation. If a signal handler ended the wait, raise the handler's exception, such as Ctrl-C's."""
    try:
        return operation(**arguments)
    except tf.errors.CancelledError:
        _raise_interrupt()
        raise


class _Kernels:
    """Follows the sessions of this process, so that the kernels submit to the one that runs.

    Role: one object, registered with :func:`horocache.core.context.follow`.
    """

    def started(self, session: Session) -> None:
        """Attach the kernels to the session's runtime."""
        _library.hc_tf_attach(*session.runtime.c_api())

    def ended(self, running: bool) -> None:
        """Detach the kernels from the runtime. No kernel waits any more, but operations may still be in flight.

        Args:
            running: True if these operations go on until the process ends, so that their tensors must stay; False if
                the runtime has been stopped.
        """
        _library.hc_tf_detach(running)

    def forked_child(self) -> None:
        """Make every collective fail in this child of a fork."""
        _library.hc_tf_forked_child()


context.follow(_Kernels())
