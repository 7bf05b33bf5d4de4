"""Dispatch and combine: which rows arrive, sums, handles that are used again, and errors that reach every rank."""

from __future__ import annotations

import numpy as np
import pytest
from ranks import on_ranks

from horocache.errors import InputFailedError, InvalidArgumentError, MismatchError, UnsupportedError
from horocache.moe import combine, dispatch
from horocache.moe.exchanges import Alltoall, EarlyExit, Outcome, exchange_names

HIDDEN, K = 3, 2


def routing_of(rank, experts, tokens=None):
    """The tokens, experts and weights of a rank; some slots have no expert, and some ranks have no tokens."""
    random = np.random.default_rng(rank)
    tokens = (3 * rank + 5) % 7 if tokens is None else tokens
    chosen = random.integers(-1, experts, (tokens, K))
    x = random.standard_normal((tokens, HIDDEN)).astype(np.float32)
    return x, chosen, random.random((tokens, K)).astype(np.float32)


def expected_rows(me, ranks, hosts):
    """The rows that arrive at a rank, in loops, by source rank and token: tokens, experts, weights; rows by rank."""
    rows, counts = [], []
    for source in range(ranks):
        x, chosen, weights = routing_of(source, len(hosts))
        before = len(rows)
        for token, slots in enumerate(chosen):
            mine = [expert >= 0 and hosts[expert] == me for expert in slots]
            if any(mine):
                experts = [int(e) if own else -1 for e, own in zip(slots, mine, strict=True)]
                rows.append((x[token], experts, [w if own else 0 for w, own in zip(weights[token], mine, strict=True)]))
        counts.append(len(rows) - before)
    return rows, tuple(counts)


@pytest.mark.parametrize("moe_exchange", exchange_names())
@on_ranks(1, 2, 3, 5, 8)
def test_m16_tokens_arrive_once_by_source_rank_and_token_and_their_sum_comes_back(moe_exchange):
    import horocache as hc

    rank, ranks = hc.rank(), hc.size()
    hosts = [(5 * expert + 1) % ranks for expert in range(ranks + 2)]
    x, chosen, weights = routing_of(rank, len(hosts))
    came, experts, slots, handle = dispatch(x, chosen, weights, expert_ranks=hosts, name="a", exchange=moe_exchange)
    wanted, counts = expected_rows(rank, ranks, hosts)
    assert handle.rows_received == counts and handle.rows == len(wanted) == len(came)
    for row, (token, numbers, factors) in enumerate(wanted):
        assert (came[row] == token).all() and experts[row].tolist() == numbers and (slots[row] == factors).all()
    assert came.dtype == slots.dtype == np.float32 and experts.dtype == np.int64
    assert handle.expert_counts.tolist() == [int((experts == expert).sum()) for expert in range(len(hosts))]
    for expert in range(len(hosts)):
        assert (experts[handle.slots_of(expert)] == expert).all()
    out, returned = combine(came * (10.0**rank), handle, slots)
    own = [sorted({hosts[expert] for expert in row if expert >= 0}) for row in chosen]
    for token, of_token in enumerate(own):
        total = np.zeros(HIDDEN, np.float32)
        for host in of_token:
            total += x[token] * (10.0**host)
        assert (out[token] == total).all()
    assert (returned == np.where(chosen >= 0, weights, 0)).all()


@on_ranks(1, 3, 4, knobs={"moe_exchange": "hierarchical"})
def test_m16_all_exchanges_give_equal_bits_in_every_element_type():
    import horocache as hc

    for dtype in (np.float16, np.float32, np.float64):
        found = set()
        for moe_exchange in exchange_names():
            x, chosen, weights = routing_of(hc.rank(), 6)
            name = f"{moe_exchange}.{np.dtype(dtype).name}"
            came, _, slots, handle = dispatch(
                x.astype(dtype), chosen, weights.astype(np.float64), num_experts=6, name=name, exchange=moe_exchange
            )
            out = combine(came / 3, handle)
            assert out.dtype == came.dtype == dtype and slots.dtype == np.float64
            found.add((came.tobytes(), slots.tobytes(), out.tobytes()))
        assert len(found) == 1


@pytest.mark.parametrize("moe_exchange", exchange_names())
@on_ranks(3)
def test_m16_an_unchanged_routing_sends_tokens_only_and_no_new_control_messages(moe_exchange):
    import horocache as hc

    x, chosen, _ = routing_of(hc.rank(), 4, tokens=6)
    came, experts, _, handle = dispatch(x, chosen, num_experts=4, name="a", exchange=moe_exchange)
    for step in range(2):  # the first calls fill the cache
        combine(dispatch(x * step, handle=handle)[0], handle)
    hc.barrier()
    before = hc.metrics()
    for step in range(20):
        again, same_experts, _, same = dispatch(x * step, handle=handle)
        out = combine(again, handle)
        assert same is handle and same_experts is experts
        assert (again == came * step).all() and out.shape == x.shape
    after = hc.metrics()
    hc.barrier()
    assert after["cache_misses"] == before["cache_misses"]
    if moe_exchange == "one_sided":
        for counter in ("rounds", "control_bytes", "operations"):
            assert after[counter] == before[counter], counter
        row = 8 + 4 * HIDDEN + 4  # header, token, and the rest of a multiple of 8
        moved = 20 * row * (sum(handle.rows_sent) + sum(handle.rows_received))
        assert after["moe_bytes_written"] - before["moe_bytes_written"] == moved


@pytest.mark.parametrize("moe_exchange", exchange_names())
@on_ranks(4)
def test_m16_handles_serve_several_layers_and_process_sets_in_any_order(moe_exchange):
    import horocache as hc

    pairs = [hc.add_process_set([0, 2]), hc.add_process_set([1, 3])]
    mine = pairs[hc.rank() % 2]
    made = []
    for number, where in enumerate([hc.global_process_set, mine, hc.global_process_set]):
        x, chosen, _ = routing_of(10 * number + hc.rank(), 5, tokens=4 + number)
        sent = dispatch(x, chosen, num_experts=5, name=f"layer{number}", process_set=where, exchange=moe_exchange)
        made.append((x, sent[0], sent[3]))
    for order in ([2, 0, 1], [1, 1, 2], [0, 2, 1]):
        for number in order:
            x, came, handle = made[number]
            for name in (None, f"other{number}"):
                again, _, weights, same = dispatch(x, handle=handle, name=name, exchange=moe_exchange)
                assert (again == came).all() and same is handle and weights is None
                visits = np.sum([np.isin(np.arange(len(x)), tokens) for tokens in handle.route.tokens], axis=0)
                assert np.allclose(combine(again, handle, name=name), x * visits[:, np.newaxis])


@pytest.mark.parametrize("moe_exchange", exchange_names())
@on_ranks(3)
def test_m15_a_mistake_of_one_rank_is_an_error_on_all_in_first_and_later_calls(moe_exchange):
    import horocache as hc

    wrong = hc.rank() == 1
    x, chosen, weights = routing_of(hc.rank(), 4, tokens=3)

    def fails(what, *arguments, **options):
        options = {"num_experts": 4, "name": "a", "exchange": moe_exchange} | options
        with pytest.raises((InvalidArgumentError, UnsupportedError) if wrong else InputFailedError) as raised:
            dispatch(*arguments, **{key: value for key, value in options.items() if value is not None})
        assert what in str(raised.value) and "rank 1" in str(raised.value)

    for _ in range(2):
        fails("expert 4", x, np.where(wrong, 4, chosen))
        fails("whole numbers", x, chosen * (1.5 if wrong else 1))
        fails("weights", x, chosen, weights[:, :1] if wrong else weights)
        fails("expert_ranks", x, chosen, expert_ranks=[0, 1, 2, 2 + wrong], num_experts=None)
        fails("num_experts", x, chosen, num_experts=0 if wrong else 4)
        fails("int64", x.astype(np.int64) if wrong else x, chosen)
        came, _, _, handle = dispatch(x, chosen, num_experts=4, name="a", exchange=moe_exchange)
        with pytest.raises(InvalidArgumentError if wrong else InputFailedError, match="rows"):
            combine(came[:-1] if wrong else came, handle)
        fails("leave out", x, chosen if wrong else None, handle=handle, num_experts=None)
        fails("tokens", x[:-1] if wrong else x, handle=handle, num_experts=None)
        assert combine(came, handle).shape == x.shape


@pytest.mark.parametrize("moe_exchange", exchange_names())
@on_ranks(2)
def test_m14_ranks_that_differ_are_an_error_on_all_that_names_both(moe_exchange):
    import horocache as hc

    rank = hc.rank()
    x, chosen, weights = np.ones((2, HIDDEN), np.float32), np.array([[0, 1], [1, 0]]), np.ones((2, K), np.float32)
    with pytest.raises(MismatchError, match=r"rank 0 has hidden = 3, but rank 1 has 4"):
        dispatch(np.ones((2, HIDDEN + rank)), chosen, num_experts=2, name="a", exchange=moe_exchange)
    with pytest.raises(MismatchError, match=r"expert_ranks = \(0, 1\), but rank 1 has \(1, 0\)"):
        dispatch(x, chosen, expert_ranks=[rank, 1 - rank], name="a", exchange=moe_exchange)
    _, _, _, first = dispatch(x, chosen, num_experts=2, name="a", exchange=moe_exchange)
    _, _, _, second = dispatch(x, chosen, num_experts=2, name="a", exchange=moe_exchange)
    with pytest.raises((MismatchError, InputFailedError), match=r"handle 3.*handle 4|handle 4.*handle 3"):
        dispatch(x, handle=(first, second)[rank])
    with pytest.raises((MismatchError, InputFailedError)):
        dispatch(x, handle=first, weights=weights if rank else None)
    with pytest.raises((MismatchError, InputFailedError), match=r"float16.*float64|float64.*float16|bytes|\[\*, 32\]"):
        dispatch(x.astype((np.float16, np.float64)[rank]), handle=first)
    assert dispatch(x, handle=first)[0].shape == (4, HIDDEN)


@on_ranks(2)
def test_m14_a_dispatch_beside_a_combine_is_an_error_on_both_ranks():
    import horocache as hc

    x, chosen = np.ones((2, HIDDEN), np.float32), np.array([[0, 1], [1, 0]])
    came, _, _, handle = dispatch(x, chosen, num_experts=2, name="a", exchange="one_sided")
    combine(came, handle)
    with pytest.raises(MismatchError, match=r"'a.dispatch'.*'a.combine'|'a.combine'.*'a.dispatch'"):
        if hc.rank() == 0:
            dispatch(x, handle=handle)
        else:
            combine(came, handle)
    assert (dispatch(x, handle=handle)[0] == came).all()


@on_ranks(2)
def test_m15_wrong_handles_names_sets_and_exits_are_refused():
    import horocache as hc

    x, chosen = np.ones((2, HIDDEN)), np.array([[0, 1], [1, 0]])
    with pytest.raises(InvalidArgumentError, match="name"):
        dispatch(x, chosen, num_experts=2)
    for exit_early in (EarlyExit(epsilon=0), EarlyExit(tau=0.5), EarlyExit(limit=3)):
        with pytest.raises(UnsupportedError, match="MoELayer"):
            dispatch(x, chosen, num_experts=2, name="a", early_exit=exit_early)
    came, _, _, handle = dispatch(x, chosen, num_experts=2, name="a", early_exit=EarlyExit())
    with pytest.raises(InvalidArgumentError, match="exchange"):
        dispatch(x, handle=handle, exchange="alltoall" if hc.size() > 1 else "padded")
    with pytest.raises(InvalidArgumentError, match=r"ranks \[0, 1\].*ranks \[0\]|belongs to its process set"):
        dispatch(x, handle=handle, process_set=hc.ProcessSet([hc.rank()]))
    with pytest.raises(InvalidArgumentError, match="not tuple"):
        combine(came, (handle,))
    hc.shutdown()
    hc.init()
    with pytest.raises(InvalidArgumentError, match=rf"rank {hc.rank()}.*session that has ended"):
        combine(came, handle)
    with pytest.raises(InvalidArgumentError, match="session that has ended"):
        dispatch(x, handle=handle)
    assert dispatch(x, chosen, num_experts=2, name="a")[0].shape == (4, HIDDEN)


class Loses(Alltoall):
    """An exchange of a program that says that it lost rows."""

    def run(self, call):
        report = super().run(call)
        report.outcomes[0] = Outcome.HOST_LEFT
        return report


@on_ranks(2)
def test_rows_that_an_exchange_of_the_program_loses_are_an_error():
    from horocache.errors import CollectiveError

    def lossy(options):
        return Loses(options.name, options.process_set)

    with pytest.raises(CollectiveError, match=r"rows for rank 0 were lost \(host_left\).*MoELayer"):
        dispatch(np.ones((1, 2)), np.array([[0]]), num_experts=2, name="a", exchange=lossy)
