"""barrier and monitored_barrier."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import numpy as np

from horocache.base.operation_codes import OP_BARRIER
from horocache.collectives.completion import Handle
from horocache.collectives.numpy import collectives
from horocache.errors import StallError
from horocache.mcr_dl.calls import Backend, Call, backend_first, route_of, start
from horocache.mcr_dl.parts import store_nothing
from horocache.mcr_dl.session import AUTO, Group, Session, current, state
from horocache.mcr_dl.work import Work, seconds_of

_TAG = 2**31 - 1  # of the messages of monitored_barrier
_GRACE_S = 0.5  # seconds that a rank waits for the leader's verdict longer than the leader waits for the others
_HEAD = 3  # integers of a message before the missing ranks


@backend_first
def barrier(
    backend: Backend = AUTO, async_op: bool = False, *, name: Any = None, group: Group | None = None
) -> Work | None:
    """Wait until every rank of the group has called it.

    Args:
        backend: a backend given to :func:`init`, ``name/algorithm``, a list of these, or ``"auto"``, which is also the
            meaning if it is left out.
        async_op: True returns a handle at once.
        name: identifies the operation across ranks. None: the order of the calls on this backend and group does.
        group: from :func:`new_group`; None: all ranks.

    Returns:
        A :class:`Work` if ``async_op``, else None.

    Raises:
        InvalidArgumentError: this rank is not in the group. MismatchError: another rank calls another operation; names
            two ranks and both. PeerLostError: a rank died. StallError: a rank did not call it in time.
    """
    session, route = route_of(backend, group, async_op)
    call = Call("barrier", (OP_BARRIER,), 0)
    return start(session, route, call, name, async_op, OP_BARRIER, (), None, store_nothing, None)


def monitored_barrier(
    timeout: float | timedelta | None = None, wait_all_ranks: bool = False, *, group: Group | None = None
) -> None:
    """Wait until every rank of the group has called it; name the ranks that have not come in time.

    The leader, which is the lowest rank of the group, collects a message from every other rank and answers all of them.
    The n-th calls of all ranks of a group belong together; a call that has raised StallError counts. Other operations
    are not affected.

    Args:
        timeout: seconds, or a timedelta, that a rank waits for the leader, and the leader for the others. None: the
            knob ``stall_shutdown_time_seconds``, 600 by default.
        wait_all_ranks: True lets the leader wait for all ranks and name all that are missing; False names the lowest.
        group: from :func:`new_group`; None: all ranks.

    Raises:
        StallError: ranks did not come in time; every rank that came raises it with the same list. InvalidArgumentError:
            this rank is not in the group, or ``timeout`` is not a time. PeerLostError: a rank died.
    """
    session = current()
    chosen = session.calls_of(group).group
    if timeout is None:
        limit_s = float(session.runtime.knobs()["stall_shutdown_time_seconds"][0]) or None
    else:
        limit_s = seconds_of(timeout)
    mailbox = _mailbox_of(session, chosen)
    mailbox.number += 1
    if chosen.rank() == 0:
        missing = mailbox.collect(limit_s, wait_all_ranks)
        mailbox.answer(missing)
    else:
        missing = mailbox.ask(limit_s)
    if missing:
        ranks = ", ".join(map(str, missing))
        at_least = "" if wait_all_ranks or chosen.size() == 2 else " at least"
        within = "in the time limit of another rank" if limit_s is None else f"within {limit_s:g} s"
        raise StallError(f"monitored_barrier of ranks {chosen.ranks}:{at_least} rank(s) {ranks} did not come {within}.")


class _Mailbox:
    """The messages of one group's monitored barriers.

    A message is a vector of integers: the number of the session, that of the barrier in the session, and the missing
    ranks. A receive that has timed out stays posted. A message of an earlier barrier, which it may get later, is
    dropped.

    Role: kept with the daemon's session; one thread at a time.
    """

    def __init__(self, group: Group) -> None:
        self.session = 0  # the number of the session of mcr_dl
        self.number = 0  # of its last barrier
        self._group = group
        self._posted: dict[int, tuple[Handle, Any]] = {}  # by sender: the receive that waits, and its vector

    def collect(self, limit_s: float | None, wait_all: bool) -> list[int]:
        """On the leader: tell the others that it has come, and return the ranks that do not come in time."""
        others = self._group.ranks[1:]
        for rank in others:
            self._send(rank, [])
        end = None if limit_s is None else time.monotonic() + limit_s
        missing: list[int] = []
        for rank in others:
            if self._receive(rank, end) is None:
                missing.append(rank)
                if not wait_all:
                    break
        return missing

    def answer(self, missing: list[int]) -> None:
        """On the leader: tell the others which ranks are missing."""
        for rank in self._group.ranks[1:]:
            self._send(rank, missing)

    def ask(self, limit_s: float | None) -> list[int]:
        """On other ranks: tell the leader that this rank has come, and return the missing ranks."""
        leader = self._group.ranks[0]
        self._send(leader, [])
        end = None if limit_s is None else time.monotonic() + limit_s
        if self._receive(leader, end) is None:  # the leader has come
            return [leader]
        end = None if limit_s is None else time.monotonic() + limit_s + _GRACE_S
        missing = self._receive(leader, end)
        return [leader] if missing is None else missing

    def _send(self, rank: int, missing: list[int]) -> None:
        values = np.full(self._group.size() + _HEAD, -1, np.int64)
        values[: _HEAD + len(missing)] = [self.session, self.number, len(missing), *missing]
        collectives.isend(values, rank, _TAG, process_set=self._group.process_set).wait()  # small, so it is buffered

    def _receive(self, rank: int, end: float | None) -> list[int] | None:
        """Return the ranks in the next message of this barrier from a rank; None if it does not come in time."""
        while True:
            handle, values = self._posted.pop(rank) if rank in self._posted else self._post(rank)
            try:
                handle.wait(None if end is None else max(0.0, end - time.monotonic()))
            except TimeoutError:
                self._posted[rank] = handle, values
                return None
            except BaseException:
                self._posted.pop(rank, None)
                raise
            if (values[0], values[1]) == (self.session, self.number):
                return [int(each) for each in values[_HEAD : _HEAD + values[2]]]

    def _post(self, rank: int) -> tuple[Handle, Any]:
        values = np.empty(self._group.size() + _HEAD, np.int64)
        return collectives.irecv(values, rank, _TAG, process_set=self._group.process_set), values


def _mailbox_of(session: Session, group: Group) -> _Mailbox:
    """Return the mailbox of a group; groups of the same ranks share one, because messages belong to the process set."""
    mailbox: _Mailbox = state.mailboxes.setdefault(group.number, _Mailbox(group))
    if mailbox.session != session.number:
        mailbox.session, mailbox.number = session.number, 0
    return mailbox
