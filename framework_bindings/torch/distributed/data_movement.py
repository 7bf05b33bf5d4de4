"""The collectives of a process group that only move values. Names and arguments of methods are torch's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from horocache.base.operation_codes import OP_ALLGATHER, OP_ALLTOALL, OP_BROADCAST, OP_GATHER, OP_SCATTER
from horocache.errors import InvalidArgumentError
from torch._C import _distributed_c10d as c10d

from ..compile.dynamo import untraced
from .group_base import GroupBase
from .tensors import (
    check_count,
    check_lists,
    equal_parts,
    joined,
    length,
    newest,
    nothing_like,
    only,
    only_list,
    options,
    put,
    put_back,
    put_parts,
    put_results,
    results_of,
    to_move,
)

Tensor = torch.Tensor
Tensors = Sequence[torch.Tensor]


@untraced
class Movements(GroupBase):
    """The collectives broadcast, all_gather, gather, scatter and all_to_all.

    Role: a base of :class:`~horocache.torch.distributed.process_group.HorocacheGroup`.
    """

    def broadcast(self, tensors: Any, opts: Any = None, root: Any = None, timeout: Any = None) -> Any:
        """Copy the root's values into the tensor of every rank."""
        tensor = only(tensors, "broadcast")
        opts = options(c10d.BroadcastOptions, opts, rootRank=root, timeout=timeout)
        if self.is_elsewhere(tensor):
            return self.elsewhere(tensor.device).broadcast([tensor], opts)
        vector = to_move(tensor)
        place = self.calls.place(opts.rootRank)
        call = (OP_BROADCAST, vector.dtype, vector.numel(), place)
        store = put_back(tensor, vector)
        return self.start(call, OP_BROADCAST, (vector,), (vector,), (tensor,), store, opts, root=place)

    # ---- all_gather

    def allgather(self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: Any = None) -> Any:
        """Fill a list with the ranks' tensors, whose sizes may differ."""
        tensor = only(input_tensors, "all_gather")
        outputs = only_list(output_tensors, "all_gather")
        opts = options(c10d.AllgatherOptions, opts, timeout=timeout)
        if self.is_elsewhere(tensor):
            return self.elsewhere(tensor.device).allgather([outputs], [tensor], opts)
        check_lists(outputs, self._size, "the output of all_gather")
        vector = to_move(tensor)
        counts = [length(output) for output in outputs]
        check_count(vector.numel(), counts[self._rank], "the input of all_gather")
        return self._allgather(vector, counts, outputs, put_parts(outputs, counts), opts)

    def _allgather(self, vector: Tensor, counts: Sequence[int], outputs: Tensors, store: Any, opts: Any) -> Any:
        call = (OP_ALLGATHER, vector.dtype)
        rows = {"receive_rows": self.calls.sort(counts), "receive_starts": self.calls.starts(counts)}
        return self.start(call, OP_ALLGATHER, (vector,), None, outputs, store, opts, **rows)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Any:
        """Concatenate the ranks' tensors in one tensor."""
        opts = options(c10d.AllgatherOptions, opts)
        if self.is_elsewhere(output):
            return newest(self.elsewhere(output.device), "all_gather_single", "_allgather_base")(output, input, opts)
        check_count(output.numel(), input.numel() * self._size, "the output of all_gather")
        vector = to_move(input)
        return self._allgather(vector, [vector.numel()] * self._size, (output,), put_results((output,)), opts)

    _allgather_base = all_gather_single  # torch's name for it before 2.13

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        """Concatenate the ranks' tensors, for several tensors as one operation."""
        opts = options(c10d.AllgatherOptions, opts)
        if self.is_elsewhere(outputs[0]):
            names = "all_gather_single_coalesced", "allgather_into_tensor_coalesced"
            return newest(self.elsewhere(outputs[0].device), *names)(outputs, inputs, opts)
        for output, tensor in zip(outputs, inputs, strict=True):
            check_count(output.numel(), tensor.numel() * self._size, "an output of all_gather")

        def put_in_order(index: int, parts: Tensors) -> None:
            put(outputs[index], joined(parts))

        return self._allgather_group(inputs, outputs, put_in_order, opts)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather_coalesced(self, output_lists: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Any:
        """Gather several tensors, as one operation, into a list for each rank."""
        opts = options(c10d.AllgatherOptions, opts)
        if self.is_elsewhere(inputs[0]):
            return self.elsewhere(inputs[0].device).allgather_coalesced(output_lists, inputs, opts)
        check_lists(output_lists, self._size, "the output of all_gather_coalesced")

        def put_by_rank(index: int, parts: Tensors) -> None:
            for outputs, part in zip(output_lists, parts, strict=True):
                put(outputs[index], part)

        results = [output for outputs in output_lists for output in outputs]
        return self._allgather_group(inputs, results, put_by_rank, opts)

    def _allgather_group(self, inputs: Tensors, results: Tensors, put_tensor: Any, opts: Any) -> Any:
        calls = self.calls
        vectors = [to_move(tensor) for tensor in inputs]

        def store(answer: Any) -> None:
            for index, (result, vector) in enumerate(zip(results_of(answer), vectors, strict=True)):
                check_count(result.numel(), vector.numel() * self._size, "what was gathered")
                put_tensor(index, calls.unsort(equal_parts(result, self._size)))

        call = (OP_ALLGATHER, *(vector.dtype for vector in vectors))
        return self.start(call, OP_ALLGATHER, vectors, None, results, store, opts, group=True)

    # ---- gather and scatter

    def gather(
        self, output_tensors: Any, input_tensors: Any, opts: Any = None, root: Any = None, timeout: Any = None
    ) -> Any:
        """Fill the root's list with the ranks' tensors, whose sizes may differ."""
        tensor = only(input_tensors, "gather")
        opts = options(c10d.GatherOptions, opts, rootRank=root, timeout=timeout)
        if self.is_elsewhere(tensor):
            return self.elsewhere(tensor.device).gather(output_tensors, [tensor], opts)
        vector, place = to_move(tensor), self.calls.place(opts.rootRank)
        call = (OP_GATHER, vector.dtype, place)
        if opts.rootRank != self._rank:
            return self.start(call, OP_GATHER, (vector,), None, (), None, opts, root=place)
        outputs = only_list(output_tensors, "gather")
        check_lists(outputs, self._size, "the output of gather")
        counts = [length(output) for output in outputs]
        rows = {"receive_rows": self.calls.sort(counts), "receive_starts": self.calls.starts(counts)}
        store = put_parts(outputs, counts)
        return self.start(call, OP_GATHER, (vector,), None, outputs, store, opts, root=place, **rows)

    def scatter(
        self, output_tensors: Any, input_tensors: Any, opts: Any = None, root: Any = None, timeout: Any = None
    ) -> Any:
        """Give each rank one tensor of the root's list; sizes may differ."""
        output = only(output_tensors, "scatter")
        opts = options(c10d.ScatterOptions, opts, rootRank=root, timeout=timeout)
        if self.is_elsewhere(output):
            return self.elsewhere(output.device).scatter([output], input_tensors, opts)
        place = self.calls.place(opts.rootRank)
        vector = nothing_like(output)
        call = (OP_SCATTER, vector.dtype, place)
        rows: dict[str, Any] = {}
        if opts.rootRank == self._rank:
            parts = only_list(input_tensors, "scatter")
            check_lists(parts, self._size, "the input of scatter")
            vectors = [to_move(part) for part in parts]
            counts = [part.numel() for part in vectors]
            vector = joined(vectors)
            rows = {"splits": self.calls.sort(counts), "send_starts": self.calls.starts(counts)}
        store = put_results((output,))
        return self.start(call, OP_SCATTER, (vector,), None, (output,), store, opts, root=place, **rows)

    # ---- all_to_all

    def alltoall(self, output_tensors: Tensors, input_tensors: Tensors, opts: Any = None) -> Any:
        """Send each rank one tensor of a list, and receive one from each; sizes may differ."""
        opts = options(c10d.AllToAllOptions, opts)
        if self.is_elsewhere(output_tensors[0]):
            return self.elsewhere(output_tensors[0].device).alltoall(output_tensors, input_tensors, opts)
        check_lists(input_tensors, self._size, "the input of all_to_all")
        check_lists(output_tensors, self._size, "the output of all_to_all")
        vectors = [to_move(tensor) for tensor in input_tensors]
        received = [length(tensor) for tensor in output_tensors]
        store = put_parts(output_tensors, received)
        return self._alltoall(
            joined(vectors), [part.numel() for part in vectors], received, output_tensors, store, opts
        )

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        opts: Any = None,
    ) -> Any:
        """Send each rank some rows of a tensor, and receive some from each."""
        opts = options(c10d.AllToAllOptions, opts)
        if self.is_elsewhere(output):
            splits = list(output_split_sizes or ()), list(input_split_sizes or ())
            return newest(self.elsewhere(output.device), "all_to_all_single", "alltoall_base")(
                output, input, *splits, opts
            )
        sent = self._counts(input, input_split_sizes, "input")
        received = self._counts(output, output_split_sizes, "output")
        return self._alltoall(to_move(input), sent, received, (output,), put_results((output,)), opts)

    alltoall_base = all_to_all_single

    def _counts(self, tensor: Tensor, splits: Sequence[int] | None, which: str) -> list[int]:
        """Return the number of elements for, or from, each rank."""
        rows = tensor.shape[0] if tensor.dim() else 1
        if not splits:
            if rows % self._size:
                raise InvalidArgumentError(
                    f"the {which} of all_to_all_single has {rows} rows, which cannot be shared out evenly among "
                    f"{self._size} ranks; give {which}_split_sizes."
                )
            return [length(tensor) // self._size] * self._size
        check_lists(splits, self._size, f"{which}_split_sizes of all_to_all_single")
        if sum(splits) != rows or min(splits) < 0:
            raise InvalidArgumentError(
                f"{which}_split_sizes of all_to_all_single are {list(splits)}; they must add up to {rows}, the rows of "
                f"the {which}."
            )
        each = length(tensor) // rows if rows else 0
        return [split * each for split in splits]

    def _alltoall(
        self, vector: Tensor, sent: Sequence[int], received: Sequence[int], outputs: Tensors, store: Any, opts: Any
    ) -> Any:
        calls = self.calls
        rows = {
            "splits": calls.sort(sent),
            "send_starts": calls.starts(sent),
            "receive_rows": calls.sort(received),
            "receive_starts": calls.starts(received),
        }
        call = (OP_ALLTOALL, vector.dtype)
        return self.start(call, OP_ALLTOALL, (vector,), None, outputs, store, opts, **rows)
