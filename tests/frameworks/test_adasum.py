"""Adasum against its formula computed in one process, and the optimizer that combines the ranks' steps with it."""

from __future__ import annotations

import horocache.torch as hvd
import numpy as np
import pytest
import torch
from ranks import on_ranks

import horocache as hc

from .torch.small_model import batch, make_model


def data(rank, shape, dtype=np.float64):
    return np.random.default_rng(17 + rank).standard_normal(shape).astype(dtype)


def adasum_of_two(a, b):
    dot = float((a.astype(np.float64) * b).sum())
    na, nb = float((a.astype(np.float64) ** 2).sum()), float((b.astype(np.float64) ** 2).sum())
    return a * (1 - dot / (2 * na) if na else 1.0) + b * (1 - dot / (2 * nb) if nb else 1.0)


def adaptive_sum(parts):
    while len(parts) > 1:
        parts = [adasum_of_two(a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


@on_ranks(1, 2, 4)
def test_adasum_equals_its_formula_with_the_same_bits_on_all_ranks():
    shapes = [(5,), (2, 3), ()]
    mine = [data(hc.rank(), shape) for shape in shapes]
    single = [hc.allreduce(x, op=hc.Adasum) for x in mine]
    grouped = hc.grouped_allreduce(mine, op=hc.Adasum, name="g", prescale_factor=2.0, postscale_factor=0.25)
    tensor = torch.tensor(mine[1], dtype=torch.float32)
    given = tensor.clone()
    handle = hvd.allreduce_async_(tensor, op=hvd.Adasum, name="t")
    assert hvd.synchronize(handle) is tensor
    half = hvd.allreduce(given, op=hvd.Adasum, compression=hvd.Compression.fp16, name="h")
    brain = hvd.allreduce(given.bfloat16(), op=hvd.Adasum, name="b")
    assert half.dtype is torch.float32 and brain.dtype is torch.bfloat16
    bits = hc.allgather_object([result.tobytes() for result in single])
    for index, shape in enumerate(shapes):
        want = adaptive_sum([data(rank, shape) for rank in range(hc.size())])
        assert single[index].shape == shape
        np.testing.assert_allclose(single[index], want, rtol=1e-12)
        np.testing.assert_allclose(grouped[index], want / 2, rtol=1e-12)
        assert {of_rank[index] for of_rank in bits} == {single[index].tobytes()}
    want = adaptive_sum([data(rank, (2, 3)).astype(np.float32) for rank in range(hc.size())])
    np.testing.assert_allclose(tensor, want, rtol=1e-5)
    np.testing.assert_allclose(half, want, rtol=2e-2, atol=2e-3)
    np.testing.assert_allclose(brain.float(), want, rtol=5e-2, atol=2e-2)


@on_ranks(2)
def test_adasum_averages_equal_vectors_and_sums_orthogonal_ones():
    one = hc.rank() == 0
    equal = hc.allreduce(np.array([3.0, 4.0]), op=hc.Adasum)
    orthogonal = hc.allreduce(np.array([3.0, 0.0] if one else [0.0, 4.0]), op=hc.Adasum)
    zero = hc.allreduce(np.array([3.0, 4.0] if one else [0.0, 0.0]), op=hc.Adasum)
    assert (equal.tolist(), orthogonal.tolist(), zero.tolist()) == ([3.0, 4.0], [3.0, 4.0], [3.0, 4.0])


@on_ranks(3, init=False)
def test_adasum_of_unsupported_process_sets_and_dtypes_raises():
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
def test_integers_and_mismatched_tensors_raise_on_both_ranks():
    with pytest.raises(hc.UnsupportedError, match="floating-point tensors, not on int64"):
        hc.allreduce(np.arange(3), op=hc.Adasum)
    with pytest.raises(hc.MismatchError):
        hc.allreduce(np.ones(3 + hc.rank()), op=hc.Adasum, name="shape")
    with pytest.raises(hc.MismatchError):
        hc.allreduce(np.ones(3), op=hc.Adasum if hc.rank() else hc.Sum, name="op")
    with pytest.raises(hc.MismatchError):
        hc.allreduce(np.ones(3), op=hc.Adasum, name="scale", prescale_factor=1.0 + hc.rank())
    assert hc.allreduce(np.ones(1), op=hc.Sum).tolist() == [2.0]


@on_ranks(2)
def test_a_joined_rank_contributes_zeros():
    if hc.rank() == 0:
        assert hc.allreduce(np.array([1.0, 2.0]), op=hc.Adasum, name="x").tolist() == [1.0, 2.0]
    hc.join()


def trained_in_one_process(size):
    """The parameters after three steps, each of which is the Adasum of the steps of ``size`` models."""
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


@on_ranks(1, 2, 4)
def test_the_optimizer_applies_adasum_to_the_steps_of_all_ranks():
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
    for parameter, want in zip(model.parameters(), trained_in_one_process(hvd.size()), strict=True):
        np.testing.assert_allclose(parameter.detach(), want, rtol=1e-4, atol=1e-6)
