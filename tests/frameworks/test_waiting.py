"""While one rank waits, computes or is stopped, other work continues, and waiting uses no processor time."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from ranks import on_ranks

import horocache as hc
from horocache.testing import Fault, run_ranks


@on_ranks(2)
def test_other_threads_of_a_rank_run_while_one_waits(tmp_path):
    released = tmp_path / "released"
    waits = threading.Event()

    def release_rank_1():
        waits.wait(30)
        time.sleep(0.1)  # by now the main thread is in synchronize
        released.touch()

    if hc.rank() == 0:
        threading.Thread(target=release_rank_1).start()
        handle = hc.allreduce_async(np.ones(2), op=hc.Sum, name="x")
        waits.set()
        assert hc.synchronize(handle).tolist() == [2.0, 2.0]
        return
    while not released.exists():  # rank 0 waits for this rank, and this rank for rank 0's other thread
        time.sleep(0.001)
    assert hc.allreduce(np.ones(2), op=hc.Sum, name="x").tolist() == [2.0, 2.0]


@on_ranks(3)
def test_waiting_for_a_late_rank_uses_no_processor_time_and_is_counted():
    spent = 0.0
    for step in range(5):
        if hc.rank() == 1 and step > 0:
            time.sleep(0.25)
        before = time.process_time()
        hc.allreduce(np.ones(2), name="x")
        spent += time.process_time() - before
    if hc.rank() != 1:
        waited_ns = [hc.metrics().get(f"wait_ns.{rank}", 0) for rank in range(3)]
        assert spent < 0.5, "the wait of one second used processor time"
        assert waited_ns[1] > 0.3e9 and waited_ns[1] == max(waited_ns), waited_ns


@on_ranks(3)
def test_collectives_complete_while_a_rank_holds_the_gil_in_native_code(tmp_path):
    fifo = tmp_path / "fifo"
    if hc.rank() == 0:
        os.mkfifo(fifo)
    hc.barrier()
    handles = [hc.allreduce_async(np.full(100_000, 1.0), op=hc.Sum, name=f"t{i}") for i in range(3)]
    if hc.rank() == 1:
        with fifo.open("rb") as pipe:
            # PyDLL does not release the GIL: no Python code runs here until the other ranks have their results.
            assert ctypes.PyDLL(None).read(pipe.fileno(), ctypes.create_string_buffer(1), 1) == 1
    assert [float(hc.synchronize(handle).sum()) for handle in handles] == [300_000.0] * 3
    if hc.rank() == 0:
        with fifo.open("wb") as pipe:
            pipe.write(b"x")


def test_a_blocked_operation_in_one_set_does_not_block_other_sets(tmp_path):
    def use_two_sets(folder):
        blocked, free = hc.ProcessSet([0, 1]), hc.ProcessSet([0, 2])
        hc.init(process_sets=[blocked, free])
        if hc.rank() == 1:
            (folder / "part").write_text(str(os.getpid()))
            (folder / "part").rename(folder / "pid")
        if blocked.included():  # rank 1 stops during this operation
            large = hc.allreduce_async(np.ones(3_000_000), op=hc.Sum, name="large", process_set=blocked)
        if free.included():
            while not _is_stopped(folder / "pid"):
                time.sleep(0.001)
            for step in range(100):
                assert hc.allreduce(np.full(10, step), op=hc.Sum, name="small", process_set=free)[0] == 2 * step
        if hc.rank() == 2:
            os.kill(int((folder / "pid").read_text()), signal.SIGKILL)
        else:
            with pytest.raises(hc.PeerLostError, match=r"rank 1 .*signal 9"):
                hc.synchronize(large)
        return "survived"

    outcomes = run_ranks(use_two_sets, 3, args=(tmp_path,), faults=[Fault("data", "stop", 1, 1)], check=False)
    assert [outcome.value for outcome in outcomes] == ["survived", None, "survived"], [o.describe() for o in outcomes]


def _is_stopped(file):
    """True if the process whose number is in the file has been stopped."""
    return file.exists() and Path(f"/proc/{file.read_text()}/stat").read_text().rpartition(") ")[2].startswith("T")
