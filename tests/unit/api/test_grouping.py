"""How gradients are split into groups."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from horocache.grouping import complete_order, split_by_bytes, split_by_count

items = st.lists(st.integers(0, 1 << 30), min_size=1, max_size=60)


@given(items, st.integers(1, 70), st.randoms(use_true_random=False))
def test_runs_by_bytes_cover_the_order_and_no_run_is_empty(sizes, groups, random):
    order = list(range(len(sizes)))
    random.shuffle(order)
    runs = split_by_bytes(order, sizes, groups)
    assert [item for run in runs for item in run] == order
    assert all(runs) and len(runs) <= groups


@given(items, st.integers(1, 20))
def test_a_run_by_bytes_exceeds_its_share_by_less_than_its_largest_item(sizes, groups):
    share = sum(sizes) / groups
    for run in split_by_bytes(range(len(sizes)), sizes, groups):
        if sum(sizes):
            assert sum(sizes[i] for i in run) <= share + max(sizes[i] for i in run)


@given(items, st.integers(1, 20))
def test_runs_by_count_differ_by_at_most_one(sizes, groups):
    runs = split_by_count(range(len(sizes)), groups)
    assert [item for run in runs for item in run] == list(range(len(sizes)))
    lengths = [len(run) for run in runs]
    assert max(lengths) - min(lengths) <= 1 and lengths == sorted(lengths, reverse=True)
    assert len(runs) == min(groups, len(sizes))


def test_equal_items_are_split_evenly_either_way():
    assert split_by_bytes(range(6), [8] * 6, 3) == [[0, 1], [2, 3], [4, 5]]
    assert split_by_bytes(range(6), [0] * 6, 3) == [[0, 1], [2, 3], [4, 5]]
    assert split_by_count(range(7), 3) == [[0, 1, 2], [3, 4], [5, 6]]


def test_one_large_item_takes_a_group_and_leaves_the_others_theirs():
    assert split_by_bytes([0, 1, 2, 3], [1, 1, 100, 1], 2) == [[0, 1], [2, 3]]
    assert split_by_bytes([0, 1], [1, 1000], 4) == [[0], [1]]


def test_what_was_not_measured_comes_last_and_latest_first():
    assert complete_order([3, 1], 5) == [3, 1, 4, 2, 0]
    assert complete_order([], 3) == [2, 1, 0]
    assert complete_order([3, 1, 3], 4) == [3, 1, 2, 0]
