"""Reduce, gather and scatter, once for all frameworks: collectives in which one rank, the root, gets or gives all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from horocache.base.operation_codes import OP_GATHER, OP_REDUCE, OP_SCATTER
from horocache.collectives.arguments import Name, checked_root, full_name, whole_numbers
from horocache.collectives.completion import synchronize
from horocache.collectives.reduce_op import Average, check_op
from horocache.collectives.submitter import Submitter
from horocache.core.process_set import ProcessSet, global_process_set

T = TypeVar("T")


class Reduce(Submitter[T]):
    """Only the root gets the element-wise reduction of all ranks' tensors.

    A base of :class:`horocache.collectives.api.Collectives`.
    """

    def _reduce_to(
        self,
        tensor: Any,
        root_rank: int,
        name: Name,
        op: int,
        scales: tuple[float, float],
        process_set: ProcessSet,
        backend: str | None,
        wait_follows: bool = False,
    ) -> int:
        sources = self.checked([tensor], "reduce")
        root = checked_root("reduce", root_rank, process_set)
        buffers, private = self.dense(sources, sources)
        output: T | None = None
        if process_set.rank() == root:
            output = buffers[0] if private[0] else self.adapter.empty_like(buffers[0])
        return self.start(
            lambda _: output,
            OP_REDUCE,
            buffers,
            [output],
            full_name("reduce", name),
            process_set,
            check_op(op),
            scales,
            root,
            wait_follows=wait_follows,
            backend=backend,
        )

    def reduce_async(
        self,
        tensor: T,
        root_rank: int,
        name: Name = None,
        op: int = Average,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
        *,
        backend: str | None = None,
    ) -> int:
        """Start :meth:`reduce`; returns a handle for :func:`synchronize`. The tensor must not change until then."""
        scales = (prescale_factor, postscale_factor)
        return self._reduce_to(tensor, root_rank, name, op, scales, process_set, backend)

    def reduce(
        self,
        tensor: T,
        root_rank: int,
        name: Name = None,
        op: int = Average,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
        *,
        backend: str | None = None,
    ) -> T | None:
        """Reduce the ranks' tensors element by element; one rank gets the result.

        Args:
            tensor: any shape, the same shape and dtype on all ranks. Not modified.
            root_rank: a global rank in the set.
            name: identifies the tensor across ranks; generated from the program order when omitted.
            op: Average (the default), Sum, Min, Max or Product; for integers and bool also And, Or and Xor.
            prescale_factor: multiplies every rank's tensor before the reduction.
            postscale_factor: multiplies the result.
            process_set: the ranks that take part.
            backend: name of the backend, such as ``"shm"``; the same on all ranks. None: the selector chooses.

        Returns:
            On the root a new tensor of the same shape and dtype, with the same bits as from :meth:`allreduce`; None on
            other ranks.

        Raises:
            InvalidArgumentError: ``root_rank`` is not in the set. MismatchError: shape, dtype, op, scales or root
                differ between ranks.
        """
        scales = (prescale_factor, postscale_factor)
        result: T | None = synchronize(
            self._reduce_to(tensor, root_rank, name, op, scales, process_set, backend, wait_follows=True)
        )
        return result


class Gather(Submitter[T]):
    """The root gets the rows of all ranks. A base of :class:`horocache.collectives.api.Collectives`."""

    def _gather_to(
        self,
        tensor: Any,
        root_rank: int,
        lists: tuple[Any, Any],
        kind: str,
        name: Name,
        process_set: ProcessSet,
        backend: str | None,
        wait_follows: bool = False,
    ) -> int:
        adapter = self.adapter
        (source,) = self.checked([tensor], kind)
        root = checked_root(kind, root_rank, process_set)
        is_root = process_set.rank() == root
        receive_rows, receive_starts = (
            whole_numbers(kind, what, values) if is_root else None
            for what, values in zip(("recvcounts", "displs"), lists, strict=True)
        )

        def finish(answer: Any) -> T | None:
            return adapter.from_result(answer[0]) if is_root else None

        return self.start(
            finish,
            OP_GATHER,
            [adapter.dense(adapter.as_rows(source))[0]],
            None,
            full_name(kind, name),
            process_set,
            root=root,
            wait_follows=wait_follows,
            backend=backend,
            receive_rows=receive_rows,
            receive_starts=receive_starts,
        )

    def gather_async(
        self,
        tensor: T,
        root_rank: int,
        name: Name = None,
        process_set: ProcessSet = global_process_set,
        *,
        backend: str | None = None,
    ) -> int:
        """Start :meth:`gather`; returns a handle for :func:`synchronize`. The tensor must not change until then."""
        return self._gather_to(tensor, root_rank, (None, None), "gather", name, process_set, backend)

    def gather(
        self,
        tensor: T,
        root_rank: int,
        name: Name = None,
        process_set: ProcessSet = global_process_set,
        *,
        backend: str | None = None,
    ) -> T | None:
        """Concatenate the ranks' tensors along the first dimension; one rank gets the result.

        Args:
            tensor: shape ``(n_r, ...)``; ``n_r`` may differ from rank to rank and may be 0, the other dimensions may
                not. A scalar counts as one row. Not modified.
            root_rank: a global rank in the set.
            name: identifies the tensor across ranks; generated from the program order when omitted.
            process_set: the ranks that take part.
            backend: name of the backend, such as ``"shm"``; the same on all ranks. None: the selector chooses.

        Returns:
            On the root a new tensor of shape ``(sum of n_r, ...)``, in rank order; None on other ranks.

        Raises:
            InvalidArgumentError: ``root_rank`` is not in the set. MismatchError: dtype, another dimension or root
                differ between ranks.
        """
        result: T | None = synchronize(
            self._gather_to(tensor, root_rank, (None, None), "gather", name, process_set, backend, wait_follows=True)
        )
        return result

    def gatherv_async(
        self,
        tensor: T,
        root_rank: int,
        recvcounts: Any = None,
        displs: Any = None,
        name: Name = None,
        process_set: ProcessSet = global_process_set,
        *,
        backend: str | None = None,
    ) -> int:
        """Start :meth:`gatherv`; returns a handle for :func:`synchronize`. The tensor must not change until then."""
        return self._gather_to(tensor, root_rank, (recvcounts, displs), "gatherv", name, process_set, backend)

    def gatherv(
        self,
        tensor: T,
        root_rank: int,
        recvcounts: Any = None,
        displs: Any = None,
        name: Name = None,
        process_set: ProcessSet = global_process_set,
        *,
        backend: str | None = None,
    ) -> T | None:
        """:meth:`gather` with the number of rows expected from each rank, and their position in the result.

        Args:
            tensor: shape ``(n_r, ...)``; ``n_r`` may differ from rank to rank and may be 0, the other dimensions may
                not. A scalar counts as one row. Not modified.
            root_rank: a global rank in the set.
            recvcounts: on the root, one integer per rank, a sequence or a tensor: number of rows expected from that
                rank; it must match what the rank sends. None accepts any number.
            displs: on the root, one integer per rank, a sequence or a tensor: the row of the result at which that
                rank's part begins. Parts must not overlap; rows that no part covers are zero. None: one part follows
                the other.
            name: identifies the tensor across ranks; generated from the program order when omitted.
            process_set: the ranks that take part.
            backend: name of the backend, such as ``"shm"``; the same on all ranks. None: the selector chooses.

        Returns:
            On the root a new tensor of ``max(displs + recvcounts)`` rows; None on other ranks.

        Raises:
            MismatchError: dtype, another dimension or root differ between ranks; the root expects another number of
                rows than it gets, which fails on all ranks; or the root's lists are wrong. InvalidArgumentError: on the
                root, the lists do not fit the number of ranks; on all ranks, parts overlap or ``root_rank`` is not in
                the set.
        """
        lists = (recvcounts, displs)
        result: T | None = synchronize(
            self._gather_to(tensor, root_rank, lists, "gatherv", name, process_set, backend, wait_follows=True)
        )
        return result


class Scatter(Submitter[T]):
    """Every rank gets some of the root's rows. A base of :class:`horocache.collectives.api.Collectives`."""

    def _scatter(
        self,
        tensor: Any,
        root_rank: int,
        lists: tuple[Any, Any],
        kind: str,
        name: Name,
        process_set: ProcessSet,
        backend: str | None,
        wait_follows: bool = False,
    ) -> int:
        (source,) = self.checked([tensor], kind)
        root = checked_root(kind, root_rank, process_set)
        send_rows: Sequence[int] | None = None
        send_starts: Sequence[int] | None = None
        if process_set.rank() == root:
            send_rows = whole_numbers(kind, "sendcounts", lists[0])
            send_starts = whole_numbers(kind, "displs", lists[1])
            buffer = self.rows_to_send(source, send_rows, send_starts)
        else:  # only the tensor's dtype and the shape of its rows are used
            buffer = self.rows_to_send(source, [0], None)
        return self.start(
            lambda answer: self.adapter.from_result(answer[0]),
            OP_SCATTER,
            [buffer],
            None,
            full_name(kind, name),
            process_set,
            root=root,
            splits=send_rows,
            wait_follows=wait_follows,
            backend=backend,
            send_starts=send_starts,
        )

    def scatter_async(
        self,
        tensor: T,
        root_rank: int,
        name: Name = None,
        process_set: ProcessSet = global_process_set,
        *,
        backend: str | None = None,
    ) -> int:
        """Start :meth:`scatter`; returns a handle for :func:`synchronize`. The tensor must not change until then."""
        return self._scatter(tensor, root_rank, (None, None), "scatter", name, process_set, backend)

    def scatter(
        self,
        tensor: T,
        root_rank: int,
        name: Name = None,
        process_set: ProcessSet = global_process_set,
        *,
        backend: str | None = None,
    ) -> T:
        """Divide one rank's rows evenly among the ranks, in rank order.

        Args:
            tensor: on the root, shape ``(n, ...)``, where ``n`` is a multiple of the number of ranks. On other ranks a
                tensor of the same dtype and shape, except that it may have any number of rows, including 0: its values
                are not read. Not modified.
            root_rank: a global rank in the set.
            name: identifies the tensor across ranks; generated from the program order when omitted.
            process_set: the ranks that take part.
            backend: name of the backend, such as ``"shm"``; the same on all ranks. None: the selector chooses.

        Returns:
            A new tensor with this rank's rows, ``n`` divided by the number of ranks.

        Raises:
            InvalidArgumentError: ``root_rank`` is not in the set; on the root, ``n`` is not a multiple of the number of
                ranks. MismatchError: dtype, another dimension or root differ between ranks; on other ranks, the root's
                arguments are wrong.
        """
        result: T = synchronize(
            self._scatter(tensor, root_rank, (None, None), "scatter", name, process_set, backend, wait_follows=True)
        )
        return result

    def scatterv_async(
        self,
        tensor: T,
        root_rank: int,
        sendcounts: Any = None,
        displs: Any = None,
        name: Name = None,
        process_set: ProcessSet = global_process_set,
        *,
        backend: str | None = None,
    ) -> int:
        """Start :meth:`scatterv`; returns a handle for :func:`synchronize`. The tensor must not change until then."""
        return self._scatter(tensor, root_rank, (sendcounts, displs), "scatterv", name, process_set, backend)

    def scatterv(
        self,
        tensor: T,
        root_rank: int,
        sendcounts: Any = None,
        displs: Any = None,
        name: Name = None,
        process_set: ProcessSet = global_process_set,
        *,
        backend: str | None = None,
    ) -> T:
        """:meth:`scatter` with the number of rows that each rank gets, and their position in the root's tensor.

        Args:
            tensor: on the root, shape ``(n, ...)``. On other ranks a tensor of the same dtype and shape, except that it
                may have any number of rows, including 0: its values are not read. Not modified.
            root_rank: a global rank in the set.
            sendcounts: on the root, one integer per rank, a sequence or a tensor: number of rows that the rank gets.
                None: the same number for each rank.
            displs: on the root, one integer per rank, a sequence or a tensor: the row of the tensor at which the rank's
                part begins. Parts may overlap and leave gaps. None: one part follows the other, from row 0.
            name: identifies the tensor across ranks; generated from the program order when omitted.
            process_set: the ranks that take part.
            backend: name of the backend, such as ``"shm"``; the same on all ranks. None: the selector chooses.

        Returns:
            A new tensor with this rank's rows.

        Raises:
            InvalidArgumentError: ``root_rank`` is not in the set; on the root, the lists do not fit its tensor or the
                number of ranks. MismatchError: dtype, another dimension or root differ between ranks; on other ranks,
                the root's arguments are wrong.
        """
        lists = (sendcounts, displs)
        result: T = synchronize(
            self._scatter(tensor, root_rank, lists, "scatterv", name, process_set, backend, wait_follows=True)
        )
        return result
