"""Gradients of the layer of experts: finite differences, graphs, checkpoints, autocast and modes of torch."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from horocache.torch.moe import MoELayer, checkpoint
from ranks import on_ranks

from horocache.moe.exchanges import Alltoall, Outcome

from .dense import Expert, dense_outputs, tokens_of

HIDDEN = 4


def made(experts=3, k=2, dtype=torch.float64, seed=0, **options):
    torch.manual_seed(seed)
    options = {"drop_tokens": False, **options}
    return MoELayer(HIDDEN, partial(Expert, HIDDEN), experts, k, **options).to(dtype)


def grads_of(layer):
    return [None if each.grad is None else each.grad.clone() for each in layer.parameters()]


def equal(first, second):
    return all((a is None and b is None) or torch.equal(a, b) for a, b in zip(first, second, strict=True))


@on_ranks(1, 2)
def test_m2_gradients_equal_finite_differences():
    import horocache as hc

    layer = made()
    x, _ = tokens_of(hc.rank(), 3, HIDDEN, torch.float64)
    # All ranks evaluate the same number of points, so that their calls match.

    def output(x, weight):
        out, loss, _ = torch.func.functional_call(layer, {"gate.wg.weight": weight}, (x,))
        return out, loss

    assert torch.autograd.gradcheck(output, (x, layer.gate.wg.weight), eps=1e-6, atol=1e-6)


@on_ranks(2)
def test_m2_gradients_of_experts_equal_finite_differences():
    import horocache as hc

    layer = made(experts=2)
    x, grad = tokens_of(hc.rank(), 3, HIDDEN, torch.float64)

    def loss():
        own = (layer(x)[0] * grad).sum()
        return own, float(hc.allreduce(own.detach().numpy(), op=hc.Sum, name="loss"))

    loss()[0].backward()
    for number in range(2):  # the rank that hosts the expert moves it; all ranks compute the loss
        for sign in range(3):
            own = layer.experts[str(number)].up.weight if str(number) in layer.experts else None
            values = []
            for step in (1e-6, -2e-6):
                if own is not None:
                    with torch.no_grad():
                        own[sign, 1] += step
                with torch.no_grad():
                    values.append(loss()[1])
            if own is not None:
                with torch.no_grad():
                    own[sign, 1] += 1e-6
                assert float(own.grad[sign, 1]) == pytest.approx((values[0] - values[1]) / 2e-6, abs=1e-6)


@on_ranks(2)
def test_graphs_of_several_calls_are_independent_and_may_be_kept():
    import horocache as hc

    layer = made()
    inputs = [tokens_of(hc.rank(), 3 + number, HIDDEN, torch.float64, seed=number) for number in range(3)]
    alone = []
    for x, grad in inputs:
        layer.zero_grad()
        layer(x)[0].backward(grad)
        alone.append((x.grad.clone(), grads_of(layer)))
        x.grad = None
    outputs = [layer(x)[0] for x, _ in inputs]
    for number in (1, 2, 0):  # backward in another order than forward
        layer.zero_grad()
        x, grad = inputs[number]
        for again in (True, False):
            outputs[number].backward(grad, retain_graph=again)
        assert torch.equal(x.grad, alone[number][0] * 2)
        assert equal(grads_of(layer), [None if each is None else each * 2 for each in alone[number][1]])
    with pytest.raises(RuntimeError, match="second time"):
        outputs[0].backward(inputs[0][1])


@on_ranks(2)
def test_a_second_derivative_is_an_error_on_all_ranks():
    import horocache as hc
    from horocache.errors import InputFailedError, UnsupportedError

    layer = made(name="a")
    x, grad = tokens_of(hc.rank(), 3, HIDDEN, torch.float64)
    with pytest.raises(UnsupportedError, match=r"layer 'a'.*no second derivative"):
        torch.autograd.grad(layer(x)[0], x, grad, create_graph=True)
    output = layer(x)[0]
    error = UnsupportedError if hc.rank() == 1 else InputFailedError
    with pytest.raises(error, match="no second derivative"):
        torch.autograd.grad(output, x, grad, create_graph=hc.rank() == 1)


@on_ranks(2)
def test_an_error_in_the_backward_pass_of_an_expert_is_an_error_on_all_ranks():
    import horocache as hc
    from horocache.errors import InputFailedError

    layer = made(name="a")
    x, grad = tokens_of(hc.rank(), 6, HIDDEN, torch.float64)

    def broken(_):
        raise RuntimeError("the gradient of the expert is broken")

    for expert in layer.experts.values() if hc.rank() == 1 else ():
        expert.up.weight.register_hook(broken)
    output = layer(x)[0]
    with pytest.raises(RuntimeError, match="the gradient of the expert is broken") as caught:
        torch.autograd.backward(output, grad)
    assert isinstance(caught.value, InputFailedError) == (hc.rank() == 0)
    with torch.no_grad():
        layer(x)


@on_ranks(2)
def test_a_backward_pass_releases_the_graphs_of_served_batches():
    import weakref

    import horocache as hc

    alive = []

    class Probe(Expert):
        def forward(self, x):
            middle = torch.tanh(self.up(x))  # saved for the backward pass
            alive.append(weakref.ref(middle.untyped_storage()))
            return self.down(middle)

    layer = MoELayer(HIDDEN, partial(Probe, HIDDEN), 4, 2, drop_tokens=False)
    x, grad = tokens_of(hc.rank(), 6, HIDDEN, torch.float32)
    output = layer(x)[0]
    assert alive and all(each() is not None for each in alive)
    output.backward(grad, retain_graph=True)
    assert all(each() is not None for each in alive)
    output.backward(grad)
    assert not any(each() is not None for each in alive)


@on_ranks(2)
def test_evaluation_and_no_grad_give_the_same_outputs_and_keep_no_graph():
    import horocache as hc

    layer = made()
    x, _ = tokens_of(hc.rank(), 6, HIDDEN, torch.float64)
    output = layer(x)[0]
    with torch.no_grad():
        assert torch.equal(layer(x)[0], output.detach()) and not layer(x)[0].requires_grad
    with torch.inference_mode():
        assert torch.equal(layer(x)[0], output.detach())
    layer.eval()
    assert torch.equal(layer(x)[0].detach(), output.detach())
    if hc.rank() == 0:  # frozen gate, no gradient of x: the rank still serves the others
        layer.gate.requires_grad_(False)
        x = x.detach()
    output = layer(x)[0]
    assert output.requires_grad
    output.sum().backward()
    assert all(each.grad is not None for each in layer.experts.parameters())


@on_ranks(2)
def test_ranks_that_differ_in_gradient_mode_get_an_error():
    import horocache as hc
    from horocache.errors import InputFailedError, MismatchError

    layer = made(name="a")
    x, _ = tokens_of(hc.rank(), 9, HIDDEN, torch.float64)
    with torch.set_grad_enabled(hc.rank() == 0), pytest.raises((MismatchError, InputFailedError)) as caught:
        layer(x)
    for part in ("layer 'a'", "float64 with gradients", "float64 without gradients"):
        assert part in str(caught.value)


@pytest.mark.parametrize("reentrant", [None, True, False])
@on_ranks(3)
def test_m13_a_checkpointed_layer_has_the_same_bits(reentrant):
    import horocache as hc

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(3)
            self.first = torch.nn.Linear(HIDDEN, HIDDEN)
            self.layers = torch.nn.ModuleList(made(seed=number, noisy_gate_policy="Jitter") for number in range(2))

        def forward(self, x):
            x = torch.tanh(self.first(x))
            for layer in self.layers:
                out, loss, _ = layer(x)
                x = x + out * (1 + loss)
            return x

    block = Block().double()
    x, grad = tokens_of(hc.rank(), 2 * hc.rank(), HIDDEN, torch.float64)
    results = []
    for checkpointed in (False, True):
        block.zero_grad()
        x.grad = None
        torch.manual_seed(11)
        if not checkpointed:
            output = block(x)
        elif reentrant is None:
            output = checkpoint(block, x)
        else:
            output = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=reentrant)
        output.backward(grad)
        results.append((output.detach(), x.grad, *grads_of(block)))
    assert equal(*results)
    assert all(each.grad is not None for each in block.parameters())


class LosesBatches:
    """An alltoall that loses the batches for chosen ranks, as those of a late rank are lost."""

    def __init__(self, options, lost):
        self.inner, self.lost = Alltoall(options.name, options.process_set), lost

    def run(self, call):
        if call.lossless:
            return self.inner.run(call)
        taken = call.take
        call.take = lambda peer, result: None if peer in self.lost else taken(peer, result)
        report = self.inner.run(call)
        for peer in self.lost:
            if call.rows[peer]:
                report.outcomes[peer] = Outcome.OWN_TIMEOUT
        return report

    def fail(self, why):
        self.inner.fail(why)


def lossy(lost, **options):
    """A layer of 6 experts that loses the batches for some ranks."""
    return made(experts=6, tau=0.0, exchange=lambda each: LosesBatches(each, lost), **options)


@on_ranks(3)
def test_m13_m5_lost_batches_contribute_nothing_also_in_a_repetition():
    import horocache as hc

    rank = hc.rank()
    x, grad = tokens_of(rank, 7, HIDDEN, torch.float64)
    lost = {(rank + 1) % 3}
    results = []
    for way in (lambda layer, x: layer(x), checkpoint):
        layer = lossy(lost, seed=5)
        x.grad = None
        output, loss, counts = way(layer, x)
        ((output * grad).sum() + loss).backward()
        results.append([output.detach(), loss.detach(), counts, x.grad, *grads_of(layer)])
        statistics = layer.statistics()
        assert statistics.calls == 1 and statistics.sent == 14 and statistics.dropped["own_timeout"] > 0
        assert statistics.sent == statistics.delivered + sum(statistics.dropped.values())
    assert equal(*results)
    # The reference loses the slots of the same experts; its auxiliary loss is the same.
    bank = made(experts=6, seed=5, process_set=hc.ProcessSet([rank])).experts
    gone = {expert for expert, host in enumerate(layer.expert_ranks) if host in lost}
    x.grad = None
    layer.gate.zero_grad()
    output, loss, counts = dense_outputs(bank, layer.gate, x, lost_experts=gone)
    ((output * grad).sum() + loss).backward()
    wanted = [output.detach(), loss.detach(), counts, x.grad, layer.gate.wg.weight.grad]
    for value, reference in zip(results[0][:5], wanted, strict=True):
        assert (value - reference).abs().max() < 1e-12


@on_ranks(3)
def test_lost_slots_warn_fail_or_scale_the_others():
    import warnings

    import horocache as hc
    from horocache.errors import CollectiveError

    x, _ = tokens_of(hc.rank(), 7, HIDDEN, torch.float64)
    lost = {(hc.rank() + 1) % 3}
    layer = lossy(lost, max_drop_fraction=0.01)
    for times in (1, 0):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            plain = layer(x)[0].detach()
        assert len(caught) == times
        if times:
            assert f"rank {hc.rank()}" in str(caught[0].message) and "max_drop_fraction=0.01" in str(caught[0].message)
    with pytest.raises(CollectiveError, match="assert_no_drops"):
        lossy(lost, assert_no_drops=True)(x)
    lossy(set(), assert_no_drops=True)(x)
    layer = lossy(lost, renormalize=True)
    scaled = layer(x)[0].detach()
    routing = layer.gate(x)
    came = torch.tensor([host not in lost for host in layer.expert_ranks])[routing.topk_idx]
    part = (routing.topk_weights * came).sum(1, keepdim=True)
    whole = routing.topk_weights.sum(1, keepdim=True)
    wanted = torch.where(came.all(1, keepdim=True) | (part == 0), plain, plain * whole / part)
    assert torch.allclose(scaled, wanted, atol=1e-12) and not torch.equal(scaled, plain)


@on_ranks(2)
def test_a_repetition_that_differs_is_an_error_that_says_so():
    import horocache as hc
    from horocache.errors import InputFailedError, InvalidArgumentError

    layer = made(name="a")
    x, _ = tokens_of(hc.rank(), 4, HIDDEN, torch.float64)
    runs = []

    def changing(x):
        runs.append(1)
        return layer(x if len(runs) == 1 or hc.rank() == 0 else x[1:])[0].sum()

    output = checkpoint(changing, x)
    with pytest.raises(InvalidArgumentError if hc.rank() == 1 else InputFailedError, match="the same each time"):
        output.backward()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@on_ranks(2)
def test_m1_every_element_type_works_and_rounds_little(dtype):
    import horocache as hc

    dtype = getattr(torch, dtype)
    layer = made(dtype=dtype)
    exact = made()
    exact.gate.wg.weight.data.copy_(layer.gate.wg.weight)
    x, grad = tokens_of(hc.rank(), 6, HIDDEN, dtype)
    output, _, _ = layer(x)
    (output * grad).sum().backward()
    assert output.dtype == dtype and x.grad.dtype == dtype
    wide, _, _ = exact(x.detach().double())
    assert torch.allclose(output.double(), wide, atol=100 * torch.finfo(dtype).eps)
    assert all(each.grad is not None and each.grad.dtype == dtype for each in layer.experts.parameters())


@on_ranks(2)
def test_autocast_runs_experts_in_16_bits_and_gives_gradients():
    import horocache as hc

    seen = []

    class Probe(Expert):
        def forward(self, x):
            output = super().forward(x)
            seen.append(output.dtype)
            return output

    torch.manual_seed(0)
    layer = MoELayer(HIDDEN, partial(Probe, HIDDEN), 4, 2, drop_tokens=False)
    x, grad = tokens_of(hc.rank(), 6, HIDDEN, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        with torch.no_grad():
            layer(x)
        output, _, _ = layer(x)
    assert set(seen) == {torch.bfloat16} and output.dtype == torch.float32
    (output * grad).sum().backward()
    assert x.grad.abs().sum() > 0
    gradients = [each.grad for each in layer.experts.parameters()]
    assert all(each is not None for each in gradients) and sum(each.abs().sum() for each in gradients) > 0


@on_ranks(2)
def test_tokens_may_have_any_dimensions_and_strides():
    import horocache as hc

    layer = made()
    flat, grad = tokens_of(hc.rank(), 6, HIDDEN, torch.float64)
    layer(flat)[0].backward(grad)
    strided = flat.detach().t().contiguous().t().requires_grad_()
    assert not strided.is_contiguous()
    output = layer(strided)[0]
    output.backward(grad.t().contiguous().t())
    assert torch.equal(strided.grad, flat.grad)
    cube = flat.detach().reshape(2, 3, HIDDEN)
    out, _, counts = layer(cube, torch.ones(2, 3))
    assert out.shape == cube.shape and torch.equal(out.reshape(6, HIDDEN), output) and counts.sum() == 12
    single = layer(flat.detach()[0])[0]
    assert single.shape == (HIDDEN,)
    masked, _, counts = layer(cube, torch.tensor([[1, 0, 1], [0, 0, 1]]))
    assert counts.sum() == 6 and (masked[0, 1] == 0).all() and (masked[1, 2] == out[1, 2]).all()


@on_ranks(2)
def test_compiled_programs_leave_their_graph_for_the_layer():
    import horocache as hc

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(HIDDEN, HIDDEN).double()
            self.layer = made()

        def forward(self, x):
            out, loss, _ = self.layer(torch.tanh(self.linear(x)))
            return (x + out) * (1 + loss)

    block = Block()
    results = []
    for model in (block, torch.compile(block, backend="aot_eager")):
        for count in (5, 6, 7):
            block.zero_grad()
            x, grad = tokens_of(hc.rank(), count, HIDDEN, torch.float64)
            model(x).backward(grad)
            results.append([x.grad, *grads_of(block)])
    for plain, compiled in zip(results[:3], results[3:], strict=True):
        assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(plain, compiled, strict=True))


@on_ranks(2)
def test_experts_may_write_into_their_tokens_and_into_their_outputs():
    import horocache as hc

    results = []
    for in_place in (False, True):
        torch.manual_seed(0)
        layer = MoELayer(
            HIDDEN,
            lambda in_place=in_place: torch.nn.Sequential(
                torch.nn.ReLU(in_place), torch.nn.Linear(HIDDEN, HIDDEN), torch.nn.Sigmoid(), torch.nn.ReLU(in_place)
            ),
            4,
            3,
            drop_tokens=False,
        ).double()
        x, grad = tokens_of(hc.rank(), 6, HIDDEN, torch.float64)
        output = layer(x)[0]
        output.backward(grad)
        results.append([output.detach(), x.grad, *grads_of(layer)])
    assert equal(*results)


@on_ranks(2)
def test_experts_without_a_graph_have_zero_gradients():
    import horocache as hc

    class Constant(Expert):
        def forward(self, x):
            return torch.ones_like(x)

    layer = MoELayer(HIDDEN, partial(Constant, HIDDEN), 4, 2, drop_tokens=False).double()
    x, grad = tokens_of(hc.rank(), 6, HIDDEN, torch.float64)
    layer(x)[0].backward(grad)
    assert all((each.grad == 0).all() for each in layer.experts.parameters())
    assert layer.gate.wg.weight.grad is not None
