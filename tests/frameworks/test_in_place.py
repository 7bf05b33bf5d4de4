"""In-place forms of the operations that change shapes, and grouped forms that Horovod lacks."""

from __future__ import annotations

import horocache.torch as hvd
import numpy as np
import pytest
import torch
from ranks import on_ranks

import horocache as hc


def column(rank, rows, offset=0):
    return torch.arange(rows, dtype=torch.float32) + 100 * rank + offset


@on_ranks(1, 3)
def test_in_place_operations_store_the_results_of_the_other_forms():
    n, rank = hvd.size(), hvd.rank()
    # allgather: each rank stores its own rows before the call; the second tensor is not contiguous
    whole = torch.full((2 * n, 2), -1.0)
    whole[2 * rank : 2 * rank + 2] = rank
    view = torch.full((3, 2 * n), -1.0).t()
    view[2 * rank : 2 * rank + 2] = rank + 10
    assert hvd.allgather_(whole, "a") is whole
    first, second = hvd.synchronize(hvd.grouped_allgather_async_([whole, view], "ga"))
    assert first is whole and second is view
    ranks = torch.arange(n).repeat_interleave(2).float()[:, None]
    assert torch.equal(whole, ranks.expand(2 * n, 2)) and torch.equal(view, ranks.expand(2 * n, 3) + 10)
    # alltoall
    data = column(rank, 2 * n)
    want = hvd.alltoall(data, name="w")
    version = data._version
    assert hvd.alltoall_(data, name="x") is data and torch.equal(data, want)
    assert data._version > version
    even = hvd.alltoall_(column(rank, n), splits=[1] * n, name="y")
    assert even[0].tolist() == [100 * r + rank for r in range(n)] and even[1].tolist() == [1] * n
    # reducescatter: rank 0 gets one row more than the others
    data = column(rank, n + 1)
    want = hvd.reducescatter(data, op=hvd.Sum, name="r")
    kept = data.clone()
    own = hvd.reducescatter_(data, op=hvd.Sum, name="s")
    start = 0 if rank == 0 else rank + 1
    assert torch.equal(own, want) and own.data_ptr() == data[start:].data_ptr()
    kept[start : start + len(own)] = want
    assert torch.equal(data, kept)
    pair = [column(rank, n), column(rank, 2 * n).view(n, 2)]
    own = hvd.grouped_reducescatter_(pair, op=hvd.Average, name="gs")
    assert [tuple(rows.shape) for rows in own] == [(1,), (1, 2)]
    assert own[0].data_ptr() == pair[0][rank:].data_ptr()
    assert own[0].item() == rank + 100 * (n - 1) / 2


@on_ranks(2)
def test_groups_of_alltoall_and_broadcast_and_their_gradients():
    rank = hvd.rank()
    tensors = [column(rank, 4).requires_grad_(), column(rank, 6, 50).requires_grad_()]
    outputs = hvd.grouped_alltoall(tensors, name="even")
    assert [o.tolist() for o in outputs] == [
        [r * 100 + rank * 2 + i for r in range(2) for i in range(2)],
        [r * 100 + 50 + rank * 3 + i for r in range(2) for i in range(3)],
    ]
    sum((o * (rank + 1)).sum() for o in outputs).backward()
    assert [t.grad.tolist() for t in tensors] == [[1.0, 1.0, 2.0, 2.0], [1.0] * 3 + [2.0] * 3]
    pairs = hvd.grouped_alltoall([column(rank, 4), column(rank, 4)], splits=[1, 3], name="uneven")
    assert [received.tolist() for _, received in pairs] == [[1, 1] if rank == 0 else [3, 3]] * 2
    stored = [np.arange(2.0) + 10 * rank]

    assert hc.grouped_alltoall_(stored, name="np")[0] is stored[0]
    assert stored[0].tolist() == [rank, 10.0 + rank]

    tensors = [torch.full((2,), float(rank)).requires_grad_(), torch.full((), rank + 5.0).requires_grad_()]
    outputs = hvd.grouped_broadcast(tensors, 1, name="b")
    assert outputs[0].tolist() == [1.0, 1.0] and outputs[1].item() == 6.0
    sum((o * (rank + 1)).sum() for o in outputs).backward()
    want = 1.5 if rank == 1 else 0.0
    assert tensors[0].grad.tolist() == [want] * 2 and tensors[1].grad.item() == want
    plain = hvd.synchronize(hvd.grouped_broadcast_async([torch.ones(1) * rank], 0, name="c"))
    assert plain[0].item() == 0.0


@on_ranks(2)
def test_failed_in_place_operations_leave_the_tensor_unchanged():
    rank = hc.rank()
    for operation in (hvd.allgather_, hvd.reducescatter_, hvd.alltoall_):
        with pytest.raises(ValueError):
            operation(torch.ones(1).expand(4))
        with pytest.raises(ValueError):
            operation(torch.tensor(1.0))
    with pytest.raises(ValueError, match="equally many rows for each of 2 ranks"):
        hvd.allgather_(torch.ones(3))
    locked = np.arange(4.0)
    locked.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        hc.alltoall_(locked)
    data = column(rank, 4)
    with pytest.raises(ValueError, match="rows came for a tensor of 4, which keeps its values"):
        hvd.alltoall_(data, splits=[1, 3], name="uneven")
    assert torch.equal(data, column(rank, 4))
    with pytest.raises(hc.MismatchError):
        hvd.allgather_(torch.ones(4, 1 + rank), name="shape")
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 2.0


@on_ranks(3, init=False)
def test_parameters_and_optimizer_state_are_broadcast_in_a_process_set():
    hvd.init(process_sets=[[1, 2]])
    pair = hvd.process_sets()[1]
    model = torch.nn.Linear(2, 1)
    torch.nn.init.constant_(model.weight, hvd.rank())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * (hvd.rank() + 1), momentum=0.5)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    if pair.included():
        hvd.broadcast_parameters(model.state_dict(), 2, process_set=pair)
        hvd.broadcast_optimizer_state(optimizer, 2, process_set=pair)
    weight, rate = (1.7, 0.3) if pair.included() else (-0.1, 0.1)
    assert (round(model.weight[0, 0].item(), 4), round(optimizer.param_groups[0]["lr"], 4)) == (weight, rate)
