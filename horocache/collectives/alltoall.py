"""Alltoall, once for all frameworks: every rank sends rows to every rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from horocache.base.operation_codes import OP_ALLTOALL
from horocache.collectives.arguments import Name, full_name, set_id, whole_numbers
from horocache.collectives.completion import synchronize
from horocache.collectives.submitter import Submitter
from horocache.core.process_set import ProcessSet, global_process_set
from horocache.errors import InvalidArgumentError

T = TypeVar("T")


class Alltoall(Submitter[T]):
    """Every rank sends rows to every rank. A base of :class:`horocache.collectives.api.Collectives`."""

    def _pair(self, answer: Any) -> tuple[T, T]:
        (pair,) = self._pairs(answer)
        return pair

    def _pairs(self, answer: Any) -> list[tuple[T, T]]:
        return [(self.adapter.from_result(result), self.adapter.integers(result.rows)) for result in answer]

    def alltoall_async(
        self,
        tensor: T,
        splits: Any = None,
        name: Name = None,
        process_set: ProcessSet = global_process_set,
        *,
        backend: str | None = None,
    ) -> int:
        """Start :meth:`alltoall`; :func:`synchronize` always returns the pair ``(output, received_splits)``."""
        return self._alltoall([tensor], splits, "alltoall", name, process_set, False, backend)

    def _alltoall(
        self,
        tensors: Sequence[Any],
        splits: Any,
        kind: str,
        name: Name,
        process_set: ProcessSet,
        wait_follows: bool,
        backend: str | None,
    ) -> int:
        group = kind.startswith("grouped")
        sources = self.checked(tensors, kind)
        set_id(process_set)
        rows = [self._rows(source, splits, process_set.size()) for source in sources]
        buffers = [
            self.adapter.dense(self.adapter.first_rows(source, sum(own)))[0]
            for source, own in zip(sources, rows, strict=True)
        ]
        return self.start(
            self._pairs if group else self._pair,
            OP_ALLTOALL,
            buffers,
            None,
            full_name(kind, name),
            process_set,
            # The tensors of a group share `splits`. Without it, the rows of each tensor are divided evenly.
            splits=None if group and splits is None else rows[0],
            group=group,
            wait_follows=wait_follows,
            backend=backend,
        )

    def alltoall(
        self,
        tensor: T,
        splits: Any = None,
        name: Name = None,
        process_set: ProcessSet = global_process_set,
        *,
        backend: str | None = None,
    ) -> T | tuple[T, T]:
        """Send a slice of rows to every rank and receive one from each.

        Args:
            tensor: shape ``(n, ...)``; ``n`` may differ from rank to rank, the other dimensions may not. Not modified.
            splits: one integer per rank, a sequence or a tensor: number of rows that go to that rank, in rank order.
                None: the rows are divided evenly, and ``n`` must be a multiple of the number of ranks.
            name: identifies the tensor across ranks; generated from the program order when omitted.
            process_set: the ranks that take part.
            backend: name of the backend, such as ``"shm"``; the same on all ranks. None: the selector chooses.

        Returns:
            A new tensor with the received rows, in rank order. If ``splits`` is given: a pair of this tensor and the
            number of rows from each rank.

        Raises:
            InvalidArgumentError: the splits do not fit the tensor or the number of ranks. MismatchError: dtype or
                another dimension differs between ranks.
        """
        call = ([tensor], splits, "alltoall", name, process_set)
        output, received = synchronize(self._alltoall(*call, True, backend))
        return output if splits is None else (output, received)

    def grouped_alltoall_async(
        self,
        tensors: Sequence[T],
        splits: Any = None,
        name: Name = None,
        process_set: ProcessSet = global_process_set,
        *,
        backend: str | None = None,
    ) -> int:
        """Start :meth:`grouped_alltoall`; :func:`synchronize` returns pairs ``(output, received_splits)``."""
        return self._alltoall(tensors, splits, "grouped_alltoall", name, process_set, False, backend)

    def grouped_alltoall(
        self,
        tensors: Sequence[T],
        splits: Any = None,
        name: Name = None,
        process_set: ProcessSet = global_process_set,
        *,
        backend: str | None = None,
    ) -> list[T] | list[tuple[T, T]]:
        """:meth:`alltoall` of several tensors as one group.

        Args:
            tensors: the tensors to send. Without ``splits``, each may have its own number of rows.
            splits: for all tensors, one integer per rank, a sequence or a tensor: number of rows that go to that rank,
                in rank order. None: the rows of each tensor are divided evenly.
            name: identifies the group across ranks; generated from the program order when omitted.
            process_set: the ranks that take part.
            backend: name of the backend, such as ``"shm"``; the same on all ranks. None: the selector chooses.

        Returns:
            For each tensor, in the order of ``tensors``, a new tensor with the received rows. If ``splits`` is given:
            for each tensor a pair of the new tensor and the number of rows from each rank.
        """
        call = (tensors, splits, "grouped_alltoall", name, process_set)
        pairs: list[tuple[T, T]] = synchronize(self._alltoall(*call, True, backend))
        return [output for output, _ in pairs] if splits is None else pairs

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
        rows = whole_numbers("alltoall", "splits", splits) or []
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

    def _alltoallv(
        self,
        tensor: T,
        lists: tuple[Any, Any, Any, Any],
        name: Name,
        process_set: ProcessSet,
        wait_follows: bool,
        backend: str | None,
    ) -> int:
        (source,) = self.checked([tensor], "alltoallv")
        names = ("sendcounts", "recvcounts", "sdispls", "rdispls")
        numbers = [whole_numbers("alltoallv", what, values) for what, values in zip(names, lists, strict=True)]
        send_rows, receive_rows, send_starts, receive_starts = numbers
        if send_rows is None:
            raise InvalidArgumentError("alltoallv needs sendcounts: how many rows go to each rank.")
        return self.start(
            self._pair,
            OP_ALLTOALL,
            [self.rows_to_send(source, send_rows, send_starts)],
            None,
            full_name("alltoallv", name),
            process_set,
            splits=send_rows,
            wait_follows=wait_follows,
            backend=backend,
            send_starts=send_starts,
            receive_rows=receive_rows,
            receive_starts=receive_starts,
        )

    def alltoallv_async(
        self,
        tensor: T,
        sendcounts: Any,
        recvcounts: Any = None,
        sdispls: Any = None,
        rdispls: Any = None,
        name: Name = None,
        process_set: ProcessSet = global_process_set,
        *,
        backend: str | None = None,
    ) -> int:
        """Start :meth:`alltoallv`; returns a handle for :func:`synchronize`. The tensor must not change until then."""
        lists = (sendcounts, recvcounts, sdispls, rdispls)
        return self._alltoallv(tensor, lists, name, process_set, False, backend)

    def alltoallv(
        self,
        tensor: T,
        sendcounts: Any,
        recvcounts: Any = None,
        sdispls: Any = None,
        rdispls: Any = None,
        name: Name = None,
        process_set: ProcessSet = global_process_set,
        *,
        backend: str | None = None,
    ) -> tuple[T, T]:
        """:meth:`alltoall` with the position of each rank's rows in the tensor and in the result.

        Every list is a sequence or a tensor with one integer for each rank. The lists may differ from rank to rank.

        Args:
            tensor: shape ``(n, ...)``; ``n`` may differ from rank to rank, the other dimensions may not. A scalar
                counts as one row. Not modified.
            sendcounts: number of rows that go to each rank.
            recvcounts: number of rows expected from each rank; it must match what the rank sends. None accepts any
                number.
            sdispls: the row of the tensor at which the part for each rank begins. Parts may overlap and leave gaps.
                None: one part follows the other, from row 0.
            rdispls: the row of the result at which the part from each rank begins. Parts must not overlap; rows that no
                part covers are zero. None: one part follows the other.
            name: identifies the tensor across ranks; generated from the program order when omitted.
            process_set: the ranks that take part.
            backend: name of the backend, such as ``"shm"``; the same on all ranks. None: the selector chooses.

        Returns:
            A pair: a new tensor of ``max(rdispls + recvcounts)`` rows, and the number of rows from each rank.

        Raises:
            MismatchError: dtype or another dimension differs between ranks; or a rank expects another number of rows
                than it gets. InvalidArgumentError: a rank's lists do not fit its tensor or the number of ranks, or
                received parts overlap.
        """
        lists = (sendcounts, recvcounts, sdispls, rdispls)
        result: tuple[T, T] = synchronize(self._alltoallv(tensor, lists, name, process_set, True, backend))
        return result
