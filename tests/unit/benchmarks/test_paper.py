"""The paper's grid: its jobs, its ratios and its tables."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from benchmarks import paper, paper_report
from benchmarks.backward import ALONE
from benchmarks.cases.grid import LEFT_OUT, Cell, Tally, groups_label
from benchmarks.figures import Figure, Series, slowest
from benchmarks.job import JobError, Launchers
from benchmarks.network import NoNamespacesError

HERE = Launchers("/usr/bin/mpiexec", "")
DETAIL: dict[str, Any] = {"framework": "torch", "plane": "shm", "model": "ResNet-50", "compute_ms": 60.0}


def cell(cache: str, mode: str, groups: int, seconds: list[float], **counts: float) -> Series:
    made = Cell(cache, mode, groups, seconds)
    made.counts.update({name: int(count * len(seconds)) for name, count in counts.items()})
    return made.series(DETAIL)


def figures_of(*cells: Series) -> dict[str, Figure]:
    return {f"{f.case}, {f.impl}": f for f in paper_report.to_figures(2, cells)}


# ---- jobs that are started


def test_the_grid_has_the_papers_axes() -> None:
    options = paper.parse([])
    jobs = [paper.job_of(f, plane, options) for plane, f in itertools.product(options.planes, options.frameworks)]
    assert {(job.parameters["framework"], job.parameters["plane"]) for job in jobs} == set(
        itertools.product(("torch", "numpy"), ("shm", "mpi", "slow link"))
    )
    assert jobs[0].parameters["groups"] == [0, 1, 2, 5, 10, 20]
    assert sum(job.parameters["budget_s"] for job in jobs) == pytest.approx(options.budget_s)
    assert options.budget_s < 15 * 60


def test_zero_groups_are_always_measured() -> None:
    assert paper.parse(["--groups", "5", "2"]).groups == [0, 2, 5]


def test_a_plane_selects_the_backend_of_all_operations() -> None:
    options = paper.parse(["--group-by", "count"])
    knobs = {plane.name: paper.job_of("torch", plane, options).parameters["knobs"] for plane in options.planes}
    assert knobs["shm"] == {"group_by": "count", "select": "allreduce=shm"}
    assert knobs["mpi"] == {"group_by": "count", "select": "allreduce=mpi"}


def test_shared_memory_needs_no_mpi() -> None:
    options = paper.parse([])
    by_name = {plane.name: paper.job_of("numpy", plane, options) for plane in options.planes}
    assert by_name["shm"].own_launcher
    assert by_name["slow link"].needs_mpi and by_name["slow link"].link is not None


@pytest.mark.parametrize("arguments", [["--ranks", "1"], ["--groups", "-1"], ["--steps", "0"], ["--planes", "nccl"]])
def test_invalid_arguments_are_a_usage_error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        paper.main(arguments)
    assert caught.value.code == 2
    assert arguments[0] in capsys.readouterr().err


# ---- jobs that cannot run here


def run_with(monkeypatch: pytest.MonkeyPatch, answer: Any, *arguments: str) -> paper.Outcome:
    def run_ranks(*_: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(paper, "run_ranks", run_ranks)
    return paper.run(paper.parse(["--frameworks", "numpy", *arguments]), HERE)


def test_a_plane_without_its_mpi_is_left_out_with_the_reason() -> None:
    options = paper.parse(["--planes", "mpi"])
    outcome = paper.run(options, Launchers(None, "there is no mpiexec"))
    assert outcome.left_out == {"mpi": "there is no mpiexec"}
    assert "- mpi: left out: there is no mpiexec" in paper.heading(about(), options, outcome.left_out)


def test_two_hosts_take_an_even_number_of_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = run_with(monkeypatch, [], "--planes", "slow link", "--ranks", "3")
    assert outcome.left_out == {"slow link": "two hosts cannot share 3 ranks equally"}


def test_a_backend_that_cannot_reduce_is_left_out_with_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = [Series("numpy, mpi", LEFT_OUT, "", [0.0], detail={"why": "no such backend"})]
    outcome = run_with(monkeypatch, [answer, answer], "--planes", "mpi")
    assert (outcome.left_out, outcome.cells) == ({"mpi": "no such backend"}, [])


def test_missing_namespaces_leave_a_plane_out_but_a_crash_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    error = JobError("need root")
    error.__cause__ = NoNamespacesError("need root")
    assert run_with(monkeypatch, error, "--planes", "slow link").left_out == {"slow link": "need root"}
    outcome = run_with(monkeypatch, JobError("exit code 1"), "--planes", "shm")
    assert (outcome.left_out, outcome.failures) == ({}, ["numpy, shm: exit code 1"])


def about() -> dict[str, Any]:
    return {"versions": {}, "time": "now", "command": "x", "cores": 2, "cpu": "c", "kernel": "k", "machine": "m"}


# ---- counters of the ranks


def test_late_counters_belong_to_the_previous_step() -> None:
    published = iter(
        [
            {"rounds": 5, "sleeps": 1},
            {"rounds": 7, "fused_size_log2.9": 1},
            {"rounds": 8, "fused_size_log2.9": 4},
        ]
    )
    tally = Tally(lambda: next(published))
    tally.begin("a")
    tally.begin("b")
    tally.end()
    assert tally.steps == {
        "a": [{"rounds": 2, "fused_size_log2.9": 1}],
        "b": [{"rounds": 1, "fused_size_log2.9": 3}],
    }


def test_a_cell_has_counters_per_step_and_the_time_of_the_slowest_rank() -> None:
    ranks = [[cell("on", "tick", 5, seconds, rounds=3)] for seconds in ([1.0, 4.0], [2.0, 3.0])]
    [merged] = slowest("grid", ranks)
    assert (merged.values, merged.counters, merged.impl) == ([2.0, 4.0], {"rounds": 3.0}, "5 groups")


def test_labels_of_groups() -> None:
    assert [groups_label(n) for n in (ALONE, 0, 1, 5)] == ["no communication", "0 groups", "1 group", "5 groups"]


# ---- comparisons and tables


def test_a_cell_is_compared_pair_by_pair_with_cells_that_differ_in_one_axis() -> None:
    figures = figures_of(
        cell("on", "event", ALONE, [1.0, 4.0]),
        cell("on", "event", 0, [2.0, 8.0]),
        cell("on", "event", 5, [4.0, 16.0]),
        cell("off", "event", 5, [8.0, 32.0]),
        cell("on", "tick", 5, [2.0, 8.0]),
    )
    found = figures["torch, shm, cache on, event, 5 groups"]
    assert found.ratio == {"no communication": 0.25, "0 groups": 0.5, "cache off": 2.0, "tick": 0.5}
    assert found.detail["ratio_quartiles"]["0 groups"] == [0.5, 0.5]
    assert figures["torch, shm, cache on, event, no communication"].ratio == {}
    assert set(figures["torch, shm, cache off, event, 5 groups"].ratio) == set()


@pytest.mark.parametrize(
    ("grouped", "word"), [([1.1, 1.2, 1.3], "loses"), ([0.9, 0.8, 0.7], "gains"), ([0.5, 1.0, 2.0], "ties")]
)
def test_grouping_loses_or_gains_where_the_quartiles_agree(grouped: list[float], word: str) -> None:
    figures = figures_of(cell("on", "event", 0, [1.0] * 3), cell("on", "event", 5, grouped))
    assert paper_report.verdict(figures["torch, shm, cache on, event, 5 groups"]) == word


def test_the_report_lists_the_cells_where_grouping_loses_worst_first() -> None:
    figures = figures_of(
        cell("on", "event", 0, [0.1] * 3, **{"fused_size_log2.9": 18, "fused_size_log2.23": 12}),
        cell("on", "event", 1, [0.2] * 3, **{"fused_size_log2.27": 1}),
        cell("on", "event", 5, [0.125] * 3, **{"fused_size_log2.24": 5}),
        cell("on", "event", 20, [0.05] * 3, **{"fused_size_log2.22": 20}),
    )
    table = paper_report.tables(list(figures.values()))[0]
    assert [row[:2] + row[3:] for row in table.rows] == [
        ["torch, shm, cache on, event, 1 group", "50 %", "100", "200", "30.0", "1.0"],
        ["torch, shm, cache on, event, 5 groups", "20 %", "100", "125", "30.0", "5.0"],
    ]
    assert "Of 3 cells with groups, 2 lose, 0 tie and 1 gain" in table.note


def test_rows_of_all_tables_are_complete_even_if_cells_are_missing() -> None:
    cells = [
        cell(cache, mode, groups, [1.0, 2.0], **{"fused_size_log2.20": 2})
        for cache, mode, groups in itertools.product(("on", "off"), ("event", "tick"), (ALONE, 0, 1, 5))
        if (cache, mode, groups) != ("off", "tick", 1)
    ]
    tables = paper_report.tables(paper_report.to_figures(2, cells))
    assert [table.title.split(":")[0] for table in tables] == [
        "Where grouping loses", "Grouping", "Caching", "Events", "Fused buffers"
    ]  # fmt: skip
    assert all(len(row) == len(table.columns) for table in tables for row in table.rows)
    assert len(tables[-1].rows) == 11


def test_without_measurements_the_report_has_no_tables() -> None:
    assert paper_report.tables([]) == []


def test_the_histogram_puts_each_power_of_two_into_one_column() -> None:
    powers = {"fused_size_log2.3": 1.0, "fused_size_log2.12": 2.0, "fused_size_log2.13": 4.0, "fused_size_log2.27": 8.0}
    assert paper_report.histogram({**powers, "rounds": 99.0}) == [3.0, 4.0, 0.0, 0.0, 8.0]


def test_a_run_writes_its_report_and_a_line_per_cell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cells = [cell("on", "event", groups, [1.0, 1.0]) for groups in (ALONE, 0, 5)]
    monkeypatch.setattr(paper, "find_launchers", lambda: HERE)
    monkeypatch.setattr(paper, "run_ranks", lambda *_: [cells, cells])
    assert paper.main(["--planes", "shm", "--frameworks", "torch", "--results", str(tmp_path)]) == 0
    [report], [lines] = tmp_path.glob("paper-*.md"), tmp_path.glob("paper-*.jsonl")
    assert "# Caching and grouping" in report.read_text()
    assert len(lines.read_text().splitlines()) == 3
