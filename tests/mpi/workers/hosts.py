"""Ranks on simulated hosts: identity, two-level operations and process sets, against NumPy."""

from __future__ import annotations

import sys
import threading

import numpy as np
from common import pretend_hosts

LAYOUT = sys.argv[1]
pretend_hosts(LAYOUT)

import horocache as hc  # noqa: E402

COUNTS = [0, 1, 17, 300_000, 1_300_003]


def check_identity() -> None:
    ranks = [rank for rank, host in enumerate(LAYOUT) if host == LAYOUT[hc.rank()]]
    hosts = list(dict.fromkeys(LAYOUT))
    assert (hc.local_rank(), hc.local_size()) == (ranks.index(hc.rank()), len(ranks))
    assert (hc.cross_rank(), hc.cross_size()) == (hosts.index(LAYOUT[hc.rank()]), len(hosts))
    assert hc.is_homogeneous() == (len({LAYOUT.count(host) for host in hosts}) == 1)


def values(rank: int, count: int, dtype: str) -> np.ndarray:
    return (np.arange(count) % 5 + rank).astype(dtype)


def check_operations(backend: str | None) -> None:
    all_ranks = range(hc.size())
    for count in COUNTS:
        for dtype in ("float32", "int64", "float16"):
            mine = values(hc.rank(), count, dtype)
            total = sum((values(rank, count, dtype) for rank in all_ranks), np.zeros(count, dtype))
            np.testing.assert_array_equal(hc.allreduce(mine, op=hc.Sum, backend=backend), total)
            np.testing.assert_array_equal(
                hc.allreduce(mine, op=hc.Max, backend=backend), values(hc.size() - 1, count, dtype)
            )
            for root in all_ranks:
                np.testing.assert_array_equal(hc.broadcast(mine, root, backend=backend), values(root, count, dtype))
        both = hc.grouped_allreduce([values(hc.rank(), count, "float64"), np.ones(3)], backend=backend)
        np.testing.assert_allclose(both[0], np.arange(count) % 5 + (hc.size() - 1) / 2, rtol=1e-12)
        rows = [(count + 3 * rank) % 40_000 for rank in all_ranks]
        gathered = hc.allgather(np.full((rows[hc.rank()], 2), hc.rank()), backend=backend)
        np.testing.assert_array_equal(gathered[:, 1], np.repeat(np.arange(hc.size()), rows))


def check_dynamic_sets() -> None:
    """Add and remove sets, connected over MPI where members are on several hosts, while another thread reduces."""

    def reduce() -> None:
        while not hc.allreduce(np.array([done.is_set()]), op=hc.Max, name="done")[0]:
            assert hc.allreduce(np.ones(50_000), op=hc.Sum, name="x", backend="mpi")[-1] == hc.size()

    done = threading.Event()
    thread = threading.Thread(target=reduce)
    thread.start()
    last = hc.size() - 1
    for members in ([0, last], [1, last], [0, last], list(range(1, hc.size()))):
        made = hc.add_process_set(members)
        if made.included():
            mine = np.full(100_000, hc.rank())
            assert hc.allreduce(mine, op=hc.Sum, process_set=made, backend="mpi")[-1] == sum(members)
            assert hc.broadcast_object("all", last, process_set=made) == "all"
        assert hc.remove_process_set(made)
    done.set()
    thread.join()


def main() -> None:
    hc.init()
    check_identity()
    for backend in sys.argv[2:]:
        check_operations(None if backend == "default" else backend)
    check_dynamic_sets()
    print(f"right {hc.rank()} {hc.metrics()['operations']}", flush=True)


main()
