"""The simulated backward pass: when gradients are ready, and how they are reduced."""

import pytest

from benchmarks.architectures import load
from benchmarks.backward import ALONE, NumpyPasses, Pass, passes, ready_fractions
from horocache.data_parallel.bucketing import split_by_bytes


def plan_of(*shapes: list[int], seconds: float = 0.0) -> Pass:
    return Pass([(f"t{i}", shape) for i, shape in enumerate(shapes)], seconds, rank=1, size=4)


def test_weights_of_equal_shape_take_equal_time_and_vectors_take_none() -> None:
    assert ready_fractions([[3], [2, 2], [5], [4, 4, 1, 1]]) == [0.0, 0.5, 0.5, 1.0]


def test_a_model_of_vectors_is_ready_at_the_end() -> None:
    assert ready_fractions([[3], [4]]) == [1.0, 1.0]


def test_the_gradients_of_a_model_are_ready_in_order_and_the_last_at_the_end() -> None:
    fractions = ready_fractions([shape for _, shape in load("ResNet-50")[::-1]])
    assert fractions == sorted(fractions)
    assert (fractions[0], fractions[-1]) == (0.0, 1.0)


def test_compute_sleeps_until_a_gradient_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = [10.0], []
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    monkeypatch.setattr("time.sleep", slept.append)
    plan = plan_of([2, 2], [2, 2], seconds=4.0)
    plan.begin()
    now[0] = 11.5
    plan.compute(0)
    plan.compute(1)
    now[0] = 14.5  # late
    plan.compute(1)
    assert slept == [0.5, 2.5]


def test_the_average_of_the_values_of_all_ranks_is_the_expected_value() -> None:
    for number in (0, 3, 97, 98):
        values = [Pass([], 0.0, rank, 4).value(number) for rank in range(4)]
        assert sum(values) / 4 == Pass([], 0.0, 0, 4).average(number)


def test_numpys_groups_are_runs_of_about_equal_bytes() -> None:
    ways = NumpyPasses(plan_of([8], [8], [16], [32]), split_by_bytes)
    assert ways.members(0) == [[0], [1], [2], [3]]
    assert ways.members(2) == [[0, 1, 2], [3]]
    assert ways.members(ALONE) == []


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_a_pass_without_reductions_leaves_the_values_of_each_rank(framework: str) -> None:
    pytest.importorskip(framework)
    way = passes(framework, plan_of([3, 2], [4], [2, 2]), split_by_bytes).way(ALONE)
    for _ in range(2):
        way.prepare()
        way.run()
        assert way.wrong() == 0


def test_torch_uses_the_written_memory_as_the_gradient_without_a_copy() -> None:
    pytest.importorskip("torch")
    ways = passes("torch", plan_of([3, 2], [4]), split_by_bytes)
    way = ways.way(ALONE)
    way.prepare()
    way.run()
    ways.gradients[0].fill_(-1.0)
    assert way.wrong() == 6


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_wrong_elements_are_counted(framework: str) -> None:
    pytest.importorskip(framework)
    ways = passes(framework, plan_of([3, 2], [4]), split_by_bytes)
    way = ways.way(ALONE)
    way.prepare()
    way.run()
    ways.gradients[1][2:] = 5.0
    assert way.wrong() == 2
