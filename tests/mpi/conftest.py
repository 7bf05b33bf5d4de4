"""Skips these tests in environments without an mpiexec; ``make test-mpi`` creates an environment for each MPI."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # for benchmarks.network
sys.path.insert(0, str(Path(__file__).parent))

from mpi_jobs import MPIEXEC


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if MPIEXEC.exists():
        return
    for item in items:
        item.add_marker(pytest.mark.skip(reason="this environment has no mpiexec; run make test-mpi"))
