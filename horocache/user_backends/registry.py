"""The backends that this process has registered, which the next ``init`` starts."""

from __future__ import annotations

import inspect
import re

from horocache.core import context
from horocache.errors import InvalidArgumentError
from horocache.user_backends.backend import DTYPES, OPERATIONS, Backend
from horocache.user_backends.server import Servers

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
_OWN = ("shm", "mpi", "nccl", "loopback", "program", "auto", "fakedevice")


def register_backend(name: str, backend: type[Backend]) -> None:
    """Register a backend that the program has written, for the jobs that :func:`horocache.init` starts from now on.

    All ranks register the same backends in the same order; ``init`` compares their names, operations and types.

    Args:
        name: what ``backend=`` and rules call it: a letter, then letters, digits, ``_``, ``.`` and ``-``.
        backend: a class derived from :class:`Backend`.

    Raises:
        InvalidArgumentError: the name has other characters, is one of horocache's own, or is registered with another
            class; ``backend`` is not such a class, has no ``start`` or ``test``, or names an operation or type that
            does not exist; or horocache runs already.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidArgumentError(f"{name!r} cannot be a backend's name; use letters, digits, '_', '.' and '-'.")
    if name in _OWN:
        raise InvalidArgumentError(f"{name!r} is a backend of horocache's own; choose another name.")
    _check_class(name, backend)
    known = context.state.user_backends
    if name in known and known[name].made_by is not backend:
        raise InvalidArgumentError(f"backend {name!r} is registered already, as {known[name].made_by!r}.")
    if context.running() is not None and name not in known:
        raise InvalidArgumentError(f"backend {name!r} comes too late: horocache runs; register it before init().")
    if not any(isinstance(follower, Servers) for follower in context.state.followers):
        context.follow(Servers())
    known[name] = context.UserBackend(
        backend, list(backend.operations), list(backend.dtypes or DTYPES), list(backend.reduced_dtypes or DTYPES)
    )


def unregister_backend(name: str) -> None:
    """Undo :func:`register_backend`, for later jobs; nothing happens if there is no such backend."""
    context.state.user_backends.pop(name, None)


def registered_backends() -> list[str]:
    """The names of the registered backends, in the order of registration."""
    return list(context.state.user_backends)


def _check_class(name: str, backend: type[Backend]) -> None:
    if not inspect.isclass(backend) or not issubclass(backend, Backend):
        raise InvalidArgumentError(f"backend {name!r} must be a class derived from Backend, not {backend!r}.")
    missing = [method for method in ("start", "test") if getattr(backend, method) is getattr(Backend, method)]
    if missing:
        raise InvalidArgumentError(f"backend {name!r}: {backend.__name__} defines no {missing[0]}().")
    lists = (
        ("operations", backend.operations, OPERATIONS),
        ("dtypes", DTYPES if backend.dtypes is None else backend.dtypes, DTYPES),
        ("reduced_dtypes", DTYPES if backend.reduced_dtypes is None else backend.reduced_dtypes, DTYPES),
    )
    for what, given, all_names in lists:
        if isinstance(given, str) or not given or not set(given) <= set(all_names):
            raise InvalidArgumentError(
                f"backend {name!r}: {what} must be some of {', '.join(all_names)}; they are {given!r}."
            )
