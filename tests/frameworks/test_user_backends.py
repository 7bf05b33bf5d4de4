"""Backends that a program writes in Python (M13): registration, faults of their code, sets, and the end of a job."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
import time

import numpy as np
import pytest
from conformance.star_backend import Star
from ranks import on_ranks

import horocache as hc
import horocache.mcr_dl as mcr_dl
from horocache.testing import run_ranks
from horocache.user_backends import Backend, register_backend, registered_backends, unregister_backend

from .mcr_dl import cases

# Every survivor has its error by then, also on a busy machine; the limits in the jobs are much shorter.
SECONDS = 30
ONES = np.ones(1000, np.float32)


def total(backend, **how):
    return hc.allreduce(ONES, op=hc.Sum, backend=backend, **how)[0]


def start_with(backend, **knobs):
    register_backend("own", backend)
    hc.init(**knobs)


def errors_of(program, *arguments, ranks=3, knobs=None):
    """Run a program that fails on all ranks; return the outcomes by rank, and check that they came in time."""
    began = time.monotonic()
    outcomes = run_ranks(program, ranks, args=arguments, check=False, timeout=SECONDS, knobs=knobs)
    assert time.monotonic() - began < SECONDS + 10
    assert all(outcome.finished for outcome in outcomes), "\n".join(outcome.describe() for outcome in outcomes)
    return outcomes


# ---- registration


class Nothing(Backend):
    """Has neither start nor test."""


class Local(Backend):
    """Ends every operation at once; for one rank."""

    def start(self, call):
        return None

    def test(self, work):
        return True


def derived(**attributes):
    return type("Derived", (Local,), attributes)


MISTAKES = {
    "bad name": (("a b", Local), "'a b' cannot be a backend's name"),
    "name that is no text": ((3, Local), "3 cannot be a backend's name"),
    "empty name": (("", Local), "'' cannot be a backend's name"),
    "long name": (("x" * 65, Local), "cannot be a backend's name"),
    "slash, which begins an algorithm": (("own/fast", Local), "cannot be a backend's name"),
    "own name": (("shm", Local), "'shm' is a backend of horocache's own"),
    "auto": (("auto", Local), "'auto' is a backend of horocache's own"),
    "object": (("own", object()), "must be a class derived from Backend, not <object"),
    "instance": (("own", Local(None)), "must be a class derived from Backend, not <"),
    "other class": (("own", dict), "must be a class derived from Backend, not <class 'dict'>"),
    "no class": (("own",), "no class for backend 'own', only for: gloo"),
    "no methods": (("own", Nothing), "Nothing defines no start()"),
    "unknown operation": (("own", derived(operations=("allreduce", "fly"))), "operations must be some of allreduce"),
    "operation as text": (("own", derived(operations="allreduce")), "they are 'allreduce'"),
    "no operation": (("own", derived(operations=())), "operations must be some of"),
    "operations that are no list": (("own", derived(operations=3)), "operations must be some of .* they are 3"),
    "operations that are no texts": (("own", derived(operations=([],))), "operations must be some of"),
    "unknown type": (("own", derived(dtypes=("float8",))), "dtypes must be some of uint8"),
    "unknown reduced type": (("own", derived(reduced_dtypes=("float32", "f4"))), "reduced_dtypes must be some of"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_of_registration_are_errors_that_name_the_value(mistake):
    given, message = MISTAKES[mistake]
    message = message.replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(hc.InvalidArgumentError, match=message):
        register_backend(*given)
    assert registered_backends() == []


@on_ranks(1, init=False)
def test_a_backend_is_registered_before_init_and_serves_until_it_is_unregistered():
    register_backend("own", Local)
    register_backend("own", Local)
    with pytest.raises(hc.InvalidArgumentError, match="'own' is registered already, as <class"):
        register_backend("own", Star)
    for _ in range(2):
        hc.init()
        register_backend("own", Local)
        with pytest.raises(hc.InvalidArgumentError, match="'other' comes too late"):
            register_backend("other", Local)
        assert total("own") == 1
        hc.shutdown()
    hc.init()
    unregister_backend("own")  # of later jobs: this one keeps it
    unregister_backend("own")
    assert total("own") == 1
    hc.shutdown()
    hc.init()
    with pytest.raises(hc.UnsupportedError, match="no backend 'own'"):
        total("own")


@on_ranks(1, init=False)
def test_a_job_through_the_c_abi_refuses_backends_in_python():
    register_backend("own", Local)
    with pytest.raises(hc.UnsupportedError, match=r"HOROCACHE_BINDING=cffi runs no backends of the program \(own\)"):
        hc.init(binding="cffi")
    assert not hc.is_initialized()
    hc.init(binding="native")
    assert total("own") == 1


# ---- M13


@on_ranks(2, init=False, timeout=100)
def test_m13_a_class_of_the_program_passes_the_cases_of_m2():
    register_backend("star", Star)
    mcr_dl.init(["star", "shm"])
    for dtype in ("float32", "int64", "bool", "bfloat16"):
        maker = cases.Maker("torch" if dtype == "bfloat16" else "numpy", dtype)
        for shape in cases.SHAPES:
            cases.Operations("star", maker).all(shape)
        cases.VectoredOperations("star", maker).all(0)
        if dtype != "bfloat16":  # the class folds in another order
            cases.check_reductions("star", maker)
    mcr_dl.finalize()


class OnlyAllreduce(Star):
    operations = ("allreduce", "barrier")
    dtypes = ("float32", "int32", "float16")
    reduced_dtypes = ("float32", "int32")
    started = 0

    def start(self, call):
        type(self).started += 1
        return super().start(call)


@on_ranks(3, init=False)
def test_m13_what_a_class_lacks_is_an_error_of_the_call_before_anything_is_sent():
    start_with(OnlyAllreduce, inline_max=0)
    calls = {
        "broadcast": lambda: hc.broadcast(ONES, root_rank=0, backend="own"),
        "allgather": lambda: hc.allgather(ONES, backend="own"),
        "alltoall": lambda: hc.alltoall(np.ones(3), backend="own"),
        "reducescatter": lambda: hc.reducescatter(ONES, op=hc.Sum, backend="own"),
        "float64": lambda: hc.allreduce(ONES.astype(np.float64), op=hc.Sum, backend="own"),
        "float16": lambda: hc.allreduce(ONES.astype(np.float16), op=hc.Sum, backend="own"),
    }
    for what, call in calls.items():
        before = hc.metrics()
        with pytest.raises(hc.UnsupportedError) as raised:
            call()
        assert "own" in str(raised.value) and what in str(raised.value), str(raised.value)
        assert hc.metrics().since(before)["bytes_copied"] == 0
    assert OnlyAllreduce.started == 0
    assert total("own") == 3 and OnlyAllreduce.started == 1
    assert hc.broadcast(ONES, root_rank=0, backend="own|shm")[0] == 1  # the next one of a list


# ---- faults of its code


class Wrong(Star):
    """Does something on rank 1, in one of its methods, from the second operation on."""

    where, what, number = "", "", 0

    def __init__(self, group):
        self.maybe("init")
        super().__init__(group)

    def start(self, call):
        self.call = call
        type(self).number += 1
        self.maybe("start")
        return super().start(call)

    def test(self, work):
        found = self.maybe("test")
        return True if found is None else found[0]

    def close(self):
        super().close()
        self.maybe("close")

    def maybe(self, where):
        if (
            os.environ["HOROCACHE_RANK"] != "1"
            or where != self.where
            or (where in ("start", "test") and self.number < 2)
        ):
            return None
        if self.what == "raise":
            raise ValueError(f"the code of {where} is wrong")
        if self.what == "exit":
            raise SystemExit(3)
        if self.what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.what == "hang":
            time.sleep(3600)
        if self.what == "hang until cancelled":
            while not self.call.cancelled:
                time.sleep(0.01)
        if self.what == "never":
            return [False]
        return [{"none": None, "one": 1, "text": "yes", "numpy": np.bool_(True)}[self.what]]


def fails(where, what):
    """Operations until one fails; then the next one must fail, too.

    An operation may have ended on the others when rank 1's code fails after its exchange, so there is a third one.
    """
    Wrong.where, Wrong.what = where, what
    start_with(Wrong)
    try:
        for _ in range(3):
            assert total("own") == hc.size()
    except hc.HorocacheError as error:
        with pytest.raises(hc.HorocacheError):
            total("shm")
        return f"{type(error).__name__}: {error}"
    finally:
        hc.shutdown()
    return None


@pytest.mark.parametrize("where", ["init", "start", "test"])
@pytest.mark.parametrize("what", ["raise", "exit"])
def test_m13_an_exception_in_the_code_of_a_backend_ends_the_job_on_all_ranks_with_its_text(where, what):
    said = "SystemExit: 3" if what == "exit" else f"ValueError: the code of {where} is wrong"
    for outcome in errors_of(fails, where, what):
        assert "AbortedError" in outcome.value, outcome.describe()
        assert f"backend own failed on rank 1 in allreduce: {said}" in outcome.value


@pytest.mark.parametrize("what", ["none", "one", "text", "numpy"])
def test_m13_nonsense_that_test_returns_is_an_error_that_quotes_it(what):
    quoted = {"none": "None", "one": "1", "text": "'yes'", "numpy": "np.True_"}[what]
    for outcome in errors_of(fails, "test", what, ranks=2):
        assert "AbortedError" in outcome.value, outcome.describe()
        assert f"TypeError: Wrong.test() returned {quoted}, not True or False" in outcome.value


@pytest.mark.parametrize(
    ("where", "what"),
    [("init", "hang"), ("start", "hang"), ("start", "hang until cancelled"), ("test", "hang"), ("test", "never")],
)
def test_m13_a_backend_that_does_not_end_an_operation_fails_it_on_all_ranks_after_the_limit(where, what):
    knobs = {"stall_check_time_seconds": 0.5, "stall_shutdown_time_seconds": 1.5}
    for outcome in errors_of(fails, where, what, knobs=knobs):
        assert outcome.value and outcome.value.split(":")[0] in ("StallError", "AbortedError"), outcome.describe()
        assert outcome.exit_code == 0, outcome.describe()


@on_ranks(2, init=False)
def test_an_exception_in_close_is_shown_and_harms_nothing():
    Wrong.where, Wrong.what = "close", "raise"
    start_with(Wrong)
    for _ in range(3):
        assert total("own") == 2
    hc.shutdown()
    hc.init()
    assert total("own") == 2


# ---- ranks whose classes differ


class Other(Star):
    operations = ("allreduce", "broadcast")


class OtherTypes(Star):
    dtypes = ("float32",)


class OtherReducedTypes(Star):
    reduced_dtypes = ("float32",)


DIFFERENCES = {
    "names": ([("one", Star)], [("two", Star)]),
    "operations": ([("one", Star)], [("one", Other)]),
    "types": ([("one", Star)], [("one", OtherTypes)]),
    "reduced types": ([("one", Star)], [("one", OtherReducedTypes)]),
    "number": ([("one", Star)], []),
}


def differs(first, others):
    for name, backend in first if os.environ["HOROCACHE_RANK"] == "0" else others:
        register_backend(name, backend)
    hc.init(start_timeout=10)


@pytest.mark.parametrize("what", DIFFERENCES)
def test_ranks_whose_backends_differ_do_not_start_and_tell_both(what):
    for outcome in errors_of(differs, *DIFFERENCES[what], ranks=2):
        assert isinstance(outcome.error, hc.VersionSkewError), outcome.describe()
        assert "backend" in str(outcome.error) and "one" in str(outcome.error), outcome.describe()


def in_any_order():
    for name in ("one", "two") if os.environ["HOROCACHE_RANK"] == "0" else ("two", "one"):
        register_backend(name, Star)
    mcr_dl.init()
    assert mcr_dl.get_backends() == ["shm", "one", "two"]
    assert total("one") == total("two") == 2


def test_ranks_register_in_any_order():
    run_ranks(in_any_order, 2)


# ---- sets, and the end


@on_ranks(4, init=False)
def test_each_process_set_has_an_object_of_its_own():
    start_with(Star)
    rank = hc.rank()
    sets = [hc.add_process_set(ranks) for ranks in ([0, 1], [1, 2, 3], [0, 3])]
    for step in range(3):
        how = {"op": hc.Sum, "backend": "own"}
        mine = [each for each in sets if each.included()]
        handles = [
            (hc.allreduce_async(ONES * rank, process_set=each, name=f"{step}.{each.ranks}", **how), each)
            for each in mine
        ]
        assert total("own", name=f"{step}.all") == 4
        for handle, each in handles:
            assert hc.synchronize(handle)[0] == sum(each.ranks)
    hc.remove_process_set(sets[0])
    again = hc.add_process_set([0, 1])
    if again.included():
        assert total("own", process_set=again) == 2
    assert total("own") == 4


@on_ranks(3, init=False)
def test_threads_of_removed_process_sets_are_not_kept():
    start_with(Star)

    def serve_and_remove():
        made = hc.add_process_set([0, 1])
        if made.included():
            assert total("own", process_set=made) == 2
        hc.remove_process_set(made)

    def is_of_a_set(each):
        return isinstance(each, threading.Thread) and each.name.startswith("hc-own-") and each.name != "hc-own-0"

    for _ in range(20):
        serve_and_remove()
    limit = time.monotonic() + SECONDS
    while any(map(is_of_a_set, threading.enumerate())):
        assert time.monotonic() < limit
        time.sleep(0.01)
    serve_and_remove()
    gc.collect()
    assert sum(map(is_of_a_set, gc.get_objects())) <= 1


@on_ranks(3, init=False)
def test_a_rule_may_send_everything_to_the_backend_also_the_operation_by_which_its_ranks_meet():
    start_with(Star, select=";".join(f"{op}=own" for op in ("allreduce", "allgather", "broadcast")), inline_max=0)
    assert hc.allreduce(ONES, op=hc.Sum)[0] == 3
    assert hc.allgather(np.full(1, hc.rank())).tolist() == [0, 1, 2]
    assert hc.allgather_object(hc.rank()) == [0, 1, 2]
    some = hc.add_process_set([0, 2])
    if some.included():
        assert hc.allgather(np.full(1, hc.rank()), process_set=some).tolist() == [0, 2]


@on_ranks(3, init=False)
def test_shutdown_while_a_backend_runs_fails_the_operation_and_the_next_job_works():
    Wrong.where, Wrong.what = "start", "hang until cancelled"
    start_with(Wrong)
    assert total("own") == 3
    handle = hc.allreduce_async(ONES, op=hc.Sum, backend="own", name="pending")
    while Wrong.number < 2:
        time.sleep(0.001)
    hc.shutdown()
    with pytest.raises(hc.HorocacheError):
        hc.synchronize(handle)
    assert not [each for each in threading.enumerate() if each.name.startswith("hc-own")]
    Wrong.what = "nothing"
    Wrong.where = ""
    hc.init()
    assert total("own") == 3


def killed(where):
    Wrong.where, Wrong.what = where, "kill"
    start_with(Wrong)
    try:
        for _ in range(3):
            assert total("own") == hc.size()
    except hc.HorocacheError as error:
        return type(error).__name__, str(error)
    return None


@pytest.mark.parametrize("where", ["start", "test"])
def test_m12_a_rank_that_is_killed_in_an_operation_of_a_backend_is_named_on_the_others(where):
    outcomes = run_ranks(killed, 4, args=(where,), check=False, timeout=SECONDS)
    assert outcomes[1].exit_code == -signal.SIGKILL
    for outcome in (outcomes[0], *outcomes[2:]):
        assert outcome.finished and outcome.error is None and outcome.exit_code == 0, outcome.describe()
        # Its connections end first, so the survivor's own code raises before the loss is known.
        kind, text = outcome.value
        assert kind == "PeerLostError" and "rank 1" in text and "signal 9" in text, outcome.describe()


def in_child(pipe):
    try:
        total("own")
    except hc.ForkedProcessError as error:
        pipe.send(str(error))


@on_ranks(2, init=False)
def test_a_child_of_fork_has_no_backend_and_leaves_the_parents_alone():
    start_with(Star)
    assert total("own") == 2
    receiver, sender = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=in_child, args=(sender,))
    child.start()
    assert receiver.poll(SECONDS) and "the runtime belongs to the parent" in receiver.recv()
    child.join()
    assert child.exitcode == 0
    assert total("own") == 2
