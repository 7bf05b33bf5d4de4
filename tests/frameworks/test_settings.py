"""Settings that change while a job runs, backends of process sets, the log of operations, over both bindings."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import pytest
from ranks import on_ranks

import horocache as hc
from horocache import _core
from horocache.base import operation_codes
from horocache.base.request import Request
from horocache.core import cffi_runtime, context

from .bindings import both_bindings

# The members of hc_record, as take_log() gives them.
FIELDS = (
    *("name", "op", "reduce_op", "dtype", "backend", "algorithm", "chosen_by", "layers", "error", "process_set"),
    *("tensors", "bytes", "sequence", "fused", "peer", "submitted_ns", "agreed_ns", "started_ns", "ended_ns"),
)


def await_changes(runtime: Any, count: int) -> None:
    deadline = time.monotonic() + 60
    while runtime.settings_changes < count:
        assert time.monotonic() < deadline, f"only {runtime.settings_changes} of {count} changes came"
        time.sleep(0.001)


def take(runtime: Any) -> list[dict[str, Any]]:
    records, lost = runtime.take_log()
    assert lost == 0
    return [dict(zip(FIELDS, record, strict=True)) for record in records]


def await_child(child: int) -> None:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# ---- settings


@both_bindings
@on_ranks(3)
def test_rank_0_changes_settings_on_all_ranks(binding):
    runtime = context.current().runtime
    assert runtime.settings() == (0, "")
    ones = np.ones(10, np.float32)
    hc.allreduce(ones, name="a")
    if hc.rank() == 0:
        runtime.configure("fusion_threshold=0\nnote=first")
        runtime.configure("cache=0\nnote=zweite \u00e9\U0001f600 = ; \t")
    await_changes(runtime, 2)
    assert runtime.settings() == (2, "zweite \u00e9\U0001f600 = ; \t")
    misses = hc.metrics()["cache_misses"]
    for _ in range(3):
        np.testing.assert_array_equal(hc.allreduce(ones, name="a"), ones)
    assert hc.metrics()["cache_misses"] == misses + 3
    if hc.rank() == 0:
        runtime.configure("cache=1")
    await_changes(runtime, 3)
    assert runtime.settings()[1].startswith("zweite"), "the last note stays"
    hits = hc.metrics()["cache_hits"]
    for _ in range(3):
        hc.allreduce(ones, name="a")
    assert hc.metrics()["cache_hits"] == hits + 2


@both_bindings
@on_ranks(2)
def test_the_fusion_threshold_decides_how_many_operations_are_one(binding):
    runtime = context.current().runtime
    tensors = [np.ones(100, np.float32) for _ in range(8)]

    def fused() -> set[int]:
        runtime.log_operations(100)
        hc.grouped_allreduce(tensors, name="g")
        handles = [hc.allreduce_async(tensor, name=f"t{i}") for i, tensor in enumerate(tensors)]
        for handle in handles:
            hc.synchronize(handle)
        return {record["fused"] for record in take(runtime) if record["name"].startswith("allreduce.t")}

    fused()  # the cache knows them now
    if hc.rank() == 0:
        runtime.configure("fusion_threshold=0")
    await_changes(runtime, 1)
    assert fused() == {1}


@both_bindings
@on_ranks(2)
def test_a_wrong_setting_is_an_error_and_changes_nothing(binding):
    runtime = context.current().runtime
    if hc.rank() == 0:
        for text, words in [
            ("", "is empty"),
            ("cache", "write name=value"),
            ("cache=yes", "settings: 'cache=yes': it is 0 or 1"),
            ("cach=1", "no such setting"),
            ("cache=1\ncache=1", "twice"),
            ("fusion_threshold=-1", "from 0 to 4294967296"),
            ("cycle_time=1e9", "from 0 to 1000"),
            ("note=a\0b", "zero byte"),
            ("table=allreduc=shm", "the tuning table: rule 'allreduc=shm': .*did you mean 'allreduce'"),
            ("note=" + "x" * (256 << 10), "at most 262144"),
        ]:
            with pytest.raises(hc.InvalidArgumentError, match=words):
                runtime.configure(text)
        for wrong in (None, 3):
            with pytest.raises((TypeError, AttributeError)):
                runtime.configure(wrong)
    else:
        with pytest.raises(hc.InvalidArgumentError, match="rank 1 cannot change the settings of the job"):
            runtime.configure("cache=0")
    hc.barrier()
    assert runtime.settings() == (0, "")


@both_bindings
@on_ranks(2)
def test_after_the_shutdown_settings_cannot_change_and_queries_answer(binding):
    runtime = context.current().runtime
    runtime.log_operations(5)
    if hc.rank() == 0:
        runtime.configure("note=last")
    await_changes(runtime, 1)
    hc.allreduce(np.ones(3), name="b")
    hc.shutdown()
    with pytest.raises(hc.ShutDownError, match="horocache has been shut down on this rank"):
        runtime.configure("cache=0")
    assert runtime.settings() == (1, "last")
    assert runtime.settings_changes == 1
    assert [name for name, _, _ in runtime.backends(0)] == ["shm"]
    assert [record["name"] for record in take(runtime)] == ["allreduce.b"]
    runtime.log_operations(0)
    assert take(runtime) == []


@both_bindings
@on_ranks(2)
def test_a_child_of_fork_cannot_use_them(binding):
    runtime = context.current().runtime
    if (child := os.fork()) == 0:
        code = 1
        try:
            calls = [
                lambda: runtime.configure("cache=0"),
                runtime.settings,
                lambda: runtime.settings_changes,
                lambda: runtime.backends(0),
                lambda: runtime.log_operations(3),
                runtime.take_log,
            ]
            for call in calls:
                with pytest.raises(hc.ForkedProcessError, match="child of fork"):
                    call()
            code = 0
        finally:
            os._exit(code)
    await_child(child)
    if hc.rank() == 0:
        runtime.configure("note=still")
    await_changes(runtime, 1)
    hc.barrier()


# ---- backends


@both_bindings
@on_ranks(3, init=False)
def test_a_process_set_has_its_backends(binding):
    hc.init(process_sets=[[1]])
    runtime = context.current().runtime
    ((name, algorithms, operations),) = runtime.backends(0)
    assert name == "shm" and algorithms[0] == "auto" and {"oneshot", "twoshot"} <= set(algorithms)
    assert {"allreduce", "allgather", "barrier"} <= set(operations)
    assert not {"join", "send", "recv"} & set(operations)
    alone = [name for name, _, _ in runtime.backends(1)]
    assert alone == (["loopback", "shm"] if hc.rank() == 1 else [])
    assert runtime.backends(9) == []
    added = hc.add_process_set([0, 1])
    names = [name for name, _, _ in runtime.backends(added.process_set_id)]
    assert names == (["shm"] if hc.rank() < 2 else [])
    number = added.process_set_id
    hc.remove_process_set(added)
    assert runtime.backends(number) == []


# ---- the log


@both_bindings
@on_ranks(2)
def test_the_log_says_what_ran_where_and_why(binding):
    runtime = context.current().runtime
    tensor = np.ones((50, 2), np.float16)
    hc.allreduce(tensor, name="before")
    runtime.log_operations(1000)
    assert take(runtime) == []
    hc.allreduce(tensor, op=hc.Max, name="call", backend="shm/oneshot")
    hc.allreduce(tensor, name="order")
    hc.allreduce(tensor, name="several", backend="shm/oneshot|shm")
    hc.allgather(np.ones((50 + hc.rank(), 2), np.float16), name="rows")
    hc.grouped_allreduce([tensor, tensor], name="group")
    hc.barrier()
    if hc.rank() == 0:
        runtime.configure("table=allreduce=shm/twoshot;allreduce=nowhere")
    await_changes(runtime, 1)
    hc.allreduce(tensor, name="order")
    hc.allreduce(tensor, name="several", backend="shm/oneshot|shm")
    records = take(runtime)
    chosen = [(each["name"], each["op"], each["backend"], each["algorithm"], each["chosen_by"]) for each in records]
    assert chosen == [
        ("allreduce.call", "allreduce", "shm", "oneshot", "call"),
        ("allreduce.order", "allreduce", "shm", "auto", "order"),
        ("allreduce.several", "allreduce", "shm", "oneshot", "order"),
        ("allgather.rows", "allgather", "shm", "auto", "order"),
        ("grouped_allreduce.group", "allreduce", "shm", "auto", "order"),
        ("barrier.noname.0", "barrier", "shm", "auto", "order"),
        ("allreduce.order", "allreduce", "shm", "twoshot", "table"),
        ("allreduce.several", "allreduce", "shm", "twoshot", "table"),
    ]
    first, rows, group, barrier = records[0], records[3], records[4], records[5]
    assert rows["bytes"] == 4 * (50 + hc.rank()), "this rank's own rows"
    assert (first["dtype"], first["reduce_op"], first["bytes"], first["tensors"]) == ("float16", "max", 200, 1)
    assert (group["tensors"], group["bytes"], group["fused"]) == (2, 400, 1)
    assert (barrier["dtype"], barrier["reduce_op"], barrier["bytes"]) == ("", "", 0)
    for each in records:
        times = [each[f"{point}_ns"] for point in ("submitted", "agreed", "started", "ended")]
        assert times[0] > 0 and times == sorted(times), each
        assert each["error"] == "" and each["process_set"] == 0 and each["peer"] == -1
    assert len({each["sequence"] for each in records}) == len(records)


@both_bindings
@on_ranks(2, knobs={"select": "allreduce:0-1k=shm/oneshot"})
def test_the_log_names_a_rule_of_the_user(binding):
    runtime = context.current().runtime
    runtime.log_operations(10)
    hc.allreduce(np.ones(4, np.float32), name="small", compression=hc.Compression.fp16)
    hc.allreduce(np.ones(4000, np.float32), name="large")
    small, large = take(runtime)
    assert (small["algorithm"], small["chosen_by"]) == ("oneshot", "rule")
    assert "fp16" in small["layers"]
    assert (large["algorithm"], large["chosen_by"], large["layers"]) == ("auto", "order", "")


@both_bindings
@on_ranks(2)
def test_inline_operations_messages_and_failures_are_in_the_log(binding):
    runtime = context.current().runtime
    for _ in range(3):
        hc.allreduce(np.ones(2, np.float32), name="inline")
    runtime.log_operations(10)
    hc.allreduce(np.ones(2, np.float32), name="inline")
    (inline,) = take(runtime)
    assert (inline["backend"], inline["op"]) == ("round", "allreduce")
    other = 1 - hc.rank()
    if hc.rank() == 0:
        hc.send(np.ones(3), other, tag=4)
    else:
        hc.recv(np.empty(3), other, tag=4)
    with pytest.raises(hc.MismatchError):
        hc.allreduce(np.ones(2 + hc.rank()), name="wrong")
    message, wrong = take(runtime)
    assert (message["op"], message["peer"]) == ("send" if hc.rank() == 0 else "recv", other)
    assert (message["bytes"], message["backend"], message["chosen_by"]) == (24, "", "")
    assert wrong["name"] == "allreduce.wrong" and "rank 1" in wrong["error"] and wrong["backend"] == ""


@both_bindings
@on_ranks(1)
def test_names_of_any_bytes_come_back(binding):
    runtime = context.current().runtime
    runtime.log_operations(10)
    names = ["caf\u00e9 \U0001f600", b"\xff\xfe bytes", "quote\"' \n"]
    for name in names:
        array = np.ones(3, np.float32)
        request = Request(operation_codes.OP_ALLREDUCE, [array], [array], name=name)
        runtime.wait(runtime.submit(request), 60)
    decoded = [name if isinstance(name, str) else name.decode(errors="surrogateescape") for name in names]
    assert [record["name"] for record in take(runtime)] == decoded


@both_bindings
@on_ranks(1)
def test_a_full_log_loses_its_oldest_and_counts_them(binding):
    runtime = context.current().runtime
    runtime.log_operations(3)
    for i in range(5):
        hc.allreduce(np.ones(3), name=str(i))
    records, lost = runtime.take_log()
    assert ([record[0] for record in records], lost) == ([f"allreduce.{i}" for i in (2, 3, 4)], 2)
    runtime.log_operations(1)
    for i in range(2):
        hc.allreduce(np.ones(3), name=str(i))
    records, lost = runtime.take_log()
    assert ([record[0] for record in records], lost) == (["allreduce.1"], 1)
    runtime.log_operations(0)
    hc.barrier()
    assert runtime.take_log() == ([], 0)
    for wrong in (-1, 1 << 64, 1.5, "3", None):
        with pytest.raises((TypeError, OverflowError)):
            runtime.log_operations(wrong)


# ---- the rules of a tuning table at the start


def started(binding: str, tuning: str, **knobs: str) -> Any:
    make = _core.Runtime if binding == "native" else cffi_runtime.Runtime
    return make(knobs, 0, [], 0, [], b"", tuning)


@both_bindings
@on_ranks(3, init=False)
def test_the_table_of_rank_0_holds_on_all_ranks(binding):
    rank = int(os.environ["HOROCACHE_RANK"])
    table = ["allreduce:0-1k=shm/twoshot;allreduce=nowhere/x", "allreduce=shm/oneshot", ""][rank]
    runtime = started(binding, table, inline_max="0")
    runtime.log_operations(10)
    for count in (10, 1000):
        array = np.full(count, rank, np.float32)
        runtime.wait(runtime.submit(Request(operation_codes.OP_ALLREDUCE, [array], [array], name=str(count))), 60)
        assert array[0] == 3
    chosen = [(record["name"], record["algorithm"], record["chosen_by"]) for record in take(runtime)]
    assert chosen == [("10", "twoshot", "table"), ("1000", "auto", "order")]
    runtime.stop()


@both_bindings
@on_ranks(1, init=False)
def test_a_bad_table_is_an_error_at_the_start(binding):
    with pytest.raises(hc.InvalidArgumentError, match="the tuning table: rule 'allreduc=shm': there is no operation"):
        started(binding, "allreduc=shm")
    with pytest.raises(hc.InvalidArgumentError, match="take 262145 bytes; at most 262144"):
        started(binding, "*" * 262145)
    started(binding, "allreduce=nowhere;" * 14000).stop()
    started(binding, "").stop()
