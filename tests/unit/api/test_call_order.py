"""Names by the order of calls: equal on all ranks, constant in loops, and never twice in flight."""

from __future__ import annotations

import gc
import random
import tracemalloc

import pytest

from horocache.data_parallel import sequence_names
from horocache.data_parallel.sequence_names import MAX_NAMES, MIN_CALLS_APART, CallOrder


def names(calls):
    order = CallOrder("g")
    return [order.name(call) for call in calls]


def rounds(step, times):
    return [call for _ in range(times) for call in step]


PROGRAMS = {
    "one call": rounds(["a"], 4000),
    "a step": rounds(list("abcdefghijkl"), 400),
    "pairs": rounds(["w", "b"] * 150 + ["loss"], 20),
    "steps and checks": rounds(list("abcde") * 100 + list("xy") * 10, 12),
    "a long step of few kinds": rounds(random.Random(3).choices("abcd", k=301), 20),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_name_is_not_reused_while_its_operation_may_be_in_flight(program):
    last = {}
    for number, name in enumerate(names(PROGRAMS[program])):
        assert number - last.get(name, -MIN_CALLS_APART) >= MIN_CALLS_APART, (name, number)
        last[name] = number


@pytest.mark.parametrize("program", PROGRAMS)
def test_in_a_loop_nearly_every_name_gets_the_same_call_again(program):
    calls = PROGRAMS[program]
    last, same = {}, []
    for call, name in zip(calls, names(calls), strict=True):
        same.append(last.get(name) == call)
        last[name] = call
    later = same[len(same) // 2 :]
    assert later.count(False) <= 0.02 * len(later)
    assert len(last) < 700


def test_ranks_that_differ_in_one_call_give_it_the_same_name():
    first = random.Random(1).choices("abc", k=500)
    second = [*first[:400], "z", *first[401:]]
    assert names(first)[:401] == names(second)[:401]


def test_ranks_that_begin_anew_use_new_names_that_are_equal():
    orders = CallOrder("g"), CallOrder("g")
    used = set()
    for order, different in zip(orders, "xy", strict=True):
        for call in [*"abcabc", different]:
            used.add(order.name(call))
        order.begin_anew()
    again = [[order.name(call) for call in "abab"] for order in orders]
    assert again[0] == again[1]
    assert used.isdisjoint(again[0])


def memory_of_names():
    """The bytes that the code of call orders has allocated. Other threads of this process allocate memory, too."""
    gc.collect()  # places refer to each other
    of_module = tracemalloc.Filter(True, sequence_names.__file__)
    return sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces([of_module]).traces)


def test_a_program_without_loops_keeps_a_bounded_number_of_names():
    made = {*names(range(4 * MAX_NAMES))}
    assert len(made) == 4 * MAX_NAMES  # every name is new
    order, used = CallOrder("g"), []
    tracemalloc.start()
    try:
        for call in range(4 * MAX_NAMES):
            order.name(call)
            if call % MAX_NAMES == MAX_NAMES // 2:  # in the middle of an epoch
                used.append(memory_of_names())
    finally:
        tracemalloc.stop()
    assert len(used) == 4 and max(used) < 1.5 * used[0], used
