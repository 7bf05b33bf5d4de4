"""Messages from one rank to another: send and recv, once for all frameworks."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from horocache.base.operation_codes import OP_RECV, OP_SEND
from horocache.base.request import Request
from horocache.collectives.arguments import set_id
from horocache.collectives.completion import Handle, synchronize
from horocache.collectives.submitter import Submitter
from horocache.core import context
from horocache.core.process_set import ProcessSet, global_process_set
from horocache.errors import InvalidArgumentError

T = TypeVar("T")

_MAX_TAG = 2**31 - 1


class Messages(Submitter[T]):
    """Messages between two ranks, without the other ranks.

    A base of :class:`horocache.collectives.operations.Collectives`.

    Messages from one rank to another with the same tag arrive in the order in which they were sent, and the first
    ``recv`` gets the first message. Both sides name the same process set. A message of up to 16 KiB is on its way when
    its send returns. A larger message waits for its ``recv``. So two ranks that both begin with a blocking :meth:`send`
    of a large message wait for each other: use :meth:`sendrecv` or :meth:`isend`. Messages reach a rank of the same
    host through shared memory, and a rank of another host over MPI. Those of CUDA tensors go by the host: every form
    of send waits until the tensor is computed. ``docs/explanation/messages.md`` explains more.
    """

    def _send(self, tensor: Any, dst: int, tag: int, process_set: ProcessSet, wait_follows: bool = False) -> int:
        (source,) = self.checked([tensor], "send")
        rank = _checked_peer("dst", dst, process_set)
        buffer = self.adapter.on_host(self.adapter.dense(source)[0], True)
        return _start(OP_SEND, [buffer], None, rank, tag, process_set, wait_follows, (_nothing, None))

    def receive_patiently(self, tensor: Any, src: int, tag: int, process_set: ProcessSet) -> Handle:
        """Do as :meth:`irecv`, for a message that may come at any time: no stall limit, and no warning."""
        return Handle(self._recv(tensor, src, tag, process_set, patient=True))

    def _recv(
        self,
        tensor: Any,
        src: int,
        tag: int,
        process_set: ProcessSet,
        wait_follows: bool = False,
        patient: bool = False,
    ) -> int:
        (target,) = self.checked([tensor], "recv", in_place=True)
        rank = _checked_peer("src", src, process_set)
        dense, private = self.adapter.dense(target)
        buffer = self.adapter.on_host(dense, False)
        finisher = (self._received, (target, buffer if private or buffer is not dense else None))
        return _start(OP_RECV, [buffer], [buffer], rank, tag, process_set, wait_follows, finisher, patient)

    def _received(self, state: tuple[T, T | None], _: object) -> T:
        target, buffer = state
        if buffer is None:
            return self.adapter.written(target)
        self.adapter.copy_into(target, buffer)
        return target

    def isend(self, tensor: T, dst: int, tag: int = 0, *, process_set: ProcessSet = global_process_set) -> Handle:
        """Start :meth:`send`; returns a handle for :func:`synchronize`, which returns None.

        The tensor must not change until then.
        """
        return Handle(self._send(tensor, dst, tag, process_set))

    def send(self, tensor: T, dst: int, tag: int = 0, *, process_set: ProcessSet = global_process_set) -> None:
        """Send a tensor to one rank.

        Returns when the tensor may be changed again. A message of up to 16 KiB is then on its way, and arrives even if
        this rank shuts down. A larger message, or one beyond the 4 MiB of small messages that a rank keeps for each
        other rank, has then been received by its ``recv``.

        Args:
            tensor: any shape, including empty and scalar; any dtype that other operations accept. Not modified.
            dst: a global rank in the set. It may be this rank, if it receives with :meth:`irecv`.
            tag: 0 to 2^31 - 1; matches the ``recv`` with the same tag.
            process_set: a set that contains both ranks, the same on both sides.

        Raises:
            InvalidArgumentError: ``dst`` is not in the set, or the tag is out of range. MismatchError: the ``recv`` of
                a large message expects another dtype or number of elements; names both ranks and both values, on both
                ranks. For a message of up to 16 KiB, only the receiver raises it. PeerLostError: a rank died.
                ShutDownError: ``dst`` has shut down. StallError: the message was not received within
                ``stall_shutdown_time_seconds``.
        """
        synchronize(self._send(tensor, dst, tag, process_set, wait_follows=True))

    def irecv(self, tensor: T, src: int, tag: int = 0, *, process_set: ProcessSet = global_process_set) -> Handle:
        """Start :meth:`recv`; returns a handle for :func:`synchronize`, which returns the tensor.

        The tensor must not be used until then.
        """
        return Handle(self._recv(tensor, src, tag, process_set))

    def recv(self, tensor: T, src: int, tag: int = 0, *, process_set: ProcessSet = global_process_set) -> T:
        """Receive a tensor from one rank.

        Args:
            tensor: a writable tensor that gets the values, with the dtype and the number of elements of the sent
                tensor; its shape may differ. If it is not contiguous, the values are copied into it.
            src: a global rank in the set. A ``recv`` from any rank is not possible.
            tag: 0 to 2^31 - 1; matches the ``send`` with the same tag.
            process_set: a set that contains both ranks, the same on both sides.

        Returns:
            The tensor itself.

        Raises:
            InvalidArgumentError: ``src`` is not in the set, the tag is out of range, or the tensor is read-only.
                MismatchError: the sent tensor has another dtype or number of elements; names both ranks and both
                values. PeerLostError: a rank died. ShutDownError: ``src`` has shut down without sending such a message.
                StallError: no such message came within ``stall_shutdown_time_seconds``.
        """
        result: T = synchronize(self._recv(tensor, src, tag, process_set, wait_follows=True))
        return result

    def sendrecv(
        self,
        tensor: T,
        dst: int,
        recv_tensor: T,
        src: int,
        sendtag: int = 0,
        recvtag: int = 0,
        *,
        process_set: ProcessSet = global_process_set,
    ) -> T:
        """Send one tensor and receive another at the same time, so that ranks that exchange tensors cannot deadlock.

        Args:
            tensor: the tensor to send, which must not share memory with ``recv_tensor``. Not modified.
            dst: the rank that gets ``tensor``, a global rank in the set.
            recv_tensor: a writable tensor that gets the received values, with the dtype and the number of elements of
                the sent tensor.
            src: the rank that sends to this one, a global rank in the set. It may be ``dst``.
            sendtag: tag of the message that is sent, 0 to 2^31 - 1.
            recvtag: tag of the message that is received, 0 to 2^31 - 1.
            process_set: a set that contains this rank, ``dst`` and ``src``.

        Returns:
            ``recv_tensor``.

        Raises:
            InvalidArgumentError: a rank is not in the set, a tag is out of range, or ``recv_tensor`` is read-only.
                MismatchError: a sender and its receiver differ in dtype or number of elements. PeerLostError: a rank
                died. ShutDownError: ``dst`` or ``src`` has shut down. StallError: a message was not exchanged within
                ``stall_shutdown_time_seconds``.
        """
        _checked_peer("dst", dst, process_set)  # checked before the receive is started
        _checked_tag(sendtag)
        self.checked([tensor], "send")
        received = self._recv(recv_tensor, src, recvtag, process_set)
        sent = self._send(tensor, dst, sendtag, process_set, wait_follows=True)
        try:
            result: T = synchronize(received)
        finally:
            synchronize(sent)
        return result


def _start(
    op: int,
    inputs: Sequence[Any],
    outputs: Sequence[Any] | None,
    peer: int,
    tag: Any,
    process_set: ProcessSet,
    wait_follows: bool,
    finisher: tuple[Callable[[Any, Any], Any], Any],
    patient: bool = False,
) -> int:
    session = context.current()
    number, tag = set_id(process_set), _checked_tag(tag)
    request = Request(
        *(op, inputs, outputs), root=peer, process_set=number, wait_follows=wait_follows, tag=tag, patient=patient
    )
    handle = session.runtime.submit(request)
    session.pending[handle] = finisher
    return handle


def _nothing(_state: object, _answer: object) -> None:
    return None


def _checked_peer(argument: str, value: Any, process_set: ProcessSet) -> int:
    """Return ``value`` as a plain int; checks that it is a rank of the set, and that this rank is in the set, too."""
    set_id(process_set)
    hint = "" if argument == "dst" else " recv() cannot take a message of any rank: name the sender."
    try:
        rank = operator.index(value)
    except TypeError:
        raise InvalidArgumentError(f"{argument} must be a rank; it is {value!r}.{hint}") from None
    if process_set is global_process_set:
        if not 0 <= rank < context.size():
            raise InvalidArgumentError(
                f"{argument} must be one of the ranks 0 to {context.size() - 1}; it is {rank}.{hint}"
            )
        return rank
    process_set.rank()  # raises if this rank is not in the set
    if rank not in process_set.ranks:
        raise InvalidArgumentError(f"{argument} must be one of the ranks {process_set.ranks}; it is {rank}.{hint}")
    return rank


def _checked_tag(value: Any) -> int:
    try:
        tag = operator.index(value)
    except TypeError:
        tag = -1
    if not 0 <= tag <= _MAX_TAG:
        raise InvalidArgumentError(f"a tag must be a whole number from 0 to {_MAX_TAG}; it is {value!r}.")
    return tag
