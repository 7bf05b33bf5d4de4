"""The communication of real training steps, on single backends, mixed, and by other libraries; all take turns.

Rounds alternate between two settings of horocache, which need a restarted daemon: rounds on events with a tuning table,
and rounds at a fixed tick without one, which is Horovod's plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from benchmarks.figures import Series
from benchmarks.peers import Rank, in_buckets, mixed
from benchmarks.timing import Contestant, alternate, check
from benchmarks.workloads import ALLREDUCE, ALLTOALL, WORKLOADS, Operation

AUTO, COARSE, FINE, TICK = (
    "horocache, auto",
    "horocache, by op",
    "horocache, by op and size",
    "horocache, Horovod's plan",
)
ALONE = " alone"  # ends the names of single backends
GLOO, MPI, MPI_ASYNC = "torch.distributed, gloo", "mpi4py", "mpi4py, non-blocking"
_BUCKET_BYTES = 25 << 20  # DistributedDataParallel's default
_PERIOD = 13  # of the values, whose sums stay exact in float32
_REPETITIONS = 20  # of a round, at most
_SHARE_ON_EVENTS = 0.9  # of the time, for all contestants but Horovod's plan

Wait = Callable[[], object]


class Library(Protocol):
    """Starts operations of a step."""

    def start(self, number: int, operation: Operation, buffers: Buffers) -> Wait | None:
        """Start the operation ``number`` of the step; return a function that waits for it, or None if it has ended."""


@dataclass(frozen=True)
class Buffers:
    """The tensors of one operation: an allreduce works in place of ``data``, the others from ``data`` to ``result``.

    Attributes:
        data: this rank's values.
        result: what this rank receives; empty for an allreduce.
        sent: elements that go to each rank.
        received: elements that come from each rank.
    """

    data: Any
    result: Any
    sent: list[int] = field(default_factory=list)
    received: list[int] = field(default_factory=list)


def measure(
    rank: Rank,
    workload: str,
    shrink: int,
    table: str,
    layout: str,
    choices: dict[str, list[str]],
    rounds: int,
    warm_up: int,
    budget_s: float,
) -> list[Series]:
    """Measure all ways to run a workload's step.

    Args:
        rank: this rank.
        workload: a name of ``WORKLOADS``.
        shrink: divides all sizes.
        table: path of the tuning table.
        layout: the label of the layout.
        choices: for mixing by op, and by op and size, the backend of each operation of the step.
        rounds: how often both settings of the daemon take their turn.
        warm_up: untimed steps before the first of a round. One negotiates the operations; the next come from the cache.
        budget_s: for all repetitions; two of each round are made in any case.
    """
    operations = WORKLOADS[workload].step(rank.size, shrink)
    step = Step(rank, operations)
    seconds: dict[str, list[float]] = {}
    cpu: dict[str, list[float]] = {}
    for number in range(rounds):
        repetitions, limit_s = _REPETITIONS, budget_s / rounds * _SHARE_ON_EVENTS
        for ways in (_event_ways, _tick_ways):
            contestants = [_contestant(rank, step, *way) for way in ways(rank, operations, table, choices).items()]
            if number == 0:
                check(rank.page, contestants)
            times = alternate(
                rank.page, contestants, repetitions=repetitions, budget_s=limit_s, warm_up=warm_up, at_least=2
            )
            for name, one in times.items():
                seconds.setdefault(name, []).extend(one.seconds)
                cpu.setdefault(name, []).extend(one.cpu_seconds)
            # The other setting makes as many repetitions, so that pairs are of the same round.
            repetitions, limit_s = len(one.seconds), float("inf")
    moved = sum(operation.bytes for operation in operations)
    detail = {"workload": workload, "layout": layout, "shrink": shrink, "operations": len(operations), "bytes": moved}
    case = f"{workload}, {layout}"
    return [
        Series(case, name, "ms", values, cpu_seconds=cpu[name], detail={**detail, "choices": choices.get(name, [])})
        for name, values in seconds.items()
    ]


def _contestant(rank: Rank, step: Step, name: str, library: Library) -> Contestant:
    return step.in_buckets(rank) if name == GLOO and step.reduces_only() else step.contestant(name, library)


def _event_ways(
    rank: Rank, operations: Sequence[Operation], table: str, choices: Mapping[str, list[str]]
) -> dict[str, Library]:
    mcr_dl = mixed(rank, tuning_table=table)
    found: dict[str, Library] = {
        f"horocache, {name}{ALONE}": Ours(mcr_dl, [name] * len(operations)) for name in mcr_dl.get_backends()
    }
    found |= {name: Ours(mcr_dl, backends) for name, backends in choices.items()}
    found[AUTO] = Ours(mcr_dl, ["auto"] * len(operations))
    if rank.has("gloo"):
        found[GLOO] = Gloo(rank)
    if rank.has("mpi4py"):
        found |= {MPI: Mpi(blocking=True), MPI_ASYNC: Mpi(blocking=False)}
    return found


def _tick_ways(
    rank: Rank, operations: Sequence[Operation], table: str, choices: Mapping[str, list[str]]
) -> dict[str, Library]:
    """Horovod's plan: a round at each tick, one library for all operations, which is MPI where the job has it."""
    mcr_dl = mixed(rank, cycle_mode="tick")
    names = mcr_dl.get_backends()
    return {TICK: Ours(mcr_dl, ["mpi" if "mpi" in names else names[0]] * len(operations))}


class Step:
    """The step of a workload on this rank, with tensors that all contestants share.

    Role: owned by the rank's main thread.
    """

    def __init__(self, rank: Rank, operations: Sequence[Operation]) -> None:
        import numpy as np

        self._rank, self._size = rank.rank, rank.size
        self._operations = operations
        self._buffers = [self._make(operation) for operation in operations]
        longest = max(buffers.data.size for buffers in self._buffers)
        self._pattern = (np.arange(longest) % _PERIOD).astype(np.float32)

    def _make(self, operation: Operation) -> Buffers:
        import numpy as np

        if operation.op == ALLREDUCE:
            return Buffers(np.zeros(operation.count, np.float32), np.zeros(0, np.float32))
        parts = operation.parts(self._size)
        sent, received = parts[self._rank], [row[self._rank] for row in parts]
        return Buffers(np.zeros(sum(sent), np.float32), np.zeros(sum(received), np.float32), sent, received)

    def contestant(self, name: str, library: Library) -> Contestant:
        """Return a contestant that runs the step by a library."""
        return Contestant(name, partial(self._run, library), self._prepare, wrong=self._wrong)

    def reduces_only(self) -> bool:
        """True if the step consists of allreduces that end together."""
        return all(operation.op == ALLREDUCE and not operation.waits for operation in self._operations)

    def in_buckets(self, rank: Rank) -> Contestant:
        """Return gloo as DistributedDataParallel uses it, for a step of allreduces alone."""
        import torch

        run = in_buckets(rank, _BUCKET_BYTES)
        tensors = [torch.from_numpy(buffers.data) for buffers in self._buffers]
        return Contestant(GLOO, lambda: run(tensors), self._prepare, wrong=self._wrong)

    def _prepare(self) -> None:
        import numpy as np

        for buffers in self._buffers:
            np.add(self._pattern[: buffers.data.size], self._rank, out=buffers.data)
            buffers.result.fill(-1)

    def _run(self, library: Library) -> None:
        waits = []
        for number, (operation, buffers) in enumerate(zip(self._operations, self._buffers, strict=True)):
            wait = library.start(number, operation, buffers)
            if wait is not None:
                waits.append(wait)
        for wait in waits:
            wait()

    def _wrong(self) -> int:
        total = 0
        for operation, buffers in zip(self._operations, self._buffers, strict=True):
            if operation.op == ALLREDUCE:
                sum_of_ranks = self._size * (self._size - 1) // 2
                expected = self._pattern[: operation.count] * self._size + sum_of_ranks
                total += int((buffers.data != expected).sum())
            else:
                total += self._wrong_parts(operation, buffers)
        return total

    def _wrong_parts(self, operation: Operation, buffers: Buffers) -> int:
        total, at = 0, 0
        for other, row in enumerate(operation.parts(self._size)):
            begin, count = sum(row[: self._rank]), row[self._rank]
            expected = self._pattern[begin : begin + count] + other
            total += int((buffers.result[at : at + count] != expected).sum())
            at += count
        return total


class Ours:
    """horocache.mcr_dl with a backend for each operation of the step."""

    def __init__(self, mcr_dl: Any, backends: Sequence[str]) -> None:
        self._mcr_dl, self._backends = mcr_dl, backends

    def start(self, number: int, operation: Operation, buffers: Buffers) -> Wait | None:
        backend, later = self._backends[number], not operation.waits
        # The name has the backend, as contestants whose choices agree use the same cached responses.
        name = f"{backend}.{number}"
        data, result = buffers.data, buffers.result
        if operation.op == ALLREDUCE:
            work = self._mcr_dl.all_reduce(backend, data, async_op=later, name=name)
        elif operation.op == ALLTOALL:
            work = self._mcr_dl.all_to_all_single(backend, result, data, later, name=name)
        else:
            sent, received = buffers.sent, buffers.received
            work = self._mcr_dl.all_to_allv(backend, result, data, sent, received, async_op=later, name=name)
        wait: Wait | None = None if work is None else work.wait
        return wait


class Gloo:
    """torch.distributed over gloo."""

    def __init__(self, rank: Rank) -> None:
        self._dist = rank.gloo()

    def start(self, number: int, operation: Operation, buffers: Buffers) -> Wait | None:
        import torch

        data, result = torch.from_numpy(buffers.data), torch.from_numpy(buffers.result)
        later = not operation.waits
        if operation.op == ALLREDUCE:
            work = self._dist.all_reduce(data, async_op=later)
        else:
            work = self._dist.all_to_all_single(result, data, buffers.received, buffers.sent, async_op=later)
        wait: Wait | None = None if work is None else work.wait
        return wait


class Mpi:
    """MPI by mpi4py: blocking calls alone, or non-blocking ones for operations that the step does not wait for."""

    def __init__(self, blocking: bool) -> None:
        from mpi4py import MPI

        self._mpi, self._blocking = MPI, blocking

    def start(self, number: int, operation: Operation, buffers: Buffers) -> Wait | None:
        world = self._mpi.COMM_WORLD
        data, result = buffers.data, buffers.result
        blocks = self._blocking or operation.waits
        if operation.op == ALLREDUCE:
            if blocks:
                world.Allreduce(self._mpi.IN_PLACE, data)
                return None
            request = world.Iallreduce(self._mpi.IN_PLACE, data)
        elif operation.op == ALLTOALL:
            if blocks:
                world.Alltoall(data, result)
                return None
            request = world.Ialltoall(data, result)
        else:
            sent, received = (data, buffers.sent), (result, buffers.received)
            if blocks:
                world.Alltoallv(sent, received)
                return None
            request = world.Ialltoallv(sent, received)
        wait: Wait = request.Wait
        return wait
