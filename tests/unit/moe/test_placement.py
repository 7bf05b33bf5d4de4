"""Sharding: the solvers against brute force (M20), and what a sharding says."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest

from benchmarks.placement import instance
from horocache.errors import InvalidArgumentError, UnsupportedError
from horocache.moe.placement import PlacementError, Topology, Workload, heuristic, shard
from tests.unit.moe.brute_force import allreduce, communication, computation, group_seconds, optimum

INSTANCES = [(seed, 3 + seed % 5) for seed in range(200)]  # of 3 to 7 devices, and of three kinds of links


@pytest.fixture(scope="module")
def solved():
    """The optimum by brute force of each random cluster."""
    return [(*(case := instance(*numbers)), optimum(*case)) for numbers in INSTANCES]


def check(sharding, topology, work):
    """A sharding is a partition that meets equation 2, and its objective is that of the definitions."""
    assert sorted(i for group in sharding.groups for i in group) == list(range(topology.devices))
    for number, group in enumerate(sharding.groups):
        assert sorted(e for i in group for e in sharding.experts[i]) == list(range(work.experts))
        counts = [len(sharding.experts[i]) for i in group]
        assert all(count <= topology.memory[i] for count, i in zip(counts, group, strict=True))
        slowest = max(count / topology.rates[i] for count, i in zip(counts, group, strict=True))
        rates, memory = topology.rates[list(group)].tolist(), topology.memory[list(group)].tolist()
        assert slowest == pytest.approx(computation(rates, memory, work.experts), rel=1e-12)
        assert sharding.costs[number].computation == pytest.approx(work.layers * slowest, rel=1e-12)
        exchange = work.layers * communication(topology, work, group)
        assert sharding.costs[number].communication == pytest.approx(exchange, rel=1e-12)
        owners = sharding.expert_map(number)
        assert owners.shape == (work.experts,)
        assert all(e in sharding.experts[i] for e, i in enumerate(owners.tolist()))
    assert sharding.allreduce == pytest.approx(allreduce(topology, work, sharding.groups), rel=1e-12)
    parts = sharding.computation + sharding.communication + sharding.allreduce
    assert sharding.objective == pytest.approx(parts, rel=1e-12)
    groups = max(group_seconds(topology, work, group) for group in sharding.groups)
    assert sharding.objective == pytest.approx(groups + sharding.allreduce, rel=1e-12)
    assert sharding.idle == tuple(i for i in range(topology.devices) if not sharding.experts[i])


@pytest.mark.parametrize(("solver", "accuracy"), [("exact", 1e-12), ("milp", 1e-6)])
def test_m20_exact_and_milp_find_the_optimum_of_200_random_clusters(solved, solver, accuracy):
    if solver == "milp":
        pytest.importorskip("scipy")
    infeasible = 0
    for (seed, devices), (topology, work, best) in zip(INSTANCES, solved, strict=True):
        if math.isinf(best):
            infeasible += 1
            with pytest.raises(PlacementError):
                shard(topology, work, solver)
            continue
        found = shard(topology, work, solver)
        check(found, topology, work)
        assert found.objective == pytest.approx(best, rel=accuracy), f"seed {seed}, {devices} devices"
        assert found.optimal and found.solver == solver
    assert 20 <= infeasible <= 100, "the clusters should be of both kinds"


def test_m20_the_heuristic_is_feasible_and_near_the_optimum(solved):
    ratios = []
    for topology, work, best in solved:
        if math.isinf(best):
            with pytest.raises(PlacementError):
                shard(topology, work, "heuristic")
            continue
        found = shard(topology, work, "heuristic")
        check(found, topology, work)
        assert found.objective >= best * (1 - 1e-12)
        assert not found.optimal
        ratios.append(found.objective / best)
    assert np.percentile(ratios, 95) <= 1.35
    assert np.mean(ratios) <= 1.02


def test_m20_missing_memory_is_an_error_that_names_it():
    topology = Topology(np.zeros((3, 3)), np.zeros((3, 3)), [1.0, 1.0, 1.0], [2, 0, 3])
    with pytest.raises(PlacementError, match=r"for 5 experts \(device 0: 2, device 1: 0, device 2: 3\)") as error:
        shard(topology, Workload(9, 0, 1, 0))
    assert "memory for 4 more is missing" in str(error.value)
    assert error.value.missing == 4
    assert isinstance(error.value, ValueError)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_m20_the_work_for_64_devices_is_bounded(seed):
    topology, work = instance(seed, 64)
    found = shard(topology, work)
    check(found, topology, work)
    assert found.solver == "heuristic" and not found.optimal
    # Each candidate of the search has at most 2 new groups; the starts have a few for each number of groups.
    assert found.evaluated <= 2 * heuristic.CANDIDATES_PER_DEVICE * 64 + 64 * 64


def test_the_work_does_not_grow_with_the_square_of_the_devices():
    topology, work = instance(1, 150)
    found = shard(topology, work)
    check(found, topology, work)
    assert found.evaluated <= 2 * heuristic.CANDIDATES_PER_DEVICE * 64 + 64 * 150


def test_exact_equals_milp_for_more_devices_than_brute_force_can_do():
    pytest.importorskip("scipy")
    for seed, devices in [(0, 8), (1, 9), (2, 10), (3, 11), (4, 12)]:
        topology, work = instance(seed, devices)
        exact, milp = shard(topology, work, "exact"), shard(topology, work, "milp")
        check(exact, topology, work)
        assert milp.objective == pytest.approx(exact.objective, rel=1e-6)
        assert shard(topology, work, "heuristic").objective >= exact.objective * (1 - 1e-12)


def test_auto_is_exact_up_to_12_devices_and_the_heuristic_beyond():
    for devices, solver in [(1, "exact"), (12, "exact"), (13, "heuristic")]:
        topology = Topology(np.ones((devices, devices)), np.zeros((devices, devices)), [1.0] * devices, [4] * devices)
        assert shard(topology, Workload(4, 0, 1, 0)).solver == solver


@pytest.mark.parametrize("solver", ["exact", "milp", "heuristic"])
def test_equal_arguments_give_equal_shardings(solver):
    if solver == "milp":
        pytest.importorskip("scipy")
    for seed in range(6):
        topology, work = instance(seed, 9)
        try:
            assert shard(topology, work, solver) == shard(*instance(seed, 9), solver)
        except PlacementError:
            continue


def test_the_result_does_not_depend_on_the_hash_seed():
    program = (
        "from benchmarks.placement import instance\n"
        "from horocache.moe.placement import shard\n"
        "print([shard(*instance(seed, 20)).groups for seed in (0, 1, 2)])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": str(seed), "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in (1, 2)
    }
    assert len(outputs) == 1


def two_hosts(slow_s: float, gradient_bytes: float = 0.0) -> tuple[Topology, Workload]:
    """Four devices on two hosts; each device alone could hold half of the experts."""
    host = np.array([0, 1, 0, 1])
    alpha = np.where(host[:, None] == host[None, :], 1e-6, slow_s)
    return Topology(alpha, np.zeros((4, 4)), [1e3] * 4, [4] * 4), Workload(8, 0, 1, gradient_bytes)


@pytest.mark.parametrize("solver", ["exact", "milp", "heuristic"])
def test_a_slow_link_between_hosts_gives_a_group_for_each_host(solver):
    if solver == "milp":
        pytest.importorskip("scipy")
    found = shard(*two_hosts(1e-2), solver)
    # Groups of one host: 4 experts on each device, one peer, 4 transfers, and 2 (K-1) alpha for the allreduce.
    assert found.groups == ((0, 2), (1, 3))
    assert found.computation == pytest.approx(4e-3)
    assert found.communication == pytest.approx(4e-6)
    assert found.allreduce == pytest.approx(2e-2)
    assert found.experts == ((0, 1, 2, 3), (0, 1, 2, 3), (4, 5, 6, 7), (4, 5, 6, 7))
    assert found.expert_map(1).tolist() == [1] * 4 + [3] * 4
    with pytest.raises(InvalidArgumentError, match="group is 2; the sharding has the groups 0 to 1"):
        found.expert_map(2)


def test_fast_links_give_one_group():
    # One group: 2 experts on each device; 3 peers. Two groups: 4 experts on each device.
    found = shard(*two_hosts(2e-6))
    assert found.groups == ((0, 1, 2, 3),)
    assert found.computation == pytest.approx(2e-3)
    assert found.communication == pytest.approx(4 * 5e-6)
    assert found.allreduce == 0.0


def test_devices_without_experts_are_named():
    topology = Topology(np.full((3, 3), 1e-6), np.zeros((3, 3)), [1e6, 1e6, 1.0], [4, 0, 4])
    found = shard(topology, Workload(3, 0, 1, 0))
    assert 1 in found.idle
    check(found, topology, Workload(3, 0, 1, 0))


def test_the_worst_link_between_groups_counts_not_the_worst_of_all():
    # Devices 0 and 1 must be together, so their link, the slowest one, is never between groups.
    alpha = np.full((3, 3), 1e-6)
    alpha[0, 1] = alpha[1, 0] = 1e-3
    alpha[0, 2] = 2e-6
    alpha[1, 2] = 3e-6
    topology, work = Topology(alpha, np.zeros((3, 3)), [1e9] * 3, [1, 1, 2]), Workload(2, 0, 1, 0)
    for solver in ("exact", "heuristic"):
        found = shard(topology, work, solver)
        check(found, topology, work)
        assert found.groups == ((0, 1), (2,))
        assert found.allreduce == pytest.approx(2 * 3e-6)


def test_milp_without_scipy_is_an_error_that_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'horocache\[moe\]'"):
        shard(*two_hosts(1.0), "milp")
    assert shard(*two_hosts(1.0)).optimal


def test_unknown_solvers_and_too_many_devices_are_errors():
    with pytest.raises(InvalidArgumentError, match="solver is 'best'; it must be one of auto, exact, milp, heuristic"):
        shard(*two_hosts(1.0), "best")
    many = Topology(np.zeros((13, 13)), np.zeros((13, 13)), np.ones(13), np.ones(13, int))
    for solver in ("exact", "milp"):
        with pytest.raises(InvalidArgumentError, match="takes at most 12 devices, not 13; use 'heuristic'"):
            shard(many, Workload(1, 0, 1, 0), solver)
    with pytest.raises(InvalidArgumentError, match="takes a Topology and a Workload, not int and Workload"):
        shard(3, Workload(1, 0, 1, 0))
