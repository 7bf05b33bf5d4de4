"""Collectives, which specify programs: the chunks that each rank begins with, and those that it must end with.

A collective divides each rank's input and output into chunks. Each chunk has a *size class*, and the chunks of a class
have equal sizes. A chunk and the input chunks that end in its place are of one class. The elements of an operation are
divided over the classes as evenly as possible, so any number of elements is possible.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

from horocache.lang.errors import BadReferenceError, caller
from horocache.lang.frontend.symbolic import Origin

INPUT = "input"
OUTPUT = "output"


class Collective(ABC):
    """Base of all collectives: a precondition and a postcondition on chunks.

    Attributes:
        name: name as in the selector's rules (``allreduce``).
        num_ranks: number of ranks.
        chunk_factor: number of chunks of a piece of data; each subclass says of which piece.
        inplace: True if input and output share memory. If their sizes differ, the smaller is a part of the larger.
        root: the rank that sends or receives all data; None if the collective has no root.
    """

    name = ""
    root: int | None = None

    def __init__(self, num_ranks: int, chunk_factor: int = 1, inplace: bool = False) -> None:
        """Check the numbers.

        Raises:
            BadReferenceError: ``num_ranks`` or ``chunk_factor`` is not a positive integer.
        """
        for what, number in (("num_ranks", num_ranks), ("chunk_factor", chunk_factor)):
            if not isinstance(number, int) or isinstance(number, bool) or number < 1:
                raise BadReferenceError(f"{what} of {type(self).__name__} is {number!r}; it is 1 or more.", caller())
        self.num_ranks = num_ranks
        self.chunk_factor = chunk_factor
        self.inplace = bool(inplace)

    @abstractmethod
    def input_chunks(self, rank: int) -> int:
        """Number of chunks in the rank's input."""

    @abstractmethod
    def output_chunks(self, rank: int) -> int:
        """Number of chunks in the rank's output."""

    @abstractmethod
    def expected(self, rank: int, index: int) -> Iterable[Origin] | None:
        """The input chunks whose sum the rank's output chunk must be; None: its contents do not matter."""

    @property
    def promises_inputs(self) -> bool:
        """True if the postcondition includes the final contents of the inputs."""
        return False

    def expected_input(self, rank: int, index: int) -> Iterable[Origin] | None:
        """The input chunks whose sum the rank's input chunk must be at the end; None: its contents do not matter."""
        del rank, index
        return None

    def has_data(self, rank: int, index: int) -> bool:
        """True if the rank's input chunk holds data at the start."""
        del rank, index
        return True

    @property
    def classes(self) -> int:
        """Number of size classes; chunk i of an input or output is of class ``i % classes``."""
        return self.chunk_factor

    def alias(self, rank: int, buffer: str, index: int) -> tuple[str, int]:
        """Map a chunk to the buffer that has its memory: in place, input and output are one buffer.

        Returns:
            Buffer and index in the larger of the two. Out of place, and for scratch buffers, the arguments.
        """
        if not self.is_joined(rank) or buffer not in (INPUT, OUTPUT):
            return buffer, index
        first_input, first_output = self.offsets(rank)
        return INPUT if self.joined_is_input else OUTPUT, index + (first_input if buffer == INPUT else first_output)

    def is_joined(self, rank: int) -> bool:
        """True if the rank's input and output share memory."""
        return self.inplace and self.input_chunks(rank) > 0 and self.output_chunks(rank) > 0

    def buffers(self, rank: int) -> dict[str, int]:
        """The rank's buffers at the start, with their numbers of chunks; in place, one shared buffer."""
        sizes = {INPUT: self.input_chunks(rank), OUTPUT: self.output_chunks(rank)}
        if not self.is_joined(rank):
            return sizes
        first_input, first_output = self.offsets(rank)
        joined = max(first_input + sizes[INPUT], first_output + sizes[OUTPUT])
        return {INPUT if self.joined_is_input else OUTPUT: joined}

    @property
    def joined_is_input(self) -> bool:
        """In place: True if the shared buffer is the input, False if it is the output."""
        return True

    def offsets(self, rank: int) -> tuple[int, int]:
        """In place: the indices at which the input and the output begin in the shared buffer."""
        return 0, 0


class _Whole(Collective):
    """Base of collectives whose input and output have ``chunk_factor`` chunks on every rank."""

    def input_chunks(self, rank: int) -> int:
        return self.chunk_factor

    def output_chunks(self, rank: int) -> int:
        return self.chunk_factor


class AllReduce(_Whole):
    """Every rank gets the sum over all ranks, chunk by chunk. ``chunk_factor``: chunks of a rank's data."""

    name = "allreduce"

    def expected(self, rank: int, index: int) -> Iterable[Origin]:
        return [(other, index) for other in range(self.num_ranks)]


class AllGather(Collective):
    """Every rank gets all ranks' data, in rank order. ``chunk_factor``: chunks of one rank's data."""

    name = "allgather"

    def input_chunks(self, rank: int) -> int:
        return self.chunk_factor

    def output_chunks(self, rank: int) -> int:
        return self.num_ranks * self.chunk_factor

    def expected(self, rank: int, index: int) -> Iterable[Origin]:
        return [divmod(index, self.chunk_factor)]

    @property
    def joined_is_input(self) -> bool:
        return False

    def offsets(self, rank: int) -> tuple[int, int]:
        return rank * self.chunk_factor, 0


class ReduceScatter(Collective):
    """Rank r gets the sum of all ranks' part r. ``chunk_factor``: chunks of one part."""

    name = "reducescatter"

    def input_chunks(self, rank: int) -> int:
        return self.num_ranks * self.chunk_factor

    def output_chunks(self, rank: int) -> int:
        return self.chunk_factor

    def expected(self, rank: int, index: int) -> Iterable[Origin]:
        return [(other, rank * self.chunk_factor + index) for other in range(self.num_ranks)]

    def offsets(self, rank: int) -> tuple[int, int]:
        return 0, rank * self.chunk_factor


class AllToAll(Collective):
    """Rank r's part i goes to rank i, as its part r. ``chunk_factor``: chunks of one part."""

    name = "alltoall"

    def input_chunks(self, rank: int) -> int:
        return self.num_ranks * self.chunk_factor

    def output_chunks(self, rank: int) -> int:
        return self.num_ranks * self.chunk_factor

    def expected(self, rank: int, index: int) -> Iterable[Origin]:
        source, chunk = divmod(index, self.chunk_factor)
        return [(source, rank * self.chunk_factor + chunk)]


class _Rooted(Collective):
    """Base of collectives with a root."""

    def __init__(self, num_ranks: int, chunk_factor: int = 1, inplace: bool = False, root: int = 0) -> None:
        super().__init__(num_ranks, chunk_factor, inplace)
        if not isinstance(root, int) or not 0 <= root < num_ranks:
            raise BadReferenceError(f"root={root!r}; the ranks are 0 to {num_ranks - 1}.", caller())
        self.root = root


class Broadcast(_Rooted, _Whole):
    """Every rank gets the root's data. ``chunk_factor``: chunks of the root's data."""

    name = "broadcast"

    def expected(self, rank: int, index: int) -> Iterable[Origin]:
        assert self.root is not None
        return [(self.root, index)]


class Reduce(_Rooted, _Whole):
    """The root gets the sum over all ranks; other outputs are undefined. ``chunk_factor``: chunks of a rank's data."""

    name = "reduce"

    def expected(self, rank: int, index: int) -> Iterable[Origin] | None:
        return [(other, index) for other in range(self.num_ranks)] if rank == self.root else None


class Gather(_Rooted, AllGather):
    """The root gets all ranks' data, in rank order. ``chunk_factor``: chunks of one rank's data."""

    name = "gather"

    def output_chunks(self, rank: int) -> int:
        return super().output_chunks(rank) if rank == self.root else 0


class Scatter(_Rooted, ReduceScatter):
    """Rank r gets part r of the root's data. ``chunk_factor``: chunks of one part."""

    name = "scatter"

    def input_chunks(self, rank: int) -> int:
        return super().input_chunks(rank) if rank == self.root else 0

    def expected(self, rank: int, index: int) -> Iterable[Origin]:
        assert self.root is not None
        return [(self.root, rank * self.chunk_factor + index)]


class AllToNext(_Whole):
    """Rank r's data goes to rank r + 1; rank 0 gets nothing (MSCCLang, section 7.4).

    ``chunk_factor``: chunks of a rank's data.
    """

    name = "alltonext"

    def expected(self, rank: int, index: int) -> Iterable[Origin] | None:
        return [(rank - 1, index)] if rank else None


Condition = Callable[[int, int], Iterable[Origin] | None]


class Custom(Collective):
    """A user-defined collective.

    Args:
        name: name of the collective.
        num_ranks: number of ranks.
        inputs: number of chunks in each rank's input.
        outputs: number of chunks in each rank's output.
        post: postcondition: ``post(rank, chunk)`` returns the input chunks ``(rank, chunk)`` whose sum the output chunk
            must be, or None if its contents do not matter.
        pre: precondition: ``pre(rank, chunk)`` returns True if the rank's input chunk holds data; by default all do.
        inplace: True if input and output share memory. If their sizes differ, the smaller is a part of the larger.
        classes: number of size classes; chunk i is of class ``i % classes``. By default all chunks have one size.
    """

    def __init__(
        self,
        name: str,
        num_ranks: int,
        inputs: int,
        outputs: int,
        post: Condition,
        pre: Callable[[int, int], bool] | None = None,
        inplace: bool = False,
        classes: int = 1,
    ) -> None:
        super().__init__(num_ranks, classes, inplace)
        for what, number in (("inputs", inputs), ("outputs", outputs)):
            if not isinstance(number, int) or isinstance(number, bool) or number < 0:
                raise BadReferenceError(f"{what} of collective {name!r} is {number!r}; it is 0 or more.", caller())
        self.name = name
        self._inputs, self._outputs, self._post, self._pre = inputs, outputs, post, pre

    def input_chunks(self, rank: int) -> int:
        return self._inputs

    def output_chunks(self, rank: int) -> int:
        return self._outputs

    def has_data(self, rank: int, index: int) -> bool:
        return self._pre is None or self._pre(rank, index)

    def expected(self, rank: int, index: int) -> Iterable[Origin] | None:
        return self._post(rank, index)
