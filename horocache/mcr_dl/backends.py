"""The backends that a job may have, and what each needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from horocache.core import context
from horocache.core.runtime_protocol import Runtime
from horocache.errors import InvalidArgumentError, UnsupportedError
from horocache.user_backends import registered_backends, shipped_backends

# The conditions under which a job has the backend.
NEEDS = {
    "nccl": "it needs a CUDA driver, and NCCL, which a framework has loaded (see the knob nccl)",
    "loopback": "it is for groups of one rank",
    "shm": "it is for groups whose ranks are on one host",
    "mpi": "it needs an MPI library, and ranks that mpiexec or srun has started (or the knob mpi=on)",
    "program": "it needs compiled programs (the knob programs)",
}
# A job may lack them, but have groups that can use them.
_OF_GROUPS = ("loopback", "shm")


def listed(backends: Any) -> list[str]:
    """Return the names of a list of backends, or of one.

    Raises:
        InvalidArgumentError: it is not a name or a list of names, is empty, or has a name twice.
    """
    given = [backends] if isinstance(backends, str) else backends
    if not isinstance(given, (list, tuple)) or not given or not all(isinstance(each, str) for each in given):
        raise InvalidArgumentError(f"backends must be a name, such as 'shm', or a list of names, not {backends!r}.")
    if len(set(given)) != len(given):
        raise InvalidArgumentError(f"backends has a name twice: {list(given)}.")
    return list(given)


def names_in(runtime: Runtime) -> list[str]:
    """Return the names of the job's backends, in the core's order of preference."""
    return [name for name, _, _ in runtime.backends(0)]


def check_known(names: Sequence[str]) -> None:
    """Raise InvalidArgumentError if a name is that of no backend, before a job is started for it."""
    session = context.running()
    of_job = [] if session is None else names_in(session.runtime)
    known = list(dict.fromkeys([*NEEDS, *shipped_backends(), *registered_backends(), *of_job]))
    for name in names:
        if name not in known:
            raise InvalidArgumentError(f"there is no backend {name!r}; known: {', '.join(known)}, and 'auto'.")


def check_present(runtime: Runtime, names: Sequence[str]) -> None:
    """Raise UnsupportedError if the running job lacks a backend."""
    there = names_in(runtime)
    for name in names:
        if name not in there and name not in _OF_GROUPS:
            need = NEEDS.get(name) or _need_of_user_backend(name)
            raise UnsupportedError(f"this job has no backend {name!r}: {need}. It has: {', '.join(there)}.")


def check_installed(names: Sequence[str]) -> None:
    """Raise UnsupportedError if a backend in Python that is to be started cannot run here."""
    for name in names:
        backend = context.state.user_backends.get(name)
        reason = backend.missing() if backend is not None else None
        if reason is not None:
            raise UnsupportedError(f"there is no backend {name!r} here: {reason}.")


def _need_of_user_backend(name: str) -> str:
    return (
        f"horocache runs already, and was started without it; call mcr_dl.init() first, or register_backend({name!r}) "
        "before horocache.init()"
    )
