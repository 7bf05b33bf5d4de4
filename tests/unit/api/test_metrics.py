"""hc.metrics() as a value: absent counters, wrong names, differences."""

import re
from pathlib import Path

import pytest

from horocache.core.metrics import Metrics
from horocache.errors import InvalidArgumentError


def test_an_absent_counter_with_an_index_is_zero():
    metrics = Metrics({"rounds": 3, "op_count.allreduce": 2})
    assert metrics["op_count.allreduce"] == 2
    assert metrics["op_count.allgather"] == metrics["op_ns.barrier"] == metrics["wait_ns.7"] == 0
    assert "wait_ns.7" not in metrics


def test_every_operation_of_the_core_has_counters():
    text = (Path(__file__).parents[3] / "cpp_core/wire/message.h").read_text(encoding="utf-8")
    names = re.findall(r'\{\.name = "(\w+)"', text)
    assert len(names) >= 13
    assert [Metrics()[f"op_count.{name}"] for name in names] == [0] * len(names)


@pytest.mark.parametrize(
    "name", ["round", "rounds.1", "op_counts.allreduce", "op_count.allreduec", "op_ns.3", "wait_ns.x", "wait_ns."]
)
def test_a_name_that_is_not_a_counter_raises(name):
    with pytest.raises(KeyError, match="not a counter"):
        Metrics({"rounds": 3})[name]


def test_a_name_with_a_typing_error_gets_a_suggestion():
    with pytest.raises(KeyError, match="did you mean 'rounds'"):
        Metrics({"rounds": 3})["round"]
    with pytest.raises(KeyError, match=r"did you mean 'op_count\.allreduce'"):
        Metrics()["op_count.allreduec"]


def test_since_returns_what_was_added():
    earlier = Metrics({"rounds": 3, "steps": 1})
    later = Metrics({"rounds": 10, "steps": 1, "wait_ns.2": 5})
    grown = later.since(earlier)
    assert grown == {"rounds": 7, "steps": 0, "wait_ns.2": 5}
    assert grown["wait_ns.3"] == 0


@pytest.mark.parametrize("later", [{"rounds": 2}, {"rounds": 3}])
def test_since_refuses_metrics_that_are_not_earlier(later):
    with pytest.raises(InvalidArgumentError, match=r"is \d now and was \d before"):
        Metrics(later).since({"rounds": 3, "wait_ns.1": 4})
