"""One-sided exchanges of rows that name their sender, receiver and round; a mode says what goes wrong.

usage: windows.py MODE
"""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
from common import attempt, await_file, job, publish, report, together

import horocache as hc
from horocache.moe.exchanges import EarlyExit, OneSided, Outcome

WIDTH = 8


def pattern(sender, receiver, step, rows):
    return np.arange(rows * WIDTH, dtype=np.int64) + ((sender * 64 + receiver) * 10_000 + step) * 1_000


class Rows:
    """A call with three rows for every rank; the host adds one to every number. All numbers are checked."""

    row_bytes = result_row_bytes = WIDTH * 8

    def __init__(self, step, lossless=False, hook=None):
        self.rows = [3] * hc.size()
        self.step = step
        self.lossless = lossless
        self.hook = hook or (lambda event, peer: None)
        self.taken = []

    def pack(self, peer, memory):
        self.hook("pack", peer)
        memory.view(np.int64)[:] = pattern(hc.rank(), peer, self.step, self.rows[peer])

    def serve(self, peer, rows, batch, result):
        self.hook("serve", peer)
        self.check(batch, pattern(peer, hc.rank(), self.step, rows))
        result.view(np.int64)[:] = batch.view(np.int64) + 1

    def take(self, peer, result):
        self.check(result, pattern(hc.rank(), peer, self.step, self.rows[peer]) + 1)
        self.taken.append(peer)

    def check(self, memory, want):
        if not (memory.view(np.int64) == want).all():
            report("wrong", step=self.step)
            sys.exit(99)


def opened(name="layer", **early_exit):
    hosts = (True,) * hc.size()
    exchange = OneSided(name, hc.global_process_set, hosts, (WIDTH * 8, WIDTH * 8), EarlyExit(**early_exit), 3)
    exchange.open()
    return exchange


def named(outcomes):
    return [Outcome(each).name for each in outcomes]


def stopped():
    """Rank 1 is stopped in the first call and goes on when the others have left it; then all run 50 calls."""
    hasty = opened("hasty", epsilon=0, tau=0.02)
    patient = opened("patient")

    def stop(event, peer):
        if hc.rank() == 1 and event == "pack" and peer == 0:
            publish("pid", str(os.getpid()))
            os.kill(os.getpid(), signal.SIGSTOP)

    first = hasty.run(Rows(0, hook=stop))
    report("first", outcomes=named(first.outcomes))
    if hc.rank() == 0:
        pid = int(await_file("pid"))
        await_file("left.2")
        while "T" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]:
            time.sleep(0.005)
        os.kill(pid, signal.SIGCONT)
    else:
        publish(f"left.{hc.rank()}")
    for step in range(1, 51):
        assert patient.run(Rows(step)).outcomes == [Outcome.DELIVERED] * hc.size()
        hasty.run(Rows(step))
    report(
        "done",
        rows=sum(count for name, count in hc.metrics().items() if name.startswith("moe_rows_") and "." not in name),
    )


def killed(drops):
    """Rank 2 dies while it writes its first batch."""
    exchange = opened(epsilon=hc.size() - 1) if drops else opened()
    together("opened")

    def die(event, peer):
        if hc.rank() == 2 and event == "pack":
            os.kill(os.getpid(), signal.SIGKILL)

    call = Rows(0, hook=die)
    attempt("call", lambda: report("outcomes", outcomes=named(exchange.run(call).outcomes)))
    report("taken", taken=sorted(call.taken))
    together_without(2)


def together_without(rank):
    publish(f"end.{hc.rank()}")
    for other in set(range(hc.size())) - {rank}:
        await_file(f"end.{other}")


def left():
    """Rank 1 leaves the job instead of calling the layer."""
    exchange = opened()
    if hc.rank() == 1:
        return
    attempt("call", lambda: exchange.run(Rows(0)))


def raised():
    """The expert of rank 1 raises; the next call works."""
    exchange = opened()

    def fail(event, peer):
        if hc.rank() == 1 and event == "serve":
            raise ValueError("the expert is out of order")

    attempt("call", lambda: exchange.run(Rows(0, hook=fail)))
    together("failed")
    exchange.run(Rows(1))
    if hc.rank() == 1:
        attempt("refused", lambda: exchange.fail(ValueError("a gate of NaN")))
    else:
        attempt("refused", lambda: exchange.run(Rows(2)))


def crossed():
    """The ranks call two layers in different orders."""
    layers = [opened("a"), opened("b")]
    attempt("call", lambda: layers[hc.rank() % 2].run(Rows(0)))


def stalled():
    """Rank 1 does not call the layer until the others have given up."""
    exchange = opened()
    if hc.rank() == 1:
        for rank in set(range(hc.size())) - {1}:
            await_file(f"gave_up.{rank}")
        return
    attempt("call", lambda: exchange.run(Rows(0)))
    publish(f"gave_up.{hc.rank()}")
    await_file("gave_up.0")


def interrupted():
    """Rank 0 gets SIGINT while it waits for rank 1."""
    exchange = opened()
    if hc.rank() == 1:
        await_file("waits")
        os.kill(int(await_file("pid")), signal.SIGINT)
        attempt("call", lambda: exchange.run(Rows(0)))
        return

    def tell(event, peer):
        if event == "pack" and peer == 1:
            publish("pid", str(os.getpid()))
            publish("waits")

    try:
        exchange.run(Rows(0, hook=tell))
    except KeyboardInterrupt:
        report("interrupted")


MODES = {
    "stopped": (stopped, {}),
    "killed": (lambda: killed(False), {}),
    "killed-drops": (lambda: killed(True), {}),
    "left": (left, {}),
    "raised": (raised, {}),
    "crossed": (crossed, {}),
    "stalled": (stalled, {"stall_check_time_seconds": 0.2, "stall_shutdown_time_seconds": 1}),
    "interrupted": (interrupted, {}),
}

if __name__ == "__main__":
    run, knobs = MODES[sys.argv[1]]
    with job(**knobs):
        run()
