"""Experts move between ranks between two steps, and training goes on as without the move."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from horocache.torch.moe import MoELayer
from ranks import on_ranks

from .dense import ByFirst, Expert, tokens_of

HIDDEN = 4
STEPS = 3
OPTIMIZERS = {
    "sgd": partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=0.01),
    "adam": partial(torch.optim.Adam, lr=0.01, amsgrad=True),
}


def made(experts, expert_ranks, seed=3, **options):
    torch.manual_seed(seed)
    return MoELayer(
        HIDDEN, partial(Expert, HIDDEN), experts, 2, drop_tokens=False, expert_ranks=expert_ranks, **options
    )


def trained(layer, optimizer, steps, first=0):
    """Run steps; return the bytes of their outputs."""
    import horocache as hc

    outputs = []
    for step in range(first, first + steps):
        x, grad = tokens_of(hc.rank(), 5 + 2 * hc.rank(), HIDDEN, torch.float32, seed=step)
        optimizer.zero_grad()
        output, loss, _ = layer(x)
        ((output * grad).sum() + loss).backward()
        optimizer.step()
        outputs.append(output.detach().numpy().tobytes())
    return outputs


def state_of(layer, optimizer):
    """Parameters, and their states, of all ranks: by name, as bytes."""
    import horocache as hc

    own = {}
    for name, param in layer.named_parameters():
        state = {key: value.numpy().tobytes() for key, value in optimizer.state[param].items()}
        own[name] = (param.detach().numpy().tobytes(), state)
    everyone = hc.allgather_object(own)
    merged = {}
    for rank, each in enumerate(everyone):
        for name, value in each.items():
            assert merged.setdefault(name, value) == value, (rank, name)
    return merged


def distributed(layer, optimizer):
    import horocache.torch as hvd

    return hvd.DistributedOptimizer(optimizer, layer.named_parameters())


def maps_of(ranks, experts):
    """The first map, and those that follow: among them one that leaves all experts to the last rank."""
    spread = [expert % ranks for expert in range(experts)]
    last = [ranks - 1] * experts
    back = [(expert + 1) % ranks for expert in range(experts)]
    return [spread, last, back]


@pytest.mark.parametrize(("kind", "exchange"), [("sgd", "one_sided"), ("adam", "alltoall")])
@on_ranks(1, 2, 3, 4)
def test_training_with_moves_in_between_has_the_same_bits(kind, exchange):
    import horocache as hc

    ranks, experts = hc.size(), 5
    maps = maps_of(ranks, experts)
    layer, other = (made(experts, maps[0], name=name, exchange=exchange) for name in ("moves", "stays"))
    optimizer, fixed = (distributed(each, OPTIMIZERS[kind](each.parameters())) for each in (layer, other))
    for number, wanted in enumerate(maps[1:] + maps[:1]):
        first = number * STEPS
        assert trained(layer, optimizer, STEPS, first) == trained(other, fixed, STEPS, first)
        optimizer.zero_grad()
        before = list(layer.expert_ranks)
        moves = layer.rebalance(optimizer, wanted)
        assert [(move.expert, move.source, move.target) for move in moves] == [
            (expert, old, new) for expert, (old, new) in enumerate(zip(before, wanted, strict=True)) if old != new
        ]
        assert layer.expert_ranks == wanted
        assert [int(name) for name in layer.experts] == [e for e, rank in enumerate(wanted) if rank == hc.rank()]
        assert state_of(layer, optimizer) == state_of(other, fixed)
        assert [id(param) for param in optimizer.param_groups[0]["params"]] == list(map(id, layer.parameters()))
    assert trained(layer, optimizer, STEPS, 50) == trained(other, fixed, STEPS, 50)
    assert state_of(layer, optimizer) == state_of(other, fixed)


@on_ranks(4)
def test_experts_with_copies_move_in_all_groups():
    import horocache as hc

    layer, other = (made(4, [0, 0, 1, 1], name=name, ep_size=2) for name in ("moves", "stays"))
    optimizer, fixed = (distributed(each, OPTIMIZERS["adam"](each.parameters())) for each in (layer, other))
    for number, wanted in enumerate([[1, 0, 1, 0], [1, 1, 1, 1], [0, 1, 0, 1]]):
        assert trained(layer, optimizer, STEPS, number * STEPS) == trained(other, fixed, STEPS, number * STEPS)
        optimizer.zero_grad(set_to_none=False)
        layer.rebalance(optimizer, wanted)
        for param in layer.experts.parameters():
            assert param.expert_holders.ranks == [hc.rank() % 2, hc.rank() % 2 + 2]
        assert state_of(layer, optimizer) == state_of(other, fixed)
    assert trained(layer, optimizer, STEPS, 50) == trained(other, fixed, STEPS, 50)
    assert state_of(layer, optimizer) == state_of(other, fixed)


@pytest.mark.parametrize("ep_size", [2, 4])
@on_ranks(4)
def test_experts_without_names_and_with_an_optimizer_of_their_own_move(ep_size):
    import horocache.torch as hvd

    import horocache as hc

    spread = [0, 0, 1, 1] if ep_size == 2 else [0, 1, 2, 3]
    layers = [made(4, spread, name=name, ep_size=ep_size) for name in ("moves", "stays")]
    pairs = []
    for layer in layers:
        shared = hvd.DistributedOptimizer(torch.optim.SGD(layer.gate.parameters(), lr=0.1))
        experts = hvd.DistributedOptimizer(torch.optim.Adam([{"params": list(layer.experts.parameters())}], lr=0.01))
        pairs.append([shared, experts])

    def steps(layer, optimizers, first):
        outputs = []
        for step in range(first, first + STEPS):
            x, grad = tokens_of(hc.rank(), 6, HIDDEN, torch.float32, seed=step)
            output, loss, _ = layer(x)
            ((output * grad).sum() + loss).backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            outputs.append(output.detach().numpy().tobytes())
        return outputs

    for number, wanted in enumerate([[1, 0, 0, 1], [0] * 4, [1, 0, 1, 0], spread]):
        assert steps(layers[0], pairs[0], number * STEPS) == steps(layers[1], pairs[1], number * STEPS), number
        assert layers[0].rebalance(pairs[0], wanted)
    assert steps(layers[0], pairs[0], 50) == steps(layers[1], pairs[1], 50)


@on_ranks(3)
def test_the_map_follows_the_measured_loads():
    import horocache as hc

    factory = partial(Expert, HIDDEN)
    layer = MoELayer(HIDDEN, factory, 6, expert_ranks=[0, 0, 1, 1, 2, 2], gate=ByFirst(6))
    slots = [[40, 30, 20, 0, 0, 0], [0, 0, 0, 10, 0, 0], [0] * 6][hc.rank()]
    experts = [expert for expert, count in enumerate(slots) for _ in range(count)]
    with torch.no_grad():
        layer(torch.tensor(experts).reshape(-1, 1).expand(-1, HIDDEN).float())
    assert layer.statistics().expert_slots == slots
    moves = layer.rebalance(None)
    loads = [40, 30, 20, 10, 0, 0]
    by_rank = [sum(load for load, rank in zip(loads, layer.expert_ranks, strict=True) if rank == r) for r in range(3)]
    assert max(by_rank) == 40 and 0 < len(moves) <= 4
    assert max(layer.expert_ranks.count(rank) for rank in range(3)) <= 2
    assert layer.rebalance(None) == ()  # it is balanced now
    layer.rebalance(None, memory=[6, 0, 0])
    assert layer.expert_ranks == [0] * 6


@on_ranks(2)
def test_names_groups_and_checkpoints_fit_after_a_move():
    """A group without experts of this rank gets them behind the gate, as in an optimizer that is made anew."""
    import horocache as hc

    layer = made(3, [0, 0, 0])
    head = torch.nn.Linear(HIDDEN, 1)
    model = torch.nn.ModuleDict({"layer": layer, "head": head})
    optimizer = torch.optim.SGD(
        [{"params": list(model.named_parameters()), "lr": 0.1}, {"params": [("x", torch.nn.Parameter(torch.ones(1)))]}],
        lr=0.5,
        momentum=0.5,
    )  # with names, which are a list beside that of the parameters
    for step in range(2):
        x, _ = tokens_of(hc.rank(), 4, HIDDEN, torch.float32, seed=step)
        optimizer.zero_grad()
        head(layer(x)[0]).sum().backward()
        optimizer.step()
    optimizer.zero_grad()
    layer.rebalance(optimizer, [1, 0, 1])
    names = [name for name, _ in model.named_parameters()]
    group = optimizer.param_groups[0]
    assert [id(param) for param in group["params"]] == list(map(id, model.parameters()))
    assert group["param_names"] == names
    merged = {}
    for state in hc.allgather_object(layer.state_dict()):
        merged |= state
    again = made(3, [1, 0, 1], seed=8)
    again.load_state_dict(merged | layer.state_dict())  # strict; each rank has trained its gate alone
    x, _ = tokens_of(hc.rank(), 4, HIDDEN, torch.float32)
    assert torch.equal(again(x)[0], layer(x)[0])
    anew = torch.optim.SGD([{"params": list(model.parameters())}, {"params": optimizer.param_groups[1]["params"]}])
    anew.load_state_dict(optimizer.state_dict())
    for param in model.parameters():
        assert torch.equal(anew.state[param]["momentum_buffer"], optimizer.state[param]["momentum_buffer"])


class WithBuffers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(HIDDEN)
        self.linear = torch.nn.Linear(HIDDEN, HIDDEN)
        self.register_buffer("scale", torch.tensor([2.0, 3.0]), persistent=False)
        self.linear.bias.requires_grad_(False)

    def forward(self, x):
        return self.linear(self.norm(x)) * self.scale.sum()


@on_ranks(2)
def test_buffers_types_strides_and_modes_move_too():
    import horocache as hc

    torch.manual_seed(0)
    layer = MoELayer(HIDDEN, WithBuffers, 2, expert_ranks=[0, 1]).double()
    mine = layer.experts[str(hc.rank())]
    mine.scale.add_(hc.rank())
    mine.norm.running_mean.fill_(7.0 + hc.rank())
    mine.norm.eval()
    mine.linear.weight.data = mine.linear.weight.data.t()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    weight = hc.broadcast_object(mine.linear.weight.detach(), 1)
    state = torch.get_rng_state()
    layer.rebalance(optimizer, [1, 0])
    assert torch.equal(torch.get_rng_state(), state)
    other = 1 - hc.rank()
    came = layer.experts[str(other)]
    assert came.scale.tolist() == [2.0 + other, 3.0 + other] and came.scale.dtype == torch.float64
    assert came.norm.running_mean.tolist() == [7.0 + other] * HIDDEN
    assert not came.norm.training and came.training and came.linear.training
    assert came.linear.weight.stride() == (1, HIDDEN) and came.linear.weight.dtype == torch.float64
    assert hc.rank() == 1 or torch.equal(came.linear.weight, weight)
    assert not came.linear.bias.requires_grad and came.linear.weight.allreduce is False
    layer.rebalance(None, [1, 0])


@on_ranks(2)
def test_experts_without_tensors_move():
    layer = MoELayer(HIDDEN, torch.nn.Identity, 3, drop_tokens=False, expert_ranks=[0, 0, 1])
    x, _ = tokens_of(0, 6, HIDDEN, torch.float32)
    before = layer(x)[0].detach()
    assert len(layer.rebalance(None, [1, 1, 0])) == 3
    assert torch.equal(layer(x)[0], before)


@pytest.mark.parametrize(
    ("dtype", "k", "error"),
    [
        (torch.bfloat16, 1, 0.0),
        (torch.float64, 2, 0.0),
        (torch.float64, 4, 1e-14),  # sums in another order
        (torch.bfloat16, 2, 0.05),  # each host rounds its result
    ],
)
@on_ranks(3)
def test_a_move_changes_a_call_by_the_rounding_of_its_sums_at_most(dtype, k, error):
    import horocache as hc

    torch.manual_seed(3)
    factory = partial(Expert, HIDDEN)
    layer = MoELayer(HIDDEN, factory, 6, k, drop_tokens=False, expert_ranks=[0, 0, 1, 1, 2, 2]).to(dtype)
    weights = {name: param.detach().clone() for name, param in layer.named_parameters()}
    x, grad = tokens_of(hc.rank(), 20, HIDDEN, dtype)
    results = []
    for wanted in ([2, 1, 0, 2, 1, 0], [0, 0, 1, 1, 2, 2]):
        x.grad = None
        output = layer(x)[0]
        output.backward(grad)
        results.append((output.detach(), x.grad.clone()))
        layer.zero_grad()
        layer.rebalance(None, wanted)
    for before, after in zip(*results, strict=True):
        assert (before - after).abs().max() <= error * before.abs().max()
    assert all(torch.equal(param, weights[name]) for name, param in layer.named_parameters())
