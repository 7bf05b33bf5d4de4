"""Starts the operations of one process group of torch.distributed."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Hashable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from horocache.torch.distributed.future_threads import Finisher, Waiter
from horocache.torch.distributed.work import OperationWork, Store

import torch
from horocache.base.operation_codes import OP_RECV
from horocache.collectives.reduce_op import Sum
from horocache.core.runtime_protocol import Runtime
from horocache.data_parallel.sequence_names import CallOrder
from horocache.errors import DuplicateNameError, HorocacheError

T = TypeVar("T")
_NAME_NAP_S = 1e-4


class _Orphan:
    """An operation whose work the program has dropped.

    Role: in the group's list and, if it is a collective with a result to be stored, in its finisher's; whichever thread
    comes first finishes it.

    Args:
        handle: the core's.
        store: as of the work.
        number: of the collective, in the group's order; None for a message, which may never come.
    """

    def __init__(self, runtime: Runtime, handle: int, store: Store | None, number: int | None) -> None:
        self.number = number
        self._runtime = runtime
        self._handle = handle
        self._store = store
        self._over = False
        self._lock = threading.Lock()  # held by the thread that finishes it

    def finish(self) -> None:
        """Wait for the operation and store its result; the second call waits for the first one."""
        with self._lock:
            if not self._over:
                self._finish()

    def finish_if_over(self) -> bool:
        """Finish the operation if that needs no wait; returns whether it is finished."""
        if not self._over and self._lock.acquire(blocking=False):
            try:
                if not self._over and self._runtime.poll(self._handle):
                    self._finish()
            finally:
                self._lock.release()
        return self._over

    def _finish(self) -> None:
        with suppress(HorocacheError):  # whoever dropped the operation did not want to know
            answer = self._runtime.wait(self._handle)
            if self._store is not None:
                self._store(answer)
        self._over, self._store = True, None


class GroupCalls:
    """The way from a group's functions to the core.

    The ranks of a group have an order of their own, which ``new_group(sort_ranks=False)`` may choose; a process set has
    its ranks in ascending order. What is listed by rank in the group is sorted on its way to the core.

    Role: owned by the group; its collectives are called one after the other, by any threads.

    Args:
        runtime: of the session that the group belongs to.
        process_set: the number of the set with the group's ranks.
        ranks: global ranks, in the group's order.
        rank: this process's number in the group.
        name: the group's, equal on all its ranks and not that of another one.
        limit_s: how long to wait for an operation; below 0, as long as the core waits.
    """

    def __init__(
        self, runtime: Runtime, process_set: int, ranks: Sequence[int], rank: int, name: str, limit_s: float
    ) -> None:
        self.runtime = runtime
        self.ranks = list(ranks)
        self.rank = rank
        self.limit_s = limit_s
        self.description = f"process group '{name}' of torch.distributed (ranks {', '.join(map(str, ranks))})"
        self.order = CallOrder(f"torch.{name}")  # see Note [Names by order]
        self.waiter = Waiter()
        self._finisher = Finisher()
        self._process_set = process_set
        places = sorted(range(len(self.ranks)), key=self.ranks.__getitem__)
        self._sorted = None if places == list(range(len(places))) else places  # ranks in the group, by rank in the set
        self._orphans: deque[_Orphan] = deque()
        self._orphans_lock = threading.Lock()  # held by the thread that takes some out

    # ---- ranks

    @property
    def reorders(self) -> bool:
        """Whether the group has another order than its process set."""
        return self._sorted is not None

    def place(self, rank: int) -> int:
        """The number in the process set of a rank of the group."""
        return rank if self._sorted is None else self._sorted.index(rank)

    def sort(self, values: Sequence[T]) -> Sequence[T]:
        """What belongs to each rank of the group, in the order of the process set."""
        return values if self._sorted is None else [values[rank] for rank in self._sorted]

    def unsort(self, values: Sequence[T]) -> Sequence[T]:
        """The other way round."""
        return values if self._sorted is None else [values[self._sorted.index(rank)] for rank in range(len(values))]

    def starts(self, counts: Sequence[int]) -> Sequence[int] | None:
        """Where the part of each rank of the set begins in what lies in the group's order; None: in that order."""
        if self._sorted is None:
            return None
        starts = [sum(counts[:rank]) for rank in range(len(counts))]
        return self.sort(starts)

    # ---- operations

    def start(
        self,
        call: Hashable,
        op: int,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor | None] | None,
        results: Sequence[torch.Tensor],
        store: Store | None,
        waits: bool,
        limit_s: float | None,
        *,
        reduce_op: int = Sum,
        scale: float = 1.0,
        root: int = -1,
        splits: Sequence[int] | None = None,
        group: bool = False,
        send_starts: Sequence[int] | None = None,
        receive_rows: Sequence[int] | None = None,
        receive_starts: Sequence[int] | None = None,
    ) -> OperationWork:
        """Start a collective.

        Args:
            call: what is equal on all ranks of it.
            op: the core's number.
            inputs: vectors.
            outputs: vectors for the core to write to, or None for results that the core allocates.
            results: the caller's tensors, for whoever asks the work for them.
            store: puts the core's answer into them; None if that needs nothing.
            waits: whether the caller waits next.
            limit_s: seconds, instead of the group's.
            reduce_op: ours.
            scale: what the inputs are multiplied by before they are reduced.
            root: a number in the process set.
            splits: as for the core, as are the next four.
            group: whether the tensors are one group.
            send_starts: see ``splits``.
            receive_rows: see ``splits``.
            receive_starts: see ``splits``.
        """
        name = self.order.name(call)
        if store is not None and not waits:  # the program may drop the work, and look at its tensors later
            self._finisher.begin()
        if self._orphans:
            self._finish_orphans()
        what = (op, inputs, outputs, name, None, reduce_op, scale, 1.0, root, splits, self._process_set, "", "")
        arguments = (*what, group, waits, send_starts, receive_rows, receive_starts)
        try:
            handle = self.runtime.submit(*arguments)
        except DuplicateNameError:
            handle = self._submit_later(arguments)
        return OperationWork(self, handle, results, store, self.limit_s if limit_s is None else limit_s)

    def _submit_later(self, arguments: tuple[Any, ...]) -> int:
        """Submit when the last operation of the name is over: there are many under way."""
        while True:
            time.sleep(_NAME_NAP_S)
            try:
                return self.runtime.submit(*arguments)
            except DuplicateNameError:
                continue

    def message(
        self, op: int, vector: torch.Tensor, peer: int, tag: int, target: torch.Tensor, store: Store | None
    ) -> OperationWork:
        """Start to send a vector to a rank of the group, or to receive it.

        Raises:
            InvalidArgumentError: no such rank or tag.
        """
        receives = op == OP_RECV
        handle = self.runtime.submit(
            op,
            (vector,),
            (vector,) if receives else None,
            root=self.ranks[peer],
            process_set=self._process_set,
            tag=tag,
        )
        return OperationWork(self, handle, (target,), store, self.limit_s, peer if receives else self.rank)

    def mismatch(self, number: int) -> None:
        """The ranks' calls of this number did not go together.

        Each has followed its own call since. If that was the last one, all ranks know, and can begin anew together.
        """
        if number == self.order.calls:
            self.order.begin_anew()

    # ---- operations that nobody waits for

    def adopt(self, handle: int, store: Store | None, number: int | None) -> None:
        """Finish an operation later: nobody will wait for it. Called by destructors, so it does nothing yet.

        Args:
            handle: the core's.
            store: as of the work.
            number: of the collective, in the group's order; None for a message.
        """
        orphan = _Orphan(self.runtime, handle, store, number)
        self._orphans.append(orphan)
        if store is not None and number is not None:
            self._finisher.put(orphan.finish)

    def finish_orphans_before(self, number: int) -> None:
        """Wait for the dropped collectives that came before this one, which is over.

        Every rank has submitted them, because every rank has submitted this one and submits in order. A message may
        never come.
        """
        if not self._orphans:
            return
        with self._orphans_lock:
            for _ in range(len(self._orphans)):
                orphan = self._orphans.popleft()
                if orphan.number is not None and orphan.number < number:
                    orphan.finish()
                else:
                    self._orphans.append(orphan)

    def _finish_orphans(self, most: int = 4) -> None:
        with self._orphans_lock:
            for _ in range(min(len(self._orphans), most)):  # so that calls stay short; few of them drop what they get
                orphan = self._orphans.popleft()
                if not orphan.finish_if_over():
                    self._orphans.append(orphan)

    def close(self) -> None:
        """No operation follows."""
        self._finish_orphans(len(self._orphans))
        self._finisher.close()
        self.waiter.close()
