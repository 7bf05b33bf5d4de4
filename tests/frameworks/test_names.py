"""Names of tensors: any bytes up to a limit, and errors where ranks call operations in different orders."""

from __future__ import annotations

import random

import numpy as np
import pytest
from ranks import on_ranks

import horocache as hc
from horocache.observe.trace import load_all
from horocache.testing import run_ranks

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


def test_any_bytes_are_a_name_and_the_timeline_of_every_rank_is_json(tmp_path):
    def body(names):
        import horocache as hc

        hc.init()
        for _ in range(2):  # negotiated, then from the cache
            handles = [hc.allreduce_async(np.full(2, i), op=hc.Sum, name=name) for i, name in enumerate(names)]
            for i, handle in enumerate(handles):
                assert hc.synchronize(handle).tolist() == [3 * i] * 2, names[i]
        return hc.metrics()["cache_hits"]

    names = any_names()
    file = tmp_path / "t.json"
    assert run_ranks(body, 3, args=(names,), knobs={"timeline": str(file)}) == [len(names)] * 3
    for trace in load_all([file]):  # fails if a file is not JSON
        rows = set(trace.rows.values())
        assert rows >= {"allreduce." + name.decode("utf-8", "backslashreplace") for name in names}
        assert sum(span.name == "ALLREDUCE" for span in trace.spans) == 2 * len(names)


@pytest.mark.parametrize("binding", ["native", "cffi"])
@on_ranks(2)
def test_names_that_are_too_long_are_refused_and_nothing_is_in_flight(binding):
    for length in (LONGEST + 1, 1 << 16, 1 << 20):
        for name in ("x" * length, b"\xff" * length):
            for call in (hc.allreduce, hc.allreduce_, hc.allreduce_async):
                with pytest.raises(hc.InvalidArgumentError, match="4096 bytes"):
                    call(np.ones(2), name=name)
    assert hc.allreduce(np.ones(2), op=hc.Sum, name="x" * LONGEST).tolist() == [2.0, 2.0]


def test_ranks_whose_automatic_names_do_not_match_get_an_error_and_go_on():
    def body():
        import horocache as hc

        hc.init()
        first = hc.rank() == 0
        one = np.ones(1)
        outcomes = []
        for what in (
            lambda: hc.allreduce(np.ones(3 if first else 4)),
            lambda: (hc.allgather if first else hc.allreduce)(one),
            lambda: hc.barrier() if first else hc.allreduce(one),
            lambda: hc.allreduce(one, name=None if first else "named"),
        ):
            with pytest.raises(hc.CollectiveError) as failed:
                what()
            outcomes.append((type(failed.value).__name__, str(failed.value)))
            assert hc.allreduce(one, op=hc.Sum, name=f"after.{len(outcomes)}") == [hc.size()]
            assert hc.allgather(one).tolist() == [1.0] * hc.size(), "automatic names count on alike"
        return outcomes

    # The limits are hours: the errors must come without them.
    knobs = {"stall_check_time_seconds": 3600, "stall_shutdown_time_seconds": 7200}
    for outcomes in run_ranks(body, 3, knobs=knobs):
        assert [error for error, _ in outcomes] == ["MismatchError", "StallError", "StallError", "StallError"]
        for _, text in outcomes:
            assert "noname.0" in text and "rank 0" in text
        assert "[3]" in outcomes[0][1] and "[4]" in outcomes[0][1]
        assert all("was submitted by" in text and "not by rank" in text for _, text in outcomes[1:])


@on_ranks(3, init=False)
def test_unnamed_calls_meet_by_operation_and_set_whatever_lies_between_them():
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


@pytest.mark.parametrize("binding", ["native", "cffi"])
@on_ranks(2)
def test_names_whose_text_may_differ_between_ranks_are_refused_and_numbers_are_not(binding):
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


@pytest.mark.parametrize("binding", ["native", "cffi"])
@on_ranks(3)
def test_threads_count_their_unnamed_calls_each_by_itself(binding):
    import threading
    import time

    from horocache.core import context

    me, n = hc.rank(), hc.size()

    def seen():
        return sum(hc.metrics()[each] for each in ("cache_hits", "cache_misses", "cache_changed"))

    def at_once(x):  # several in flight
        handles = [hc.allreduce_async(x + i, op=hc.Sum) for i in range(3)]
        assert [float(hc.synchronize(handle)[0]) for handle in handles] == [n * (x[0] + i) for i in range(3)]
        return hc.allreduce_(x.copy(), op=hc.Sum)

    calls = [
        lambda x: hc.allreduce(x, op=hc.Sum),
        lambda x: hc.allreduce_(x.copy(), op=hc.Sum),
        lambda x: hc.grouped_allreduce_([x.copy()], op=hc.Sum)[0],
        lambda x: hc.synchronize(hc.allreduce_many_async_([x.copy()], op=hc.Sum)[0]),
        lambda x: hc.allgather(x).sum(keepdims=True),
        at_once,
    ]
    results = {}
    calls[0](np.ones(1))  # the stall check counts a thread only after its first submission

    def work(call, key, value):
        results[key] = float(call(np.full(1, value))[0])

    # On one rank the other threads' calls come first, on the others the main thread's call.
    for number, call in enumerate(calls):
        threads = [
            threading.Thread(target=work, args=(call, "made up", 1.0)),
            threading.Thread(target=work, args=(call, "named", 10.0), name="named 2"),
        ]
        order = [threads[number % 2], threads[1 - number % 2]] if number % n == me else []
        for thread in order:
            before = seen()
            thread.start()
            while seen() == before:
                time.sleep(0.001)
        work(call, "main", 100.0)
        for thread in [] if order else threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == {"main": 100 * n, "made up": n, "named": 10 * n}, number

    # Python's thread numbers do not matter, and threads may follow one another.
    if me == 1:
        threading.Thread(target=lambda: None).start()
    for _ in range(3):
        thread = threading.Thread(target=work, args=(calls[0], "again", 1.0))
        thread.start()
        thread.join()
    assert results["again"] == n

    # Two threads of the same name at a time: the order of their calls is undefined.
    errors, go_on = [], threading.Event()

    def refused(call):
        try:
            call(np.ones(1))
        except hc.InvalidArgumentError as error:
            errors.append(str(error))

    def stay(x):
        calls[0](x)
        go_on.wait()

    def start(call):
        thread = threading.Thread(target=refused, args=(call,))
        thread.start()
        return thread

    first = start(stay)
    while not any("refused" in key[0] for key in context.current().thread_names._handles):
        time.sleep(0.001)
    start(calls[0]).join()
    go_on.set()
    first.join()
    assert len(errors) == 1 and "both call operations without a name" in errors[0]
    assert "(refused)" in errors[0] and "name=" in errors[0]
