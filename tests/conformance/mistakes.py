"""Mistakes of one rank: the operation fails on all ranks with an error that names the rank, and the job goes on."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
from runner import Runner


def check(hc: ModuleType, backend: str | None) -> int:
    runner = Runner(hc, backend, "mistakes")
    ranks, rank, last = runner.ranks, runner.rank, runner.ranks - 1
    mismatch, invalid = hc.MismatchError, hc.InvalidArgumentError
    two = np.ones((2, 3))
    mistakes: list[tuple[Any, str, Callable[[], Any]]] = [
        # wrong numbers of expected rows
        (
            mismatch,
            f"rank {last} expects 9 rows",
            lambda: hc.gatherv(two, root_rank=last, recvcounts=[9] * ranks, backend=backend),
        ),
        (
            mismatch,
            "expects 9 rows",
            lambda: hc.allgatherv(two, recvcounts=[2 if rank else 9] * ranks, backend=backend),
        ),
        (
            mismatch,
            "expects 9 rows",
            lambda: hc.alltoallv(
                two, sendcounts=[1] * ranks, recvcounts=[1 if rank else 9] * ranks, sdispls=[0] * ranks, backend=backend
            ),
        ),
        # lists of a wrong length
        (
            invalid,
            f"rank {last}",
            lambda: hc.gatherv(two, root_rank=last, recvcounts=[2] * (ranks + 1), backend=backend),
        ),
        (invalid, "rank 0", lambda: hc.scatterv(two, root_rank=0, sendcounts=[1] * (ranks + 2), backend=backend)),
        (
            invalid,
            "rank 0",
            lambda: hc.allgatherv(
                two, recvcounts=None, displs=[0] * (ranks + (rank == 0)) if rank == 0 else None, backend=backend
            ),
        ),
        # numbers below 0, and rows that do not exist
        (invalid, "rank 0", lambda: hc.alltoallv(two, sendcounts=[-1 if rank == 0 else 0] * ranks, backend=backend)),
        (
            invalid,
            "rank 0",
            lambda: hc.scatterv(two, root_rank=0, sendcounts=[1] * ranks, displs=[2] * ranks, backend=backend),
        ),
        (invalid, "rank 0", lambda: hc.scatterv(two, root_rank=0, sendcounts=[9] * ranks, backend=backend)),
        (
            invalid,
            "rank 0",
            lambda: hc.reducescatterv(two, recvcounts=[7 if rank == 0 else 2] + [0] * last, backend=backend),
        ),
        (
            invalid,
            f"rank {last}",
            lambda: hc.gatherv(two, root_rank=last, recvcounts=None, displs=[-1] * ranks, backend=backend),
        ),
        # mistakes that all ranks make
        (hc.UnsupportedError, "no backend 'nowhere'", lambda: hc.gather(two, root_rank=0, backend="nowhere")),
        (invalid, "invalid root rank", lambda: hc.reduce(two, root_rank=ranks, backend=backend)),
        (invalid, "sendcounts", lambda: hc.alltoallv(two, sendcounts="one", backend=backend)),
        (
            invalid,
            "1D recvcounts",
            lambda: hc.allgatherv(two, recvcounts=[[2]] and np.ones((1, 1), int), backend=backend),
        ),
        (
            invalid,
            "integer elements",
            lambda: hc.allgatherv(two, recvcounts=None, displs=np.zeros(ranks), backend=backend),
        ),
        (invalid, "backend must be", lambda: hc.barrier(backend=3)),
    ]
    if ranks > 1:
        overlap = [0] * ranks
        mistakes += [
            (
                invalid,
                "overlap",
                lambda: hc.gatherv(two, root_rank=last, recvcounts=None, displs=overlap, backend=backend),
            ),
            (
                invalid,
                "overlap",
                lambda: hc.allgatherv(two, recvcounts=None, displs=overlap if rank == 0 else None, backend=backend),
            ),
            (invalid, "rank 0", lambda: hc.scatter(np.ones((ranks + 1, 2)), root_rank=0, backend=backend)),
            (
                mismatch,
                "rank 0",
                lambda: hc.reducescatterv(
                    two, recvcounts=([2, 0] if rank == 0 else [0, 2]) + [0] * (ranks - 2), backend=backend
                ),
            ),
            (mismatch, "root", lambda: hc.gather(two, root_rank=int(rank == 0), name="root", backend=backend)),
            (
                mismatch,
                "shape",
                lambda: hc.scatter(np.ones((0, 2 if rank else 3)), root_rank=0, name="row", backend=backend),
            ),
            (
                mismatch,
                "dtype",
                lambda: hc.reduce(two.astype("f4") if rank else two, root_rank=0, name="type", backend=backend),
            ),
            (mismatch, "backend", lambda: hc.gather(two, root_rank=0, name="other", backend="shm" if rank else "mpi")),
        ]
    for error, words, run in mistakes:
        runner.expect_error(error, words, run)
    return runner.checks
