"""The engine in Python, without ranks. D1 to D10 of the C++ engine are in tests/cpp/dag."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest

from horocache.dag import Engine
from horocache.errors import ForkedProcessError, InvalidArgumentError, ShutDownError, StallError

LIMIT = 60.0  # nothing takes that long


@pytest.fixture(params=["naive", 1, 4])
def engine(request):
    made = Engine(naive=True) if request.param == "naive" else Engine(request.param)
    yield made
    made.close()


@pytest.fixture
def busy():
    """An engine of one thread that waits at a gate, which the test opens."""
    made, gate, arrived = Engine(), threading.Event(), threading.Event()

    def wait() -> None:
        arrived.set()
        assert gate.wait(LIMIT)

    made.push(wait, name="gate")
    assert arrived.wait(LIMIT)
    yield made, gate
    gate.set()
    made.close()


def fails() -> None:
    raise ValueError("no luck")


def test_operations_run_in_the_order_that_their_variables_give(engine):
    x, y = engine.var("x"), engine.var("y")
    seen = []
    engine.push(lambda: seen.append("write"), writes=[x])
    engine.push(lambda: seen.append("read"), reads=[x], writes=[y])
    engine.push(lambda: seen.append("again"), writes=[x, y])
    engine.wait(y, timeout=LIMIT)
    assert seen == ["write", "read", "again"]
    assert (x.version, y.version) == (2, 2)


def test_d1_random_programs_on_arrays_give_what_their_serial_execution_gives(engine):
    random = np.random.default_rng(0)
    arrays = [np.full(3, 1.0) for _ in range(20)]
    expected = [each.copy() for each in arrays]

    def step(of, reads, write, factor):
        of[write][:] = (of[write] * factor + sum(of[read] for read in reads)) % 1000.0

    for _ in range(500):
        reads = [int(each) for each in random.integers(0, 20, random.integers(2, 8))]
        write, factor = int(random.integers(0, 20)), float(random.integers(1, 9))
        step(expected, reads, write, factor)
        engine.push(
            lambda reads=reads, write=write, factor=factor: step(arrays, reads, write, factor),
            [arrays[read] for read in reads],
            [arrays[write]],
            priority=int(random.integers(0, 5)),
        )
    engine.wait_all(timeout=LIMIT)
    for got, wanted in zip(arrays, expected, strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_d2_readers_run_at_the_same_time_and_writers_one_by_one():
    engine = Engine(3)
    x = engine.var("x")
    together = threading.Barrier(3)  # which three readers pass only at the same time
    for _ in range(6):
        engine.push(lambda: together.wait(LIMIT), reads=[x])
    inside, most, order = [], [], []

    def write(number: int) -> None:
        inside.append(number)
        most.append(len(inside))
        order.append(number)
        inside.remove(number)

    for number in range(50):
        engine.push(lambda number=number: write(number), writes=[x], priority=number)
    engine.wait_all(timeout=LIMIT)
    assert set(most) == {1} and order == list(range(50))
    engine.close()


def test_d3_reads_and_writes_of_a_variable_keep_the_order_of_push(engine):
    x, values, seen = engine.var("x"), [0], []
    for number in range(1, 40):
        engine.push(lambda number=number: values.__setitem__(0, number), writes=[x], priority=number % 3)
        for _ in range(3):
            engine.push(lambda number=number: seen.append((number, values[0])), reads=[x], priority=number % 5)
    engine.wait_all(timeout=LIMIT)
    assert len(seen) == 39 * 3 and all(pushed_after == found for pushed_after, found in seen)
    assert x.version == 39


def test_d4_a_variable_that_is_named_twice_counts_once_as_written(engine):
    x, seen = engine.var(), []
    engine.push(lambda: seen.append(1), reads=[x, x], writes=[x, x])
    engine.push(lambda: seen.append(2), reads=[x])
    engine.wait(x, timeout=LIMIT)
    engine.wait_all(timeout=LIMIT)
    assert seen == [1, 2] and x.version == 1


def test_d5_an_exception_reaches_what_depends_on_it_and_is_raised_once(engine):
    x, y, other, seen = engine.var(), engine.var(), engine.var(), []
    engine.push(fails, writes=[x])
    engine.push(lambda: seen.append("y"), reads=[x], writes=[y])
    engine.push(lambda: seen.append("other"), writes=[other])
    engine.push(lambda: seen.append("always"), reads=[y], always=True)
    with pytest.raises(ValueError, match="no luck"):
        engine.wait(y, timeout=LIMIT)
    engine.wait(y, timeout=LIMIT)
    engine.wait(other, timeout=LIMIT)
    with pytest.raises(ValueError, match="no luck"):
        engine.wait(x, timeout=LIMIT)
    engine.wait_all(timeout=LIMIT)
    assert sorted(seen) == ["always", "other"]
    engine.push(lambda: seen.append("y"), reads=[x], writes=[y])
    engine.wait(y, timeout=LIMIT)
    assert seen[-1] == "y"


class Shy(Exception):
    """Cannot describe itself."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")

    __str__ = __repr__


def test_d5_an_exception_that_cannot_describe_itself_is_raised_like_any_other(engine):
    x = engine.var()

    def fail() -> None:
        raise Shy

    engine.push(fail, writes=[x])
    with pytest.raises(Shy):
        engine.wait(x, timeout=LIMIT)
    engine.push(lambda: None, writes=[x])
    engine.wait(x, timeout=LIMIT)


def test_d5_a_wait_for_everything_raises_what_no_other_wait_has_raised(engine):
    x, y = engine.var(), engine.var()

    def fail(text: str) -> None:
        raise ValueError(text)

    engine.push(lambda: fail("first"), writes=[x])
    engine.push(lambda: fail("second"), writes=[y])
    with pytest.raises(ValueError, match="first"):
        engine.wait(x, timeout=LIMIT)
    with pytest.raises(ValueError, match="second"):
        engine.wait_all(timeout=LIMIT)
    engine.wait_all(timeout=LIMIT)


def test_d5_a_wait_for_everything_raises_the_first_exception_once(engine):
    x = engine.var()
    engine.push(fails, writes=[x])
    with pytest.raises(ValueError, match="no luck"):
        engine.wait_all(timeout=LIMIT)
    engine.wait_all(timeout=LIMIT)
    engine.wait(x, timeout=LIMIT)


def test_d7_an_operation_may_end_on_another_thread_once(engine):
    x, threads, errors = engine.var(), [], []

    def later(completion) -> None:
        def end() -> None:
            completion()
            try:
                completion()
            except InvalidArgumentError as error:
                errors.append(str(error))

        threads.append(threading.Thread(target=end))
        threads[-1].start()

    engine.push_async(later, writes=[x])
    engine.wait(x, timeout=LIMIT)
    threads[0].join()
    assert errors == ["the operation has been completed before"]
    engine.push_async(lambda completion: completion(ValueError("told")), writes=[x])
    with pytest.raises(ValueError, match="told"):
        engine.wait(x, timeout=LIMIT)


def test_d7_an_operation_that_never_ends_is_in_the_report():
    engine, kept = Engine(name="d7"), []
    x = engine.var("x")
    engine.push_async(kept.append, writes=[x], name="forgotten")
    engine.push(lambda: None, reads=[x], name="reader")
    with pytest.raises(
        StallError, match=r"x not ready after 0.05 s: forgotten \(running for .* s\), reader \(waiting\)"
    ):
        engine.wait(x, timeout=0.05)
    with pytest.raises(StallError, match=r"engine 'd7': still running after 0\.05 s: forgotten"):
        engine.close(timeout=0.05)
    kept[0]()


def test_d8_ready_operations_of_higher_priority_come_first(busy):
    engine, gate = busy
    seen = []
    for priority in (1, 5, 3, 5):
        engine.push(lambda priority=priority: seen.append(priority), priority=priority)
    gate.set()
    engine.wait_all(timeout=LIMIT)
    assert seen == [5, 5, 3, 1]


def test_d9_a_deleted_variable_serves_the_operations_that_have_it_and_no_other(busy):
    engine, gate = busy
    x, seen = engine.var("x"), []
    engine.push(lambda: seen.append(1), writes=[x])
    x.delete()
    x.delete()
    with pytest.raises(InvalidArgumentError, match="the variable 'x' has been deleted"):
        engine.push(lambda: seen.append(2), writes=[x])
    gate.set()
    engine.wait_all(timeout=LIMIT)
    assert seen == [1] and engine.core.counters()["variables"] == 0


def test_d9_a_wait_within_an_operation_is_an_error(engine):
    x, errors = engine.var(), []

    def waits() -> None:
        for wait in (lambda: engine.wait(x, timeout=LIMIT), lambda: engine.wait_all(timeout=LIMIT)):
            with pytest.raises(InvalidArgumentError, match="a wait within an operation") as raised:
                wait()
            errors.append(raised)

    engine.push(waits, writes=[x])
    engine.wait(x, timeout=LIMIT)
    assert len(errors) == 2


def test_d9_a_closed_engine_ends_what_has_not_started(busy):
    engine, gate = busy
    x, told = engine.var(), []
    engine.push(lambda: told.append("ran"), writes=[x])
    engine.when_written(x, told.append)
    with pytest.raises(StallError, match="still running after 0 s: gate"):
        engine.close(timeout=0)
    gate.set()
    with pytest.raises(ShutDownError, match="closed before the operation started"):
        engine.wait(x, timeout=LIMIT)
    assert [type(each) for each in told] == [ShutDownError]
    with pytest.raises(ShutDownError, match="the engine is closed"):
        engine.push(lambda: None)


def test_d9_an_engine_may_be_dropped_with_work_pending_also_by_its_own_operation():
    engine, seen = Engine(), []
    gate, arrived = threading.Event(), threading.Event()
    engine.push(lambda: (arrived.set(), gate.wait(LIMIT), seen.append("ran")))
    engine.push(lambda: seen.append("next"))
    assert arrived.wait(LIMIT)
    threading.Timer(0.05, gate.set).start()
    del engine
    gc.collect()  # waits for the operation that runs
    assert seen in (["ran"], ["ran", "next"])
    ended = threading.Event()

    def last(own: list[Engine]) -> None:
        own.clear()  # the last reference to the engine
        ended.set()

    own = [Engine()]
    own[0].push(lambda: last(own))
    assert ended.wait(LIMIT)


def test_d9_a_program_may_end_with_work_pending():
    program = (
        "import threading\n"
        "from horocache.dag import Engine\n"
        "engine = Engine()\n"
        "engine.push(threading.Event().wait, name='for ever')\n"
        "engine.push(print, writes=[engine.var()])\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], timeout=LIMIT, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_d9_in_the_child_of_a_fork_an_engine_is_an_error():
    engine = Engine()
    child = os.fork()
    if child == 0:
        try:
            engine.push(lambda: None)
        except ForkedProcessError:
            os._exit(7)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    engine.push(lambda: None)
    engine.wait_all(timeout=LIMIT)
    engine.close()


def test_d10_memory_stays_flat_over_many_operations():
    engine = Engine()
    x = engine.var()

    def rounds(count: int) -> int:
        for _ in range(count):
            for _ in range(100):
                engine.push(int, writes=[x])
            engine.wait(x, timeout=LIMIT)
        return engine.core.counters()["allocations"]

    before = rounds(3)
    assert rounds(50) == before
    engine.close()


def test_functions_and_what_they_hold_are_freed_soon_after_their_operation(busy):
    engine, gate = busy

    class Thing:
        pass

    things = [Thing(), Thing()]
    gone = [weakref.ref(thing) for thing in things]
    engine.push(lambda thing=things[0]: None)
    engine.push(fails, writes=[x := engine.var()])
    engine.push(lambda thing=things[1]: None, reads=[x])  # not run
    del things
    gate.set()
    with pytest.raises(ValueError, match="no luck"):
        engine.wait_all(timeout=LIMIT)
    engine.push(lambda: None)
    engine.wait_all(timeout=LIMIT)
    gc.collect()
    assert [ref() for ref in gone] == [None, None]


def test_views_of_an_array_are_one_variable(engine):
    array, seen = np.zeros(10), []
    engine.push(lambda: seen.append(1), writes=[array[2:5]])
    engine.push(lambda: seen.append(2), reads=[array.reshape(5, 2)])
    engine.wait(array[::2], timeout=LIMIT)
    engine.wait_all(timeout=LIMIT)
    assert seen == [1, 2]
    assert engine.variable_of(array) is engine.variable_of(array[7:])
    assert engine.variable_of(array) is not engine.variable_of(array.copy())


def test_variables_of_arrays_do_not_pile_up(engine):
    for _ in range(5):
        arrays = [np.zeros(10) for _ in range(1500)]
        for array in arrays:
            engine.push(int, writes=[array])
        engine.wait_all(timeout=LIMIT)
    assert engine.core.counters()["variables"] < 5000


def test_a_variable_that_a_call_has_looked_up_is_not_forgotten_by_the_same_call(busy):
    engine, gate = busy
    arrays = [np.zeros(10) for _ in range(1024)]
    for array in arrays:
        engine.variable_of(array)
    seen = []
    engine.push(lambda: seen.append("written"), writes=[arrays[0], np.zeros(10)])  # the second one makes room
    gate.set()
    engine.wait(arrays[0], timeout=LIMIT)
    assert seen == ["written"]


def test_an_exception_does_not_outlive_its_array():
    engine = Engine()
    first = np.zeros(1000)
    address = first.ctypes.data
    engine.push(fails, writes=[first])
    with pytest.raises(ValueError, match="no luck"):
        engine.wait_all(timeout=LIMIT)
    engine.push(fails, writes=[first])
    engine.wait_quietly(first)
    del first
    others = [np.zeros(1000) for _ in range(20)]
    again = [other for other in others if other.ctypes.data == address]
    for other in again:
        engine.wait(other, timeout=LIMIT)
    engine.close()
    assert again, "the allocator gives memory of this size again"


def test_arrays_without_elements_have_no_variable_in_common(engine):
    engine.push(fails, writes=[np.zeros(0)])
    engine.push(lambda: None, writes=[other := np.zeros(0)])
    engine.wait(other, timeout=LIMIT)
    with pytest.raises(ValueError, match="no luck"):
        engine.wait_all(timeout=LIMIT)


def test_a_function_can_be_an_operation(engine):
    @engine.operation(writes=["target"])
    def add(target, source, factor=1):
        target += factor * source

    target, source = np.zeros(3), np.ones(3)
    add(target, source, factor=2)
    add(source, target)  # reads the target
    engine.wait(source, target, timeout=LIMIT)
    assert target.tolist() == [2.0] * 3 and source.tolist() == [3.0] * 3

    @engine.operation(writes=["into"])
    def total(into, *parts, **more):
        into[:] = sum(parts) + sum(more.values())

    total(target, source, source, third=source)
    engine.wait(target, timeout=LIMIT)
    assert target.tolist() == [9.0] * 3
    with pytest.raises(InvalidArgumentError, match="has no argument missing"):
        engine.operation(writes=["missing"])(add)


def test_asyncio_may_wait_for_variables(engine):
    x, y = engine.var(), engine.var()

    async def main() -> list[str]:
        seen = []
        engine.push(lambda: seen.append("x"), writes=[x])
        engine.push(fails, writes=[y])
        await x
        with pytest.raises(ValueError, match="no luck"):
            await y
        return seen

    assert asyncio.run(main()) == ["x"]


@pytest.mark.parametrize(
    ("threads", "text"),
    [
        (0, "1 to 16 queues"),
        ({}, "1 to 16 queues"),
        ({"cpu": 0}, "1 to 16 queues"),
        ({str(i): 1 for i in range(17)}, "1 to 16"),
    ],
)
def test_an_engine_needs_threads(threads, text):
    with pytest.raises(InvalidArgumentError, match=text):
        Engine(threads)


def test_operands_and_queues_are_checked(engine):
    other = Engine(name="other")
    x = other.var("x")
    with pytest.raises(InvalidArgumentError, match="a variable of engine 'other', not of"):
        engine.push(lambda: None, reads=[x])
    with pytest.raises(InvalidArgumentError, match="not int"):
        engine.push(lambda: None, writes=[7])
    with pytest.raises(InvalidArgumentError, match="has no queue 'copy'; it has cpu"):
        engine.push(lambda: None, queue="copy")
    with pytest.raises(InvalidArgumentError, match="record=True"):
        engine.graph()
    other.close()


def test_queues_have_threads_of_their_own(busy):
    _, gate = busy
    engine = Engine({"cpu": 1, "copy": 1})
    copied = threading.Event()
    engine.push(lambda: gate.wait(LIMIT))
    engine.push(copied.set, queue="copy")
    assert copied.wait(LIMIT)
    gate.set()
    engine.close()
