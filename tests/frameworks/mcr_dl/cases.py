"""Every operation of mcr_dl against NumPy, for the tests here and for those over MPI; run on the ranks of a job."""

from __future__ import annotations

import sys
from functools import reduce as fold

import numpy as np

import horocache.mcr_dl as mcr_dl
from horocache.mcr_dl import ReduceOp
from horocache.mcr_dl.arrays import Arrays

SHAPES = [(), (0,), (1,), (7,), (3, 5)]
DTYPES = ["uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64", "bool"]
REDUCTIONS = {
    ReduceOp.SUM: np.add,
    ReduceOp.PRODUCT: np.multiply,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
    ReduceOp.BAND: np.bitwise_and,
    ReduceOp.BOR: np.bitwise_or,
    ReduceOp.BXOR: np.bitwise_xor,
}


class Maker:
    """Tensors of one framework, element type and layout, with values that are known on every rank.

    Values are small whole numbers, so that every order of additions gives the same result in every type.
    """

    def __init__(self, kind, dtype, strided=False):
        self.kind, self.dtype, self.strided = kind, dtype, strided
        self.exact = np.dtype("float64" if dtype == "bfloat16" else dtype)

    def values(self, rank, shape, salt=0):
        count = int(np.prod(shape, dtype=np.int64))
        return ((np.arange(count) * (salt + 3) + rank * 5 + salt) % 4).reshape(shape).astype(self.exact)

    def tensor(self, values):
        """A tensor with these values; with ``strided`` it is a view with gaps between its elements."""
        values = np.asarray(values)
        if self.kind == "numpy":
            made = np.array(values, self.dtype)
            if not self.strided or not made.ndim:
                return made
            wide = np.full((*made.shape[:-1], 2 * made.shape[-1] + 1), 3).astype(self.dtype)
            view = wide[..., 1::2]
        else:
            import torch

            made = torch.from_numpy(np.array(values)).to(getattr(torch, self.dtype))
            if not self.strided or not made.dim():
                return made
            wide = torch.full((*made.shape[:-1], 2 * made.shape[-1] + 1), 3).to(made.dtype)
            view = wide[..., 1::2]
        view[...] = made
        return view

    def full(self, shape, value=1):
        return self.tensor(np.full(shape, value).astype(self.exact))

    def read(self, tensor):
        return np.array(tensor) if self.kind == "numpy" else tensor.double().numpy().astype(self.exact)

    def check(self, tensor, expected, what):
        got = self.read(tensor)
        np.testing.assert_array_equal(got, np.asarray(expected).reshape(got.shape), f"{what} {self.kind} {self.dtype}")


class Checks:
    """Runs operations on this rank and checks what it gets, on one backend and group."""

    def __init__(self, backend, maker, group=None):
        self.backend, self.make = backend, maker
        self.group = group
        self.ranks = mcr_dl.get_all_ranks_from_group(group)
        self.rank, self.size = mcr_dl.get_rank(group=group), len(self.ranks)
        self.how = {"group": group}

    def all(self, case):
        for check in [name for name in dir(self) if name.startswith("check_")]:
            getattr(self, check)(case)


class Operations(Checks):
    """The operations whose parts are equal; a case is a shape."""

    def values(self, shape, salt=0):
        return [self.make.values(rank, shape, salt) for rank in range(self.size)]

    def check_all_reduce(self, shape):
        every = self.values(shape)
        expected = fold(np.add, every)
        tensor = self.make.tensor(every[self.rank])
        assert mcr_dl.all_reduce(self.backend, tensor, ReduceOp.SUM, **self.how) is None
        self.make.check(tensor, expected, "all_reduce")
        output, source = self.make.full(shape), self.make.tensor(every[self.rank])
        work = mcr_dl.all_reduce(self.backend, output, async_op=True, input=source, **self.how)
        assert work.result() is output
        self.make.check(output, expected, "all_reduce out of place")
        self.make.check(source, every[self.rank], "its input")

    def check_reduce(self, shape):
        every = self.values(shape)
        for root in (0, self.size - 1):
            tensor = self.make.tensor(every[self.rank])
            mcr_dl.reduce(self.backend, tensor, self.ranks[root], ReduceOp.MAX, **self.how)
            is_root = self.rank == root
            self.make.check(tensor, fold(np.maximum, every) if is_root else every[self.rank], "reduce")
            output = self.make.full(shape) if is_root else None
            source = self.make.tensor(every[self.rank])
            mcr_dl.reduce(self.backend, output, self.ranks[root], input=source, **self.how)
            if is_root:
                self.make.check(output, fold(np.add, every), "reduce out of place")

    def check_bcast(self, shape):
        every = self.values(shape)
        for root in (0, self.size - 1):
            tensor = self.make.tensor(every[self.rank])
            mcr_dl.bcast(self.backend, tensor, self.ranks[root], **self.how)
            self.make.check(tensor, every[root], "bcast")

    def check_all_gather(self, shape):
        every = self.values(shape)
        flat = np.concatenate([each.ravel() for each in every])
        output = self.make.full(flat.shape)
        mcr_dl.all_gather(self.backend, output, self.make.tensor(every[self.rank]), **self.how)
        self.make.check(output, flat, "all_gather")
        output = self.make.full(flat.shape)
        each = flat.size // self.size
        output[self.rank * each : (self.rank + 1) * each] = self.make.tensor(every[self.rank].ravel())
        mcr_dl.all_gather(self.backend, output, **self.how)
        self.make.check(output, flat, "all_gather in place")
        outputs = [self.make.full(shape) for _ in range(self.size)]
        mcr_dl.all_gather(self.backend, outputs, self.make.tensor(every[self.rank]), **self.how)
        for got, expected in zip(outputs, every, strict=True):
            self.make.check(got, expected, "all_gather to a list")

    def check_gather(self, shape):
        every = self.values(shape)
        flat = np.concatenate([each.ravel() for each in every])
        for root in (0, self.size - 1):
            place, is_root = self.ranks[root], self.rank == root
            source = self.make.tensor(every[self.rank])
            output = self.make.full(flat.shape) if is_root else None
            mcr_dl.gather(self.backend, output, place, input=source, **self.how)
            if is_root:
                self.make.check(output, flat, "gather")
            output = self.make.tensor(np.where(np.arange(flat.size) // max(1, source_size(source)) == root, flat, 1))
            mcr_dl.gather(self.backend, output if is_root else source, place, **self.how)
            if is_root:
                self.make.check(output, flat, "gather in place")
            outputs = [self.make.full(shape) for _ in range(self.size)] if is_root else None
            mcr_dl.gather(self.backend, outputs, place, input=source, **self.how)
            for got, expected in zip(outputs or [], every, strict=False):
                self.make.check(got, expected, "gather to a list")

    def check_scatter(self, shape):
        every = self.values(shape)
        flat = np.concatenate([each.ravel() for each in every])
        for root in (0, self.size - 1):
            place, is_root = self.ranks[root], self.rank == root
            output = self.make.full(shape)
            mcr_dl.scatter(self.backend, output, place, input=self.make.tensor(flat) if is_root else None, **self.how)
            self.make.check(output, every[self.rank], "scatter")
            output = self.make.tensor(flat) if is_root else self.make.full(shape)
            mcr_dl.scatter(self.backend, output, place, **self.how)
            self.make.check(output, flat if is_root else every[self.rank], "scatter in place")
            output, parts = self.make.full(shape), [self.make.tensor(each) for each in every]
            mcr_dl.scatter(self.backend, output, place, input=parts if is_root else None, **self.how)
            self.make.check(output, every[self.rank], "scatter of a list")

    def check_reduce_scatter(self, shape):
        every = [np.concatenate([each.ravel() for each in self.values(shape, salt=rank)]) for rank in range(self.size)]
        total = fold(np.add, every)
        each = total.size // self.size
        own = total[self.rank * each : (self.rank + 1) * each]
        output = self.make.full(shape)
        mcr_dl.reduce_scatter(self.backend, output, input=self.make.tensor(every[self.rank]), **self.how)
        self.make.check(output, own, "reduce_scatter")
        output = self.make.tensor(every[self.rank])
        mcr_dl.reduce_scatter(self.backend, output, 0, ReduceOp.SUM, **self.how)
        self.make.check(output, np.concatenate([own, every[self.rank][each:]]), "reduce_scatter in place")
        parts = [self.make.tensor(part) for part in every[self.rank].reshape(self.size, each)]
        output = self.make.full(shape)
        mcr_dl.reduce_scatter(self.backend, output, parts, **self.how)
        self.make.check(output, own, "reduce_scatter of a list")

    def check_all_to_all(self, shape):
        sent = [self.values(shape, salt=rank) for rank in range(self.size)]
        mine = np.concatenate([each.ravel() for each in sent[self.rank]])
        came = [each[self.rank] for each in sent]
        expected = np.concatenate([each.ravel() for each in came])
        output = self.make.full(expected.shape)
        mcr_dl.all_to_all_single(self.backend, output, self.make.tensor(mine), **self.how)
        self.make.check(output, expected, "all_to_all_single")
        output = self.make.tensor(mine)
        mcr_dl.all_to_all_single(self.backend, output, **self.how)
        self.make.check(output, expected, "all_to_all_single in place")
        outputs = [self.make.full(shape) for _ in range(self.size)]
        mcr_dl.all_to_all(self.backend, outputs, [self.make.tensor(each) for each in sent[self.rank]], **self.how)
        for got, wanted in zip(outputs, came, strict=True):
            self.make.check(got, wanted, "all_to_all")

    def check_messages(self, shape):
        every = self.values(shape)
        after, before = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        mine, got = self.make.tensor(every[self.rank]), self.make.full(shape)
        mcr_dl.sendrecv(self.backend, mine, self.ranks[after], got, self.ranks[before], **self.how)
        self.make.check(got, every[before], "sendrecv")
        got = self.make.full(shape)
        received = mcr_dl.irecv(self.backend, got, self.ranks[before], tag=4, **self.how)
        mcr_dl.send(self.backend, mine, self.ranks[after], tag=4, **self.how)
        assert received.wait() and received.result() is got
        self.make.check(got, every[before], "irecv")
        got = self.make.full(shape)
        sent = mcr_dl.isend(self.backend, mine, self.ranks[after], tag=5, **self.how)
        mcr_dl.recv(self.backend, got, self.ranks[before], tag=5, **self.how)
        sent.wait()
        self.make.check(got, every[before], "recv")


def source_size(tensor):
    return int(np.prod(tuple(tensor.shape), dtype=np.int64))


class VectoredOperations(Checks):
    """The operations with counts and positions: zeros, gaps, different on each rank; a case is a seed."""

    def values(self, count, salt=0):
        return self.make.values(salt, (count,), salt)

    def check_all_gatherv(self, seed):
        counts, displs, room = layout(seed, self.size)
        parts = [self.values(count, rank) for rank, count in enumerate(counts)]
        expected = placed(parts, displs, room, self.make)
        output = self.make.full((room,))
        mcr_dl.all_gatherv(
            self.backend, output, 0, counts, displs, input=self.make.tensor(parts[self.rank]), **self.how
        )
        self.make.check(output, expected, "all_gatherv")
        own = slice(displs[self.rank], displs[self.rank] + counts[self.rank])
        output = self.make.full((room,))
        output[own] = self.make.tensor(parts[self.rank])
        mcr_dl.all_gatherv(self.backend, output, 0, counts, displs, **self.how)
        self.make.check(output, expected, "all_gatherv in place")
        output = self.make.full((room,))
        mcr_dl.all_gatherv(
            self.backend, output, None, np.array(counts), input=self.make.tensor(parts[self.rank]), **self.how
        )
        packed = np.concatenate([*parts, np.ones(room - sum(counts), self.make.exact)])
        self.make.check(output, packed, "all_gatherv without positions")

    def check_gatherv(self, seed):
        counts, displs, room = layout(seed, self.size)
        parts = [self.values(count, rank) for rank, count in enumerate(counts)]
        expected = placed(parts, displs, room, self.make)
        root = seed % self.size
        place, mine = self.ranks[root], self.make.tensor(parts[self.rank])
        if self.rank != root:
            mcr_dl.gatherv(self.backend, mine, place, counts, displs, **self.how)
            mcr_dl.gatherv(self.backend, None, place, input=mine, **self.how)
            return
        output = self.make.full((room,))
        mcr_dl.gatherv(self.backend, output, place, counts, displs, input=mine, **self.how)
        self.make.check(output, expected, "gatherv")
        output = self.make.full((room,))
        output[displs[root] : displs[root] + counts[root]] = mine
        mcr_dl.gatherv(self.backend, output, place, counts, displs, **self.how)
        self.make.check(output, expected, "gatherv in place")

    def check_scatterv(self, seed):
        counts, displs, room = layout(seed, self.size)
        root = seed % self.size
        everything = self.values(room, root)
        own = everything[displs[self.rank] : displs[self.rank] + counts[self.rank]]
        source = self.make.tensor(everything) if self.rank == root else None
        output = self.make.full((counts[self.rank] + 2,))
        mcr_dl.scatterv(self.backend, output, self.ranks[root], counts, displs, input=source, **self.how)
        self.make.check(output, np.concatenate([own, np.ones(2, self.make.exact)]), "scatterv")
        if self.rank == root:
            mcr_dl.scatterv(self.backend, source, self.ranks[root], counts, displs, **self.how)
            self.make.check(source, everything, "scatterv in place")
            return
        output = self.make.full((counts[self.rank],))
        mcr_dl.scatterv(self.backend, output, self.ranks[root], **self.how)
        self.make.check(output, own, "scatterv without counts")

    def check_all_to_allv(self, seed):
        table = np.random.default_rng(seed).integers(0, 4, (self.size, self.size))
        scounts, rcounts = table[self.rank].tolist(), table[:, self.rank].tolist()
        sdispls, send_room = spread(scounts, seed)
        rdispls, room = spread(rcounts[::-1], seed + 1)
        rdispls = rdispls[::-1]  # the parts lie in another order than that of the ranks
        sources = [self.values(40, rank) for rank in range(self.size)]
        parts = []
        for rank in range(self.size):
            start = spread(table[rank].tolist(), seed)[0][self.rank]
            parts.append(sources[rank][start : start + rcounts[rank]])
        output = self.make.full((room,))
        mine = self.make.tensor(sources[self.rank][: max(send_room, 1)])
        lists = (scounts, rcounts, sdispls, rdispls)
        mcr_dl.all_to_allv(self.backend, output, mine, *lists, **self.how)
        self.make.check(output, placed(parts, rdispls, room, self.make), "all_to_allv")
        packed = self.make.full((sum(rcounts) + 1,))
        starts = [int(table[rank][: self.rank].sum()) for rank in range(self.size)]
        parts = [sources[rank][start : start + rcounts[rank]] for rank, start in enumerate(starts)]
        work = mcr_dl.all_to_allv(
            self.backend, packed, self.make.tensor(sources[self.rank]), scounts, rcounts, async_op=True, **self.how
        )
        assert work.result() is packed
        expected = np.concatenate([*parts, np.ones(1, self.make.exact)])
        self.make.check(packed, expected, "all_to_allv without positions")
        outputs = [self.make.full((count,)) for count in rcounts]
        inputs = np.split(sources[self.rank][: sum(scounts)], np.cumsum(scounts)[:-1])
        mcr_dl.all_to_all(self.backend, outputs, [self.make.tensor(each) for each in inputs], **self.how)
        for got, wanted in zip(outputs, parts, strict=True):
            self.make.check(got, wanted, "all_to_all of different sizes")

    def check_all_to_all_single_with_splits(self, seed):
        table = np.random.default_rng(seed).integers(0, 3, (self.size, self.size))
        scounts, rcounts = table[self.rank].tolist(), table[:, self.rank].tolist()
        rows = [self.make.values(rank, (int(table[rank].sum()), 2), rank) for rank in range(self.size)]
        starts = [int(table[rank][: self.rank].sum()) for rank in range(self.size)]
        expected = np.concatenate([rows[rank][start : start + rcounts[rank]] for rank, start in enumerate(starts)])
        output = self.make.full((sum(rcounts), 2))
        splits = {"output_split_sizes": rcounts, "input_split_sizes": scounts}
        mcr_dl.all_to_all_single(self.backend, output, self.make.tensor(rows[self.rank]), **splits, **self.how)
        self.make.check(output, expected, "all_to_all_single with splits")

    def check_reduce_scatterv(self, seed):
        counts = layout(seed, self.size)[0]
        every = [self.values(sum(counts), rank) for rank in range(self.size)]
        total = fold(np.add, every)
        start = sum(counts[: self.rank])
        own = total[start : start + counts[self.rank]]
        output = self.make.full((counts[self.rank] + 1,))
        mcr_dl.reduce_scatterv(self.backend, output, counts, input=self.make.tensor(every[self.rank]), **self.how)
        self.make.check(output, np.concatenate([own, np.ones(1, self.make.exact)]), "reduce_scatterv")
        output = self.make.tensor(every[self.rank])
        mcr_dl.reduce_scatterv(self.backend, output, counts, **self.how)
        rest = every[self.rank][counts[self.rank] :]
        self.make.check(output, np.concatenate([own, rest]), "reduce_scatterv in place")


def layout(seed, ranks):
    """Counts with zeros, and positions with gaps; the same on all ranks."""
    counts = np.random.default_rng([seed, ranks]).integers(0, 5, ranks).tolist()
    counts[seed % ranks] = 0
    displs, room = spread(counts, seed)
    return counts, displs, room


def spread(counts, seed):
    gaps = np.random.default_rng([seed, 7]).integers(0, 3, len(counts) + 1).tolist()
    displs, at = [], 0
    for gap, count in zip(gaps, counts, strict=False):
        displs.append(at + gap)
        at += gap + count
    return displs, at + gaps[-1] + 1


def placed(parts, displs, room, maker):
    """The parts at their positions; what no part covers has the value 1 of an untouched tensor."""
    result = np.ones(room, maker.exact)
    for part, start in zip(parts, displs, strict=True):
        result[start : start + len(part)] = part
    return result


def check_reductions(backend, maker):
    """Every ReduceOp; the bitwise ones are for integers and bool."""
    size, rank = mcr_dl.get_size(), mcr_dl.get_rank()
    every = [maker.values(each, (17,)) for each in range(size)]
    for op, function in REDUCTIONS.items():
        bitwise = op in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)
        if bitwise and maker.exact.kind == "f":
            continue
        expected = fold(function, every)
        tensor = maker.tensor(every[rank])
        mcr_dl.all_reduce(backend, tensor, op)
        maker.check(tensor, expected, f"all_reduce by {op.name}")
        parts = maker.full((17,))
        mcr_dl.reduce_scatter(backend, parts, None, op, input=maker.tensor(np.concatenate([every[rank]] * size)))
        maker.check(parts, expected, f"reduce_scatter by {op.name}")
        tensor = maker.tensor(every[rank])
        mcr_dl.reduce(backend, tensor, size - 1, op)
        if rank == size - 1:
            maker.check(tensor, expected, f"reduce by {op.name}")


def check_backend(backend, kind, large=True):
    """M2, M3 and M4 on one backend and framework."""
    for dtype in DTYPES if kind == "torch" else [each for each in DTYPES if each != "bfloat16"]:
        for strided in (False, True) if dtype in ("float32", "int64") else (False,):
            maker = Maker(kind, dtype, strided)
            for shape in SHAPES:
                Operations(backend, maker).all(shape)
            for seed in range(3):
                VectoredOperations(backend, maker).all(seed)
            check_reductions(backend, maker)
    if large:
        Operations(backend, Maker(kind, "float32")).all((512, 512))


def run(backends, kinds, direct=True):
    """Check backends with the tensors of frameworks; on every rank. Not ``direct``: the core allocates all results."""
    mcr_dl.init(backends)
    assert mcr_dl.get_backends() == backends
    if not direct:
        Arrays.on_host = lambda *_: False
        if "torch" in kinds:
            from horocache.mcr_dl.torch_arrays import TorchArrays

            TorchArrays.on_host = Arrays.on_host
    for backend in backends:
        for kind in kinds:
            check_backend(backend, kind)
            print(f"conforms {mcr_dl.get_rank()} {backend} {kind}", flush=True)
    mcr_dl.finalize()


if __name__ == "__main__":
    run(sys.argv[1].split(","), sys.argv[2].split(","))
