"""The benchmark of mixed backends on 2 x 2 hosts with a slow link: MPI and gloo, one by one, mixed, and alone."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from mpi_jobs import tried_with

from benchmarks import mixed
from benchmarks.cases import mixed_workloads as ways

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

TINY = replace(
    mixed.QUICK, sizes=(64, 1 << 14), backends_s=0.0, auto_sizes=(64,), auto_s=0.0, workload_s=0.0, shrink=64
)


@tried_with("openmpi")
def test_workloads_on_two_hosts_run_on_each_backend_and_mixed(tmp_path, monkeypatch):
    monkeypatch.setattr(mixed, "QUICK", TINY)
    layout = ["--layouts", "2 x 2 hosts", "--workloads", "mixture of experts"]
    code = mixed.main(["--quick", "--parts", "auto", "workloads", *layout, "--results", str(tmp_path)])
    [report] = tmp_path.glob("mixed-*.md")
    if "2 x 2 hosts: left out" in report.read_text():
        pytest.skip(report.read_text().partition("left out: ")[2].partition("\n")[0])
    assert code == 0, report.read_text()
    [lines] = tmp_path.glob("mixed-*-workloads.jsonl")
    figures = [json.loads(line) for line in lines.read_text().splitlines()]
    assert {figure["impl"] for figure in figures} == {
        *("horocache, mpi alone", "horocache, gloo alone", ways.COARSE, ways.FINE, ways.AUTO),
        *(ways.GLOO, ways.MPI, ways.MPI_ASYNC, ways.TICK),
    }
    assert all(figure["ranks"] == 4 for figure in figures)
