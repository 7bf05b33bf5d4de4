"""Common practice in torch programs: mixed precision, checkpointing, compiled models, data loading in workers."""

from __future__ import annotations

import horocache.torch as hvd
import pytest
import torch
from ranks import on_ranks

from horocache.testing import run_ranks as run

from ..small_model import batch, make_model


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
def test_a_gradient_scaler_skips_the_step_on_all_ranks_where_one_overflows(clips, fused):
    def body():
        import horocache.torch as hvd

        hvd.init()
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
            same = all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
            assert same == (step == 2), step
            scales.append(scaler.get_scale())
        assert scales == [1024.0, 1024.0, 512.0, 512.0]
        plain = make_model()
        for step in (0, 1, 3):
            for p, grad in zip(plain.parameters(), gradients_of_all(hvd.size(), step, plain), strict=True):
                p.data -= 0.1 * grad
        torch.testing.assert_close(list(model.parameters()), list(plain.parameters()))
        return [p.detach().clone() for p in model.parameters()]

    first, second = run(body, 2)
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("options", [{}, {"num_groups": 2}, {"compression": "fp16"}])
@on_ranks(2)
def test_gradients_that_are_changed_while_they_are_reduced_are_an_error_that_says_what_to_do(options):
    model = make_model()
    chosen = {**options, "compression": getattr(hvd.Compression, options.get("compression", "none"))}
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), **chosen
    )
    changes = {
        "changed": lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3),
        "replaced": lambda: setattr(model[0].weight, "grad", torch.zeros(16, 6, dtype=torch.float64)),
        "set to None": lambda: model.zero_grad(set_to_none=True),
    }
    for step, (how, change) in enumerate(changes.items()):
        x, y = batch(step, hvd.rank())
        torch.nn.functional.cross_entropy(model(x), y).backward()
        change()
        with pytest.raises(hvd.HorocacheError, match=rf"was {how} while .* Call optimizer.synchronize\(\) after"):
            optimizer.step()
        optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()


@pytest.mark.parametrize("reentrant", [True, False])
@on_ranks(2)
def test_checkpointed_activations_give_the_same_gradients(reentrant):
    from torch.utils.checkpoint import checkpoint_sequential

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


@on_ranks(2, init=False)
def test_a_compiled_model_trains_as_the_plain_one():
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

    hvd.init()
    torch.testing.assert_close(trained(True), trained(False))


@pytest.mark.parametrize("method", ["fork", "spawn"])
@on_ranks(2, timeout=120)
def test_workers_that_load_data_leave_the_job_alone(method):
    from torch.utils.data import DataLoader, TensorDataset
    from torch.utils.data.distributed import DistributedSampler

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
