"""Layers of experts on process sets, expert-parallel groups, in checkpoints, and beside each other."""

from __future__ import annotations

import copy
import pickle
from functools import partial

import pytest
import torch
from horocache.torch.moe import MoE, MoELayer
from ranks import on_ranks

from .dense import Expert, dense_outputs, tokens_of

HIDDEN = 4


def made(experts=4, seed=0, **options):
    torch.manual_seed(seed)
    return MoELayer(HIDDEN, partial(Expert, HIDDEN), experts, 2, drop_tokens=False, **options).double()


@pytest.mark.parametrize("ep_size", [1, 2, 4])
@on_ranks(4)
def test_m2_the_layout_of_experts_does_not_change_training(ep_size):
    import horocache as hc

    rank = hc.rank()
    layer = made(ep_size=ep_size)
    x, grad = tokens_of(rank, 3 + rank, HIDDEN, torch.float64)
    output, loss, _ = layer(x)
    ((output * grad).sum() + loss).backward()
    alone = made(ep_size=1, seed=0)
    everyone, _, _ = dense_outputs(alone.experts, layer.gate, x)
    assert (output - everyone).abs().max() < 1e-12
    # Experts: the sum over their holders, divided by the data-parallel world, is that of ep_size=1.
    alone_x, _ = tokens_of(rank, 3 + rank, HIDDEN, torch.float64)
    output, loss, _ = alone(alone_x)
    ((output * grad).sum() + loss).backward()
    assert (alone_x.grad - x.grad).abs().max() < 1e-12
    wanted = {
        name: hc.allreduce(each.grad.numpy(), op=hc.Average, name=name) for name, each in alone.named_parameters()
    }
    assert [int(number) for number in layer.experts] == [
        expert for expert in range(4) if expert * ep_size // 4 == rank % ep_size
    ]
    for name, each in layer.experts.named_parameters():
        holders = each.expert_holders
        assert each.allreduce is False
        if ep_size == 4:
            assert holders is None
            total = each.grad.numpy()
        else:
            assert holders.ranks == list(range(rank % ep_size, 4, ep_size))
            total = hc.allreduce(each.grad.numpy(), op=hc.Sum, name=f"experts.{name}", process_set=holders)
        assert abs(total / 4 - wanted[f"experts.{name}"]).max() < 1e-12
    assert not hasattr(layer.gate.wg.weight, "allreduce")


@on_ranks(4)
def test_expert_parallel_sets_are_registered_once_and_found_again():
    import horocache as hc
    from horocache.moe.groups import expert_parallel_sets

    mine = hc.add_process_set([0, 1])
    first = expert_parallel_sets(2)
    assert first[0].ranks == ([0, 1] if hc.rank() < 2 else [2, 3])
    assert first[1].ranks == ([0, 2] if hc.rank() % 2 == 0 else [1, 3])
    assert hc.rank() >= 2 or first[0] is mine
    known = len(hc.process_sets())
    assert known == 5
    again = expert_parallel_sets(2)
    assert again[0] is first[0] and again[1] is first[1] and len(hc.process_sets()) == known
    assert [each.ranks for each in expert_parallel_sets(4)] == [[0, 1, 2, 3], [hc.rank()]]


@on_ranks(4)
def test_m21_two_layers_on_two_process_sets_work_at_once():
    import horocache as hc

    sets = [hc.add_process_set([0, 1]), hc.add_process_set([1, 2, 3])]
    for number, members in enumerate(sets):
        if not members.included():
            continue
        layer = made(experts=5, process_set=members, seed=number, name="same name")
        x, grad = tokens_of(hc.rank(), 3 + hc.rank(), HIDDEN, torch.float64)
        output, _, _ = layer(x)
        output.backward(grad)
        bank = made(experts=5, process_set=hc.ProcessSet([hc.rank()]), seed=number).experts
        assert (output - dense_outputs(bank, layer.gate, x)[0]).abs().max() < 1e-12


@on_ranks(2)
def test_m21_several_layers_and_a_copy_work_beside_each_other():
    import horocache as hc

    x, grad = tokens_of(hc.rank(), 5, HIDDEN, torch.float64)
    first, second = made(), made(shared_expert=torch.nn.Linear(HIDDEN, HIDDEN))
    first(x)
    copied = copy.deepcopy(first)
    loaded = pickle.loads(pickle.dumps(first))
    names = [each.name for each in (first, second, copied, loaded)]
    assert len(set(names)) == 4
    for each in (copied, loaded):
        assert all(parameter.allreduce is False for parameter in each.experts.parameters())
        assert torch.equal(each(x)[0], first(x)[0])
    shared = second(x)[0]
    assert torch.allclose(shared - second.shared_expert(x), first(x)[0], atol=1e-12)
    layers = torch.nn.Sequential(*[torch.nn.Identity() for _ in range(2)])
    del layers
    out = x
    for layer in (first, second, copied):
        out = out + layer(out)[0]
    out.backward(grad)
    assert all(each.grad is not None for layer in (first, second, copied) for each in layer.parameters())


@on_ranks(2)
def test_a_checkpoint_does_not_depend_on_the_map_of_experts():
    import horocache as hc

    first = made(expert_ranks=[0, 1, 1, 1], seed=hc.rank() + 1)
    hc.torch.broadcast_parameters(dict(first.gate.named_parameters()), root_rank=0)
    merged = {}
    for state in hc.allgather_object(first.state_dict()):
        merged |= state
    assert sorted({key.split(".")[1] for key in merged if key.startswith("experts.")}) == ["0", "1", "2", "3"]
    second = made(expert_ranks=[1, 0, 1, 0], seed=9)
    second.load_state_dict(merged)  # strict
    x, _ = tokens_of(hc.rank(), 6, HIDDEN, torch.float64)
    assert (first(x)[0] - second(x)[0]).abs().max() < 1e-12
    own = "0" if hc.rank() == 1 else "1"
    with pytest.raises(RuntimeError, match=rf"experts\.{own}\.up\.weight"):
        second.load_state_dict({key: value for key, value in merged.items() if not key.startswith(f"experts.{own}.")})
    with pytest.raises(RuntimeError, match=r"experts\.7"):
        second.load_state_dict({**merged, "experts.7.up.weight": x})


@on_ranks(2)
def test_m16_later_calls_find_everything_in_the_cache():
    import horocache as hc

    layer = made()
    misses = []
    for step in range(6):
        x, grad = tokens_of(hc.rank(), 5 + step % 2, HIDDEN, torch.float64)
        layer(x)[0].backward(grad)
        misses.append(hc.metrics()["cache_misses"])
    assert misses[-1] == misses[1]


@on_ranks(2)
def test_a_layer_connects_anew_in_another_session_and_after_its_end():
    import horocache as hc
    from horocache.errors import InvalidArgumentError

    layer = made()
    x, _ = tokens_of(hc.rank(), 5, HIDDEN, torch.float64)
    before = layer(x)[0]
    hc.shutdown()
    hc.init()
    assert torch.equal(layer(x)[0], before)
    kept = layer(x)[0]
    layer.close()
    layer.close()
    with pytest.raises(InvalidArgumentError, match="closed"):
        kept.sum().backward()
    assert torch.equal(layer(x)[0], before)


@on_ranks(4)
def test_a_layer_finds_its_process_set_in_another_session():
    import horocache as hc
    from horocache.errors import InvalidArgumentError

    even, odd = [0, 2], [1, 3]
    mine = (hc.add_process_set(even), hc.add_process_set(odd))[hc.rank() % 2]
    layer = made(process_set=mine)
    x, _ = tokens_of(hc.rank(), 5, HIDDEN, torch.float64)
    before = layer(x)[0]
    layer = pickle.loads(pickle.dumps(layer))
    hc.shutdown()
    hc.init(process_sets=[odd, even])  # in another order, so with other numbers
    assert torch.equal(layer(x)[0], before)
    hc.shutdown()
    hc.init()
    with pytest.raises(InvalidArgumentError, match="not registered"):
        layer(x)


@pytest.mark.parametrize("ep_size", [1, 2])
@on_ranks(2)
def test_deepspeeds_constructor_makes_copies_of_one_expert(ep_size):
    import horocache as hc

    torch.manual_seed(1)
    expert = torch.nn.Sequential(torch.nn.Linear(HIDDEN, 8), torch.nn.ReLU(), torch.nn.Linear(8, HIDDEN))
    for residual in (False, True):
        layer = MoE(HIDDEN, expert, 4, ep_size, use_residual=residual, drop_tokens=False)
        assert len(layer.experts) == 4 // ep_size and layer.gate.min_capacity == 4
        assert layer.gate.drop_policy == "random"
        x, _ = tokens_of(hc.rank(), 6, HIDDEN, torch.float32)
        output, loss, counts = layer(x.view(2, 3, HIDDEN))
        weights = layer.gate(x).topk_weights
        wanted = weights * expert(x)
        if residual:
            shares = torch.softmax(layer.coefficient(x), -1)
            wanted = wanted * shares[:, :1] + expert(x) * shares[:, 1:]
            assert layer.mlp is expert and not hasattr(expert[0].weight, "allreduce")
        assert torch.allclose(output.view(6, HIDDEN), wanted, atol=1e-6)
        assert loss.dim() == 0 and counts.sum() == 6
        (output.sum() + loss).backward()
        assert all(each.grad is not None for each in layer.parameters())


@on_ranks(2)
def test_a_small_mixture_learns():
    import horocache as hc

    torch.manual_seed(0)
    layer = MoELayer(HIDDEN, lambda: torch.nn.Linear(HIDDEN, HIDDEN), 4, 2)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.02)
    x, _ = tokens_of(hc.rank(), 64, HIDDEN, torch.float32)
    x = x.detach()
    wanted = torch.where(x[:, :1] > 0, x.flip(1), -2 * x)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        output, balance, _ = layer(x)
        loss = torch.nn.functional.mse_loss(output, wanted)
        (loss + 0.01 * balance).backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]
