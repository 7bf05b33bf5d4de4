"""Calls to which ranks come late, in an order that the test gives: what a host does before, and what is dropped."""

from __future__ import annotations

import numpy as np
from ranks import on_ranks

import horocache as hc
from horocache.moe.exchanges import EarlyExit, Options, Outcome, make_exchange


class Noted:
    """A call with one row for each rank, which notes the order of what it does."""

    row_bytes = result_row_bytes = 8
    lossless = False

    def __init__(self, served=lambda peer: None):
        self.rows = [1] * hc.size()
        self.events = []
        self._served = served

    def pack(self, peer, memory):
        memory.view(np.int64)[:] = 10 * hc.rank() + peer

    def serve(self, peer, rows, batch, result):
        assert batch.view(np.int64).tolist() == [10 * peer + hc.rank()]
        self.events.append(f"serve {peer}")
        self._served(peer)
        result.view(np.int64)[:] = 100 + hc.rank()

    def take(self, peer, result):
        assert result.view(np.int64).tolist() == [100 + peer]
        self.events.append(f"take {peer}")


def made(**early_exit):
    options = Options("layer", hc.global_process_set, (True,) * hc.size(), 8, 8, 4, EarlyExit(**early_exit))
    exchange = make_exchange("one_sided", options)
    exchange.run(Noted())  # connects the ranks
    hc.barrier()
    return exchange


def tell(receiver):
    hc.send(np.array([hc.rank()]), receiver)


def hear(sender):
    assert hc.recv(np.zeros(1, np.int64), sender).tolist() == [sender]


@on_ranks(3)
def test_m17_hosts_serve_the_batches_that_are_there_before_the_last_rank_comes():
    exchange = made()
    if hc.rank() == 2:
        # The job would end by its limit if the others waited for this rank before they serve each other and themselves.
        for sender in (0, 1, 0, 1):
            hear(sender)
        call = Noted()
    else:
        call = Noted(lambda peer: tell(2) if peer != 2 else None)
    report = exchange.run(call)
    assert report.outcomes == [Outcome.DELIVERED] * 3
    if hc.rank() != 2:
        serves = [event for event in call.events if event.startswith("serve")]
        assert sorted(serves[:2]) == ["serve 0", "serve 1"] and serves[2:] == ["serve 2"]


@on_ranks(4)
def test_m18_with_one_late_rank_the_others_leave_and_drop_the_slots_of_the_formula():
    n = hc.size()
    exchange = made(epsilon=n - 2, tau=0.0)
    sent = dropped = 0
    for late in (3, 0, 2, 1):
        if hc.rank() == late:
            hc.barrier()  # the others have left the call before this rank comes
            report = exchange.run(Noted())
            wanted = [Outcome.DELIVERED if peer == late else Outcome.HOST_LEFT for peer in range(n)]
            assert report.served == [peer == late for peer in range(n)]
        else:
            call = Noted()
            report = exchange.run(call)
            wanted = [Outcome.OWN_TIMEOUT if peer == late else Outcome.DELIVERED for peer in range(n)]
            assert report.served == [peer != late for peer in range(n)]
            assert f"take {late}" not in call.events
            hc.barrier()
        assert report.outcomes == wanted
        sent += n
        dropped += n - report.outcomes.count(Outcome.DELIVERED)
        hc.barrier()
    total = hc.allreduce(np.array([sent, dropped]), op=hc.Sum, name="counts").tolist()
    assert total[1] * n * n == 2 * 1 * (n - 1) * total[0]  # 2 s (n - s) / n^2 with s = 1
