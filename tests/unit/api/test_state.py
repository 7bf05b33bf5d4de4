"""The default runtime of a process: start, end, fork, and invalid arguments."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest
from ranks import on_ranks

import horocache as hc


def test_calls_before_init_raise():
    for call in (hc.rank, hc.size, hc.local_rank, hc.local_size, hc.cross_rank, hc.cross_size, hc.is_homogeneous):
        with pytest.raises(hc.NotInitializedError, match=r"call init\(\) first"):
            call()
    for call in (hc.metrics, hc.barrier, hc.join, lambda: hc.allreduce([1.0]), lambda: hc.synchronize(0)):
        with pytest.raises(ValueError, match=r"call init\(\) first"):
            call()
    assert not hc.is_initialized()
    hc.shutdown()


@on_ranks(1)
def test_one_process_alone_is_a_job_of_one_rank():
    assert (hc.rank(), hc.size(), hc.local_rank(), hc.local_size()) == (0, 1, 0, 1)
    assert (hc.cross_rank(), hc.cross_size(), hc.is_homogeneous()) == (0, 1, True)
    assert hc.allreduce([1.0, 2.0]).tolist() == [1.0, 2.0]
    assert hc.global_process_set.ranks == [0] and hc.global_process_set.included()
    assert hc.join() == 0
    hc.barrier()
    assert isinstance(hc.metrics(), dict) and hc.metrics()
    hc.shutdown()
    assert not hc.is_initialized()


@on_ranks(3)
def test_ranks_have_numbers_and_sizes_in_the_job_the_host_and_the_global_set():
    rank, world = int(os.environ["HOROCACHE_RANK"]), hc.global_process_set
    assert (hc.rank(), hc.size(), hc.local_rank(), hc.local_size()) == (rank, 3, rank, 3)
    assert (world.rank(), world.size(), world.ranks) == (rank, 3, [0, 1, 2])


@on_ranks(1, init=False)
def test_init_refuses_unknown_knobs_and_other_values_while_the_job_runs():
    with pytest.raises(hc.InvalidArgumentError, match=r"cycle_tim.*cycle_time"):
        hc.init(cycle_tim=1)
    with pytest.raises(hc.InvalidArgumentError, match="cache_capacity"):
        hc.init(cache_capacity="many")
    hc.init(comm=[0], cycle_time=2.5, stall_check_disable=True)
    hc.init()
    hc.init(cycle_time=2.5)
    with pytest.raises(hc.InvalidArgumentError, match=r"cycle_time=2\.5.*cycle_time=3"):
        hc.init(cycle_time=3)
    with pytest.raises(hc.InvalidArgumentError, match="no cache_capacity"):
        hc.init(cache_capacity=5)


@on_ranks(3, init=False)
def test_a_list_of_ranks_makes_these_ranks_a_job_in_the_order_of_the_list():
    launched = int(os.environ["HOROCACHE_RANK"])
    if launched == 1:
        with pytest.raises(hc.StartupError, match=r"rank 1 .*not in"):
            hc.init(comm=[2, 0])
        return
    with pytest.raises(hc.InvalidArgumentError, match=r"0 to 2; it has 7"):
        hc.init(comm=[2, 0, 7])
    with pytest.raises(hc.InvalidArgumentError, match=r"\[2, 0, 2\].* has 2 twice"):
        hc.init(comm=[2, 0, 2])
    hc.init(comm=[2, 0], process_sets=[[1]])
    assert (hc.rank(), hc.size(), hc.local_size()) == ([2, 0].index(launched), 2, 2)
    np.testing.assert_array_equal(hc.allgather(np.array([launched])), [2, 0])
    hc.shutdown()


@on_ranks(2, init=False)
def test_init_refuses_invalid_communicators_and_process_sets():
    with pytest.raises(hc.InvalidArgumentError, match="communicator"):
        hc.init(comm=object())
    with pytest.raises(hc.InvalidArgumentError, match="communicator"):
        hc.init(comm="01")
    with pytest.raises(hc.InvalidArgumentError, match=r"size.*'x'"):
        hc.init(comm=[0], size="x")
    with pytest.raises(hc.InvalidArgumentError, match=r"'a'.*whole numbers"):
        hc.init(comm=[0, "a"])
    with pytest.raises(hc.InvalidArgumentError, match="list of process sets"):
        hc.init(process_sets="static")
    with pytest.raises(hc.NotInitializedError):
        hc.add_process_set([0])
    hc.init(comm=[1, 0], process_sets=[])
    with pytest.raises(ValueError, match="has not been registered"):
        hc.allreduce([1.0], process_set=hc.ProcessSet([0]))
    hc.barrier()


@pytest.mark.parametrize("binding", ["native", "cffi"])
@on_ranks(2, init=False)
def test_a_forked_child_reads_the_rank_of_its_parent_and_cannot_operate(binding):
    def answers():
        own, part = hc.global_process_set, hc.process_sets()[1]
        of_set = (part.ranks, part.size(), part.included(), part.process_set_id, part.rank() if hc.rank() else None)
        of_all = (own.ranks, own.rank(), own.size(), own.included(), len(hc.process_sets()))
        job = (hc.rank(), hc.size(), hc.local_rank(), hc.local_size(), hc.cross_rank(), hc.cross_size())
        return job, of_all, of_set, hc.is_homogeneous(), hc.is_initialized(), hc.mpi_enabled()

    hc.init(process_sets=[[1]])
    first = hc.allreduce(np.array([1.0]), op=hc.Sum)
    here = answers()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if os.fork() != 0:  # the child of the child is a forked process, too
                os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
            assert answers() == here
            with pytest.raises(hc.InvalidArgumentError, match="MPI is not active"):
                hc.mpi_threads_supported()
            calls = (hc.init, hc.barrier, hc.metrics, lambda: hc.abort("x"), lambda: hc.allreduce(np.ones(1)))
            for call in (*calls, lambda: hc.add_process_set([0])):
                with pytest.raises(hc.ForkedProcessError, match="forked"):
                    call()
            hc.shutdown()  # has no effect in the child
            assert answers() == here
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert hc.allreduce(np.array([1.0]), op=hc.Sum) == first == [2.0]
    hc.shutdown()
    if (child := os.fork()) == 0:
        os._exit(int(hc.is_initialized()))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@on_ranks(2, init=False)
def test_threads_that_call_init_at_once_have_one_session():
    ready = threading.Barrier(4)
    failures = []

    def start():
        ready.wait()
        try:
            hc.init()
        except hc.HorocacheError as error:
            failures.append(error)

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and hc.allreduce(np.array([1.0]), op=hc.Sum) == [2.0]


def test_libraries_that_are_not_built_in_are_reported_as_missing():
    assert not any(f() for f in (hc.mpi_enabled, hc.gloo_built, hc.gloo_enabled, hc.cuda_built, hc.rocm_built))
    assert not any(f() for f in (hc.ddl_built, hc.ccl_built))
    assert hc.nccl_built() == 0 and isinstance(hc.nccl_built(), int)
    with pytest.raises(ValueError, match="call init"):
        hc.mpi_threads_supported()


def test_process_sets_sort_their_ranks_and_refuse_invalid_ranks():
    assert hc.ProcessSet([3, 1]).ranks == [1, 3] and hc.ProcessSet(range(2)).size() == 2
    with pytest.raises(ValueError, match="distinct"):
        hc.ProcessSet([1, 1])
    with pytest.raises(ValueError, match="not negative"):
        hc.ProcessSet([-1])
    assert hc.global_process_set.process_set_id == 0 and "all" in repr(hc.global_process_set)
    assert not hc.remove_process_set(hc.global_process_set)
