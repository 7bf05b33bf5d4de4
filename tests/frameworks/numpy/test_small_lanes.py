"""Small operations run in lanes of their own, beside large ones, with the same results."""

import numpy as np
import pytest

from horocache.testing import run_ranks

LARGE = 1 << 20  # elements
OPERATIONS = 60


def run_mixed():
    """Operations of random kinds and sizes, in flight together; returns how many ran in small lanes."""
    import horocache as hc

    hc.init()
    rank, size = hc.rank(), hc.size()
    draw = np.random.default_rng(1)  # the same on all ranks
    for turn in range(3):
        pending = []
        for number in range(OPERATIONS):
            count = int(draw.choice([1, 7, 1000, 9000, LARGE]))
            base = draw.integers(0, 100, count).astype(np.float32)
            mine, root = base + rank, int(draw.integers(size))
            kind, name = number % 4, f"t{number}"
            total = base * size + sum(range(size))
            if kind == 0:
                pending.append((hc.allreduce_async(mine, op=hc.Sum, name=name), total))
            elif kind == 1:
                pending.append((hc.broadcast_async(mine, root, name=name), base + root))
            elif kind == 2:
                pending.append(
                    (hc.reduce_async(mine, root_rank=root, op=hc.Sum, name=name), total if rank == root else None)
                )
            else:
                every = np.concatenate([base + r for r in range(size)])
                pending.append((hc.allgather_async(mine, name=name), every))
        for number in draw.permutation(OPERATIONS):
            handle, expected = pending[number]
            got = hc.synchronize(handle)
            if expected is None:
                assert got is None, f"turn {turn}, operation {number}"
            else:
                np.testing.assert_array_equal(got, expected, f"turn {turn}, operation {number}")
    count = hc.metrics()["small_lane_operations"]
    hc.shutdown()
    return count


@pytest.mark.parametrize(
    ("lanes", "most", "some"), [("1", "65536", True), ("3", "65536", True), ("0", "65536", False), ("2", "0", False)]
)
def test_operations_of_all_sizes_together_have_the_right_results(lanes, most, some):
    knobs = {"small_lanes": lanes, "small_lane_bytes": most, "inline_max": "0", "fusion_threshold": "0"}
    counts = run_ranks(run_mixed, 2, knobs=knobs)
    assert counts[0] == counts[1], "all ranks choose the same lane"
    # Three of four kinds may be small; without fusion each is a plan of its own.
    assert (counts[0] > OPERATIONS) == some
    assert counts[0] == 0 or some
