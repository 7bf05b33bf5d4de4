"""Collectives as msccl-tools has them: lists of chunks before, and a check of lists of chunks after."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from horocache.lang.frontend import collectives as own


class Buffer(Enum):
    """The buffers of a rank; any string is the name of a scratch buffer."""

    input = "i"
    output = "o"
    scratch = "s"

    def __str__(self) -> str:
        return str(self.value)


_BUFFERS = {own.INPUT: Buffer.input, own.OUTPUT: Buffer.output, "scratch": Buffer.scratch}
_NAMES = {buffer: name for name, buffer in _BUFFERS.items()}


def buffer_of(name: str) -> Buffer | str:
    """The buffer of that name of ours."""
    return _BUFFERS.get(name, name)


def name_of(buffer: Any) -> str:
    """Our name of a buffer; a string is scratch, whatever it is."""
    if isinstance(buffer, Buffer):
        return _NAMES[buffer]
    return f"scratch {buffer}" if buffer in (own.INPUT, own.OUTPUT, "i", "o") else str(buffer)


@dataclass(frozen=True, order=True)
class Chunk:
    """A chunk of a rank's input: where it began, and where it is to go; -1: to many places, or not known.

    Two are equal if they began at the same place.
    """

    origin_rank: int
    origin_index: int
    dst_rank: int = -1
    dst_index: int = -1

    def reduce(self, dst: int, chunk: Any) -> ReduceChunk:
        """The sum with another chunk, made on rank ``dst``."""
        return ReduceChunk(dst, [self]).reduce(dst, chunk)

    def __hash__(self) -> int:
        return hash((self.origin_rank, self.origin_index))

    def __eq__(self, other: object) -> bool:
        mine = (self.origin_rank, self.origin_index)
        return isinstance(other, Chunk) and mine == (other.origin_rank, other.origin_index)


class ReduceChunk:
    """A sum of chunks. Two are equal if they add up the same chunks, each as often.

    Args:
        creation_rank: where it was made.
        chunks: what was added up.
    """

    def __init__(self, creation_rank: int, chunks: list[Chunk]) -> None:
        self.creation_rank = creation_rank
        self.chunks = chunks

    def reduce(self, dst: int, chunk: Any) -> ReduceChunk:
        """The sum with another chunk or sum."""
        del dst
        return ReduceChunk(self.creation_rank, self.chunks + getattr(chunk, "chunks", [chunk]))

    def sort(self) -> None:
        """Bring the chunks into their order."""
        self.chunks.sort()

    def __hash__(self) -> int:
        return hash(tuple(sorted(self.chunks)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReduceChunk) and sorted(self.chunks) == sorted(other.chunks)

    def __repr__(self) -> str:
        return f"ReduceChunk({self.creation_rank}, {sorted(self.chunks)})"


class Collective:
    """Base of the user's own: override ``init_buffers``, ``check`` and, if need be, ``get_buffer_index``.

    Args:
        num_ranks: of the program.
        chunk_factor: chunks; of what is the collective's affair.
        inplace: whether input and output are one memory.
    """

    def __init__(self, num_ranks: int, chunk_factor: int, inplace: bool) -> None:
        self.num_ranks = num_ranks
        self.chunk_factor = chunk_factor
        self.inplace = inplace
        self.name = "custom"

    def init_buffers(self) -> Any:
        """For each rank a dict of its buffers' chunks at the start, None where there is nothing."""
        raise NotImplementedError(f"{type(self).__name__} defines no init_buffers().")

    def check(self, prog: Any) -> bool:
        """Whether ``prog.buffers``, at the end, are what they should be."""
        raise NotImplementedError(f"{type(self).__name__} defines no check().")

    def get_buffer_index(self, rank: int, buffer: Any, index: int) -> tuple[Any, int]:
        """The place by which a place is known."""
        del rank
        return buffer, index


class _BuiltIn(Collective):
    """One of ours."""

    own: type[own.Collective]

    def __init__(self, num_ranks: int, chunk_factor: int, inplace: bool) -> None:
        super().__init__(num_ranks, chunk_factor, inplace)
        self.name = self.own.name
        self.made = self.own(num_ranks, chunk_factor, inplace)

    def init_buffers(self) -> list[dict[Buffer, list[Chunk | None]]]:
        """The buffers; in place, the input is a part of the output, or the other way round."""
        out = []
        for rank in range(self.num_ranks):
            count = self.made.input_chunks(rank)
            inputs: list[Chunk | None] = [Chunk(rank, i, *self._goes_to(rank, i)) for i in range(count)]
            outputs: list[Chunk | None] = [None] * self.made.output_chunks(rank)
            out.append({Buffer.input: inputs, Buffer.output: outputs})
        return out

    def _goes_to(self, rank: int, index: int) -> tuple[int, int]:
        del rank
        return -1, index

    def get_buffer_index(self, rank: int, buffer: Any, index: int) -> tuple[Any, int]:
        """In place: the place in the buffer that holds both, where the rank's part is."""
        names = {Buffer.input: own.INPUT, Buffer.output: own.OUTPUT}
        if buffer not in names:
            return buffer, index
        name, index = self.made.alias(rank, names[buffer], index)
        return (Buffer.input if name == own.INPUT else Buffer.output), index

    def check(self, prog: Any) -> bool:
        """Compare every output chunk; prints those that are wrong."""
        correct = True
        for rank in range(self.num_ranks):
            for index in range(self.made.output_chunks(rank)):
                origins = [Chunk(*origin) for origin in self.made.expected(rank, index) or ()]
                want = origins[0] if len(origins) == 1 else ReduceChunk(-1, origins)
                have = prog.buffers[rank][Buffer.output][index]
                if have != want:
                    print(f"Rank {rank} chunk {index} is incorrect: it should be {want}, and is {have}")
                    correct = False
        return correct


class AllReduce(_BuiltIn):
    """See :class:`horocache.lang.AllReduce`."""

    own = own.AllReduce


class AllGather(_BuiltIn):
    """See :class:`horocache.lang.AllGather`."""

    own = own.AllGather

    def _goes_to(self, rank: int, index: int) -> tuple[int, int]:
        return -1, rank * self.chunk_factor + index


class ReduceScatter(_BuiltIn):
    """See :class:`horocache.lang.ReduceScatter`."""

    own = own.ReduceScatter

    def _goes_to(self, rank: int, index: int) -> tuple[int, int]:
        del rank
        return divmod(index, self.chunk_factor)


class AllToAll(_BuiltIn):
    """See :class:`horocache.lang.AllToAll`."""

    own = own.AllToAll

    def _goes_to(self, rank: int, index: int) -> tuple[int, int]:
        target, part = divmod(index, self.chunk_factor)
        return target, rank * self.chunk_factor + part
