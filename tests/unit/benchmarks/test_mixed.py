"""The benchmark of mixed backends without ranks: workloads, choices by a table, figures, tables and plots."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks import goals, mixed, mixed_plots, mixed_report, mixing
from benchmarks.cases import mixed_auto, mixed_autotune, mixed_overhead
from benchmarks.cases import mixed_workloads as ways
from benchmarks.figures import Figure, Series
from benchmarks.job import JobError, Launchers
from benchmarks.network import NoNamespacesError
from benchmarks.workloads import ALLREDUCE, ALLTOALL, ALLTOALLV, WORKLOADS, Operation
from horocache.tuning.table import Candidate, Table, decode, encode

NO_MPI = Launchers(None, "there is no mpiexec")

# ---- workloads


@pytest.mark.parametrize("ranks", [2, 4])
def test_dlrm_has_the_sizes_of_its_public_configuration(ranks: int) -> None:
    step = WORKLOADS["DLRM"].step(ranks)
    assert [operation.bytes for operation in step if operation.op == ALLTOALL] == [2048 * 8 * 64 * 4 // ranks] * 2
    top = (100 * 1024 + 1024) + 2 * (1024 * 1024 + 1024) + (1024 + 1)
    bottom = (512 * 512 + 512) + (512 * 64 + 64)
    assert sum(operation.count for operation in step if operation.op == ALLREDUCE) == top + bottom


def test_dense_gradients_are_those_of_resnet_50() -> None:
    step = WORKLOADS["dense gradients"].step(2)
    assert (len(step), sum(operation.count for operation in step)) == (161, 25_557_032)


@pytest.mark.parametrize("shrink", [1, 32])
def test_tokens_of_experts_go_there_and_come_back(shrink: int) -> None:
    step = WORKLOADS["mixture of experts"].step(4, shrink)
    routed = [operation for operation in step if operation.op == ALLTOALLV]
    assert len(routed) == 4 * 4
    for there, back in zip(routed[0:8:2], routed[1:8:2], strict=True):
        assert there.parts(4) == [list(row) for row in zip(*back.parts(4), strict=True)]
    assert len({sum(row) for row in zip(*routed[0].counts, strict=True)}) > 1  # experts differ in popularity
    assert all(operation.tuned_as == ALLTOALL for operation in routed)


def test_a_shrunk_workload_has_the_same_operations() -> None:
    for workload in WORKLOADS.values():
        whole, small = workload.step(4), workload.step(4, 32)
        assert [operation.op for operation in whole] == [operation.op for operation in small]
        assert sum(operation.count for operation in small) < sum(operation.count for operation in whole) / 16
        assert all(operation.count % 4 == 0 for operation in small if operation.op == ALLTOALL)


# ---- choices by a table


def tuned(times: dict[str, dict[int, dict[str, float]]], world: tuple[int, int] = (2, 1)) -> list[Series]:
    return [
        Series(
            f"{op}, {size}",
            name,
            "us",
            [us * 1e-6],
            detail={
                "op": op,
                "bytes": size,
                "ranks": world[0],
                "hosts": world[1],
                "candidate": msgspec.to_builtins(Candidate(name, us, 1.0, 5)),
            },
        )
        for op, sizes in times.items()
        for size, candidates in sizes.items()
        for name, us in candidates.items()
    ]


TIMES: dict[str, dict[int, dict[str, float]]] = {
    "allreduce": {
        64: {"shm/auto": 2.0, "shm/oneshot": 1.0, "mpi/auto": 5.0, "gloo": 9.0},
        1 << 20: {"shm/auto": 40.0, "shm/oneshot": 99.0, "mpi/auto": 30.0, "gloo": 90.0},
    },
    "alltoall": {
        64: {"shm/auto": 1.0, "mpi/auto": 4.0, "gloo": 9.0},
        1 << 20: {"shm/auto": 8.0, "mpi/auto": 4.0, "gloo": 9.0},
    },
    "allgather": {64: {"shm/auto": 1.0}, 1 << 20: {"shm/auto": 1.0}},
}


def table() -> Table:
    return mixing.table_of(tuned(TIMES), ["mixed.py"], 4)


def test_the_table_of_a_run_can_be_read_by_a_job() -> None:
    read = decode(encode(table()))
    assert [measurements.op for measurements in read.operations] == ["allreduce", "allgather", "alltoall"]
    lines = mixing.lines_of(read, {"command": "x"})
    assert len(lines) == sum(len(names) for sizes in TIMES.values() for names in sizes.values())
    assert all(line["command"] == "x" and line["median_us"] > 0 for line in lines)


def test_a_choice_by_op_adds_up_the_step_and_one_by_size_looks_at_each_operation() -> None:
    step = [Operation(ALLREDUCE, 4), Operation(ALLREDUCE, 1 << 18), Operation(ALLTOALLV, 1 << 18, counts=((0,),))]
    assert mixing.choices(table(), 2, 1, step) == {
        ways.COARSE: ["mpi", "mpi", "mpi"],
        ways.FINE: ["shm/oneshot", "mpi/auto", "mpi/auto"],
    }
    small = [Operation(ALLREDUCE, 4)] * 5 + [Operation(ALLREDUCE, 1 << 18)]
    assert mixing.choices(table(), 2, 1, small)[ways.COARSE] == ["shm"] * 6


def test_wrong_candidates_are_not_chosen() -> None:
    series = tuned({"allreduce": {64: {"shm/auto": 2.0, "mpi/auto": 1.0}}})
    series[1].detail["candidate"] = msgspec.to_builtins(Candidate("mpi/auto", wrong=3))
    step = [Operation(ALLREDUCE, 4)]
    chosen = mixing.choices(mixing.table_of(series, [], 4), 2, 1, step)
    assert chosen == {ways.COARSE: ["shm"], ways.FINE: ["shm/auto"]}


def test_a_layout_that_was_not_measured_is_an_error() -> None:
    with pytest.raises(ValueError, match="no times of allreduce on 4 ranks on 2 hosts"):
        mixing.choices(table(), 4, 2, [Operation(ALLREDUCE, 4)])


# ---- figures and tables


def series(case: str, impl: str, seconds: list[float], **detail: Any) -> Series:
    return Series(case, impl, "ms", seconds, detail=detail)


def workload_figures() -> list[Figure]:
    case = "DLRM, 2 x 2 hosts"
    speeds = {
        "horocache, mpi alone": 4.0,
        "horocache, gloo alone": 8.0,
        ways.COARSE: 4.0,
        ways.FINE: 2.0,
        ways.AUTO: 3.2,
        ways.GLOO: 16.0,
        ways.TICK: 6.4,
    }
    rows = [series(case, name, [ms, ms], workload="DLRM") for name, ms in speeds.items()]
    return mixed_report.compared("mixed_workloads", 4, rows)


def test_ratios_are_of_the_pairs_of_one_repetition() -> None:
    rows = [series("c", "a", [1.0, 10.0, 100.0]), series("c", "b", [2.0, 20.0, 100.0]), series("d", "a", [1.0])]
    figures = mixed_report.compared("x", 2, rows)
    assert [figure.ratio for figure in figures] == [{"b": 2.0}, {"a": 0.5}, {}]


def test_the_table_of_workloads_has_our_gains_and_the_papers() -> None:
    times, gains, others = mixed_report.tables({"workloads": workload_figures()}, None)
    [row] = gains.rows
    assert row == ["DLRM, 2 x 2 hosts", "horocache, mpi alone", "4,000", "+0 %", "+100 %", "+25 %", "+25 %", row[-1]]
    assert others.rows == [["DLRM, 2 x 2 hosts", "3,200", "+400 %", "", "", "+100 %"]]
    assert len(times.rows) == 7


def test_the_fastest_backend_is_shown_beside_what_auto_takes() -> None:
    [winners] = mixed_report.tables({}, table())
    assert winners.columns == ["operation", "64", "1M"]
    assert winners.rows[0] == ["allreduce", "shm/oneshot", "mpi/auto"]
    assert winners.rows[2] == ["alltoall", "shm/auto", "mpi/auto (auto: shm/auto)"]


def test_overhead_is_shown_in_microseconds_and_percent() -> None:
    rows = [
        Series("allreduce, mpi, 8 B", name, "us", [us * 1e-6] * 3, detail={"bytes": 8})
        for name, us in ((mixed_overhead.OURS, 11.0), (mixed_overhead.DAEMON, 10.0), ("mpi4py", 5.0))
    ]
    [shown] = mixed_report.tables({"overhead": mixed_report.compared("mixed_overhead", 2, rows)}, None)
    [row] = shown.rows
    assert row[5:7] == ["1", "+10.0"] and row[7] == "mpi4py" and row[10] == "+120.0"


def test_goals_are_judged() -> None:
    overhead = [
        Series("allreduce, mpi, 8 B", name, "us", [us * 1e-6], detail={"bytes": 8})
        for name, us in ((mixed_overhead.OURS, 31.0), (mixed_overhead.DAEMON, 30.0), ("mpi4py", 25.0))
    ]
    auto = [
        Series("allreduce, 64 B, one host", name, "us", [us * 1e-6])
        for name, us in ((mixed_auto.AUTO, 12.0), ("shm/auto", 10.0))
    ]
    figures = [
        *mixed_report.compared("mixed_overhead", 2, overhead),
        *mixed_report.compared("mixed_auto", 2, auto),
        *workload_figures(),
    ]
    verdicts = [row[-1] for row in goals.judge(figures, goals.MIXED).rows]
    assert verdicts == ["met", "MISSED", "MISSED", "met"]


# ---- the command


def test_layouts_without_mpi_are_left_out_with_the_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(mixed, "run_ranks", lambda *_: [tuned(TIMES)] * 2)
    outcome = mixed.Runner(mixed.parse(["--parts", "backends"]), NO_MPI, tmp_path / "mixed").run()
    assert outcome.left_out == {"2 x 2 hosts": "there is no mpiexec"}
    assert outcome.table is not None and not outcome.failures


def test_missing_namespaces_leave_a_layout_out_and_a_crash_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    error = JobError("need root")
    error.__cause__ = NoNamespacesError("need root")
    for raised, left_out, failures in ((error, 1, 0), (JobError("exit code 1"), 0, 1)):

        def run_ranks(*_: Any, raised: JobError = raised) -> Any:
            raise raised

        monkeypatch.setattr(mixed, "run_ranks", run_ranks)
        options = mixed.parse(["--parts", "backends", "--layouts", "2 x 2 hosts"])
        outcome = mixed.Runner(options, Launchers("/usr/bin/mpiexec", ""), tmp_path / "mixed").run()
        assert (len(outcome.left_out), len(outcome.failures)) == (left_out, failures)


def test_a_run_writes_report_lines_and_plots_of_every_part(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")

    def run_ranks(job: Any, *_: Any) -> Any:
        if job.bench == "mixed_backends":
            return [tuned(TIMES)] * job.ranks
        if job.bench == "mixed_workloads":
            names = ["horocache, shm alone", *job.parameters["choices"], ways.AUTO, ways.TICK]
            workload = job.parameters["workload"]
            rows = [series(f"{workload}, one host", name, [1.0, 2.0], workload=workload) for name in names]
        elif job.bench == "mixed_auto":
            rows = [series("allreduce, 64 B, one host", name, [1.0]) for name in (mixed_auto.AUTO, "shm/auto")]
        elif job.bench == "mixed_autotune":
            detail = {"model": job.parameters["model"], "point": {}, "tuning_steps": 9, "tuning_s": 1.0, "said": []}
            names = [mixed_autotune.GRID, mixed_autotune.DEFAULT, mixed_autotune.BEST, mixed_autotune.TUNED]
            rows = [series(f"{detail['model']}, {name == names[0]}", name, [1.0, 2.0], **detail) for name in names]
        else:
            names = [mixed_overhead.OURS, mixed_overhead.DAEMON]
            rows = [series("allreduce, shm, 8 B", name, [1.0], bytes=8) for name in names]
        return [rows] * job.ranks

    monkeypatch.setattr(mixed, "run_ranks", run_ranks)
    monkeypatch.setattr(mixed, "find_launchers", lambda: NO_MPI)
    assert mixed.main(["--results", str(tmp_path)]) == 0
    [report] = tmp_path.glob("mixed-*.md")
    for title in ("Overhead of mcr_dl", "The fastest backend", "'auto' by the table", "Gain of the mix", "Autotune"):
        assert f"### {title}" in report.read_text()
    for part in mixed.PARTS:
        [lines], [plot] = tmp_path.glob(f"mixed-*-{part}.jsonl"), tmp_path.glob(f"mixed-*-{part}.png")
        assert all("command" in json.loads(line) for line in lines.read_text().splitlines())
        assert plot.read_bytes().startswith(b"\x89PNG")


def test_every_part_with_figures_has_a_plot() -> None:
    assert {*mixed_plots.PLOTS, "backends"} == set(mixed.PARTS)
