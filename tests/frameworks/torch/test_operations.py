"""The collectives on torch tensors: element types, shapes and layouts, handles, compression."""

from __future__ import annotations

import threading

import horocache.torch as hvd
import pytest
import torch
from ranks import on_ranks

from horocache.core import context
from horocache.errors import UnsupportedError

INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
COMPLEX = [torch.complex64, torch.complex128]


def values(rank, shape, dtype):
    """Small whole numbers: sums and products are exact in every dtype and order."""
    count = torch.Size(shape).numel()
    base = ((torch.arange(count) * 7 + rank * 3) % 4 + 1).reshape(shape)
    if dtype is torch.bool:
        return base % 2 == 0
    if dtype.is_complex:
        return torch.complex(base.double(), ((base + rank) % 3).double()).to(dtype)
    return base.to(dtype)


def same(got, want, *where):
    assert got.dtype == want.dtype and got.shape == want.shape, (got.dtype, got.shape, want.dtype, want.shape, *where)
    assert torch.equal(got, want), (got, want, *where)


@on_ranks(1, 2, 3, 4)
def test_every_dtype_and_shape_is_reduced_exactly():
    me, n = hvd.rank(), hvd.size()

    def fold(combine, shape, dtype):
        parts = [values(r, shape, dtype) for r in range(n)]
        total = parts[0]
        for part in parts[1:]:
            total = combine(total, part)
        return total

    for dtype in INTEGERS + FLOATS + COMPLEX:
        operations = {hvd.Sum: torch.add, hvd.Product: torch.mul}
        if not dtype.is_complex:
            operations |= {hvd.Min: torch.minimum, hvd.Max: torch.maximum}
        for op, combine in operations.items():
            for shape in [(), (0,), (0, 4), (1,), (5, 3)]:
                mine = values(me, shape, dtype)
                same(hvd.allreduce(mine, op=op), fold(combine, shape, dtype), dtype, op, shape)
                same(mine, values(me, shape, dtype))
                assert hvd.allreduce_(mine, op=op) is mine
                same(mine, fold(combine, shape, dtype), dtype, op, shape)
    flags = values(me, (9,), torch.bool)
    same(hvd.allreduce(flags, op=hvd.Max), fold(torch.logical_or, (9,), torch.bool))
    same(hvd.allreduce(flags, op=hvd.Min), fold(torch.logical_and, (9,), torch.bool))


@on_ranks(1, 2, 3, 4)
def test_every_dtype_is_moved_unchanged():
    me, n = hvd.rank(), hvd.size()
    for dtype in INTEGERS + FLOATS + COMPLEX + [torch.bool]:
        parts = [values(r, (r + 1, 3), dtype) for r in range(n)]
        same(hvd.allgather(parts[me]), torch.cat(parts), dtype)
        first, second = hvd.grouped_allgather([parts[me], values(me, (me % 2,), dtype)])
        same(first, torch.cat(parts))
        same(second, torch.cat([values(r, (r % 2,), dtype) for r in range(n)]))
        same(hvd.broadcast(values(me, (4,), dtype), n - 1), values(n - 1, (4,), dtype))
        target = values(me, (), dtype)
        assert hvd.broadcast_(target, 0) is target
        same(target, values(0, (), dtype))
        rows = torch.stack([values(10 * me + t, (2,), dtype) for t in range(n)])
        same(hvd.alltoall(rows), torch.stack([values(10 * s + me, (2,), dtype) for s in range(n)]))
        output, received = hvd.alltoall(rows, splits=torch.ones(n, dtype=torch.int32))
        assert output.shape == (n, 2) and received.dtype == torch.int32 and received.tolist() == [1] * n
    total = sum(values(r, (2 * n + 1, 2), torch.float32) for r in range(n))
    same(hvd.reducescatter(values(me, (2 * n + 1, 2), torch.float32), op=hvd.Sum), total.tensor_split(n)[me])
    pair = hvd.grouped_reducescatter([torch.ones(n, 2), torch.ones(2 * n, dtype=torch.float64)], op=hvd.Sum)
    same(pair[0], torch.full((1, 2), float(n)))
    same(pair[1], torch.full((2,), float(n), dtype=torch.float64))


@on_ranks(3)
def test_strided_and_lazily_conjugated_tensors_are_reduced_and_written_back():
    me, n = hvd.rank(), hvd.size()
    total = float(sum(range(n)))
    for layout in (
        lambda t: t.t(),
        lambda t: t[::2, 1::3],
        lambda t: t.reshape(1, 2, 4, 6).to(memory_format=torch.channels_last),
        lambda t: t[:, 0],
    ):
        view = layout(torch.full((8, 6), float(me)))
        same(hvd.allreduce(view, op=hvd.Sum), torch.full(view.shape, total))
        assert hvd.allreduce_(view, op=hvd.Sum) is view
        same(view, torch.full(view.shape, total))
    base = torch.full((4, 4), me)
    hvd.broadcast_(base[:, 2], 1)
    same(base, torch.full((4, 4), me).index_fill(1, torch.tensor([2]), 1))
    number = torch.tensor([1 + 2j]) * (me + 1)
    same(hvd.allreduce(number.conj(), op=hvd.Sum), torch.tensor([1 - 2j]) * sum(range(1, n + 1)))
    same(hvd.allgather(torch.arange(3).flip(0)), torch.tensor([2, 1, 0] * n))
    expanded = torch.ones(1).expand(4)
    same(hvd.allreduce(expanded, op=hvd.Sum), torch.full((4,), float(n)))
    with pytest.raises(ValueError, match="expanded"):
        hvd.allreduce_(expanded)


@on_ranks(3)
def test_groups_and_handles_give_the_results_of_single_calls():
    me, n = hvd.rank(), hvd.size()
    kinds = [torch.float32, torch.float64, torch.int32, torch.bfloat16, torch.float32]
    tensors = [values(me, (i, 4), kind) for i, kind in enumerate(kinds)]
    want = [hvd.allreduce(t, op=hvd.Sum) for t in tensors]
    for _ in range(3):
        grouped = hvd.grouped_allreduce(tensors, op=hvd.Sum, name="group")
        handle = hvd.grouped_allreduce_async([t.clone() for t in tensors], op=hvd.Sum)
        handles = [hvd.allreduce_async(t, op=hvd.Sum, name=f"single.{i}") for i, t in enumerate(tensors)]
        in_place = [t.clone() for t in tensors]
        back = hvd.grouped_allreduce_(in_place, op=hvd.Sum)
        assert all(a is b for a, b in zip(back, in_place, strict=True))
        for i, expected in enumerate(want):
            same(grouped[i], expected)
            same(in_place[i], expected)
        for expected, got in zip(want, hvd.synchronize(handle), strict=True):
            same(got, expected)
        for i in (4, 2, 0, 3, 1):
            same(hvd.synchronize(handles[i]), want[i])
    handle = hvd.alltoall_async(torch.arange(n))
    output, received = hvd.synchronize(handle)
    assert output.tolist() == [me] * n and received.tolist() == [1] * n
    assert (repr(handle), str(handle)) == (f"<handle {int(handle)}, consumed>", f"{int(handle)}")
    for call in (hvd.synchronize, hvd.poll, hvd.Handle.wait, hvd.Handle.done):
        with pytest.raises(ValueError, match=f"Handle {handle} was not created or has been cleared"):
            call(handle)
    handle = hvd.broadcast_async_(torch.zeros(3), 0)
    assert hvd.poll(handle) in (True, False)
    hvd.synchronize(handle)
    tensor = torch.full((200000,), float(me))
    handle = hvd.allreduce_async(tensor * 1, op=hvd.Sum)  # only the operation references the temporary
    junk = [torch.full((200000,), -1.0) for _ in range(4)]
    same(hvd.synchronize(handle), torch.full((200000,), float(sum(range(n)))))
    del junk
    hvd.barrier()


@on_ranks(3)
def test_compressed_reductions_travel_in_the_smaller_type():
    n = hvd.size()
    third = torch.full((7,), 1 / 3)
    for compression, wire in [(hvd.Compression.fp16, torch.float16), (hvd.Compression.bf16, torch.bfloat16)]:
        rounded = (third.to(wire).float() * n).to(wire).float()
        same(hvd.allreduce(third, op=hvd.Sum, compression=compression), rounded)
        same(hvd.grouped_allreduce([third, third], op=hvd.Sum, compression=compression)[1], rounded)
        whole = torch.full((3,), 2**20)
        same(hvd.allreduce(whole, op=hvd.Sum, compression=compression), whole * n)
        half = torch.ones(3, dtype=torch.float16)
        same(hvd.allreduce(half, op=hvd.Sum, compression=compression), half * n)
        same(
            hvd.reducescatter(third.repeat(n), op=hvd.Sum, compression=compression),
            rounded,
        )
    assert hvd.Compression.none.decompress(*hvd.Compression.none.compress(third)) is third

    class Scaled:
        @staticmethod
        def compress(tensor):
            return (tensor * 8).to(torch.int32), tensor.dtype

        @staticmethod
        def decompress(tensor, ctx):
            return tensor.to(ctx) / 8

    same(hvd.allreduce(torch.full((2,), 0.375), op=hvd.Sum, compression=Scaled), torch.full((2,), 0.375 * n))


@on_ranks(3)
def test_sparse_tensors_are_added_and_averaged():
    me, n = hvd.rank(), hvd.size()

    def part(rank):
        indices = torch.tensor([[0, rank], [1, 0]])
        return torch.sparse_coo_tensor(indices, torch.tensor([1.0, 2.0 + rank]), (n + 1, 2))

    finish = hvd.sparse_allreduce_async(part(me), "rows", hvd.Sum)
    mean = hvd.sparse_allreduce_async(part(me), "mean", hvd.Average)
    total = sum(part(r).to_dense() for r in range(n))
    same(finish().to_dense(), total)
    torch.testing.assert_close(mean().to_dense(), total / n)
    with pytest.raises(NotImplementedError):
        hvd.sparse_allreduce_async(part(me), "max", hvd.Max)
    with pytest.raises(NotImplementedError, match="layout"):
        hvd.allreduce(part(me))


@on_ranks(3)
def test_several_threads_may_submit_at_once():
    n = hvd.size()
    wrong = []

    def work(thread):
        for step in range(30):
            got = hvd.allreduce(torch.full((64,), float(thread)), op=hvd.Sum, name=f"thread{thread}")
            if not torch.equal(got, torch.full((64,), float(thread * n))):
                wrong.append((thread, step))

    threads = [threading.Thread(target=work, args=(t,)) for t in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@on_ranks(3)
def test_rooted_and_v_collectives_take_any_layout_and_counts_as_tensors():
    me, n = hvd.rank(), hvd.size()
    ranks = range(n)
    view = torch.arange(12.0).reshape(3, 4).t()[::2].add(me).requires_grad_()  # (2, 3), with a graph
    everyone = [view.detach() - me + rank for rank in ranks]
    counts = torch.full((n,), 2, dtype=torch.int16)
    places = torch.tensor([3 * (n - 1 - rank) for rank in ranks])
    wide = torch.zeros(3 * n - 1, 3)
    for rank in ranks:
        wide[places[rank] : places[rank] + 2] = everyone[rank]

    total = hvd.reduce(view, root_rank=1, op=hvd.Sum)
    assert (total is None) == (me != 1)
    if me == 1:
        same(total, sum(everyone))
        assert not total.requires_grad
    gathered = hvd.gather(view.detach().conj(), root_rank=2)
    assert (gathered is None) == (me != 2)
    if me == 2:
        same(gathered, torch.cat(everyone))
    same(hvd.allgatherv(view, recvcounts=counts, displs=places), wide)
    placed = hvd.gatherv(view, root_rank=0, recvcounts=counts, displs=places)
    assert (placed is None) == (me != 0)
    if me == 0:
        same(placed, wide)
    rows = torch.arange(6 * n).reshape(3, 2 * n).t()  # not contiguous
    same(hvd.scatter(rows, root_rank=0), rows[2 * me : 2 * me + 2])
    same(hvd.scatterv(rows, root_rank=0, sendcounts=counts, displs=torch.zeros(n, dtype=torch.int64)), rows[:2])
    output, received = hvd.alltoallv(rows, sendcounts=counts, sdispls=[2 * n - 2] * n)
    same(output, torch.cat([rows[-2:]] * n))
    assert received.tolist() == [2] * n
    same(hvd.reducescatterv(rows, recvcounts=[2 * n, *[0] * (n - 1)], op=hvd.Max), rows if me == 0 else rows[:0])
    flags = torch.tensor([True, me == 0, False])
    same(hvd.allreduce(flags, op=hvd.Xor), torch.tensor([n % 2 == 1, True, False]))
    handle = hvd.reduce_async(view, root_rank=0)
    assert (hvd.synchronize(handle) is None) == (me != 0)


@on_ranks(2)
def test_gradients_use_the_backend_of_the_forward_call():
    session = context.current()
    runtime, backends = session.runtime, []

    class Spy:
        def __getattr__(self, name):
            if name != "submit":
                return getattr(runtime, name)
            return lambda request: (backends.append(request.backend), runtime.submit(request))[1]

    session.runtime = Spy()
    others = [hvd.allgather, hvd.reducescatter, lambda x, **options: hvd.broadcast(x, 0, **options)]
    for call in [hvd.allreduce, hvd.alltoall, *others]:
        backends.clear()
        x = torch.ones(4, requires_grad=True)
        algorithm = "shm/twoshot" if call is hvd.allreduce else "shm/auto"
        call(x, backend=algorithm).sum().backward()
        assert x.grad is not None
        # The gradient of the last three is another operation, for which the backend chooses its own algorithm.
        assert backends == [algorithm, "shm" if call in others else algorithm]
    with pytest.raises(UnsupportedError, match="shm/twoshot runs allreduce and reduce; allgather"):
        hvd.allgather(torch.ones(4), backend="shm/twoshot")
    for call in (hvd.grouped_allreduce, hvd.grouped_allgather, hvd.grouped_reducescatter):
        backends.clear()
        x = torch.ones(4, requires_grad=True)
        call([x, x], backend="shm")[0].sum().backward()
        assert backends == ["shm"] * 2


@on_ranks(2)
def test_unsigned_integers_are_reduced_and_moved():
    me = hvd.rank()
    for dtype in (torch.uint16, torch.uint32, torch.uint64):
        largest = 2 ** torch.iinfo(dtype).bits - 1

        def of(*values, dtype=dtype):
            return torch.tensor(values, dtype=dtype)

        # Twice the largest value wraps around; the largest plus zero exceeds the range of a signed number.
        assert hvd.allreduce(of(3, largest), op=hvd.Sum).tolist() == [6, largest - 1]
        assert hvd.allreduce(of(3, largest * me)).tolist() == [3, largest // 2]
        assert hvd.allreduce(of(me, largest - me), op=hvd.Max).tolist() == [1, largest]
        assert hvd.allgather(of(me, largest)).tolist() == [0, largest, 1, largest]
        assert hvd.broadcast(of(me), 1).tolist() == [1]
        assert hvd.alltoall(of(me, largest)).tolist() == ([0, 1] if me == 0 else [largest, largest])
        assert hvd.reducescatter(of(me, largest), op=hvd.Min).tolist() == [[0], [largest]][me]
        tensor = of(7 + me)
        assert hvd.allreduce_(tensor, op=hvd.Sum) is tensor and tensor.tolist() == [15]
