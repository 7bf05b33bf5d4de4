"""Tables, goals, and the command line."""

import pytest

from benchmarks import goals, run
from benchmarks.cases import bandwidth, burst
from benchmarks.figures import Figure, Series, merge
from benchmarks.peers import buckets
from benchmarks.report import Table, number, plain
from horocache.core.metrics import Metrics


def figure(bench: str, case: str, value: float, **changes: object) -> Figure:
    fields = {
        "ratio": {},
        "ranks": 2,
        "unit": "us",
        "impl": "horocache",
        "counters": {},
        "detail": {},
        "cpu_us": None,
    } | changes
    return Figure(
        bench=bench, case=case, value=value, median=value, spread=(value, value), best=value, repetitions=1, **fields
    )  # type: ignore[arg-type]


def test_a_table_is_aligned_markdown() -> None:
    lines = str(Table("T", ["a", "bb"], [["xxx", "1"]], "note")).splitlines()
    assert lines == ["### T", "", "| a   | bb |", "| --- | -: |", "| xxx |  1 |", "", "note"]


def test_the_usual_table_has_one_ratio_column_per_peer() -> None:
    series = [Series("c", "horocache", "s", [1.0]), Series("c", "gloo", "s", [2.0]), Series("c", "mpi4py", "s", [0.5])]
    table = plain("T", merge("b", 2, [series, series]))
    assert table.columns[-2:] == ["x gloo", "x mpi4py"]
    assert [row[-2:] for row in table.rows] == [["2.00", "0.50"], ["", ""], ["", ""]]


def test_numbers_have_three_digits_and_no_exponent_where_they_are_large() -> None:
    assert [number(value) for value in (0.0, 1.2345, 99.96, 123456.0)] == ["0", "1.23", "100", "123,456"]


def test_the_bandwidth_table_has_both_places_in_one_row() -> None:
    series = [
        Series(f"1 MiB {place}", impl, "GB/s", [1e-3], 1 << 20, detail={"bytes": 1 << 20, "place": place, "wrong": 0})
        for place in (bandwidth.IN_PLACE, bandwidth.OUT_OF_PLACE)
        for impl in ("horocache", "gloo")
    ]
    [table] = bandwidth.tables(merge("bandwidth", 2, [series, series]))
    assert [row[:3] for row in table.rows] == [["1,048,576", "horocache", "262,144"], ["1,048,576", "gloo", "262,144"]]
    assert all(len(row) == len(table.columns) for row in table.rows)


def test_a_goal_is_met_or_missed_or_has_no_row() -> None:
    figures = [
        figure("burst", "161 x 1 KiB", 323.0, unit="us"),
        figure("burst", "161 x 1 KiB", 9.0, impl="gloo", unit="us"),
        figure("gradients", "ResNet-50, 161 tensors", 1.0, ratio={"gloo": 2.5}),
    ]
    rows = {row[0]: row[-1] for row in goals.judge(figures).rows}
    assert rows == {"161 x 1 KiB: us": "MISSED", "gradients: x gloo in 25-MiB buckets": "met"}


def test_a_goal_may_limit_the_difference_from_a_peer() -> None:
    figures = [figure("mpi", "4 B", 80.0, ratio={"mpi4py": 0.25}), figure("mpi", "4 B", 80.0, ratio={"mpi4py": 0.2})]
    rows = [row[-2:] for row in goals.judge(figures).rows if "4 B" in row[0]]
    assert rows == [["60", "met"], ["64", "MISSED"]]


def test_a_goal_against_flat_algorithms_takes_the_best_of_them() -> None:
    ratio = {"flat, native": 2.0, "flat, fold": 0.9, "mpi4py": 0.1}
    two_levels = figure("hosts", "1 MiB", 1.0, impl="horocache, two levels", ratio=ratio, detail={"bytes": 1 << 20})
    assert [row[-2:] for row in goals.judge([two_levels]).rows] == [["0.9", "MISSED"]]


def test_a_goal_from_16_mib_ignores_smaller_sizes() -> None:
    small = figure("bandwidth", "4 MiB in place", 1.0, ratio={"mpi4py": 0.1}, detail={"bytes": 4 << 20})
    large = figure("bandwidth", "16 MiB in place", 1.0, ratio={"mpi4py": 1.6}, detail={"bytes": 16 << 20})
    assert [row[1:] for row in goals.judge([small, large]).rows] == [["16 MiB in place", ">= 1", "1.6", "met"]]


def test_a_goal_shows_the_worst_of_many_sizes() -> None:
    figures = [
        figure("bandwidth", f"{n} B in place", 1.0, ratio={"gloo": n / 10}, detail={"bytes": n}) for n in (40, 4, 400)
    ]
    assert [row[1:] for row in goals.judge(figures).rows] == [["4 B in place", ">= 1", "0.4", "MISSED"]]


def test_the_goal_of_time_per_tensor_applies_with_the_cache_only() -> None:
    figures = [
        figure("burst", f"1,000 x 4 B, cache {cache}", 1.0, counters={"daemon_cpu_us": 500.0})
        for cache in ("on", "off")
    ]
    assert [row[1:4] for row in goals.judge(figures).rows] == [["1,000 x 4 B, cache on", "<= 1", "0.5"]]


def test_buckets_are_consecutive_and_at_least_as_large_as_asked() -> None:
    torch = pytest.importorskip("torch")
    tensors = [torch.zeros(n) for n in (1, 2, 3, 10, 1)]
    found = [[tensor.numel() for tensor in bucket] for bucket in buckets(tensors, 12)]
    assert found == [[1, 2], [3], [10], [1]]


def test_counters_per_step_are_differences() -> None:
    before, after = Metrics({"rounds": 5, "flushes": 3}), Metrics({"rounds": 25, "flushes": 3})
    grown = burst.counters_per_step(before, after, 10, ["rounds", "flushes"])
    assert grown == {"rounds": 2.0, "flushes": 0.0}


def test_an_unknown_case_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run.main(["--only", "latncy"])
    assert caught.value.code == 2
    assert "there is no 'latncy'; choose of startup, idle" in capsys.readouterr().err


def test_a_goal_for_the_best_setting_names_that_setting() -> None:
    figures = [
        figure("training", "MLP", 1.0, impl=impl, ratio={"gloo, DDP": ratio})
        for impl, ratio in (("horocache", 1.02), ("horocache, 5 groups", 1.3), ("horocache, 10 groups", 1.15))
    ]
    rows = [row[1:] for row in goals.judge(figures).rows]
    assert rows == [["MLP", ">= 1", "1.02", "met"], ["MLP, horocache, 5 groups", ">= 1.25", "1.3", "met"]]


def test_the_cost_of_the_timeline_is_compared_with_steps_without_a_timeline() -> None:
    figures = [
        figure("timeline", case, 1.0, impl="horocache, timeline on", ratio={"timeline off": ratio})
        for case, ratio in (("MLP", 0.99), ("CNN", 0.96))
    ]
    assert [row[-1] for row in goals.judge(figures).rows] == ["met", "MISSED"]
