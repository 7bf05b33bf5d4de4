"""Every error that horocache raises: one tree under :class:`HorocacheError`.

Where Horovod's users catch ``RuntimeError`` or ``ValueError``, the class here derives from it too, so that their
handlers keep working. A message names the rank, the tensor, both values where two disagree, and what to do.
"""

import sys
from typing import TYPE_CHECKING


class HorocacheError(Exception):
    """Base of all errors of horocache."""

    handles: list[int]
    """Of what a call for several operations had submitted before it failed; there is none on other errors."""

    if not TYPE_CHECKING:
        # TensorFlow, which adds the place in the program to the message, keeps the type of errors that have this one.
        __init__ = Exception.__init__


class InvalidArgumentError(HorocacheError, ValueError):
    """The caller's mistake, seen by this rank alone before anything was sent."""


class NotInitializedError(HorocacheError, ValueError):
    """Something needs the runtime before :func:`horocache.init` or after :func:`horocache.shutdown`."""

    def __init__(self, message: str | None = None) -> None:
        # Programs written for Horovod look for its name in the text.
        name = "Horovod" if "horovod" in sys.modules else "horocache"
        super().__init__(message or f"{name} has not been initialized; call init() first.")


class UnsupportedError(HorocacheError, NotImplementedError):
    """Nothing in this build can do it; the message says what could."""


class CollectiveError(HorocacheError, RuntimeError):
    """An operation failed after it was submitted; what Horovod's users catch as ``HorovodInternalError``."""


class MismatchError(CollectiveError):
    """Ranks submitted operations that do not go together; names two ranks and both values. The job goes on."""


class DuplicateNameError(InvalidArgumentError):
    """An operation of this name is in flight already; the first one is not disturbed."""


class StallError(CollectiveError):
    """Some rank did not submit an operation, or did not answer, in time."""


class PeerLostError(CollectiveError):
    """A rank of the job died; names it."""


class ShutDownError(CollectiveError):
    """A rank left the job, or this one did, while the operation was pending or before it was submitted."""


class ForkedProcessError(HorocacheError, RuntimeError):
    """The runtime belongs to the parent of this process; a child of fork cannot use it."""


class OutOfMemoryError(HorocacheError, MemoryError):
    """Memory for an operation could not be had."""


class VersionSkewError(HorocacheError, RuntimeError):
    """The ranks run different versions of horocache, or disagree about a knob that must be equal."""


class StartupError(HorocacheError, RuntimeError, ValueError):
    """The job could not be assembled; Horovod's ``init`` raises ValueError here."""


class AbortedError(CollectiveError):
    """A rank ended with an exception, or called ``abort()``, and the others cannot go on."""


class CorruptError(CollectiveError):
    """A message or a file does not decode."""


class RunError(HorocacheError, RuntimeError):
    """A rank of a job that :func:`horocache.run` started raised, or ended early; has its traceback."""


class NonFiniteError(CollectiveError):
    """A rank submitted NaN or infinite values to a reduction, and the knob ``check_finite`` is on; names the rank."""


class InternalError(CollectiveError):
    """A defect in horocache; please report it."""


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818  (Horovod's name)
    """The hosts of an elastic job have changed; programs written for Horovod's elastic mode catch it.

    Args:
        skip_sync: whether the state need not be sent from rank 0 again.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the hosts of the job have changed")
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(ImportError):
    """What Horovod raises where its libraries were compiled for another version of a framework.

    Nothing is compiled for a framework here; programs catch it.
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

# In the order of StatusCode in cpp_core/base/status.h; position 0 is "no error".
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
)


def no_memory_for(size: int) -> OutOfMemoryError:
    """The error of a framework that has none for a tensor of ``size`` bytes."""
    return OutOfMemoryError(
        f"memory ran out on this rank: there is none for a tensor of {size} bytes; raise its limit (ulimit -v, the "
        "batch system's, the container's), or have it use less"
    )


def error_for(code: int, message: str) -> HorocacheError:
    """The exception for a status of the core; the caller raises it.

    Args:
        code: a ``StatusCode`` number. One that this table does not know, or 0, is itself a defect and gives an
            :class:`InternalError` that says so.
        message: the status's text.
    """
    if 0 < code < len(ERRORS):
        return ERRORS[code](message)
    return InternalError(f"the core reported status code {code}, which this version does not know: {message}")
