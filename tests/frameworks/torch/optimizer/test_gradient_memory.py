"""Gradients whose memory the program changes, keeps or replaces: before, during and after their reduction."""

from __future__ import annotations

import horocache.torch as hvd
import pytest
import torch
from ranks import on_ranks

from horocache.errors import InvalidArgumentError

from ..small_model import batch, make_model


def five_in_a_group(bucket_view):
    """Five parameters, and an optimizer that sums their gradients as one group."""
    params = [torch.nn.Parameter(torch.ones(1000)) for _ in range(5)]
    named = [(str(i), p) for i, p in enumerate(params)]
    sgd = torch.optim.SGD(params, lr=0.0)
    return params, hvd.DistributedOptimizer(sgd, named, op=hvd.Sum, num_groups=1, gradient_as_bucket_view=bucket_view)


# ---- the program moves gradients to other memory


@on_ranks(2)
def test_a_group_with_a_sparse_gradient_follows_a_change_of_dtype():
    table = torch.nn.Embedding(6, 3, sparse=True)
    head = torch.nn.Linear(3, 2)
    named = [("table", table.weight), *head.named_parameters()]
    plain = torch.optim.SGD([p for _, p in named], lr=0.1)
    optimizer = hvd.DistributedOptimizer(plain, named, num_groups=1, op=hvd.Sum)
    for dtype in (torch.float32, torch.float64):
        head.to(dtype)
        table.to(dtype)
        for _ in range(2):
            optimizer.zero_grad()
            head(table(torch.tensor([hvd.rank()]))).sum().backward()
            optimizer.step()
            assert head.bias.grad.dtype is dtype and head.bias.grad.tolist() == [2.0, 2.0]
            assert table.weight.grad.is_sparse
            assert hvd.is_shared(head.weight.grad)


@pytest.mark.parametrize("num_groups", [0, 2])
@pytest.mark.parametrize("set_to_none", [True, False])
@on_ranks(2)
def test_gradients_that_move_to_other_memory_are_reduced_in_shared_memory(num_groups, set_to_none):
    model = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 2), torch.nn.Conv2d(3, 4, 2))
    model = model.to(memory_format=torch.channels_last)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.0), model.named_parameters(), num_groups=num_groups, op=hvd.Sum
    )
    x = torch.ones(1, 2, 4, 4)
    for step in range(8):
        if step in (2, 4):
            model.to(torch.float64 if step == 2 else torch.float32)  # gradients move to other memory, too
            x = x.to(model[0].weight.dtype)
        optimizer.zero_grad(set_to_none=set_to_none)
        if step == 6 and not set_to_none:
            for p in model.parameters():
                p.grad.data = torch.zeros_like(p)
        (model(x).sum() * (1 + hvd.rank())).backward()
        optimizer.step()
        ours = [p.grad.clone() for p in model.parameters()]
        sums = torch.autograd.grad(model(x).sum(), list(model.parameters()))
        assert all(torch.equal(a, 3 * b) for a, b in zip(ours, sums, strict=True))
        assert all(hvd.is_shared(p.grad) for p in model.parameters())


@pytest.mark.parametrize("num_groups", [0, 1])
@on_ranks(2)
def test_a_gradient_in_memory_of_the_program_stays_there(num_groups):
    params = [torch.nn.Parameter(torch.ones(2, 3)) for _ in range(3)]
    flat = torch.zeros(18)
    own = torch.zeros(2, 3)
    array = torch.zeros(2, 3).numpy()
    named = [(f"p{i}", p) for i, p in enumerate(params)]
    plain = torch.optim.SGD(params, lr=0.0)
    optimizer = hvd.DistributedOptimizer(plain, named, num_groups=num_groups, op=hvd.Sum)
    for _ in range(3):
        flat.zero_()
        own.zero_()
        array.fill(0)
        params[0].grad, params[1].grad, params[2].grad = flat[3:9].view(2, 3), own, torch.from_numpy(array)
        (sum(p.sum() for p in params) * (hvd.rank() + 1)).backward()
        optimizer.step()
        assert flat.tolist() == [0.0] * 3 + [3.0] * 6 + [0.0] * 9
        assert own.tolist() == array.tolist() == [[3.0] * 3] * 2
        assert params[1].grad is own


# ---- the program keeps gradients, or changes them before their group is submitted


@on_ranks(2)
def test_a_gradient_that_the_program_keeps_is_not_overwritten():
    params = [torch.nn.Parameter(torch.ones(5)) for _ in range(4)]
    named = [(f"p{i}", p) for i, p in enumerate(params)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(params, lr=0.0), named, num_groups=1, op=hvd.Sum)
    kept = []
    for step in range(4):
        optimizer.zero_grad()
        (sum(p.sum() for p in params) * (step + 1)).backward()
        optimizer.step()
        # The gradient itself, another tensor on its memory, and a NumPy view of it.
        kept.append((params[0].grad, params[1].grad.detach(), params[2].grad.numpy()))
        assert all(p.grad.tolist() == [2.0 * (step + 1)] * 5 for p in params)
    unkept = optimizer.debug_state().gradients[0]  # buckets begin with the last parameter
    for step, grads in enumerate(kept):
        assert [g.tolist() for g in grads] == [[2.0 * (step + 1)] * 5] * 3
    assert unkept.param is params[3] and unkept.bucket_view.data_ptr() == params[3].grad.data_ptr()


@pytest.mark.parametrize("bucket_view", [True, False])
@pytest.mark.parametrize("alias", ["data", "flat buffer"])
@on_ranks(2)
def test_aliases_of_gradients_in_an_incomplete_group_stay_valid(alias, bucket_view):
    params, optimizer = five_in_a_group(bucket_view)
    for step in range(1, 4):
        optimizer.zero_grad()
        used = params if step == 1 else params[:-1]  # the first step creates the bucket views
        sum((p * step).sum() for p in used).backward()
        aliases = [p.grad.data for p in used]
        if alias == "flat buffer" and step > 1:
            flat = torch.cat([p.grad for p in used])
            for param, part in zip(used, flat.split(1000), strict=True):
                param.grad = part
            aliases = list(flat.split(1000))
        optimizer.synchronize()
        for each in aliases:
            each.mul_(0.5)
        assert all(p.grad.tolist() == [1.0 * step] * 1000 for p in used)
        with optimizer.skip_synchronize():
            optimizer.step()


@pytest.mark.parametrize("bucket_view", [True, False])
@pytest.mark.parametrize("change", ["multiply", "replace", "keep", "alias"])
@on_ranks(2)
def test_later_hooks_may_change_gradients_of_an_incomplete_group(change, bucket_view):
    params, optimizer = five_in_a_group(bucket_view)
    touched, kept = [], []

    def touch(param):
        if len(touched) == len(params) - 1:
            return  # the last gradient submits the group
        touched.append(param)
        if change == "multiply":
            param.grad.mul_(10)
        elif change == "replace":
            param.grad = param.grad * 10
        else:
            kept.append(param.grad if change == "keep" else param.grad.detach())

    for param in params:
        param.register_post_accumulate_grad_hook(touch)
    for step in range(1, 4):
        touched.clear()
        optimizer.zero_grad()
        sum((p * step).sum() for p in params).backward()
        assert len(touched) == 4
        optimizer.step()
        for param in params:
            times = 10 if change in ("multiply", "replace") and any(param is one for one in touched) else 1
            assert param.grad.tolist() == [2.0 * step * times] * 1000
    # Each kept tensor is the reduced gradient of its step: its memory is not reused.
    steps = [1, 2, 3] if change in ("keep", "alias") else []
    assert [k[0].item() for k in kept] == [2.0 * step for step in steps for _ in range(4)]


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
@pytest.mark.parametrize("bucket_view", [True, False])
@pytest.mark.parametrize("num_groups", [0, 1])
@on_ranks(2)
def test_a_gradient_with_a_graph_keeps_its_graph_and_is_reduced(num_groups, bucket_view):
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


# ---- the program changes gradients in flight, which is an error


@pytest.mark.parametrize("options", [{}, {"num_groups": 2}, {"compression": "fp16"}])
@on_ranks(2)
def test_changing_gradients_before_synchronize_raises(options):
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


@pytest.mark.parametrize("bucket_view", ["auto", False])
@on_ranks(2)
def test_the_error_names_the_gradient_that_changed_in_flight(bucket_view):
    params = [torch.nn.Parameter(torch.ones(4)) for _ in range(2)]
    named = [("first", params[0]), ("second", params[1])]
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(params, lr=0.0), named, num_groups=1, gradient_as_bucket_view=bucket_view
    )

    def backward():
        optimizer.zero_grad()
        sum(p.sum() for p in params).backward()

    backward()
    optimizer.step()
    changes = [
        (lambda: params[1].grad.mul_(2), "second was changed"),
        (lambda: params[1].grad.resize_(2), "second was resized"),
        (lambda: setattr(params[0], "grad", None), "first was set to None"),
        (lambda: setattr(params[0], "grad", torch.ones(4)), "first was replaced"),
        (lambda: setattr(params[1].grad, "data", torch.ones(4)), "second'? was (freed, or )?given other memory"),
    ]
    # The last change frees the gradient's memory. Only shared memory is kept until the operation is over.
    for change, how in changes if bucket_view else changes[:-1]:
        backward()
        change()
        with pytest.raises(InvalidArgumentError, match=how):
            optimizer.step()
        backward()
        optimizer.step()
        assert all(p.grad.tolist() == [1.0] * 4 for p in params)


@pytest.mark.parametrize("strides", [(3, 1), (1, 3)], ids=["row-major", "column-major"])
@on_ranks(2)
def test_changing_a_queued_gradient_in_a_later_hook_raises(strides):
    weight = torch.nn.Parameter(torch.empty_strided((3, 3), strides).fill_(1.0))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=0.0), [("weight", weight)])

    def change(parameter):
        parameter.grad.mul_(2)

    weight.register_post_accumulate_grad_hook(change)
    (weight * 2).sum().backward()
    with pytest.raises(ValueError, match="gradient of weight was changed while"):
        optimizer.step()
