"""Offsets and sizes of chunks in elements, by the rules of Note [Uneven chunks] in cpp_core/program/chunk_layout.h."""

from __future__ import annotations

from dataclasses import dataclass

_CACHE_LINE = 64


@dataclass(frozen=True)
class Sizes:
    """Divides elements over the size classes of chunks.

    Attributes:
        elements: number of elements in one chunk of every class together: the whole tensor of an allreduce, one rank's
            part of an allgather.
        itemsize: bytes of an element.
        classes: number of size classes.
        refinement: number of fine chunks in a chunk.
    """

    elements: int
    itemsize: int
    classes: int
    refinement: int = 1

    def offset(self, chunk: int) -> int:
        """The first element of a chunk in an input or output; for the index after the last chunk, all elements."""
        whole, size_class = divmod(chunk, self.classes)
        return whole * self.elements + self._cut(self.elements, self.classes, size_class)

    def chunk(self, size_class: int) -> int:
        """Number of elements in a chunk of this class."""
        begin, end = (self._cut(self.elements, self.classes, number) for number in (size_class, size_class + 1))
        return end - begin

    def part(self, size_class: int, part: int) -> int:
        """Number of elements in a fine chunk."""
        chunk = self.chunk(size_class)
        begin, end = (self._cut(chunk, self.refinement, number) for number in (part, part + 1))
        return end - begin

    def most_part(self) -> int:
        """Number of elements in the largest fine chunk."""
        return max(self.part(number, part) for number in range(self.classes) for part in range(self.refinement))

    def _cut(self, elements: int, pieces: int, index: int) -> int:
        line = max(1, _CACHE_LINE // self.itemsize)
        if elements < pieces * line:
            line = 1
        if index == pieces:
            return elements
        each, more = divmod(elements // line, pieces)
        return (each * index + min(index, more)) * line
