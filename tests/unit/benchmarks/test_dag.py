"""The benchmark of dependency graphs without ranks: the model of a step, the networks, and the report's verdicts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import dag, dag_report, mixed_report
from benchmarks.cases import dag_network as ways
from benchmarks.cases.dag_store import DAEMON, OURS
from benchmarks.dag_model import DESIGNS, ROWS, Design, Times
from benchmarks.experiments import run_parts
from benchmarks.figures import Figure, Series
from benchmarks.job import Launchers

BY_NAME = {design.name: design for design in DESIGNS}
MS = 1e-3


def closed_form(design: Design, times: Times) -> float:
    """The duration of a step where a formula is known."""
    layers, forward, backward = times.layers, times.forward, times.backward
    wire, copy, update = times.wire, times.copy, times.update
    ends = 2 * copy + update
    if design.waits == "all" and not design.descending:
        return layers * (forward + backward + wire + copy)
    if design.waits == "copies":
        together = design.lanes if design.shared else 1
        return layers * (forward + backward + copy + wire * together / design.lanes)
    if design.lanes and not design.descending:
        return layers * backward + max(layers * wire + forward, wire + layers * forward) + ends
    if wire <= backward:
        return layers * (forward + backward) + wire + ends
    return layers * (forward + backward) + layers * (wire - backward) + backward + ends


@pytest.mark.parametrize("times", ROWS, ids=lambda times: f"c={times.wire},d={times.copy}")
@pytest.mark.parametrize("name", [name for name in BY_NAME if name not in ("Funnel, descending", dag_report.PRIORITY)])
def test_k10_a_step_of_the_model_takes_what_the_closed_form_says(name: str, times: Times) -> None:
    design = BY_NAME[name]
    assert design.expected(times) == pytest.approx(closed_form(design, times), rel=1e-9)


def test_k10_designs_without_a_closed_form() -> None:
    funnel, ours = BY_NAME["Funnel, descending"], BY_NAME[dag_report.PRIORITY]
    assert [funnel.expected(times) / MS for times in ROWS] == pytest.approx([247.5, 334.5, 339.0, 243.5])
    # The third: the front layer's sum waits for one that has begun, which is not interrupted.
    assert [ours.expected(times) / MS for times in ROWS] == pytest.approx([247.5, 258.5, 265.5, 243.5])


def test_k10_funnel_is_slower_than_concom_and_that_than_depcha_where_copies_cost_as_much_as_the_wire() -> None:
    times = Times(wire=6 * MS, copy=6 * MS)
    concom = BY_NAME["ConCom of 2, ascending, latency-bound"].expected(times)
    funnel, depcha = (BY_NAME[name].expected(times) for name in (dag_report.FUNNEL, dag_report.DEPCHA))
    assert funnel > concom > depcha and funnel / depcha > dag_report.LEAST_GAIN


def test_k10_the_gap_between_funnel_and_depcha_is_constant_so_its_share_falls() -> None:
    steps = []
    for wire in (6, 12, 24, 48, 96):
        times = Times(wire=wire * MS, copy=6 * MS)
        steps.append([BY_NAME[name].expected(times) / MS for name in (dag_report.FUNNEL, dag_report.DEPCHA)])
    # All layers' forward passes and copies, less what the chain's own end takes.
    assert [funnel - depcha for funnel, depcha in steps] == pytest.approx([20 * (4 + 6) - 4 - 12.5] * 5)
    assert steps[-1][0] / steps[-1][1] < 1.1


def test_negotiation_with_priority_is_as_good_as_the_best_static_design_on_every_row() -> None:
    for times in ROWS:
        best = min(design.expected(times) for design in DESIGNS if design.lanes)
        assert BY_NAME[dag_report.PRIORITY].expected(times) <= best + 1e-12


def test_more_lanes_than_sums_change_nothing() -> None:
    times = Times(layers=4)
    assert Design("wide", lanes=8).expected(times) == Design("as wide", lanes=4).expected(times)


# ---- networks


@pytest.mark.parametrize(
    ("network", "blocks", "parameters"), [("ResNet-18", 10, 11_173_962), ("Inception-BN", 12, 1_651_114)]
)
def test_networks_have_the_parameters_of_their_architecture(network: str, blocks: int, parameters: int) -> None:
    torch = pytest.importorskip("torch")
    from benchmarks.networks import NETWORKS

    made = NETWORKS[network](1.0)
    assert (len(made), sum(each.numel() for block in made for each in block.parameters())) == (blocks, parameters)
    narrow = torch.nn.Sequential(*NETWORKS[network](1 / 16))
    assert narrow(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_a_way_that_forgets_a_sum_or_a_divisor_has_other_parameters() -> None:
    torch = pytest.importorskip("torch")
    first = [torch.zeros(100), torch.ones(5)]
    reference = [each - 1e-5 * torch.arange(1, each.numel() + 1) for each in first]
    assert ways.different([each + 1e-9 for each in reference], reference, first) == 0
    twice = [first[0] - 2e-5 * torch.arange(1, 101), reference[1]]
    assert ways.different(twice, reference, first) > 90
    assert ways.different([reference[0], first[1]], reference, first) == 5


# ---- the report


def figures(bench: str, case: str, medians: dict[str, float], unit: str = "ms", **detail: Any) -> list[Figure]:
    scale = {"ms": 1e3, "us": 1e6}[unit]
    series = [Series(case, name, unit, [value / scale] * 2, detail=detail) for name, value in medians.items()]
    return mixed_report.compared(bench, 2, series)


def row_of(title: str, found: dict[str, list[Figure]]) -> str:
    [table] = [table for table in dag_report.tables(found) if table.title.startswith(title)]
    return " ".join(table.rows[0])


@pytest.mark.parametrize(("measured", "verdict"), [(114.0, "met"), (116.0, "MISSED"), (84.0, "MISSED")])
def test_a_step_is_judged_by_its_distance_from_the_model(measured: float, verdict: str) -> None:
    times = dict.fromkeys(BY_NAME, measured)
    found = {"model": figures("dag_steps", "c", times, expected_s=0.1, computing_s=0.05, wire_s=1e-3, layers=20)}
    assert row_of("A step in each design", found).endswith(verdict)


@pytest.mark.parametrize(("over", "verdict"), [(2.9, "met"), (3.1, "MISSED")])
def test_a_store_is_judged_by_its_time_over_the_daemons(over: float, verdict: str) -> None:
    found = {"store": figures("dag_store", "1 key", {OURS: 10 + over, DAEMON: 10.0}, "us")}
    assert row_of("The cost of a store", found).endswith(verdict)


@pytest.mark.parametrize(("wire", "ours", "end"), [(1.0, 90.0, "met"), (1.0, 95.0, "MISSED"), (0.0, 95.0, "1.05 ")])
def test_a_network_is_judged_only_where_there_is_a_wire_to_overlap(wire: float, ours: float, end: str) -> None:
    times = {ways.SYNCHRONIZED: 100.0, ways.FRONT_FIRST: ours}
    found = {"network": figures("dag_network", "net", times, wire=wire, computing_s=0.05)}
    assert row_of("Training of real networks", found).endswith(end)


def test_plots_are_made(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    times = dict.fromkeys(BY_NAME, 100.0)
    steps = figures("dag_steps", "c", times, expected_s=0.1, computing_s=0.05, wire_s=1e-3, layers=20)
    network = figures("dag_network", "net", {ways.SYNCHRONIZED: 100.0, ways.FRONT_FIRST: 90.0}, wire=1.0)
    for part, of_part in {"model": steps, "scaling": steps, "network": network}.items():
        path = tmp_path / f"{part}.png"
        dag_report.PLOTS[part](of_part, path)
        assert path.read_bytes().startswith(b"\x89PNG")


def test_what_this_machine_lacks_is_left_out_with_the_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(dag, "ENGINE", tmp_path / "none")
    runner = dag.Runner(replace(dag.QUICK), Launchers(None, "there is no mpiexec"))
    assert run_parts(dag.PARTS, runner, ["engine", "control"]) == {}
    assert runner.left_out == {"engine": "`make build` has not built it", "control": "there is no mpiexec"}
    assert runner.failures == []
