"""Gradients that the program touches before their group is submitted: they are reduced wherever they lie."""

from __future__ import annotations

import horocache.torch as hvd
import pytest
import torch
from ranks import on_ranks


def five_in_a_group(hvd, bucket_view):
    """Five parameters, and an optimizer that sums their gradients as one group."""
    params = [torch.nn.Parameter(torch.ones(1000)) for _ in range(5)]
    named = [(str(i), p) for i, p in enumerate(params)]
    sgd = torch.optim.SGD(params, lr=0.0)
    return params, hvd.DistributedOptimizer(sgd, named, op=hvd.Sum, num_groups=1, gradient_as_bucket_view=bucket_view)


@pytest.mark.parametrize("bucket_view", [True, False])
@pytest.mark.parametrize("what", ["clips", "flattens"])
@on_ranks(2)
def test_programs_may_touch_gradients_between_a_backward_pass_that_lacks_one_and_the_step(what, bucket_view):
    params, optimizer = five_in_a_group(hvd, bucket_view)
    for step in range(1, 4):
        optimizer.zero_grad()
        used = params if step == 1 else params[:-1]  # the first step creates the bucket views
        sum((p * step).sum() for p in used).backward()
        seen = [p.grad.data for p in used]
        if what == "flattens" and step > 1:
            flat = torch.cat([p.grad for p in used])
            for param, part in zip(used, flat.split(1000), strict=True):
                param.grad = part
            seen = list(flat.split(1000))
        optimizer.synchronize()
        for each in seen:
            each.mul_(0.5)
        assert all(p.grad.tolist() == [1.0 * step] * 1000 for p in used)
        with optimizer.skip_synchronize():
            optimizer.step()


@pytest.mark.parametrize("bucket_view", [True, False])
@pytest.mark.parametrize("what", ["changes", "replaces", "keeps", "aliases"])
@on_ranks(2)
def test_later_hooks_may_touch_gradients_of_a_group_that_is_not_complete(what, bucket_view):
    params, optimizer = five_in_a_group(hvd, bucket_view)
    touched, kept = [], []

    def touch(param):
        if len(touched) == len(params) - 1:
            return  # the last gradient submits the group
        touched.append(param)
        if what == "changes":
            param.grad.mul_(10)
        elif what == "replaces":
            param.grad = param.grad * 10
        else:
            kept.append(param.grad if what == "keeps" else param.grad.detach())

    for param in params:
        param.register_post_accumulate_grad_hook(touch)
    for step in range(1, 4):
        touched.clear()
        optimizer.zero_grad()
        sum((p * step).sum() for p in params).backward()
        assert len(touched) == 4
        optimizer.step()
        for param in params:
            times = 10 if what in ("changes", "replaces") and any(param is one for one in touched) else 1
            assert param.grad.tolist() == [2.0 * step * times] * 1000
    # Each kept tensor is the reduced gradient of its step: its memory is not reused.
    steps = [1, 2, 3] if what in ("keeps", "aliases") else []
    assert [k[0].item() for k in kept] == [2.0 * step for step in steps for _ in range(4)]


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
@pytest.mark.parametrize("bucket_view", [True, False])
@pytest.mark.parametrize("num_groups", [0, 1])
@on_ranks(2)
def test_a_gradient_that_has_a_graph_keeps_it_and_is_reduced(num_groups, bucket_view):
    params = [torch.nn.Parameter(torch.ones(3, 2)) for _ in range(3)]
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(params, lr=0.0),
        [(str(i), p) for i, p in enumerate(params)],
        op=hvd.Sum,
        num_groups=num_groups,
        gradient_as_bucket_view=bucket_view,
    )
    for step in range(4):
        optimizer.zero_grad()
        with_graph = step == 2  # bucket views exist by then
        sum((p**3).sum() for p in params).backward(create_graph=with_graph)
        optimizer.synchronize()
        for p in params:
            assert p.grad.tolist() == [[6.0, 6.0]] * 3 and p.grad.requires_grad == with_graph
            if with_graph:
                (second,) = torch.autograd.grad(p.grad.sum(), p)
                assert second.tolist() == [[6.0, 6.0]] * 3
        with optimizer.skip_synchronize():
            optimizer.step()
