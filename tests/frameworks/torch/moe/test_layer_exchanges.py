"""The layer has equal bits on all exchanges, and its errors reach every rank on each."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from horocache.torch.moe import MoELayer
from ranks import on_ranks

from horocache.moe.exchanges import exchange_names

from .dense import Expert, tokens_of

HIDDEN = 6


def made(moe_exchange, experts, k, dtype, hosts):
    torch.manual_seed(3)
    factory = partial(Expert, HIDDEN)
    options = {
        "min_capacity": 2,
        "expert_ranks": hosts,
        "exchange": moe_exchange,
        "name": f"{moe_exchange}.{dtype}.{experts}.{k}",
    }
    return MoELayer(HIDDEN, factory, experts, k, **options).to(dtype)


def bits(tensor):
    return tensor.detach().contiguous().view(torch.uint8).numpy().tobytes()


def bits_of_a_run(layer, dtype, calls=2):
    """Run forward and backward several times; return the bytes of all results."""
    import horocache as hc

    found = []
    for call in range(calls):
        count = (5 * hc.rank() + 3 * call) % 8  # some ranks have no tokens
        x, grad = tokens_of(hc.rank(), count, HIDDEN, dtype)
        output, loss, _ = layer(x)
        ((output * grad).sum() + 0.1 * loss).backward()
        found += [bits(output), bits(x.grad)]
    return found + [bits(each.grad) for each in layer.parameters() if each.grad is not None]


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
@on_ranks(1, 2, 3, 4, 8, knobs={"moe_exchange": "hierarchical"})
def test_m1_m2_all_exchanges_give_equal_bits(dtype):
    import horocache as hc

    ranks = hc.size()
    kind_of = getattr(torch, dtype)
    for experts, k, hosts in [(ranks + 1, 2, None), (2 * ranks, 1, [ranks - 1 - e % ranks for e in range(2 * ranks)])]:
        runs = {
            moe_exchange: bits_of_a_run(made(moe_exchange, experts, k, kind_of, hosts), kind_of)
            for moe_exchange in exchange_names()
        }
        wanted = runs["alltoall"]
        assert any(any(each) for each in wanted)
        for moe_exchange, found in runs.items():
            assert found == wanted, (moe_exchange, [one == other for one, other in zip(found, wanted, strict=True)])


@pytest.mark.parametrize("moe_exchange", exchange_names())
@on_ranks(4)
def test_m15_tokens_of_another_length_on_one_rank_are_an_error_on_all_and_the_layer_goes_on(moe_exchange):
    import horocache as hc
    from horocache.errors import InputFailedError, InvalidArgumentError

    layer = made(moe_exchange, 4, 2, torch.float32, None)
    for _ in range(2):
        wrong = hc.rank() == 2
        x, _ = tokens_of(hc.rank(), 4, HIDDEN + wrong, torch.float32)
        with pytest.raises(InvalidArgumentError if wrong else InputFailedError) as raised:
            layer(x)
        assert wrong or "rank 2 failed" in str(raised.value)
        assert any(bits_of_a_run(layer, torch.float32))
