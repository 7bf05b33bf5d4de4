"""Experts to the devices of a group by load, and the moves between two placements."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from horocache.errors import InvalidArgumentError, UnsupportedError
from horocache.moe.placement import Move, PlacementError, improved_map, moves, place_experts
from tests.unit.moe.brute_force import best_placement


def cases(count: int, equal: bool):
    """Random loads, rates and memory for 4 to 7 experts on 2 or 3 devices."""
    for seed in range(count):
        rng = np.random.default_rng(seed)
        experts, devices = int(rng.integers(4, 8)), int(rng.integers(2, 4))
        loads = np.full(experts, 5.0) if equal else rng.integers(0, 100, experts).astype(float)
        loads[0] = max(loads[0], 1.0)
        memory = rng.integers(0, experts + 1, devices)
        memory[0] += max(0, experts - memory.sum())
        yield loads, rng.uniform(0.5, 3.0, devices), memory


def check(found, loads, rates, memory):
    assert found.expert_map.shape == loads.shape and found.expert_map.dtype == np.int64
    assert (np.bincount(found.expert_map, minlength=len(rates)) <= memory).all()
    seconds = np.bincount(found.expert_map, weights=loads, minlength=len(rates)) / rates
    assert found.seconds == pytest.approx(seconds.max(), rel=1e-12)


def test_equal_loads_are_placed_optimally():
    for loads, rates, memory in cases(60, equal=True):
        found = place_experts(loads, rates, memory)
        check(found, loads, rates, memory)
        assert found.solver == "greedy" and found.optimal
        assert found.seconds == pytest.approx(best_placement(loads, rates, memory), rel=1e-12)


def test_milp_places_different_loads_optimally():
    pytest.importorskip("scipy")
    for loads, rates, memory in cases(30, equal=False):
        found = place_experts(loads, rates, memory, "milp")
        check(found, loads, rates, memory)
        assert found.optimal
        assert found.seconds == pytest.approx(best_placement(loads, rates, memory), rel=1e-6)


def test_local_search_is_near_the_optimum():
    ratios = []
    for loads, rates, memory in cases(60, equal=False):
        found = place_experts(loads, rates, memory)
        check(found, loads, rates, memory)
        assert found.solver == "local_search" and not found.optimal
        ratios.append(found.seconds / best_placement(loads, rates, memory))
    assert min(ratios) >= 1 - 1e-12
    assert np.percentile(ratios, 95) <= 1.15


def test_a_hot_expert_has_a_device_for_itself():
    found = place_experts([100.0, 10.0, 10.0, 10.0], [1.0, 1.0], [4, 4])
    assert found.expert_map.tolist() == [0, 1, 1, 1]
    assert found.seconds == 100.0


def test_swaps_repair_what_the_longest_first_order_gets_wrong():
    # Longest first gives 5 + 3 + 3 and 4 + 3 with room for 3 experts each; 5 + 4 and 3 + 3 + 3 is the optimum.
    found = place_experts([5.0, 4.0, 3.0, 3.0, 3.0], [1.0, 1.0], [3, 3])
    assert found.seconds == 9.0


def test_many_experts_with_skewed_loads_are_balanced():
    loads = 1.0 / np.arange(1, 257) ** 0.7
    found = place_experts(loads, np.ones(16), np.full(16, 20))
    check(found, loads, np.ones(16), np.full(16, 20))
    assert found.seconds <= 1.01 * max(loads[0], loads.sum() / 16)


def test_loads_of_zero_and_one_device_work():
    found = place_experts([0.0, 0.0, 0.0], [1.0, 1.0], [2, 2])
    assert found.seconds == 0.0 and found.optimal
    found = place_experts([0.0, 3.0], [2.0], [2])
    assert found.expert_map.tolist() == [0, 0] and found.seconds == 1.5


def test_equal_arguments_give_equal_placements():
    for loads, rates, memory in cases(10, equal=False):
        one, other = (place_experts(loads, rates, memory) for _ in range(2))
        assert one.expert_map.tolist() == other.expert_map.tolist()


def test_missing_memory_is_an_error_that_names_it():
    with pytest.raises(PlacementError, match=r"2 devices have memory for 3 experts .*: memory for 1 more is missing"):
        place_experts([1.0, 2.0, 3.0, 4.0], [1.0, 1.0], [2, 1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0, np.nan], [1.0], [2]), r"loads\[1\] is nan; it must be finite and at least 0"),
        (([-1.0], [1.0], [2]), r"loads\[0\] is -1.0"),
        (([], [1.0], [2]), r"loads has shape \(0,\); it must be \(experts,\)"),
        (([[1.0]], [1.0], [2]), r"loads has shape \(1, 1\)"),
        (([1.0], [0.0], [2]), r"rates\[0\] is 0.0; it must be finite and above 0"),
        (([1.0], [[1.0]], [2]), r"rates has shape \(1, 1\)"),
        (([1.0], [1.0, 1.0], [2]), r"memory has shape \(1,\); it must be \(2,\)"),
        (([1.0], [1.0], [-1]), r"memory\[0\] is -1"),
        (([1e308, 1e308], [1.0], [2]), "the sum of loads / rates is infinite"),
        (([1.0], [1.0], [1], "best"), "solver is 'best'; it must be one of auto, greedy, milp, local_search"),
        (([1.0, 2.0], [1.0], [2], "greedy"), r"takes equal loads, but loads\[0\] is 1.0 and loads\[1\] is 2.0"),
    ],
)
def test_bad_input_is_an_error(arguments, message):
    with pytest.raises(InvalidArgumentError, match=message):
        place_experts(*arguments)


def test_milp_without_scipy_is_an_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'horocache\[moe\]'"):
        place_experts([1.0, 2.0], [1.0], [2], "milp")


def test_moves_are_the_experts_whose_rank_changes():
    assert moves([0, 0, 1, 1], [0, 1, 1, 0]) == (Move(1, 0, 1), Move(3, 1, 0))
    assert moves([2, 2], [2, 2]) == ()
    assert moves(np.zeros(0, int), np.zeros(0, int)) == ()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ([0, 1], [0, 1, 2], r"new has shape \(3,\); it must be \(2,\): a rank for each of the experts of old"),
        ([[0]], [[0]], r"old has shape \(1, 1\)"),
        ([0, -1], [0, 0], r"old\[1\] is -1; it must be at least 0"),
        ([0.0], [0], "old must be an array of whole numbers"),
    ],
)
def test_moves_of_bad_placements_are_errors(old, new, message):
    with pytest.raises(InvalidArgumentError, match=message):
        moves(old, new)


def test_an_improved_map_is_near_the_current_one():
    assert improved_map([4, 3, 1, 0], [0, 0, 1, 1], 2) == [1, 0, 0, 1]
    assert improved_map([2, 2, 2, 2], [1, 0, 1, 0], 2) == [1, 0, 1, 0]  # equal, so nothing moves
    assert improved_map([0, 0, 0], [0, 1, 0], 2) == [0, 1, 0]
    assert improved_map([10, 10.3], [0, 0], 2, memory=[2, 2]) in ([0, 1], [1, 0])
    assert improved_map([100, 99, 1, 0], [0, 1, 0, 1], 2) == [0, 1, 0, 1]  # a gain of 1 in 101 is too small
    assert improved_map([100, 99, 1, 0], [0, 1, 0, 1], 2, gain=0.0) == [1, 0, 0, 1]


def test_an_improved_map_follows_memory_and_rates():
    assert improved_map([1, 1, 1], [0, 1, 2], 3, memory=[3, 0, 0]) == [0, 0, 0]
    faster = improved_map([1, 1, 1, 1], [0, 0, 1, 1], 2, rates=[3, 1], memory=[4, 4])
    assert faster.count(0) == 3
    with pytest.raises(PlacementError, match="memory for 1 more is missing"):
        improved_map([1, 1, 1], [0, 1, 0], 2, memory=[1, 1])
    with pytest.raises(InvalidArgumentError, match="current has rank 2"):
        improved_map([1, 1], [0, 2], 2)
    with pytest.raises(InvalidArgumentError, match="gain is 2"):
        improved_map([1, 1], [0, 1], 2, gain=2)
    with pytest.raises(InvalidArgumentError, match="a rate for each rank"):
        improved_map([1, 1], [0, 1], 2, rates=[1.0])


def test_an_improved_map_is_never_worse_than_the_current_one():
    generator = np.random.default_rng(5)
    for _ in range(100):
        experts, ranks = int(generator.integers(1, 20)), int(generator.integers(1, 6))
        loads, now = generator.integers(0, 50, experts), generator.integers(0, ranks, experts)
        new = improved_map(loads, now, ranks)
        before, after = (np.bincount(each, weights=loads, minlength=ranks).max() for each in (now, new))
        assert after <= before
        assert np.bincount(new, minlength=ranks).max() <= np.bincount(now, minlength=ranks).max()
