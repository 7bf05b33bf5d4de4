"""Windows and one-sided exchanges: what ranks must agree on, sizes, several layers and process sets, early exits."""

from __future__ import annotations

import math
import os
import time

import numpy as np
import pytest
from ranks import on_ranks

import horocache as hc
from horocache.errors import (
    ForkedProcessError,
    InputFailedError,
    InvalidArgumentError,
    MismatchError,
    OutOfMemoryError,
    ShutDownError,
    StallError,
    UnsupportedError,
)
from horocache.moe.exchanges import AdaptiveTau, EarlyExit, OneSided, Outcome
from horocache.moe.waits import RecentWaits, gather_waits
from horocache.moe.window import WindowSpec, agree, register_window


class Numbers:
    """A call with ``rows[peer]`` numbers for each rank; the host doubles them."""

    row_bytes = result_row_bytes = 8

    def __init__(self, rows, step=0, lossless=False):
        self.rows = rows
        self.step = step
        self.lossless = lossless
        self.taken = {}

    def values(self, sender, receiver, rows):
        return np.arange(rows) + sender * 1_000_000 + receiver * 10_000 + self.step * 100.0

    def pack(self, peer, memory):
        memory.view(np.float64)[:] = self.values(own(), peer, self.rows[peer])

    def serve(self, peer, rows, batch, result):
        assert (batch.view(np.float64) == self.values(peer, own(), rows)).all()
        result.view(np.float64)[:] = 2 * batch.view(np.float64)

    def take(self, peer, result):
        assert (result.view(np.float64) == 2 * self.values(own(), peer, self.rows[peer])).all()
        self.taken[peer] = len(result) // 8


def opened(name="layer", tokens=None, process_set=hc.global_process_set, hosts=None, **early_exit):
    hosts = hosts or (True,) * process_set.size()
    return OneSided(name, process_set, hosts, (8, 8), EarlyExit(**early_exit), tokens)


def own():
    return hc.rank()


def spec(ranks=None, size=256, depth=2):
    return WindowSpec((True,) * (ranks or hc.size()), size, size, depth)


@on_ranks(1, 2, 3, 4)
def test_every_batch_comes_back_from_its_host_also_an_empty_one():
    exchange = opened()
    for step in range(30):
        rows = [(own() * 3 + peer + step) % 5 for peer in range(hc.size())]
        call = Numbers(rows, step, lossless=step % 2 == 1)
        report = exchange.run(call)
        assert call.taken == {peer: count for peer, count in enumerate(rows) if count}
        assert report.outcomes == [Outcome.DELIVERED if count else Outcome.NONE for count in rows]
        assert report.served == [(peer * 3 + own() + step) % 5 > 0 for peer in range(hc.size())]
        assert report.waited[own()] == 0.0 and min(report.waited) >= 0.0
    assert exchange.window.core.round == 30


@on_ranks(3)
def test_m16_an_exchange_sends_no_control_messages():
    exchange = opened()
    exchange.run(Numbers([1] * 3))
    before = hc.metrics()
    for step in range(50):
        exchange.run(Numbers([4] * 3, step))
    after = hc.metrics()
    exchange.run(Numbers([1] * 3))  # no rank goes on, to a collective, before all have read their counters
    for counter in ("rounds", "control_bytes", "control_frames", "operations", "slow_rounds", "messages_sent"):
        assert after[counter] == before[counter], counter
    assert after["moe_rounds"] - before["moe_rounds"] == 50
    assert after["moe_rows_delivered"] - before["moe_rows_delivered"] == 50 * 12
    assert after["moe_bytes_written"] - before["moe_bytes_written"] == 50 * 2 * 12 * 8  # batches and results


@on_ranks(2)
@pytest.mark.parametrize(
    ("field", "values"), [("batch_bytes", (64, 128)), ("depth", (2, 3)), ("hosts", ((True, True), (True, False)))]
)
def test_m14_windows_that_differ_are_an_error_on_all_ranks_that_names_both(field, values):
    mine = {"hosts": (True, True), "batch_bytes": 64, "result_bytes": 64, "depth": 2} | {field: values[own()]}
    with pytest.raises(MismatchError) as raised:
        register_window("layer", WindowSpec(**mine))
    text = str(raised.value)
    assert "layer 'layer'" in text and "rank 0" in text and "rank 1" in text
    assert all(f"{field}={value!r}" in text for value in values)
    opened().run(Numbers([1, 1]))


@on_ranks(3)
def test_m14_arguments_that_differ_are_named_with_both_ranks_and_values():
    with pytest.raises(MismatchError, match=r"layer 'moe': rank 0 has hidden = 8, but rank 2 has 16; make"):
        agree("moe", {"hidden": 16 if own() == 2 else 8, "k": 2}, {})
    with pytest.raises(MismatchError, match=r"rank 0 has noise = None, but rank 1 has 'Jitter'"):
        agree("moe", {"noise": "Jitter"} if own() == 1 else {}, {})
    assert agree("moe", {"hidden": 8}, {"tokens": own()}) == [{"tokens": rank} for rank in range(3)]


@on_ranks(2)
def test_m15_impossible_windows_are_refused_before_anything_is_sent():
    for wrong in ({"hosts": (True,)}, {"depth": 0}, {"batch_bytes": -1}):
        with pytest.raises(InvalidArgumentError, match="layer 'bad'"):
            register_window("bad", WindowSpec(**({"hosts": (True, True), "batch_bytes": 1, "result_bytes": 1} | wrong)))
    opened().run(Numbers([1, 1]))


@on_ranks(1, 3)
@pytest.mark.parametrize("tokens", [None, 0, 4])
def test_batches_may_be_of_any_size_in_any_call(tokens):
    exchange = opened(tokens=tokens)
    for step, most in enumerate([3, 5000, 7, 40, 5000, 20_000, 1]):
        rows = [most + own() + peer for peer in range(hc.size())]
        call = Numbers(rows, step)
        exchange.run(call)
        assert call.taken == dict(enumerate(rows))


@pytest.mark.parametrize(
    "wrong",
    [{"epsilon": -1}, {"epsilon": 1.5}, {"epsilon": True}, {"tau": -1.0}, {"tau": math.nan}, {"limit": 0.0}],
)
def test_m15_an_early_exit_out_of_range_is_refused(wrong):
    with pytest.raises(InvalidArgumentError, match=next(iter(wrong))):
        EarlyExit(**wrong)


@on_ranks(2)
def test_m15_more_ranks_than_there_are_cannot_be_waited_for():
    with pytest.raises(InvalidArgumentError, match="layer 'layer' has epsilon=2, but each of its 2 ranks waits for at"):
        opened(epsilon=2)


@on_ranks(3)
def test_tokens_go_only_to_ranks_with_experts():
    exchange = opened(hosts=(True, False, True))
    exchange.run(Numbers([1, 0, 1]))
    with pytest.raises(InvalidArgumentError, match="tokens for rank 1, which has no expert"):
        exchange.run(Numbers([1, 1, 0]))
    call = Numbers([2, 0, 3])
    report = exchange.run(call)
    assert call.taken == {0: 2, 2: 3}
    assert report.served == ([True] * 3 if own() != 1 else [False] * 3)


@on_ranks(2, knobs={"region_bytes": 4 << 20})
def test_m21_memory_that_cannot_be_had_is_an_error_with_size_and_knob():
    with pytest.raises(
        OutOfMemoryError, match=r"no shared memory for a window of \d{8,} bytes.*HOROCACHE_REGION_BYTES"
    ):
        register_window("layer", spec(size=8 << 20))
    opened().run(Numbers([1, 1]))


@on_ranks(2, knobs={"region_bytes": 4 << 20})
def test_m21_a_shortage_on_one_rank_is_an_error_on_all():
    if own() == 1:
        kept = hc.empty(900_000, np.float32)
        assert kept.size
        with pytest.raises(OutOfMemoryError):
            register_window("layer", spec(size=100 << 10))
    else:
        with pytest.raises(
            UnsupportedError, match="rank 1 has no window for layer 'layer': rank 1 has no shared memory"
        ):
            register_window("layer", spec(size=100 << 10))


@on_ranks(2, knobs={"region_bytes": 0})
def test_m21_without_shared_memory_the_error_says_what_to_choose():
    with pytest.raises(UnsupportedError, match=r"HOROCACHE_REGION_BYTES=0.*HOROCACHE_MOE_EXCHANGE"):
        register_window("layer", spec())


@on_ranks(2, knobs={"region_bytes": 4 << 20})
def test_m21_windows_are_made_and_closed_many_times_in_the_same_memory():
    for turn in range(50):
        exchange = opened(tokens=100 << 7)
        call = Numbers([5, 6], turn)
        exchange.run(call)
        assert call.taken == {0: 5, 1: 6}
        exchange.close()
        exchange.close()
        with pytest.raises(InvalidArgumentError, match="closed"):
            exchange.run(call)


@on_ranks(2)
def test_m21_layers_of_one_size_share_a_window_and_others_do_not():
    a, b, other = (opened(name, tokens) for name, tokens in [("a", 8), ("b", 8), ("c", 16)])
    for step in range(20):
        for layer in (a, other, b):
            call = Numbers([3, 4], step)
            layer.run(call)
            assert call.taken == {0: 3, 1: 4}
    assert a.window.core is b.window.core and other.window.core is not a.window.core
    a.close()
    b.run(Numbers([1, 1]))  # the window is there as long as one layer uses it
    b.close()
    with pytest.raises(InvalidArgumentError, match="closed"):
        b.run(Numbers([1, 1]))


@on_ranks(4)
def test_m21_process_sets_have_windows_of_their_own_at_the_same_time():
    halves = [hc.add_process_set([0, 1]), hc.add_process_set([2, 3])]
    mine = halves[own() // 2]
    exchange = opened("half", process_set=mine)
    whole = opened("whole")

    class OfTheSet(Numbers):
        def values(self, sender, receiver, rows):
            ranks = mine.ranks
            sender = sender if sender == own() else ranks[sender]
            return np.full(rows, float(sender))

    for step in range(20):
        call = OfTheSet([2, 2], step)
        call.serve = lambda peer, rows, batch, result: np.copyto(result, batch)
        call.take = lambda peer, result, call=call: call.taken.update({peer: result.view(np.float64)[0]})
        exchange.run(call)
        assert call.taken == {0: own(), 1: own()}
        all_of_them = Numbers([1, 2, 3, 4], step)
        whole.run(all_of_them)
        assert all_of_them.taken == {0: 1, 1: 2, 2: 3, 3: 4}


@on_ranks(3)
def test_m6_every_rank_returns_with_any_epsilon_and_tau():
    for epsilon in (0, 1, 2, None):
        for tau in (0.0, 0.005, math.inf):
            if epsilon is not None and tau == math.inf:
                continue  # the same as lossless
            exchange = opened(f"layer {epsilon} {tau}", epsilon=epsilon, tau=tau)
            for step in range(40):
                rows = [(own() + peer + step) % 3 for peer in range(3)]
                call = Numbers(rows, step)
                report = exchange.run(call)
                got = {peer: count for peer, count in enumerate(rows) if report.outcomes[peer] is Outcome.DELIVERED}
                assert call.taken == got  # L5: every batch is delivered or has a cause
                assert all(
                    (outcome is Outcome.NONE) == (count == 0)
                    for outcome, count in zip(report.outcomes, rows, strict=True)
                )
            hc.barrier()


@on_ranks(2)
def test_m7_a_late_rank_loses_its_tokens_and_delays_no_other():
    exchange = opened(tokens=4, epsilon=0, tau=0.0)
    exchange.open()
    if own() == 0:
        report = exchange.run(Numbers([1, 1]))
        assert report.outcomes == [Outcome.DELIVERED, Outcome.OWN_TIMEOUT]
    hc.barrier()
    if own() == 1:
        report = exchange.run(Numbers([1, 1]))
        assert report.outcomes == [Outcome.HOST_LEFT, Outcome.DELIVERED]
    hc.barrier()


@on_ranks(3)
def test_metrics_count_lost_rows_by_cause_and_rank_of_the_job():
    pair = hc.add_process_set([1, 2])
    if own() == 0:
        hc.barrier()
        return
    exchange = opened(tokens=4, process_set=pair, epsilon=0, tau=0.0)
    exchange.open()
    echo = Numbers([2, 3])
    echo.pack = lambda peer, memory: None
    echo.serve = lambda peer, rows, batch, result: None
    echo.take = lambda peer, result: None
    hc.barrier(pair)
    if own() == 1:
        exchange.run(echo)
    hc.barrier(pair)
    if own() == 2:
        exchange.run(echo)
    hc.barrier(pair)
    metrics = hc.metrics()
    lost = {name: value for name, value in metrics.items() if name.startswith("moe_rows_") and "." in name}
    assert lost == [{"moe_rows_own_timeout.2": 3}, {"moe_rows_host_left.1": 2}][own() - 1]
    assert metrics["moe_rows_host_left.0"] == 0 and metrics["moe_rows_own_timeout"] == (3 if own() == 1 else 0)
    hc.barrier()


@on_ranks(2)
def test_an_expert_that_gets_a_failure_of_another_collective_ends_the_call_on_all_ranks():
    exchange = opened()
    call = Numbers([1, 1])

    def refuse(peer, rows, batch, result):
        raise InputFailedError("rank 5 has no data")

    if own() == 1:
        call.serve = refuse
    with pytest.raises(InputFailedError, match=r"rank 5 has no data.*; rank"):
        exchange.run(call)
    exchange.run(Numbers([1, 1]))


@on_ranks(2)
def test_a_child_of_fork_cannot_use_the_parents_window():
    exchange = opened()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            exchange.run(Numbers([1, 1]))
        except ForkedProcessError:
            code = 0
        os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    exchange.run(Numbers([1, 1]))


@on_ranks(2, knobs={"stall_check_time_seconds": 0.1, "stall_shutdown_time_seconds": 0.5})
def test_layers_with_windows_of_different_sizes_in_different_orders_are_named_on_both_ranks():
    layers = [opened("small", 4), opened("large", 400)]
    for layer in layers:
        layer.run(Numbers([1, 1]))
    mine, other = layers if own() == 0 else layers[::-1]

    class UntilTheOtherRankHasBegun(Numbers):
        def serve(self, peer, rows, batch, result):
            while not mine.window.core.calls_elsewhere():
                time.sleep(0.001)
            super().serve(peer, rows, batch, result)

    with pytest.raises(StallError) as error:
        mine.run(UntilTheOtherRankHasBegun([1, 1]))
    hc.barrier()  # the end of a rank would be another error of the other one
    assert f"in layer '{mine.name}'" in str(error.value)
    assert f"rank {1 - own()} is in layer '{other.name}' (forward)" in str(error.value)


@on_ranks(2)
def test_after_shutdown_a_window_says_so():
    exchange = opened()
    exchange.run(Numbers([1, 1]))
    hc.shutdown()
    with pytest.raises(ShutDownError):
        exchange.run(Numbers([1, 1]))
    exchange.close()
    hc.init()
    again = opened()
    again.run(Numbers([1, 1]))


@on_ranks(2)
def test_an_adaptive_tau_loses_nothing_at_first_and_then_leaves_a_late_rank():
    rule = AdaptiveTau(first=3, calls=3, margin=1.0, least=0.0, most=0.0)
    exchange = opened(tokens=4, epsilon=0, tau=rule)
    for step in range(3):
        assert exchange.tau == math.inf
        assert exchange.run(Numbers([1, 1], step)).outcomes == [Outcome.DELIVERED] * 2
        exchange.run(Numbers([1, 1], step, lossless=True))  # takes no part in the record
    assert exchange.tau == 0.0
    hc.barrier()
    if own() == 0:
        assert exchange.run(Numbers([1, 1])).outcomes == [Outcome.DELIVERED, Outcome.OWN_TIMEOUT]
    hc.barrier()
    if own() == 1:
        assert exchange.run(Numbers([1, 1])).outcomes == [Outcome.HOST_LEFT, Outcome.DELIVERED]
    hc.barrier()
    assert exchange.run(Numbers([1, 1], lossless=True)).outcomes == [Outcome.DELIVERED] * 2


@on_ranks(3)
def test_the_wait_matrix_has_the_row_of_each_rank_and_is_equal_on_all():
    waits = RecentWaits(3, calls=4)
    empty = gather_waits("layer", waits, 0.5, hc.global_process_set)
    assert empty.shape == (3, 3) and not empty.any()
    for call in range(6):  # the first two are forgotten
        waits.add([10.0 * own() + peer + call / 8 if peer != own() else 0.0 for peer in range(3)])
    for quantile, call in [(0.0, 2), (0.5, 3), (0.75, 4), (1, 5)]:
        matrix = gather_waits("layer", waits, quantile, hc.global_process_set)
        want = [[10.0 * i + j + call / 8 if i != j else 0.0 for j in range(3)] for i in range(3)]
        assert matrix.tolist() == want, quantile
    waits.clear()
    assert len(waits) == 0
    with pytest.raises(MismatchError, match=r"wait matrix.*rank 0 has quantile = '0.5', but rank 2 has '1.0'"):
        gather_waits("layer", waits, 1.0 if own() == 2 else 0.5, hc.global_process_set)
    with pytest.raises(MismatchError, match=r"rank 0 has quantile = '0.5', but rank 2 has '2.0'"):
        gather_waits("layer", waits, 2.0 if own() == 2 else 0.5, hc.global_process_set)
    with pytest.raises(InvalidArgumentError, match="waited for 2 ranks, and the layer has 3"):
        waits.add([0.0, 0.0])
