"""Every exchange moves batches and results, and its errors reach every rank."""

from __future__ import annotations

import math

import numpy as np
import pytest
from ranks import on_ranks

from horocache.errors import InvalidArgumentError, UnsupportedError
from horocache.moe.exchanges import EarlyExit, Options, exchange_names, make_exchange
from horocache.moe.exchanges.hierarchical import shape_of
from horocache.moe.exchanges.registry import chosen_exchange
from horocache.moe.route import Route, check_expert_ranks, even_expert_ranks

ROW, RESULT = 24, 16


class PatternCall:
    """A batch has the numbers of its sender, target and round; the result of a batch has each number plus 100."""

    def __init__(self, rank, rows, number, fail_at=None, lossless=False):
        self.rank, self.rows, self.number, self.fail_at, self.lossless = rank, rows, number, fail_at, lossless
        self.row_bytes, self.result_row_bytes = ROW, RESULT
        self.served, self.taken = {}, {}

    def _fail(self, place):
        if self.fail_at == place:
            raise ValueError(f"broken {place}")

    def pack(self, peer, memory):
        self._fail("pack")
        memory[:] = np.resize(np.array([self.rank, peer, self.number], np.uint8), memory.shape)

    def serve(self, peer, rows, batch, result):
        self._fail("serve")
        assert batch.dtype == np.uint8 and batch.shape == (rows * ROW,) and result.shape == (rows * RESULT,)
        assert (batch == np.resize(np.array([peer, self.rank, self.number], np.uint8), batch.shape)).all()
        self.served[peer] = rows
        result[:] = 100 + self.number + self.rank

    def take(self, peer, result):
        self.taken[peer] = len(result) // RESULT
        assert (result == 100 + self.number + peer).all()


def made(moe_exchange, process_set):
    return make_exchange(
        moe_exchange, Options("a", process_set, (True,) * process_set.size(), ROW, RESULT, max_tokens=8)
    )


def rows_of(rank, size, number):
    """Every rank sends other numbers of rows; some none, and in round 2 nothing is sent at all."""
    return [0 if number == 2 else (3 * rank + peer + number) % 4 for peer in range(size)]


@pytest.mark.parametrize("moe_exchange", exchange_names())
@on_ranks(1, 2, 3, 6, 8)
def test_batches_and_results_arrive_in_every_round(moe_exchange):
    import horocache as hc

    size, rank = hc.size(), hc.rank()
    exchange = made(moe_exchange, hc.global_process_set)
    for number in range(5):
        call = PatternCall(rank, rows_of(rank, size, number), number, lossless=number % 2 == 1)
        report = exchange.run(call)
        wanted = {peer: rows_of(peer, size, number)[rank] for peer in range(size)}
        assert call.served == {peer: rows for peer, rows in wanted.items() if rows}
        assert call.taken == {peer: rows for peer, rows in enumerate(call.rows) if rows}
        assert [outcome.name for outcome in report.outcomes] == ["DELIVERED" if rows else "NONE" for rows in call.rows]
        assert report.served == [rows > 0 for rows in wanted.values()]
        assert len(report.waited) == size
    exchange.close()


@pytest.mark.parametrize("moe_exchange", exchange_names())
@on_ranks(4)
def test_process_sets_exchange_by_themselves_and_the_cache_answers(moe_exchange):
    import horocache as hc

    sets = [hc.add_process_set([0, 2]), hc.add_process_set([1, 3])]
    mine = sets[hc.rank() % 2]
    exchange = made(moe_exchange, mine)
    before = 0
    for number in range(12):
        call = PatternCall(mine.rank(), [1 + hc.rank(), 2], number)
        exchange.run(call)
        assert set(call.taken) == {0, 1}
        if number == 1:
            before = hc.metrics()["cache_misses"]
    assert hc.metrics()["cache_misses"] == before


@pytest.mark.parametrize("moe_exchange", exchange_names())
@pytest.mark.parametrize("place", ["pack", "serve", "input"])
@on_ranks(3)
def test_a_failure_on_one_rank_is_an_error_on_all_and_the_job_goes_on(moe_exchange, place):
    import horocache as hc
    from horocache.errors import InputFailedError

    rank = hc.rank()
    exchange = made(moe_exchange, hc.global_process_set)
    for number in range(2):
        bad = rank == 1
        try:
            if bad and place == "input":
                exchange.fail(ValueError("broken input"))
                raise ValueError("broken input")
            exchange.run(PatternCall(rank, [2, 2, 2], number, fail_at=place if bad else None))
            raise AssertionError("the exchange did not fail")
        except ValueError as error:
            assert bad and str(error) == f"broken {place}"
        except InputFailedError as error:
            assert not bad
            for part in ("rank 1 failed", "layer 'a'", f"rank {rank}", f"ValueError: broken {place}"):
                assert part in str(error), (part, error)
    call = PatternCall(rank, [1, 1, 1], 7)
    exchange.run(call)
    assert call.taken == {0: 1, 1: 1, 2: 1}


@pytest.mark.parametrize("moe_exchange", exchange_names())
@on_ranks(2)
def test_rows_of_another_length_are_an_error_that_names_both(moe_exchange):
    import horocache as hc
    from horocache.errors import MismatchError

    exchange = made(moe_exchange, hc.global_process_set)
    call = PatternCall(hc.rank(), [0, 0], 1)
    call.row_bytes = ROW + 8 * hc.rank()
    with pytest.raises(MismatchError, match=r"24.*32|32.*24"):
        exchange.run(call)


@pytest.mark.parametrize("moe_exchange", [name for name in exchange_names() if name != "one_sided"])
@on_ranks(2)
def test_rows_of_another_length_beside_a_failure_are_that_failure(moe_exchange):
    import horocache as hc
    from horocache.errors import InputFailedError

    exchange = made(moe_exchange, hc.global_process_set)
    call = PatternCall(hc.rank(), [1, 1], 1, fail_at="pack" if hc.rank() == 1 else None)
    call.row_bytes = ROW + 8 * hc.rank()
    with pytest.raises((ValueError, InputFailedError), match="broken pack"):
        exchange.run(call)


@pytest.mark.parametrize("moe_exchange", exchange_names())
@on_ranks(1, 2)
def test_a_closed_exchange_refuses_calls_by_name(moe_exchange):
    import horocache as hc

    exchange = make_exchange(
        moe_exchange, Options("a", hc.global_process_set, (True,) * hc.size(), ROW, RESULT, max_tokens=8)
    )
    exchange.run(PatternCall(hc.rank(), [1] * hc.size(), 0))
    exchange.close()
    with pytest.raises(InvalidArgumentError, match="layer 'a' was closed"):
        exchange.run(PatternCall(hc.rank(), [1] * hc.size(), 1))


def moved_by(moe_exchange, all_rows, rank):
    """The bytes of the tensors that a rank submits in one call, by the model of each exchange."""
    most = max(max(rows) for rows in all_rows)
    sent, served = sum(all_rows[rank]), sum(rows[rank] for rows in all_rows)
    size = len(all_rows)
    padded = 2 * 4 * 8 + size * (8 + most * ROW) + size * (8 + most * RESULT)
    return {
        "alltoall": 2 * 8 + sent * ROW + served * RESULT,
        "padded": padded,
        "hierarchical": padded,
        "one_sided": 0,
    }[moe_exchange]


@pytest.mark.parametrize("moe_exchange", exchange_names())
@on_ranks(2, 3, 4, 6)
def test_the_bytes_moved_are_those_of_the_model_and_the_cache_answers_for_any_number_of_rows(moe_exchange):
    import horocache as hc

    size, rank = hc.size(), hc.rank()
    exchange = make_exchange(
        moe_exchange, Options("a", hc.global_process_set, (True,) * size, ROW, RESULT, max_tokens=8)
    )
    exchange.run(PatternCall(rank, [1] * size, 0))
    hc.barrier()
    for number in range(1, 5):
        all_rows = [
            [(number + 2 * sender * receiver + sender) % 7 for receiver in range(size)] for sender in range(size)
        ]
        before = hc.metrics()
        exchange.run(PatternCall(rank, all_rows[rank], number))
        after = hc.metrics()
        assert after["payload_bytes"] - before["payload_bytes"] == moved_by(moe_exchange, all_rows, rank)
        assert after["cache_misses"] == before["cache_misses"]
        by_program = 2 if moe_exchange == "hierarchical" and size in (4, 6) else 0
        assert after["program_operations"] - before["program_operations"] == by_program
        written = sum(all_rows[rank]) * ROW + sum(rows[rank] for rows in all_rows) * RESULT
        if moe_exchange == "one_sided":
            assert after["moe_bytes_written"] - before["moe_bytes_written"] == written
        hc.barrier()


@pytest.mark.parametrize("moe_exchange", [name for name in exchange_names() if name != "one_sided"])
def test_an_exchange_that_waits_for_all_refuses_early_exit(moe_exchange):
    for early in (EarlyExit(epsilon=0), EarlyExit(tau=0.1), EarlyExit(limit=5)):
        with pytest.raises(UnsupportedError, match=moe_exchange):
            chosen_exchange(moe_exchange, early)


def test_an_exchange_that_does_not_exist_is_an_error_with_the_names_of_the_others():
    with pytest.raises(InvalidArgumentError, match="alltoall"):
        chosen_exchange("pigeon", EarlyExit())


@pytest.mark.parametrize(
    "values",
    [
        {"epsilon": -1},
        {"epsilon": 1.0},
        {"epsilon": True},
        {"tau": -0.1},
        {"tau": math.nan},
        {"limit": 0},
        {"limit": "a"},
    ],
)
def test_m15_an_early_exit_out_of_range_is_an_error(values):
    with pytest.raises(InvalidArgumentError):
        EarlyExit(**values)


def test_m15_epsilon_is_at_most_the_number_of_other_ranks():
    EarlyExit(epsilon=3).check_ranks(4, "a")
    with pytest.raises(InvalidArgumentError, match="epsilon=4"):
        EarlyExit(epsilon=4).check_ranks(4, "a")


# ---- hierarchical ---------------------------------------------------------------------------------------------------


def test_groups_are_those_of_hosts_or_near_the_square_root():
    assert [shape_of([0] * size) for size in (1, 2, 3, 4, 6, 7, 8, 9, 12, 16)] == [
        *((1, 1), (2, 1), (3, 1), (2, 2), (3, 2), (7, 1), (4, 2), (3, 3), (4, 3), (4, 4))
    ]
    assert shape_of([5, 5, 5, 7, 7, 7]) == (2, 3)
    for one_step in ([0, 1, 2, 3], [0, 1, 0, 1], [0, 0, 0, 1], [0, 0, 1, 1, 1, 0]):
        assert shape_of(one_step) == (len(one_step), 1)


@on_ranks(4)
def test_hierarchical_parts_need_the_programs_of_the_start():
    import horocache as hc

    pair = hc.add_process_set([0, 1])
    with pytest.raises(UnsupportedError, match=r"HOROCACHE_MOE_EXCHANGE=hierarchical"):
        make_exchange("hierarchical", Options("a", hc.global_process_set, (True,) * 4, ROW, RESULT))
    if pair.included():
        exchange = make_exchange("hierarchical", Options("a", pair, (True,) * 2, ROW, RESULT))
        exchange.run(PatternCall(pair.rank(), [1, 2], 0))
        assert exchange.shape == (2, 1)


@on_ranks(6, knobs={"moe_exchange": "hierarchical"})
def test_groups_of_hosts_are_agreed_on_in_the_first_call_and_run_their_own_program():
    import horocache as hc
    from horocache.core import context

    exchange = make_exchange("hierarchical", Options("a", hc.global_process_set, (True,) * 6, ROW, RESULT))
    assert exchange.shape == (3, 2)
    exchange.shape = None  # as in a job on several hosts
    context.cross_rank = lambda: hc.rank() // 3
    for number in range(3):
        call = PatternCall(hc.rank(), rows_of(hc.rank(), 6, number), number)
        exchange.run(call)
        assert call.taken == {peer: rows for peer, rows in enumerate(call.rows) if rows}
    assert exchange.shape == (2, 3) and exchange.backend() == "program/moe.two_level.2x3"
    assert hc.metrics()["program_operations"] == 6


@on_ranks(4, knobs={"moe_exchange": "hierarchical"})
def test_the_programs_of_hierarchical_run_for_no_other_alltoall():
    import horocache as hc

    for _ in range(3):
        hc.alltoall(np.zeros(64, np.uint8), name="of the program")
    assert hc.metrics()["program_operations"] == 0


# ---- routes ---------------------------------------------------------------------------------------------------------


def test_a_token_is_in_one_batch_of_each_rank_that_hosts_any_of_its_experts():
    route = Route(np.array([[0, 1], [2, 0], [2, -1], [-1, -1]]), [0, 0, 1], 3)
    assert [tokens.tolist() for tokens in route.tokens] == [[0, 1], [1, 2], []]
    assert route.rows == [2, 2, 0]
    assert route.slots == [3, 2, 0]
    assert route.experts_for(0).tolist() == [[0, 1], [-1, 0]]
    assert route.experts_for(1).tolist() == [[2, -1], [2, -1]]
    assert route.delivered_slots([True, False, False]).tolist() == [[1, 1], [0, 1], [0, 0], [0, 0]]


@pytest.mark.parametrize("expert", [-2, 3, 100])
def test_m15_an_expert_out_of_range_is_an_error_with_token_slot_and_expert(expert):
    with pytest.raises(InvalidArgumentError, match=rf"slot 1 of token 2 chose expert {expert}"):
        Route(np.array([[0, 1], [0, 1], [0, expert]]), [0, 0, 1], 2)


def test_experts_are_spread_evenly_by_default():
    assert even_expert_ranks(5, 2) == [0, 0, 0, 1, 1]
    assert even_expert_ranks(4, 4) == [0, 1, 2, 3]
    assert even_expert_ranks(2, 4) == [0, 2]


def test_m15_a_map_of_experts_that_does_not_fit_is_an_error():
    with pytest.raises(InvalidArgumentError, match="3 entries for 4 experts"):
        check_expert_ranks([0, 1, 0], 4, 2)
    with pytest.raises(InvalidArgumentError, match="expert 1 on rank 2"):
        check_expert_ranks([0, 2], 2, 2)


@on_ranks(1, knobs={"moe_exchange": "pigeon"})
def test_a_knob_chooses_the_exchange():
    assert chosen_exchange("alltoall", EarlyExit()) == "alltoall"
    with pytest.raises(InvalidArgumentError, match="pigeon"):
        chosen_exchange(None, EarlyExit())
