"""Adasum against its formula computed in one process, and the optimizer that combines the ranks' steps with it."""

from __future__ import annotations

import horocache.torch as hvd
import numpy as np
import pytest
import torch
from ranks import on_ranks

import horocache as hc
from horocache.testing import run_ranks as run

from .torch.small_model import batch, make_model


def data(rank, shape, dtype=np.float64):
    return np.random.default_rng(17 + rank).standard_normal(shape).astype(dtype)


def pair(a, b):
    dot = float((a.astype(np.float64) * b).sum())
    na, nb = float((a.astype(np.float64) ** 2).sum()), float((b.astype(np.float64) ** 2).sum())
    return a * (1 - dot / (2 * na) if na else 1.0) + b * (1 - dot / (2 * nb) if nb else 1.0)


def adaptive_sum(parts):
    while len(parts) > 1:
        parts = [pair(a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_it_is_the_formula_s_value_with_the_same_bits_on_all_ranks(size):
    def body():
        import horocache.torch as hvd

        import horocache as hc

        hc.init()
        shapes = [(5,), (2, 3), ()]
        mine = [data(hc.rank(), shape) for shape in shapes]
        alone = [hc.allreduce(x, op=hc.Adasum) for x in mine]
        grouped = hc.grouped_allreduce(mine, op=hc.Adasum, name="g", prescale_factor=2.0, postscale_factor=0.25)
        tensor = torch.tensor(mine[1], dtype=torch.float32)
        given = tensor.clone()
        handle = hvd.allreduce_async_(tensor, op=hvd.Adasum, name="t")
        assert hvd.synchronize(handle) is tensor
        half = hvd.allreduce(given, op=hvd.Adasum, compression=hvd.Compression.fp16, name="h")
        brain = hvd.allreduce(given.bfloat16(), op=hvd.Adasum, name="b")
        assert half.dtype is torch.float32 and brain.dtype is torch.bfloat16
        return alone, grouped, tensor.numpy(), half.numpy(), brain.float().numpy()

    results = run(body, size)
    for index, shape in enumerate([(5,), (2, 3), ()]):
        want = adaptive_sum([data(rank, shape) for rank in range(size)])
        for alone, grouped, *_ in results:
            np.testing.assert_allclose(alone[index], want, rtol=1e-12)
            assert alone[index].shape == shape
            np.testing.assert_allclose(grouped[index], want / 2, rtol=1e-12)
            np.testing.assert_array_equal(alone[index], results[0][0][index])
    want = adaptive_sum([data(rank, (2, 3)).astype(np.float32) for rank in range(size)])
    for *_, tensor, half, brain in results:
        np.testing.assert_allclose(tensor, want, rtol=1e-5)
        np.testing.assert_allclose(half, want, rtol=2e-2, atol=2e-3)
        np.testing.assert_allclose(brain, want, rtol=5e-2, atol=2e-2)


@on_ranks(2)
def test_equal_gradients_give_their_mean_orthogonal_ones_their_sum_and_zero_changes_nothing():
    one = hc.rank() == 0
    equal = hc.allreduce(np.array([3.0, 4.0]), op=hc.Adasum)
    orthogonal = hc.allreduce(np.array([3.0, 0.0] if one else [0.0, 4.0]), op=hc.Adasum)
    zero = hc.allreduce(np.array([3.0, 4.0] if one else [0.0, 0.0]), op=hc.Adasum)
    assert (equal.tolist(), orthogonal.tolist(), zero.tolist()) == ([3.0, 4.0], [3.0, 4.0], [3.0, 4.0])


@on_ranks(3, init=False)
def test_what_it_cannot_do_is_said_before_anything_is_sent():
    hc.init(process_sets=[[0, 1]])
    with pytest.raises(NotImplementedError, match="power of two; the process set has 3"):
        hc.allreduce(np.ones(2), op=hc.Adasum)
    with pytest.raises(NotImplementedError, match="power of two"):
        hvd.DistributedOptimizer(torch.optim.SGD(make_model().parameters(), 0.1), op=hvd.Adasum)
    model = torch.nn.Linear(2, 2, dtype=torch.complex64)
    with pytest.raises(NotImplementedError, match="floating-point tensors, not on"):
        hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), 0.1), op=hvd.Adasum, process_set=hvd.process_sets()[1]
        )
    with pytest.raises(hc.UnsupportedError, match="for allreduce and DistributedOptimizer only"):
        hc.reducescatter(np.ones(3), op=hc.Adasum)
    assert hc.allreduce(np.ones(1), op=hc.Sum).tolist() == [3.0]


@on_ranks(2)
def test_mistakes_of_two_ranks():
    with pytest.raises(hc.UnsupportedError, match="floating-point tensors, not on int64"):
        hc.allreduce(np.arange(3), op=hc.Adasum)
    with pytest.raises(hc.MismatchError):
        hc.allreduce(np.ones(3 + hc.rank()), op=hc.Adasum, name="shape")
    with pytest.raises(hc.MismatchError):
        hc.allreduce(np.ones(3), op=hc.Adasum if hc.rank() else hc.Sum, name="op")
    with pytest.raises(hc.MismatchError):
        hc.allreduce(np.ones(3), op=hc.Adasum, name="scale", prescale_factor=1.0 + hc.rank())
    assert hc.allreduce(np.ones(1), op=hc.Sum).tolist() == [2.0]


def test_a_rank_that_has_joined_counts_as_zeros():
    def body():
        import horocache as hc

        hc.init()
        result = None
        if hc.rank() == 0:
            result = hc.allreduce(np.array([1.0, 2.0]), op=hc.Adasum, name="x").tolist()
        hc.join()
        return result

    assert run(body, 2) == [[1.0, 2.0], None]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_optimizer_combines_the_ranks_own_steps(size):
    def body():
        import horocache.torch as hvd

        hvd.init()
        model = make_model()
        plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer = hvd.DistributedOptimizer(plain, model.named_parameters(), op=hvd.Adasum, num_groups=2)
        assert isinstance(optimizer, torch.optim.SGD)
        optimizer.synchronize()  # nothing to do
        with pytest.raises(AssertionError, match="not supported when using Adasum"), optimizer.skip_synchronize():
            pass
        for step in range(3):
            optimizer.zero_grad()
            x, y = batch(step, hvd.rank())
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        return [p.detach().numpy() for p in model.parameters()]

    def reference():
        models = [make_model() for _ in range(size)]
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in models]
        for step in range(3):
            steps = []
            for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
                before = [p.detach().clone() for p in model.parameters()]
                optimizer.zero_grad()
                x, y = batch(step, rank)
                torch.nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                steps.append([(p.detach() - b).numpy() for p, b in zip(model.parameters(), before, strict=True)])
            for index, parts in enumerate(zip(*steps, strict=True)):
                combined = torch.from_numpy(np.asarray(adaptive_sum(list(parts)), dtype=np.float32))
                for model, own in zip(models, steps, strict=True):
                    param = list(model.parameters())[index]
                    param.data += combined - torch.from_numpy(own[index])
        return [p.detach().numpy() for p in models[0].parameters()]

    want = reference()
    for got in run(body, size):
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
