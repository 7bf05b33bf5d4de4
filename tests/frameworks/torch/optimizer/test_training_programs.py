"""Common practice in torch programs: mixed precision, checkpointing, compiled models, data loading in workers."""

from __future__ import annotations

import horocache.torch as hvd
import pytest
import torch
from ranks import on_ranks
from torch.utils.checkpoint import checkpoint_sequential
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from ..small_model import batch, check_equal_on_all_ranks, make_model


def gradients_of_all(size, step, model):
    """The gradients of a model, averaged over the batches of all ranks."""
    model.zero_grad()
    for rank in range(size):
        x, y = batch(step, rank)
        (torch.nn.functional.cross_entropy(model(x), y) / size).backward()
    return [p.grad for p in model.parameters()]


@on_ranks(2)
def test_autocast_keeps_gradients_in_the_parameters_type():
    model = make_model().float()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())
    x, y = batch(0, hvd.rank())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = model(x.float())
        assert output.dtype == torch.bfloat16
        loss = torch.nn.functional.cross_entropy(output.float(), y)
    loss.backward()
    optimizer.synchronize()
    want = gradients_of_all(hvd.size(), 0, make_model())
    for p, expected in zip(model.parameters(), want, strict=True):
        assert p.grad.dtype == torch.float32
        torch.testing.assert_close(p.grad.double(), expected, rtol=0.1, atol=0.05)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("clips", [True, False])
@on_ranks(2)
def test_a_gradient_scaler_skips_the_step_on_all_ranks_if_one_overflows(clips, fused):
    model = make_model()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
    optimizer = hvd.DistributedOptimizer(sgd, model.named_parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scales = []
    for step in range(4):
        optimizer.zero_grad()
        x, y = batch(step, hvd.rank())
        before = [p.detach().clone() for p in model.parameters()]
        loss = torch.nn.functional.cross_entropy(model(x), y)
        overflows = step == 2 and hvd.rank() == 1
        scaler.scale(loss * float("inf") if overflows else loss).backward()
        if clips:
            optimizer.synchronize()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
        else:
            scaler.step(optimizer)
        scaler.update()
        unchanged = all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
        assert unchanged == (step == 2), step
        scales.append(scaler.get_scale())
    assert scales == [1024.0, 1024.0, 512.0, 512.0]
    plain = make_model()
    for step in (0, 1, 3):
        for p, grad in zip(plain.parameters(), gradients_of_all(hvd.size(), step, plain), strict=True):
            p.data -= 0.1 * grad
    torch.testing.assert_close(list(model.parameters()), list(plain.parameters()))
    check_equal_on_all_ranks(model.parameters())


@pytest.mark.parametrize("reentrant", [True, False])
@on_ranks(2)
def test_checkpointed_activations_give_the_same_gradients(reentrant):
    model = make_model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), num_groups=2
    )
    for step in range(3):
        optimizer.zero_grad()
        model.load_state_dict(make_model().state_dict())
        x, y = batch(step, hvd.rank())
        output = checkpoint_sequential(model, 2, x.requires_grad_(), use_reentrant=reentrant)
        torch.nn.functional.cross_entropy(output, y).backward()
        optimizer.synchronize()
        want = gradients_of_all(hvd.size(), step, make_model())
        for p, expected in zip(model.parameters(), want, strict=True):
            torch.testing.assert_close(p.grad, expected)
        with optimizer.skip_synchronize():
            optimizer.step()


@on_ranks(2)
def test_a_compiled_model_trains_like_the_plain_one():
    def trained(compiled):
        torch.compiler.reset()
        model = make_model()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), num_groups=2
        )
        # The compiler's front end and its autograd, where hooks could be lost, without its code generator.
        forward = torch.compile(model, backend="aot_eager", fullgraph=True) if compiled else model
        for step in range(3):
            optimizer.zero_grad()
            x, y = batch(step, hvd.rank())
            torch.nn.functional.cross_entropy(forward(x), y).backward()
            optimizer.step()
        return [p.detach() for p in model.parameters()]

    torch.testing.assert_close(trained(True), trained(False))


@pytest.mark.parametrize("method", ["fork", "spawn"])
@on_ranks(2, timeout=120)
def test_data_loader_workers_do_not_disturb_the_job(method):
    data = TensorDataset(torch.arange(24))
    sampler = DistributedSampler(data, num_replicas=hvd.size(), rank=hvd.rank(), seed=3)
    loader = DataLoader(
        data, batch_size=3, sampler=sampler, num_workers=2, multiprocessing_context=method, persistent_workers=True
    )
    for epoch in range(2):
        sampler.set_epoch(epoch)
        seen = [hvd.allgather(numbers, name="numbers") for (numbers,) in loader]
        assert sorted(torch.cat(seen).tolist()) == list(range(24))
    del loader
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum, name="after").item() == hvd.size()
