"""The processors that this process may use, by its affinity and by container quotas."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Cores:
    """The cores of the machine that a job may use."""

    cpus: tuple[int, ...]  # processors of the affinity mask
    quota: float | None  # container quota in cores; None: no quota

    @property
    def usable(self) -> int:
        """Number of cores that can be busy at the same time in the long run."""
        if self.quota is None:
            return len(self.cpus)
        return max(1, min(len(self.cpus), int(self.quota)))

    def __str__(self) -> str:
        if self.quota is not None and self.quota < len(self.cpus):
            return f"{self.usable} usable cores (a container quota of {self.quota:g} of {len(self.cpus)})"
        return f"{self.usable} usable core{'s' if self.usable != 1 else ''}"


def find_cores(root: Path = Path("/")) -> Cores:
    """Read the affinity of this process and the CPU quotas of its control groups, of version 1 and 2."""
    return Cores(cpus=tuple(sorted(os.sched_getaffinity(0))), quota=cpu_quota(root))


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Return the smallest CPU quota, in cores, of the control groups that contain this process."""
    quotas = [_quota_v2(folder) for folder in cgroup_folders("", root)]
    quotas += [_quota_v1(folder) for folder in cgroup_folders("cpu", root)]
    return min((quota for quota in quotas if quota is not None), default=None)


def memory_limit(root: Path = Path("/")) -> int | None:
    """Return the smallest memory limit, in bytes, of the control groups that contain this process."""
    limits = [_number(folder / "memory.max") for folder in cgroup_folders("", root)]
    limits += [_number(folder / "memory.limit_in_bytes") for folder in cgroup_folders("memory", root)]
    return min((limit for limit in limits if limit is not None and limit < 1 << 60), default=None)


def cgroup_folders(controller: str, root: Path = Path("/")) -> list[Path]:
    """List the folders of this process's control group and its parents; ``controller`` is "" for version 2."""
    wanted = _own_group(controller, root)
    if wanted is None:
        return []
    folders = []
    for mount_root, mount_point in _mounts(controller, root):
        # In a container without a cgroup namespace of its own, the group's path is the host's, but the mount shows only
        # the part of the hierarchy below `mount_root`.
        relative = wanted.removeprefix(mount_root.rstrip("/")) if wanted.startswith(mount_root.rstrip("/")) else "/"
        top = root / mount_point.lstrip("/")
        folder = top / relative.lstrip("/")
        folders += [path for path in (folder, *folder.parents) if path == top or top in path.parents]
    return [folder for folder in folders if folder.is_dir()]


def cpus_of_ranks(cpus: Sequence[int], ranks: int) -> list[set[int]]:
    """Divide the processors: a run of neighbours for each rank, or one each in turn if there are too few."""
    if ranks >= len(cpus):
        return [{cpus[rank % len(cpus)]} for rank in range(ranks)]
    return [set(cpus[rank * len(cpus) // ranks : (rank + 1) * len(cpus) // ranks]) for rank in range(ranks)]


def _own_group(controller: str, root: Path) -> str | None:
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if (controller == "" and number == "0") or (controller and controller in controllers.split(",")):
            return path
    return None


def _mounts(controller: str, root: Path) -> list[tuple[str, str]]:
    """List the mounts of the hierarchy that has ``controller``, as (root within the hierarchy, mount point)."""
    found = []
    for line in _text(root / "proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) < 5 or len(kind) < 3:
            continue
        if (controller == "" and kind[0] == "cgroup2") or (
            controller and kind[0] == "cgroup" and controller in kind[2].split(",")
        ):
            found.append((fields[3], fields[4]))
    return found


def _quota_v2(folder: Path) -> float | None:
    quota, _, period = _text(folder / "cpu.max").partition(" ")
    if not quota.strip().isdigit() or not period.strip().isdigit() or int(period) == 0:
        return None
    return int(quota) / int(period)


def _quota_v1(folder: Path) -> float | None:
    quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
    return quota / period if quota and period else None


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None  # "max" and "-1" mean no limit


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):  # the hierarchy does not exist
        return ""
