"""Starts the operations of mcr_dl: arguments that all have, names, submission, handles."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, TypeVar

from horocache.base.request import Request
from horocache.collectives.completion import Handle
from horocache.errors import InvalidArgumentError
from horocache.mcr_dl.arrays import arrays_of
from horocache.mcr_dl.call_names import CallName, Ticket
from horocache.mcr_dl.session import AUTO, Route, Session, current
from horocache.mcr_dl.work import Store, Work

Backend = str | Sequence[str]
R = TypeVar("R")


class Call(NamedTuple):
    """An operation, as the program sees it."""

    title: str  # the public function
    key: Hashable  # see Sequence.submit
    size: int  # bytes of this rank's tensor, for the log


def names_backends(value: Any) -> bool:
    """True if a first argument names backends: text, or a list of texts."""
    if isinstance(value, str):
        return True
    return isinstance(value, (list, tuple)) and bool(value) and all(isinstance(each, str) for each in value)


def backend_first(function: Callable[..., R]) -> Callable[..., R]:
    """Let a function's first argument, the backend, be left out; it is then ``"auto"``."""

    @functools.wraps(function)
    def call(*given: Any, **named: Any) -> R:
        if (given and type(given[0]) is str) or "backend" in named or (given and names_backends(given[0])):
            return function(*given, **named)
        return function(AUTO, *given, **named)

    return call


def check_flag(async_op: Any) -> None:
    """Raise InvalidArgumentError unless ``async_op`` is a bool: PyTorch has other arguments in its place."""
    if not isinstance(async_op, bool):
        raise InvalidArgumentError(
            f"async_op must be True or False; it is {async_op!r}. Arguments that the paper does not list, such as "
            "group, are given by keyword."
        )


def route_of(backend: Any, group: Any, async_op: Any) -> tuple[Session, Route]:
    """Return the session and the route of a call; checks the arguments that all operations have."""
    check_flag(async_op)
    session = current()
    return session, session.route(backend, group)


def start(
    session: Session,
    route: Route,
    call: Call,
    name: Any,
    async_op: bool,
    op: int,
    inputs: Sequence[Any],
    outputs: Sequence[Any] | None,
    store: Store,
    result: Any,
    **fields: Any,
) -> Work | None:
    """Start an operation of the core.

    Args:
        session: the session.
        route: the route of the call.
        call: the operation, as the program sees it.
        name: the program's name for it, or None.
        async_op: False waits for the operation.
        op: the core's operation code.
        inputs: contiguous tensors.
        outputs: contiguous tensors for the results; None: the core allocates them.
        store: stores the core's answer in the caller's tensors: ``store(result, answer)``.
        result: the caller's tensors.
        fields: more fields of the request.

    Returns:
        The handle; None if the call has waited.
    """
    before = time.monotonic_ns()
    backlog = session.backlog

    def submit(text: str | bytes, may_wait: bool) -> int | Ticket:
        request = Request(
            op,
            inputs,
            outputs,
            text,
            process_set=route.number,
            backend=route.backend,
            wait_follows=not async_op,
            **fields,
        )
        if not may_wait:
            return session.runtime.submit(request)
        on_device = bool(inputs) and not arrays_of(inputs[0]).on_host(inputs[0])
        return backlog.submit(text, lambda: session.runtime.submit(request), by_this_thread=on_device)

    operation, named = route.submit(name, call.key, submit)
    return finish(session, route, call, named, operation, store, result, async_op, before)


def start_by_horocache(
    session: Session,
    route: Route,
    call: Call,
    name: CallName | None,
    handle: Handle,
    store: Store,
    result: Any,
    async_op: bool,
    before: int,
) -> Work | None:
    """Take over an operation that a function of horocache's own has started.

    Args:
        session: the session.
        route: the route of the call.
        call: the operation, as the program sees it.
        name: the call's name; None for a message.
        handle: the function's handle.
        store: stores the function's result in the caller's tensors: ``store(result, answer)``.
        result: the caller's tensors.
        async_op: False waits for the operation.
        before: ``time.monotonic_ns()`` before the start.

    Returns:
        The handle; None if the call has waited.
    """
    finish_, state = session.daemon.pending.pop(handle)

    def store_finished(result: Any, answer: Any) -> None:
        store(result, finish_(state, answer))

    return finish(session, route, call, name, int(handle), store_finished, result, async_op, before)


def finish(
    session: Session,
    route: Route,
    call: Call,
    name: CallName | None,
    operation: int | Ticket,
    store: Store,
    result: Any,
    async_op: bool,
    before: int,
) -> Work | None:
    """Return the handle of an operation that has been submitted, or wait for it."""
    log = session.log
    if log is not None:
        log.note(call.title, route, name, call.size, before)
    work = Work(route, operation, store, result, *((None, 0) if name is None else name[1:]))
    if async_op:
        return session.adopt(work)
    try:
        work.wait()
    except BaseException:
        if not work.over:  # an interrupt: the operation goes on
            session.adopt(work)
        raise
    finally:
        if log is not None:
            log.show()
    return None
