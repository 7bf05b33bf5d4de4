"""Bad input to the layer of experts is an error on every rank, and no rank hangs."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from horocache.torch.moe import MoE, MoELayer, Routing
from ranks import on_ranks

from horocache.errors import (
    InputFailedError,
    InvalidArgumentError,
    MismatchError,
    NonFiniteError,
    PeerLostError,
    UnsupportedError,
)
from horocache.testing import run_ranks

from .dense import Expert, tokens_of

HIDDEN = 4


class FixedGate(torch.nn.Module):
    """Routes as a test says."""

    def __init__(self, experts, weights):
        super().__init__()
        self.experts, self.weights = experts, weights

    def forward(self, x, used_token=None):
        none = torch.zeros(4, dtype=torch.int64)
        return Routing(self.experts, self.weights, x.sum() * 0, none, none)


def made(**options):
    torch.manual_seed(0)
    options = {"k": 2, "drop_tokens": False, "name": "a", **options}
    return MoELayer(HIDDEN, partial(Expert, HIDDEN), 4, **options)


BAD_INPUT = {
    "hidden": "shape (3, 5)",
    "integers": "torch.int64",
    "list": "list",
    "nan": "token 1",
    "mask": "used_token has shape (2,)",
    "too_many": "max_tokens=8",
    "expert_too_large": "slot 1 of token 2 chose expert 4",
    "expert_too_small": "slot 0 of token 0 chose expert -2",
    "nan_weight": "weights of token 1",
    "k": "(3, 3)",
    "broken_expert": "expert 3 is broken",
    "shape_of_expert": "expert 3 returned",
}


def bad_call(case, layer, x):
    """Call the layer with one mistake."""
    experts, weights = torch.tensor([[0, 1], [2, 3], [1, 3]]), torch.ones(3, 2)
    used = None
    if case == "hidden":
        x = torch.zeros(3, HIDDEN + 1)
    elif case == "integers":
        x = torch.zeros(3, HIDDEN, dtype=torch.int64)
    elif case == "list":
        x = [[0.0] * HIDDEN]
    elif case == "nan":
        x = x.detach().clone()
        x[1, 2] = math.nan
    elif case == "mask":
        used = torch.ones(2)
    elif case == "too_many":
        x = torch.zeros(9, HIDDEN)
    elif case == "expert_too_large":
        experts[2, 1] = 4
    elif case == "expert_too_small":
        experts[0, 0] = -2
    elif case == "nan_weight":
        weights[1, 1] = math.nan
    elif case == "k":
        experts, weights = experts[:, [0, 1, 1]], torch.ones(3, 3)
    if case in ("expert_too_large", "expert_too_small", "nan_weight", "k"):
        layer.gate = FixedGate(experts, weights)
    layer(x, used)


def broken_forward(case):
    def forward(x):
        if case == "broken_expert":
            raise RuntimeError("expert 3 is broken")
        return x[:, :2]

    return forward


@on_ranks(3)
def test_m15_bad_input_on_one_rank_is_an_error_on_all_and_the_job_goes_on():
    import horocache as hc

    rank = hc.rank()
    x, _ = tokens_of(rank, 3, HIDDEN, torch.float32)
    layer = made(max_tokens=8, expert_ranks=[0, 0, 1, 2])
    good = layer(x)[0].detach()  # the first call compares the layers
    gate = layer.gate
    for case, part in BAD_INPUT.items():
        of_an_expert = "expert" in case and part.startswith("expert 3")
        bad = 2 if of_an_expert else 1
        if of_an_expert and rank == bad:
            layer.experts["3"].forward = broken_forward(case)
        with pytest.raises(Exception) as caught:
            if rank == bad and not of_an_expert:
                bad_call(case, layer, x)
            else:
                layer(x)
        text = f"{case}, rank {rank}: {type(caught.value).__name__}: {caught.value}"
        assert part in str(caught.value), text
        if rank != bad:
            assert isinstance(caught.value, InputFailedError), text
            assert f"rank {bad} failed in layer 'a'" in str(caught.value), text
        else:
            assert isinstance(caught.value, (InvalidArgumentError, NonFiniteError, RuntimeError)), text
        layer.gate = gate
        if of_an_expert and rank == bad:
            del layer.experts["3"].forward
        assert torch.equal(layer(x)[0].detach(), good), case


@on_ranks(2)
def test_m15_bad_input_in_the_first_call_is_an_error_on_all():
    import horocache as hc
    from horocache.moe.exchanges import Alltoall

    row_bytes = []

    def exchange(options):
        row_bytes.append((options.row_bytes, options.result_row_bytes))
        return Alltoall(options.name, options.process_set)

    layer = made(exchange=exchange).double()
    bad = hc.rank() == 0
    x = torch.zeros(3, HIDDEN, dtype=torch.int64 if bad else torch.float64)
    with pytest.raises(InvalidArgumentError if bad else InputFailedError, match=r"torch.int64"):
        layer(x)
    layer(torch.zeros(3, HIDDEN, dtype=torch.float64))
    # 3 int32, 2 weights and 4 numbers of float64 make 60 bytes, which are rounded up; the same on both ranks.
    assert row_bytes == [(64, 64)]


@on_ranks(2)
def test_m14_layers_that_differ_between_ranks_are_an_error_that_names_both():
    import horocache as hc

    rank = hc.rank()
    for option, values in {
        "k": (1, 2),
        "expert_ranks": ([0, 0, 1, 1], [1, 0, 1, 1]),
        "max_tokens": (10, 20),
    }.items():
        layer = made(**{option: values[rank]})
        for _ in range(2):
            with pytest.raises(MismatchError) as caught:
                layer(torch.zeros(1, HIDDEN))
            for part in ("layer 'a'", f"rank 0 has {option} = {values[0]}", f"rank 1 has {values[1]}"):
                assert part in str(caught.value)
    with pytest.raises(MismatchError, match=r"rank 0 has hidden = 4, but rank 1 has 6"):
        MoELayer(4 + 2 * rank, torch.nn.Identity, 4, name="b")(torch.zeros(1, 4 + 2 * rank))
    layer = made(name="c")
    with pytest.raises(MismatchError, match=r"torch.float32.*torch.float64"):
        layer(torch.zeros(1, HIDDEN, dtype=(torch.float32, torch.float64)[rank]))
    layer(torch.zeros(1, HIDDEN))
    with pytest.raises(MismatchError):  # later calls differ in the bytes of a row
        layer(torch.zeros(1, HIDDEN, dtype=(torch.float32, torch.float64)[rank]))


@on_ranks(2)
def test_element_types_of_equal_size_do_not_mix():
    import horocache as hc

    layer = made()
    layer(torch.ones(4, HIDDEN))
    layer.to(torch.float16)
    x, _ = tokens_of(hc.rank(), 8, HIDDEN, (torch.float16, torch.bfloat16)[hc.rank()])
    # A rank that serves its own batch before the other one gets the error of torch's product, which names both, too.
    with pytest.raises(RuntimeError, match=r"(?i)bfloat16.*(float16|half)|(float16|half).*bfloat16"):
        layer(x)


@on_ranks(2)
def test_m15_arguments_out_of_range_are_errors_before_anything_is_sent():
    import horocache as hc

    for options in (
        {"k": 5},
        {"epsilon": 2},
        {"epsilon": -1},
        {"tau": -1.0},
        {"tau": math.nan},
        {"t_max": 0},
        {"min_capacity": -1},
        {"capacity_factor": -0.5},
        {"expert_ranks": [0, 1, 2, 0]},
        {"expert_ranks": [0, 1]},
        {"max_tokens": 0},
        {"max_drop_fraction": 1.5},
        {"exchange": "pigeon"},
        {"ep_size": 3},
        {"ep_size": 0},
        {"ep_size": 2, "process_set": hc.global_process_set},
        {"process_set": hc.ProcessSet([1 - hc.rank()])},
        {"gate": FixedGate(None, None), "score": "sigmoid"},
    ):
        with pytest.raises(InvalidArgumentError):
            made(**options)
    for options in ({"epsilon": 0}, {"epsilon": 1}, {"tau": 0.5}, {"t_max": 1.0}):
        with pytest.raises(UnsupportedError, match="alltoall"):
            made(exchange="alltoall", **options)
    with pytest.raises(InvalidArgumentError, match=r"\['a', 'b'\]"):
        MoELayer(HIDDEN, lambda a, b: torch.nn.Identity(), 2)
    with pytest.raises(InvalidArgumentError, match="not a module"):
        MoELayer(HIDDEN, lambda: None, 2)
    for options in ({"use_tutel": True}, {"enable_expert_tensor_parallelism": True}):
        with pytest.raises(UnsupportedError, match=next(iter(options))):
            MoE(HIDDEN, torch.nn.Identity(), 2, **options)


@on_ranks(2)
def test_slots_over_capacity_are_counted_and_may_be_an_error():
    import horocache as hc
    from horocache.errors import CollectiveError

    x, _ = tokens_of(hc.rank(), 20, HIDDEN, torch.float32)
    layer = made(drop_tokens=True, capacity_factor=0.5, min_capacity=0)
    layer(x)
    statistics = layer.statistics()
    assert statistics.sent == statistics.delivered == 40 - statistics.over_capacity < 40
    assert len(statistics.waited) == 2 and statistics.waited[hc.rank()] == 0
    layer.statistics().dropped["own_timeout"] = 9  # a copy
    assert layer.statistics().dropped["own_timeout"] == 0
    layer.reset_statistics()
    assert layer.statistics().calls == 0
    strict = made(drop_tokens=True, capacity_factor=0.5, min_capacity=0, assert_no_drops=True)
    with pytest.raises(CollectiveError, match="capacity"):
        strict(x)


def test_a_layer_needs_a_running_job():
    from horocache.errors import NotInitializedError

    with pytest.raises(NotInitializedError):
        made()


def test_a_rank_that_dies_in_its_expert_is_an_error_that_names_it():
    def body():
        import os

        import horocache as hc

        hc.init()
        layer = made()
        x, _ = tokens_of(hc.rank(), 3, HIDDEN, torch.float32)
        layer(x)
        if hc.rank() == 1:
            for expert in layer.experts.values():
                expert.forward = lambda _: os._exit(3)
        layer(x)

    outcomes = run_ranks(body, 3, check=False)
    for rank in (0, 2):
        assert isinstance(outcomes[rank].error, PeerLostError), outcomes[rank].describe()
        assert "rank 1" in str(outcomes[rank].error)
    assert outcomes[1].exit_code == 3
