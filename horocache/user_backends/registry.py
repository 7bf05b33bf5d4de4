"""The backends in Python that this process has registered, which the next ``init`` starts."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from horocache.core import context
from horocache.errors import InvalidArgumentError
from horocache.user_backends.backend import DTYPES, OPERATIONS, Backend
from horocache.user_backends.server import Servers

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
_OWN = ("shm", "mpi", "nccl", "loopback", "program", "auto", "fakedevice")


# The backends of this package, by name: a module, and its class. The module is imported when it is registered.
_SHIPPED = {"gloo": ("horocache.user_backends.gloo", "Gloo")}


def register_backend(name: str, backend: type[Backend] | None = None) -> None:
    """Register a backend that is written in Python, for the jobs that :func:`horocache.init` starts from now on.

    All ranks register the same backends, in any order; ``init`` compares their names, operations and types. A backend
    that cannot run here (:meth:`Backend.missing`) is left out of the job, with a warning that has the reason.

    Args:
        name: what ``backend=`` and rules call it: a letter, then letters, digits, ``_``, ``.`` and ``-``.
        backend: a class derived from :class:`Backend`; None: the class that horocache has for ``"gloo"``.

    Raises:
        InvalidArgumentError: the name has other characters, is one of horocache's own, is registered with another
            class, or has no class here; ``backend`` is not such a class, has no ``start`` or ``test``, or names an
            operation or type that does not exist; or horocache runs already.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidArgumentError(f"{name!r} cannot be a backend's name; use letters, digits, '_', '.' and '-'.")
    if name in _OWN:
        raise InvalidArgumentError(f"{name!r} is a backend of horocache's own; choose another name.")
    if backend is None:
        backend = _shipped_class(name)
    _check_class(name, backend)
    known = context.state.user_backends
    if name in known and known[name].made_by is not backend:
        raise InvalidArgumentError(f"backend {name!r} is registered already, as {known[name].made_by!r}.")
    if context.running() is not None and name not in known:
        raise InvalidArgumentError(f"backend {name!r} comes too late: horocache runs; register it before init().")
    if not any(isinstance(follower, Servers) for follower in context.state.followers):
        context.follow(Servers())
    known[name] = context.UserBackend(
        made_by=backend,
        operations=list(backend.operations),
        dtypes=list(backend.dtypes or DTYPES),
        reduced_dtypes=list(backend.reduced_dtypes or DTYPES),
        missing=backend.missing,
    )


def unregister_backend(name: str) -> None:
    """Undo :func:`register_backend`, for later jobs; does nothing for another name."""
    context.state.user_backends.pop(name, None)


def shipped_backends() -> list[str]:
    """The names of the backends in Python that horocache has, and that need no class to be registered."""
    return list(_SHIPPED)


@contextmanager
def registered_for_start(names: Iterable[str]) -> Iterator[None]:
    """Register, of these names, the backends of horocache's that are not, for a job that starts within the context.

    The job keeps them; later jobs do not have them. Other names are left alone, and so is everything if a job runs.
    """
    added = [name for name in names if name in _SHIPPED and name not in context.state.user_backends]
    if context.running() is not None:
        added = []
    try:
        for name in added:
            register_backend(name)
        yield
    finally:
        for name in added:
            unregister_backend(name)


def registered_backends() -> list[str]:
    """The names of the registered backends, in the order of registration."""
    return list(context.state.user_backends)


def _shipped_class(name: str) -> type[Backend]:
    if name not in _SHIPPED:
        raise InvalidArgumentError(
            f"horocache has no class for backend {name!r}, only for: {', '.join(_SHIPPED)}; give register_backend() a "
            "class."
        )
    module, attribute = _SHIPPED[name]
    found: type[Backend] = getattr(importlib.import_module(module), attribute)
    return found


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
        if not isinstance(given, (list, tuple, set, frozenset)) or not given or not all(x in all_names for x in given):
            raise InvalidArgumentError(
                f"backend {name!r}: {what} must be some of {', '.join(all_names)}; they are {given!r}."
            )
