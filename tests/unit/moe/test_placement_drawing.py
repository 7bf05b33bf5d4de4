"""Drawings of shardings."""

from __future__ import annotations

import sys
from xml.etree import ElementTree

import numpy as np
import pytest

from benchmarks.placement import instance
from horocache.errors import InvalidArgumentError, UnsupportedError
from horocache.moe.placement import Topology, Workload, draw, shard


@pytest.fixture
def hosts():
    host = np.array([0, 1, 0, 1])
    alpha = np.where(host[:, None] == host[None, :], 1e-6, 1e-2)
    return Topology(alpha, np.zeros((4, 4)), [1e3] * 4, [4] * 4)


def texts(path):
    return ["".join(each.itertext()) for each in ElementTree.parse(path).iter() if each.tag.endswith("}text")]


def test_a_drawing_names_groups_devices_experts_and_times(hosts, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "sharding.svg"
    draw(shard(hosts, Workload(8, 0, 1, 0)), hosts, path)
    shown = texts(path)
    assert {"device 0", "device 1", "device 2", "device 3", "experts 0-3", "experts 4-7"} <= set(shown)
    assert "24 ms per step, exact (optimal)" in shown
    assert "computation 4 ms, communication 0.004 ms, allreduce 20 ms" in shown
    assert "group 0: 4.004 ms, the most expensive" in shown
    assert "group 1: 4.004 ms" in shown


def test_equal_shardings_have_equal_drawings(hosts, tmp_path):
    pytest.importorskip("matplotlib")
    for name in ("one.svg", "other.svg"):
        draw(shard(hosts, Workload(8, 0, 1, 0)), hosts, tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "other.svg").read_bytes()


@pytest.mark.parametrize("devices", [1, 2, 24])
def test_every_device_of_a_cluster_is_drawn_once(devices, tmp_path):
    pytest.importorskip("matplotlib")
    topology = Topology(*(np.ones((devices, devices)),) * 2, np.ones(devices), [1] * devices)
    draw(shard(topology, Workload(1, 0, 1, 0)), topology, tmp_path / "sharding.svg")
    shown = texts(tmp_path / "sharding.svg")
    assert sorted(each for each in shown if each.startswith("device")) == sorted(f"device {i}" for i in range(devices))


def test_groups_with_many_devices_and_devices_without_experts_can_be_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    topology, work = instance(1, 40)
    found = shard(topology, work)
    draw(found, topology, tmp_path / "sharding.svg")
    assert texts(tmp_path / "sharding.svg").count("no expert") == len(found.idle)


def test_a_topology_of_another_cluster_is_an_error(hosts, tmp_path):
    other = Topology([[0.0]], [[0.0]], [1.0], [8])
    with pytest.raises(InvalidArgumentError, match="the topology has 1 devices, the sharding 4"):
        draw(shard(hosts, Workload(8, 0, 1, 0)), other, tmp_path / "sharding.svg")


def test_without_matplotlib_drawing_is_an_error_that_says_what_to_install(hosts, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'horocache\[moe\]'"):
        draw(shard(hosts, Workload(8, 0, 1, 0)), hosts, tmp_path / "sharding.svg")


def test_a_path_that_cannot_be_written_is_an_os_error(hosts, tmp_path):
    pytest.importorskip("matplotlib")
    with pytest.raises(FileNotFoundError):
        draw(shard(hosts, Workload(8, 0, 1, 0)), hosts, tmp_path / "missing" / "sharding.svg")
