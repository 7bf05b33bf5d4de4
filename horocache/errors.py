"""Every error that horocache raises: one tree under :class:`HorocacheError`.

A class also derives from the ``RuntimeError`` or ``ValueError`` that Horovod's users catch, so that their handlers keep
working. A message names the rank, the tensor and, if two ranks disagree, both values; and it says what to do.
"""

import sys
from typing import TYPE_CHECKING

__all__ = [
    "AbortedError",
    "CollectiveError",
    "CorruptError",
    "DuplicateNameError",
    "ForkedProcessError",
    "HorocacheError",
    "HorovodInternalError",
    "HorovodVersionMismatchError",
    "HostsUpdatedInterrupt",
    "InputFailedError",
    "InternalError",
    "InvalidArgumentError",
    "MismatchError",
    "NonFiniteError",
    "NotInitializedError",
    "OutOfMemoryError",
    "PeerLost",
    "PeerLostError",
    "RunError",
    "ShutDownError",
    "StallError",
    "StartupError",
    "UnsupportedError",
    "VersionSkewError",
]


class HorocacheError(Exception):
    """Base of all errors of horocache."""

    handles: list[int]
    """Handles of what a call for several operations had submitted before it failed; on no other error."""

    if not TYPE_CHECKING:
        # TensorFlow makes errors anew to add the source line to the message. It keeps the type of an error only if the
        # class has exactly this __init__.
        __init__ = Exception.__init__


class InvalidArgumentError(HorocacheError, ValueError):
    """A mistake of the caller, such as an invalid argument. Usually this rank alone finds it, before it sends data."""


class NotInitializedError(HorocacheError, ValueError):
    """The call needs the runtime, but was made before :func:`horocache.init` or after :func:`horocache.shutdown`."""

    def __init__(self, message: str | None = None) -> None:
        # Programs written for Horovod search the message for this name.
        name = "Horovod" if "horovod" in sys.modules else "horocache"
        super().__init__(message or f"{name} has not been initialized; call init() first.")


class UnsupportedError(HorocacheError, NotImplementedError):
    """No backend or library of this build can do this; the message says what could."""


class CollectiveError(HorocacheError, RuntimeError):
    """An operation failed after it was submitted. Horovod's users catch it as ``HorovodInternalError``."""


class MismatchError(CollectiveError):
    """Ranks submitted operations that do not match. The message names two ranks and both values. The job goes on."""


class DuplicateNameError(InvalidArgumentError):
    """An operation of this name is in flight already; that operation is not affected."""


class StallError(CollectiveError):
    """A rank did not submit an operation, or did not answer, in time."""


class PeerLostError(CollectiveError):
    """A rank of the job died; the message names it."""


class ShutDownError(CollectiveError):
    """This rank or another one left the job while the operation was pending, or before it was submitted."""


class ForkedProcessError(HorocacheError, RuntimeError):
    """The runtime belongs to the parent of this process; a child of fork() cannot use it."""


class OutOfMemoryError(HorocacheError, MemoryError):
    """Memory for an operation could not be allocated."""


class VersionSkewError(HorocacheError, RuntimeError):
    """The ranks run different versions of horocache, or differ in a knob that must be equal."""


class StartupError(HorocacheError, RuntimeError, ValueError):
    """The ranks could not form the job; Horovod's ``init`` raises ValueError in this case."""


class AbortedError(CollectiveError):
    """A rank ended with an exception, or called ``abort()``, so the other ranks cannot go on."""


class CorruptError(CollectiveError):
    """A message or a file does not decode."""


class RunError(HorocacheError, RuntimeError):
    """A rank of a job of :func:`horocache.run` raised an exception or ended early; the message has the traceback."""


class NonFiniteError(CollectiveError):
    """A rank has NaN or infinite values in a reduction, with ``check_finite`` on, or in a gate's logits.

    The message names the rank.
    """


class InputFailedError(CollectiveError):
    """A rank could not compute the data that a collective needs of it; the message names the rank and its reason."""


class InternalError(CollectiveError):
    """A defect in horocache; please report it."""


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818  (Horovod's name)
    """The hosts of an elastic job have changed; programs written for Horovod's elastic mode catch it.

    Args:
        skip_sync: True if the state need not be broadcast from rank 0 again.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the hosts of the job have changed")
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(ImportError):
    """Horovod raises this if its libraries were compiled for another version of a framework.

    Nothing in horocache is compiled for one version of a framework; the class exists for programs that catch it.
    """

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(
            f"Framework {name} installed with version {installed_version} but found version {version}.",
        )
        self.name = name
        self.version = version
        self.installed_version = installed_version


PeerLost = PeerLostError
HorovodInternalError = CollectiveError

# By StatusCode of cpp_core/base/status.h. Code 0 is "no error"; its entry is not used.
ERRORS: tuple[type[HorocacheError], ...] = (
    InternalError,
    InvalidArgumentError,
    NotInitializedError,
    UnsupportedError,
    MismatchError,
    DuplicateNameError,
    StallError,
    PeerLostError,
    ShutDownError,
    ForkedProcessError,
    OutOfMemoryError,
    VersionSkewError,
    StartupError,
    AbortedError,
    CorruptError,
    InternalError,
    NonFiniteError,
    InputFailedError,
)


def no_memory_for(size: int) -> OutOfMemoryError:
    """Return the error for a framework's failure to allocate a tensor of ``size`` bytes."""
    return OutOfMemoryError(
        f"memory ran out on this rank: there is none for a tensor of {size} bytes; raise its limit (ulimit -v, the "
        "batch system's, the container's), or have it use less"
    )


def error_for(code: int, message: str) -> HorocacheError:
    """Return the exception for a status of the core; the caller raises it.

    Args:
        code: a ``StatusCode`` number. 0 or an unknown number is a defect, for which an :class:`InternalError` that says
            so is returned.
        message: the text of the status.
    """
    if 0 < code < len(ERRORS):
        return ERRORS[code](message)
    return InternalError(f"the core reported status code {code}, which this version does not know: {message}")
