"""Exchanges of layers on the timeline."""

from __future__ import annotations

import json

import numpy as np
import pytest

import horocache as hc
from horocache.moe.exchanges import EarlyExit, Options, make_exchange
from horocache.observe.trace import load_all
from horocache.testing import run_ranks


class Rows:
    """A call with some rows of 8 bytes for each rank, which come back as they are."""

    row_bytes = result_row_bytes = 8

    def __init__(self, rows, lossless=False, serve=None):
        self.rows, self.lossless = rows, lossless
        self.serve = serve or (lambda peer, rows, batch, result: np.copyto(result, batch))

    def pack(self, peer, memory):
        memory[:] = peer

    def take(self, peer, result):
        assert (result == peer).all()


def exchange_of(kind, name="layer", process_set=hc.global_process_set, **early_exit):
    hosts = (True,) * process_set.size()
    return make_exchange(kind, Options(name, process_set, hosts, 8, 8, 4, EarlyExit(**early_exit)))


def spans_of(file):
    """Of each rank: the rows and the spans of exchanges."""
    found = []
    for trace in load_all([file]):
        spans = [span for span in trace.spans if span.category == "exchange"]
        found.append([(trace.rows[span.row], span.name, span.args) for span in spans])
    return found


@pytest.mark.parametrize("kind", ["one_sided", "alltoall"])
def test_every_call_is_a_span_with_its_rows(kind, tmp_path):
    def exchanges():
        pair = hc.ProcessSet([0, 2])
        hc.init(process_sets=[pair])
        layer = exchange_of(kind, 'a "layer"')
        layer.run(Rows([1, 0, hc.rank()]))
        layer.run(Rows([0, 4, 0], lossless=True))
        if pair.included():
            exchange_of(kind, "half", pair).run(Rows([0, 2]))
        hc.shutdown()

    file = tmp_path / "t.json"
    run_ranks(exchanges, 3, knobs={"timeline": str(file)})
    json.loads(file.read_text())
    for rank, spans in enumerate(spans_of(file)):
        first, second = spans[:2]
        assert first[:2] == ('experts of a "layer"', "EXCHANGE") and second[1] == "EXCHANGE_LOSSLESS"
        sent = {"0": 1} | ({"2": rank} if rank else {})
        served = [{"0": 1, "1": 1, "2": 1}, {}, {"1": 1, "2": 2}][rank]
        for key, value in {"round": 1, "rows_sent": sent, "rows_served": served, "dropped": {}}.items():
            assert first[2][key] == value, (rank, key)
        assert second[2]["rows_sent"] == {"1": 4} and second[2]["round"] == 2
        assert str(rank) not in first[2]["waited_us"]
        if rank != 1:  # a set's ranks are shown as those of the job
            row, _, args = spans[2]
            assert row == "set 1: experts of half" and args["process_set"] == 1
            assert args["rows_sent"] == {"2": 2} and args["rows_served"] == ({"0": 2, "2": 2} if rank == 2 else {})
        assert len(spans) == (2 if rank == 1 else 3)


def test_drops_have_their_cause_and_the_rank_of_the_experts(tmp_path):
    def exchanges():
        hc.init()
        layer = exchange_of("one_sided", epsilon=0, tau=0.0)
        layer.open()
        if hc.rank() == 0:
            layer.run(Rows([1, 3]))
        hc.barrier()
        if hc.rank() == 1:
            layer.run(Rows([2, 1]))
        hc.barrier()
        hc.shutdown()

    file = tmp_path / "t.json"
    run_ranks(exchanges, 2, knobs={"timeline": str(file)})
    (early,), (late,) = spans_of(file)
    assert early[2]["dropped"] == {"own_timeout": {"1": 3}} and early[2]["rows_served"] == {"0": 1}
    assert late[2]["dropped"] == {"host_left": {"0": 2}} and late[2]["rows_served"] == {"1": 1}


@pytest.mark.parametrize("kind", ["one_sided", "alltoall"])
def test_a_call_that_fails_has_its_error(kind, tmp_path):
    def exchanges():
        hc.init()
        layer = exchange_of(kind)

        def fail(peer, rows, batch, result):
            raise ValueError("out of order")

        with pytest.raises((ValueError, hc.HorocacheError)):
            layer.run(Rows([1, 1], serve=fail if hc.rank() == 1 else None))
        layer.run(Rows([1, 1]))
        hc.shutdown()

    file = tmp_path / "t.json"
    run_ranks(exchanges, 2, knobs={"timeline": str(file)})
    for rank, spans in enumerate(spans_of(file)):
        (_, _, failed), (_, _, good) = spans
        kind_of = ["InputFailedError: ", "ValueError: out of order"][rank]
        assert failed["error"].startswith(kind_of) and "out of order" in failed["error"]
        assert "dropped" not in failed and good["dropped"] == {} and "error" not in good


def test_a_timeline_that_begins_later_has_the_later_calls(tmp_path):
    def exchanges(path):
        hc.init()
        layer = exchange_of("one_sided")
        layer.run(Rows([1, 1]))
        hc.start_timeline(path)
        layer.run(Rows([1, 2]))
        hc.stop_timeline()
        layer.run(Rows([1, 3]))
        hc.shutdown()

    file = tmp_path / "t.json"
    run_ranks(exchanges, 2, args=[str(file)])
    for spans in spans_of(file):
        assert [args["rows_sent"]["1"] for _, _, args in spans] == [2]
