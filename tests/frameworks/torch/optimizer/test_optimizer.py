"""DistributedOptimizer gives the parameters of one process that trains on the data of all ranks."""

from __future__ import annotations

import logging
import warnings

import horocache.torch as hvd
import numpy as np
import pytest
import torch
from ranks import on_ranks

from horocache.core import context

from ..small_model import batch, check_equal_on_all_ranks, group_names, make_model, parameters


def reference(size, steps, make_optimizer, passes=1):
    """The parameters of one process that averages the gradients of all ranks' batches."""
    model = make_model()
    optimizer = make_optimizer(model.parameters())
    for step in range(steps):
        optimizer.zero_grad()
        for rank in range(size):
            for k in range(passes):
                x, y = batch(step * passes + k, rank)
                (torch.nn.functional.cross_entropy(model(x), y) / size).backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


@on_ranks(1, 2, 3, 4)
def test_training_equals_one_process_with_all_data():
    n = hvd.size()
    optimizers = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        "adam": lambda p: torch.optim.AdamW(p, lr=0.01),
    }
    options = [{}, {"num_groups": 2}, {"groups": 3}, {"gradient_predivide_factor": 2.0}, {"num_groups": 100}]
    options.append({"num_groups": "auto"})
    for label, make_optimizer in optimizers.items():
        want = reference(n, 4, make_optimizer)
        for option in options:
            model = make_model(seed=hvd.rank() + 5)
            hvd.broadcast_parameters(model.state_dict(), 0)
            model.load_state_dict(make_model().state_dict())
            optimizer = hvd.DistributedOptimizer(make_optimizer(model.parameters()), model.named_parameters(), **option)
            assert isinstance(optimizer, torch.optim.SGD if label == "sgd" else torch.optim.AdamW)
            for step in range(4):
                optimizer.zero_grad()
                x, y = batch(step, hvd.rank())
                torch.nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
            for got, expected in zip(model.parameters(), want, strict=True):
                torch.testing.assert_close(got.detach(), expected, msg=lambda m, o=option, k=label: f"{k} {o}: {m}")


@on_ranks(2)
def test_gradients_of_several_passes_add_up_before_they_are_reduced():
    want = reference(hvd.size(), 3, lambda p: torch.optim.SGD(p, lr=0.1), passes=2)
    for groups in (0, 2):
        model = make_model()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1),
            model.named_parameters(),
            backward_passes_per_step=2,
            num_groups=groups,
        )
        for step in range(3):
            optimizer.zero_grad()
            for k in range(2):
                x, y = batch(2 * step + k, hvd.rank())
                torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        for got, expected in zip(model.parameters(), want, strict=True):
            torch.testing.assert_close(got.detach(), expected)
        x, y = batch(0, hvd.rank())
        for _ in range(2):
            torch.nn.functional.cross_entropy(model(x), y).backward()
        with pytest.raises(AssertionError, match="more than backward_passes_per_step times"):
            torch.nn.functional.cross_entropy(model(x), y).backward()
        with pytest.raises(hvd.HorocacheError, match="was changed while it was being reduced"):
            optimizer.synchronize()
        assert optimizer.backward_passes_per_step == 2
        optimizer.set_backward_passes_per_step(1)
        assert optimizer.backward_passes_per_step == 1
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        with optimizer.skip_synchronize():
            optimizer.synchronize()
            optimizer.step()


@pytest.mark.parametrize("groups", [0, 2])
@pytest.mark.parametrize("compression", ["none", "fp16"])
@on_ranks(3)
def test_gradients_in_one_flat_buffer_are_reduced(groups, compression):
    want = reference(hvd.size(), 3, lambda p: torch.optim.SGD(p, lr=0.1))
    model = make_model()
    params = list(model.parameters())
    flat = torch.zeros(sum(p.numel() for p in params), dtype=params[0].dtype)
    for p, part in zip(params, flat.split([p.numel() for p in params]), strict=True):
        p.grad = part.view_as(p)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(params, lr=0.1),
        model.named_parameters(),
        compression=getattr(hvd.Compression, compression),
        num_groups=groups,
    )
    for step in range(3):
        flat.zero_()
        x, y = batch(step, hvd.rank())
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    close = {"rtol": 1e-2, "atol": 1e-3} if compression == "fp16" else {}
    for got, expected in zip(params, want, strict=True):
        torch.testing.assert_close(got.detach(), expected, **close)


@on_ranks(3)
def test_gradients_may_be_clipped_after_synchronize_and_a_second_one_warns():
    model = make_model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())
    x, y = batch(0, hvd.rank())
    torch.nn.functional.cross_entropy(model(x), y).backward()
    with pytest.raises(AssertionError, match="race condition"):
        optimizer.zero_grad()
    optimizer.synchronize()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    check_equal_on_all_ranks([norm])
    with optimizer.skip_synchronize(), warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()
    moved = torch.cat([(a - b).flatten() for a, b in zip(model.parameters(), make_model().parameters(), strict=True)])
    torch.testing.assert_close(moved.norm().item(), 1e-3, rtol=1e-3, atol=0)
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.synchronize()
    with pytest.warns(UserWarning, match=r"optimizer.step\(\) called without optimizer.skip_synchronize\(\)"):
        optimizer.step()


@on_ranks(2)
def test_the_predivide_factor_scales_before_and_after_the_sum():
    session = context.current()
    runtime, scales = session.runtime, []

    class Spy:
        def __getattr__(self, name):
            method = getattr(runtime, name)
            if name == "submit":
                return lambda request: (scales.append((request.prescale, request.postscale)), method(request))[1]
            # The position of the prescale factor among the arguments; the postscale factor follows it.
            position = {"allreduce_in_place": 3, "submit_gradients": 2, "submit_gradient_group": 7}.get(name)
            if position is None:
                return method
            return lambda *args, **more: (scales.append(args[position : position + 2]), method(*args, **more))[1]

    session.runtime = Spy()
    for options in ({}, {"num_groups": 1}, {"num_groups": 2}, {"groups": "lists"}):
        scales.clear()
        params, named = parameters(4)
        if options == {"groups": "lists"}:
            options = {"groups": [params[:2], params[2:]]}  # noqa: PLW2901
        plain = torch.optim.SGD(params, lr=1.0)
        optimizer = hvd.DistributedOptimizer(plain, named, gradient_predivide_factor=4.0, **options)
        (sum(p.sum() for p in params) * (hvd.rank() + 1)).backward()
        optimizer.step()
        assert [p.tolist() for p in params] == [[-0.5, -0.5]] * 4  # 1 minus the mean of 1 and 2
        reductions = {pair for pair in scales if pair != (1.0, 1.0)}  # without the broadcast of the order
        assert reductions == {(0.25, 4.0)}, (options, scales)


@on_ranks(1, 2)
def test_zero_grad_takes_set_to_none():
    param = torch.nn.Parameter(torch.ones(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([param], lr=0.0), [("p", param)])
    found = []
    for arguments in ((), (True,), (False,)):
        for _ in range(2):
            param.sum().backward()
            optimizer.step()
            optimizer.zero_grad(*arguments)
            found.append(None if param.grad is None else param.grad.tolist())
    assert found == [None] * 4 + [[0.0, 0.0]] * 2


@on_ranks(2)
def test_a_sparse_gradient_may_be_missing_on_a_rank_in_a_later_step():
    table = torch.nn.Embedding(4, 2, sparse=True)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0), [("table", table.weight)])
    for step in range(2):
        optimizer.zero_grad()
        if step == 0 or hvd.rank() == 0:
            table(torch.tensor([hvd.rank()])).sum().backward()
        optimizer.synchronize()
    assert table.weight.grad.to_dense()[:, 0].tolist() == [0.5, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("compression", ["none", "fp16"])
@on_ranks(2)
def test_sparse_as_dense_gives_sparse_gradients_to_the_optimizer(compression):
    table = torch.nn.Embedding(5, 2, sparse=True)
    torch.nn.init.zeros_(table.weight)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SparseAdam(table.parameters(), lr=1.0),
        table.named_parameters(),
        getattr(hvd.Compression, compression),
        sparse_as_dense=True,
    )
    rows = []
    for step in range(3):
        optimizer.zero_grad()
        if step < 2 or hvd.rank() == 0:
            table(torch.tensor([hvd.rank(), 3])).sum().backward()
        optimizer.step()
        rows.append(table.weight.grad.coalesce().indices()[0].tolist())
    assert rows == [[0, 1, 3], [0, 1, 3], [0, 3]]
    assert [row[0] < 0 for row in table.weight.tolist()] == [True, True, False, True, False]
    check_equal_on_all_ranks([table.weight])


@on_ranks(3)
def test_sparse_gradients_are_gathered_or_reduced_as_dense_ones():
    me, n = hvd.rank(), hvd.size()
    for options in ({}, {"sparse_as_dense": True}, {"num_groups": 1}, {"num_groups": 1, "sparse_as_dense": True}):
        torch.manual_seed(0)
        table = torch.nn.Embedding(5, 3, sparse=True)
        head = torch.nn.Linear(3, 1)
        named = [("table", table.weight), *((f"head.{k}", p) for k, p in head.named_parameters())]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p for _, p in named], lr=1.0), named, **options)
        for _ in range(2):
            optimizer.zero_grad()
            head(table(torch.tensor([me, 4]))).sum().backward()
            optimizer.synchronize()
            dense = table.weight.grad.to_dense()
            assert table.weight.grad.is_sparse, options
            want = torch.zeros(5, 3)
            for r in range(n):
                want[r] += head.weight[0].detach() / n
            want[4] += head.weight[0].detach()
            torch.testing.assert_close(dense, want)
            with optimizer.skip_synchronize():
                optimizer.step()
        check_equal_on_all_ranks([table.weight])


@on_ranks(2)
def test_each_explicit_group_is_one_bucket():
    model = make_model()
    want = reference(hvd.size(), 3, lambda p: torch.optim.SGD(p, lr=0.1))
    params = list(model.parameters())
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(params, lr=0.1),
        model.named_parameters(),
        groups=[[params[0], params[4]], [params[1], params[2]]],
    )
    for step in range(3):
        optimizer.zero_grad()
        x, y = batch(step, hvd.rank())
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    for got, expected in zip(params, want, strict=True):
        torch.testing.assert_close(got.detach(), expected)
    buckets = {frozenset(names) for names in group_names(optimizer)}
    assert buckets == {frozenset(names) for names in (["0.weight", "4.bias"], ["0.bias", "2.weight"], ["4.weight"])}


@on_ranks(3)
def test_groups_follow_the_order_of_rank_0_after_the_first_step():
    params, named = parameters(4)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(params, lr=0.0), named, num_groups=np.int64(2))
    before = group_names(optimizer)
    order = [2, 0, 3, 1] if hvd.rank() == 0 else [1, 2, 3, 0]
    for _ in range(2):
        optimizer.zero_grad()
        for index in order:
            params[index].sum().backward()
        optimizer.step()
    after = group_names(optimizer)
    assert before == [["p3", "p2"], ["p1", "p0"]]
    assert after == [["p2", "p0"], ["p3", "p1"]]


@on_ranks(2, init=False)
def test_the_logger_of_tensors_records_every_reduction():
    records = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())
    logger = logging.getLogger("horocache.tensors")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    hvd.init()
    hvd.allreduce_(torch.ones(2, 3))
    param = torch.nn.Parameter(torch.ones(4))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([param], lr=1.0), [("p", param)])
    param.sum().backward()
    optimizer.step()
    assert records == [f"{event} torch.float32[{shape}]" for shape in ("2, 3", "4") for event in ("submit", "finish")]
