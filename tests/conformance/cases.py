"""What every backend must do: one function per operation, ``case(hc, backend) -> checks made``, in :data:`CASES`.

A case runs on all ranks of a job that has been started by whatever means; it raises AssertionError on the rank that got
something wrong. ``backend`` None leaves the choice to the selector. What a backend cannot do is listed in ``calls.py``.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import calls
import joined
import numpy as np
from calls import Call

REDUCING = ("allreduce", "reduce", "reducescatter", "reducescatterv")
MOVING: dict[str, Callable[..., Call]] = {
    "allgather": calls.gathers,
    "allgatherv": calls.gathers,
    "gather": calls.gathers,
    "gatherv": calls.gathers,
    "scatter": calls.scatters,
    "scatterv": calls.scatters,
    "alltoall": calls.exchanges,
    "alltoallv": calls.exchanges,
}


@functools.cache
def _torch() -> Any:
    """torch and its binding, which bfloat16 needs; None where torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        return None
    import horocache.torch as hvd
    import torch

    return torch, hvd


def dtypes(hc: ModuleType) -> list[str]:
    """Element types that this process can make tensors of: bfloat16 needs torch, and torch the native binding."""
    from horocache import _state

    native = _state.current().runtime.knobs()["binding"][0] == "native"
    return [dtype for dtype in calls.DTYPES if dtype != "bfloat16" or (native and _torch() is not None)]


def to_tensor(array: np.ndarray[Any, Any], dtype: str) -> Any:
    return _torch()[0].from_numpy(array.copy()).bfloat16() if dtype == "bfloat16" else array


def to_array(tensor: Any, dtype: str) -> np.ndarray[Any, Any]:
    return np.asarray(tensor.float() if dtype == "bfloat16" and tensor.is_floating_point() else tensor)


class Runner:
    """Runs calls in one job and compares their results.

    Names: a call has a name of its own, so that ranks may submit calls in any order.
    """

    def __init__(self, hc: ModuleType, backend: str | None, case: str) -> None:
        self.hc, self.backend, self.case = hc, backend, case
        self.rank, self.ranks = hc.rank(), hc.size()
        self.checks = 0
        self._number = 0

    def name(self) -> str:
        self._number += 1
        return f"{self.case}.{self.backend}.{self._number}"

    def submit(self, call: Call, name: str, form: str = "_async") -> Any:
        package = _torch()[1] if call.dtype == "bfloat16" else self.hc
        tensor, *rest = call.arguments(self.rank)
        operation = getattr(package, call.operation + form)
        return operation(to_tensor(tensor, call.dtype), *rest, name=name, backend=self.backend, **call.options)

    def compare(self, call: Call, got: Any) -> None:
        expected = call.expected(self.rank)
        where = f"rank {self.rank} of {self.ranks}, backend {self.backend}: {call.describe(self.rank)}"
        if expected is None:
            assert got is None, f"{where} gave {got!r}, not None"
        elif isinstance(expected, tuple):
            assert isinstance(got, tuple), f"{where} gave {got!r}, not a pair"
            self._same(call, got[0], expected[0], where)
            np.testing.assert_array_equal(np.asarray(got[1]), expected[1], where)
        else:
            self._same(call, got, expected, where)
        self.checks += 1

    def _same(self, call: Call, got: Any, expected: np.ndarray[Any, Any], where: str) -> None:
        array = to_array(got, call.dtype)
        assert array.shape == expected.shape, f"{where}: shape {array.shape}, not {expected.shape}"
        assert array.dtype == expected.dtype, f"{where}: {array.dtype}, not {expected.dtype}"
        if call.average:
            epsilon = calls.EPSILON[call.dtype]
            np.testing.assert_allclose(array, expected, rtol=epsilon, atol=epsilon, err_msg=where)
        elif not np.array_equal(array, expected):  # the message of the next line costs far more than the test
            np.testing.assert_array_equal(array, expected, where)

    def run(self, batch: Sequence[Call]) -> None:
        """The first one blocking, the others at once, waited for in another order than submitted."""
        if not batch:
            return
        self.compare(batch[0], self.submit(batch[0], self.name(), ""))
        named = [(call, self.name()) for call in batch[1:]]
        handles = [(call, self.submit(call, name)) for call, name in named]
        for call, handle in reversed(handles):
            self.compare(call, self.hc.synchronize(handle))

    def refused(self, error: type[Exception] | tuple[type[Exception], ...], words: str, run: Callable[[], Any]) -> None:
        """``run`` raises on this rank, and the job goes on."""
        try:
            got = run()
        except error as raised:
            assert words in str(raised), f"rank {self.rank}: {raised} does not say {words!r}"
        else:
            raise AssertionError(f"rank {self.rank}, backend {self.backend}: no error with {words!r}, but {got!r}")
        total = self.hc.allreduce(np.ones(3), op=self.hc.Sum, name="goes.on", backend=self.backend)
        np.testing.assert_array_equal(total, np.full(3, self.ranks))
        self.checks += 1


def _reducing(operation: str, hc: ModuleType, backend: str | None) -> int:
    runner = Runner(hc, backend, operation)
    for dtype in dtypes(hc):
        for number, reduction in enumerate(calls.REDUCTIONS):
            if calls.unsupported(backend, operation, reduction, dtype):
                (call, *_) = calls.reductions_of(operation, runner.ranks, reduction, dtype, (4,), 0)
                words = (calls.REDUCTIONS[reduction], dtype)
                runner.refused(hc.UnsupportedError, words[1], lambda call=call: runner.submit(call, runner.name(), ""))
                continue
            batch: list[Call] = []
            for place, shape in enumerate(calls.SHAPES):
                # One large tensor per type and operation; the others take all reductions.
                if np.prod(shape, dtype=int) < 1000 or number == len(dtype) % len(calls.REDUCTIONS) or number == 0:
                    seed = number + place
                    batch += calls.reductions_of(operation, runner.ranks, reduction, dtype, shape, seed)
            runner.run(batch)
    return runner.checks


def _scales(hc: ModuleType, backend: str | None) -> int:
    """Factors before and after; both are exact here."""
    runner = Runner(hc, backend, "scales")
    for dtype in dtypes(hc):
        for operation in REDUCING:
            (call, *_) = calls.reductions_of(operation, runner.ranks, "Sum", dtype, (9, 2), 1)
            call.options = {**call.options, "prescale_factor": 2.0, "postscale_factor": 3.0}
            if dtype == "bool":
                runner.refused(
                    hc.UnsupportedError, "prescale", lambda call=call: runner.submit(call, runner.name(), "")
                )
                continue
            plain = call.expected

            def scaled(rank: int, plain: Callable[[int], Any] = plain) -> Any:
                total = plain(rank)
                return None if total is None else (total * np.array(6, total.dtype)).astype(total.dtype)

            call.expected = scaled
            runner.run([call])
    return runner.checks


def _narrow(hc: ModuleType, backend: str | None) -> int:
    """A sum that 16 bits cannot hold, of which the result is a part."""
    runner = Runner(hc, backend, "narrow")
    for count in (3, 40_000):
        tensor = np.full(count, 60_000, np.float16)
        for options in ({"op": hc.Average}, {"op": hc.Sum, "postscale_factor": 1 / runner.ranks}):
            got = hc.allreduce(tensor, name=runner.name(), backend=backend, **options)
            np.testing.assert_allclose(got, tensor, rtol=2e-3, err_msg=f"rank {runner.rank}: {options}")
            runner.checks += 1
    return runner.checks


def _groups(hc: ModuleType, backend: str | None) -> int:
    """Groups of tensors, in place and not, of several types."""
    runner = Runner(hc, backend, "groups")
    shapes = ((5,), (0,), (1700,), (2, 3))
    ranks = range(runner.ranks)
    for dtype in ("float32", "int64", "bool", "complex64"):
        mine = [calls.values(runner.rank, shape, dtype) for shape in shapes]
        everyone = [[calls.values(rank, shape, dtype) for shape in shapes] for rank in ranks]
        totals = [calls.reduced([everyone[r][i] for r in ranks], "Sum", dtype) for i in range(len(shapes))]
        rooted = everyone[runner.ranks - 1]
        results = {
            "grouped_allreduce": (totals, hc.grouped_allreduce(mine, op=hc.Sum, name="a", backend=backend)),
            "grouped_allgather": (
                [np.concatenate([everyone[r][i] for r in ranks]) for i in range(len(shapes))],
                hc.grouped_allgather(mine, name="g", backend=backend),
            ),
            "grouped_reducescatter": (
                [np.array_split(total, runner.ranks)[runner.rank] for total in totals],
                hc.grouped_reducescatter(mine, op=hc.Sum, name="r", backend=backend),
            ),
            "grouped_allreduce_": (
                totals,
                hc.grouped_allreduce_([a.copy() for a in mine], op=hc.Sum, name="i", backend=backend),
            ),
            "grouped_broadcast_": (
                rooted,
                hc.grouped_broadcast_([a.copy() for a in mine], runner.ranks - 1, name="b", backend=backend),
            ),
        }
        for operation, (expected, got) in results.items():
            for one, other in zip(expected, got, strict=True):
                np.testing.assert_array_equal(other, one, f"rank {runner.rank}: {operation} of {dtype}")
                runner.checks += 1
    return runner.checks


def _in_place(hc: ModuleType, backend: str | None) -> int:
    """Some ranks want the result in their tensor, some elsewhere: nobody knows of the others."""
    runner = Runner(hc, backend, "in_place")
    last = runner.ranks - 1
    for dtype, count in itertools.product(("float16", "float32", "int64"), (5, 40_001, 300_000)):
        parts = [calls.values(rank, (count,), dtype) for rank in range(runner.ranks)]
        for turn in range(2):
            form = "_" if (runner.rank + turn) % 2 else ""
            expected = {"allreduce": calls.reduced(parts, "Sum", dtype), "broadcast": parts[last]}
            options: dict[str, dict[str, Any]] = {"allreduce": {"op": hc.Sum}, "broadcast": {"root_rank": last}}
            for operation, result in expected.items():
                mine = parts[runner.rank].copy()
                got = getattr(hc, operation + form)(mine, name=runner.name(), backend=backend, **options[operation])
                assert (got is mine) == (form == "_"), f"{operation}{form} gave another array"
                np.testing.assert_array_equal(got, result, f"rank {runner.rank}: {operation}{form} of {count} {dtype}")
                runner.checks += 1
    return runner.checks


def _broadcast(hc: ModuleType, backend: str | None) -> int:
    runner = Runner(hc, backend, "broadcast")
    for dtype in dtypes(hc):
        for root in range(runner.ranks):
            runner.run([call for shape in calls.SHAPES for call in calls.broadcasts(runner.ranks, dtype, shape, root)])
    return runner.checks


def _moving(operation: str, hc: ModuleType, backend: str | None) -> int:
    runner = Runner(hc, backend, operation)
    for number, dtype in enumerate(dtypes(hc)):
        batch = []
        for place, row in enumerate(calls.ROWS):
            for turn, counts in enumerate(calls.row_counts(runner.ranks)):
                batch.append(MOVING[operation](operation, runner.ranks, dtype, counts, row, number + place + turn))
        runner.run(batch)
    return runner.checks


def _barrier(hc: ModuleType, backend: str | None) -> int:
    """Nobody gets through before the last rank is there: it has been told by everybody then."""
    runner = Runner(hc, backend, "barrier")
    for turn in range(5):
        handle = hc.allreduce_async(np.full(4, turn), op=hc.Sum, name=f"before.{turn}", backend=backend)
        hc.barrier(backend=backend)
        np.testing.assert_array_equal(hc.synchronize(handle), np.full(4, turn * runner.ranks))
        runner.checks += 1
    return runner.checks


def _scalars(hc: ModuleType, backend: str | None) -> int:
    """A scalar is one row."""
    runner = Runner(hc, backend, "scalars")
    mine, everyone = np.float32(runner.rank + 1), np.arange(1, runner.ranks + 1, dtype=np.float32)
    ones = [1] * runner.ranks
    for got in (
        hc.allgather(mine, backend=backend),
        hc.allgatherv(mine, ones, backend=backend),
        hc.gather(mine, 0, backend=backend),
        hc.gatherv(mine, 0, ones, range(runner.ranks), backend=backend),
        hc.alltoallv(mine, ones, sdispls=[0] * runner.ranks, backend=backend)[0],
    ):
        if got is not None:
            np.testing.assert_array_equal(got, everyone)
        runner.checks += 1
    got = hc.scatterv(mine, 0, ones, [0] * runner.ranks, backend=backend)
    np.testing.assert_array_equal(got, [np.float32(1)])
    return runner.checks + 1


def _mistakes(hc: ModuleType, backend: str | None) -> int:
    """What one rank gets wrong fails on all ranks, and the job goes on."""
    runner = Runner(hc, backend, "mistakes")
    ranks, rank, last = runner.ranks, runner.rank, runner.ranks - 1
    mismatch, invalid = hc.MismatchError, hc.InvalidArgumentError
    two = np.ones((2, 3))
    mistakes: list[tuple[Any, str, Callable[[], Any]]] = [
        # rows that do not come
        (mismatch, f"rank {last} expects 9 rows", lambda: hc.gatherv(two, last, [9] * ranks, backend=backend)),
        (mismatch, "expects 9 rows", lambda: hc.allgatherv(two, [2 if rank else 9] * ranks, backend=backend)),
        (mismatch, "expects 9 rows", lambda: hc.alltoallv(two, [1] * ranks, [1 if rank else 9] * ranks, [0] * ranks,
                                                          backend=backend)),
        # lists of a wrong length
        (invalid, f"rank {last}", lambda: hc.gatherv(two, last, [2] * (ranks + 1), backend=backend)),
        (invalid, "rank 0", lambda: hc.scatterv(two, 0, [1] * (ranks + 2), backend=backend)),
        (invalid, "rank 0", lambda: hc.allgatherv(two, None, [0] * (ranks + (rank == 0)) if rank == 0 else None,
                                                 backend=backend)),
        # numbers below 0, and rows that are not there
        (invalid, "rank 0", lambda: hc.alltoallv(two, [-1 if rank == 0 else 0] * ranks, backend=backend)),
        (invalid, "rank 0", lambda: hc.scatterv(two, 0, [1] * ranks, [2] * ranks, backend=backend)),
        (invalid, "rank 0", lambda: hc.scatterv(two, 0, [9] * ranks, backend=backend)),
        (invalid, "rank 0", lambda: hc.reducescatterv(two, [7 if rank == 0 else 2] + [0] * last, backend=backend)),
        (invalid, f"rank {last}", lambda: hc.gatherv(two, last, None, [-1] * ranks, backend=backend)),
        # what is equal on all ranks
        (hc.UnsupportedError, "no backend 'nowhere'", lambda: hc.gather(two, 0, backend="nowhere")),
        (invalid, "invalid root rank", lambda: hc.reduce(two, ranks, backend=backend)),
        (invalid, "sendcounts", lambda: hc.alltoallv(two, "one", backend=backend)),
        (invalid, "1D recvcounts", lambda: hc.allgatherv(two, [[2]] and np.ones((1, 1), int), backend=backend)),
        (invalid, "integer elements", lambda: hc.allgatherv(two, None, np.zeros(ranks), backend=backend)),
        (invalid, "backend must be", lambda: hc.barrier(backend=3)),
    ]  # fmt: skip
    if ranks > 1:
        overlap = [0] * ranks
        mistakes += [
            (invalid, "overlap", lambda: hc.gatherv(two, last, None, overlap, backend=backend)),
            (invalid, "overlap", lambda: hc.allgatherv(two, None, overlap if rank == 0 else None, backend=backend)),
            (invalid, "rank 0", lambda: hc.scatter(np.ones((ranks + 1, 2)), 0, backend=backend)),
            (mismatch, "rank 0", lambda: hc.reducescatterv(two, ([2, 0] if rank == 0 else [0, 2]) + [0] * (ranks - 2),
                                                           backend=backend)),
            (mismatch, "root", lambda: hc.gather(two, int(rank == 0), name="root", backend=backend)),
            (mismatch, "shape", lambda: hc.scatter(np.ones((0, 2 if rank else 3)), 0, name="row", backend=backend)),
            (mismatch, "dtype", lambda: hc.reduce(two.astype("f4") if rank else two, 0, name="type", backend=backend)),
            (mismatch, "backend", lambda: hc.gather(two, 0, name="other", backend="shm" if rank else "mpi")),
        ]  # fmt: skip
    for error, words, run in mistakes:
        runner.refused(error, words, run)
    return runner.checks


def _random_call(random: np.random.Generator, ranks: int, known: Sequence[str], backend: str | None) -> Call:
    """One of all operations; equal on all ranks, whose generators are in the same state."""
    dtype = str(random.choice(known))
    seed = int(random.integers(100))
    shape = tuple(int(extent) for extent in random.integers(0, 9, size=int(random.integers(1, 4))))
    if random.random() < 0.1:
        shape = (int(random.integers(500, 3000)), *shape[1:])
    operation = str(random.choice([*REDUCING, "broadcast", *MOVING]))
    if operation == "broadcast":
        return next(calls.broadcasts(ranks, dtype, shape, seed))
    if operation in MOVING:
        counts = [int(count) for count in random.integers(0, shape[0] + 1, size=ranks)]
        return MOVING[operation](operation, ranks, dtype, counts, shape[1:], seed)
    defined = [name for name in calls.REDUCTIONS if not calls.unsupported(backend, operation, name, dtype)]
    return next(calls.reductions_of(operation, ranks, str(random.choice(defined)), dtype, shape, seed))


def _schedules(hc: ModuleType, backend: str | None) -> int:
    """Seeded sequences of mixed operations: every rank submits and waits in an order of its own."""
    runner = Runner(hc, backend, "schedules")
    known = dtypes(hc)
    for seed in range(12):
        random = np.random.default_rng(seed)
        own = np.random.default_rng((seed, runner.rank))
        for _ in range(2):
            batch = [(_random_call(random, runner.ranks, known, backend), runner.name()) for _ in range(12)]
            blocking = _random_call(random, runner.ranks, known, backend), runner.name()
            handles = [(batch[i][0], runner.submit(*batch[i])) for i in own.permutation(len(batch))]
            early = int(own.integers(len(handles)))
            for call, handle in handles[:early]:
                runner.compare(call, hc.synchronize(handle))
            runner.compare(blocking[0], runner.submit(*blocking, ""))
            for i in own.permutation(len(handles) - early):
                call, handle = handles[early + i]
                runner.compare(call, hc.synchronize(handle))
    return runner.checks


def _repeated(hc: ModuleType, backend: str | None) -> int:
    """From the response cache: the same names again, with rows that change from time to time."""
    runner = Runner(hc, backend, "repeated")
    for turn in range(6):
        for operation, make in MOVING.items():
            counts = [(rank + turn) % 4 for rank in range(runner.ranks)]
            call = make(operation, runner.ranks, "int32", counts, (2,), 1)
            runner.compare(call, runner.submit(call, f"again.{operation}", ""))
    return runner.checks


def _of(function: Callable[..., int], operations: Sequence[str]) -> Iterator[tuple[str, Callable[..., int]]]:
    for operation in operations:
        yield operation, functools.partial(function, operation)


CASES: dict[str, Callable[[ModuleType, str | None], int]] = {
    **dict(_of(_reducing, REDUCING)),
    **dict(_of(_moving, tuple(MOVING))),
    "broadcast": _broadcast,
    "in_place": _in_place,
    "barrier": _barrier,
    "scalars": _scalars,
    "scales": _scales,
    "narrow": _narrow,
    "groups": _groups,
    "repeated": _repeated,
    "mistakes": _mistakes,
    "joined": joined.check,
    "schedules": _schedules,
}
