"""Begin and end of mcr_dl, its backends, and waiting for them."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

from horocache.core import context, lifecycle
from horocache.core.process_set import ProcessSet
from horocache.errors import InvalidArgumentError
from horocache.mcr_dl import comms_log
from horocache.mcr_dl.backends import check_installed, check_known, check_present, listed, names_in
from horocache.mcr_dl.session import AUTO, Group, Session, current, running, state
from horocache.user_backends.registry import registered_for_start

_lock = threading.RLock()  # held by the thread that begins or ends mcr_dl


def init(
    backends: str | Sequence[str] = AUTO,
    *,
    comm: object = None,
    process_sets: Iterable[ProcessSet | Iterable[int]] | str | None = None,
    **knobs: object,
) -> None:
    """Begin to use backends. Starts horocache if it does not run; all ranks call it with the same backends.

    A second call with the same backends does nothing.

    Args:
        backends: a list of names, in the order of preference; one name; or ``"auto"``, which is all backends that the
            job has. ``shm`` and ``loopback`` may also be named if only some groups can use them. The job has ``gloo``
            if it is named here when horocache starts. It has a backend that the program has written if
            :func:`horocache.user_backends.register_backend` has registered it before.
        comm: as for :func:`horocache.init`.
        process_sets: as for :func:`horocache.init`.
        knobs: as for :func:`horocache.init`.

    Raises:
        InvalidArgumentError: a name is unknown, or mcr_dl runs with other backends. UnsupportedError: the job lacks a
            backend, for example because a library is missing. In both cases nothing is begun, and ``init`` may be
            called again. StartupError, VersionSkewError: horocache could not be started.
    """
    names: list[str] | None = listed(backends)
    if names == [AUTO]:
        names = None
    with _lock:
        if names is not None:
            check_known(names)
        owns = context.running() is None
        with registered_for_start(names or ()):
            if owns:
                check_installed(names or ())
            lifecycle.init(comm, process_sets, **knobs)
        try:
            _begin(names, owns)
        except BaseException:
            if owns:
                lifecycle.shutdown()
            raise


def _begin(names: list[str] | None, owns: bool) -> None:
    daemon = context.current()
    if names is None:
        names = names_in(daemon.runtime)
    check_present(daemon.runtime, names)
    session = running()
    if session is None:
        state.session = session = Session(daemon, names, owns)
        comms_log.begin(session)
    elif session.backends != names:
        raise InvalidArgumentError(
            f"mcr_dl runs already, with the backends {session.backends}; init() now asks for {names}. Call finalize() "
            "first."
        )


def finalize(backends: str | Sequence[str] | None = None) -> None:
    """End the use of backends; operations on them then raise an error. A second call does nothing.

    Operations in flight are not waited for: see :func:`synchronize`. When the last backend ends, the groups end, too;
    and so does horocache, if :func:`init` has started it: then operations in flight fail.

    Args:
        backends: names; None: all.

    Raises:
        InvalidArgumentError: a name is unknown.
    """
    names = None if backends is None or backends == AUTO else listed(backends)
    with _lock:
        if names is not None:
            check_known(names)
        session = running()
        if session is None:
            state.session = None
            return
        left = [] if names is None else [name for name in session.backends if name not in names]
        session.backends = left
        for calls in session.groups.values():
            calls.routes.clear()
        if left:
            return
        comms_log.end(session)
        state.session = None
        if session.owns_daemon:
            lifecycle.shutdown()


def is_initialized() -> bool:
    """True if :func:`init` has been called, and neither :func:`finalize` nor ``horocache.shutdown`` since."""
    return running() is not None


def get_backends() -> list[str]:
    """Return the names of the backends in use, in the order of :func:`init`.

    Raises:
        NotInitializedError: mcr_dl does not run.
    """
    return list(current().backends)


def _names(session: Session, backends: Any) -> list[str]:
    """Return the names of backends in use; None or ``"auto"`` is all of them."""
    if backends is None or backends == AUTO:
        return session.backends
    names = [text.partition("/")[0] for text in listed(backends)]
    for name in names:
        if name not in session.backends:
            raise InvalidArgumentError(
                f"backend {name!r} was not given to mcr_dl.init(); these were: {', '.join(session.backends)}."
            )
    return names


def synchronize(backends: str | Sequence[str] | None = None) -> None:
    """Wait for all operations of this rank that are in flight on backends, also for those whose handles were dropped.

    An operation that may run on one of several backends is waited for if one of them is named.

    Args:
        backends: names; None: all.

    Raises:
        NotInitializedError: mcr_dl does not run. InvalidArgumentError: a backend was not given to :func:`init`.
            MismatchError, PeerLostError, StallError, ShutDownError, AbortedError: an operation failed; all others have
            been waited for.
    """
    session = current()
    session.wait_for(_names(session, backends))
    log = session.log
    if log is not None:
        log.show()


def wait(backend: str) -> None:
    """Wait for all operations of this rank that are in flight on a backend; see :func:`synchronize`."""
    synchronize(backend)


def get_size(backend: Any = AUTO, group: Group | None = None) -> int:
    """Return the number of ranks.

    Args:
        backend: a backend given to :func:`init`, which does not change the number; or, as in PyTorch, the group.
        group: from :func:`new_group`; None: all ranks.

    Raises:
        NotInitializedError: mcr_dl does not run. InvalidArgumentError: the backend was not given to :func:`init`.
    """
    return _group(backend, group).size()


def get_rank(backend: Any = AUTO, group: Group | None = None) -> int:
    """Return the rank of this process, from 0; in a group its rank there, and -1 if it is not in it.

    Args:
        backend: a backend given to :func:`init`, which does not change the rank; or, as in PyTorch, the group.
        group: from :func:`new_group`; None: all ranks.

    Raises:
        NotInitializedError: mcr_dl does not run. InvalidArgumentError: the backend was not given to :func:`init`.
    """
    return _group(backend, group).rank()


def _group(backend: Any, group: Any) -> Group:
    session = current()
    if backend is None or isinstance(backend, (Group, ProcessSet)):
        backend, group = AUTO, backend if group is None else group
    _names(session, backend)
    if group is None:
        return session.world.group
    if isinstance(group, ProcessSet):
        return session.calls_of(group).group
    if not isinstance(group, Group):
        raise InvalidArgumentError(f"group must come from new_group(), or be a ProcessSet or None, not {group!r}.")
    return group
