"""Collectives that move values unchanged: allgather, broadcast and alltoall, once for all frameworks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from horocache import _state
from horocache.errors import InvalidArgumentError
from horocache.handles import OP_ALLGATHER, OP_ALLTOALL, OP_BROADCAST, Name, Submitter, full_name, set_id, synchronize
from horocache.process_set import ProcessSet, global_process_set

T = TypeVar("T")


class Allgather(Submitter[T]):
    """Everybody's rows for everybody. See :class:`horocache.ops.Collectives` for names and errors."""

    def _gather(
        self,
        tensors: Sequence[Any],
        kind: str,
        name: Name,
        process_set: ProcessSet,
        finish: Callable[[Any], Any],
        group: bool = False,
        wait_follows: bool = False,
    ) -> int:
        adapter = self.adapter
        inputs = [adapter.dense(adapter.as_rows(tensor))[0] for tensor in self.checked(tensors, kind)]
        return self.start(
            finish,
            OP_ALLGATHER,
            inputs,
            None,
            full_name(kind, name),
            process_set,
            group=group,
            wait_follows=wait_follows,
        )

    def allgather_async(self, tensor: T, name: Name = None, process_set: ProcessSet = global_process_set) -> int:
        """Start :meth:`allgather`; returns a handle for :func:`synchronize`. The tensor must not change until then."""
        return self._gather([tensor], "allgather", name, process_set, self._first)

    def _first(self, answer: Any) -> T:
        return self.tensors(answer)[0]

    def allgather(self, tensor: T, name: Name = None, process_set: ProcessSet = global_process_set) -> T:
        """Concatenate the ranks' tensors along the first dimension; every rank of ``process_set`` gets the result.

        Args:
            tensor: shape ``(n_r, ...)``; ``n_r`` may differ from rank to rank and may be 0, the other dimensions may
                not. A scalar counts as one row. Not modified.
            name: identifies the tensor across ranks; generated from the program order when omitted.
            process_set: the ranks that take part.

        Returns:
            A new tensor of shape ``(sum of n_r, ...)``, in rank order.

        Raises:
            MismatchError: dtype or another dimension differs between ranks; names both ranks and both values.
        """
        result: T = synchronize(self._gather([tensor], "allgather", name, process_set, self._first, wait_follows=True))
        return result

    def allgather_with_rows(
        self, tensors: Sequence[T], name: Name = None, process_set: ProcessSet = global_process_set, group: bool = True
    ) -> list[tuple[T, list[int]]]:
        """:meth:`allgather` of several tensors that also tells how many rows came from each rank."""
        kind = "grouped_allgather" if group else "allgather"

        def finish(answer: Any) -> list[tuple[T, list[int]]]:
            return [(self.adapter.from_result(result), list(result.rows)) for result in answer]

        result: list[tuple[T, list[int]]] = synchronize(
            self._gather(tensors, kind, name, process_set, finish, group, wait_follows=True)
        )
        return result

    def grouped_allgather_async(
        self, tensors: Sequence[T], name: Name = None, process_set: ProcessSet = global_process_set
    ) -> int:
        """Start :meth:`grouped_allgather`; returns one handle for the whole group."""
        return self._gather(tensors, "grouped_allgather", name, process_set, self.tensors, group=True)

    def allgather_to_average_async(
        self, tensors: Sequence[T], name: Name = None, process_set: ProcessSet = global_process_set
    ) -> int:
        """Start :meth:`grouped_allgather`; :func:`synchronize` also tells what an average over ranks divides by."""

        def finish(answer: Any) -> tuple[list[T], int]:
            return self.tensors(answer), answer[0].divisor_ranks

        return self._gather(tensors, "grouped_allgather", name, process_set, finish, group=True)

    def grouped_allgather(
        self, tensors: Sequence[T], name: Name = None, process_set: ProcessSet = global_process_set
    ) -> list[T]:
        """:meth:`allgather` of several tensors as one; results in the order of ``tensors``."""
        result: list[T] = synchronize(
            self._gather(tensors, "grouped_allgather", name, process_set, self.tensors, group=True, wait_follows=True)
        )
        return result


class Broadcast(Submitter[T]):
    """One rank's values for everybody. See :class:`horocache.ops.Collectives` for names and errors."""

    def _broadcast(
        self,
        tensors: Sequence[Any],
        root_rank: int,
        kind: str,
        name: Name,
        process_set: ProcessSet,
        in_place: bool = False,
        group: bool = False,
        wait_follows: bool = False,
    ) -> int:
        adapter = self.adapter
        sources = self.checked(tensors, kind, in_place)
        set_id(process_set)
        root = _checked_root(root_rank, process_set)
        buffers, private = self.dense(sources, sources)
        outputs = [b if in_place or own else adapter.empty_like(b) for b, own in zip(buffers, private, strict=True)]

        def finish(_: object) -> Any:
            if not in_place:
                return outputs if group else outputs[0]
            for source, output, own in zip(sources, outputs, private, strict=True):
                if own:
                    adapter.copy_into(source, output)
                else:
                    adapter.written(source)
            return list(tensors) if group else tensors[0]

        return self.start(
            finish,
            OP_BROADCAST,
            buffers,
            outputs,
            full_name(kind, name),
            process_set,
            root=root,
            group=group,
            wait_follows=wait_follows,
        )

    def broadcast_async(
        self, tensor: T, root_rank: int, name: Name = None, process_set: ProcessSet = global_process_set
    ) -> int:
        """Start :meth:`broadcast`; returns a handle for :func:`synchronize`. The tensor must not change until then."""
        return self._broadcast([tensor], root_rank, "broadcast", name, process_set)

    def broadcast(
        self, tensor: T, root_rank: int, name: Name = None, process_set: ProcessSet = global_process_set
    ) -> T:
        """Copy one rank's tensor to all ranks of ``process_set``.

        Args:
            tensor: the same shape and dtype on all ranks, any shape; its values matter on the root alone. Not modified.
            root_rank: a global rank in the set.
            name: identifies the tensor across ranks; generated from the program order when omitted.
            process_set: the ranks that take part.

        Returns:
            A new tensor with the root's values.

        Raises:
            InvalidArgumentError: no such root. MismatchError: shape, dtype or root differ between ranks.
        """
        result: T = synchronize(self._broadcast([tensor], root_rank, "broadcast", name, process_set, wait_follows=True))
        return result

    def broadcast_async_(
        self, tensor: T, root_rank: int, name: Name = None, process_set: ProcessSet = global_process_set
    ) -> int:
        """Start :meth:`broadcast_`; returns a handle for :func:`synchronize`, which returns the tensor itself."""
        return self._broadcast([tensor], root_rank, "broadcast", name, process_set, in_place=True)

    def broadcast_(
        self, tensor: T, root_rank: int, name: Name = None, process_set: ProcessSet = global_process_set
    ) -> T:
        """Store the result of :meth:`broadcast` in the tensor itself and return it; ValueError if it is read-only."""
        result: T = synchronize(
            self._broadcast([tensor], root_rank, "broadcast", name, process_set, in_place=True, wait_follows=True)
        )
        return result

    def grouped_broadcast_async_(
        self, tensors: Sequence[T], root_rank: int, name: Name = None, process_set: ProcessSet = global_process_set
    ) -> int:
        """Start :meth:`grouped_broadcast_`; returns one handle for the whole group."""
        return self._broadcast(tensors, root_rank, "grouped_broadcast", name, process_set, in_place=True, group=True)

    def grouped_broadcast_(
        self, tensors: Sequence[T], root_rank: int, name: Name = None, process_set: ProcessSet = global_process_set
    ) -> list[T]:
        """:meth:`broadcast_` of several tensors as one."""
        result: list[T] = synchronize(
            self._broadcast(
                tensors, root_rank, "grouped_broadcast", name, process_set, in_place=True, group=True, wait_follows=True
            )
        )
        return result


class Alltoall(Submitter[T]):
    """Rows from everybody for everybody. See :class:`horocache.ops.Collectives` for names and errors."""

    def alltoall_async(
        self, tensor: T, splits: Any = None, name: Name = None, process_set: ProcessSet = global_process_set
    ) -> int:
        """Start :meth:`alltoall`; :func:`synchronize` always returns the pair ``(output, received_splits)``."""
        return self._alltoall(tensor, splits, name, process_set)

    def _alltoall(self, tensor: T, splits: Any, name: Name, process_set: ProcessSet, wait_follows: bool = False) -> int:
        (source,) = self.checked([tensor], "alltoall")
        set_id(process_set)
        rows = self._rows(source, splits, process_set.size())
        buffer, _ = self.adapter.dense(self.adapter.first_rows(source, sum(rows)))

        def finish(answer: Any) -> tuple[T, T]:
            (result,) = answer
            return self.adapter.from_result(result), self.adapter.integers(result.rows)

        return self.start(
            finish,
            OP_ALLTOALL,
            [buffer],
            None,
            full_name("alltoall", name),
            process_set,
            splits=rows,
            wait_follows=wait_follows,
        )

    def alltoall(
        self, tensor: T, splits: Any = None, name: Name = None, process_set: ProcessSet = global_process_set
    ) -> T | tuple[T, T]:
        """Send a slice of rows to every rank and receive one from each.

        Args:
            tensor: shape ``(n, ...)``; ``n`` may differ from rank to rank, the other dimensions may not. Not modified.
            splits: one integer per rank, a sequence or a tensor: how many rows go to it, in rank order. Without it the
                rows are shared out evenly, and ``n`` must be a multiple of the number of ranks.
            name: identifies the tensor across ranks; generated from the program order when omitted.
            process_set: the ranks that take part.

        Returns:
            A new tensor with the rows received, in rank order; with ``splits``, the pair of it and the number of rows
            from each rank.

        Raises:
            InvalidArgumentError: the splits do not fit the tensor or the number of ranks. MismatchError: dtype or
                another dimension differs.
        """
        output, received = synchronize(self._alltoall(tensor, splits, name, process_set, wait_follows=True))
        return output if splits is None else (output, received)

    def _rows(self, source: T, splits: Any, ranks: int) -> list[int]:
        shape = self.adapter.shape(source)
        if not shape:
            raise InvalidArgumentError("alltoall does not support scalar inputs; there are no rows to send.")
        if splits is None:
            if shape[0] % ranks:
                raise InvalidArgumentError(
                    "splits not provided, but first dimension of tensor is not an even multiple of the number of "
                    f"workers: {shape[0]} rows, {ranks} workers."
                )
            return [shape[0] // ranks] * ranks
        rows = self.adapter.split_list(splits)
        if len(rows) != ranks:
            raise InvalidArgumentError(
                f"Number of entries in splits does not equal number of workers: {len(rows)} entries, {ranks} workers."
            )
        if min(rows) < 0:
            raise InvalidArgumentError(f"splits must not be negative; they are {rows}.")
        if sum(rows) > shape[0]:
            raise InvalidArgumentError(
                f"Sum of splits entries is greater than the first dimension of tensor: {sum(rows)} > {shape[0]}."
            )
        return rows


def _checked_root(root_rank: int, process_set: ProcessSet) -> int:
    """The root's number within the set."""
    ranks = process_set.ranks if process_set.process_set_id else range(_state.size())
    if root_rank not in ranks:
        raise InvalidArgumentError(
            f"broadcast received invalid root rank {root_rank} for provided process set, "
            f"which has the ranks {list(ranks)}."
        )
    return ranks.index(root_rank)
