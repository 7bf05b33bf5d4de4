"""Properties of the control plane under random programs, schedules and faults, for each agreement strategy."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horocache import _testing

from .jobs import STRATEGIES, Scenario, clean_jobs, submit, wild_jobs

pytestmark = pytest.mark.parametrize("strategy", STRATEGIES)


def run(scenario: Scenario, strategy: str) -> dict[str, Any]:
    result = _testing.simulate({**scenario, "strategy": strategy})
    assert result["violation"] == ""
    return result


@settings(max_examples=150)
@given(job=st.integers(2, 6).flatmap(clean_jobs))
def test_requests_that_all_members_submit_complete(strategy: str, job: Scenario) -> None:
    assert set(run(job, strategy)["ends"]) <= {"Ok"}


@settings(max_examples=200)
@given(job=st.integers(2, 6).flatmap(wild_jobs))
def test_every_request_ends_exactly_once_under_random_faults(strategy: str, job: Scenario) -> None:
    run(job, strategy)


@settings(max_examples=12)
@given(job=st.sampled_from([16, 33, 64]).flatmap(wild_jobs))
def test_the_properties_hold_for_many_ranks(strategy: str, job: Scenario) -> None:
    run(job, strategy)


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32), orders=st.permutations([0, 1, 2]), delay_words=st.booleans())
def test_crossed_process_sets_never_wait_in_a_circle(
    strategy: str, seed: int, orders: list[int], delay_words: bool
) -> None:
    sets = [[0, 1], [1, 2], [0, 2]]
    programs = []
    for rank in range(3):
        order = [number for number in orders[rank:] + orders[:rank] if rank in sets[number]]
        programs.append([*(submit("x", in_set=number) for number in order), ("wait_all",)] * 4)
    scenario = {"ranks": 3, "sets": sets, "programs": programs, "seed": seed, "delay_words": delay_words}
    assert run(scenario, strategy)["ends"] == {"Ok": 24}


def test_a_full_cache_evicts_the_same_entries_on_every_rank(strategy: str) -> None:
    names = [f"tensor.{i}" for i in range(9)]
    program = [part for _ in range(4) for part in (*map(submit, names), ("wait_all",))]
    scenario = {
        "ranks": 4,
        "sets": [[0, 1, 2, 3]],
        "programs": [program] * 4,
        "cache_capacity": 8,
        "cache_capacity_fixed": True,
    }
    result = run(scenario, strategy)
    assert result["ends"] == {"Ok": 4 * 4 * 9}
    assert result["evictions"] > 0


@pytest.mark.parametrize("tick", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 7, 33])
def test_settings_change_on_every_rank(strategy: str, ranks: int, tick: bool) -> None:
    step = [*(submit(f"tensor.{i}") for i in range(5)), ("wait_all",)]
    others = step * 8
    changes = ["cache=0", "table=*=other", "cache=1\nfusion_threshold=0", "note=a", "table=\ncycle_time=0"]
    first = [part for text in changes for part in (("configure", 0, text), *step)] + step * 3
    scenario = {
        "ranks": ranks,
        "sets": [list(range(ranks))],
        "programs": [first] + [others] * (ranks - 1),
        "ranks_per_host": 4,
        "tick": tick,
    }
    result = run(scenario, strategy)
    assert result["ends"] == {"Ok": ranks * 8 * 5}
    assert result["changes"] == ranks * len(changes)


def test_a_scenario_with_wrong_settings_is_refused(strategy: str) -> None:
    job = {"ranks": 2, "sets": [[0, 1]], "strategy": strategy}
    with pytest.raises(ValueError, match="rank 1 is not the first of process set 0"):
        _testing.simulate({**job, "programs": [[], [("configure", 0, "cache=0")]]})
    with pytest.raises(ValueError, match="it is 0 or 1"):
        _testing.simulate({**job, "programs": [[("configure", 0, "cache=3")]]})


@pytest.mark.large
@pytest.mark.timeout(1200)
def test_the_properties_hold_for_1024_ranks(strategy: str) -> None:
    names = [f"tensor.{i}" for i in range(8)]
    ranks = 1024
    forward = [part for _ in range(3) for part in (*map(submit, names), ("wait_all",))]
    backward = [part for _ in range(3) for part in (*map(submit, reversed(names)), ("wait_all",))]
    scenario = {
        "ranks": ranks,
        "sets": [list(range(ranks)), list(range(0, ranks, 3))],
        "programs": [(forward, backward)[rank % 2] for rank in range(ranks)],
        "ranks_per_host": 8,
        "max_steps": 50_000_000,
    }
    changes = ("cache=0", "table=*=other\ncache=1", "fusion_threshold=0")
    step = [*map(submit, names), ("wait_all",)]
    scenario["programs"][0] = [part for text in changes for part in (("configure", 0, text), *step)]
    result = run(scenario, strategy)
    assert result["changes"] == ranks * 3
    assert result["ends"] == {"Ok": ranks * 3 * len(names)}
