"""M17: the log of operations."""

from __future__ import annotations

import io
import logging
import sys
import time

import numpy as np
import pytest
from ranks import on_ranks

import horocache as hc
import horocache.mcr_dl as mcr_dl
from horocache.mcr_dl.bandwidth import bandwidths, trimmed_mean

COLUMNS = ["Comm. Op", "Message Size", "Count", "Total Latency(ms)", "Avg Latency(ms)", "tput_avg (Gbps)"]


@on_ranks(2, 3, init=False)
def test_m17_every_operation_has_one_record():
    mcr_dl.configure(enabled=True)
    begin = time.time()
    mcr_dl.init(["loopback", "shm"])
    rank, size = mcr_dl.get_rank(), mcr_dl.get_size()
    group = mcr_dl.new_group([0, size - 1])
    x = np.ones(6, np.float32)
    mcr_dl.all_reduce("shm", x)
    mcr_dl.all_reduce("shm/oneshot", x, mcr_dl.ReduceOp.MAX, name="maximum")
    mcr_dl.all_gather("auto", np.zeros(6 * size, np.float32), x)
    work = mcr_dl.bcast(["shm", "loopback"], x, 0, async_op=True)
    mcr_dl.all_to_all_single("shm", np.zeros(size), np.ones(size))
    work.wait()
    mcr_dl.barrier()
    if group.rank() >= 0:
        mcr_dl.reduce("shm", np.ones(2, np.int64), 0, group=group)
    mcr_dl.sendrecv("shm", x, (rank + 1) % size, np.zeros_like(x), (rank - 1) % size)
    hc.allreduce(x, name="not of mcr_dl")
    records = mcr_dl.log_records()
    ops = [record.op for record in records]
    expected = ["all_reduce", "all_reduce", "all_gather", "bcast", "all_to_all_single", "barrier", "send", "recv"]
    assert sorted(ops) == sorted(expected + ["reduce"] * (group.rank() >= 0)), ops
    by_op = {record.op: record for record in records}
    first, named = (record for record in records if record.op == "all_reduce")
    assert (first.dtype, first.bytes, first.reduce_op, first.group) == ("float32", 24, "sum", tuple(range(size)))
    assert (first.backend, first.algorithm, first.chosen_by) == ("shm", "auto", "call")
    assert (named.name, named.algorithm, named.reduce_op) == ("mcr_dl.maximum", "oneshot", "max")
    assert (by_op["all_gather"].bytes, by_op["all_gather"].backend, by_op["all_gather"].chosen_by) == (
        24,
        "shm",
        "order",
    )
    assert by_op["bcast"].chosen_by == "call", "only one of them fits the group"
    if group.rank() >= 0:
        assert (by_op["reduce"].group, by_op["reduce"].dtype) == ((0, size - 1), "int64")
    assert (by_op["send"].bytes, by_op["send"].backend, by_op["send"].name) == (24, "", "")
    for record in records:
        assert begin <= record.start <= time.time() and 0 <= record.transfer <= record.duration < 60, record
        assert not record.error and not record.caller
    with pytest.raises(hc.MismatchError):
        mcr_dl.all_reduce("shm", np.ones(1 + rank))
    assert "submitted shape" in mcr_dl.log_records()[-1].error
    mcr_dl.finalize()
    with pytest.raises(hc.NotInitializedError):
        mcr_dl.log_records()


@on_ranks(2, init=False)
def test_m17_the_log_adds_no_operation_and_keeps_nothing_when_it_is_off():
    mcr_dl.init("shm")
    x = np.ones(3)

    def rounds():
        before = hc.metrics()
        for _ in range(100):
            mcr_dl.all_reduce("shm", x)
            mcr_dl.all_gather("shm", np.zeros(2), np.ones(1))
        since = hc.metrics().since(before)
        return since["operations"], since.get("messages_sent", 0)

    rounds()
    off = rounds()
    with pytest.raises(hc.InvalidArgumentError, match="the log is off"):
        mcr_dl.log_records()
    mcr_dl.configure(enabled=True)
    assert rounds() == off == (200, 0)
    assert len(mcr_dl.log_records()) == 200
    mcr_dl.configure(enabled=False)
    rounds()
    mcr_dl.configure(enabled=True)
    assert mcr_dl.log_records() == []
    mcr_dl.finalize()


@on_ranks(2, init=False)
def test_m17_records_are_bounded_and_lost_ones_are_counted():
    mcr_dl.configure(enabled=True, capacity=50)
    mcr_dl.init("shm")
    for size in range(1, 121):
        mcr_dl.all_reduce("shm", np.ones(size))
    records = mcr_dl.log_records()
    assert [record.bytes for record in records] == [8 * size for size in range(71, 121)]
    for _ in range(10):
        mcr_dl.barrier()
    assert len(mcr_dl.log_records()) == 50
    with captured() as text:
        summary = mcr_dl.log_summary()
    assert summary.lost == 80
    assert ("80 records were lost" in text.getvalue()) == (mcr_dl.get_rank() == 0)
    mcr_dl.finalize()


class captured:
    """Keeps the text that is written to stdout meanwhile."""

    def __enter__(self):
        self.had, sys.stdout = sys.stdout, io.StringIO()
        return sys.stdout

    def __exit__(self, *_):
        sys.stdout = self.had


@on_ranks(3, init=False)
def test_m17_the_summary_has_the_columns_and_the_numbers_of_the_records():
    mcr_dl.configure(comms_logger={"enabled": True, "prof_all": False, "prof_ops": ["all_reduce", "all_gather"]})
    mcr_dl.init("shm")
    rank = mcr_dl.get_rank()
    for size in (1000, 20):
        for _ in range(25):
            mcr_dl.all_reduce("shm", np.ones(size, np.float32))
    mcr_dl.all_gather("shm", np.ones(9), np.ones(3))
    mcr_dl.barrier()
    with captured() as text:
        summary = mcr_dl.log_summary()
    rows = {(row.op, row.size): row for row in summary.rows}
    assert list(rows) == [("all_gather", 24), ("all_reduce", 80), ("all_reduce", 4000)]
    row = rows["all_reduce", 4000]
    durations = [record.duration for record in mcr_dl.log_records() if record.bytes == 4000]
    kept = sorted(durations)[2:-2]
    assert row.calls == 25 and row.avg_ms == pytest.approx(1e3 * sum(kept) / 21)
    assert row.total_ms == pytest.approx(1e3 * sum(durations)) and row.straggler_ms is None
    assert row.busbw_gbps == pytest.approx(row.tput_gbps * 2 / 3)
    lines = text.getvalue().splitlines()
    if rank == 0:
        assert (
            [lines[0].find(column) for column in COLUMNS] == sorted(lines[0].find(column) for column in COLUMNS) != -1
        )
        assert len(lines) == 4 and lines[2].startswith("all_reduce") and " 80 B " in lines[2] and "3.91 KB" in lines[3]
    else:
        assert not lines
    mcr_dl.finalize()


@on_ranks(3, init=False)
def test_m17_the_straggler_is_what_a_rank_waited_for_the_last_one():
    mcr_dl.configure(enabled=True)
    mcr_dl.init("shm")
    rank, x = mcr_dl.get_rank(), np.ones(4)
    for _ in range(3):
        if rank == 2:  # the last to come: the others have submitted the operation
            mcr_dl.recv("shm", np.zeros(1), 0)
            mcr_dl.recv("shm", np.zeros(1), 1)
            time.sleep(0.05)
            mcr_dl.all_reduce("shm", x)
        else:
            handle = mcr_dl.all_reduce("shm", x, async_op=True)
            mcr_dl.send("shm", np.zeros(1), 2)
            handle.wait()
    with captured() as text:
        summary = mcr_dl.log_summary(show_straggler=True)
    row = next(row for row in summary.rows if row.op == "all_reduce")
    own = [record.duration for record in mcr_dl.log_records() if record.op == "all_reduce"]
    assert rank == 2 or min(own) >= 0.05, "rank 2 came 50 ms later"
    least = sum(map(min, zip(*hc.allgather_object(own, name="durations"), strict=True)))
    assert row.min_ms == pytest.approx(1e3 * least)
    assert row.straggler_ms == pytest.approx(1e3 * (sum(own) - least), abs=1e-6)
    assert ("Straggler(ms)" in text.getvalue()) == (rank == 0)
    mcr_dl.finalize()


@on_ranks(2, init=False)
def test_m17_debug_names_the_calling_function_and_verbose_logs_a_line_each():
    lines = []

    class Keep(logging.Handler):
        def emit(self, record):
            lines.append(record.getMessage())

    logging.getLogger("horocache.mcr_dl").addHandler(Keep())
    mcr_dl.configure({"comms_logger": {"enabled": True, "verbose": True, "debug": True}})
    mcr_dl.init("shm")

    def exchange_tokens(x):
        mcr_dl.all_to_all_single("shm", x, x)

    exchange_tokens(np.ones(2))
    mcr_dl.all_reduce("shm", np.ones(256, np.float32), async_op=True).wait()
    mcr_dl.synchronize()
    rank = mcr_dl.get_rank()
    assert len(lines) == 2, lines
    assert lines[0].startswith(f"rank {rank}: all_to_all_single | [Caller Func: exchange_tokens] | backend: shm/")
    assert "(call) | msg size: 16 bytes of float64 | group: [0, 1] | time (ms): " in lines[0]
    assert "1024 bytes of float32" in lines[1]
    assert mcr_dl.log_records()[0].caller == "exchange_tokens"
    for bad in ({"enabled": 1}, {"prof_ops": "send"}, {"capacity": 0}, {"size": 3}):
        with pytest.raises(hc.InvalidArgumentError, match="comms_logger"):
            mcr_dl.configure(comms_logger=bad)
    with pytest.raises(hc.InvalidArgumentError, match="section comms_logger"):
        mcr_dl.configure({"zero": {}})
    mcr_dl.finalize()


def test_bandwidths_have_the_factors_of_the_benchmarks():
    size, seconds = 1_000_000, 1e-3  # 8 Gbit/s
    expected = {
        "all_reduce": (16.0, 12.0),
        "all_gather": (32.0, 24.0),
        "all_to_all_single": (8.0, 6.0),
        "reduce_scatter": (8.0, 6.0),
        "bcast": (8.0, 8.0),
        "send": (8.0, 8.0),
    }
    for op, (tput, busbw) in expected.items():
        assert bandwidths(op, size, seconds, 4) == pytest.approx((tput, busbw)), op
    assert bandwidths("barrier", 0, 0.0, 4) == (0.0, 0.0)
    assert trimmed_mean([1.0, 2.0, 6.0]) == 3.0
    assert trimmed_mean([0.0, *[5.0] * 8, 100.0]) == 5.0


@on_ranks(2, init=False)
def test_m17_stragglers_need_the_log_of_every_rank():
    mcr_dl.init("shm")
    if mcr_dl.get_rank() == 0:
        mcr_dl.configure(enabled=True)
    mcr_dl.all_reduce("shm", np.ones(4))
    with pytest.raises(hc.InvalidArgumentError, match=r"the log is off on rank\(s\) 1"):
        mcr_dl.log_summary(show_straggler=True)
    mcr_dl.all_reduce("shm", np.ones(4))
    mcr_dl.finalize()


@on_ranks(3, init=False)
def test_m17_stragglers_are_those_of_the_own_groups():
    mcr_dl.configure(enabled=True)
    mcr_dl.init("shm")
    rank = mcr_dl.get_rank()
    groups = [mcr_dl.new_group([0, 1]), mcr_dl.new_group([1, 2])]
    for group in groups * 2:
        if group.rank() >= 0:
            mcr_dl.all_reduce("shm", np.ones(4), group=group)
    records = [(record.group, record.duration) for record in mcr_dl.log_records() if record.op == "all_reduce"]
    every = hc.allgather_object(records, name="records")
    with captured():
        summary = mcr_dl.log_summary(show_straggler=True)
    least = 0.0
    for group in groups:
        durations = [[each for ranks, each in of_rank if list(ranks) == group.ranks] for of_rank in every]
        if durations[rank]:
            least += sum(map(min, zip(*(each for each in durations if each), strict=True)))
    (row,) = (row for row in summary.rows if row.op == "all_reduce")
    assert row.min_ms == pytest.approx(1e3 * least)
    assert row.total_ms == pytest.approx(row.min_ms + row.straggler_ms)
    mcr_dl.finalize()
