"""DistributedOptimizer with codecs: it trains, ranks stay equal, residuals follow parameters."""

from __future__ import annotations

import gc

import horocache.torch as hvd
import pytest
import torch
from ranks import on_ranks

from horocache.core import context

from ..small_model import batch, check_equal_on_all_ranks, make_model, parameters, table_and_head

C = hvd.Compression
CODECS = {
    "zfp": lambda: C.zfp(tolerance=1e-5),
    "rate": lambda: C.zfp(rate=24),
    "int8": lambda: C.int8(block=16),
    "topk": lambda: C.topk(ratio=0.25),
}


def train(model, steps, compression, distributed=True, lr=0.2, **options):
    """Train on the same batch in every step; return the losses of this rank and the optimizer."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    if distributed:
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression=compression, **options)
    losses = []
    x, y = batch(0, hvd.rank())
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x.to(next(model.parameters()).dtype)), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, optimizer


@pytest.mark.parametrize("groups", [0, 2])
@pytest.mark.parametrize("codec", list(CODECS))
@on_ranks(3)
def test_it_trains_with_each_codec_and_the_ranks_stay_equal(codec, groups):
    model = make_model()
    before = hvd.metrics()
    losses, optimizer = train(model, 150, CODECS[codec](), num_groups=groups)
    counted = hvd.metrics().since(before)
    check_equal_on_all_ranks(list(model.parameters()))
    mean = hvd.allreduce(torch.tensor([losses[0], losses[-1]]))
    assert mean[1] < 0.25 * mean[0], mean
    plain = make_model()
    train(plain, 150, None)
    distance = max((p - q).abs().max().item() for p, q in zip(model.parameters(), plain.parameters(), strict=True))
    assert distance < {"zfp": 1e-2, "rate": 1e-2, "int8": 0.2, "topk": 1.0}[codec]
    sizes = [p.nbytes for p in model.parameters()]
    assert counted["compressed_bytes"] == 150 * sum(sizes)
    assert counted["wire_bytes"] < 0.75 * counted["compressed_bytes"]
    names = sorted(name for bucket in optimizer.debug_state().buckets for name in [g.name for g in bucket.gradients])
    kept = sorted(key.name for key in context.current().residuals.tensors())
    assert kept == (names if codec == "topk" else [])


@on_ranks(2)
def test_residuals_have_the_names_of_parameters_whatever_the_buckets_are():
    """The first step measures the order; the second one has other buckets, and the same residuals."""
    params = [torch.nn.Parameter(torch.ones(6)) for _ in range(4)]
    named = [(f"p{i}", param) for i, param in enumerate(params)]
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(params, lr=1.0), named, compression=C.topk(k=1), num_groups=2, op=hvd.Sum
    )
    slopes = torch.tensor([3.0, 2.0, 0, 0, 0, 0])
    for step in range(3):
        optimizer.zero_grad()
        order = [3, 0, 2, 1]
        loss = sum((params[i] * slopes * (i + 1)).sum() for i in order)
        loss.backward()
        optimizer.synchronize()
        for i, param in enumerate(params):
            # Given in each step: (3, 2). The residuals: (0, 2), (3, 0), (0, 2).
            want = [[3, 0], [0, 4], [6, 0]][step]
            assert param.grad.tolist() == [2 * (i + 1) * w for w in want] + [0] * 4, (step, i)
        with optimizer.skip_synchronize():
            optimizer.step()
    assert len(context.current().residuals) == 4


@on_ranks(2)
def test_residuals_go_with_parameters_with_a_loaded_state_and_with_the_optimizer():
    params, named = parameters(3)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(params, lr=0.1), named, compression=C.topk(k=1))
    residuals = context.current().residuals

    def step(optimizer=optimizer):
        optimizer.zero_grad()
        sum((param * torch.tensor([3.0, 2.0])).sum() for param in params).backward()
        optimizer.step()

    step()
    assert len(residuals) == 3
    removed = optimizer.param_groups[0]["params"].pop()
    step()
    assert sorted(key.name for key in residuals.tensors()) == ["p0", "p1"]
    assert removed is params[2]
    optimizer.load_state_dict(optimizer.state_dict())
    assert len(residuals) == 0
    step()
    C.topk.clear_residuals("p0")
    assert len(residuals) == 1
    del optimizer, step
    gc.collect()
    assert len(residuals) == 0


@on_ranks(3)
def test_parameters_of_several_types_and_sparse_gradients():

    class Mixed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.layers = torch.nn.Sequential(torch.nn.Linear(6, 8).bfloat16(), torch.nn.Linear(8, 3))

        def forward(self, x):
            return self.layers[1](torch.tanh(self.layers[0](x)).float())

    for codec, groups in [(C.zfp(tolerance=1e-4), 0), (C.zfp(tolerance=1e-4), 1), (C.int8(), 1)]:
        model = Mixed()
        losses, _ = train(model, 20, codec, lr=0.05, num_groups=groups)
        first, last = hvd.allreduce(torch.tensor([losses[0], losses[-1]]))
        assert last < first
        check_equal_on_all_ranks([p.float() for p in model.parameters()])
    for codec in (C.zfp(tolerance=1e-3), C.topk(k=2)):
        table, head, named = table_and_head()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([p for _, p in named], lr=0.1), named, compression=codec, sparse_as_dense=True
        )
        head(table(torch.tensor([hvd.rank(), 3]))).sum().backward()
        optimizer.step()
        assert table.weight.grad.is_sparse
        check_equal_on_all_ranks([table.weight, head.weight])
    table, head, named = table_and_head()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p for _, p in named], lr=0.1), named, compression=C.int8())
    with pytest.raises(hvd.UnsupportedError, match="table is sparse and cannot be compressed; use sparse_as_dense"):
        head(table(torch.tensor([0, 3]))).sum().backward()
    assert optimizer.defaults["lr"] == 0.1


@on_ranks(2)
def test_missing_gradients_and_several_passes():
    params, named = parameters(3)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(params, lr=0.1), named, compression=C.int8(block=1), op=hvd.Sum, backward_passes_per_step=2
    )
    for _ in range(2):
        (params[0] * 2).sum().backward()
        if hvd.rank():
            (params[1] * 3).sum().backward()
    optimizer.synchronize()
    torch.testing.assert_close(params[0].grad, torch.full((2,), 8.0))
    torch.testing.assert_close(params[1].grad, torch.full((2,), 6.0))
    assert params[2].grad is None


@on_ranks(2)
def test_ranks_with_different_codecs_and_wrong_options_get_errors():
    params, named = parameters(1)
    codec = C.topk(k=1 + hvd.rank())
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(params, lr=0.1), named, compression=codec)
    params[0].sum().backward()
    with pytest.raises(hvd.MismatchError, match="p0") as failed:
        optimizer.step()
    assert all(text in str(failed.value) for text in ("topk(k=1)", "topk(k=2)"))
    for options, error, match in [
        ({"op": hvd.Max}, hvd.UnsupportedError, "op=Sum and op=Average, not for Max"),
        ({"op": hvd.Adasum}, hvd.UnsupportedError, "not for Adasum"),
        ({"gradient_as_bucket_view": True}, hvd.UnsupportedError, "gradient_as_bucket_view=True and a compression"),
        ({"compression": C.zfp}, hvd.InvalidArgumentError, "lacks its parameters"),
    ]:
        with pytest.raises(error, match=match):
            hvd.DistributedOptimizer(torch.optim.SGD(params, lr=0.1), named, **{"compression": codec, **options})
