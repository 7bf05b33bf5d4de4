"""The repetitions of all ranks become figures."""

import json
from pathlib import Path

import pytest

from benchmarks.figures import Series, merge, paired_ratio, quartiles, write_jsonl


def test_each_repetition_takes_the_time_of_the_slowest_rank() -> None:
    [figure] = merge("b", 2, [[Series("c", "gloo", "us", [1e-6, 5e-6, 1e-6])], [Series("c", "gloo", "us", [2e-6] * 3)]])
    assert (figure.median, figure.best, figure.repetitions) == (2.0, 2.0, 3)
    assert figure.spread == (2.0, 3.5)


def test_bandwidth_is_bytes_over_the_time_of_the_slowest_rank() -> None:
    ranks = [[Series("c", "gloo", "GB/s", [0.5, 1.0], 2e9)], [Series("c", "gloo", "GB/s", [1.0, 0.5], 2e9)]]
    [figure] = merge("b", 2, ranks)
    assert figure.median == figure.best == 2.0


def test_ratios_are_speedups_computed_pair_by_pair() -> None:
    # The machine is five times slower in the second repetition; the ratio of each pair is 2.
    ours, peer = [1.0, 5.0, 1.0], [2.0, 10.0, 2.0]
    assert paired_ratio("us", ours, peer) == 2.0
    assert paired_ratio("GB/s", peer, ours) == 2.0
    figures = merge("b", 1, [[Series("c", "horocache", "s", ours), Series("c", "gloo", "s", peer)]])
    assert figures[0].ratio == {"gloo": 2.0}
    assert figures[1].ratio == {}


def test_ratios_compare_equal_cases_and_units_only() -> None:
    series = [
        Series("c", "horocache", "s", [1.0]),
        Series("d", "gloo", "s", [1.0]),
        Series("c", "mpi4py", "GB/s", [1.0]),
    ]
    assert merge("b", 1, [series])[0].ratio == {}


def test_a_counter_is_the_largest_over_the_ranks() -> None:
    ranks = [[Series("c", "horocache", "rounds", [1.0], counters={"n": n})] for n in (3.0, 7.0)]
    assert merge("b", 2, ranks)[0].counters == {"n": 7.0}


def test_ranks_with_different_measurements_are_an_error() -> None:
    with pytest.raises(ValueError, match="different things"):
        merge("b", 2, [[Series("c", "gloo", "s", [1.0])], [Series("c", "gloo", "s", [1.0, 2.0])]])


def test_processor_time_is_the_mean_of_the_ranks() -> None:
    ranks = [[Series("c", "gloo", "s", [1.0, 1.0], cpu_seconds=cpu)] for cpu in ([1e-6, 3e-6], [3e-6, 5e-6])]
    assert merge("b", 2, ranks)[0].cpu_us == 3.0


def test_quartiles_of_one_value_are_that_value() -> None:
    assert quartiles([3.0]) == (3.0, 3.0)


def test_every_json_line_is_complete(tmp_path: Path) -> None:
    figures = merge("b", 1, [[Series("c", "horocache", "s", [1.0]), Series("c", "gloo", "s", [2.0])]])
    write_jsonl(tmp_path / "r.jsonl", figures, {"command": "x", "versions": {}, "cores": 2, "kernel": "k"})
    lines = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    wanted = {"bench", "case", "impl", "ranks", "value", "unit", "median", "spread", "repetitions", "ratio"}
    wanted |= {"command", "versions", "cores", "kernel"}
    assert all(wanted <= set(line) for line in lines)
    assert [line["impl"] for line in lines] == ["horocache", "gloo"]
