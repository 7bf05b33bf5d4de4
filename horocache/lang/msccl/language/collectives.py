"""Collectives in the form of msccl-tools: initial lists of chunks, and a check of the final lists of chunks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from horocache.lang.frontend import collectives as own


class Buffer(Enum):
    """The buffers of a rank. Any string is the name of a scratch buffer."""

    input = "i"
    output = "o"
    scratch = "s"

    def __str__(self) -> str:
        return str(self.value)


_BUFFERS = {own.INPUT: Buffer.input, own.OUTPUT: Buffer.output, "scratch": Buffer.scratch}
_NAMES = {buffer: name for name, buffer in _BUFFERS.items()}


def buffer_of(name: str) -> Buffer | str:
    """The buffer for a name of horocache.lang."""
    return _BUFFERS.get(name, name)


def name_of(buffer: Any) -> str:
    """The name of a buffer in horocache.lang. Any string becomes the name of a scratch buffer, even "input"."""
    if isinstance(buffer, Buffer):
        return _NAMES[buffer]
    return f"scratch {buffer}" if buffer in (own.INPUT, own.OUTPUT, "i", "o") else str(buffer)


@dataclass(frozen=True, order=True)
class Chunk:
    """A chunk of a rank's input: its origin, and its destination. -1: several destinations, or unknown.

    Chunks are equal if their origins are equal.
    """

    origin_rank: int
    origin_index: int
    dst_rank: int = -1
    dst_index: int = -1

    def reduce(self, dst: int, chunk: Any) -> ReduceChunk:
        """The sum of this chunk and another one, made on rank ``dst``."""
        return ReduceChunk(dst, [self]).reduce(dst, chunk)

    def __hash__(self) -> int:
        return hash((self.origin_rank, self.origin_index))

    def __eq__(self, other: object) -> bool:
        mine = (self.origin_rank, self.origin_index)
        return isinstance(other, Chunk) and mine == (other.origin_rank, other.origin_index)


class ReduceChunk:
    """A sum of chunks. Sums are equal if they contain the same chunks, each equally often.

    Args:
        creation_rank: rank on which the sum was made.
        chunks: the chunks in the sum.
    """

    def __init__(self, creation_rank: int, chunks: list[Chunk]) -> None:
        self.creation_rank = creation_rank
        self.chunks = chunks

    def reduce(self, dst: int, chunk: Any) -> ReduceChunk:
        """The sum of this sum and another chunk or sum."""
        del dst
        return ReduceChunk(self.creation_rank, self.chunks + getattr(chunk, "chunks", [chunk]))

    def sort(self) -> None:
        """Sort the chunks."""
        self.chunks.sort()

    def __hash__(self) -> int:
        return hash(tuple(sorted(self.chunks)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReduceChunk) and sorted(self.chunks) == sorted(other.chunks)

    def __repr__(self) -> str:
        return f"ReduceChunk({self.creation_rank}, {sorted(self.chunks)})"


class Collective:
    """Base of user-defined collectives, which override ``init_buffers``, ``check`` and possibly ``get_buffer_index``.

    Args:
        num_ranks: number of ranks.
        chunk_factor: number of chunks of a piece of data; the collective decides of which piece.
        inplace: True if input and output share memory.
    """

    def __init__(self, num_ranks: int, chunk_factor: int, inplace: bool) -> None:
        self.num_ranks = num_ranks
        self.chunk_factor = chunk_factor
        self.inplace = inplace
        self.name = "custom"

    def init_buffers(self) -> Any:
        """For each rank, a dict from buffer to its initial chunks; None for a chunk without data."""
        raise NotImplementedError(f"{type(self).__name__} defines no init_buffers().")

    def check(self, prog: Any) -> bool:
        """True if the final contents of ``prog.buffers`` are correct."""
        raise NotImplementedError(f"{type(self).__name__} defines no check().")

    def get_buffer_index(self, rank: int, buffer: Any, index: int) -> tuple[Any, int]:
        """Map a chunk to the buffer that has its memory; differs from the arguments if buffers share memory."""
        del rank
        return buffer, index


class _BuiltIn(Collective):
    """Base of the collectives that horocache.lang also has, as ``own``."""

    own: type[own.Collective]

    def __init__(self, num_ranks: int, chunk_factor: int, inplace: bool) -> None:
        super().__init__(num_ranks, chunk_factor, inplace)
        self.name = self.own.name
        self.made = self.own(num_ranks, chunk_factor, inplace)

    def init_buffers(self) -> list[dict[Buffer, list[Chunk | None]]]:
        """The initial input and output of each rank. In place, ``get_buffer_index`` maps both to one buffer."""
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
        """In place, map a chunk of the input or output to the shared buffer."""
        names = {Buffer.input: own.INPUT, Buffer.output: own.OUTPUT}
        if buffer not in names:
            return buffer, index
        name, index = self.made.alias(rank, names[buffer], index)
        return (Buffer.input if name == own.INPUT else Buffer.output), index

    def check(self, prog: Any) -> bool:
        """True if every output chunk is correct; prints the wrong ones."""
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
    """Every rank gets the sum over all ranks, chunk by chunk. ``chunk_factor``: chunks of a rank's data."""

    own = own.AllReduce


class AllGather(_BuiltIn):
    """Every rank gets all ranks' data, in rank order. ``chunk_factor``: chunks of one rank's data."""

    own = own.AllGather

    def _goes_to(self, rank: int, index: int) -> tuple[int, int]:
        return -1, rank * self.chunk_factor + index


class ReduceScatter(_BuiltIn):
    """Rank r gets the sum of all ranks' part r. ``chunk_factor``: chunks of one part."""

    own = own.ReduceScatter

    def _goes_to(self, rank: int, index: int) -> tuple[int, int]:
        del rank
        return divmod(index, self.chunk_factor)


class AllToAll(_BuiltIn):
    """Rank r's part i goes to rank i, as its part r. ``chunk_factor``: chunks of one part."""

    own = own.AllToAll

    def _goes_to(self, rank: int, index: int) -> tuple[int, int]:
        target, part = divmod(index, self.chunk_factor)
        return target, rank * self.chunk_factor + part
