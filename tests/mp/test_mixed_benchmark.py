"""The benchmark of mixed backends at a small size, on one host without MPI: every part has all its rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import mixed
from benchmarks.cases import mixed_autotune, mixed_overhead
from benchmarks.cases import mixed_workloads as ways
from benchmarks.job import Launchers
from benchmarks.workloads import WORKLOADS

pytest.importorskip("torch")
pytest.importorskip("matplotlib")
pytest.importorskip("optuna")

TINY = replace(
    mixed.QUICK,
    overhead_sizes=(8,),
    block_s=0.0,
    overhead_s=0.0,
    sizes=(64, 1 << 16),
    backends_s=0.0,
    auto_sizes=(64,),
    auto_s=0.0,
    workload_s=0.0,
    shrink=64,
    models=(("EfficientNet-B0", 0.0),),
    grid={"num_groups": [5], "fusion_threshold": [0, 1 << 20]},
    samples=2,
    steps=2,
)


Lines = dict[str, list[dict[str, Any]]]


def run(results: Path, *parts: str, options: Sequence[str] = ()) -> Lines:
    """Run parts, each in jobs of its own that import torch; return the lines of JSONL of each part."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mixed, "QUICK", TINY)
        patch.setattr(mixed, "find_launchers", lambda: Launchers(None, "this test runs without MPI"))
        assert mixed.main(["--quick", "--results", str(results), "--parts", *parts, *options]) == 0

    def of_part(part: str) -> list[dict[str, Any]]:
        [path] = results.glob(f"mixed-*-{part}.jsonl")
        return [json.loads(line) for line in path.read_text().splitlines()]

    return {part: of_part(part) for part in parts}


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Lines, Path]:
    """The lines of the tuning table and of auto, and the table."""
    results = tmp_path_factory.mktemp("results")
    lines = run(results, "backends", "auto")
    [table] = results.glob("*-table.json")
    return lines, table


def test_m18_the_overhead_of_each_backend_is_compared_with_the_daemon_and_the_library(tmp_path):
    lines = run(tmp_path, "overhead")
    found = {(line["detail"]["op"], line["detail"]["backend"], line["impl"]) for line in lines["overhead"]}
    ours = {mixed_overhead.OURS, mixed_overhead.DAEMON}
    assert found == {
        (op, backend, impl)
        for op in ("allreduce", "alltoall")
        for backend, impls in (("shm", ours), ("gloo", ours | {"torch.distributed"}))
        for impl in impls
    }
    assert all(line["repetitions"] >= 30 and line["detail"]["wrong"] == 0 for line in lines["overhead"])


def test_the_table_has_times_of_gloo_beside_shm(tuned):
    lines, _ = tuned
    timed = {(line["op"], line["bytes"]) for line in lines["backends"] if line["candidate"] == "gloo"}
    assert timed == {(op, size) for op in ("allreduce", "alltoall", "allgather") for size in TINY.sizes}
    assert all(line["median_us"] for line in lines["backends"] if line["candidate"] == "shm/auto")


@pytest.mark.parametrize("workload", WORKLOADS)
def test_every_workload_runs_in_every_way(tmp_path, tuned, workload):
    _, table = tuned
    lines = run(tmp_path, "workloads", options=["--workloads", workload, "--table", str(table)])["workloads"]
    assert {line["detail"]["workload"] for line in lines} == {workload}
    single = {"horocache, shm alone", "horocache, gloo alone"}
    assert {line["impl"] for line in lines} == {*single, ways.COARSE, ways.FINE, ways.AUTO, ways.GLOO, ways.TICK}


def test_t8_auto_is_compared_with_every_fixed_backend(tuned):
    lines, _ = tuned
    auto = [line for line in lines["auto"] if line["impl"] == "horocache, auto"]
    assert len(auto) == 3
    assert all({"gloo", "shm/auto"} <= set(line["ratio"]) for line in auto)


def test_autotune_is_compared_with_the_best_point_of_the_grid(tmp_path):
    lines = run(tmp_path, "autotune")
    found = {line["impl"]: line for line in lines["autotune"]}
    assert set(found) == {
        mixed_autotune.GRID, mixed_autotune.DEFAULT, mixed_autotune.BEST, mixed_autotune.TUNED
    }  # fmt: skip
    tuned = found[mixed_autotune.TUNED]
    assert tuned["detail"]["tuning_steps"] > 0 and "tuning took" in tuned["detail"]["said"][0]
    assert mixed_autotune.BEST in tuned["ratio"]
