"""Calls of operations whose results NumPy can compute: the arguments of each rank, and its expected result.

A rank's values depend only on its rank and the call's number, so every rank can compute the values of all ranks.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

INTEGERS = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
DTYPES = (*INTEGERS, *FLOATS, *COMPLEX, "bool")

# The machine epsilon of each type, for averages; all other results are exact.
EPSILON = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-6, "float64": 1e-14, "complex64": 1e-6, "complex128": 1e-14}

# Scalar, empty, one element, odd, several dimensions, larger than a tile (whose size run_cases.py sets).
SHAPES = ((), (0,), (0, 3), (1,), (7,), (3, 5), (1700, 3))
# The dimensions after the first one, for operations on rows.
ROWS = ((), (3,), (2, 2), (0,))
LARGE_ROWS = 1700

REDUCTIONS = {"Sum": 1, "Average": 0, "Min": 3, "Max": 4, "Product": 5, "And": 6, "Or": 7, "Xor": 8}

# Undefined for every backend: (reductions, element types). All combinations that are listed neither here nor in MISSING
# must work.
UNDEFINED = (
    ({"And", "Or", "Xor"}, {*FLOATS, *COMPLEX}),
    ({"Min", "Max"}, set(COMPLEX)),
    ({"Average"}, {"bool"}),
)
# Not supported by one backend: its name -> (operations, reductions, element types); None means all of them.
MISSING: dict[str, tuple[tuple[set[str] | None, set[str] | None, set[str] | None], ...]] = {
    "gloo": (
        (
            {"allreduce", "reduce", "reducescatter", "reducescatterv"},
            None,
            {"int16", "uint16", "uint32", "uint64", "bool", *COMPLEX},
        ),
    ),
}


def unsupported(backend: str | None, operation: str, reduction: str, dtype: str) -> bool:
    """True if the operation must raise an error."""
    if any(reduction in reductions and dtype in dtypes for reductions, dtypes in UNDEFINED):
        return True
    for rule in MISSING.get(backend or "", ()):
        if all(known is None or what in known for what, known in zip((operation, reduction, dtype), rule, strict=True)):
            return True
    return False


def by_name(function: Callable[..., Any], arguments: Sequence[Any]) -> dict[str, Any]:
    """The arguments by the names of the function's first parameters, which may be keyword-only."""
    return dict(zip(inspect.signature(function).parameters, arguments, strict=False))


@dataclass
class Call:
    """One operation on all ranks.

    ``arguments(rank)`` are the positional arguments, the tensor first; ``expected(rank)`` is the result: an array, None
    for no result, or a pair.
    """

    operation: str
    dtype: str
    arguments: Callable[[int], tuple[Any, ...]]
    expected: Callable[[int], Any]
    options: dict[str, Any] = field(default_factory=dict)
    average: bool = False  # True: equal up to the type's epsilon

    def describe(self, rank: int) -> str:
        """The call in words, for the message of a failure."""
        tensor, *rest = self.arguments(rank)
        return f"{self.operation} of {self.dtype} {tensor.shape} with {rest} {self.options}"


def compute_type(dtype: str) -> np.dtype[Any]:
    """The type that NumPy computes in: float32 for bfloat16, which NumPy lacks."""
    return np.dtype("float32" if dtype == "bfloat16" else dtype)


def values(rank: int, shape: Sequence[int], dtype: str, seed: int = 0) -> np.ndarray[Any, Any]:
    """Small whole numbers: sums and products of four of them are exact in every type and order."""
    count = int(np.prod(shape, dtype=np.int64))
    index = np.arange(count)
    base = (index * 7 + rank * 3 + seed * 5 + index // 11) % 4 + 1
    if dtype == "bool":
        base = base % 2
    elif dtype in COMPLEX:
        base = base + 1j * ((base + rank) % 3)
    elif not dtype.startswith("uint"):
        base = np.where((index + seed) % 5 == 2, -base, base)
    return base.reshape(shape).astype(compute_type(dtype))


def numbers(values_: Sequence[int], seed: int) -> Any:
    """The integers as a list, a tuple or an array; operations take all of these."""
    kinds: tuple[Callable[[Any], Any], ...] = (
        list,
        tuple,
        lambda v: np.array(v, np.int32),
        lambda v: np.array(v, np.uint64),
    )
    return kinds[seed % len(kinds)]([int(value) for value in values_])


def reduced(parts: Sequence[np.ndarray[Any, Any]], reduction: str, dtype: str) -> np.ndarray[Any, Any]:
    """The reduction of all ranks' tensors."""
    stack = np.stack(parts)
    if dtype == "bool":
        folds = {"Sum": np.logical_or, "Max": np.logical_or, "Min": np.logical_and, "Product": np.logical_and}
        folds |= {"And": np.logical_and, "Or": np.logical_or, "Xor": np.logical_xor}
        return np.asarray(folds[reduction].reduce(stack))
    if reduction == "Average":
        if dtype in INTEGERS:
            return np.asarray(np.trunc(stack.astype(np.int64).sum(0) / len(parts)).astype(dtype))
        wide = np.complex128 if dtype in COMPLEX else np.float64
        return np.asarray((stack.astype(wide).sum(0) / len(parts)).astype(stack.dtype))
    ufuncs = {"Sum": np.add, "Min": np.minimum, "Max": np.maximum, "Product": np.multiply}
    ufuncs |= {"And": np.bitwise_and, "Or": np.bitwise_or, "Xor": np.bitwise_xor}
    return np.asarray(ufuncs[reduction].reduce(stack, dtype=stack.dtype))


def row_counts(ranks: int) -> list[list[int]]:
    """Numbers of rows by rank: all different, zero on some ranks, zero on all, one rank with many."""
    return [
        [rank + 1 for rank in range(ranks)],
        [0 if rank % 2 == 0 else 3 for rank in range(ranks)],
        [0] * ranks,
        [LARGE_ROWS if rank == ranks - 1 else 2 for rank in range(ranks)],
    ]


def placed(parts: Sequence[tuple[int, np.ndarray[Any, Any]]], like: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A result with each part at its first row, and zeros elsewhere."""
    end = max((start + len(part) for start, part in parts), default=0)
    result = np.zeros((end, *like.shape[1:]), like.dtype)
    for start, part in parts:
        result[start : start + len(part)] = part
    return result


def backwards(counts: Sequence[int]) -> list[int]:
    """The first rows of parts with ``counts`` rows, the last rank's part first, with a gap of one row before each."""
    starts, at = [0] * len(counts), 0
    for rank in reversed(range(len(counts))):
        at += 1
        starts[rank] = at
        at += counts[rank]
    return starts


def reductions_of(
    operation: str, ranks: int, reduction: str, dtype: str, shape: Sequence[int], seed: int
) -> Iterator[Call]:
    """Calls of allreduce, reduce, reducescatter or reducescatterv; the latter two skip scalars."""
    parts = [values(rank, shape, dtype, seed) for rank in range(ranks)]
    options = {"op": REDUCTIONS[reduction]}
    average = reduction == "Average" and dtype not in INTEGERS

    def total() -> np.ndarray[Any, Any]:
        return reduced(parts, reduction, dtype)

    if operation == "allreduce":
        yield Call(operation, dtype, lambda rank: (parts[rank],), lambda _: total(), options, average)
    elif operation == "reduce":
        root = seed % ranks
        call = (lambda rank: (parts[rank], root), lambda rank: total() if rank == root else None)
        yield Call(operation, dtype, *call, options, average)
    elif len(shape) > 0:
        rows = shape[0]
        if operation == "reducescatter":
            counts = [rows // ranks + (rank < rows % ranks) for rank in range(ranks)]
        else:
            counts = [0] * ranks
            counts[seed % ranks] = rows // 2
            counts[(seed + 1) % ranks] += rows - rows // 2
        first = [sum(counts[:rank]) for rank in range(ranks)]
        extra = (numbers(counts, seed),) if operation == "reducescatterv" else ()
        yield Call(
            operation,
            dtype,
            lambda rank: (parts[rank], *extra),
            lambda rank: total()[first[rank] : first[rank] + counts[rank]],
            options,
            average,
        )


def broadcasts(ranks: int, dtype: str, shape: Sequence[int], seed: int) -> Iterator[Call]:
    """A broadcast from one root."""
    root = seed % ranks
    yield Call(
        "broadcast",
        dtype,
        lambda rank: (values(rank, shape, dtype, seed), root),
        lambda _: values(root, shape, dtype, seed),
    )


def gathers(operation: str, ranks: int, dtype: str, counts: Sequence[int], row: tuple[int, ...], seed: int) -> Call:
    """allgather, allgatherv, gather or gatherv; those with v have first rows and expected numbers of rows."""
    parts = [values(rank, (counts[rank], *row), dtype, seed) for rank in range(ranks)]
    root = seed % ranks if operation.startswith("gather") else -1
    rooted = () if root < 0 else (root,)
    has_places = operation.endswith("v")

    def arguments(rank: int) -> tuple[Any, ...]:
        if not has_places:
            return (parts[rank], *rooted)
        if root not in (-1, rank):  # only the root's lists matter
            return (parts[rank], *rooted, [-1], [5] * 9)
        rows = None if seed % 3 == 0 else numbers(counts, seed)
        return (parts[rank], *rooted, rows, numbers(backwards(counts), seed + rank))

    def expected(rank: int) -> Any:
        if root not in (-1, rank):
            return None
        starts = backwards(counts) if has_places else [sum(counts[:r]) for r in range(ranks)]
        return placed(list(zip(starts, parts, strict=True)), parts[0])

    return Call(operation, dtype, arguments, expected)


def scatters(operation: str, ranks: int, dtype: str, counts: Sequence[int], row: tuple[int, ...], seed: int) -> Call:
    """scatter or scatterv, whose parts may overlap. ``scatter`` gives each rank the first count."""
    root = seed % ranks
    even = operation == "scatter"
    counts = [counts[0]] * ranks if even else list(counts)
    starts = [sum(counts[:r]) if even else r % 3 for r in range(ranks)]
    rows = max(start + count for start, count in zip(starts, counts, strict=True))
    whole = values(root, (rows, *row), dtype, seed)

    def arguments(rank: int) -> tuple[Any, ...]:
        if rank != root:  # any number of rows, which are not read
            return (values(rank, (rank, *row), dtype, seed), root, *(() if even else ([7], "nothing")))
        return (whole, root) if even else (whole, root, numbers(counts, seed), numbers(starts, seed + 1))

    return Call(operation, dtype, arguments, lambda rank: whole[starts[rank] : starts[rank] + counts[rank]])


def exchanges(operation: str, ranks: int, dtype: str, counts: Sequence[int], row: tuple[int, ...], seed: int) -> Call:
    """alltoall with splits, or alltoallv with first rows: rank r sends counts[(r + d) % ranks] rows to rank d."""
    splits = [[counts[(rank + to) % ranks] for to in range(ranks)] for rank in range(ranks)]
    incoming = [[splits[source][rank] for source in range(ranks)] for rank in range(ranks)]
    has_places = operation == "alltoallv"
    starts = [[sum(splits[r][:d]) if not has_places else d % 2 for d in range(ranks)] for r in range(ranks)]
    rows = [max(s + c for s, c in zip(starts[r], splits[r], strict=True)) for r in range(ranks)]
    tensors = [values(rank, (rows[rank], *row), dtype, seed) for rank in range(ranks)]

    def arguments(rank: int) -> tuple[Any, ...]:
        send = numbers(splits[rank], seed)
        if not has_places:
            return tensors[rank], send
        expected_rows = None if seed % 2 else numbers(incoming[rank], seed)
        places = numbers(backwards(incoming[rank]), seed + 2)
        return tensors[rank], send, expected_rows, numbers(starts[rank], seed + 1), places

    def expected(rank: int) -> Any:
        parts = [tensors[q][starts[q][rank] : starts[q][rank] + incoming[rank][q]] for q in range(ranks)]
        plain = [sum(incoming[rank][:q]) for q in range(ranks)]
        to = backwards(incoming[rank]) if has_places else plain
        return placed(list(zip(to, parts, strict=True)), tensors[rank]), np.array(incoming[rank])

    return Call(operation, dtype, arguments, expected)
