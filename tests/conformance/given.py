"""Results of operations on rows in memory that the caller gives: Request.outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import calls
import numpy as np
from runner import Runner

SENTINEL = 3  # of the memory around results; a value of every element type
DTYPES = ("float32", "uint8", "int64", "complex128", "float16")
PATIENCE_S = 60.0
ROW = 5  # elements of a row


class Given(Runner):
    """Submits requests with outputs, which the collectives of ``hc`` do not use."""

    def __init__(self, hc: ModuleType, backend: str | None) -> None:
        super().__init__(hc, backend, "given")
        from horocache.base import operation_codes
        from horocache.base.request import Request
        from horocache.core import context

        self.codes, self.request, self.runtime = operation_codes, Request, context.current().runtime

    def start(self, op: str, inputs: Sequence[Any], outputs: Sequence[Any], **more: Any) -> int:
        code = getattr(self.codes, f"OP_{op.upper()}")
        name, backend = self.name(), self.backend or ""
        return int(self.runtime.submit(self.request(code, inputs, outputs, name=name, backend=backend, **more)))

    def run_given(self, op: str, inputs: Sequence[Any], outputs: Sequence[Any], **more: Any) -> None:
        answer = self.runtime.wait(self.start(op, inputs, outputs, **more), PATIENCE_S)
        assert answer is None, f"{op} gave {answer!r}, although the caller gave the memory"

    def rows(self, rank: int, count: int, dtype: str) -> np.ndarray[Any, Any]:
        """The rows of a rank, which every rank can compute."""
        return calls.values(rank, (count, ROW), dtype, seed=count)

    def memory(self, rows: int, dtype: str, offset: int = 0) -> np.ndarray[Any, Any]:
        """Rows of sentinels, ``offset`` bytes behind an aligned place."""
        kind = np.dtype(dtype)
        place = bytearray(rows * ROW * kind.itemsize + offset)
        array: np.ndarray[Any, Any] = np.ndarray((rows, ROW), kind, place, offset)
        array[...] = SENTINEL
        return array

    def expect(self, got: np.ndarray[Any, Any], parts: Sequence[np.ndarray[Any, Any]], what: str) -> None:
        """The first rows of the memory have the parts, one after the other, and the rest its sentinels."""
        expected = np.full_like(got, SENTINEL)
        for part, end in zip(parts, np.cumsum([len(part) for part in parts]), strict=True):
            expected[end - len(part) : end] = part
        np.testing.assert_array_equal(got, expected, f"rank {self.rank} of {self.ranks}, {self.backend}: {what}")
        self.checks += 1


def check(hc: ModuleType, backend: str | None) -> int:
    given = Given(hc, backend)
    if not isinstance(hc, ModuleType):  # arrays of a device
        return _refuse_devices(given)
    for part in (_every_operation, _gaps, _groups, _too_small, _mistakes):
        part(given)
    return given.checks


def _counts(ranks: int) -> list[list[int]]:
    """Rows of each rank: few, none at all, none on one rank, several tiles."""
    return [[rank + 1 for rank in range(ranks)], [0] * ranks, [rank % 2 for rank in range(ranks)], [800] * ranks]


def _every_operation(given: Given) -> None:
    ranks, rank, root = given.ranks, given.rank, given.ranks - 1
    for dtype in DTYPES:
        reduces = not calls.unsupported(given.backend, "reducescatter", "Sum", dtype)
        for counts in _counts(ranks):
            for spare, offset in ((0, 0), (2, 0), (1, 1)):
                total = sum(counts)
                what = f"{dtype} {counts} spare {spare} offset {offset}"
                mine = given.rows(rank, counts[rank], dtype)
                every = [given.rows(r, counts[r], dtype) for r in range(ranks)]

                result = given.memory(total + spare, dtype, offset)
                given.run_given("allgather", [mine], [result])
                given.expect(result, every, f"allgather {what}")

                result = given.memory(total + spare if rank == root else 0, dtype, offset)
                given.run_given("gather", [mine], [result], root=root)
                given.expect(result, every if rank == root else [], f"gather {what}")

                parts = [given.rows(9, count, dtype) for count in counts]  # of the root, for each rank
                result = given.memory(counts[rank], dtype, offset)  # scatter fills it
                splits = counts if rank == root else None
                whole = np.concatenate(parts) if rank == root else given.memory(0, dtype)
                given.run_given("scatter", [whole], [result], root=root, splits=splits)
                given.expect(result, [parts[rank]], f"scatter {what}")

                # Each rank sends `counts[peer]` rows to each peer.
                sent = [[given.rows(r + 7 * d, counts[d], dtype) for d in range(ranks)] for r in range(ranks)]
                result = given.memory(ranks * counts[rank] + spare, dtype, offset)
                given.run_given("alltoall", [np.concatenate(sent[rank])], [result], splits=counts)
                given.expect(result, [sent[r][rank] for r in range(ranks)], f"alltoall {what}")

                if not reduces:
                    continue
                folded = calls.reduced([np.concatenate(sent[r]) for r in range(ranks)], "Sum", dtype)
                ends = np.cumsum(counts)
                result = given.memory(counts[rank] + spare, dtype, offset)
                given.run_given("reducescatter", [np.concatenate(sent[rank])], [result], splits=counts, reduce_op=1)
                slice_ = folded[ends[rank] - counts[rank] : ends[rank]]
                given.expect(result, [slice_], f"reducescatter {what}")


def _gaps(given: Given) -> None:
    """Parts at places that the caller chooses: rows that no part covers keep their values."""
    ranks, rank, root = given.ranks, given.rank, 0
    for count in (2, 700):
        starts = [1 + (ranks - 1 - r) * (count + 3) for r in range(ranks)]  # backwards, with gaps
        mine = given.rows(rank, count, "float32")
        expected = given.memory(starts[0] + count + 4, "float32")
        for r in range(ranks):
            expected[starts[r] : starts[r] + count] = given.rows(r, count, "float32")
        places = {"receive_rows": [count] * ranks, "receive_starts": starts}
        for op, takes in (("allgather", True), ("gather", rank == root), ("alltoall", True)):
            result = given.memory(len(expected), "float32")
            more: dict[str, Any] = {} if op != "gather" else {"root": root}
            if takes:
                more |= places
            inputs = mine
            if op == "alltoall":
                inputs, more = np.concatenate([mine] * ranks), {**more, "splits": [count] * ranks}
            given.run_given(op, [inputs], [result], **more)
            if takes:
                np.testing.assert_array_equal(result, expected, f"rank {rank}: {op} with gaps")
                given.checks += 1
            else:
                given.expect(result, [], f"{op} on another rank than the root")
        # Without memory of the caller the same gaps are zero.
        code = given.codes.OP_ALLGATHER
        request = given.request(code, [mine], None, name=given.name(), backend=given.backend or "", **places)
        (own,) = given.runtime.wait(given.runtime.submit(request), PATIENCE_S)
        zeros = np.where(expected[: starts[0] + count] == SENTINEL, 0, expected[: starts[0] + count])
        covered = np.zeros(len(zeros), bool)
        for start in starts:
            covered[start : start + count] = True
        np.testing.assert_array_equal(np.asarray(own)[~covered], zeros[~covered] * 0)
        np.testing.assert_array_equal(np.asarray(own)[covered], expected[: starts[0] + count][covered])
        given.checks += 1


def _groups(given: Given) -> None:
    """The tensors of a group have their results each in its own memory; None where a rank gets none."""
    ranks, rank, root = given.ranks, given.rank, given.ranks - 1
    tensors = [given.rows(rank, rank + 1, "float32"), given.rows(rank, 300, "float32"), given.rows(rank, 0, "float32")]
    every = [
        [given.rows(r, len(tensor) if i else r + 1, "float32") for r in range(ranks)]
        for i, tensor in enumerate(tensors)
    ]
    results = [given.memory(sum(map(len, parts)) + 1, "float32") for parts in every]
    given.run_given("allgather", tensors, results, group=True)
    for result, parts in zip(results, every, strict=True):
        given.expect(result, parts, "group of allgathers")
    results = [given.memory(sum(map(len, parts)) + 1, "float32") for parts in every]
    given.run_given("gather", tensors, results if rank == root else [None] * len(tensors), root=root, group=True)
    for result, parts in zip(results, every, strict=True):
        given.expect(result, parts if rank == root else [], "group of gathers")


def _too_small(given: Given) -> None:
    """The rank whose memory is too small gets an error with both sizes; for the others the operation is well."""
    ranks, rank, last = given.ranks, given.rank, given.ranks - 1
    for count in (2, 800):
        mine = given.rows(rank, count, "float32")
        every = [given.rows(r, count, "float32") for r in range(ranks)]
        for room in (ranks * count - 1, 0):
            result = given.memory(room if rank == last else ranks * count, "float32")
            words = f"the result has {ranks * count * ROW * 4} bytes, and the tensor that rank {last} gives for it has "
            _fails_on(given, last, words + f"{room * ROW * 4}", "allgather", [mine], [result])
            given.expect(result, [] if rank == last else every, f"a place of {room} rows on rank {last}")
        # One tensor of a group does not fit: the others have arrived all the same.
        whole, small = (
            given.memory(ranks * count, "float32"),
            given.memory(1 if rank == last else ranks * count, "float32"),
        )
        words = f"rank {last} gives for it has {ROW * 4}; give it a larger one"
        _fails_on(given, last, words, "allgather", [mine, mine], [small, whole], group=True)
        given.expect(whole, every, "the other tensor of the group")
        # No memory at all for a rank that gets rows.
        outputs = [None] if rank == last else [given.memory(ranks * count, "float32")]
        _fails_on(given, last, f"rank {last} gives for it has 0", "allgather", [mine], outputs)
    # The result of a reduction; here each rank gets its own rows.
    data = given.rows(rank, ranks, "float32")
    result = given.memory(0 if rank == last else 1, "float32")
    _fails_on(given, last, f"the result has {ROW * 4} bytes", "reducescatter", [data], [result])
    folded = calls.reduced([given.rows(r, ranks, "float32") for r in range(ranks)], "Sum", "float32")
    mine = folded[rank : rank + 1]
    given.expect(result, [] if rank == last else [mine], "reducescatter beside a rank without room")
    # A scatter fills its place, as nothing else says what the rank expects.
    whole = given.rows(9, 2 * ranks if rank == 0 else 0, "float32")
    mine = given.rows(9, 2 * ranks, "float32")[2 * rank : 2 * rank + 2]
    for room in (0, 1, 3):
        result = given.memory(room if rank == last else 2, "float32")
        words = f"rank {last} gives for it has {room * ROW * 4}; give it one of the same size"
        _fails_on(given, last, words, "scatter", [whole], [result], root=0)
        given.expect(result, [] if rank == last else [mine], f"scatter to a place of {room} rows on rank {last}")


def _fails_on(given: Given, bad: int, words: str, op: str, *arguments: Any, **more: Any) -> None:
    handle = given.start(op, *arguments, **more)
    if given.rank == bad:
        given.expect_error(given.hc.InvalidArgumentError, words, lambda: given.runtime.wait(handle, PATIENCE_S))
    else:
        given.runtime.wait(handle, PATIENCE_S)
        total = given.hc.allreduce(np.ones(3), op=given.hc.Sum, name="goes.on", backend=given.backend)
        np.testing.assert_array_equal(total, np.full(3, given.ranks))
        given.checks += 1


def _mistakes(given: Given) -> None:
    """Mistakes that a rank sees before it submits; here all ranks make them."""
    ranks = given.ranks
    mine = given.rows(given.rank, 4, "float32")
    block = given.memory(8 * ranks + 8, "float32")
    inside, behind = block[:4], block[4 : 4 + 4 * ranks]
    inside[...] = given.rows(9, 4, "float32")
    read_only = given.memory(4 * ranks, "float32")
    read_only.flags.writeable = False
    invalid = given.hc.InvalidArgumentError
    refused: list[tuple[str, Callable[[], Any]]] = [
        ("stores a result in the memory of tensor", lambda: given.start("allgather", [inside], [block])),
        (
            "stores a result in the memory of tensor",
            lambda: given.start("allgather", [block[3:7]], [block[4 : 4 + 4 * ranks]]),
        ),
        (
            "that share memory; give each its own",
            lambda: given.start("allgather", [mine, mine], [block[: 4 * ranks], block[2 : 2 + 4 * ranks]], group=True),
        ),
        (
            "stores a result in the memory of tensor",
            lambda: given.start("allgather", [mine, inside], [behind, block[: 4 * ranks][:3]], group=True),
        ),
        ("read-only", lambda: given.start("allgather", [mine], [read_only])),
        ("elements of float64", lambda: given.start("allgather", [mine], [given.memory(4 * ranks, "float64")])),
    ]
    for words, start in refused:
        given.expect_error(invalid, words, start)
    # Memory that only touches is apart, and so is memory of no bytes wherever it lies.
    given.run_given("allgather", [inside.copy()], [behind])
    given.run_given("allgather", [block[:0]], [block[1:1]])
    given.run_given("allgather", [inside], [behind])
    given.expect(behind, [inside] * ranks, "neighbours")


def _refuse_devices(given: Given) -> int:
    """The memory of a device is not for results of a given place."""
    from device_arrays import DeviceArray

    tensor = DeviceArray.of(np.ones((2, 3), np.float32))
    place = DeviceArray.of(np.ones((2 * given.ranks, 3), np.float32))
    given.expect_error(
        given.hc.UnsupportedError,
        "cannot store its result in a given tensor of a GPU",
        lambda: given.start("allgather", [tensor], [place]),
    )
    return given.checks
