"""The benchmark of mixtures of experts without ranks: routings, loads, models, and the report's verdicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from benchmarks import mixed_report, moe_report
from benchmarks.cases.moe_layer import CONTROL, FORWARD
from benchmarks.cases.moe_overlap import one_sided_s, rows_of, synchronous_s
from benchmarks.cases.moe_straggler import ONE_SIDED, early, pooled
from benchmarks.figures import Figure, Series
from benchmarks.moe_language import text
from benchmarks.moe_setup import BALANCED, GLOO, SKEWED, Shape, choices, delays

ALLTOALL = "horocache, alltoall"
SHAPE = Shape(4000, 8, 8, experts=8, k=2)


def test_choices_are_distinct_experts_and_follow_zipfs_law_where_they_are_skewed() -> None:
    for routing, wanted in ((BALANCED, np.ones(8)), (SKEWED, 1 / np.arange(1, 9))):
        experts = choices(routing, SHAPE, rank=1)
        assert experts.shape == (4000, 2) and (experts[:, 0] != experts[:, 1]).all()
        first = np.bincount(experts[:, 0], minlength=8) / len(experts)
        assert np.abs(first - wanted / wanted.sum()).max() < 0.03


def test_choices_repeat_and_differ_between_ranks() -> None:
    assert (choices(SKEWED, SHAPE, 2) == choices(SKEWED, SHAPE, 2)).all()
    assert (choices(SKEWED, SHAPE, 2) != choices(SKEWED, SHAPE, 3)).any()


def test_delays_have_a_long_tail_and_the_given_number_of_late_ranks() -> None:
    found = delays(ranks=4, late=2, calls=20_000, unit_s=1e-3)
    assert ((found > 0).sum(1) == 2).all()
    late = found[found > 0] * 1e3
    assert late.min() >= 1 and late.max() == pytest.approx(100)
    assert [(late > units).mean() for units in (2, 10, 50)] == pytest.approx([0.5, 0.1, 0.02], rel=0.1)
    assert (delays(4, 0, 5, 1e-3) == 0).all()
    assert (delays(4, 2, 9, 1e-3) == delays(4, 2, 9, 1e-3)).all()


def test_the_one_sided_model_hides_the_stagger_behind_work_and_the_synchronous_one_does_not() -> None:
    rows = np.array([[10, 1], [10, 1]])
    assert synchronous_s(rows, 0.5, 0.1) == pytest.approx(0.5 + 2.0)
    # Rank 0 serves its own batch until 1.0, and that of rank 1, which came at 0.5, until 2.0.
    assert one_sided_s(rows, 0.5, 0.1) == pytest.approx(2.0)
    # If rank 1 comes at 1.5, rank 0 waits for it from 1.0 on.
    assert one_sided_s(rows, 1.5, 0.1) == pytest.approx(2.5)


@pytest.mark.parametrize("routing", [BALANCED, SKEWED])
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_the_one_sided_model_is_never_slower(routing: str, ranks: int) -> None:
    rows = rows_of(routing, ranks, Shape(64, 8, 8))
    assert rows.shape == (ranks, ranks)
    assert one_sided_s(rows, 0.01, 1e-4) <= synchronous_s(rows, 0.01, 1e-4) + 1e-12


def test_the_text_is_long_english() -> None:
    raw = bytes(text().numpy())
    assert len(raw) > 300_000 and raw.count(b" the ") > 2000


def test_percentiles_are_those_of_all_ranks() -> None:
    parts = [[Series("c", "i", "ms", values, counters={"slots": 4.0, "dropped": 1.0})] for values in ([1e-3], [3e-3])]
    [merged] = pooled(parts)
    assert merged.values == [1e-3, 3e-3] and merged.counters == {"slots": 8.0, "dropped": 2.0}
    found = moe_report.percentiles([1e-3 * number for number in range(101)])
    assert [found[name] for name in ("p50", "p95", "p99", "longest")] == pytest.approx([50, 95, 99, 100])
    assert moe_report.percentiles([2e-3])["p95"] == pytest.approx(2)


# ---- the report


def layers(routing: str, ours: float, synchronous: float, gloo: float, control: float = 0.0) -> list[Figure]:
    counters = dict.fromkeys((*CONTROL, "model_bytes", "model_bytes_by_slot", "moe_bytes_written", "moe_sleeps"), 0.0)
    counters["rounds"] = control
    medians = {ONE_SIDED: ours, ALLTOALL: synchronous, GLOO: gloo}
    series = [
        Series(f"a layer, {routing}", name, "ms", [value * 1e-3] * 2, counters=counters, detail={"pass": FORWARD})
        for name, value in medians.items()
    ]
    return mixed_report.compared("moe_layer", 2, series)


def table_of(title: str, found: dict[str, list[Figure]]) -> list[str]:
    [table] = [table for table in moe_report.tables(found) if table.title.startswith(title)]
    return [" ".join(row) for row in table.rows]


@pytest.mark.parametrize(
    ("routing", "synchronous", "verdict"),
    [(SKEWED, 12.1, "met (1.2)"), (SKEWED, 11.9, "MISSED (1.2)"), (BALANCED, 9.6, "met"), (BALANCED, 9.4, "MISSED")],
)
def test_a_layer_is_judged_by_the_best_synchronous_exchange(routing: str, synchronous: float, verdict: str) -> None:
    [row] = table_of("A layer: the one-sided", {"layer": layers(routing, 10.0, synchronous, 60.0)})
    assert f"{synchronous / 10:.2f} {verdict}" in row
    assert row.endswith("6.00 met (5)")


@pytest.mark.parametrize(("control", "verdict"), [(0.0, "met"), (1.0, "MISSED")])
def test_a_layer_is_judged_by_its_control_messages(control: float, verdict: str) -> None:
    ours = table_of("What a layer sends", {"layer": layers(SKEWED, 10.0, 12.0, 60.0, control)})[0]
    assert ours.endswith(verdict)


def late(number: int, impl: str, ms: float) -> Figure:
    series = Series(f"4 ranks, {number} late", impl, "ms", [ms * 1e-3], counters={"slots": 8.0, "dropped": 1.0})
    [figure] = mixed_report.compared("moe_straggler", 4, [series])
    figure.detail = {"late": number, **moe_report.percentiles(series.values)}
    return figure


@pytest.mark.parametrize(("ms", "verdict"), [(12.9, "met"), (13.1, "MISSED")])
def test_an_early_exit_is_judged_by_its_time_without_late_ranks(ms: float, verdict: str) -> None:
    found = [late(0, early(2), 10.0), late(1, early(2), ms), late(0, ALLTOALL, 11.0), late(1, ALLTOALL, 70.0)]
    [row] = table_of("Late ranks: epsilon", {"straggler": found})
    assert verdict in row and row.endswith("70")
    assert table_of("Late ranks: times", {"straggler": found})[0].endswith("12.50 %")


def test_plots_are_made(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    detail: dict[str, Any] = {"training": [5.0, 4.0], "dropped": 1.0, "sent": 10.0}
    trained = [
        Series(
            "c", ONE_SIDED, "nats per byte", [4.0], counters={"ms_per_step": 1.0, "waited_share": 0.5}, detail=detail
        )
    ]
    parts = {
        "layer": layers(SKEWED, 10.0, 12.0, 60.0),
        "straggler": [late(0, early(2), 10.0), late(1, early(2), 11.0), late(1, ALLTOALL, 70.0)],
        "training": mixed_report.compared("moe_training", 2, trained),
    }
    assert "10.0 %" in table_of("Training", parts)[0]
    for part, figures in parts.items():
        path = tmp_path / f"{part}.png"
        moe_report.PLOTS[part](figures, path)
        assert path.read_bytes().startswith(b"\x89PNG")
