"""Stores of type ``dist_sync``: servers add up what the workers push, and keep the values."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from horocache.collectives.completion import synchronize
from horocache.collectives.numpy import collectives
from horocache.core.process_set import ProcessSet
from horocache.dag import Engine
from horocache.dag.collective import told
from horocache.errors import InputFailedError, InvalidArgumentError, StallError
from horocache.kvstore import wire
from horocache.kvstore.entry import Entry
from horocache.kvstore.order import Order
from horocache.kvstore.server import Server
from horocache.kvstore.store import KVStore
from horocache.kvstore.two_bit import TwoBit
from horocache.kvstore.updaters import Updater

_CLOSE_S = 60.0
_answers: Iterator[int] = itertools.count()  # of this process, whose answers all have different tags


class Servers:
    """The workers, the servers and this process's server, if it is one.

    Attributes:
        workers: the workers' set.
        ranks: of the servers.
        job: the set of both, for messages.
        own: this process's server.
        tags: of the store.
    """

    def __init__(self, workers: ProcessSet, ranks: list[int], job: ProcessSet, number: int) -> None:
        self.workers = workers
        self.ranks = ranks
        self.job = job
        self.tags = wire.Tags.of(number)
        self.own: Server | None = None
        self._engine: Engine | None = None
        self._error: BaseException | None = None

    def serve(self, number: int) -> Server:
        """Start this process's server."""
        self._engine = Engine(1, name=f"kvs{number}")
        self.own = Server(self._engine, self.workers.ranks, self.tags, self.job, self._note)
        return self.own

    def _note(self, error: BaseException) -> None:
        self._error = self._error or error
        if self.own is not None:
            self.own.stopped.set()

    def close(self, timeout: float | None) -> None:
        """Wait until all workers have stopped; None: as long as it takes.

        Raises:
            StallError: a worker does not. HorocacheError: of the server, which could not go on.
        """
        if self.own is None or self._engine is None:
            return
        if not self.own.stopped.wait(timeout):
            raise StallError(f"not all workers have closed the store after {timeout:g} s; close() it on all of them.")
        error = self._error  # closing the engine ends what no worker sends any more
        self._engine.close()
        if error is not None:
            raise error


class ServedStore(KVStore):
    """A store whose values are on servers; what differs from :class:`KVStore`.

    An updater or an optimizer runs on the servers, to which it is sent by cloudpickle; it gets NumPy vectors. Its
    exception is an InputFailedError of the next :meth:`pull` of the key.
    """

    def __init__(self, order: Order, number: int, engine: Engine, owns: bool, blocking: bool, servers: Servers) -> None:
        """See :func:`horocache.kvstore.create`."""
        super().__init__(order, number, engine, owns, blocking, servers.workers)
        self._servers = servers
        self._sending = threading.Lock()  # a command and its payload follow each other

    # ---- commands

    def _send(
        self, server: int, kind: int, number: int = 0, payload: np.ndarray | None = None, tag: int = 0
    ) -> list[int]:
        """Send a command and its payload; return the handles."""
        rank, job, tags = self._servers.ranks[server], self._servers.job, self._servers.tags
        code = wire.DTYPES.index(str(payload.dtype)) if payload is not None else 0
        size = payload.size if payload is not None else 0
        command = np.array([kind, number, size, code, tag], np.int64)
        with self._sending:
            handles: list[int] = [collectives.isend(command, rank, tags.command, process_set=job)]
            if payload is not None:
                handles.append(collectives.isend(payload, rank, tags.payload, process_set=job))
        return handles

    def _ask(self, server: int, kind: int, number: int = 0, payload: np.ndarray | None = None) -> None:
        """Send a command and wait until the server has obeyed it."""
        tag, status = _next_tag(), np.zeros(wire.STATUS_BYTES, np.uint8)
        answer = collectives.irecv(status, self._servers.ranks[server], tag, process_set=self._servers.job)
        synchronize([*self._send(server, kind, number, payload, tag), answer])

    def _together(self, act: Callable[[], None]) -> None:
        """Have worker 0 act while the others wait; if it fails, all raise."""
        error: Exception | None = None
        if self.rank == 0:
            try:
                act()
            except Exception as raised:
                error = raised
        text = np.frombuffer(b"" if error is None else told(error).encode(), np.uint8)
        with self._lock:
            self._meetings += 1
            name = f"{self._name}.together.{self._meetings % 2}"
        heard = collectives.allgather(text, name=name, process_set=self._workers)
        if error is not None:
            raise error
        if heard.size:
            raise InputFailedError(f"worker 0 of store {self._name}: {heard.tobytes().decode(errors='replace')}")

    def _parts(self, entry: Entry) -> list[wire.Part]:
        return wire.parts_of(entry.key, int(np.prod(entry.kind[2])), len(self._servers.ranks))

    def _from_worker_0(self, entries: Sequence[Entry]) -> None:
        vectors = [wire.vector(entry.stored, entry.key) for entry in entries]
        super()._from_worker_0(entries)

        def tell() -> None:
            for entry, elements in zip(entries, vectors, strict=True):
                for part in self._parts(entry):
                    payload = wire.packed((entry.key, elements[part.begin : part.end].copy()))
                    self._ask(part.server, wire.INIT, wire.number_of(entry.key), payload)

        self._together(tell)

    # ---- push and pull

    def _push(self, entry: Entry, values: list[Any], priority: int) -> None:
        buffer = self._buffer(entry)
        self._take(entry, values, buffer, priority)
        for part in self._parts(entry):
            push = _Push(self, entry, part, self._compression)
            self._engine.collective(
                *(push.start, [buffer, self._all], [entry.turn], priority),
                then=push.keep,
                instead=push.tell,
                queue="cpu",
                name=f"push {entry.key!r}",
            )

    def push_part(self, entry: Entry, part: wire.Part, kind: int, payload: np.ndarray) -> int:
        """Send a part of a gradient, or a text; return the handle of the message."""
        command, sent = self._send(part.server, kind, wire.number_of(entry.key), payload)
        synchronize(command)
        return sent

    def _pull(self, entry: Entry, targets: Sequence[Any], priority: int) -> None:
        self._fetch(entry, priority)
        super()._pull(entry, targets, priority)

    def _fetch(self, entry: Entry, priority: int) -> None:
        """Have the stored value be that of the servers."""
        for part in self._parts(entry):
            fetch = _Fetch(self, entry, part)
            self._engine.collective(
                *(fetch.start, [self._all], [entry.stored, entry.turn], priority),
                then=fetch.check,
                queue="cpu",
                name=f"fetch {entry.key!r}",
            )

    def ask_for(self, entry: Entry, part: wire.Part, status: np.ndarray) -> tuple[int, int]:
        """Ask for a part of a value; return the handles of its status and of its elements."""
        rank, job, tag = self._servers.ranks[part.server], self._servers.job, _next_tag()
        into = wire.vector(entry.stored, entry.key)[part.begin : part.end]
        handles = [collectives.irecv(each, rank, tag, process_set=job) for each in (status, into)]
        synchronize(self._send(part.server, wire.PULL, wire.number_of(entry.key), tag=tag))
        return handles[0], handles[1]

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """:meth:`push`, and :meth:`pull` into ``out``, or into the values; also without an updater."""
        self.push(key, value, priority)
        self.pull(key, value if out is None else out, priority)

    def row_sparse_pull(self, key: Any, out: Any = None, priority: int = 0, row_ids: Any = None) -> None:
        """See :meth:`KVStore.row_sparse_pull`. The servers send all rows."""
        with self._lock:
            for entry, _ in self._given(key, out, "out"):
                self._fetch(entry, priority)
        super().row_sparse_pull(key, out, priority, row_ids)

    # ---- optimizers and compression

    def set_updater(self, updater: Updater) -> None:
        """Have ``updater(key, sum, stored)`` change values on the servers; worker 0 sends it to them.

        Raises:
            InvalidArgumentError: it is not callable.
        """
        if not callable(updater):
            raise InvalidArgumentError(f"an updater is a function of a key, a sum and a stored value, not {updater!r}.")
        self._tell_servers("updater", updater)

    _set_updater = set_updater

    def set_gradient_compression(self, compression_params: Mapping[str, Any]) -> None:
        """See :meth:`KVStore.set_gradient_compression`. Pulled values are not compressed."""
        super().set_gradient_compression(compression_params)
        self._tell_servers("compression", self._compression)

    def _tell_servers(self, what: str, value: Any) -> None:
        payload: list[np.ndarray] = []
        self._together(lambda: payload.append(wire.packed((what, value))))
        self.barrier()

        def tell() -> None:
            for server in range(len(self._servers.ranks)):
                self._ask(server, wire.SET, 0, payload[0])

        self._together(tell)

    # ---- the end

    def barrier(self) -> None:
        """See :meth:`KVStore.barrier`. The servers have added what was pushed, too."""
        self._check_open()
        failure = self._settle()
        for server in range(len(self._servers.ranks)):
            self._ask(server, wire.FLUSH)
        self._meet()
        if failure is not None:
            raise failure

    def close(self) -> None:
        """End the store; all workers must call it. A second call does nothing.

        Raises:
            StallError: a worker does not. HorocacheError: of a failed operation, if no call has raised it.
        """
        if self._closed:
            return
        try:
            super().close()
        finally:
            for server in range(len(self._servers.ranks)):
                synchronize(self._send(server, wire.STOP))
            self._servers.close(_CLOSE_S)


class _Push:
    """A part of a gradient on its way to its server."""

    def __init__(self, store: ServedStore, entry: Entry, part: wire.Part, compression: TwoBit | None) -> None:
        self._store, self._entry, self._part, self._compression = store, entry, part, compression
        self._residual: np.ndarray | None = None

    @property
    def _key(self) -> tuple[object, int]:
        return self._entry.key, self._part.server

    def start(self) -> int:
        """Send it."""
        payload = wire.vector(self._entry.buffer, self._entry.key)[self._part.begin : self._part.end]
        if self._compression is not None:
            payload, self._residual = self._compression.encode(self._key, payload)
        return self._store.push_part(self._entry, self._part, wire.PUSH, payload)

    def tell(self, error: BaseException) -> int:
        """Send word that there is none."""
        text = f"no data, because an operation before it failed: {told(error)}"
        payload = np.frombuffer(text.encode(), np.uint8).copy()
        return self._store.push_part(self._entry, self._part, wire.PUSH_FAILED, payload)

    def keep(self, _: object) -> None:
        """Keep the rest of a compressed gradient."""
        if self._compression is not None and self._residual is not None:
            self._compression.keep(self._key, self._residual)


class _Fetch:
    """A part of a value on its way to this worker."""

    def __init__(self, store: ServedStore, entry: Entry, part: wire.Part) -> None:
        self._store, self._entry, self._part = store, entry, part
        self._status = np.zeros(wire.STATUS_BYTES, np.uint8)
        self._status_handle = -1

    def start(self) -> int:
        """Ask the server; return the handle of the elements."""
        self._status_handle, elements = self._store.ask_for(self._entry, self._part, self._status)
        return elements

    def check(self, _: object) -> None:
        """Raise InputFailedError if the server could not make the value."""
        synchronize(self._status_handle)
        if text := wire.text_of(self._status):
            raise InputFailedError(f"{text}.")


def _next_tag() -> int:
    return wire.ANSWERS_FROM + next(_answers) % wire.ANSWERS
