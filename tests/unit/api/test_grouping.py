"""How gradients are split into groups."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from horocache.data_parallel.bucketing import complete_order, group_count, priorities, split_by_bytes, split_by_count

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
    total = sum(sizes)
    # With three or more groups, the first and the last are small; this bounds the share of the others.
    share = total / groups if groups < 3 else total / (groups - 2)
    for run in split_by_bytes(range(len(sizes)), sizes, groups):
        if total:
            assert sum(sizes[i] for i in run) <= share + max(sizes[i] for i in run)


@given(items, st.integers(3, 20))
def test_the_first_and_the_last_of_at_least_three_runs_are_small(sizes, groups):
    runs = split_by_bytes(range(len(sizes)), sizes, groups)
    if sum(sizes) == 0 or len(sizes) < 3:
        return
    share = sum(sizes) / (4 * (groups - 2) + 2)
    for run in (runs[0], runs[-1]):
        assert len(run) == 1 or sum(sizes[i] for i in run) <= share + max(sizes[i] for i in run)
        # At least half of the innermost item lies within the share.
        inner = run[-1] if run is runs[0] else run[0]
        assert len(run) == 1 or sum(sizes[i] for i in run) - sizes[inner] / 2 <= share


@given(st.integers(3, 12), st.integers(1, 1000))
def test_equal_items_give_equal_inner_runs_and_quarter_runs_at_both_ends(groups, size):
    units = 4 * (groups - 2) + 2
    runs = split_by_bytes(range(units), [size] * units, groups)
    assert [len(run) for run in runs] == [1, *[4] * (groups - 2), 1]


@given(items, st.integers(1, 20))
def test_a_split_of_the_reversed_order_has_the_same_first_and_last_runs(sizes, groups):
    count = len(sizes)
    forth = split_by_bytes(range(count), sizes, groups)
    back = split_by_bytes(range(count)[::-1], sizes, groups)
    if groups >= 3 and count >= 3 and sum(sizes) and len(forth) > 2 < len(back):
        assert sorted(back[0]) == forth[-1]
        assert sorted(back[-1]) == forth[0]


@given(items, st.integers(1, 20))
def test_runs_by_count_differ_by_at_most_one(sizes, groups):
    runs = split_by_count(range(len(sizes)), groups)
    assert [item for run in runs for item in run] == list(range(len(sizes)))
    lengths = [len(run) for run in runs]
    assert max(lengths) - min(lengths) <= 1 and lengths == sorted(lengths, reverse=True)
    assert len(runs) == min(groups, len(sizes))


def test_equal_items_are_split_evenly_by_bytes_and_by_count():
    assert split_by_bytes(range(6), [8] * 6, 2) == [[0, 1, 2], [3, 4, 5]]
    assert split_by_bytes(range(6), [0] * 6, 3) == [[0, 1], [2, 3], [4, 5]]
    assert split_by_count(range(7), 3) == [[0, 1, 2], [3, 4], [5, 6]]


def test_one_large_item_leaves_groups_for_the_other_items():
    assert split_by_bytes([0, 1, 2, 3], [1, 1, 100, 1], 2) == [[0, 1], [2, 3]]
    assert split_by_bytes([0, 1], [1, 1000], 4) == [[0], [1]]
    assert split_by_bytes(range(5), [1, 1, 1000, 1, 1], 4) == [[0, 1], [2], [3, 4]]


def test_the_first_and_the_last_run_of_few_items_have_one_item_each():
    assert split_by_bytes(range(6), [8] * 6, 3) == [[0], [1, 2, 3, 4], [5]]
    assert split_by_bytes(range(4), [8] * 4, 4) == [[0], [1], [2], [3]]
    assert split_by_bytes(range(5), [9, 1, 1, 1, 9], 3) == [[0], [1, 2, 3], [4]]


def test_items_that_were_not_measured_come_last_in_reverse_order():
    assert complete_order([3, 1], 5) == [3, 1, 4, 2, 0]
    assert complete_order([], 3) == [2, 1, 0]
    assert complete_order([3, 1, 3], 4) == [3, 1, 2, 0]


def test_the_group_with_the_item_that_is_used_first_has_the_highest_priority():
    assert priorities([[0, 1], [2, 3]], [0, 1, 2, 3]) == [2, 1]
    assert priorities([[3, 0], [2], [1]], [1, 2, 3, 0]) == [1, 2, 3]
    assert priorities([], []) == []


def test_groups_of_items_with_unknown_use_have_the_lowest_priorities():
    assert priorities([[4], [0], [5]], [0]) == [2, 3, 1]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_priorities_are_the_numbers_from_one_to_the_number_of_groups(lengths, random):
    numbers = list(range(sum(lengths)))
    random.shuffle(numbers)
    taken = iter(numbers)
    groups = [[next(taken) for _ in range(length)] for length in lengths]
    used = sorted(numbers, key=lambda _: random.random())
    found = priorities(groups, used)
    assert sorted(found) == list(range(1, len(groups) + 1))
    by_urgency = sorted(range(len(groups)), key=lambda group: -found[group])
    firsts = [min(map(used.index, groups[group])) for group in by_urgency]
    assert firsts == sorted(firsts)


def test_automatic_groups_have_25_mib_and_are_at_most_ten():
    mib = 1 << 20
    assert group_count("auto", [1000] * 300) == 1
    assert group_count("auto", [mib] * 98) == 4
    assert group_count("auto", [mib] * 440) == 10
    assert group_count("auto", [200 * mib]) == 1  # a group has at least one gradient
    assert group_count("auto", [0, 0]) == 1  # unknown sizes
    assert (group_count("auto", []), group_count(0, [5]), group_count(7, [5, 5])) == (0, 0, 2)
