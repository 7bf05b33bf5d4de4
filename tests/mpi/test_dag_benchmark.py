"""Collectives in the order of readiness: what MPI makes of them, and what a store does."""

from __future__ import annotations

import json

import pytest
from mpi_jobs import tried_with

from benchmarks import dag
from benchmarks.cases import dag_control

pytest.importorskip("torch")
pytest.importorskip("matplotlib")


@tried_with("openmpi")
def test_mpi_mixes_tensors_or_waits_for_ever_and_a_store_does_neither(tmp_path):
    assert dag.main(["--quick", "--parts", "control", "--results", str(tmp_path)]) == 0
    [path] = tmp_path.glob("dag-*-control.jsonl")
    found = {(line["case"], line["impl"]): line["value"] for line in map(json.loads, path.read_text().splitlines())}
    assert found[dag_control.MIXED, dag_control.PLAIN] == 2 * dag_control.COUNT  # all elements, without an error
    assert found[dag_control.BLOCKED, dag_control.PLAIN] == 1
    for store in ("negotiated", "concom"):
        assert found[dag_control.MIXED, f"horocache, {store}"] == 0
        assert found[dag_control.BLOCKED, f"horocache, {store}"] == 0
