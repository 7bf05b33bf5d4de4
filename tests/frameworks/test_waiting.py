"""While one rank waits, computes or is stopped, other work continues, and waiting takes no processor time."""

from __future__ import annotations

import numpy as np
import pytest

from horocache.testing import Fault, run_ranks


def test_other_threads_of_a_rank_run_while_one_waits(tmp_path):
    def body(signal):
        import threading
        import time

        import horocache as hc

        hc.init()
        waits = threading.Event()

        def help_out():
            waits.wait(30)
            time.sleep(0.1)  # by now the main thread is in synchronize
            signal.touch()

        if hc.rank() == 0:
            threading.Thread(target=help_out).start()
            handle = hc.allreduce_async(np.ones(2), op=hc.Sum, name="x")
            waits.set()
            return hc.synchronize(handle).tolist()
        while not signal.exists():  # rank 0 waits for this rank, and this rank for rank 0's other thread
            time.sleep(0.001)
        return hc.allreduce(np.ones(2), op=hc.Sum, name="x").tolist()

    assert run_ranks(body, 2, args=(tmp_path / "signal",)) == [[2.0, 2.0]] * 2


def test_waiting_for_a_late_rank_takes_no_processor_time_and_is_noted():
    def body():
        import time

        import horocache as hc

        hc.init()
        spent = 0.0
        for step in range(5):
            if hc.rank() == 1 and step > 0:
                time.sleep(0.25)
            before = time.process_time()
            hc.allreduce(np.ones(2), name="x")
            spent += time.process_time() - before
        return spent, [hc.metrics().get(f"wait_ns.{rank}", 0) for rank in range(3)]

    answers = run_ranks(body, 3)
    for rank in (0, 2):
        spent, waited_ns = answers[rank]
        assert spent < 0.5, "it waited for a second"
        assert waited_ns[1] > 0.3e9 and waited_ns[1] == max(waited_ns), "the slow rank is named"


def test_collectives_end_while_a_rank_holds_the_interpreter_in_native_code(tmp_path):
    def body(fifo):
        import ctypes

        import horocache as hc

        hc.init()
        handles = [hc.allreduce_async(np.full(100_000, 1.0), op=hc.Sum, name=f"t{i}") for i in range(3)]
        if hc.rank() == 1:
            with fifo.open("rb") as pipe:
                # PyDLL does not release the GIL: no Python code runs here until the other ranks have their results.
                assert ctypes.PyDLL(None).read(pipe.fileno(), ctypes.create_string_buffer(1), 1) == 1
        sums = [float(hc.synchronize(handle).sum()) for handle in handles]
        if hc.rank() == 0:
            with fifo.open("wb") as pipe:
                pipe.write(b"x")
        return sums

    import os

    os.mkfifo(tmp_path / "fifo")
    assert run_ranks(body, 3, args=(tmp_path / "fifo",)) == [[300_000.0] * 3] * 3


def test_an_operation_that_is_held_up_in_one_set_holds_up_no_other(tmp_path):
    def body(folder):
        import os
        import signal
        import time

        import horocache as hc

        held_up, free = hc.ProcessSet([0, 1]), hc.ProcessSet([0, 2])
        hc.init(process_sets=[held_up, free])
        if hc.rank() == 1:
            (folder / "part").write_text(str(os.getpid()))
            (folder / "part").rename(folder / "pid")
        if held_up.included():  # rank 1 stops during this operation
            large = hc.allreduce_async(np.ones(3_000_000), op=hc.Sum, name="large", process_set=held_up)
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
        return "went on"

    outcomes = run_ranks(body, 3, args=(tmp_path,), faults=[Fault("data", "stop", 1, 1)], check=False)
    assert [outcome.value for outcome in outcomes] == ["went on", None, "went on"], [o.describe() for o in outcomes]


def _is_stopped(file):
    """True if the process whose number is in the file has been stopped."""
    from pathlib import Path

    return file.exists() and Path(f"/proc/{file.read_text()}/stat").read_text().rpartition(") ")[2].startswith("T")
