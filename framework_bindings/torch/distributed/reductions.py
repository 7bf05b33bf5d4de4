"""The reductions of a process group of torch.distributed. Names and arguments of methods are torch's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from horocache.base.operation_codes import OP_ALLGATHER, OP_ALLREDUCE, OP_REDUCE, OP_REDUCESCATTER
from torch._C import _distributed_c10d as c10d

from ..compile.dynamo import untraced
from .group_base import GroupBase
from .sparse_tensors import sparse_parts
from .tensors import (
    all_of,
    check_count,
    check_lists,
    equal_parts,
    joined,
    newest,
    only,
    only_list,
    options,
    put_back,
    put_results,
    reduction,
    to_reduce,
)
from .work import OperationWork, Store

Tensor = torch.Tensor
Tensors = Sequence[torch.Tensor]


@untraced
class Reductions(GroupBase):
    """The collectives all_reduce, reduce and reduce_scatter.

    Role: a base of :class:`~horocache.torch.distributed.process_group.HorocacheGroup`.
    """

    def _reduce(
        self,
        op: int,
        vectors: Tensors,
        outputs: Sequence[Tensor | None] | None,
        results: Tensors,
        store: Store | None,
        opts: Any,
        *,
        root: int = -1,
        splits: Sequence[int] | None = None,
        group: bool = False,
    ) -> OperationWork:
        reduce_op, scale = reduction(opts.reduceOp)
        call = (op, reduce_op, scale, root, *[(vector.dtype, vector.numel()) for vector in vectors])
        more: dict[str, Any] = {"root": root, "splits": splits, "group": group, "reduce_op": reduce_op, "scale": scale}
        return self.start(call, op, vectors, outputs, results, store, opts, **more)

    def allreduce(self, tensors: Any, opts: Any = None, op: Any = None, timeout: Any = None) -> Any:
        """Reduce a tensor in place; every rank gets the result."""
        tensor = only(tensors, "all_reduce")
        opts = options(c10d.AllreduceOptions, opts, reduceOp=op, timeout=timeout)
        if self.is_elsewhere(tensor):
            return self.elsewhere(tensor.device).allreduce([tensor], opts)
        if tensor.is_sparse:
            return self._allreduce_sparse(tensor, opts)
        vectors = (to_reduce(tensor),)
        return self._reduce(OP_ALLREDUCE, vectors, vectors, (tensor,), put_back(tensor, vectors[0]), opts)

    def _allreduce_sparse(self, tensor: Tensor, opts: Any) -> OperationWork:
        parts, store = sparse_parts(tensor, *reduction(opts.reduceOp), self._size)
        call = (OP_ALLGATHER, "sparse", *[(part.dtype, part.shape[1:]) for part in parts])
        return self.start(call, OP_ALLGATHER, parts, None, (tensor,), store, opts, group=True)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Any:
        """Reduce several tensors in place, as one operation."""
        opts = options(c10d.AllreduceCoalescedOptions, opts)
        if self.is_elsewhere(tensors[0]):
            return self.elsewhere(tensors[0].device).allreduce_coalesced(tensors, opts)
        vectors = [to_reduce(tensor) for tensor in tensors]
        store = all_of([put_back(tensor, vector) for tensor, vector in zip(tensors, vectors, strict=True)])
        return self._reduce(OP_ALLREDUCE, vectors, vectors, tensors, store, opts, group=True)

    def reduce(self, tensors: Any, opts: Any = None, op: Any = None, root: Any = None, timeout: Any = None) -> Any:
        """Reduce the ranks' tensors into the root's tensor; the other ranks' tensors stay unchanged."""
        tensor = only(tensors, "reduce")
        opts = options(c10d.ReduceOptions, opts, rootRank=root, reduceOp=op, timeout=timeout)
        if self.is_elsewhere(tensor):
            return self.elsewhere(tensor.device).reduce([tensor], opts)
        vector = to_reduce(tensor)
        is_root = opts.rootRank == self._rank
        outputs = (vector if is_root else None,)
        store = put_back(tensor, vector) if is_root else None
        return self._reduce(OP_REDUCE, (vector,), outputs, (tensor,), store, opts, root=self.calls.place(opts.rootRank))

    def reduce_scatter(
        self, output_tensors: Any, input_tensors: Any, opts: Any = None, op: Any = None, timeout: Any = None
    ) -> Any:
        """Reduce a list with one tensor for each rank; each rank gets the result of its tensor."""
        output, parts = only(output_tensors, "reduce_scatter"), only_list(input_tensors, "reduce_scatter")
        opts = options(c10d.ReduceScatterOptions, opts, reduceOp=op, timeout=timeout)
        if self.is_elsewhere(output):
            return self.elsewhere(output.device).reduce_scatter([output], [parts], opts)
        check_lists(parts, self._size, "the input of reduce_scatter")
        vectors = [to_reduce(part) for part in parts]
        counts = [vector.numel() for vector in vectors]
        check_count(output.numel(), counts[self._rank], "the output of reduce_scatter")
        inputs = (joined(self.calls.sort(vectors)),)
        uneven = self.calls.sort(counts) if min(counts) < max(counts) else None
        return self._reduce(OP_REDUCESCATTER, inputs, None, (output,), put_results((output,)), opts, splits=uneven)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Any:
        """Reduce a tensor; each rank gets an equal part of the result."""
        opts = options(c10d.ReduceScatterOptions, opts)
        if self.is_elsewhere(output):
            return newest(self.elsewhere(output.device), "reduce_scatter_single", "_reduce_scatter_base")(
                output, input, opts
            )
        inputs = (self._parts_to_reduce(output, input),)
        return self._reduce(OP_REDUCESCATTER, inputs, None, (output,), put_results((output,)), opts)

    _reduce_scatter_base = reduce_scatter_single  # torch's name for it before 2.13

    def _parts_to_reduce(self, output: Tensor, tensor: Tensor) -> Tensor:
        check_count(tensor.numel(), output.numel() * self._size, "the input of reduce_scatter")
        vector = to_reduce(tensor)
        return joined(self.calls.sort(equal_parts(vector, self._size))) if self.calls.reorders else vector

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        """Reduce several tensors as one operation; each rank gets an equal part of each result."""
        opts = options(c10d.ReduceScatterOptions, opts)
        if self.is_elsewhere(outputs[0]):
            names = "reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced"
            return newest(self.elsewhere(outputs[0].device), *names)(outputs, inputs, opts)
        vectors = [self._parts_to_reduce(output, tensor) for output, tensor in zip(outputs, inputs, strict=True)]
        return self._reduce(OP_REDUCESCATTER, vectors, None, outputs, put_results(outputs), opts, group=True)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
