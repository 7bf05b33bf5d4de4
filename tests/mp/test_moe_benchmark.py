"""The benchmark of mixtures of experts at a small size, on one host: every part has all its rows."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

from benchmarks import moe
from benchmarks.cases.moe_layer import CONTROL, FORWARD, STEP
from benchmarks.cases.moe_straggler import ONE_SIDED, early
from benchmarks.job import Launchers
from benchmarks.moe_language import Size
from benchmarks.moe_setup import GLOO, SKEWED, Shape
from horocache.moe.exchanges import exchange_names

TINY = replace(
    moe.QUICK,
    shapes=(Shape(8, 8, 8),),
    routings=(SKEWED,),
    ranks=(2,),
    repetitions=3,
    layer_s=0.0,
    overlap=Shape(8, 8, 8),
    overlap_repetitions=1,
    stagger_s=1e-3,
    straggler=Shape(8, 8, 8),
    straggler_ranks=(3,),
    calls=3,
    dispatch=(4096, 65536),
    dispatch_s=0.0,
    training=Size(context=8, hidden=8, heads=2, steps=4, batch=2),
    training_ranks=3,
    training_exchanges=tuple(exchange_names()),
    fractions=(0.2,),
)
EXCHANGES = {f"horocache, {name}" for name in exchange_names()}


@pytest.fixture
def lines(tmp_path, monkeypatch):
    """Runs a part; returns its lines of JSONL."""
    monkeypatch.setattr(moe, "QUICK", TINY)
    monkeypatch.setattr(moe, "find_launchers", lambda: Launchers(None, "this test runs without MPI"))

    def run(part: str) -> list[dict[str, Any]]:
        code = moe.main(["--quick", "--results", str(tmp_path), "--parts", part])
        [report] = tmp_path.glob("moe-*.md")
        assert code == 0, report.read_text()
        [path] = tmp_path.glob(f"moe-*-{part}.jsonl")
        return [json.loads(line) for line in path.read_text().splitlines()]

    return run


def test_a_layer_is_measured_by_every_exchange_and_writes_the_bytes_of_the_model(lines):
    found = lines("layer")  # a job whose outputs or gradients differ fails
    assert {(line["impl"], line["detail"]["pass"]) for line in found} == {
        (impl, case) for impl in EXCHANGES | {GLOO} for case in (FORWARD, STEP)
    }
    [ours] = [line for line in found if line["impl"] == ONE_SIDED and line["detail"]["pass"] == FORWARD]
    assert ours["counters"]["moe_bytes_written"] == ours["counters"]["model_bytes"] > 0
    assert all(ours["counters"][name] == 0 for name in CONTROL)


def test_ranks_that_come_one_after_the_other_are_measured_beside_a_model(lines):
    found = lines("overlap")
    assert {line["impl"] for line in found} == EXCHANGES
    assert all(line["detail"]["expected_s"] > 0 for line in found)


def test_late_ranks_are_measured_with_every_epsilon(lines):
    found = lines("straggler")
    ways = EXCHANGES | {early(epsilon) for epsilon in range(3)}
    assert {(line["impl"], line["detail"]["late"]) for line in found} == {(way, n) for way in ways for n in (0, 1)}
    assert all(line["counters"]["dropped"] == 0 for line in found if line["impl"] in EXCHANGES)
    assert all(len(line["detail"]["all_ms"]) == 3 * 3 for line in found)


def test_dispatched_bytes_are_compared_with_the_yardstick(lines):
    found = lines("dispatch")
    assert {(line["impl"], line["detail"]["bytes"]) for line in found} == {
        (impl, size) for impl in ("horocache", "yard-stick") for size in (4096, 65536)
    }


def test_m19_a_model_is_trained_with_and_without_losses(lines):
    found = {line["impl"]: line for line in lines("training")}  # a job whose exchanges differ in a loss fails
    assert set(found) > EXCHANGES and len(found) == len(EXCHANGES) + 2
    for name in EXCHANGES:
        assert found[name]["detail"]["dropped"] == 0
    assert found["horocache, batches lost: 20 %"]["detail"]["dropped"] > 0
