"""Makes and ends process groups for torch.distributed, with their session and process set."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from horocache.collectives.dynamic_process_sets import add_set_of_members, leave_set_of_members
from horocache.core import context
from horocache.core.lifecycle import shutdown
from horocache.core.process_set import ProcessSet, global_process_set
from horocache.core.session import Session
from horocache.core.store_bootstrap import start_among
from horocache.errors import HorocacheError, StartupError, UnsupportedError

from . import store_claims
from .dispatch import GroupCalls
from .future_threads import start_thread
from .process_group import HorocacheGroup
from .work import seconds_of

_NUMBERS = "horocache/process_sets"  # the store's counter of process sets, one for the whole job
_LOOK_UP_S = 5.0  # seconds of one wait, so that an interrupt is noticed

_logger = logging.getLogger("horocache.torch")


class Board:
    """Exchanges texts between the ranks of a group over torch's store, turn by turn.

    Role: used by :func:`make_group` for one group, on one rank.

    Args:
        store: the group's store.
        rank: this process's global rank.
        ranks: the group's global ranks, ascending.
        timeout: how long to wait for the other ranks.
    """

    def __init__(self, store: Any, rank: int, ranks: Sequence[int], timeout: timedelta) -> None:
        self._store = store
        self._rank = rank
        self._ranks = ranks
        self._timeout = timeout
        self._turn = 0
        # A store that is used again still has the texts of the previous start.
        self._start = store.add(f"horocache/starts/{rank}", 1)

    def share(self, text: str) -> list[str]:
        """Send a text to all ranks of the group, and return the texts of all ranks, by ascending rank.

        Raises:
            StartupError: some ranks sent no text in time, or two processes claim one rank.
        """
        self._turn += 1
        keys = [f"horocache/{self._start}/{self._turn}/{rank}" for rank in self._ranks]
        self._store.set(keys[self._ranks.index(self._rank)], text)
        self._wait(keys)
        if self._store.has_extended_api():
            return [value.decode() for value in self._store.multi_get(keys)]
        return [self._store.get(key).decode() for key in keys]

    def _wait(self, keys: list[str]) -> None:
        until = time.monotonic() + self._timeout.total_seconds()
        while True:
            left_s = max(0.001, min(until - time.monotonic(), _LOOK_UP_S))
            try:
                self._store.wait(keys, timedelta(seconds=left_s))
                return
            except RuntimeError as error:
                store_claims.check(self._store)
                if time.monotonic() < until:
                    continue
                silent = [rank for rank, key in zip(self._ranks, keys, strict=True) if not self._store.check([key])]
                raise StartupError(
                    f"rank {self._rank} has waited {self._timeout.total_seconds():g} s to make a process "
                    f"group with the ranks {self._ranks}; of these, {silent} did not come. See their output; "
                    "all ranks must call init_process_group(), or new_group() with the same ranks in the same order."
                ) from error

    def take_number(self, least: int) -> int:
        """Return a number that no other group of the job has; at least ``least``."""
        root = self._store
        while hasattr(root, "underlying_store"):
            root = root.underlying_store
        number: int = root.add(_NUMBERS, 1)
        return number if number >= least else int(root.add(_NUMBERS, least - number))


class _Started:
    """The session that was started for torch's groups, and the number of groups that use it.

    Role: one per process; changed by threads that make or end a group.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._groups = 0

    def enter(self, session: Session, started: bool) -> None:
        """Count a group; ``started`` is True if the session was started for it."""
        with self._lock:
            if started:
                self._session, self._groups = session, 0
            if session is self._session:
                self._groups += 1

    def leave(self, session: Session) -> None:
        """Count the end of a group. Shut down after the last group, if the session was started for groups."""
        with self._lock:
            if session is not self._session:
                return
            self._groups -= 1
            if self._groups > 0:
                return
            self._session = None
        if _is_current(session):
            shutdown()


_started = _Started()


def _is_current(session: Session) -> bool:
    return context.running() is session


def make_group(options: Any, backend_options: Any) -> HorocacheGroup:
    """Make a group. torch calls this for ``init_process_group("horocache")`` and ``new_group()``, on the group's ranks.

    Args:
        options: torch's ``_DistributedBackendOptions``.
        backend_options: the user's ``pg_options``, for the backends of other devices.

    Raises:
        StartupError: some ranks did not come in time, or horocache could not start.
        InvalidArgumentError: horocache runs already, with other ranks.
        UnsupportedError: the first group does not contain all ranks.
    """
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    rank = ranks[options.group_rank]
    world_size = dist.get_world_size() if dist.is_initialized() else options.group_size
    board = Board(options.store, rank, sorted(ranks), options.timeout)
    timeout_s = seconds_of(options.timeout)
    if len(ranks) == world_size:
        store_claims.claim(options.store, rank)
        session, started = start_among(rank, world_size, board.share, timeout_s)
        made = global_process_set
        if started and rank == 0 and world_size > 1:
            store_claims.watch(options.store, session)
    else:
        session, started = _running(board, sorted(ranks)), False
        made = add_set_of_members(sorted(ranks), board.share, board.take_number)
    number = made.process_set_id
    assert number is not None
    limit_s = -1.0 if _core_waits_shorter(session, timeout_s) else timeout_s
    calls = GroupCalls(session.runtime, number, ranks, options.group_rank, options.group_id, limit_s)
    _started.enter(session, started)
    return HorocacheGroup(calls, options.store, options.timeout, backend_options, lambda: _end_group(session, made))


def _running(board: Board, ranks: Sequence[int]) -> Session:
    """Return the session, which must run on all ranks of the group."""
    runs = board.share("runs" if context.running() is not None else "")
    if all(runs):
        return context.current()
    raise UnsupportedError(
        f"a process group of the backend horocache with the ranks {ranks}, and horocache does not run on rank "
        f"{ranks[runs.index('')]}: it is started by all ranks together. Make the first group one of all ranks, as by "
        'init_process_group("horocache") or new_group(backend="horocache"), or call horocache.init() on all ranks.'
    )


def _core_waits_shorter(session: Session, timeout_s: float) -> bool:
    """Return True if the core ends a wait by itself no later than the group's timeout.

    The group then sets no limit of its own: among waits without a limit, the core detects operations that can never
    complete, and fails them early.
    """
    knobs = session.runtime.knobs()
    stall_s = float(knobs["stall_shutdown_time_seconds"][0])
    return knobs["stall_check_disable"][0] in ("0", "false") and 0 < stall_s <= timeout_s


def _end_group(session: Session, made: ProcessSet) -> None:
    if made is not global_process_set and _is_current(session):
        # In a thread: other ranks may never end the group, and torch's backends do not wait for them, either.
        start_thread(_leave, made)
    _started.leave(session)


def _leave(made: ProcessSet) -> None:
    try:
        leave_set_of_members(made)
    except HorocacheError as error:
        _logger.warning("%r was left: %s", made, error)
