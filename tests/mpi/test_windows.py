"""One-sided exchanges between hosts, over MPI's messages and over its one-sided operations."""

from __future__ import annotations

import pytest
from mpi_jobs import run_worker

BOTH = pytest.mark.parametrize("way", ["messages", "rma"])


@BOTH
@pytest.mark.parametrize("layout", ["01", "0011", "0101", "012"])
def test_every_row_comes_back_from_its_host(layout, way):
    run(layout, "rounds", way)


@BOTH
@pytest.mark.parametrize("layout", ["001", "0011"])
def test_m12_cells_never_mix_calls_or_ranks_with_early_exits(layout, way):
    run(layout, "early", way)


@BOTH
def test_what_cannot_be_exchanged_is_an_error_on_every_rank(way):
    run("001", "refused", way)


def run(layout: str, mode: str, way: str) -> None:
    job = run_worker("windows", len(layout), layout, mode, env={"HOROCACHE_MOE_BETWEEN_HOSTS": way}, deadline_s=60)
    assert job.code == 0 and len(job.lines("right")) == len(layout), job.report()
