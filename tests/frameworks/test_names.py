"""Names of tensors: any bytes up to a limit, names that horocache generates, and errors where they do not match."""

from __future__ import annotations

import random
import threading
import time

import numpy as np
import pytest
from ranks import on_ranks

import horocache as hc
from horocache.observe.trace import load_all
from horocache.testing import run_ranks

from .bindings import both_bindings

LONGEST = 4096 - len("allreduce.")
CHOSEN = [
    b"",
    b"\0",
    b" ",
    b'"',
    b"\\",
    b"'; rm -rf {} $(touch x) %s",
    b"line\nfeed\r\t\x1b[31m",
    "größe/重み/🙂/\u2028".encode(),
    b"\xff\xfe",
    b"cut off \xe9\x87",
    b"x" * LONGEST,
]


def any_names():
    """The names of ``CHOSEN`` and random byte strings, most of them invalid UTF-8; the same on every rank."""
    rng = random.Random(11)
    return list(dict.fromkeys(CHOSEN + [rng.randbytes(rng.choice([1, 2, 5, 30])) for _ in range(200)]))


def test_any_bytes_are_a_valid_name_and_timelines_stay_valid_json(tmp_path):
    def reduce_twice(names):
        hc.init()
        for _ in range(2):  # negotiated, then from the cache
            handles = [hc.allreduce_async(np.full(2, i), op=hc.Sum, name=name) for i, name in enumerate(names)]
            for i, handle in enumerate(handles):
                assert hc.synchronize(handle).tolist() == [3 * i] * 2, names[i]
        assert hc.metrics()["cache_hits"] == len(names)

    names = any_names()
    file = tmp_path / "t.json"
    run_ranks(reduce_twice, 3, args=(names,), knobs={"timeline": str(file)})
    for trace in load_all([file]):  # fails if a file is not JSON
        rows = set(trace.rows.values())
        assert rows >= {"allreduce." + name.decode("utf-8", "backslashreplace") for name in names}
        assert sum(span.name == "ALLREDUCE" for span in trace.spans) == 2 * len(names)


@both_bindings
@on_ranks(2)
def test_too_long_names_raise_and_leave_nothing_in_flight(binding):
    for length in (LONGEST + 1, 1 << 16, 1 << 20):
        for name in ("x" * length, b"\xff" * length):
            for call in (hc.allreduce, hc.allreduce_, hc.allreduce_async):
                with pytest.raises(hc.InvalidArgumentError, match="4096 bytes"):
                    call(np.ones(2), name=name)
    assert hc.allreduce(np.ones(2), op=hc.Sum, name="x" * LONGEST).tolist() == [2.0, 2.0]


# The limits are hours: the errors must come without them.
@on_ranks(3, knobs={"stall_check_time_seconds": 3600, "stall_shutdown_time_seconds": 7200})
def test_mismatched_automatic_names_raise_and_the_job_goes_on():
    first = hc.rank() == 0
    one = np.ones(1)
    outcomes = []
    for call in (
        lambda: hc.allreduce(np.ones(3 if first else 4)),
        lambda: (hc.allgather if first else hc.allreduce)(one),
        lambda: hc.barrier() if first else hc.allreduce(one),
        lambda: hc.allreduce(one, name=None if first else "named"),
    ):
        with pytest.raises(hc.CollectiveError) as failed:
            call()
        outcomes.append((type(failed.value).__name__, str(failed.value)))
        assert hc.allreduce(one, op=hc.Sum, name=f"after.{len(outcomes)}") == [hc.size()]
        assert hc.allgather(one).tolist() == [1.0] * hc.size(), "automatic names no longer match"
    assert [error for error, _ in outcomes] == ["MismatchError", "StallError", "StallError", "StallError"]
    for _, text in outcomes:
        assert "noname.0" in text and "rank 0" in text
    assert "[3]" in outcomes[0][1] and "[4]" in outcomes[0][1]
    assert all("was submitted by" in text and "not by rank" in text for _, text in outcomes[1:])


@on_ranks(3, init=False)
def test_unnamed_calls_are_matched_by_operation_set_and_call_number():
    even = hc.ProcessSet([0, 2])
    hc.init(process_sets=[even])
    handles = []
    kinds = ["allreduce", "allgather", "allreduce", "set", "allgather", "set"]
    # Each rank submits the kinds in its own order; the n-th call of a kind is the same on all ranks.
    for kind in random.Random(hc.rank()).sample(kinds, len(kinds)):
        number = sum(k == kind for k, _ in handles)
        value = np.array([10.0 * number + hc.rank()])
        if kind == "set":
            if even.included():
                handles.append((kind, hc.allreduce_async(value, op=hc.Sum, process_set=even)))
        elif kind == "allreduce":
            handles.append((kind, hc.allreduce_async(value, op=hc.Sum)))
        else:
            handles.append((kind, hc.allgather_async(value)))
    found = {kind: [hc.synchronize(h).tolist() for k, h in handles if k == kind] for kind in set(kinds)}
    assert found["allreduce"] == [[3.0], [33.0]]
    assert found["allgather"] == [[0.0, 1.0, 2.0], [10.0, 11.0, 12.0]]
    assert found["set"] == ([[2.0], [22.0]] if even.included() else [])


@both_bindings
@on_ranks(2)
def test_names_must_be_str_bytes_or_int(binding):
    refused = []
    for name in (object(), 1.0, ("a",), lambda: 1):
        for call in (hc.allreduce, hc.allreduce_, hc.allgather, hc.broadcast_):
            try:
                call(np.ones(2), *((0,) if call is hc.broadcast_ else ()), name=name)
            except hc.InvalidArgumentError as error:
                refused.append("must be a str, bytes or int" in str(error))
    total = hc.allreduce(np.ones(2), name=7, op=hc.Sum).tolist()
    assert refused == [True] * 16
    assert total == [2, 2]


@both_bindings
@on_ranks(3)
def test_each_thread_counts_its_unnamed_calls_separately(binding):
    me, n = hc.rank(), hc.size()

    def submitted():
        return sum(hc.metrics()[each] for each in ("cache_hits", "cache_misses", "cache_changed"))

    def three_in_flight(x):
        handles = [hc.allreduce_async(x + i, op=hc.Sum) for i in range(3)]
        assert [float(hc.synchronize(handle)[0]) for handle in handles] == [n * (x[0] + i) for i in range(3)]
        return hc.allreduce_(x.copy(), op=hc.Sum)

    calls = [
        lambda x: hc.allreduce(x, op=hc.Sum),
        lambda x: hc.allreduce_(x.copy(), op=hc.Sum),
        lambda x: hc.grouped_allreduce_([x.copy()], op=hc.Sum)[0],
        lambda x: hc.synchronize(hc.allreduce_many_async_([x.copy()], op=hc.Sum)[0]),
        lambda x: hc.allgather(x).sum(keepdims=True),
        three_in_flight,
    ]
    results = {}
    calls[0](np.ones(1))  # the stall check counts a thread only after its first submission

    def work(call, key, value):
        results[key] = float(call(np.full(1, value))[0])

    # On one rank the other threads call first, on the others the main thread.
    for number, call in enumerate(calls):
        threads = [
            threading.Thread(target=work, args=(call, "unnamed", 1.0)),
            threading.Thread(target=work, args=(call, "named", 10.0), name="named 2"),
        ]
        order = [threads[number % 2], threads[1 - number % 2]] if number % n == me else []
        for thread in order:
            before = submitted()
            thread.start()
            while submitted() == before:
                time.sleep(0.001)
        work(call, "main", 100.0)
        for thread in [] if order else threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == {"main": 100 * n, "unnamed": n, "named": 10 * n}, number

    # The numbers in Python's thread names do not matter, and a new thread may take the place of an ended one.
    if me == 1:
        threading.Thread(target=lambda: None).start()
    for _ in range(3):
        thread = threading.Thread(target=work, args=(calls[0], "again", 1.0))
        thread.start()
        thread.join()
    assert results["again"] == n

    # Two threads with the same name at the same time are refused: the order of their calls is undefined.
    errors, called, go_on = [], threading.Event(), threading.Event()

    def refused(call):
        try:
            call(np.ones(1))
        except hc.InvalidArgumentError as error:
            errors.append(str(error))

    def stay(x):
        calls[0](x)
        called.set()
        go_on.wait()

    def start(call):
        thread = threading.Thread(target=refused, args=(call,))
        thread.start()
        return thread

    first = start(stay)
    assert called.wait(30)
    start(calls[0]).join()
    go_on.set()
    first.join()
    assert len(errors) == 1 and "both call operations without a name" in errors[0]
    assert "(refused)" in errors[0] and "name=" in errors[0]
