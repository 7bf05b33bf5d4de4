"""A store of tensors by key, which the workers of a job share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from horocache.base.operation_codes import OP_ALLREDUCE
from horocache.base.request import Request
from horocache.collectives.arguments import set_id
from horocache.collectives.completion import synchronize
from horocache.collectives.numpy import collectives as on_numpy
from horocache.collectives.reduce_op import Sum
from horocache.core import context
from horocache.core.process_set import ProcessSet
from horocache.dag import Engine, input_has_failed
from horocache.dag.collective import told
from horocache.errors import InvalidArgumentError, MismatchError, ShutDownError, StallError, UnsupportedError
from horocache.kvstore.arrays import (
    assign,
    checked,
    collectives_of,
    is_plain,
    new_like,
    overlap,
    share_memory,
    sum_into,
)
from horocache.kvstore.entry import Entry
from horocache.kvstore.keys import Key, Keys
from horocache.kvstore.lanes import Lanes
from horocache.kvstore.ndarray import is_ndarray
from horocache.kvstore.order import Order
from horocache.kvstore.rows import copy_rows, rows_of
from horocache.kvstore.two_bit import TwoBit
from horocache.kvstore.updaters import Updater, updater_of


class KVStore:
    """Tensors by key, which workers push to and pull from.

    ``push`` sums the values of all workers, and stores the sum, or what the updater makes of it. ``pull`` copies the
    stored value. ``pushpull`` does both. The calls are operations of an engine (:class:`horocache.dag.Engine`), so that
    copies, sums and updates of different keys run beside each other. With ``blocking``, which is the default, the calls
    that write into tensors of the caller return when these have their values, as torch and NumPy cannot wait by
    themselves; without it, :meth:`wait` does.

    The methods and their meaning are MXNet's. The differences: :meth:`barrier` waits for all operations of the store;
    :meth:`pushpull` without an updater leaves the stored value alone.

    Role: made by :func:`horocache.kvstore.create`, in the same order on all workers. Threads may share it, if the
    store's type lets the ranks use any order of keys.
    """

    def __init__(
        self, order: Order, number: int, engine: Engine, owns: bool, blocking: bool, workers: ProcessSet
    ) -> None:
        """Wrap the engine; see :func:`horocache.kvstore.create`."""
        self._order = order
        self._name = f"{'kvserved' if order.serves else 'kvstore'}{number}"
        self._engine = engine
        self._owns_engine = owns
        self._blocking = blocking
        self._workers = workers
        self._keys = Keys()
        self._entries: dict[Key, Entry] = {}
        self._updater: Updater | None = None
        self._compression: TwoBit | None = None
        self._lanes = Lanes(engine, self._name, order.lanes) if order.lanes else None
        self._meetings = 0
        self._unraised: list[BaseException] = []  # of operations of which no call has told
        self._closed = False
        self._all = engine.lane(f"{self._name}.all")  # which every operation of the store reads
        self._lock = threading.RLock()

    # ---- about the store

    @property
    def type(self) -> str:
        """The store's type."""
        return self._order.type

    @property
    def rank(self) -> int:
        """This worker's number among the workers."""
        return self._workers.rank() if self._order.across else 0

    @property
    def num_workers(self) -> int:
        """The number of workers."""
        return self._workers.size() if self._order.across else 1

    @property
    def engine(self) -> Engine:
        """The engine that runs the store's operations."""
        return self._engine

    @property
    def info(self) -> dict[str, Any]:
        """Facts about the store: its type, lanes, and the most collectives of lanes that were under way at a time."""
        return {
            "type": self.type,
            "lanes": self._order.lanes,
            "most_in_flight": self._engine.flight.most,
            "blocking": self._blocking,
            "engine": repr(self._engine),
        }

    def is_capable(self, capability: str) -> bool:
        """True for "optimizer": the store can apply one.

        Raises:
            InvalidArgumentError: the capability is unknown.
        """
        if capability.lower() != "optimizer":
            raise InvalidArgumentError(f"unknown capability {capability!r}; there is 'optimizer'.")
        return True

    def get_num_dead_node(self, node_id: int = 0, timeout: float = 60) -> int:
        """Return 1 if a worker was lost, else 0. A job whose worker was lost has ended: every operation raises."""
        if not self._order.across:
            return 0
        return int(context.current().runtime.lost_a_rank)

    # ---- keys

    def init(self, key: Any, value: Any) -> None:
        """Give keys their first values; all workers must call it. The values of worker 0 count.

        Args:
            key: a str or an int, or a list of them.
            value: the tensor of each key.

        Raises:
            InvalidArgumentError: a key has a value already, or an argument is invalid. MismatchError: shape or dtype
                differ between workers.
        """
        with self._lock:
            self._check_open()
            pairs = self._keys.pairs(key, value, "value")
            for each, values in pairs:
                if each in self._entries:
                    raise InvalidArgumentError(f"duplicate init of key {each!r}; push() changes its value.")
                if len(values) != 1:
                    raise InvalidArgumentError(f"key {each!r}: init() takes one value for a key, not {len(values)}.")
            made = []
            for each, values in pairs:
                tensor = checked(values[0], each, "value")
                if self._compression is not None:
                    self._compression.check(tensor, each)
                self._engine.wait(tensor)
                lanes = [self._engine.lane(f"{what} of {each!r}") for what in ("turn", "values")]
                made.append(Entry(each, f"{self._name}.{each}", tensor, *lanes))
            if self._order.across:
                self._from_worker_0(made)
            self._entries.update((entry.key, entry) for entry in made)

    def _from_worker_0(self, entries: Sequence[Entry]) -> None:
        root = self._workers.ranks[0] if self._workers.ranks else 0
        handles: list[int] = [
            collectives_of(entry.stored).broadcast_async_(
                entry.stored, root, name=f"{entry.name}.init", process_set=self._workers
            )
            for entry in entries
        ]
        synchronize(handles)

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """:meth:`init` of keys, and :meth:`pull` of their values into ``out``."""
        self.init(key, value)
        self.pull(key, out, priority)

    def _entry(self, key: Key) -> Entry:
        entry = self._entries.get(key)
        if entry is None:
            raise InvalidArgumentError(f"key {key!r} does not exist. Did you init() it?")
        return entry

    def _given(self, key: Any, value: Any, what: str) -> list[tuple[Entry, list[Any]]]:
        """Return the entries of a call and their tensors, all checked before anything is done."""
        self._check_open()
        found = [(self._entry(each), values) for each, values in self._keys.pairs(key, value, what)]
        if not self._blocking and any(is_ndarray(each) for _, values in found for each in values):
            raise UnsupportedError(f"a store without blocking takes no arrays of MXNet's as {what}; leave blocking on.")
        return [(entry, [entry.check(tensor, what) for tensor in tensors]) for entry, tensors in found]

    # ---- push and pull

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """Add the values of all workers, and store the sum, or have the updater store its result.

        Args:
            key: a key or a list of keys.
            value: a tensor for each key, or several, which are summed first.
            priority: of operations that are ready, those of higher priorities run earlier; the same on all workers.

        Raises:
            InvalidArgumentError: a key does not exist, or a value is of another kind than its key's.
        """
        with self._lock:
            given = self._given(key, value, "value")
            for entry, values in given:
                self._push(entry, values, priority)
        if self._blocking:  # until the values may be changed
            self._engine.wait(*(entry.taken for entry, _ in given))

    def _buffer(self, entry: Entry) -> Any:
        if entry.buffer is None:
            entry.buffer = new_like(entry.stored)
        return entry.buffer

    def _push(self, entry: Entry, values: list[Any], priority: int) -> None:
        buffer = self._buffer(entry)
        self._take(entry, values, buffer, priority)
        if self._order.across:
            self._sum_over_workers(entry, buffer, priority)
        change: Callable[[], object] = partial(assign, entry.stored, buffer)
        if self._updater is not None:
            change = partial(self._updater, entry.key, buffer, entry.stored)
        self._work(f"update {entry.key!r}", priority, change, [buffer], entry.stored)

    def _take(self, entry: Entry, values: list[Any], into: Any, priority: int) -> None:
        """Sum the values of this worker."""
        name = f"sum {entry.key!r} of this worker"
        self._work(name, priority, partial(sum_into, into, values), values, into, entry.taken)

    def _work(
        self, name: str, priority: int, function: Callable[[], object], reads: Sequence[Any], *writes: Any
    ) -> None:
        """Push an operation of this worker alone."""
        self._engine.push(function, [*reads, self._all], writes, priority, queue="cpu", name=name)

    def pull(self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True) -> None:
        """Copy stored values into ``out``.

        Args:
            key: a key or a list of keys.
            out: a tensor for each key, or several.
            priority: see :meth:`push`.
            ignore_sparse: for MXNet's programs; stored values are dense.
        """
        with self._lock:
            given = self._given(key, out, "out")
            for entry, targets in given:
                self._pull(entry, targets, priority)
        self._finish(given)

    def _pull(self, entry: Entry, targets: Sequence[Any], priority: int) -> None:
        for target in targets:
            self._work(f"pull {entry.key!r}", priority, partial(assign, target, entry.stored), [entry.stored], target)

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Add the values of all workers, and copy the sum, or what the updater makes of it, into ``out``.

        Args:
            key: a key or a list of keys.
            value: see :meth:`push`.
            out: see :meth:`pull`; None: the values themselves.
            priority: see :meth:`push`.
        """
        if out is None and self._push_again(key, value, priority):
            return
        with self._lock:
            given = self._given(key, value, "value")
            targets = given if out is None else self._given(key, out, "out")
            for (entry, values), (_, outs) in zip(given, targets, strict=True):
                entry.tensor = None
                if self._updater is None:
                    self._reduce_into(entry, values, outs, priority)
                else:
                    self._push(entry, values, priority)
                    self._pull(entry, outs, priority)
            if out is None and self._sums_in_place:
                for each, values in self._keys.pairs(key, value, "value"):
                    self._entries[each].note_again(values, priority)
        self._finish(targets)

    def _push_again(self, key: Any, value: Any, priority: int) -> bool:
        """Push the sums in place of the same tensors as the last time; False if something is different."""
        keys, values = (key, value) if isinstance(key, list) else ([key], [value])
        if type(values) is not list or len(keys) != len(values):
            return False
        with self._lock:
            if not self._sums_in_place or self._closed or not all(isinstance(each, (str, int)) for each in keys):
                return False
            if len(set(keys)) != len(keys):
                return False
            again = []
            for each, tensor in zip(keys, values, strict=True):
                entry = self._entries.get(each)
                if entry is None or not entry.is_again(tensor, priority):
                    return False
                again.append(entry.again)
            for prepared in again:
                prepared.push()
        if self._blocking:
            self.wait(*values)
        return True

    @property
    def _sums_in_place(self) -> bool:
        """True if a pushpull is one allreduce, in whatever order."""
        plain = self._updater is None and self._compression is None and self._lanes is None
        return plain and self._order.across

    def _reduce_into(self, entry: Entry, values: list[Any], outs: list[Any], priority: int) -> None:
        """Sum values into the first of ``outs``, on all workers, and copy the sum to the others."""
        in_place = is_plain(outs[0]) and not any(overlap(outs[0], value) for value in values[1:])
        total = outs[0] if in_place else self._buffer(entry)
        if len(values) > 1 or not share_memory(total, values[0]):
            self._take(entry, values, total, priority)
        if self._order.across:
            self._sum_over_workers(entry, total, priority)
        for other in outs[1:] if in_place else outs:
            self._work(f"copy {entry.key!r}", priority, partial(assign, other, total), [total], other)

    def row_sparse_pull(self, key: Any, out: Any = None, priority: int = 0, row_ids: Any = None) -> None:
        """Copy some rows of stored values into ``out``, whose other rows become 0.

        Args:
            key: a key or a list of keys.
            out: a tensor of the key's shape for each key, or several.
            priority: see :meth:`push`.
            row_ids: the numbers of the rows, in any order, also repeated; a vector for each tensor of ``out``, or one
                for all.

        Raises:
            InvalidArgumentError: a row is out of range, or ``row_ids`` is None.
        """
        with self._lock:
            given = self._given(key, out, "out")
            targets = [(entry, target) for entry, outs in given for target in outs]
            for (entry, target), wanted in zip(targets, rows_of(row_ids, targets), strict=True):
                copy = partial(copy_rows, target, entry.stored, wanted)
                self._work(f"pull rows of {entry.key!r}", priority, copy, [entry.stored], target)
        self._finish(given)

    # ---- the sum over the workers

    def _sum_over_workers(self, entry: Entry, tensor: Any, priority: int) -> None:
        if self._compression is not None:
            self._sum_compressed(entry, tensor, priority, self._compression)
        elif self._lanes is None:
            start = partial(
                collectives_of(tensor).allreduce_async_,
                *(tensor,),
                op=Sum,
                name=entry.name,
                priority=priority,
                process_set=self._workers,
            )
            entry.again = self._engine.prepared_collective(
                *(start, [self._all], [tensor, entry.turn], priority), name=f"allreduce {entry.key!r}"
            )
            entry.again.push()
        else:
            self._sum_in_lane(entry, tensor, priority, self._lanes)

    def _collective(self, entry: Entry, start: Callable[[], int], tensor: Any, priority: int, **more: Any) -> None:
        self._engine.collective(
            *(start, [self._all], [tensor, entry.turn], priority),
            name=f"allreduce {entry.key!r}",
            **more,
        )

    def _sum_in_lane(self, entry: Entry, tensor: Any, priority: int, lanes: Lanes) -> None:
        """The request is a group of one tensor: the group has the place's name, and the tensor the key's."""
        lane, name = lanes.next(entry.key)
        of = collectives_of(tensor)
        request = Request(
            OP_ALLREDUCE,
            [tensor],
            [tensor],
            f"grouped_allreduce.{name}",
            names=[entry.name],
            reduce_op=Sum,
            process_set=set_id(self._workers),
            group=True,
            priority=priority,
        )
        self._collective(
            *(entry, lambda: of.start(lambda _: of.adapter.written(tensor), request), tensor, priority),
            lane=lane,
            queue="comm",
        )
        if self._order.waits:
            self._engine.wait(tensor)

    def _sum_compressed(self, entry: Entry, tensor: Any, priority: int, compression: TwoBit) -> None:
        size = compression.size(int(np.prod(entry.kind[2])))
        name, workers, lane, mark = f"{entry.name}.2bit", self._workers, None, TwoBit.mark(entry.key)
        if self._lanes is not None:
            lane, name = self._lanes.next(entry.key)
        residual: list[np.ndarray] = []

        def start() -> int:
            packed = np.zeros(size, np.uint8)
            if not input_has_failed():
                packed, kept = compression.encode(entry.key, tensor)
                residual.append(kept)
            return on_numpy.allgather_async(np.concatenate([mark, packed]), name=name, process_set=workers)

        def add_up(gathered: np.ndarray) -> None:
            parts = gathered.reshape(-1, mark.size + size)
            _check_marks(parts[:, : mark.size], workers.ranks, entry.key)
            compression.keep(entry.key, residual[0])
            assign(tensor, 0)
            for part in parts[:, mark.size :]:
                compression.add(tensor, part)

        self._collective(
            entry, start, tensor, priority, then=add_up, lane=lane, queue="cpu" if lane is None else "comm"
        )
        if self._order.waits:
            self._engine.wait(tensor)

    # ---- optimizers and compression

    def set_updater(self, updater: Updater) -> None:
        """Have ``updater(key, sum, stored)`` change the stored value of a key, in place, after each push.

        It runs on a thread of the engine, on each worker. All workers set the same one.

        Raises:
            InvalidArgumentError: it is not callable.
        """
        if not callable(updater):
            raise InvalidArgumentError(f"an updater is a function of a key, a sum and a stored value, not {updater!r}.")
        with self._lock:
            self._updater = updater

    _set_updater = set_updater

    def set_optimizer(self, optimizer: Any) -> None:
        """Have an optimizer change the stored value of a key after each push.

        Args:
            optimizer: a function that makes a torch optimizer for a list of parameters, such as
                ``lambda parameters: torch.optim.SGD(parameters, lr=0.1)``; or an object with MXNet's
                ``create_state(key, weight)`` and ``update(key, weight, gradient, state)``. The store averages nothing.

        Raises:
            InvalidArgumentError: it is neither.
        """
        self.set_updater(updater_of(optimizer))

    def set_gradient_compression(self, compression_params: Mapping[str, Any]) -> None:
        """Send two bits for each element of what is pushed, with error feedback.

        Args:
            compression_params: ``{"type": "2bit", "threshold": 0.5}``, the same on all workers. An element is sent as
                the threshold, its negative, or 0, and what it lacks is added to the next one. Type "none" ends it.

        Raises:
            InvalidArgumentError: an argument is invalid. UnsupportedError: the store is local, or has keys of other
                types than float32 on the CPU.
        """
        with self._lock:
            compression = TwoBit.of(compression_params)
            if compression is not None and not self._order.across:
                raise UnsupportedError("a local store sends nothing that could be compressed.")
            for entry in self._entries.values():
                if compression is not None:
                    compression.check(entry.stored, entry.key)
            self._compression = compression

    # ---- waits

    def wait(self, *tensors: Any, timeout: float | None = None) -> None:
        """Wait until tensors given to the store have their values; see :meth:`horocache.dag.Engine.wait`."""
        try:
            self._engine.wait(*tensors, timeout=timeout)
        except Exception as error:
            if timeout is None or not isinstance(error, StallError):
                self._forget(error, tensors)
            raise

    def _finish(self, given: Iterable[tuple[Entry, list[Any]]]) -> None:
        """Wait for the targets of a call."""
        if self._blocking:
            self.wait(*(target for _, targets in given for target in targets))

    def _forget(self, error: BaseException, tensors: Iterable[Any]) -> None:
        """Have tensors of the caller's and the store's lose an exception that a call raises, and those that led to it.

        Other exceptions of these tensors are raised by :meth:`barrier` or :meth:`close`.
        """
        self._engine.wait_quietly(*tensors)
        own = [tensor for entry in self._entries.values() for tensor in (entry.stored, entry.buffer)]
        for tensor in (*tensors, *own):
            other = None if tensor is None else self._engine.take_failure(tensor)
            if other is not None and told(other) not in told(error):
                self._unraised.append(other)

    def barrier(self) -> None:
        """Wait until all operations of the store, of the calls so far, have ended on all workers.

        MXNet's waits for the main threads only.

        Raises:
            HorocacheError: of a failed operation of this worker; the other workers are not kept waiting.
        """
        self._check_open()
        failure = self._settle()
        if self._order.across:
            self._meet()
        if failure is not None:
            raise failure

    def _meet(self) -> None:
        """Return when all workers have called this."""
        with self._lock:
            self._meetings += 1
            name = f"{self._name}.meeting.{self._meetings % 2}"
        on_numpy.allgather(np.empty(0, np.uint8), name=name, process_set=self._workers)

    def _settle(self) -> BaseException | None:
        """Wait until this worker's operations have ended; return the first exception that no call has raised."""
        self._engine.push(int, writes=[self._all], always=True, name=f"{self._name}: all operations have ended")
        self._engine.wait(self._all)
        with self._lock:
            entries = list(self._entries.values())
            failures, self._unraised = self._unraised, []
        for entry in entries:
            for tensor in (entry.stored, entry.buffer):
                error = None if tensor is None else self._engine.take_failure(tensor)
                if error is not None:
                    failures.append(error)
        return failures[0] if failures else None

    def _check_open(self) -> None:
        if self._closed:
            raise ShutDownError(f"the store {self._name} is closed.")

    def close(self) -> None:
        """Wait until the store's operations have ended, and end it. A second call does nothing.

        Raises:
            HorocacheError: of a failed operation, if no call has raised it.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
        failure = self._settle()
        if self._owns_engine:
            self._engine.close()
        if failure is not None:
            raise failure

    def __repr__(self) -> str:
        """Tell type and number of keys."""
        return f"<KVStore {self.type!r}, {len(self._entries)} keys, worker {self.rank} of {self.num_workers}>"


def _check_marks(marks: np.ndarray, ranks: Sequence[int], key: Key) -> None:
    """Raise MismatchError unless all workers have sent the same key."""
    odd = [rank for rank, mark in zip(ranks, marks, strict=True) if (mark != TwoBit.mark(key)).any()]
    if odd:
        raise MismatchError(
            f"key {key!r}: rank {odd[0]} used another key in its place; use the keys in the same order."
        )
