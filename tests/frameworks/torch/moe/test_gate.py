"""A gate routes tokens as a reference in loops does, and refuses bad input. Numbers such as M4 are acceptance cases."""

from __future__ import annotations

import copy
import math
import subprocess
import sys

import pytest
import torch
from horocache.torch.moe import TopKGate
from ranks import on_ranks

from horocache.errors import InvalidArgumentError, NonFiniteError

from .reference import expected_routing

HIDDEN = 5


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Threads of torch that share a core with other tests take longer than the work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def made_gate(experts, seed=0, dtype=torch.float64, scale=2.0, **options):
    gate = TopKGate(HIDDEN, experts, **options)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        gate.wg.weight.copy_(torch.randn((experts, HIDDEN), generator=generator, dtype=torch.float64) * scale)
    return gate.to(dtype)


def made_tokens(number, seed=1, dtype=torch.float64):
    return torch.randn((number, HIDDEN), generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def kept_slots(routing):
    tokens, k = routing.topk_idx.shape
    return {
        (t, int(routing.topk_idx[t, s])): float(routing.topk_weights.detach()[t, s])
        for t in range(tokens)
        for s in range(k)
        if routing.topk_idx[t, s] >= 0
    }


def assert_equals(routing, expected, tolerance=1e-12):
    kept = kept_slots(routing)
    assert set(kept) == expected.kept
    assert routing.expert_counts.tolist() == expected.counts
    lost_by_expert = [sum(1 for _, e in expected.lost if e == expert) for expert in range(len(expected.counts))]
    assert routing.dropped.tolist() == lost_by_expert
    for slot, weight in expected.weights.items():
        assert kept[slot] == pytest.approx(weight, abs=tolerance), slot
    for t, slots in enumerate(expected.slots):
        filled = slots or [-1] * routing.topk_idx.shape[1]
        wanted = [expert if (t, expert) in expected.kept else -1 for expert in filled]
        assert routing.topk_idx[t].tolist() == wanted, t
    assert routing.topk_weights[routing.topk_idx == -1].abs().sum() == 0


# ---- M4: choice of experts, capacity and counters -------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["probs", "position"])
@pytest.mark.parametrize("factor", [0.5, 1, 2, None])
@pytest.mark.parametrize("min_capacity", [0, 8])
@pytest.mark.parametrize(("experts", "k"), [(4, 1), (5, 2), (6, 4), (3, 3)])
def test_m4_the_dropped_set_and_the_counters_equal_those_of_the_reference(policy, factor, min_capacity, experts, k):
    tokens = 33
    gate = made_gate(experts, k=k, capacity_factor=factor, min_capacity=min_capacity, drop_policy=policy)
    x = made_tokens(tokens)
    capacity = None if factor is None else max(math.ceil(k * tokens / experts * factor), min_capacity)
    assert gate.capacity(tokens) == capacity
    expected = expected_routing(x.tolist(), gate.wg.weight.tolist(), k, capacity, policy)
    assert bool(expected.lost) or factor in (2, None) or k == experts or (min_capacity == 8 and k == 1)
    assert_equals(gate(x), expected)


@pytest.mark.parametrize("seed", range(40))
def test_m4_random_gates_equal_the_reference(seed):
    generator = torch.Generator().manual_seed(seed)

    def pick(*values):
        return values[int(torch.randint(len(values), (1,), generator=generator))]

    experts = pick(1, 2, 3, 5, 8)
    k = min(experts, pick(1, 2, 3, 8))
    tokens = pick(0, 1, 2, 17, 40)
    policy, score, normalize = pick("probs", "position"), pick("softmax", "sigmoid"), pick(True, False)
    factor, least = pick(None, 0.25, 0.7, 1.0, 1.3), pick(0, 1, 3)
    options = {"drop_policy": policy, "score": score, "normalize_weights": normalize}
    gate = made_gate(experts, seed, k=k, capacity_factor=factor, min_capacity=least, **options)
    x = made_tokens(tokens, seed + 1000)
    used = torch.rand(tokens, generator=generator) < pick(0.0, 0.6, 1.0)
    used_token = pick(None, used, used.float(), used.long())
    mask = None if used_token is None else used.tolist()
    expected = expected_routing(
        x.tolist(), gate.wg.weight.tolist(), k, gate.capacity(tokens), policy, mask, score, normalize
    )
    routing = gate(x, used_token)
    assert_equals(routing, expected)
    assert routing.aux_loss.item() == pytest.approx(expected.balance, abs=1e-12)


def test_m4_training_and_evaluation_have_factors_of_their_own():
    gate = TopKGate(HIDDEN, 4, 2, 1.0, None, 0)
    assert gate.capacity(10) == 5
    assert gate.eval().capacity(10) is None
    assert TopKGate(HIDDEN, 4, 2, None, 0.5, 0).eval().capacity(10) == 3
    assert TopKGate(HIDDEN, 4, 2, 1.0, 1.0, 0, None, False).capacity(10) is None


@pytest.mark.parametrize(
    ("tokens", "experts", "k", "factor", "capacity"), [(10, 1, 1, 1.1, 11), (100, 10, 1, 1.2, 12), (7, 3, 2, 0.5, 3)]
)
def test_m4_the_capacity_is_not_rounded_up_by_rounding_errors(tokens, experts, k, factor, capacity):
    assert TopKGate(HIDDEN, experts, k, factor, min_capacity=0).capacity(tokens) == capacity


def test_m4_a_factor_of_zero_leaves_the_smallest_capacity():
    gate = made_gate(2, capacity_factor=0, min_capacity=3)
    counts = gate(made_tokens(20)).expert_counts
    assert (gate(made_tokens(20)).dropped == (counts - 3).clamp(min=0)).all()


def test_equal_scores_go_to_the_lowest_expert_and_equal_priorities_to_the_first_token():
    gate = TopKGate(HIDDEN, 4, 2, 1.0, min_capacity=0)
    torch.nn.init.zeros_(gate.wg.weight)
    routing = gate(made_tokens(6, dtype=torch.float32))
    assert routing.topk_idx.tolist() == [[0, 1]] * 3 + [[-1, -1]] * 3
    assert routing.dropped.tolist() == [3, 3, 0, 0]


@pytest.mark.parametrize("policy", ["probs", "position", "random"])
@pytest.mark.parametrize("seed", range(8))
def test_no_expert_takes_more_than_its_capacity_and_no_slot_less(policy, seed):
    gate = made_gate(4, seed, k=2, capacity_factor=0.6, min_capacity=0, drop_policy=policy)
    torch.manual_seed(seed)
    routing = gate(made_tokens(50, seed), torch.arange(50) % 5 != 0)
    capacity = gate.capacity(50)
    taken = torch.bincount(routing.topk_idx[routing.topk_idx >= 0], minlength=4)
    assert torch.equal(taken, routing.expert_counts.clamp(max=capacity))
    assert torch.equal(taken + routing.dropped, routing.expert_counts)
    assert routing.expert_counts.sum() == 2 * 40
    assert bool(routing.dropped.sum() > 0)


@pytest.mark.parametrize("seed", range(8))
def test_the_policy_probs_keeps_the_most_probable_slots(seed):
    gate = made_gate(4, seed, k=2, capacity_factor=0.6, min_capacity=0, normalize_weights=False)
    x = made_tokens(50, seed)
    probabilities = (x @ gate.wg.weight.T).softmax(1).detach()
    everything = made_gate(4, seed, k=2, capacity_factor=None)(x).topk_idx
    kept = gate(x).topk_idx
    for expert in range(4):
        won = probabilities[(kept == expert).any(1), expert]
        lost = probabilities[(everything == expert).any(1) & ~(kept == expert).any(1), expert]
        assert len(won) + len(lost) == int((everything == expert).sum())
        assert not len(lost) or won.min() > lost.max()


def test_the_policy_probs_does_not_depend_on_the_order_of_tokens():
    gate = made_gate(4, k=2, capacity_factor=0.6, min_capacity=0)
    x, order = made_tokens(50), torch.randperm(50, generator=torch.Generator().manual_seed(2))
    assert torch.equal(gate(x).topk_idx[order], gate(x[order]).topk_idx)


def test_random_drops_are_repeated_by_the_seed_and_differ_without_it():
    gate = made_gate(2, capacity_factor=0.5, min_capacity=0, drop_policy="random")
    x = made_tokens(60)
    torch.manual_seed(5)
    first = gate(x).topk_idx
    second = gate(x).topk_idx
    torch.manual_seed(5)
    assert torch.equal(gate(x).topk_idx, first)
    assert not torch.equal(second, first)
    torch.manual_seed(5)
    numbers = torch.rand((60, 2), dtype=torch.float64)  # the order in which experts take slots
    everything = made_gate(2, capacity_factor=None)(x).topk_idx[:, 0]
    for expert in range(2):
        takers = sorted((everything == expert).nonzero().flatten().tolist(), key=lambda t: -numbers[t, expert])
        assert sorted(takers[: gate.capacity(60)]) == (first[:, 0] == expert).nonzero().flatten().tolist()


# ---- M5: losses and gradients ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("experts", "k"), [(4, 1), (5, 2), (6, 4), (1, 1), (3, 3)])
@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
@pytest.mark.parametrize("factor", [0.25, None])
def test_m5_the_losses_equal_the_formulas_whatever_capacity_drops(experts, k, score, factor):
    options = {"capacity_factor": factor, "min_capacity": 0, "score": score, "dtype": torch.float32, "scale": 0.7}
    x = made_tokens(40, dtype=torch.float32)
    used = torch.arange(40) % 3 != 1
    for mask in (None, used):
        gate = made_gate(experts, k=k, aux_loss_coef=0.25, z_loss_coef=0.5, **options)
        wanted = expected_routing(
            x.tolist(), gate.wg.weight.tolist(), k, None, used=None if mask is None else mask.tolist(), score=score
        )
        routing = gate(x, mask)
        assert routing.aux_loss.item() == pytest.approx(0.25 * wanted.balance + 0.5 * wanted.z, abs=1e-6)
        assert made_gate(experts, k=k, **options)(x, mask).aux_loss.item() == pytest.approx(wanted.balance, abs=1e-6)


def test_m5_an_even_spread_has_the_loss_one_and_a_collapse_the_number_of_experts():
    gate = TopKGate(4, 4, capacity_factor=None)
    x = torch.eye(4).repeat(3, 1)
    for scale, rows, wanted in ((1e-4, torch.eye(4), 1.0), (50.0, torch.eye(4)[[0, 0, 0, 0]], 4.0)):
        with torch.no_grad():
            gate.wg.weight.copy_(torch.eye(4) * scale)
        assert gate(rows if wanted > 1 else x).aux_loss.item() == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
@pytest.mark.parametrize("policy", ["probs", "position"])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("k", [1, 2, 4])
def test_m5_gradients_equal_finite_differences(score, policy, normalize, k):
    options = {"score": score, "drop_policy": policy, "normalize_weights": normalize, "z_loss_coef": 0.3}
    gate = made_gate(4, k=k, capacity_factor=0.7, min_capacity=0, scale=0.5, **options)
    x = made_tokens(9).requires_grad_()
    used = torch.arange(9) != 4
    assert bool(gate(x, used).dropped.sum() > 0)

    factors = torch.randn((9, k), generator=torch.Generator().manual_seed(4), dtype=torch.float64)

    def value(tokens, weight):
        routing = torch.func.functional_call(gate, {"wg.weight": weight}, (tokens, used))
        return (routing.topk_weights * factors).sum() + routing.aux_loss

    torch.autograd.gradcheck(value, (x, gate.wg.weight))


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("k", [1, 2, 3])
def test_a_dropped_slot_has_the_weight_zero_and_no_gradient(seed, k):
    gate = made_gate(4, seed, k=k, capacity_factor=0.7, min_capacity=0, aux_loss_coef=0.0)
    x = made_tokens(30, seed).requires_grad_()
    routing = gate(x)
    lost = routing.topk_idx == -1
    assert bool(lost.any())
    assert bool((routing.topk_weights[lost] == 0).all())
    assert bool((routing.topk_weights[~lost] > 0).all())
    for gradient in torch.autograd.grad(routing.topk_weights[lost].sum(), (x, gate.wg.weight), retain_graph=True):
        assert bool((gradient == 0).all())
    (whole,) = torch.autograd.grad(routing.topk_weights.square().sum(), x)
    assert bool((whole[lost.all(1)] == 0).all())
    assert bool(whole.abs().sum() > 0)


def test_the_expert_of_a_dropped_slot_does_not_move_normalized_weights():
    gate = made_gate(4, k=2, capacity_factor=0.5, min_capacity=0)
    x = made_tokens(30)
    everything = made_gate(4, k=2, capacity_factor=None)(x).topk_idx
    routing = gate(x)
    token = int(((routing.topk_idx == -1).sum(1) == 1).nonzero()[0])
    slot = int((routing.topk_idx[token] == -1).nonzero()[0])
    (gradient,) = torch.autograd.grad(routing.topk_weights[token].sum(), gate.wg.weight)
    assert gradient[everything[token, slot]].abs().max() < 1e-12


@pytest.mark.parametrize("seed", range(5))
def test_the_weights_of_the_kept_slots_add_up_to_one(seed):
    routing = made_gate(5, seed, k=3, capacity_factor=0.5, min_capacity=0)(made_tokens(40, seed))
    some = (routing.topk_idx >= 0).any(1)
    torch.testing.assert_close(routing.topk_weights.sum(1), some.double(), rtol=0, atol=1e-12)


def test_with_one_slot_the_weight_is_the_probability():
    gate, x = made_gate(4, capacity_factor=None), made_tokens(9)
    probabilities = (x @ gate.wg.weight.T).softmax(1).detach()
    torch.testing.assert_close(gate(x).topk_weights[:, 0], probabilities.max(1).values)


# ---- tokens, masks and element types --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("converted", [True, False])
def test_every_type_of_tokens_is_computed_in_float32_or_float64(dtype, converted):
    gate = made_gate(6, k=2, dtype=dtype if converted else torch.float32, z_loss_coef=0.1)
    x = made_tokens(20, dtype=dtype).requires_grad_()
    routing = gate(x)
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    assert (routing.topk_weights.dtype, routing.aux_loss.dtype) == (wide, wide)
    exact = made_gate(6, k=2, dtype=dtype if converted else torch.float32, z_loss_coef=0.1).to(wide)
    same = exact(x.detach().to(wide))
    assert torch.equal(same.topk_idx, routing.topk_idx)
    assert torch.equal(same.topk_weights, routing.topk_weights)
    (routing.topk_weights.square().sum() + routing.aux_loss).backward()
    assert (x.grad.dtype, gate.wg.weight.grad.dtype) == (dtype, gate.wg.weight.dtype)
    assert bool(x.grad.isfinite().all())


def test_autocast_does_not_lower_the_precision():
    gate, x = made_gate(6, k=2, dtype=torch.float32), made_tokens(20, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        routing = gate(x)
    assert torch.equal(routing.topk_weights, gate(x).topk_weights)


@pytest.mark.parametrize("used", [None, torch.zeros(0)])
@pytest.mark.parametrize("k", [1, 3])
def test_a_rank_without_tokens_has_gradients_of_zero(used, k):
    gate = made_gate(3, k=k, z_loss_coef=0.1)
    x = made_tokens(0).requires_grad_()
    routing = gate(x, used)
    assert (routing.topk_idx.shape, routing.topk_weights.shape) == ((0, k), (0, k))
    assert routing.topk_idx.dtype is torch.int64
    assert routing.expert_counts.tolist() == routing.dropped.tolist() == [0, 0, 0]
    assert routing.aux_loss.item() == 0
    (routing.topk_weights.sum() + routing.aux_loss).backward()
    assert gate.wg.weight.grad.abs().sum() == 0
    assert x.grad.shape == (0, HIDDEN)


def test_a_mask_of_all_tokens_routes_nothing_and_has_gradients_of_zero():
    gate = made_gate(3, k=2, z_loss_coef=0.1)
    x = made_tokens(7).requires_grad_()
    routing = gate(x, torch.zeros(7, dtype=torch.bool))
    assert bool((routing.topk_idx == -1).all())
    assert routing.expert_counts.tolist() == routing.dropped.tolist() == [0, 0, 0]
    assert routing.aux_loss.item() == 0
    (routing.topk_weights.sum() + routing.aux_loss).backward()
    assert gate.wg.weight.grad.abs().sum() == x.grad.abs().sum() == 0


@pytest.mark.parametrize("policy", ["probs", "position"])
@pytest.mark.parametrize("garbage", [0.0, 1e30, math.nan, math.inf])
def test_masked_tokens_may_hold_anything_and_change_nothing(policy, garbage):
    options = {"k": 2, "min_capacity": 0, "drop_policy": policy, "z_loss_coef": 0.1}
    x = made_tokens(30)
    used = torch.arange(30) % 3 != 0
    alone = made_gate(4, capacity_factor=0.6, **options)
    wanted = alone(x[used])
    gate = made_gate(4, capacity_factor=0.4, **options)  # of 30 tokens instead of 20: the same capacity
    assert gate.capacity(30) == alone.capacity(20)
    padded = x.masked_fill(~used.unsqueeze(1), garbage).requires_grad_()
    routing = gate(padded, used)
    assert torch.equal(routing.topk_idx[used], wanted.topk_idx)
    torch.testing.assert_close(routing.topk_weights[used], wanted.topk_weights)
    torch.testing.assert_close(routing.aux_loss, wanted.aux_loss)
    assert torch.equal(routing.dropped, wanted.dropped)
    (routing.topk_weights.square().sum() + routing.aux_loss).backward()
    (wanted.topk_weights.square().sum() + wanted.aux_loss).backward()
    torch.testing.assert_close(gate.wg.weight.grad, alone.wg.weight.grad)
    assert padded.grad[~used].abs().sum() == 0


def test_tokens_need_not_be_contiguous_and_are_not_modified():
    gate, x = made_gate(4, k=2), made_tokens(20)
    before = x.clone()
    strided = torch.empty(20, 2 * HIDDEN, dtype=torch.float64)[:, ::2].copy_(x)
    transposed = x.T.contiguous().T
    for each in (x, strided, transposed):
        assert torch.equal(gate(each, torch.arange(20) < 15).topk_idx, gate(x, torch.arange(20) < 15).topk_idx)
    assert torch.equal(x, before)


def test_the_result_is_repeated_bit_for_bit():
    gate, x = made_gate(8, k=3, dtype=torch.float32), made_tokens(100, dtype=torch.float32)
    torch.manual_seed(1)
    first = gate(x)
    torch.manual_seed(2)
    second = gate(x)
    for name in vars(first):
        assert torch.equal(getattr(first, name), getattr(second, name)), name


# ---- noise ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [{"noisy_gate_policy": "Jitter"}, {"noisy_gate_policy": "RSample"}, {"top2_2nd_expert_sampling": True}],
    ids=str,
)
def test_noise_comes_from_the_generator_and_only_in_training(options):
    gate = made_gate(8, k=2, capacity_factor=None, scale=0.3, z_loss_coef=1.0, **options)
    plain = made_gate(8, k=2, capacity_factor=None, scale=0.3, z_loss_coef=1.0).eval()
    x = made_tokens(200)
    torch.manual_seed(3)
    first, second = gate(x), gate(x)
    torch.manual_seed(3)
    again = gate(x)
    assert torch.equal(first.topk_idx, again.topk_idx)
    assert torch.equal(first.topk_weights, again.topk_weights)
    assert not torch.equal(first.topk_weights, second.topk_weights)
    assert torch.equal(gate.eval()(x).topk_weights, plain(x).topk_weights)


def test_jitter_multiplies_hidden_states_by_one_percent_at_most():
    gate = TopKGate(1, 1, noisy_gate_policy="Jitter", aux_loss_coef=0.0, z_loss_coef=1.0)
    torch.nn.init.ones_(gate.wg.weight)
    torch.manual_seed(0)
    factors = [math.sqrt(gate(torch.ones(1, 1)).aux_loss.item()) for _ in range(200)]
    assert 0.99 - 1e-6 <= min(factors) < 0.992
    assert 1.008 < max(factors) <= 1.01 + 1e-6


def test_rsample_chooses_experts_with_their_probabilities():
    gate = made_gate(4, k=2, scale=0.5, noisy_gate_policy="RSample", capacity_factor=None)
    x = made_tokens(1).expand(20000, HIDDEN)
    probabilities = (x[0] @ gate.wg.weight.T).softmax(0).detach()
    torch.manual_seed(0)
    routing = gate(x)
    first = torch.bincount(routing.topk_idx[:, 0], minlength=4) / 20000
    torch.testing.assert_close(first.double(), probabilities, rtol=0, atol=0.015)
    for expert in range(4):  # the second choice is among the others
        second = torch.bincount(routing.topk_idx[routing.topk_idx[:, 0] == expert, 1], minlength=4).double()
        others = probabilities.clone()
        others[expert] = 0
        torch.testing.assert_close(second / second.sum(), others / others.sum(), rtol=0, atol=0.05)
    scores = probabilities[routing.topk_idx]
    torch.testing.assert_close(routing.topk_weights, scores / scores.sum(1, keepdim=True))


def test_sampling_the_second_expert_keeps_the_first():
    gate = made_gate(6, k=2, top2_2nd_expert_sampling=True, capacity_factor=None)
    x = made_tokens(300)
    torch.manual_seed(0)
    sampled, best = gate(x).topk_idx, gate.eval()(x).topk_idx
    assert torch.equal(sampled[:, 0], best[:, 0])
    assert not torch.equal(sampled[:, 1], best[:, 1])
    assert bool((sampled[:, 0] != sampled[:, 1]).all())


# ---- expert bias ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_the_bias_chooses_experts_and_does_not_weigh_them(score):
    gate = made_gate(5, k=2, scale=0.5, score=score, bias_update_rate=0.1, capacity_factor=None)
    x = made_tokens(20)
    bias = [0.4, -0.3, 0.0, 0.2, -0.1]
    gate.expert_bias.copy_(torch.tensor(bias))
    bias = gate.expert_bias.tolist()
    expected = expected_routing(x.tolist(), gate.wg.weight.tolist(), 2, None, score=score, bias=bias)
    assert_equals(gate(x), expected)
    assert expected.slots != expected_routing(x.tolist(), gate.wg.weight.tolist(), 2, None, score=score).slots


def test_updates_of_the_bias_balance_the_experts():
    gate = made_gate(4, score="sigmoid", scale=0.5, bias_update_rate=0.005, capacity_factor=None)
    x = made_tokens(400)
    before = gate(x).expert_counts
    for _ in range(100):
        gate.update_expert_bias(gate(x).expert_counts)
    after = gate(x).expert_counts
    assert int(after.max()) < 108 < 115 < int(before.max())
    gate.expert_bias.zero_()
    gate.update_expert_bias(torch.tensor([4, 2, 3, 3]))
    assert gate.expert_bias.tolist() == pytest.approx([-0.005, 0.005, 0, 0])


def test_the_bias_keeps_its_precision_in_a_converted_model():
    gate = TopKGate(HIDDEN, 2, bias_update_rate=0.001)
    gate.expert_bias.fill_(1.0)
    gate = gate.to(torch.bfloat16)
    gate.update_expert_bias(torch.tensor([1, 3]))
    assert gate.wg.weight.dtype is torch.bfloat16
    assert gate.expert_bias.tolist() == pytest.approx([1.001, 0.999])
    assert copy.deepcopy(gate).state_dict()["expert_bias"].dtype is torch.float32
    with torch.device("meta"):
        lazy = TopKGate(HIDDEN, 2, bias_update_rate=0.001)
    assert lazy.to_empty(device="cpu").expert_bias.dtype is torch.float32


def test_without_a_rate_the_state_has_only_the_weight():
    assert list(TopKGate(HIDDEN, 4).state_dict()) == ["wg.weight"]
    assert list(TopKGate(HIDDEN, 4, bias_update_rate=0.1).state_dict()) == ["expert_bias", "wg.weight"]


# ---- M15: bad input -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"k": 5}, "k = 5 of 4 experts"),
        ({"k": 0}, "k of a gate must be an integer of at least 1, not 0"),
        ({"k": 1.0}, "k of a gate must be an integer of at least 1, not 1.0"),
        ({"num_experts": 0}, "num_experts of a gate must be an integer of at least 1, not 0"),
        ({"hidden": -1}, "hidden of a gate must be an integer of at least 1, not -1"),
        ({"capacity_factor": -0.5}, "capacity_factor of a gate must be a finite number of at least 0.*None.*-0.5"),
        ({"eval_capacity_factor": math.nan}, "eval_capacity_factor of a gate.*nan"),
        ({"capacity_factor": math.inf}, "None for experts that take any number of slots, not inf"),
        ({"min_capacity": -1}, "min_capacity of a gate must be an integer of at least 0, not -1"),
        ({"noisy_gate_policy": "jitter"}, "noisy_gate_policy of a gate must be one of Jitter, RSample, not 'jitter'"),
        ({"drop_policy": "first"}, "drop_policy of a gate must be one of probs, position, random, not 'first'"),
        ({"score": "relu"}, "score of a gate must be one of softmax, sigmoid, not 'relu'"),
        ({"bias_update_rate": -1}, "bias_update_rate of a gate must be a finite number of at least 0, not -1"),
        ({"z_loss_coef": math.nan}, "z_loss_coef of a gate must be a finite number, not nan"),
        ({"bias_update_rate": 0.1, "noisy_gate_policy": "RSample"}, "cannot choose experts both by an expert bias"),
    ],
    ids=str,
)
def test_m15_arguments_out_of_range_are_refused(options, words):
    with pytest.raises(InvalidArgumentError, match=words):
        TopKGate(**{"hidden": HIDDEN, "num_experts": 4, **options})


@pytest.mark.parametrize(
    ("x", "used", "words"),
    [
        (torch.zeros(3, 4), None, r"shape \(tokens, 5\) and got \(3, 4\)"),
        (torch.zeros(2, 3, 5), None, r"shape \(tokens, 5\) and got \(2, 3, 5\); reshape them"),
        (torch.zeros(5), None, r"shape \(tokens, 5\) and got \(5,\)"),
        (torch.zeros(3, 5, dtype=torch.int64), None, "floating-point type and got torch.int64"),
        (torch.zeros(3, 5), torch.ones(4), r"used_token has shape \(4,\), but there are 3 tokens"),
        (torch.zeros(3, 5), torch.ones(3, 1), r"used_token has shape \(3, 1\), but there are 3 tokens"),
    ],
    ids=str,
)
def test_m15_tokens_and_masks_of_a_wrong_shape_are_refused(x, used, words):
    with pytest.raises(InvalidArgumentError, match=f"this process, which has no rank: .*{words}"):
        made_gate(4, dtype=torch.float32)(x, used)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_m15_logits_that_are_not_finite_name_the_first_token_and_the_cause(value):
    gate, x = made_gate(4), made_tokens(6)
    x[2, 1] = x[4, 0] = value
    with pytest.raises(NonFiniteError, match=r"2 of 6 tokens.*first is token 2.*hidden state is not finite either"):
        gate(x)
    with pytest.raises(NonFiniteError, match=r"1 of 6 tokens.*first is token 4"):
        gate(x, torch.arange(6) != 2)
    with torch.no_grad():
        gate.wg.weight[3, 0] = value
    with pytest.raises(NonFiniteError, match=r"token 0, with (nan|-?inf) for expert 3; the gate's weight .*not finite"):
        gate(made_tokens(6))
    big = made_gate(4, dtype=torch.float32, scale=1e38)
    with pytest.raises(NonFiniteError, match="their product overflows"):
        big(torch.full((1, HIDDEN), 1e38))


@on_ranks(2)
def test_m15_errors_of_a_job_name_the_rank():
    import horocache.torch as hvd
    import pytest
    import torch
    from horocache.torch.moe import TopKGate

    gate = TopKGate(5, 4)
    with pytest.raises(hvd.NonFiniteError, match=f"rank {hvd.rank()}: .*first is token 1"):
        gate(torch.tensor([[0.0] * 5, [float("nan")] * 5]))
    with pytest.raises(hvd.InvalidArgumentError, match=f"rank {hvd.rank()}: used_token"):
        gate(torch.zeros(2, 5), torch.ones(3))


@pytest.mark.parametrize("counts", [torch.zeros(4), torch.zeros(3, dtype=torch.int64)])
def test_m15_wrong_counts_for_the_bias_are_refused(counts):
    with pytest.raises(InvalidArgumentError, match="needs 4 integers, one for each expert"):
        TopKGate(HIDDEN, 4, bias_update_rate=0.1).update_expert_bias(counts)
    with pytest.raises(InvalidArgumentError, match="no expert bias; make it with bias_update_rate"):
        TopKGate(HIDDEN, 4).update_expert_bias(torch.zeros(4, dtype=torch.int64))


# ---- the module -----------------------------------------------------------------------------------------------------


def test_the_torch_binding_does_not_import_the_package():
    program = "import sys, horocache.torch; sys.exit('horocache.torch.moe' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_gate_learns_to_send_tokens_where_the_loss_falls():
    gate = made_gate(3, k=3, dtype=torch.float32, scale=0.1, capacity_factor=None, aux_loss_coef=0.0)
    x = made_tokens(64, dtype=torch.float32)
    best = (x[:, :1] > 0).long()  # expert 0 or 1; expert 2 is never right
    optimizer = torch.optim.Adam(gate.parameters(), lr=0.1)
    for _ in range(200):
        routing = gate(x)
        loss = -(routing.topk_weights * (routing.topk_idx == best)).sum(1).mean() + routing.aux_loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float((gate(x).topk_idx[:, :1] == best).float().mean()) > 0.9


def test_the_description_names_the_arguments():
    assert "num_experts=4, k=2, capacity_factor=None" in repr(TopKGate(HIDDEN, 4, 2, None))
