"""Collectives as operations of an engine."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from ranks import on_ranks

import horocache as hc
from horocache.dag import Engine
from horocache.errors import InputFailedError, InvalidArgumentError, MismatchError, NotInitializedError
from horocache.observe.trace import load_all
from horocache.testing import run_ranks

LIMIT = 60.0  # nothing takes that long


def fails() -> None:
    raise ValueError("no luck")


@on_ranks(1, 2, 3)
def test_collectives_run_between_the_operations_that_they_depend_on():
    engine = Engine(2)
    rank, size = hc.rank(), hc.size()
    x, total = np.zeros(100), np.zeros(100)
    for step in range(20):
        engine.push(lambda step=step: x.fill(rank + step), writes=[x])
        engine.collective(lambda: hc.allreduce_async_(x, op=hc.Sum, name="x"), writes=[x], name="sum")
        engine.push(lambda: np.add(total, x, out=total), [x], [total])
    engine.wait(total, timeout=LIMIT)
    assert set(total) == {sum(size * step + sum(range(size)) for step in range(20))}
    engine.close()


@on_ranks(2, 4)
def test_ranks_may_push_collectives_in_any_order():
    engine = Engine()
    random = np.random.default_rng(hc.rank())
    tensors = [np.full(10, 1.0 + number) for number in range(50)]
    for number in random.permutation(50):
        engine.collective(
            lambda number=number: hc.allreduce_async_(tensors[number], op=hc.Sum, name=f"t{number}"),
            writes=[tensors[number]],
        )
    engine.wait_all(timeout=LIMIT)
    assert [tensor[0] for tensor in tensors] == [hc.size() * (1.0 + number) for number in range(50)]
    engine.close()


@on_ranks(2)
def test_every_kind_of_result_reaches_then():
    engine = Engine()
    rank, results, x = hc.rank(), {}, np.full((2, 3), float(hc.rank()), np.float32)
    keep = lambda name: lambda result: results.__setitem__(name, result)  # noqa: E731
    engine.collective(lambda: hc.allreduce_async(x, name="a"), [x], then=keep("allreduce"))
    engine.collective(lambda: hc.allgather_async(x[: rank + 1], name="b"), [x], then=keep("allgather"))
    engine.collective(lambda: hc.alltoall_async(x, name="c"), [x], then=keep("alltoall"))
    engine.collective(lambda: hc.broadcast_async(x, 1, name="d"), [x], then=keep("broadcast"))
    engine.collective(
        lambda: hc.allreduce_async(x, name="e", compression=hc.Compression.fp16), [x], then=keep("compressed")
    )
    y = x.copy()
    engine.collective(lambda: hc.allreduce_async_(y, name="f"), [], [y], then=keep("in place"))
    engine.wait_all(timeout=LIMIT)
    assert results["allreduce"].tolist() == results["compressed"].tolist() == [[0.5] * 3] * 2
    assert results["allgather"].tolist() == [[0.0] * 3, [1.0] * 3, [1.0] * 3]
    assert results["alltoall"][0].tolist() == [[0.0] * 3, [1.0] * 3]
    assert results["broadcast"].tolist() == [[1.0] * 3] * 2
    assert results["in place"] is y and y[0, 0] == 0.5
    engine.close()


@on_ranks(1, 2, 3)
def test_d6_all_ranks_get_an_error_if_the_input_of_one_has_failed():
    engine = Engine()
    x, y, kept = np.ones(10), np.ones(10), np.ones(10)
    for _ in range(3):
        engine.collective(lambda: hc.allreduce_async_(kept, op=hc.Max, name="kept"), writes=[kept])
        engine.collective(lambda: hc.allreduce_async_(x, op=hc.Sum, name="x"), writes=[x])
        engine.wait(x, timeout=LIMIT)  # the response cache has it
    last = hc.size() - 1
    engine.push(fails if hc.rank() == last else lambda: None, writes=[x])
    engine.collective(lambda: hc.allreduce_async_(x, op=hc.Sum, name="x"), writes=[x], name="sum of x")
    engine.push(lambda: np.copyto(y, x), [x], [y])
    engine.collective(lambda: hc.allreduce_async_(kept, op=hc.Max, name="kept"), writes=[kept])
    if hc.rank() == last:
        with pytest.raises(ValueError, match="no luck"):
            engine.wait(y, timeout=LIMIT)
        with pytest.raises(ValueError, match="no luck"):
            engine.wait(x, timeout=LIMIT)
    else:
        text = f"allreduce 'allreduce.x': rank {last} submitted no data, .* failed: ValueError: no luck"
        with pytest.raises(InputFailedError, match=text):
            engine.wait(y, timeout=LIMIT)
        with pytest.raises(InputFailedError, match=text):
            engine.wait(x, timeout=LIMIT)
    engine.wait_all(timeout=LIMIT)
    x.fill(1.0)
    engine.collective(lambda: hc.allreduce_async_(x, op=hc.Sum, name="x"), writes=[x])
    engine.wait(x, kept, timeout=LIMIT)
    assert x[0] == hc.size() and kept[0] == 1.0
    engine.close()


@on_ranks(2)
def test_d6_holds_for_groups_and_for_results_that_the_core_makes():
    engine = Engine()
    x = [np.ones(4, np.float32), np.ones(5, np.float32)]
    got = []
    for attempt in range(2):
        engine.push(fails if hc.rank() == 0 and attempt == 0 else lambda: None, writes=x)
        engine.collective(lambda: hc.grouped_allreduce_async_(x, name="g"), writes=x)
        engine.collective(lambda: hc.allgather_async(x[0], name="h"), [x[0]], then=got.append)
        with pytest.raises((ValueError, InputFailedError)) if attempt == 0 else nothing():
            engine.wait_all(timeout=LIMIT)
    assert len(got) == 1 and got[0].shape == (8,)
    engine.close()


class nothing:
    """A context manager that does nothing."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


@on_ranks(2)
def test_a_mismatch_is_an_error_of_the_operation_on_all_ranks():
    engine = Engine()
    x, y = np.ones(3 + hc.rank()), np.ones(3)
    engine.collective(lambda: hc.allreduce_async_(x, name="x"), writes=[x])
    engine.collective(lambda: hc.allreduce_async_(y, name="y"), writes=[y])
    engine.wait(y, timeout=LIMIT)
    with pytest.raises(MismatchError, match="shape"):
        engine.wait(x, timeout=LIMIT)
    engine.wait_all(timeout=LIMIT)
    engine.close()


@on_ranks(2)
def test_a_collective_without_a_name_is_an_error():
    engine = Engine()
    x = np.ones(3)
    engine.collective(lambda: hc.allreduce_async_(x), writes=[x])
    with pytest.raises(InvalidArgumentError, match="needs a name"):
        engine.wait(x, timeout=LIMIT)
    engine.close()


@on_ranks(2, 3)
def test_collectives_of_a_lane_run_one_by_one_and_those_of_several_lanes_beside_each_other():
    for lanes in (1, 3):
        engine = Engine({"cpu": 1, "comm": lanes})
        of = [engine.lane() for _ in range(lanes)]
        tensors = [np.full(10, 1.0) for _ in range(30)]
        for number, tensor in enumerate(tensors):
            engine.collective(
                lambda number=number, tensor=tensor: hc.allreduce_async_(tensor, op=hc.Sum, name=f"t{number}"),
                writes=[tensor],
                lane=of[number % lanes],
                queue="comm",
            )
        engine.wait_all(timeout=LIMIT)
        assert all(tensor[0] == hc.size() for tensor in tensors)
        assert engine.flight.most <= lanes
        engine.close()


@on_ranks(2)
def test_a_lane_stops_when_ranks_put_different_collectives_into_one_place():
    engine = Engine({"cpu": 1, "comm": 1})
    lane, x, y = engine.lane(), np.ones(3), np.ones(4)
    first = x if hc.rank() == 0 else y
    engine.collective(lambda: hc.allreduce_async_(first, name="p0"), writes=[first], lane=lane, queue="comm")
    engine.collective(lambda: hc.allreduce_async_(x, name="never"), writes=[x], lane=lane, queue="comm")
    with pytest.raises(MismatchError, match="shape") as failed:
        engine.wait(x, timeout=LIMIT)
    assert lane.stopped is failed.value
    engine.close()


@on_ranks(2, init=False)
def test_an_engine_outlives_sessions():
    engine = Engine()
    x = np.ones(3)
    for _ in range(2):
        hc.init()
        engine.collective(lambda: hc.allreduce_async_(x, op=hc.Sum, name="x"), writes=[x])
        engine.wait(x, timeout=LIMIT)
        hc.shutdown()
    assert x[0] == 4.0
    engine.collective(lambda: hc.allreduce_async_(x, op=hc.Sum, name="x"), writes=[x])
    with pytest.raises(NotInitializedError):
        engine.wait(x, timeout=LIMIT)
    engine.close()


@on_ranks(2)
def test_an_engine_may_be_dropped_while_a_collective_is_under_way():
    engine = Engine()
    x = np.ones(10)
    if hc.rank() == 0:
        engine.collective(lambda: hc.allreduce_async_(x, op=hc.Sum, name="x"), writes=[x])
        hc.barrier()
        del engine
    else:
        hc.barrier()
        hc.allreduce_(x, op=hc.Sum, name="x")
    hc.barrier()
    assert x[0] == 2.0


@on_ranks(2)
def test_threads_that_push_collectives_at_the_same_time():
    engine = Engine(2)
    errors = []

    def program(number: int) -> None:
        try:
            own = np.ones(10)
            for step in range(30):
                engine.push(lambda: own.fill(1.0), writes=[own])
                engine.collective(lambda: hc.allreduce_async_(own, op=hc.Sum, name=f"thread{number}"), writes=[own])
                if step % 10 == 9:
                    engine.wait(own, timeout=LIMIT)
                    assert own[0] == 2.0
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=program, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    engine.close()


def test_the_timeline_shows_operations_beside_collectives(tmp_path):
    file = tmp_path / "t.json"

    def work() -> None:
        hc.init()
        engine = Engine(name="work")
        x = np.ones(100)
        engine.push(lambda: x.fill(2.0), writes=[x], name='fill "x"')
        engine.collective(lambda: hc.allreduce_async_(x, name="x"), writes=[x], name="sum")
        engine.push(x.sum, reads=[x], name="show")
        engine.wait_all(timeout=LIMIT)
        engine.close()
        hc.shutdown()

    run_ranks(work, 2, knobs={"timeline": str(file)})
    for trace in load_all([file]):
        tasks = [span for span in trace.spans if span.category == "task"]
        assert {'fill "x"', "show"} <= {span.name for span in tasks}
        assert {trace.rows[span.row] for span in tasks if span.name != "sum"} == {"hc-work-0"}
        assert any(span.name == "SHM_ALLREDUCE" for span in trace.spans)
