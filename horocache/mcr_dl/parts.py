"""The tensors of a call as vectors: inputs, places for results, and the parts that belong to each rank."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from horocache.collectives.arguments import whole_numbers
from horocache.errors import InvalidArgumentError, MismatchError
from horocache.mcr_dl.arrays import Arrays


def check_count(found: int, wanted: int, what: str) -> None:
    """Raise InvalidArgumentError unless a tensor has the required number of elements."""
    if found != wanted:
        raise InvalidArgumentError(f"{what} has {found} elements; it needs {wanted}.")


def check_dtype(input: Any, output: Any, title: str) -> None:
    """Raise InvalidArgumentError if two tensors of a call differ in their element type."""
    if input.dtype != output.dtype:
        raise InvalidArgumentError(f"the input of {title} is of {input.dtype}, its output of {output.dtype}.")


def is_list(value: Any) -> bool:
    """True for a list of tensors."""
    return isinstance(value, (list, tuple))


def share(count: int, ranks: int, what: str) -> int:
    """Return how many of a tensor's elements belong to each rank."""
    if count % ranks:
        raise InvalidArgumentError(f"{what} has {count} elements, which cannot be divided evenly among {ranks} ranks.")
    return count // ranks


def input_vector(arrays: Arrays, tensor: Any, what: str, count: int | None = None) -> Any:
    """Return a tensor's elements as a vector; ``count`` is their required number."""
    vector, _ = arrays.vector(arrays.checked(tensor, what))
    if count is not None:
        check_count(arrays.count(vector), count, what)
    return vector


def joined_inputs(arrays: Arrays, tensors: Sequence[Any], ranks: int, what: str) -> tuple[Any, list[int]]:
    """Return the elements of a list of tensors, one for each rank, as one vector; and the number of each."""
    check_length(tensors, ranks, what)
    vectors = [input_vector(arrays, tensor, what) for tensor in tensors]
    for vector in vectors:
        if vector.dtype != vectors[0].dtype:
            raise InvalidArgumentError(f"{what} has tensors of {vectors[0].dtype} and of {vector.dtype}.")
    return arrays.joined(vectors), [arrays.count(vector) for vector in vectors]


def check_length(tensors: Sequence[Any], ranks: int, what: str) -> None:
    """Raise InvalidArgumentError unless a list has one tensor for each rank."""
    if len(tensors) != ranks:
        raise InvalidArgumentError(f"{what} needs one tensor for each of {ranks} ranks; it has {len(tensors)}.")


def apart(arrays: Arrays, vector: Any, target: Target | TargetList) -> Any:
    """Return the vector, or a copy if it shares memory with the place of the result."""
    return arrays.copy(vector) if target.overlaps(vector) else vector


# ---- vectored operations


class Parts:
    """The parts of a tensor that belong to the ranks: counts and positions, in elements.

    Args:
        title: the operation, for messages.
        counts: elements of each rank.
        starts: where each rank's part begins; None: one part follows the other.
        ranks: the number of ranks.
        names: the arguments' names, for messages.
    """

    def __init__(self, title: str, counts: Any, starts: Any, ranks: int, names: tuple[str, str]) -> None:
        self.counts = checked_counts(title, names[0], counts, ranks)
        self.packed = starts is None
        given = whole_numbers(title, names[1], starts)
        self.starts = [0, *accumulate(self.counts)][:-1] if given is None else given
        check_length(self.starts, ranks, f"{names[1]} of {title}")
        self._title, self._names = title, names

    def check_within(self, size: int, what: str) -> None:
        """Raise InvalidArgumentError if a part is not within a tensor of ``size`` elements."""
        for rank, (start, count) in enumerate(zip(self.starts, self.counts, strict=True)):
            if start < 0 or (count and start + count > size):
                raise InvalidArgumentError(
                    f"{self._title}: the part of rank {rank} has {count} elements from element {start}, beyond the "
                    f"{size} elements of {what}."
                )

    def check_apart(self) -> None:
        """Raise InvalidArgumentError if parts overlap."""
        end, last = 0, -1
        for start, count, rank in sorted(zip(self.starts, self.counts, range(len(self.counts)), strict=True)):
            if count and start < end:
                raise InvalidArgumentError(
                    f"{self._title}: the parts of ranks {last} and {rank} overlap in the result "
                    f"({self._names[0]}={self.counts}, {self._names[1]}={self.starts})."
                )
            if count:
                end, last = start + count, rank

    def of(self, rank: int) -> slice:
        """Return the slice of a rank's part."""
        return slice(self.starts[rank], self.starts[rank] + self.counts[rank])

    def __iter__(self) -> Any:
        return iter(zip(self.starts, self.counts, strict=True))


def checked_counts(title: str, argument: str, counts: Any, ranks: int) -> list[int]:
    """Return one number of elements for each rank.

    Raises:
        InvalidArgumentError: they are not whole numbers from 0 on, or not one for each rank.
    """
    numbers = whole_numbers(title, argument, counts)
    if numbers is None:
        raise InvalidArgumentError(f"{title} needs {argument}: the number of elements of each rank.")
    if len(numbers) != ranks or min(numbers) < 0:
        raise InvalidArgumentError(
            f"{title} needs {argument} with one number from 0 on for each of {ranks} ranks, not {numbers}."
        )
    return numbers


# ---- places for results


class Target:
    """The caller's tensor as the place of a result.

    The core stores the result in the tensor's own memory if that is contiguous and on the host. Otherwise it stores it
    in a copy, or allocates the result, and :meth:`store` copies it.

    Role: owned by one call.
    """

    def __init__(self, arrays: Arrays, tensor: Any, what: str) -> None:
        if arrays.checked(tensor, what) is not tensor:
            raise InvalidArgumentError(f"{what} must be a tensor to store the result in, not {tensor!r}.")
        arrays.adapter.check_writable(tensor)
        self.tensor = tensor
        self.dense, self._private = arrays.adapter.dense(tensor)
        self.vector = self.dense.reshape(-1)
        self.count = arrays.count(self.vector)
        self.dtype = self.vector.dtype
        self._arrays = arrays
        self._direct = arrays.on_host(tensor)
        self._parts: list[tuple[int, int]] = [(0, self.count)]

    @property
    def result(self) -> Any:
        """The caller's tensor."""
        return self.tensor

    def outputs(self, parts: Sequence[tuple[int, int]] | None = None) -> list[Any] | None:
        """Return the request's outputs; None: the core allocates the result.

        Args:
            parts: start and count of each rank's part, in elements of the tensor. None: the result fills the tensor.
        """
        if parts is not None:
            self._parts = list(parts)
        return [self.vector] if self._direct else None

    def head(self, count: int) -> list[Any] | None:
        """Return the request's outputs for a result of ``count`` elements at the beginning of the tensor."""
        self._parts = [(0, count)]
        return [self.vector if count == self.count else self.vector[:count]] if self._direct else None

    @property
    def starts(self) -> bool:
        """True if the core places the parts; otherwise :meth:`store` does."""
        return self._direct

    def overlaps(self, vector: Any) -> bool:
        """True if the result is stored in memory of ``vector`` before that is read."""
        return self._direct and self._arrays.overlap(self.vector, vector)

    def copy_of(self, tensor: Any) -> Any:
        """Return a copy of a contiguous tensor, which shares no memory with this one."""
        return self._arrays.copy(tensor)

    def store(self, _: Any, answer: Any) -> None:
        """Bring the result to the caller's tensor."""
        adapter = self._arrays.adapter
        if answer is not None:
            values = adapter.from_result(answer[0]).reshape(-1)
            check_result(self._arrays.count(values), sum(count for _, count in self._parts))
            at = 0
            for start, count in self._parts:
                adapter.copy_into(self.vector[start : start + count], values[at : at + count])
                at += count
        if self._private:
            adapter.copy_into(self.tensor, self.dense)
        else:
            adapter.written(self.tensor)


class TargetList:
    """A list of the caller's tensors, one for each rank, as the place of a result.

    Role: owned by one call.
    """

    def __init__(self, arrays: Arrays, tensors: Sequence[Any], ranks: int, what: str) -> None:
        check_length(tensors, ranks, what)
        for tensor in tensors:
            if arrays.checked(tensor, what) is not tensor or tensor.dtype != tensors[0].dtype:
                raise InvalidArgumentError(f"{what} needs tensors of one dtype to store the result in.")
            arrays.adapter.check_writable(tensor)
        self.tensors = list(tensors)
        self.counts = [arrays.count(tensor) for tensor in tensors]
        self.count = sum(self.counts)
        self.dtype = tensors[0].dtype
        self._arrays = arrays

    @property
    def result(self) -> list[Any]:
        """The caller's tensors."""
        return self.tensors

    def outputs(self, _: Any = None) -> None:
        """Return None: the core allocates the result."""
        return

    starts = False

    def overlaps(self, _: Any) -> bool:
        """Return False: the tensors are written when all inputs have been read."""
        return False

    def store(self, _: Any, answer: Any) -> None:
        """Bring the result to the caller's tensors."""
        adapter = self._arrays.adapter
        values = adapter.from_result(answer[0]).reshape(-1)
        check_result(self._arrays.count(values), self.count)
        at = 0
        for tensor, count in zip(self.tensors, self.counts, strict=True):
            adapter.copy_into(tensor, values[at : at + count].reshape(adapter.shape(tensor)))
            at += count


def store_nothing(_: Any, __: Any) -> None:
    """Store no result: this rank gets none, or it is in its place."""


def check_result(found: int, wanted: int) -> None:
    """Raise MismatchError if a result is not of the size of the place for it."""
    if found != wanted:
        raise MismatchError(
            f"the result has {found} elements, the tensor that was given for it has {wanted}. Give tensors of the size "
            "that the other ranks send."
        )
