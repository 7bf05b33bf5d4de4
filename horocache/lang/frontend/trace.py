"""Tracing of programs: records the operations as the user writes them, and follows the chunks' contents symbolically.

Note [Chunks have versions]
Each place (rank, buffer, index) has a version, which counts its writes. A reference stores the versions of its places.
A later use compares them, so the use of an overwritten chunk is an error at the user's line.

Note [Sizes of chunks]
The elements of an operation are divided over the collective's size classes as evenly as possible, so chunks of
different classes may differ slightly in size. Chunk i of an input or output is of class ``i % classes``. Chunks may
keep these sizes if the program never puts a chunk into the place of a chunk of another class, and if the chunks of each
operation are of consecutive classes. Any other program is *uniform*: all its chunks must have one size. If the number
of elements does not allow that, the built-in algorithm runs instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from horocache.lang.errors import (
    BadReferenceError,
    Location,
    NoLinkError,
    StaleReferenceError,
    UninitializedChunkError,
    UsageError,
    caller,
)
from horocache.lang.frontend.collectives import INPUT, OUTPUT, Collective
from horocache.lang.frontend.symbolic import Value, Values
from horocache.lang.frontend.topology import Topology, fully_connected

PROTOCOLS = ("auto", "Simple", "LL", "LL128", "Direct")
COPY, REDUCE = "copy", "reduce"
MAX_CHANNELS = 32


@dataclass(frozen=True, order=True)
class Place:
    """Adjacent chunks of one buffer."""

    rank: int
    buffer: str
    index: int
    count: int

    def __str__(self) -> str:
        span = f"{self.index}" if self.count == 1 else f"{self.index}:{self.index + self.count}"
        return f"{self.buffer}[{span}] of rank {self.rank}"


@dataclass(frozen=True)
class Operation:
    """One copy or reduction as the user wrote it.

    Attributes:
        kind: COPY or REDUCE; a reduction adds the source to the destination.
        source: the chunks that are read.
        destination: the chunks that are written; as many as in the source.
        location: the user's line.
        channel: channel of the connection; None: the compiler chooses it.
        send_thread_block, recv_thread_block: thread blocks of the two ranks; None: the compiler chooses them.
        fragment: number and factor of each ``parallelize`` block around the operation, the outermost first.
        size_class: size class of the first chunk; the next chunks are of the next classes. See Note [Sizes of chunks].
    """

    kind: str
    source: Place
    destination: Place
    location: Location
    channel: int | None = None
    send_thread_block: int | None = None
    recv_thread_block: int | None = None
    fragment: tuple[tuple[int, int], ...] = ()
    size_class: int = 0

    @property
    def is_remote(self) -> bool:
        """True if source and destination are on different ranks."""
        return self.source.rank != self.destination.rank


@dataclass
class _Chunk:
    """State of one chunk's place: contents, version, the line that wrote it last, size class of the contents."""

    value: Value | None = None
    version: int = 0
    written: Location | None = None
    size_class: int | None = None


@dataclass
class Memory:
    """State of all places: by rank and buffer, one entry for each chunk."""

    values: Values = field(default_factory=Values)
    buffers: dict[tuple[int, str], list[_Chunk]] = field(default_factory=dict)

    def at(self, rank: int, buffer: str, index: int) -> _Chunk:
        """The chunk's entry, which is created if needed: scratch buffers grow."""
        chunks = self.buffers.setdefault((rank, buffer), [])
        while len(chunks) <= index:
            chunks.append(_Chunk())
        return chunks[index]


_current: list[Program] = []


class Program:
    """A collective algorithm that is being written; a context manager.

    Args:
        name: name of the algorithm.
        collective: the collective that the program must implement.
        topology: links between the ranks; by default every rank is connected to every other rank.
        instances: number of instances of the whole program that run in parallel, each on its part of every chunk.
        protocol: protocol of the connections: "Simple", "LL", "LL128", "Direct", or "auto", which chooses by size.
        slots: number of slots of a connection, which limits its outstanding sends, from 1 to 8. None: the runtime
            chooses it, and at least as many as the program needs.
        channels: number of channels over which the compiler spreads messages for which the user gives no channel. Each
            channel has its own connections and thread blocks.
        fuse: True to fuse receives, reductions and sends where that does not change the result.

    Attributes:
        operations: the operations that have been written so far.
        uniform: True if all chunks must have one size, because the program mixes chunks of different size classes.

    Raises:
        UsageError: an argument is invalid, or (when the context is entered) another program is being written.
    """

    def __init__(
        self,
        name: str,
        collective: Collective,
        topology: Topology | None = None,
        *,
        instances: int = 1,
        protocol: str = "auto",
        slots: int | None = None,
        channels: int = 1,
        fuse: bool = True,
    ) -> None:
        where = caller()
        topology = fully_connected(collective.num_ranks) if topology is None else topology
        if topology.num_nodes() != collective.num_ranks:
            raise UsageError(
                f"topology {topology.name} has {topology.num_nodes()} ranks, and the collective "
                f"{collective.name} {collective.num_ranks}.",
                where,
            )
        if protocol not in PROTOCOLS:
            raise UsageError(f"protocol={protocol!r}; there are {', '.join(PROTOCOLS)}.", where)
        _check_number("instances", instances, 1, 1 << 10, where)
        if slots is not None:
            _check_number("slots", slots, 1, 8, where)
        _check_number("channels", channels, 1, MAX_CHANNELS, where)
        self.name = str(name)
        self.collective = collective
        self.topology = topology
        self.instances = instances
        self.protocol = protocol
        self.slots = slots
        self.channels = channels
        self.fuse = fuse
        self.operations: list[Operation] = []
        self.uniform = False
        self.location = where
        self._memory = Memory()
        self._fragments: list[tuple[int, int]] = []
        self._num_fragments = 0
        self._state = "new"
        self._begin()

    def _begin(self) -> None:
        for rank in range(self.collective.num_ranks):
            for index in range(self.collective.input_chunks(rank)):
                if self.collective.has_data(rank, index):
                    buffer, at = self.collective.alias(rank, INPUT, index)
                    self._memory.at(rank, buffer, at).value = self._memory.values.of([(rank, index)])

    # ---- tracing

    def __enter__(self) -> Program:
        if _current:
            raise UsageError(f"program {self.name!r} begins within program {_current[-1].name!r}.", caller())
        if self._state != "new":
            raise UsageError(f"program {self.name!r} has been written already; make another one.", caller())
        self._state = "open"
        _current.append(self)
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        _current.remove(self)
        self._state = "written" if kind is None else "failed"

    @property
    def memory(self) -> Memory:
        """State of every place."""
        return self._memory

    def check_written(self) -> None:
        """Raise UsageError if the program has not been written to its end."""
        if self._state != "written":
            state = {"new": "has not been written", "open": "is still being written"}.get(
                self._state, "ended in an error"
            )
            raise UsageError(f"program {self.name!r} {state}; it cannot be compiled.", caller())

    def extent(self, rank: int, buffer: str) -> int | None:
        """Number of chunks of the input or output; None for a scratch buffer, which grows."""
        if buffer == INPUT:
            return self.collective.input_chunks(rank)
        return self.collective.output_chunks(rank) if buffer == OUTPUT else None

    def place(self, rank: Any, buffer: Any, index: Any, count: Any, where: Location) -> Place:
        """Check the chunks and return their place in memory. Raises BadReferenceError if they do not exist."""
        ranks = self.collective.num_ranks
        if not _is_number(rank) or not 0 <= rank < ranks:
            raise BadReferenceError(f"rank {rank!r}; the ranks are 0 to {ranks - 1}.", where)
        if not isinstance(buffer, str) or not buffer:
            raise BadReferenceError(f"buffer {buffer!r}; it is Buffer.input, Buffer.output, or a name.", where)
        buffer = {"i": INPUT, "o": OUTPUT}.get(buffer, buffer)
        if not _is_number(index) or index < 0:
            raise BadReferenceError(f"index {index!r} of {buffer} of rank {rank}; it is 0 or more.", where)
        if not _is_number(count) or count < 1:
            raise BadReferenceError(f"count {count!r} of {buffer}[{index}] of rank {rank}; it is 1 or more.", where)
        extent = self.extent(rank, buffer)
        if extent is not None and index + count > extent:
            raise BadReferenceError(
                f"{Place(rank, buffer, index, count)} is outside of it: it has {extent} chunks.", where
            )
        buffer, index = self.collective.alias(rank, buffer, index)
        return Place(rank, buffer, index, count)

    def used(self, place: Place, where: Location) -> tuple[int, ...]:
        """The versions of the chunks of a place. Raises UninitializedChunkError if one has never been written."""
        chunks = [self._memory.at(place.rank, place.buffer, place.index + i) for i in range(place.count)]
        for i, chunk in enumerate(chunks):
            if chunk.value is None:
                single = Place(place.rank, place.buffer, place.index + i, 1)
                raise UninitializedChunkError(f"nothing has been written to {single}.", where)
        return tuple(chunk.version for chunk in chunks)

    def check_fresh(self, place: Place, versions: tuple[int, ...], where: Location) -> None:
        """Raise StaleReferenceError if one of the chunks has another version."""
        for i, version in enumerate(versions):
            chunk = self._memory.at(place.rank, place.buffer, place.index + i)
            if chunk.version != version:
                single = Place(place.rank, place.buffer, place.index + i, 1)
                raise StaleReferenceError(
                    f"this reference to {place} is stale: {single} was overwritten at {chunk.written}. Take a new one "
                    "with chunk().",
                    where,
                )

    def add(self, operation: Operation) -> None:
        """Append an operation and apply it to the symbolic contents. Raises NoLinkError."""
        source, destination = operation.source, operation.destination
        if operation.is_remote and not self.topology.link(source.rank, destination.rank):
            raise NoLinkError(
                f"topology {self.topology.name} has no link from rank {source.rank} to rank {destination.rank}.",
                operation.location,
            )
        pairs = [(self._chunk_of(source, i), self._chunk_of(destination, i)) for i in range(source.count)]
        first = self._class_of(source, 0)
        for i, (read, written) in enumerate(pairs):
            assert read.value is not None
            mine = (first + i) % self.collective.classes
            there = self._class_of(destination, i, mine if operation.kind == COPY else None)
            if self._class_of(source, i) != mine or there != mine:
                self.uniform = True
            if operation.kind == REDUCE:
                assert written.value is not None
                written.value = self._memory.values.add(written.value, read.value)
            else:
                written.value, written.size_class = read.value, mine
            written.version, written.written = written.version + 1, operation.location
        self.operations.append(replace(operation, size_class=first))

    def _chunk_of(self, place: Place, i: int) -> _Chunk:
        return self._memory.at(place.rank, place.buffer, place.index + i)

    def _class_of(self, place: Place, i: int, arriving: int | None = None) -> int:
        """Size class of chunk ``i`` of a place. A scratch chunk has the class ``arriving``, or that of its contents."""
        if place.buffer in (INPUT, OUTPUT):
            return (place.index + i) % self.collective.classes
        held = self._chunk_of(place, i).size_class if arriving is None else arriving
        assert held is not None
        return held

    def open_fragment(self, instances: int, where: Location) -> None:
        """Begin a ``parallelize`` block."""
        _check_number("instances of parallelize", instances, 1, 1 << 10, where)
        self._num_fragments += 1
        self._fragments.append((self._num_fragments, instances))

    def close_fragment(self) -> None:
        """End the innermost ``parallelize`` block."""
        self._fragments.pop()

    @property
    def fragment(self) -> tuple[tuple[int, int], ...]:
        """Number and factor of each open ``parallelize`` block, the outermost first."""
        return tuple(self._fragments)


def _is_number(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)


def _check_number(what: str, number: Any, least: int, most: int, where: Location) -> None:
    if not _is_number(number) or not least <= number <= most:
        raise UsageError(f"{what} is {number!r}; it is a whole number from {least} to {most}.", where)


def current(where: Location) -> Program:
    """The program that is being written. Raises UsageError if there is none."""
    if not _current:
        raise UsageError("no program is being written; use `with Program(...):`.", where)
    return _current[-1]
