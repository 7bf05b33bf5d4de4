"""The waits and the drops of a layer, by rank; and its adaptive tau."""

from __future__ import annotations

import pytest
import torch
from ranks import on_ranks

import horocache as hc
from horocache.errors import InvalidArgumentError, UnsupportedError
from horocache.moe.exchanges import AdaptiveTau

from .dense import ByFirst


def made(**options):
    from horocache.torch.moe import MoELayer

    return MoELayer(
        2, lambda: torch.nn.Linear(2, 2), hc.size(), gate=ByFirst(hc.size()), max_tokens=8, name="layer", **options
    )


def tokens_for(*experts):
    return torch.tensor([[float(expert), 1.0] for expert in experts]).reshape(-1, 2)


@on_ranks(3)
@pytest.mark.parametrize("exchange", ["one_sided", "alltoall"])
def test_the_wait_matrix_is_equal_on_all_ranks_and_zero_on_its_diagonal(exchange):
    layer = made(exchange=exchange)
    assert not layer.wait_matrix().any()
    for _ in range(5):
        layer(tokens_for(0, 1, 2))
    matrix = layer.wait_matrix(1.0)
    assert matrix.shape == (3, 3) and (matrix >= 0).all() and not matrix.diagonal().any()
    everyone = hc.allgather_object(matrix.tolist())
    assert everyone == [matrix.tolist()] * 3
    assert (layer.wait_matrix(0.0) <= matrix).all()
    layer.reset_statistics()
    assert not layer.wait_matrix().any()
    with pytest.raises(InvalidArgumentError, match="from 0 to 1, not 50"):
        layer.wait_matrix(50)


@on_ranks(2)
def test_drops_are_counted_by_cause_and_by_the_rank_of_the_expert():
    layer = made(epsilon=0, tau=0.0)
    with torch.no_grad():
        layer(tokens_for())  # opens the window
        hc.barrier()
        layer.reset_statistics()
        if hc.rank() == 0:
            layer(tokens_for(0, 1, 1, 0, 1))
        hc.barrier()
        if hc.rank() == 1:
            layer(tokens_for(0, 1))
        hc.barrier()
    statistics = layer.statistics()
    cause, lost, slots = [("own_timeout", [0, 3], [2, 3]), ("host_left", [1, 0], [1, 1])][hc.rank()]
    assert statistics.dropped_by_rank[cause] == lost
    assert statistics.dropped[cause] == sum(lost) == sum(statistics.dropped.values())
    assert statistics.expert_slots == slots


@on_ranks(2)
def test_a_layer_takes_an_adaptive_tau_and_loses_nothing_at_first():
    layer = made(tau="adaptive")
    assert layer.early_exit.tau == AdaptiveTau()
    for _ in range(AdaptiveTau().first):
        output, _, _ = layer(tokens_for(0, 1))
        output.sum().backward()
    statistics = layer.statistics()
    assert statistics.delivered == statistics.sent == 2 * AdaptiveTau().first
    hc.barrier()


@on_ranks(2)
def test_an_exchange_that_waits_for_all_ranks_refuses_an_adaptive_tau():
    with pytest.raises(UnsupportedError, match=r"'alltoall' waits for every rank.*AdaptiveTau"):
        made(exchange="alltoall", tau="adaptive")
    with pytest.raises(InvalidArgumentError, match="'adaptive', or an AdaptiveTau"):
        made(tau="slow")
