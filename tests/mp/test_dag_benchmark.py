"""The benchmark of dependency graphs at a small size, on one host without MPI: every part has all its rows."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from benchmarks import dag
from benchmarks.cases import dag_network as ways
from benchmarks.cases.dag_store import DAEMON, OURS
from benchmarks.dag_model import DESIGNS
from benchmarks.job import Launchers

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

TINY = replace(
    dag.QUICK,
    rows=1,
    layers=2,
    steps=2,
    row_s=0.0,
    scaling=(3,),
    networks=("Inception-BN",),
    width=1 / 16,
    batch=2,
    network_s=0.0,
    keys=(1, 3),
    store_repetitions=3,
    store_s=0.0,
    operations=1000,
)


@pytest.fixture
def lines(tmp_path, monkeypatch):
    """Runs a part; returns its lines of JSONL."""
    monkeypatch.setattr(dag, "QUICK", TINY)
    monkeypatch.setattr(dag, "find_launchers", lambda: Launchers(None, "this test runs without MPI"))

    def run(part: str) -> list[dict[str, Any]]:
        code = dag.main(["--quick", "--results", str(tmp_path), "--parts", part])
        [report] = tmp_path.glob("dag-*.md")
        assert code == 0, report.read_text()
        [path] = tmp_path.glob(f"dag-*-{part}.jsonl")
        return [json.loads(line) for line in path.read_text().splitlines()]

    return run


def test_k10_every_design_has_its_duration_and_that_of_the_model(lines):
    found = lines("model")
    assert [line["impl"] for line in found] == [design.name for design in DESIGNS]
    # Sleeping takes at least its time, so no step is shorter than what one device computes, but for its first part.
    assert all(line["detail"]["expected_s"] > 0 for line in found)


def test_designs_are_measured_with_more_ranks(lines):
    found = lines("scaling")
    assert {(line["impl"], line["ranks"]) for line in found} == {(design.name, 3) for design in DESIGNS}


def test_all_ways_to_train_a_network_give_the_same_parameters(lines):
    found = lines("network")  # a job whose parameters differ fails
    always = {ways.SYNCHRONIZED, ways.GROUPED, ways.LAYERWISE, ways.FRONT_FIRST}
    stores = {ways.STORE + type_ for type_ in ("funnel", "depcha", "negotiated")}
    by_wire = {wire: {line["impl"] for line in found if line["detail"]["wire"] == wire} for wire in (0.0, 1.0)}
    assert by_wire == {0.0: always | stores | {f"{ways.STORE}dist_sync"}, 1.0: always | stores}


def test_a_store_is_compared_with_the_daemon(lines):
    assert {(line["impl"], line["detail"]["keys"]) for line in lines("store")} == {
        (impl, keys) for impl in (OURS, DAEMON) for keys in (1, 3)
    }


@pytest.mark.skipif(not dag.ENGINE.exists(), reason="`make build` has not built it")
def test_empty_operations_are_timed_beside_the_model_of_the_design(lines):
    found = {line["impl"]: line for line in lines("engine")}
    assert set(found) == {"within the push", "by a thread", "naive", "MXNet's design, by the model"}
    assert found["within the push"]["detail"]["allocations"] == 0
