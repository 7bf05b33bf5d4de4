"""Cores and memory by affinity and container quotas, read from fake trees of /proc and /sys."""

from pathlib import Path

import pytest

from horocache.base.processors import Cores, cpu_quota, cpus_of_ranks, memory_limit
from horocache.core.launcher_environment import threads_per_rank


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


V2 = {
    "proc/self/cgroup": "0::/job/inner\n",
    "proc/self/mountinfo": "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
}
V1 = {
    "proc/self/cgroup": "5:cpu,cpuacct:/system.slice/abc\n4:memory:/system.slice/abc\n",
    "proc/self/mountinfo": (
        "30 24 0:26 /system.slice/abc /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"
        "31 24 0:27 /system.slice/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
    ),
}


def test_the_smallest_quota_of_all_parent_groups_applies(tmp_path):
    root = tree(
        tmp_path,
        V2
        | {
            "sys/fs/cgroup/job/inner/cpu.max": "max 100000\n",
            "sys/fs/cgroup/job/cpu.max": "250000 100000\n",
            "sys/fs/cgroup/cpu.max": "800000 100000\n",
            "sys/fs/cgroup/job/memory.max": "1073741824\n",
            "sys/fs/cgroup/job/inner/memory.max": "max\n",
        },
    )
    assert cpu_quota(root) == 2.5
    assert memory_limit(root) == 1 << 30


def test_quotas_of_version_1_are_read_in_a_container(tmp_path):
    root = tree(
        tmp_path,
        V1
        | {
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "150000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "536870912\n",
        },
    )
    assert cpu_quota(root) == 1.5
    assert memory_limit(root) == 512 << 20


def test_missing_quotas_are_none(tmp_path):
    files = {
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    }
    assert cpu_quota(tree(tmp_path, V1 | files)) is None
    assert memory_limit(tmp_path) is None
    assert cpu_quota(tmp_path / "empty") is None


@pytest.mark.parametrize(
    ("cpus", "quota", "usable"), [(8, None, 8), (8, 2.5, 2), (8, 0.5, 1), (2, 16.0, 2), (1, None, 1)]
)
def test_usable_cores_are_whole_and_at_least_one(cpus, quota, usable):
    cores = Cores(cpus=tuple(range(cpus)), quota=quota)
    assert cores.usable == usable
    assert f"{usable} usable core" in str(cores)


def test_each_rank_gets_its_share_of_threads_and_at_least_one():
    assert threads_per_rank({}, 8, 2) == 4
    assert threads_per_rank({}, 8, 3) == 2
    assert threads_per_rank({}, 2, 8) == 1
    assert threads_per_rank({"OMP_NUM_THREADS": "3"}, 8, 2) is None


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8, 11])
def test_binding_uses_every_core_once_if_there_are_enough(ranks):
    cpus = [0, 1, 2, 3, 8, 9, 10, 11]
    shares = cpus_of_ranks(cpus, ranks)
    assert len(shares) == ranks
    assert all(shares)
    assert set().union(*shares) == set(cpus) if ranks <= 8 else len(set().union(*shares)) == 8
    if ranks <= 8:
        assert sum(map(len, shares)) == 8
