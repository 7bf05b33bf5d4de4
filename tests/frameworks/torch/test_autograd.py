"""Autograd through every collective, against the documented gradients."""

from __future__ import annotations

import horocache.torch as hvd
import pytest
import torch
from ranks import on_ranks


@on_ranks(1, 2, 3, 4)
def test_the_gradient_of_allreduce_is_reduced_in_the_same_way():
    me, n = hvd.rank(), hvd.size()
    weights = [torch.arange(6.0) + r for r in range(n)]
    for op, want in [(hvd.Sum, sum(weights)), (hvd.Average, sum(weights) / n)]:
        x = torch.ones(6, dtype=torch.float64, requires_grad=True)
        (hvd.allreduce(x, op=op) * weights[me].double()).sum().backward()
        torch.testing.assert_close(x.grad, want.double())
    x = torch.ones(6, requires_grad=True)
    y = hvd.allreduce(x, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.5, name="scaled")
    (y * 3).sum().backward()
    torch.testing.assert_close(x.grad, torch.full((6,), 3.0 * n))
    a, b = torch.ones(3, requires_grad=True), torch.ones(2, 2, requires_grad=True)
    c, d = hvd.grouped_allreduce([a, b], op=hvd.Sum)
    (c.sum() * (me + 1) + d.sum() * 2).backward()
    torch.testing.assert_close(a.grad, torch.full((3,), float(sum(range(1, n + 1)))))
    torch.testing.assert_close(b.grad, torch.full((2, 2), 2.0 * n))
    z = torch.full((4,), 1 / 3, requires_grad=True)
    out = hvd.allreduce(z, op=hvd.Average, compression=hvd.Compression.fp16)
    assert out.dtype == torch.float32
    out.sum().backward()
    torch.testing.assert_close(z.grad, torch.ones(4))


@on_ranks(1, 2, 3, 4)
def test_the_gradient_of_allgather_is_the_mean_of_this_ranks_rows():
    me, n = hvd.rank(), hvd.size()
    total_rows = sum(r + 1 for r in range(n))
    start = sum(r + 1 for r in range(me))
    weight = torch.arange(float(total_rows)).unsqueeze(1) + 1
    x = torch.ones(me + 1, 2, requires_grad=True)
    (hvd.allgather(x) * weight * (me + 1)).sum().backward()
    mean = sum(r + 1 for r in range(n)) / n
    want = (weight * mean).expand(-1, 2)[start : start + me + 1]
    torch.testing.assert_close(x.grad, want)
    a, b = torch.ones(me + 1, requires_grad=True), torch.ones((), requires_grad=True)
    c, d = hvd.grouped_allgather([a, b])
    (c.sum() + 5 * d.sum()).backward()
    torch.testing.assert_close(a.grad, torch.ones(me + 1))
    torch.testing.assert_close(b.grad, torch.tensor(5.0))


@on_ranks(1, 2, 3, 4)
def test_the_gradient_of_broadcast_is_the_mean_on_the_root_and_zero_elsewhere():
    me, n = hvd.rank(), hvd.size()
    for root in range(n):
        x = torch.ones(3, requires_grad=True)
        (hvd.broadcast(x, root, name=f"root{root}") * (me + 1)).sum().backward()
        want = sum(range(1, n + 1)) / n if me == root else 0.0
        torch.testing.assert_close(x.grad, torch.full((3,), want))


@on_ranks(1, 2, 3, 4)
def test_the_gradient_of_alltoall_goes_back_where_the_rows_came_from():
    me, n = hvd.rank(), hvd.size()
    splits = [(me + target) % 2 + 1 for target in range(n)]
    x = torch.ones(sum(splits) + 1, 2, requires_grad=True)
    output, _ = hvd.alltoall(x, splits)
    (output * (me + 1)).sum().backward()
    rows = torch.cat([torch.full((count,), float(target + 1)) for target, count in enumerate(splits)])
    want = torch.cat([rows, torch.zeros(1)]).unsqueeze(1).expand(-1, 2)
    torch.testing.assert_close(x.grad, want)
    even = torch.ones(n, requires_grad=True)
    hvd.alltoall(even).sum().backward()
    torch.testing.assert_close(even.grad, torch.ones(n))


@on_ranks(1, 2, 3, 4)
def test_the_gradient_of_reducescatter_is_gathered_and_scaled():
    me, n = hvd.rank(), hvd.size()
    rows = 2 * n + 1
    owner = torch.cat(
        [torch.full((len(part),), float(r + 1)) for r, part in enumerate(torch.arange(rows).tensor_split(n))]
    )
    for op, factor in [(hvd.Average, 1.0), (hvd.Sum, float(n))]:
        x = torch.ones(rows, 3, requires_grad=True)
        (hvd.reducescatter(x, op=op) * (me + 1)).sum().backward()
        torch.testing.assert_close(x.grad, (owner * factor).unsqueeze(1).expand(-1, 3))
    x = torch.ones(n, requires_grad=True)
    hvd.reducescatter(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0).sum().backward()
    torch.testing.assert_close(x.grad, torch.full((n,), 1.5 * n))
    a, b = torch.ones(n, requires_grad=True), torch.ones(n, 2, requires_grad=True)
    c, d = hvd.grouped_reducescatter([a, b], op=hvd.Average)
    (c.sum() + 2 * d.sum()).backward()
    torch.testing.assert_close(b.grad, torch.full((n, 2), 2.0))


@on_ranks(2)
def test_reductions_without_a_gradient_raise_and_leaves_change_in_place():
    x = torch.ones(2, requires_grad=True)
    for greatest in (
        hvd.allreduce(x, op=hvd.Max),
        hvd.grouped_allreduce([x], op=hvd.Max)[0],
        hvd.reducescatter(x, op=hvd.Max),
    ):
        assert set(greatest.tolist()) == {1.0}
        with pytest.raises(NotImplementedError, match="Average and Sum"):
            greatest.sum().backward()
    assert x.grad is None
    with torch.no_grad():
        assert not hvd.allreduce(x, op=hvd.Max).requires_grad
    hvd.allreduce_(x, op=hvd.Sum)
    assert x.tolist() == [hvd.size()] * 2 and x.requires_grad
    for wrong in ({"prescale_factor": "x"}, {"op": hvd.Sum, "process_set": [0, 1]}, {"compression": "fp16"}):
        with pytest.raises(ValueError, match=r"must be a number|has not been registered|must have the methods"):
            hvd.reducescatter(x, **wrong)
    y = torch.ones(2, requires_grad=True)
    z = y * 1
    loss = (z * z).sum()
    hvd.allreduce_(z)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@on_ranks(2)
def test_gradients_have_gradients():
    # The first and the second derivative. The second has two terms: the derivative of the factor 2 x in the first one,
    # and the part that returns through the operation, which its gradient sums, averages or exchanges.
    of_broadcast = (32.0, 16.0 + 16.0) if hvd.rank() == 1 else (0.0, 0.0)
    for operation, derivatives in (
        (lambda x: hvd.allreduce(x, op=hvd.Sum, name="allreduce"), (128.0, 64.0 + 128.0)),
        (lambda x: hvd.allgather(x, name="allgather"), (32.0, 16.0 + 16.0)),
        (lambda x: hvd.broadcast(x, 1, name="broadcast"), of_broadcast),
        (lambda x: hvd.alltoall(x, name="alltoall"), (32.0, 16.0 + 32.0)),
        (lambda x: hvd.reducescatter(x, op=hvd.Sum, name="reducescatter"), (128.0, 64.0 + 128.0)),
    ):
        x = torch.full((2 * hvd.size(), 1), 2.0, dtype=torch.float64, requires_grad=True)
        value = (operation(x * x) ** 2).sum()
        (first,) = torch.autograd.grad(value, x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        assert (first[0].item(), second[0].item()) == derivatives


@on_ranks(2)
def test_grouped_operations_need_lists_with_and_without_gradients():
    n = hvd.size()
    for operation in (hvd.grouped_allreduce, hvd.grouped_allgather, hvd.grouped_reducescatter):
        for grad in (False, True):
            rows = [torch.ones(n, 2, requires_grad=grad) for _ in range(3)]
            for wrong in ((row for row in rows), rows[0], [], {row: 1 for row in rows}):
                with pytest.raises(ValueError, match=f"{operation.__name__} needs a list with at least one tensor"):
                    operation(wrong)
            assert len(operation(tuple(rows))) == 3
