"""The ranks of a job: communicators, lists of ranks, process sets of communicators."""

from __future__ import annotations

import sys

import numpy as np
from common import expect_error
from mpi4py import MPI

import horocache as hc

WORLD = MPI.COMM_WORLD


def world() -> None:
    hc.init(comm=WORLD)
    assert (hc.rank(), hc.size()) == (WORLD.rank, WORLD.size)
    assert hc.mpi_enabled() and hc.mpi_built() and hc.mpi_threads_supported()
    # mpi4py and horocache use MPI at the same time, each on its own communicators.
    handle = hc.allreduce_async(np.full(300_000, 1.0), op=hc.Sum, backend="mpi")
    theirs = WORLD.allgather(WORLD.rank)
    assert theirs == list(range(WORLD.size)) and (hc.synchronize(handle) == WORLD.size).all()


def split() -> None:
    part = WORLD.Split(WORLD.rank % 2, -WORLD.rank)
    hc.init(comm=part)
    assert (hc.rank(), hc.size()) == (part.rank, part.size)
    expected = [rank for rank in reversed(range(WORLD.size)) if rank % 2 == WORLD.rank % 2]
    assert hc.allgather(np.array([WORLD.rank])).tolist() == expected
    hc.shutdown()
    part.Free()
    again()


def again() -> None:
    """The same process takes part in another job."""
    hc.init()
    assert hc.allreduce(np.ones(1), op=hc.Sum)[0] == WORLD.size


def ranks() -> None:
    chosen = [WORLD.size - 1, 0]
    if WORLD.rank not in chosen:
        return expect_error(hc.StartupError, f"rank {WORLD.rank} ", lambda: hc.init(comm=chosen))
    hc.init(comm=chosen, process_sets=[[1]])
    assert hc.rank() == chosen.index(WORLD.rank) and hc.size() == 2
    assert hc.allgather(np.array([WORLD.rank]), backend="mpi").tolist() == chosen


def disagree() -> None:
    mine = list(range(WORLD.size))
    if WORLD.rank == 1:
        mine.reverse()
    words = "rank 1 called init(comm=[3, 2, 1, 0]), rank 0 called init(comm=[0, 1, 2, 3])"
    expect_error(hc.InvalidArgumentError, words, lambda: hc.init(comm=mine))


def sets() -> None:
    members = [0, WORLD.size - 1]
    group = WORLD.Create_group(WORLD.group.Incl(members)) if WORLD.rank in members else members
    hc.init(process_sets=[group, list(range(1, WORLD.size))])
    first, second = hc.process_sets()[1:]
    assert first.ranks == members
    for backend in ("mpi", "shm"):
        for chosen in (first, second) if WORLD.rank % 2 else (second, first):
            if chosen.included():
                total = hc.allreduce(np.array([float(hc.rank())]), op=hc.Sum, process_set=chosen, backend=backend)
                assert total[0] == sum(chosen.ranks), (chosen, backend)


def parts() -> None:
    """Each rank passes communicators of its own part of the world, at two places in the list of sets."""
    mine = hc.ProcessSet(WORLD.Split(WORLD.rank % 2, WORLD.rank))
    half = hc.ProcessSet(WORLD.Split(WORLD.rank // 2, WORLD.rank))
    hc.init(comm=WORLD, process_sets=[mine, [0, 3], half])
    odd, low = WORLD.rank % 2, WORLD.rank // 2
    assert (mine.process_set_id, half.process_set_id) == (1 + odd, 4 + low)
    assert [made.ranks for made in hc.process_sets()] == [[0, 1, 2, 3], [0, 2], [1, 3], [0, 3], [0, 1], [2, 3]]
    for chosen in (mine, half):
        total = hc.allreduce(np.array([float(hc.rank())]), op=hc.Sum, process_set=chosen)
        assert total[0] == sum(chosen.ranks), chosen
    hc.init(process_sets=[mine, [0, 3], hc.ProcessSet(half.mpi_comm)])
    expect_error(hc.InvalidArgumentError, "runs already", lambda: hc.init(process_sets=[half, mine]))
    later = hc.ProcessSet(WORLD.Split(WORLD.rank in (1, 2), WORLD.rank))
    for again in range(2):
        hc.remove_process_set(hc.process_sets()[3 if again == 0 else 5])
        assert hc.add_process_set(later) is later
        assert [made.ranks for made in hc.process_sets()[5:]] == [[0, 3], [1, 2]], again
        assert hc.allreduce(np.array([float(hc.rank())]), op=hc.Sum, process_set=later)[0] == 3
        hc.remove_process_set(hc.process_sets()[6])
    hc.remove_process_set(hc.process_sets()[5])
    expect_error(hc.MismatchError, "ranks", lambda: hc.add_process_set([hc.rank()] if hc.rank() else later.mpi_comm))
    hc.shutdown()
    some = hc.ProcessSet(WORLD.Split(MPI.UNDEFINED if WORLD.rank == 2 else WORLD.rank % 2, WORLD.rank))
    for _ in range(2):
        hc.init(comm=WORLD, process_sets=[some])
        assert [made.ranks for made in hc.process_sets()[1:]] == [[0], [1, 3]]
        assert some.included() == (WORLD.rank != 2) and some.process_set_id == 1 + WORLD.rank % 2
        hc.shutdown()
    overlapping = [WORLD.rank, (WORLD.rank + 1) % WORLD.size]
    expect_error(hc.VersionSkewError, "process set 1: ", lambda: hc.init(process_sets=[overlapping]))


def twice() -> None:
    hc.init(comm=WORLD)
    hc.init(comm=WORLD)
    expect_error(hc.InvalidArgumentError, "runs already", lambda: hc.init(comm=[0]))


def finalized_early() -> None:
    hc.init()
    hc.allreduce(np.ones(3), backend="mpi")
    MPI.Finalize()
    expect_error(hc.HorocacheError, "before MPI_Finalize", lambda: hc.allreduce(np.ones(3), backend="mpi"))


def finalized() -> None:
    MPI.Finalize()
    expect_error(hc.UnsupportedError, "finalised", lambda: hc.init(mpi="on"))
    expect_error(hc.UnsupportedError, "libmpi", lambda: hc.init(mpi="on"))


CASES = {
    case.__name__: case for case in (world, split, ranks, disagree, sets, parts, twice, finalized, finalized_early)
}
for name in sys.argv[1:]:
    CASES[name]()
    hc.shutdown()
    print(f"done {name}", flush=True)
