"""Jobs that take a tuning table: rank 0's decides on all ranks (T2, T3, T5, T7, T9 and T10 of the acceptance list)."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from conformance.star_backend import Star

from horocache.errors import InvalidArgumentError
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


TOKENS = {
    "allreduce:0-4K:@one_shot": "allreduce:0-4K:@one_shot",
    "allreduce:0-4096=shm/one_shot;allreduce:4096-=shm/fast": "shm/one_shot",
    "allreduce:4096-0=shm": "4096-0",
    "allreduce:-5-8=shm": "-5-8",
    "fly=shm": "fly",
    "allreduce=nowhere": "nowhere",
    "allreduce": "allreduce",
}


@pytest.mark.parametrize("rules", TOKENS)
@pytest.mark.parametrize("binding", ["native", "cffi"])
def test_t9_a_rule_that_is_not_one_is_an_error_that_quotes_it(rules, binding):
    import horocache as hc

    with pytest.raises(InvalidArgumentError) as raised:
        hc.init(select=rules, binding=binding)
    assert "HOROCACHE_SELECT" in str(raised.value) and TOKENS[rules] in str(raised.value), raised.value
    assert not hc.is_initialized()


class OnlyFloats(Star):
    operations = ("allreduce", "gather")
    reduced_dtypes = ("float32",)


def with_two_backends(run):
    """Run on a job that also has a backend in Python; return the log: operation, backend, what has chosen it."""
    import horocache as hc
    from horocache.core import context
    from horocache.user_backends import register_backend

    register_backend("own", OnlyFloats)
    hc.init(inline_max=0)
    runtime = context.current().runtime
    runtime.log_operations(100)
    run(hc)
    hc.barrier()
    records, lost = runtime.take_log()
    assert lost == 0
    return [(one[1], one[4], one[6]) for one in records if one[1] not in ("barrier", "allgather")]


def of_two_types(hc):
    import numpy as np

    for dtype in (np.float32, np.int32):
        assert hc.allreduce(np.ones(1000, dtype), op=hc.Sum)[0] == hc.size()
    assert hc.broadcast(np.ones(10), root_rank=1)[0] == 1


def test_t7_a_backend_that_lacks_the_type_or_operation_gives_way_to_the_next_candidate(tmp_path):
    table = make_table({op: {(3, 1): {64: {"own": 1, "shm/auto": 2}}} for op in ("allreduce", "broadcast")})
    answers = run_ranks(with_two_backends, 3, args=(of_two_types,), knobs={"tuning_table": saved(tmp_path, table)})
    expected = [("allreduce", "own", "table"), ("allreduce", "shm", "table"), ("broadcast", "shm", "table")]
    assert answers == [expected] * 3


def of_sizes_in_different_bands(hc):
    import numpy as np

    for step in range(4):
        rows = [10, 1 << 10, 1 << 14, 1 << 17][(hc.rank() + step) % hc.size()]
        gathered = hc.gather(np.full(rows, float(hc.rank())), root_rank=step)
        if hc.rank() == step:
            assert gathered.sum() == sum(rank * [10, 1 << 10, 1 << 14, 1 << 17][(rank + step) % 4] for rank in range(4))


@pytest.mark.parametrize("fast", [0.5, 5])
def test_t10_ranks_whose_sizes_are_in_different_bands_choose_one_backend(tmp_path, fast):
    sizes = {256: {"own": fast, "shm/auto": 1}, 65536: {"own": 2, "shm/auto": 1}, 1 << 20: {"own": 1, "shm/auto": 2}}
    path = saved(tmp_path, make_table({"gather": {(4, 1): sizes}}))
    answers = run_ranks(with_two_backends, 4, args=(of_sizes_in_different_bands,), knobs={"tuning_table": path})
    # The sums of slowdowns: own 1 + 2 + 1 and shm 2 + 1 + 2, or own 5 + 2 + 1 and shm 1 + 1 + 2.
    assert answers == [[("gather", "own" if fast < 1 else "shm", "table")] * 4] * 4
