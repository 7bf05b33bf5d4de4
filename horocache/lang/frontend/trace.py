"""Programs as they are written: chunks are routed, and what each place holds is followed symbolically.

Note [Chunks have versions]
Each place (rank, buffer, index) counts how often it has been written. A reference remembers the counts of its places,
so a use of what has been overwritten since is found when it is made, and at the line that made it.

Note [Sizes of chunks]
An operation's elements are divided over the collective's size classes as evenly as it goes, so chunks of different
classes may differ in size by a little. Chunk i of an input or output has class i modulo their number. A program that
never puts a chunk into the place of one of another class, and whose steps of several chunks take classes that follow
each other, runs on these places as they are. Any other program is *uniform*: all its chunks get the size of the
largest, and where the elements do not go into that, the built-in algorithm runs.
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
    """Some chunks of one buffer, side by side."""

    rank: int
    buffer: str
    index: int
    count: int

    def __str__(self) -> str:
        span = f"{self.index}" if self.count == 1 else f"{self.index}:{self.index + self.count}"
        return f"{self.buffer}[{span}] of rank {self.rank}"


@dataclass(frozen=True)
class Operation:
    """One copy or reduction as it was written.

    Attributes:
        kind: COPY or REDUCE; a reduction adds the source to what the destination holds.
        source: where from.
        destination: where to; as many chunks.
        location: the user's line.
        channel: None leaves it to the compiler.
        send_strand, recv_strand: of the two ranks; None leaves them to the compiler.
        fragment: numbers and factors of the ``parallelize`` blocks around it, from the outermost.
        size_class: of the first chunk; those behind it have the classes that follow. See Note [Sizes of chunks].
    """

    kind: str
    source: Place
    destination: Place
    location: Location
    channel: int | None = None
    send_strand: int | None = None
    recv_strand: int | None = None
    fragment: tuple[tuple[int, int], ...] = ()
    size_class: int = 0

    @property
    def is_remote(self) -> bool:
        """Whether two ranks take part."""
        return self.source.rank != self.destination.rank


@dataclass
class _Chunk:
    """What a place of one chunk holds."""

    value: Value | None = None
    version: int = 0
    written: Location | None = None
    size_class: int | None = None


@dataclass
class Memory:
    """What all places hold: by rank and buffer, one entry for each chunk."""

    values: Values = field(default_factory=Values)
    buffers: dict[tuple[int, str], list[_Chunk]] = field(default_factory=dict)

    def at(self, rank: int, buffer: str, index: int) -> _Chunk:
        """The chunk's entry; scratch buffers grow."""
        chunks = self.buffers.setdefault((rank, buffer), [])
        while len(chunks) <= index:
            chunks.append(_Chunk())
        return chunks[index]


_current: list[Program] = []


class Program:
    """A collective algorithm while it is written; a context manager.

    Args:
        name: of the algorithm.
        collective: what it promises.
        topology: which ranks are connected; by default all.
        instances: how many times the whole program is laid out side by side, each time for a part of every chunk.
        protocol: how connections work: Simple, LL, LL128, Direct; "auto" chooses by size.
        slots: how many sends may be outstanding on a connection; None: as many as it needs.
        channels: over how many of them messages are spread that name none; each has connections and strands of its own.
        fuse: whether receives, reductions and sends are merged where that changes nothing.

    Attributes:
        operations: what has been written so far.
        uniform: see Note [Sizes of chunks].

    Raises:
        UsageError: an argument makes no sense, or another program is being written.
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

    # ---- being written

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
        """What every place holds."""
        return self._memory

    def check_written(self) -> None:
        """UsageError unless the program has been written to its end."""
        if self._state != "written":
            state = {"new": "has not been written", "open": "is still being written"}.get(
                self._state, "ended in an error"
            )
            raise UsageError(f"program {self.name!r} {state}; it cannot be compiled.", caller())

    def extent(self, rank: int, buffer: str) -> int | None:
        """Chunks of a buffer; None: it grows."""
        if buffer == INPUT:
            return self.collective.input_chunks(rank)
        return self.collective.output_chunks(rank) if buffer == OUTPUT else None

    def place(self, rank: Any, buffer: Any, index: Any, count: Any, where: Location) -> Place:
        """The chunks as memory knows them. Raises BadReferenceError."""
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
        """The versions of chunks that are read. Raises UninitializedChunkError."""
        chunks = [self._memory.at(place.rank, place.buffer, place.index + i) for i in range(place.count)]
        for i, chunk in enumerate(chunks):
            if chunk.value is None:
                single = Place(place.rank, place.buffer, place.index + i, 1)
                raise UninitializedChunkError(f"nothing has been written to {single}.", where)
        return tuple(chunk.version for chunk in chunks)

    def check_fresh(self, place: Place, versions: tuple[int, ...], where: Location) -> None:
        """Raise StaleReferenceError if one of the chunks has been written since."""
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
        """Take an operation, and follow what it does. Raises NoLinkError."""
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
        """Of a chunk of a place; scratch has that of what it holds, or of what arrives."""
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
        """End it."""
        self._fragments.pop()

    @property
    def fragment(self) -> tuple[tuple[int, int], ...]:
        """The ``parallelize`` blocks that are open."""
        return tuple(self._fragments)


def _is_number(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)


def _check_number(what: str, number: Any, least: int, most: int, where: Location) -> None:
    if not _is_number(number) or not least <= number <= most:
        raise UsageError(f"{what} is {number!r}; it is a whole number from {least} to {most}.", where)


def current(where: Location) -> Program:
    """The program that is being written. Raises UsageError."""
    if not _current:
        raise UsageError("no program is being written; use `with Program(...):`.", where)
    return _current[-1]
