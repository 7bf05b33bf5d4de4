"""The conformance cases: one function per operation, ``case(hc, backend) -> checks made``, in :data:`CASES`.

A case runs on all ranks of a job, however it was started, and raises AssertionError on a rank with a wrong result. If
``backend`` is None, the selector chooses it. ``calls.py`` lists the operations that a backend does not support.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import calls
import given
import joined
import mistakes
import numpy as np
from calls import Call
from runner import Runner, dtypes

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


def _reducing(operation: str, hc: ModuleType, backend: str | None) -> int:
    runner = Runner(hc, backend, operation)
    for dtype in dtypes(hc):
        for number, reduction in enumerate(calls.REDUCTIONS):
            if calls.unsupported(backend, operation, reduction, dtype):
                (call, *_) = calls.reductions_of(operation, runner.ranks, reduction, dtype, (4,), 0)
                runner.expect_error(
                    hc.UnsupportedError, dtype, lambda call=call: runner.submit(call, runner.name(), "")
                )
                continue
            batch: list[Call] = []
            for place, shape in enumerate(calls.SHAPES):
                # Large tensors take one or two reductions for each type, the others take all.
                if np.prod(shape, dtype=int) < 1000 or number == len(dtype) % len(calls.REDUCTIONS) or number == 0:
                    seed = number + place
                    batch += calls.reductions_of(operation, runner.ranks, reduction, dtype, shape, seed)
            runner.run(batch)
    return runner.checks


def _scales(hc: ModuleType, backend: str | None) -> int:
    """Factors before and after the reduction; both are exact here."""
    runner = Runner(hc, backend, "scales")
    for dtype in dtypes(hc):
        for operation in REDUCING:
            if calls.unsupported(backend, operation, "Sum", dtype):
                continue
            (call, *_) = calls.reductions_of(operation, runner.ranks, "Sum", dtype, (9, 2), 1)
            call.options = {**call.options, "prescale_factor": 2.0, "postscale_factor": 3.0}
            if dtype == "bool":
                runner.expect_error(
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
    """Averages of 16-bit floats whose sum exceeds the range of 16 bits."""
    runner = Runner(hc, backend, "narrow")
    for count in (3, 40_000):
        tensor = np.full(count, 60_000, np.float16)
        for options in ({"op": hc.Average}, {"op": hc.Sum, "postscale_factor": 1 / runner.ranks}):
            got = hc.allreduce(tensor, name=runner.name(), backend=backend, **options)
            np.testing.assert_allclose(got, tensor, rtol=2e-3, err_msg=f"rank {runner.rank}: {options}")
            runner.checks += 1
    return runner.checks


def _wraps(hc: ModuleType, backend: str | None) -> int:
    """Sums and products of integers that overflow: two's complement, in whole vectors and in the remainder."""
    runner = Runner(hc, backend, "wraps")
    for dtype in calls.INTEGERS:
        for reduction in ("Sum", "Product"):
            if calls.unsupported(backend, "allreduce", reduction, dtype):
                continue
            for count in (3, 1000):
                tensor = np.full(count, np.iinfo(dtype).max - 2, dtype)
                want = calls.reduced([tensor] * runner.ranks, reduction, dtype)
                options = {"op": calls.REDUCTIONS[reduction], "backend": backend}
                what = f"rank {runner.rank}: {reduction} of {dtype}"
                got = hc.allreduce(tensor, name=runner.name(), **options)
                np.testing.assert_array_equal(got, want, err_msg=what)
                got = hc.reduce(tensor, root_rank=runner.ranks - 1, name=runner.name(), **options)
                if runner.rank == runner.ranks - 1:
                    np.testing.assert_array_equal(got, want, err_msg=what)
                runner.checks += 2
    return runner.checks


def _groups(hc: ModuleType, backend: str | None) -> int:
    """Groups of tensors, in place and not, of several types."""
    runner = Runner(hc, backend, "groups")
    shapes = ((5,), (0,), (1700,), (2, 3))
    ranks = range(runner.ranks)
    for dtype in ("float32", "int64", "bool", "complex64"):
        if calls.unsupported(backend, "allreduce", "Sum", dtype):
            continue
        mine = [calls.values(runner.rank, shape, dtype) for shape in shapes]
        inputs = [[calls.values(rank, shape, dtype) for shape in shapes] for rank in ranks]
        totals = [calls.reduced([inputs[r][i] for r in ranks], "Sum", dtype) for i in range(len(shapes))]
        rooted = inputs[runner.ranks - 1]
        results = {
            "grouped_allreduce": (totals, hc.grouped_allreduce(mine, op=hc.Sum, name="a", backend=backend)),
            "grouped_allgather": (
                [np.concatenate([inputs[r][i] for r in ranks]) for i in range(len(shapes))],
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
    """Some ranks get the result in their tensor, others in a new array; no rank knows the choice of the others."""
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
    """Barriers, each with an allreduce in flight: no rank passes a barrier before all ranks have entered it."""
    runner = Runner(hc, backend, "barrier")
    for turn in range(max(5, runner.ranks)):
        handle = hc.allreduce_async(np.full(4, turn), op=hc.Sum, name=f"before.{turn}", backend=backend)
        if turn % runner.ranks == runner.rank:
            time.sleep(0.01)
        entered_ns = time.monotonic_ns()  # all ranks are on one machine, so they have one clock
        hc.barrier(backend=backend)
        passed_ns = time.monotonic_ns()
        np.testing.assert_array_equal(hc.synchronize(handle), np.full(4, turn * runner.ranks))
        all_entered, all_passed = hc.allgather(np.array([[entered_ns, passed_ns]]), name=f"times.{turn}").T
        assert all_entered.max() <= all_passed.min(), (turn, all_entered - entered_ns, all_passed - entered_ns)
        runner.checks += 1
    return runner.checks


def _scalars(hc: ModuleType, backend: str | None) -> int:
    """A scalar counts as one row."""
    runner = Runner(hc, backend, "scalars")
    mine, all_values = np.float32(runner.rank + 1), np.arange(1, runner.ranks + 1, dtype=np.float32)
    ones = [1] * runner.ranks
    for got in (
        hc.allgather(mine, backend=backend),
        hc.allgatherv(mine, recvcounts=ones, backend=backend),
        hc.gather(mine, root_rank=0, backend=backend),
        hc.gatherv(mine, root_rank=0, recvcounts=ones, displs=range(runner.ranks), backend=backend),
        hc.alltoallv(mine, sendcounts=ones, sdispls=[0] * runner.ranks, backend=backend)[0],
    ):
        if got is not None:
            np.testing.assert_array_equal(got, all_values)
        runner.checks += 1
    got = hc.scatterv(mine, root_rank=0, sendcounts=ones, displs=[0] * runner.ranks, backend=backend)
    np.testing.assert_array_equal(got, [np.float32(1)])
    return runner.checks + 1


def _random_call(random: np.random.Generator, ranks: int, known: Sequence[str], backend: str | None) -> Call:
    """Draw a call of any operation; all ranks draw the same call, because their generators are in the same state."""
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
    if not defined:
        return next(calls.broadcasts(ranks, dtype, shape, seed))
    return next(calls.reductions_of(operation, ranks, str(random.choice(defined)), dtype, shape, seed))


def _schedules(hc: ModuleType, backend: str | None) -> int:
    """Seeded sequences of mixed operations: every rank submits and waits in its own order."""
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
    """The same names again, so that responses come from the cache, with numbers of rows that change."""
    runner = Runner(hc, backend, "repeated")
    for turn in range(6):
        for operation, make in MOVING.items():
            counts = [(rank + turn) % 4 for rank in range(runner.ranks)]
            call = make(operation, runner.ranks, "int32", counts, (2,), 1)
            runner.compare(call, runner.submit(call, f"again.{operation}", ""))
    return runner.checks


def _for_each(function: Callable[..., int], operations: Sequence[str]) -> Iterator[tuple[str, Callable[..., int]]]:
    for operation in operations:
        yield operation, functools.partial(function, operation)


CASES: dict[str, Callable[[ModuleType, str | None], int]] = {
    **dict(_for_each(_reducing, REDUCING)),
    **dict(_for_each(_moving, tuple(MOVING))),
    "broadcast": _broadcast,
    "in_place": _in_place,
    "barrier": _barrier,
    "scalars": _scalars,
    "scales": _scales,
    "narrow": _narrow,
    "wraps": _wraps,
    "groups": _groups,
    "repeated": _repeated,
    "mistakes": mistakes.check,
    "joined": joined.check,
    "given": given.check,
    "schedules": _schedules,
}
