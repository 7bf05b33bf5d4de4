"""Symbolic contents of chunks: a chunk holds the sum of a multiset of input chunks.

Multisets are interned: a value is a small integer, and equal multisets have the same value. Comparing two values
compares integers, and adding two values a second time is one lookup.
"""

from __future__ import annotations

from collections.abc import Iterable

Origin = tuple[int, int]  # an input chunk: rank, index in the rank's input
Value = int
Terms = tuple[tuple[Origin, int], ...]  # sorted; each input chunk with its multiplicity


class Values:
    """A table of interned multisets.

    Role: owned by one trace or verification; single-threaded.

    Attributes:
        classes: number of size classes of chunks.
    """

    def __init__(self, classes: int = 1) -> None:
        self.classes = classes
        self._terms: list[Terms] = []
        self._numbers: dict[Terms, Value] = {}
        self._sums: dict[tuple[Value, Value], Value] = {}
        self._of: dict[tuple[Origin, ...], Value] = {}  # cache of of(), by its argument

    def of(self, origins: Iterable[Origin]) -> Value:
        """The value of the sum of these input chunks."""
        key = tuple(origins)
        known = self._of.get(key)
        if known is not None:
            return known
        counts: dict[Origin, int] = {}
        for origin in key:
            counts[origin] = counts.get(origin, 0) + 1
        value = self._of[key] = self._intern(tuple(sorted(counts.items())))
        return value

    def add(self, a: Value, b: Value) -> Value:
        """The value of the sum of two values."""
        key = (a, b) if a < b else (b, a)
        known = self._sums.get(key)
        if known is not None:
            return known
        counts = dict(self._terms[a])
        for origin, count in self._terms[b]:
            counts[origin] = counts.get(origin, 0) + count
        total = self._sums[key] = self._intern(tuple(sorted(counts.items())))
        return total

    def terms(self, value: Value) -> Terms:
        """The input chunks in a value, with their multiplicities."""
        return self._terms[value]

    def is_whole(self, value: Value, ranks: int) -> bool:
        """True if a value is the sum of exactly one input chunk of each rank."""
        terms = self._terms[value]
        return len(terms) == ranks and all(origin[0] == rank and n == 1 for rank, (origin, n) in enumerate(terms))

    def text(self, value: Value | None) -> str:
        """Text for messages: ``a0[1] + 2 a3[1]`` is chunk 1 of rank 0 plus twice chunk 1 of rank 3."""
        if value is None:
            return "nothing"
        parts = [f"{count} " * (count > 1) + f"a{rank}[{index}]" for (rank, index), count in self._terms[value]]
        shown = parts if len(parts) <= 8 else [*parts[:6], "...", parts[-1]]
        return " + ".join(shown)

    def _intern(self, terms: Terms) -> Value:
        number = self._numbers.setdefault(terms, len(self._terms))
        if number == len(self._terms):
            self._terms.append(terms)
        return number
