"""A parameter server: it adds up what the workers push, and keeps the values that they pull.

Note [Rounds of a server]
A key's push number k of all workers is round k. Its values are added in the order of the workers' ranks once all have
come, so that the sum has the same bits in every run. A pull of a worker that has pushed a key k times is answered after
round k.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from horocache.collectives.numpy import collectives
from horocache.core import context
from horocache.core.process_set import ProcessSet
from horocache.dag import Engine
from horocache.errors import InternalError
from horocache.kvstore import wire
from horocache.kvstore.two_bit import TwoBit
from horocache.kvstore.updaters import Updater


class _Value:
    """A server's part of one key.

    Attributes:
        key: the key.
        stored: its elements, as a vector.
        pushed: for each worker, its pushed values that are not yet added.
        rounds: how often all values were added.
        pulls: workers that wait, with the tag of the answer and the round for which they wait.
        error: why the last round gave no value; empty if it did.
    """

    def __init__(self, key: object, stored: np.ndarray, workers: int) -> None:
        self.key = key
        self.stored = stored
        self.pushed: list[deque[np.ndarray | str]] = [deque() for _ in range(workers)]  # a text: why there is none
        self.begun = [0] * workers  # pushes of each worker
        self.rounds = 0
        self.pulls: list[tuple[int, int, int]] = []
        self.error = ""


class Server:
    """Serves the workers of one store until all have stopped.

    Every message is an operation of the engine, so that no thread waits for one.

    Role: owned by the store of its process, or by a process that does nothing else. Only threads of the engine call it.

    Args:
        engine: with one thread, which makes the handling of messages one by one.
        workers: ranks of the workers.
        tags: of the store.
        job: a process set of workers and servers.
        on_error: called if the server cannot go on.
    """

    def __init__(
        self,
        engine: Engine,
        workers: list[int],
        tags: wire.Tags,
        job: ProcessSet,
        on_error: Callable[[BaseException], None],
    ) -> None:
        self._engine = engine
        self._workers = workers
        self._tags = tags
        self._job = job
        self._on_error = on_error
        self._values: dict[int, _Value] = {}
        self._updater: Updater | None = None
        self._compression: TwoBit | None = None
        self._running = len(workers)
        self.stopped = threading.Event()
        for worker in range(len(workers)):
            self._listen(worker)

    def _listen(self, worker: int) -> None:
        command = np.zeros(wire.COMMAND_INTEGERS, np.int64)
        self._receive(command, worker, self._tags.command, lambda: self._obey(worker, command))

    def _receive(self, into: np.ndarray, worker: int, tag: int, then: Callable[[], None]) -> None:
        rank, job = self._workers[worker], self._job
        self._engine.collective(
            *(lambda: collectives.receive_patiently(into, rank, tag, job), [], [into]),
            then=lambda _: then(),
            name=f"serve worker {worker}",
        )
        self._engine.when_written(into, lambda error: None if error is None else self._on_error(error))

    def _obey(self, worker: int, command: np.ndarray) -> None:
        kind, number, size, code, tag = (int(each) for each in command)
        if kind == wire.STOP:
            self._running -= 1
            if self._running == 0:
                self.stopped.set()
            return
        if kind == wire.PULL:
            value = self._values[number]
            self._answer(worker, value, tag, value.begun[worker])
            self._listen(worker)
            return
        if kind == wire.FLUSH:  # all earlier commands of the worker have been obeyed
            self._send(wire.status(""), self._workers[worker], tag)
            self._listen(worker)
            return
        payload = np.empty(size, wire.DTYPES[code])

        def obey() -> None:
            if kind == wire.PUSH:
                self._push(worker, self._values[number], payload)
            elif kind == wire.PUSH_FAILED:
                self._push(worker, self._values[number], payload.tobytes().decode(errors="replace"))
            elif kind == wire.INIT:
                self._init(number, payload)
                self._send(wire.status(""), self._workers[worker], tag)
            elif kind == wire.SET:
                self._set(payload)
                self._send(wire.status(""), self._workers[worker], tag)
            else:
                raise InternalError(f"a worker sent command {kind}, which this version does not know.")
            self._listen(worker)

        self._receive(payload, worker, self._tags.payload, obey)

    def _init(self, number: int, payload: np.ndarray) -> None:
        key, stored = wire.unpacked(payload)
        self._values[number] = _Value(key, stored, len(self._workers))

    def _set(self, payload: np.ndarray) -> None:
        what, value = wire.unpacked(payload)
        if what == "updater":
            self._updater = value
        else:
            self._compression = value

    def _push(self, worker: int, value: _Value, payload: np.ndarray | str) -> None:
        value.begun[worker] += 1
        value.pushed[worker].append(payload)
        while all(value.pushed):
            self._add(value)

    def _add(self, value: _Value) -> None:
        parts = [pushed.popleft() for pushed in value.pushed]
        missing = [(rank, part) for rank, part in zip(self._workers, parts, strict=True) if isinstance(part, str)]
        if missing:
            value.error = f"key {value.key!r}: " + "; ".join(f"rank {rank} pushed {text}" for rank, text in missing)
        else:
            value.error = self._update(value, self._total(value, parts))
        value.rounds += 1
        waiting, value.pulls = value.pulls, []
        for worker, tag, after in waiting:
            self._answer(worker, value, tag, after)

    def _total(self, value: _Value, parts: list[Any]) -> np.ndarray:
        total = np.zeros_like(value.stored)
        for part in parts:
            if self._compression is None:
                total += part
            else:
                self._compression.add(total, part)
        return total

    def _update(self, value: _Value, total: np.ndarray) -> str:
        """Change the stored value; return why that failed, or an empty text."""
        if self._updater is None:
            value.stored[...] = total
            return ""
        try:
            self._updater(value.key, total, value.stored)
        except Exception as error:
            return f"the update of key {value.key!r} failed on its server, rank {context.rank()}: {error!r}"
        return ""

    def _answer(self, worker: int, value: _Value, tag: int, after: int) -> None:
        if value.rounds < after:
            value.pulls.append((worker, tag, after))
            return
        for each in (wire.status(value.error), value.stored.copy()):
            self._send(each, self._workers[worker], tag)

    def _send(self, what: np.ndarray, rank: int, tag: int) -> None:
        job = self._job
        self._engine.collective(lambda: collectives.isend(what, rank, tag, process_set=job), [what], name="answer")
