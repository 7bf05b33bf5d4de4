"""The folders in which shared libraries of the environment are searched."""

import sys

from horocache.core.library_path import library_path
from horocache.doctor import libraries


def test_libraries_of_layered_environments_are_found(tmp_path, monkeypatch):
    own, below = tmp_path / "own", tmp_path / "below"
    packages = [place / "lib" / "python3.11" / "site-packages" for place in (own, below)]
    for folder in packages:
        folder.mkdir(parents=True)
    (below / "lib" / "libmpi.so.40").touch()
    (packages[1] / "nvidia" / "nccl" / "lib").mkdir(parents=True)
    (packages[1] / "nvidia" / "nccl" / "lib" / "libnccl.so.2").touch()
    monkeypatch.setattr(sys, "prefix", str(own))
    monkeypatch.setattr(sys, "path", ["", *map(str, packages), "/"])
    assert library_path().split(":")[:2] == [str(own / "lib"), str(below / "lib")]
    assert libraries.mpi_names()[0] == str(below / "lib" / "libmpi.so.40")
    inside = "nvidia/nccl/lib/libnccl.so.2"
    assert libraries.wheel_names(inside, "libnccl.so.2") == [str(packages[1] / inside), "libnccl.so.2"]
