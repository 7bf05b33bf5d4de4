"""Chunk references, and the operations that a program consists of: ``chunk``, ``copy``, ``reduce``, ..."""

from __future__ import annotations

from typing import Any

from horocache.lang.errors import BadReferenceError, Location, UsageError, caller
from horocache.lang.frontend.collectives import INPUT, OUTPUT
from horocache.lang.frontend.trace import COPY, MAX_CHANNELS, REDUCE, Operation, Place, Program, current


class Buffer:
    """Names of the two buffers of every rank. Any other name is a scratch buffer, which its first use creates."""

    input = INPUT
    output = OUTPUT


class Ref:
    """Reference to adjacent chunks in a buffer of one rank, as they were when the reference was taken.

    References are made by :func:`chunk` and by the methods of this class. The use of a reference whose chunks have been
    overwritten raises :class:`~horocache.lang.StaleReferenceError`.
    """

    def __init__(self, program: Program, place: Place, where: Location) -> None:
        self._program = program
        self._place = place
        self._versions = program.used(place, where)

    rank = property(lambda self: self._place.rank, doc="The rank whose memory it is.")
    buffer = property(lambda self: self._place.buffer, doc="The buffer.")
    index = property(lambda self: self._place.index, doc="Of the first chunk.")
    count = property(lambda self: self._place.count, doc="Chunks.")

    def __repr__(self) -> str:
        return f"<{self._place}>"

    def copy(
        self,
        rank: int,
        buffer: str,
        index: int | None = None,
        *,
        channel: int | None = None,
        send_thread_block: int | None = None,
        recv_thread_block: int | None = None,
    ) -> Ref:
        """Copy the chunks to another rank or within this rank.

        Args:
            rank: destination rank.
            buffer: destination buffer; a new name creates a scratch buffer.
            index: index of the first chunk in the destination; None appends the chunks to a scratch buffer.
            channel: channel of the connection between two ranks; chosen by the compiler when omitted.
            send_thread_block: thread block of this rank, which sends; chosen by the compiler when omitted.
            recv_thread_block: thread block of the destination rank, which receives; chosen by the compiler when
                omitted.

        Returns:
            A reference to the copy. Copying chunks onto themselves does nothing and returns this reference.

        Raises:
            StaleReferenceError: the chunks have been overwritten.
            BadReferenceError: the destination does not exist, or overlaps with the chunks.
            NoLinkError: the topology has no link to the destination.
            UsageError: the program is not being written, or the channel or a thread block is invalid.
        """
        where = caller()
        self._check(where)
        if index is None:
            index = self._end_of(rank, buffer, where)
        to = self._program.place(rank, buffer, index, self.count, where)
        if to == self._place:
            return self
        self._check_apart(to, where)
        placed = _placement(channel, send_thread_block, recv_thread_block, self._place.rank != to.rank, where)
        self._program.add(Operation(COPY, self._place, to, where, *placed, self._program.fragment))
        return Ref(self._program, to, where)

    def reduce(
        self,
        other: Ref,
        *,
        channel: int | None = None,
        send_thread_block: int | None = None,
        recv_thread_block: int | None = None,
    ) -> Ref:
        """Add the chunks of ``other`` to these chunks, in place. If another rank has them, it sends them to this rank.

        Args:
            other: as many chunks as these.
            channel: channel of the connection between two ranks; chosen by the compiler when omitted.
            send_thread_block: thread block of the rank of ``other``, which sends; chosen by the compiler when omitted.
            recv_thread_block: thread block of this rank, which receives; chosen by the compiler when omitted.

        Returns:
            This reference, which refers to the sums from now on.

        Raises:
            StaleReferenceError: chunks of this reference or of ``other`` have been overwritten.
            BadReferenceError: ``other`` is not a reference, has another number of chunks, or overlaps with these.
            NoLinkError: the topology has no link between the ranks.
            UsageError: the program is not being written, or the channel or a thread block is invalid.
        """
        where = caller()
        self._check(where)
        if not isinstance(other, Ref):
            raise BadReferenceError(f"reduce takes a reference to chunks, not {other!r}.", where)
        other._check(where)
        if other.count != self.count:
            raise BadReferenceError(
                f"reduce of {other._place}, which are {other.count} chunks, into {self._place}, which are "
                f"{self.count}.",
                where,
            )
        if other._place == self._place:
            raise BadReferenceError(f"{self._place} cannot be reduced into itself.", where)
        other._check_apart(self._place, where)
        remote = other.rank != self.rank
        placed = _placement(channel, send_thread_block, recv_thread_block, remote, where)
        self._program.add(Operation(REDUCE, other._place, self._place, where, *placed, self._program.fragment))
        self._versions = self._program.used(self._place, where)
        return self

    def split(self, parts: int) -> list[Ref]:
        """Split the chunks into equal parts, in order. Raises BadReferenceError if ``parts`` does not divide them."""
        where = caller()
        self._check(where)
        if not isinstance(parts, int) or isinstance(parts, bool) or parts < 1 or self.count % parts:
            raise BadReferenceError(f"{self._place} cannot be split into {parts!r} equal parts.", where)
        size, place = self.count // parts, self._place
        places = (Place(place.rank, place.buffer, place.index + i * size, size) for i in range(parts))
        return [Ref(self._program, part, where) for part in places]

    def group(self, other: Ref) -> Ref:
        """Join these chunks and the chunks of ``other``. Raises BadReferenceError if they are not adjacent."""
        where = caller()
        self._check(where)
        if not isinstance(other, Ref):
            raise BadReferenceError(f"group takes a reference to chunks, not {other!r}.", where)
        other._check(where)
        first, second = sorted((self._place, other._place))
        beside = (first.rank, first.buffer, first.index + first.count) == (second.rank, second.buffer, second.index)
        if not beside:
            raise BadReferenceError(f"{self._place} and {other._place} are not side by side.", where)
        return Ref(self._program, Place(first.rank, first.buffer, first.index, first.count + second.count), where)

    def _check(self, where: Location) -> None:
        if current(where) is not self._program:
            raise UsageError(f"a reference of program {self._program.name!r} is used in another one.", where)
        self._program.check_fresh(self._place, self._versions, where)

    def _check_apart(self, to: Place, where: Location) -> None:
        """Raise BadReferenceError if source and destination overlap."""
        mine = self._place
        if (mine.rank, mine.buffer) == (to.rank, to.buffer) and abs(mine.index - to.index) < mine.count:
            raise BadReferenceError(f"{mine} and {to} overlap.", where)

    def _end_of(self, rank: Any, buffer: Any, where: Location) -> int:
        if self._program.place(rank, buffer, 0, 1, where).buffer in (INPUT, OUTPUT):
            raise BadReferenceError(f"copy to {buffer} needs an index; only scratch buffers grow.", where)
        return len(self._program.memory.buffers.get((rank, buffer), ()))


def chunk(rank: int, buffer: str, index: int, count: int = 1) -> Ref:
    """Take a reference to chunks as they are now.

    Args:
        rank: rank that has the chunks.
        buffer: ``Buffer.input``, ``Buffer.output`` or the name of a scratch buffer.
        index: index of the first chunk.
        count: number of chunks.

    Raises:
        UninitializedChunkError: one of the chunks has never been written. BadReferenceError: the chunks do not exist.
        UsageError: no program is being written.
    """
    where = caller()
    program = current(where)
    return Ref(program, program.place(rank, buffer, index, count, where), where)


class parallelize:  # noqa: N801 - used like a function
    """Run the operations in this block as several instances in parallel, each on its part of every chunk.

    Each instance has its own thread blocks and connections (MSCCLang, section 5.1). Blocks may be nested. Use it as
    ``with parallelize(4): ...``.

    Args:
        instances: number of instances, from 1 to 1024.

    Raises:
        UsageError: no program is being written, or the number of instances is out of range.
    """

    def __init__(self, instances: int) -> None:
        where = caller()
        self._program = current(where)
        self._instances, self._where = instances, where

    def __enter__(self) -> None:
        self._program.open_fragment(self._instances, self._where)

    def __exit__(self, *error: object) -> None:
        self._program.close_fragment()


def _placement(
    channel: Any, send_thread_block: Any, recv_thread_block: Any, remote: bool, where: Location
) -> tuple[int | None, int | None, int | None]:
    given = {"channel": channel, "send_thread_block": send_thread_block, "recv_thread_block": recv_thread_block}
    for what, number in given.items():
        most = MAX_CHANNELS if what == "channel" else 1 << 12
        good = number is None or (isinstance(number, int) and not isinstance(number, bool) and 0 <= number < most)
        if not good:
            raise UsageError(f"{what}={number!r}; it is a whole number from 0 to {most - 1}.", where)
    if channel is not None and not remote:
        raise UsageError("channel is given for a step within one rank, which has none.", where)
    if not remote and None not in (send_thread_block, recv_thread_block) and send_thread_block != recv_thread_block:
        raise UsageError(
            "a step within one rank has one thread block; send_thread_block and recv_thread_block differ.", where
        )
    return channel, send_thread_block, recv_thread_block
