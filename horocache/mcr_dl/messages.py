"""Messages between two ranks: send, recv, isend, irecv and sendrecv."""

from __future__ import annotations

import time
from typing import Any

from horocache.base.operation_codes import OP_RECV, OP_SEND
from horocache.errors import InvalidArgumentError
from horocache.mcr_dl.arrays import Arrays, arrays_of
from horocache.mcr_dl.calls import Backend, Call, backend_first, route_of, start_by_horocache
from horocache.mcr_dl.parts import store_nothing
from horocache.mcr_dl.session import Group, Route, Session
from horocache.mcr_dl.work import JointWork, Work


@backend_first
def send(
    backend: Backend, tensor: Any, rank: int, async_op: bool = False, *, tag: int = 0, group: Group | None = None
) -> Work | None:
    """Send a tensor to one rank.

    Messages take the links of horocache, whatever the backend: shared memory within a host, MPI between hosts. They
    have no part in the order of other calls. A message of up to 16 KiB is on its way when the call returns; a larger
    one waits for its :func:`recv`. Two ranks that both begin with a blocking send of a large message wait for each
    other: use :func:`sendrecv` or :func:`isend`.

    Args:
        backend: a backend given to :func:`init`, a list, or ``"auto"``, which is also the meaning if it is left out.
            :func:`synchronize` of the backend waits for the message.
        tensor: any shape and dtype. Not modified.
        rank: the receiver, a global rank in the group.
        async_op: True returns a handle at once.
        tag: 0 to 2^31 - 2; matches the receive with the same tag.
        group: from :func:`new_group`, the same on both sides; None: all ranks.

    Returns:
        A :class:`Work` if ``async_op``, else None.

    Raises:
        InvalidArgumentError: ``rank`` is not in the group, or an argument is invalid. MismatchError: the receive of a
            large message has another dtype or number of elements; names both ranks and both values. PeerLostError: a
            rank died.
    """
    session, route = route_of(backend, group, async_op)
    arrays = arrays_of(tensor)
    if async_op:
        return _isend(session, route, arrays, tensor, rank, tag)
    before = time.monotonic_ns()
    arrays.collectives.send(tensor, rank, _tag(tag), process_set=route.group.process_set)
    _note(session, route, "send", tensor, before)
    return None


@backend_first
def recv(
    backend: Backend, tensor: Any, rank: int, async_op: bool = False, *, tag: int = 0, group: Group | None = None
) -> Work | None:
    """Receive a tensor from one rank.

    Args:
        backend: a backend given to :func:`init`, a list, or ``"auto"``, which is also the meaning if it is left out.
            Messages take the links of horocache, whatever the backend.
        tensor: gets the values; of the dtype and the number of elements of the sent tensor, any strides.
        rank: the sender, a global rank in the group. A receive from any rank is not possible.
        async_op: True returns a handle at once.
        tag: 0 to 2^31 - 2; matches the send with the same tag.
        group: from :func:`new_group`, the same on both sides; None: all ranks.

    Returns:
        A :class:`Work` if ``async_op``, else None.

    Raises:
        InvalidArgumentError: ``rank`` is not in the group, or an argument is invalid. MismatchError: the sent tensor
            has another dtype or number of elements; names both ranks and both values. PeerLostError: a rank died.
    """
    session, route = route_of(backend, group, async_op)
    arrays = arrays_of(tensor)
    if async_op:
        return _irecv(session, route, arrays, tensor, rank, tag)
    before = time.monotonic_ns()
    arrays.collectives.recv(tensor, rank, _tag(tag), process_set=route.group.process_set)
    _note(session, route, "recv", tensor, before)
    return None


@backend_first
def isend(backend: Backend, tensor: Any, rank: int, *, tag: int = 0, group: Group | None = None) -> Work:
    """Start :func:`send`; returns a handle. The tensor must not change until it is over.

    Args:
        backend: as for :func:`send`.
        tensor: any shape and dtype. Not modified.
        rank: the receiver, a global rank in the group.
        tag: 0 to 2^31 - 2; matches the receive with the same tag.
        group: from :func:`new_group`, the same on both sides; None: all ranks.

    Raises:
        InvalidArgumentError: ``rank`` is not in the group, or an argument is invalid.
    """
    session, route = route_of(backend, group, True)
    return _isend(session, route, arrays_of(tensor), tensor, rank, tag)


@backend_first
def irecv(backend: Backend, tensor: Any, rank: int, *, tag: int = 0, group: Group | None = None) -> Work:
    """Start :func:`recv`; returns a handle. The tensor must not be used until it is over.

    Args:
        backend: as for :func:`recv`.
        tensor: gets the values; of the dtype and the number of elements of the sent tensor, any strides.
        rank: the sender, a global rank in the group.
        tag: 0 to 2^31 - 2; matches the send with the same tag.
        group: from :func:`new_group`, the same on both sides; None: all ranks.

    Raises:
        InvalidArgumentError: ``rank`` is not in the group, or an argument is invalid.
    """
    session, route = route_of(backend, group, True)
    return _irecv(session, route, arrays_of(tensor), tensor, rank, tag)


@backend_first
def sendrecv(
    backend: Backend,
    tensor: Any,
    dst: int,
    recv_tensor: Any,
    src: int,
    async_op: bool = False,
    *,
    sendtag: int = 0,
    recvtag: int = 0,
    group: Group | None = None,
) -> JointWork | None:
    """Send one tensor and receive another at the same time, so that ranks that exchange tensors cannot deadlock.

    Args:
        backend: as for :func:`send`.
        tensor: the tensor to send, which shares no memory with ``recv_tensor``. Not modified.
        dst: the rank that gets ``tensor``, a global rank in the group.
        recv_tensor: gets the received values; of the dtype and the number of elements of the sent tensor.
        src: the rank that sends to this one, a global rank in the group. It may be ``dst``, or this rank.
        async_op: True returns a handle at once.
        sendtag: tag of the message that is sent.
        recvtag: tag of the message that is received.
        group: from :func:`new_group`, the same on both sides; None: all ranks.

    Returns:
        A :class:`JointWork` if ``async_op``, else None.

    Raises:
        InvalidArgumentError: a rank is not in the group, or an argument is invalid. MismatchError: a sender and its
            receiver differ in dtype or number of elements. PeerLostError: a rank died.
    """
    session, route = route_of(backend, group, async_op)
    sender, receiver = arrays_of(tensor), arrays_of(recv_tensor)
    sender.checked(tensor, "the tensor to send")  # before the receive is started
    _check_member(route, dst, "dst")
    _tag(sendtag)
    received = _irecv(session, route, receiver, recv_tensor, src, recvtag)
    sent = _isend(session, route, sender, tensor, dst, sendtag)
    both = JointWork([received, sent], recv_tensor)
    if async_op:
        return both
    both.wait()
    return None


def _check_member(route: Route, rank: Any, argument: str) -> None:
    if rank not in route.group.ranks:
        raise InvalidArgumentError(f"{argument} must be one of the ranks {route.group.ranks}; it is {rank!r}.")


def _tag(tag: Any) -> int:
    """Return the tag; the highest one belongs to monitored_barrier."""
    check_tag = isinstance(tag, int) and not isinstance(tag, bool) and 0 <= tag < 2**31 - 1
    if not check_tag:
        raise InvalidArgumentError(f"a tag must be a whole number from 0 to {2**31 - 2}; it is {tag!r}.")
    number: int = tag
    return number


def _isend(session: Session, route: Route, arrays: Arrays, tensor: Any, rank: int, tag: int) -> Work:
    before = time.monotonic_ns()
    handle = arrays.collectives.isend(tensor, rank, _tag(tag), process_set=route.group.process_set)
    call = Call("send", OP_SEND, tensor.nbytes)
    return _started(start_by_horocache(session, route, call, None, handle, store_nothing, None, True, before))


def _irecv(session: Session, route: Route, arrays: Arrays, tensor: Any, rank: int, tag: int) -> Work:
    before = time.monotonic_ns()
    handle = arrays.collectives.irecv(tensor, rank, _tag(tag), process_set=route.group.process_set)
    call = Call("recv", OP_RECV, tensor.nbytes)
    return _started(start_by_horocache(session, route, call, None, handle, store_nothing, tensor, True, before))


def _started(work: Work | None) -> Work:
    assert work is not None
    return work


def _note(session: Session, route: Route, title: str, tensor: Any, before: int) -> None:
    log = session.log
    if log is not None:
        log.note(title, route, None, tensor.nbytes, before)
        log.show()
