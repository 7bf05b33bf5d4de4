"""Experts that cannot move are an error on all ranks, which leaves the layer and its optimizers as they were."""

from __future__ import annotations

import copy
import pickle
from functools import partial

import pytest
import torch
from horocache.torch.moe import MoELayer, prepare_ddp
from ranks import on_ranks

import horocache as hc
from horocache.errors import HorocacheError, InputFailedError, InvalidArgumentError, UnsupportedError

from .dense import Expert, tokens_of

HIDDEN = 4
OLD, NEW = [0, 1, 0, 1], [1, 0, 1, 0]


def made(factory=None, **options):
    torch.manual_seed(3)
    return MoELayer(HIDDEN, factory or partial(Expert, HIDDEN), 4, 2, expert_ranks=OLD, **options)


def tokens():
    return tokens_of(hc.rank(), 5, HIDDEN, torch.float32)[0]


def unchanged(layer):
    """The layer works as before."""
    assert layer.expert_ranks == OLD
    assert [int(name) for name in layer.experts] == [hc.rank(), hc.rank() + 2]
    layer(tokens())[0].sum().backward()
    layer.zero_grad()


def refused(layer, optimizer, kind, text, only=None, wanted=NEW):
    """Rank ``only``, or every rank, raises the error; the others name that rank."""
    mine = only is None or hc.rank() == only
    with pytest.raises(kind if mine else InputFailedError, match=text) as raised:
        layer.rebalance(optimizer, wanted)
    if not mine:
        assert f"rank {only} cannot move the experts of layer" in str(raised.value)
    unchanged(layer)


@on_ranks(2)
def test_ranks_that_differ_are_named_with_both_values():
    layer = made()
    with pytest.raises(
        InvalidArgumentError, match=r"rank 0 has expert_ranks of rebalance = \[1, 0, 1, 0\], and rank 1"
    ):
        layer.rebalance(None, NEW if hc.rank() == 0 else None)
    with pytest.raises(InvalidArgumentError, match="number of optimizers = 0, and rank 1 has 1"):
        layer.rebalance([None, torch.optim.SGD(layer.parameters(), lr=1)][hc.rank()], NEW)
    with pytest.raises(InvalidArgumentError, match="rates"):
        layer.rebalance(None, rates=[1.0, 1.0 + hc.rank()])
    refused(layer, None, InvalidArgumentError, "puts expert 1 on rank 2", wanted=[0, 2, 0, 1])
    refused(layer, None, InvalidArgumentError, "has 3 entries for 4 experts", only=1, wanted=[NEW, NEW[1:]][hc.rank()])


@on_ranks(2)
def test_gradients_and_backward_passes_are_finished_before():
    layer = made()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    output = layer(tokens())[0]
    refused_now = partial(pytest.raises, (InvalidArgumentError, InputFailedError))
    with refused_now(match="the backward pass of an earlier call has not run"):
        layer.rebalance(optimizer, NEW)
    output.sum().backward(retain_graph=True)
    with refused_now(match="the backward pass of an earlier call has not run"):
        layer.rebalance(optimizer, NEW)
    output.sum().backward()
    with refused_now(match=r"experts\.\d\.up\.weight has a gradient, which does not move; call zero_grad"):
        layer.rebalance(optimizer, NEW)
    layer.zero_grad()
    x = tokens()
    caught = []

    def within(grad):
        try:
            layer.rebalance(optimizer, NEW)
        except HorocacheError as error:
            caught.append(str(error))

    x.register_hook(within)
    layer(x)[0].sum().backward()
    assert len(caught) == 1 and "within a backward pass" in caught[0]
    optimizer.zero_grad(set_to_none=False)  # gradients of zero
    assert len(layer.rebalance(optimizer, NEW)) == 4


@on_ranks(2)
def test_optimizers_are_complete_and_alike():
    import horocache.torch as hvd

    layer = made()
    experts = list(layer.experts.parameters())
    refused(
        layer, torch.optim.SGD(layer.gate.parameters(), lr=1), InvalidArgumentError, "none of the 1 given", only=None
    )
    one, two = torch.optim.SGD(experts, lr=1), torch.optim.SGD(experts, lr=1)
    refused(layer, [one, two], InvalidArgumentError, r"several groups .*\[\(0, 0\), \(1, 0\)\]")
    refused(layer, "adam", InvalidArgumentError, "is a str, not a torch.optim.Optimizer")
    one.param_groups[0]["lr"] = 1.0 + hc.rank()
    refused(layer, one, InvalidArgumentError, "has lr = 1.0, and that of rank 1 has 2.0")
    groups = [{"params": experts}] if hc.rank() == 0 else [{"params": []}, {"params": experts}]
    refused(layer, torch.optim.SGD(groups, lr=1), InvalidArgumentError, r"that of rank 0 has 1 groups; make the opt")
    plain = torch.optim.SGD(layer.parameters(), lr=1)
    wrapped = hvd.DistributedOptimizer(plain, layer.named_parameters())
    with pytest.raises(InvalidArgumentError, match="a DistributedOptimizer has experts of the layer and was not given"):
        layer.rebalance(None, NEW)
    x = tokens()
    layer(x)[0].sum().backward()
    with pytest.raises((InvalidArgumentError, InputFailedError), match="are in flight; move experts after step"):
        layer.rebalance(wrapped, NEW)
    wrapped.step()
    wrapped.zero_grad()
    assert len(layer.rebalance(plain, NEW)) == 4  # which stands for the wrapped one
    layer(x)[0].sum().backward()
    wrapped.step()
    assert set(wrapped.debug_state().frozen) == set()


class Strange(torch.optim.SGD):
    """Keeps an object for each parameter."""

    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for param in group["params"]:
                self.state[param]["history"] = [1, 2]


@on_ranks(2)
def test_state_that_is_not_of_one_parameter_each_is_refused():
    layer = made()
    refused(layer, torch.optim.LBFGS(layer.parameters()), UnsupportedError, r"LBFGS\) keeps state that is not of one")
    shared = torch.optim.SGD(layer.parameters(), lr=1)
    if hc.rank() == 1:
        shared.state["all"] = 3
    refused(layer, shared, UnsupportedError, "state under 'all'", only=1)
    strange = Strange(layer.parameters(), lr=0.1)
    layer(tokens())[0].sum().backward()
    strange.step()
    strange.zero_grad()
    refused(layer, strange, UnsupportedError, r"'history' of experts\.\d\.up\.weight of optimizer 0 is a list")


@on_ranks(2)
def test_a_prepared_layer_cannot_move_its_experts():
    layer = made()
    model = prepare_ddp(torch.nn.Sequential(layer))
    assert len(model) == 1
    with pytest.raises((UnsupportedError, InputFailedError), match=r"prepare_ddp\(\) has prepared the layer"):
        layer.rebalance(None, NEW)


@on_ranks(2)
def test_a_factory_that_fails_or_makes_something_else_leaves_all_as_it_was():
    calls = []

    def factory(number):
        calls.append(number)
        if len(calls) <= 2 or hc.rank() == 0:
            return Expert(HIDDEN, number)
        if len(calls) == 3:
            raise ValueError("no more experts")
        return torch.nn.Linear(HIDDEN, HIDDEN)

    layer = made(factory)
    optimizer = torch.optim.Adam(layer.parameters())
    refused(layer, optimizer, ValueError, "no more experts", only=1)
    refused(layer, optimizer, InvalidArgumentError, r"factory made expert 0 with the parameters \[\('weight'", only=1)
    assert [id(each) for each in optimizer.param_groups[0]["params"]] == list(map(id, layer.parameters()))


@on_ranks(2)
def test_a_copy_can_move_its_experts_and_a_pickle_says_why_it_cannot():
    layer = made()
    copied = copy.deepcopy(layer)
    assert len(copied.rebalance(None, NEW)) == 4
    assert torch.equal(copied(tokens())[0], layer(tokens())[0])
    loaded = pickle.loads(pickle.dumps(layer))
    refused(loaded, None, InvalidArgumentError, "was pickled has no expert_factory", only=1)
