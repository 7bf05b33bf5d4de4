"""Starts the operations of one process group of torch.distributed."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Hashable, Sequence
from contextlib import suppress
from typing import TypeVar

import torch
from horocache.base.operation_codes import OP_RECV
from horocache.base.request import Request
from horocache.collectives.reduce_op import Sum
from horocache.core.runtime_protocol import Runtime
from horocache.data_parallel.sequence_names import CallOrder
from horocache.errors import DuplicateNameError, HorocacheError

from .future_threads import Finisher, Waiter
from .stream_order import NO_ORDER, StreamOrder, order_for
from .work import OperationWork, Store

T = TypeVar("T")
_NAME_NAP_S = 1e-4  # seconds between attempts to submit under a name that is in flight


class _Orphan:
    """An orphaned operation: the program has dropped its work object.

    Role: in the group's list and, if it is a collective with a result to store, in the finisher's queue; the first
    thread to reach it finishes it.

    Args:
        runtime: the runtime of the group's session.
        handle: the core's handle.
        store: stores the core's answer in the result tensors; None if that is not needed.
        order: of the device's streams; None for an operation on the CPU.
        number: the collective's number in the group's order; None for a message, which may never arrive.
    """

    def __init__(
        self, runtime: Runtime, handle: int, store: Store | None, order: StreamOrder | None, number: int | None
    ) -> None:
        self.number = number
        self._order = order
        self._runtime = runtime
        self._handle = handle
        self._store = store
        self._over = False
        self._lock = threading.Lock()  # held by the thread that finishes it

    def finish(self) -> None:
        """Wait for the operation and store its result; a concurrent second call waits for the first."""
        with self._lock:
            if not self._over:
                self._finish()
        self._wait_on_stream()

    def finish_if_over(self) -> bool:
        """Finish the operation if that needs no wait; return True if it is finished."""
        if not self._over and self._lock.acquire(blocking=False):
            try:
                if not self._over and self._runtime.poll(self._handle):
                    self._finish()
            finally:
                self._lock.release()
        if self._over:
            self._wait_on_stream()
        return self._over

    def _wait_on_stream(self) -> None:
        if self._order is not None:
            self._order.wait()

    def _finish(self) -> None:
        # The program has dropped the operation, and its errors with it.
        with suppress(HorocacheError), self._order or NO_ORDER:
            answer = self._runtime.wait(self._handle)
            if self._store is not None:
                self._store(answer)
        self._over, self._store = True, None


class GroupCalls:
    """Submits the operations of a group to the core.

    A group orders its ranks as the user chooses (``new_group(sort_ranks=False)``), whereas a process set has its ranks
    in ascending order. Lists by rank of the group are reordered for the core.

    Role: owned by the group; any thread may call it, but collectives must be called one after the other.

    Args:
        runtime: the runtime of the group's session.
        process_set: the number of the process set with the group's ranks.
        ranks: global ranks, in the group's order.
        rank: this process's rank in the group.
        name: the group's name, the same on all its ranks and different from other groups' names.
        limit_s: seconds to wait for an operation; below 0 only the core's limits apply.
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
        self.finisher = Finisher()
        self._process_set = process_set
        places = sorted(range(len(self.ranks)), key=self.ranks.__getitem__)
        self._sorted = None if places == list(range(len(places))) else places  # ranks in the group, by rank in the set
        self._orphans: deque[_Orphan] = deque()
        self._orphans_lock = threading.Lock()  # held by a thread that removes orphans

    # ---- ranks

    @property
    def reorders(self) -> bool:
        """True if the group's order of ranks differs from the process set's."""
        return self._sorted is not None

    def place(self, rank: int) -> int:
        """Return the rank in the process set of a rank of the group."""
        return rank if self._sorted is None else self._sorted.index(rank)

    def sort(self, values: Sequence[T]) -> Sequence[T]:
        """Reorder values from the order of the group to the order of the process set."""
        return values if self._sorted is None else [values[rank] for rank in self._sorted]

    def unsort(self, values: Sequence[T]) -> Sequence[T]:
        """Reorder values from the order of the process set to the order of the group."""
        return values if self._sorted is None else [values[self._sorted.index(rank)] for rank in range(len(values))]

    def starts(self, counts: Sequence[int]) -> Sequence[int] | None:
        """Return where each set rank's part begins in data in the group's order; None if both orders are the same."""
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
            call: the properties of the call that are the same on all ranks; names of later calls depend on them.
            op: the core's operation code.
            inputs: vectors.
            outputs: vectors that the core writes to, or None for results that the core allocates.
            results: the caller's tensors, which the work object returns as the result.
            store: stores the core's answer in them; None if the core writes to them itself.
            waits: True if the caller waits next.
            limit_s: seconds to wait; None means the group's limit.
            reduce_op: horocache's reduce operation.
            scale: multiplies the inputs before they are reduced.
            root: the root's rank in the process set; -1 if the operation has no root.
            splits: elements for each rank of the process set; None if shares are equal or the operation has none.
            group: True if the tensors are one group.
            send_starts: the element of the input at which the part for each rank begins.
            receive_rows: the number of elements expected from each rank.
            receive_starts: the element of the result at which the part from each rank begins.
        """
        name = self.order.name(call)
        if store is not None and not waits:  # the program may drop the work object and read the tensors later
            self.finisher.begin()
        if self._orphans:
            self.finish_orphans()
        request = Request(
            op,
            inputs,
            outputs,
            name,
            reduce_op=reduce_op,
            prescale=scale,
            root=root,
            splits=splits,
            process_set=self._process_set,
            group=group,
            wait_follows=waits,
            send_starts=send_starts,
            receive_rows=receive_rows,
            receive_starts=receive_starts,
        )
        try:
            handle = self.runtime.submit(request)
        except DuplicateNameError:
            handle = self._submit_later(request)
        limit_s = self.limit_s if limit_s is None else limit_s
        return OperationWork(self, handle, results, store, limit_s, order_for(results, inputs))

    def _submit_later(self, request: Request) -> int:
        """Submit once the previous operation of this name is over; many operations are in flight."""
        while True:
            time.sleep(_NAME_NAP_S)
            try:
                return self.runtime.submit(request)
            except DuplicateNameError:
                continue

    def message(
        self, op: int, vector: torch.Tensor, peer: int, tag: int, target: torch.Tensor, store: Store | None
    ) -> OperationWork:
        """Start to send a vector to a rank of the group, or to receive it.

        Raises:
            InvalidArgumentError: the rank or the tag is invalid.
        """
        receives = op == OP_RECV
        outputs = (vector,) if receives else None
        request = Request(op, (vector,), outputs, root=self.ranks[peer], process_set=self._process_set, tag=tag)
        handle = self.runtime.submit(request)
        order = order_for((target,)) if receives else None
        return OperationWork(self, handle, (target,), store, self.limit_s, order, peer if receives else self.rank)

    def mismatch(self, number: int) -> None:
        """Handle a mismatch between the ranks' calls of this number.

        Since that call, each rank has derived names from its own calls. If no call has followed, all ranks know of the
        mismatch and restart their names together.
        """
        if number == self.order.calls:
            self.order.begin_anew()

    # ---- orphaned operations

    def adopt(self, handle: int, store: Store | None, order: StreamOrder | None, number: int | None) -> None:
        """Take over an operation whose work object was dropped, to finish it later.

        Destructors call this, so it neither waits nor takes a lock.

        Args:
            handle: the core's handle.
            store: stores the core's answer in the result tensors; None if that is not needed.
            order: of the device's streams; None for an operation on the CPU.
            number: the collective's number in the group's order; None for a message.
        """
        orphan = _Orphan(self.runtime, handle, store, order, number)
        self._orphans.append(orphan)
        if store is not None and number is not None:
            self.finisher.put(orphan.finish)

    def finish_orphans_before(self, number: int) -> None:
        """Wait for the orphaned collectives before collective ``number``, which is over.

        The wait ends: every rank has submitted them, because every rank has submitted this collective and submits in
        order. Messages are not waited for, because they may never arrive.
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

    def finish_orphans(self, most: int = 4) -> int:
        """Finish the orphans that are over, of the ``most`` that were adopted first; returns how many are left."""
        with self._orphans_lock:
            for _ in range(min(len(self._orphans), most)):  # the limit keeps calls short; few calls leave orphans
                orphan = self._orphans.popleft()
                if not orphan.finish_if_over():
                    self._orphans.append(orphan)
            return len(self._orphans)

    def close(self) -> None:
        """Finish the orphans that are over and end the threads. No operation may follow."""
        self.finish_orphans(len(self._orphans))
        self.finisher.close()
        self.waiter.close()
