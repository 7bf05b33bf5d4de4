"""Process sets that are added and removed while a job with several processes runs."""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from ranks import calling_thread_is_in, on_ranks, signal_in_a_wait

import horocache as hc
from horocache.core import context
from horocache.testing import run_ranks

from .bindings import both_bindings


@both_bindings
@on_ranks(4, init=False)
def test_a_set_is_added_used_removed_and_added_again(binding):
    first, odd = hc.ProcessSet([0, 2]), hc.ProcessSet([1, 3])
    hc.init(process_sets=[first])
    assert hc.add_process_set(odd) is odd and odd.process_set_id == 2
    pair = hc.add_process_set([3, 0])
    assert pair.process_set_id == 3 and pair.ranks == [0, 3]
    assert hc.process_sets() == [hc.global_process_set, first, odd, pair]
    for made in (first, odd, pair):
        if made.included():
            mean = hc.allreduce(np.full(3, float(hc.rank())), process_set=made)
            assert mean.tolist() == [sum(made.ranks) / 2] * 3
        else:
            with pytest.raises(hc.InvalidArgumentError, match=f"rank {hc.rank()} is not in process set"):
                hc.barrier(process_set=made)
    for taken, words in ((odd, "is registered already"), ([1, 3], "has the ranks of process set 2")):
        with pytest.raises(ValueError, match=words):
            hc.add_process_set(taken)
    for wrong, words in (([0, 4], "ranks that the job does not have"), ([], "has no ranks"), (range(4), "global")):
        with pytest.raises(ValueError, match=words):
            hc.add_process_set(wrong)

    assert hc.remove_process_set(odd) and odd.process_set_id is None
    assert hc.remove_process_set(first)
    assert not hc.remove_process_set(odd) and not hc.remove_process_set(hc.global_process_set)
    assert [made.process_set_id for made in hc.process_sets()] == [0, 3]
    with pytest.raises(ValueError, match="has not been registered"):
        hc.barrier(process_set=odd)
    assert hc.add_process_set(odd).process_set_id == 4
    if odd.included():
        assert hc.allgather_object(hc.rank(), process_set=odd) == [1, 3]
    hc.barrier()
    hc.shutdown()
    assert odd.process_set_id is None and pair.process_set_id is None


@on_ranks(3, init=False)
def test_adding_different_sets_raises_on_all_ranks_and_the_job_goes_on():
    hc.init(process_sets="dynamic")
    with pytest.raises(hc.MismatchError, match=r"'process_set\.1\.add': rank") as refused:
        hc.add_process_set([1, 2] if hc.rank() == 2 else [0, 1])
    assert "the ranks [0, 1]" in str(refused.value)
    assert "rank 2 submitted the ranks [1, 2]" in str(refused.value)
    assert hc.process_sets() == [hc.global_process_set]
    made = hc.add_process_set([1, 2])
    assert made.process_set_id == 2
    # Rank 0 removes a set while the others add one: each side waits for an operation that the other does not submit.
    with pytest.raises(hc.StallError, match=r"process_set\.(2\.remove|next_number)"):
        if hc.rank() == 0:
            hc.remove_process_set(made)
        else:
            hc.add_process_set([0, 2])
    assert made.process_set_id == 2
    if made.included():
        assert hc.allreduce(np.ones(1), op=hc.Sum, process_set=made)[0] == 2
    assert hc.add_process_set([0, 2]).process_set_id == 3


@on_ranks(4, init=False)
def test_one_thread_adds_and_removes_sets_while_others_use_theirs():
    hc.init(process_sets=[[0, 1, 2], [1, 2, 3]])
    wrong = []
    sets = hc.process_sets()
    done = threading.Event()

    def use(made):
        step = 0
        while not hc.allreduce(np.array([done.is_set()]), op=hc.Max, name="done", process_set=made)[0]:
            got = hc.allreduce(np.full(1000, step), op=hc.Sum, name="x", process_set=made)
            if not (got == step * made.size()).all():
                wrong.append((made, step, got[0]))
            step += 1

    threads = [threading.Thread(target=use, args=(made,)) for made in sets if made.included()]
    for thread in threads:
        thread.start()
    for turn in range(8):
        made = hc.add_process_set([turn % 2, 2 + turn % 2])
        if made.included():
            assert hc.allreduce(np.ones(50_000), op=hc.Sum, process_set=made)[-1] == 2
        assert hc.remove_process_set(made)
    done.set()
    for thread in threads:
        thread.join()
    assert not wrong


@on_ranks(3, init=False)
def test_removed_sets_leave_no_files_threads_or_mappings():
    def resources():
        """The numbers of open files, threads and shared mappings of this process."""
        maps = Path("/proc/self/maps").read_text().count("memfd")
        return *(len(list(Path(f"/proc/self/{kind}").iterdir())) for kind in ("fd", "task")), maps

    hc.init()
    counts = set()
    for _ in range(20):
        made = hc.add_process_set([0, 1])
        if made.included():
            hc.allreduce(np.ones(10), process_set=made)
        assert hc.remove_process_set(made)
        counts.add(resources())
    assert len(counts) == 1, counts


@on_ranks(3)
def test_pending_operations_fail_when_their_set_is_removed():
    made = hc.add_process_set([0, 1])
    if hc.rank() == 0:
        alone = hc.allreduce_async(np.ones(1), name="alone", process_set=made)
    assert hc.remove_process_set(made)
    if hc.rank() == 0:
        with pytest.raises(hc.ShutDownError, match=r"left process set 1 while .* 'allreduce.alone' was pend"):
            hc.synchronize(alone)
    hc.barrier()


@on_ranks(3)
def test_a_set_is_added_on_no_rank_if_one_member_fails():
    if hc.rank() == 1:  # rank 1 creates the set's memory
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
    with pytest.raises(hc.StartupError, match=r"process set 1 \(\[1, 2\]\) was not added: on ranks 1, 2: OutOfMem"):
        hc.add_process_set([1, 2])
    assert hc.process_sets() == [hc.global_process_set]
    if hc.rank() == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    made = hc.add_process_set([1, 2])
    assert made.process_set_id == 2
    if made.included():
        hc.barrier(process_set=made)


def test_a_member_that_dies_while_a_set_is_added_is_named_at_once():
    def add_while_rank_1_dies():
        hc.init()
        if hc.rank() == 1:
            runtime = context.current().runtime
            hc.allreduce(np.array([1, 0]), op=hc.Max, name="process_set.next_number")
            runtime.wait(runtime.propose_set(1, [0, 1]))
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(hc.PeerLostError, match=r"rank 1 .*signal 9"):
            hc.add_process_set([0, 1])
        return "survived"

    # Longer than a test may take, so that the test fails if a rank waits for this timeout.
    outcomes = run_ranks(add_while_rank_1_dies, 3, knobs={"start_timeout": 600}, check=False)
    assert [outcome.value for outcome in outcomes] == ["survived", None, "survived"], [o.describe() for o in outcomes]


@on_ranks(3)
def test_no_set_is_added_while_a_rank_has_joined():
    if hc.rank() != 1:
        for change in (lambda: hc.add_process_set([0, 1]), lambda: hc.add_process_set([0, 2])):
            with pytest.raises(hc.UnsupportedError, match="rank 1 joined"):
                change()
    assert hc.join() in (0, 2)
    assert hc.add_process_set([0, 1]).process_set_id == 3


@both_bindings
@on_ranks(3, init=False)
def test_sets_can_be_added_after_an_interrupt_on_one_rank(binding, tmp_path):
    interrupted = tmp_path / "interrupted"

    def interrupt(number, frame):
        raise KeyboardInterrupt

    hc.init()
    signal.signal(signal.SIGUSR1, interrupt)
    if hc.rank() == 0:
        with pytest.raises(KeyboardInterrupt):
            signal_in_a_wait(calling_thread_is_in("add_process_set"), signal.SIGUSR1)
            hc.add_process_set([0, 1])
        interrupted.touch()
    while not interrupted.exists():
        time.sleep(0.01)
    made = hc.add_process_set([0, 1])
    if made.included():
        assert hc.allreduce(np.ones(1), op=hc.Sum, process_set=made)[0] == 2
    hc.barrier()


@on_ranks(3, init=False)
def test_a_refused_operation_keeps_no_reference_after_a_set_is_added():
    pair = hc.ProcessSet([0, 1])
    hc.init(process_sets=[pair])
    tensor = np.ones(3)
    if hc.rank() == 2:
        before = sys.getrefcount(tensor)
        with pytest.raises(hc.InvalidArgumentError, match="rank 2 is not in process set"):
            hc.allreduce_(tensor, process_set=pair)
    hc.add_process_set([1, 2])
    hc.barrier()
    if hc.rank() == 2:
        assert sys.getrefcount(tensor) == before


@both_bindings
@on_ranks(2)
def test_invalid_process_sets_raise(binding):
    for wrong in ([2**31], [2**40], "01", 3):
        with pytest.raises(hc.InvalidArgumentError):
            hc.add_process_set(wrong)
    with pytest.raises(hc.InvalidArgumentError, match="a process set can be removed"):
        hc.remove_process_set([0, 2])
