"""Jobs that take a tuning table: rank 0's decides on all ranks (T2, T3, T5 and T7 of the acceptance list)."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from horocache.testing import run_ranks

UNIT = str(Path(__file__).resolve().parents[1] / "unit" / "tuning")
sys.path.append(UNIT)

from tables import make_table  # noqa: E402

from horocache.tuning.table import save  # noqa: E402

ONE = {"allreduce": {(2, 1): {256: {"mpi/native": 1, "shm/oneshot": 2, "shm/twoshot": 3}, 4096: {"shm/twoshot": 1}}}}
OTHER = {"allreduce": {(2, 1): {64: {"shm/twoshot": 1}}}}


def saved(folder, table):
    """The path of a file with the table."""
    path = folder / "table.json"
    save(table, path)
    return str(path)


def chosen(sizes, own_table=None):
    """How allreduces of these sizes in bytes run on this rank: algorithm, and what has chosen it."""
    import numpy as np

    import horocache as hc
    from horocache.core import context

    if own_table is not None and int(os.environ["HOROCACHE_RANK"]) > 0:
        os.environ["HOROCACHE_TUNING_TABLE"] = own_table
    hc.init(inline_max=0)
    runtime = context.current().runtime
    runtime.log_operations(100)
    for size in sizes:
        hc.allreduce(np.ones(size, np.uint8), op=hc.Max, name=f"t{size}")
    hc.barrier()
    records, lost = runtime.take_log()
    assert lost == 0
    return [(one[4], one[5], one[6]) for one in records if one[1] == "allreduce"]


@pytest.mark.parametrize("binding", ["native", "cffi"])
def test_t2_and_t7_sizes_between_and_beyond_take_the_documented_candidate(tmp_path, binding):
    path = saved(tmp_path, make_table(ONE))
    # The boundary is sqrt(256 * 4096) = 1024; the job has no mpi, so the next candidate runs.
    small, large = ("shm", "oneshot", "table"), ("shm", "twoshot", "table")
    knobs = {"tuning_table": path, "binding": binding}
    answers = run_ranks(chosen, 2, args=([1, 256, 1023, 1024, 4096, 1 << 20],), knobs=knobs)
    assert answers == [[small, small, small, large, large, large]] * 2


@pytest.mark.parametrize("others", ["another", "absent", "damaged"])
def test_t5_the_table_of_rank_0_decides_whatever_the_others_have(tmp_path, others):
    (tmp_path / "other").mkdir()
    path, other = saved(tmp_path, make_table(ONE)), tmp_path / "other" / "table.json"
    if others == "another":
        saved(tmp_path / "other", make_table(OTHER))
    elif others == "damaged":
        other.write_text("{")
    answers = run_ranks(chosen, 3, args=([64], str(other)), knobs={"tuning_table": path})
    assert answers == [[("shm", "oneshot", "table")]] * 3


def test_t3_an_operation_that_the_table_lacks_takes_the_default(tmp_path):
    table = {"broadcast": {(2, 1): {64: {"shm/auto": 1}}}}
    answers = run_ranks(chosen, 2, args=([64],), knobs={"tuning_table": saved(tmp_path, make_table(table))})
    assert answers == [[("shm", "auto", "order")]] * 2


def test_t9_the_users_rules_come_before_those_of_the_table(tmp_path):
    knobs = {"tuning_table": saved(tmp_path, make_table(ONE)), "select": "allreduce:0-100=shm/twoshot"}
    answers = run_ranks(chosen, 2, args=([64, 200],), knobs=knobs)
    assert answers == [[("shm", "twoshot", "rule"), ("shm", "oneshot", "table")]] * 2
