"""Reduce, gather and scatter, once for all frameworks: collectives with one rank, the root, that gets or gives all."""

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
    """Reduces element by element over the ranks, with the result on the root alone.

    See :class:`horocache.collectives.api.Collectives` for names and errors.
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
            tensor: the same shape and dtype on all ranks, any shape. Not modified.
            root_rank: a global rank in the set.
            name: identifies the tensor across ranks; generated from the program order when omitted.
            op: as for :meth:`allreduce`.
            prescale_factor: multiplies every rank's tensor before the reduction.
            postscale_factor: multiplies the result.
            process_set: the ranks that take part.
            backend: as for :meth:`allreduce`.

        Returns:
            On the root a new tensor of the same shape and dtype, with the bits that :meth:`allreduce` gives; None
            elsewhere.

        Raises:
            InvalidArgumentError: no such root. MismatchError: shape, dtype, op, scales or root differ between ranks.
        """
        scales = (prescale_factor, postscale_factor)
        result: T | None = synchronize(
            self._reduce_to(tensor, root_rank, name, op, scales, process_set, backend, wait_follows=True)
        )
        return result


class Gather(Submitter[T]):
    """Everybody's rows for the root. See :class:`horocache.collectives.api.Collectives` for names and errors."""

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
            backend: as for :meth:`allreduce`.

        Returns:
            On the root a new tensor of shape ``(sum of n_r, ...)``, in rank order; None elsewhere.

        Raises:
            InvalidArgumentError: no such root. MismatchError: dtype, another dimension or root differ between ranks.
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
        """:meth:`gather` with places: the root says how many rows it expects, and where they go in its result.

        Args:
            tensor: as for :meth:`gather`.
            root_rank: a global rank in the set.
            recvcounts: on the root, one integer per rank, a sequence or a tensor: how many rows are expected from it;
                what comes must be as many. None takes what comes.
            displs: on the root, one integer per rank: the row of the result at which its part begins; parts must not
                overlap, gaps are zeros. None: one part after the other.
            name: identifies the tensor across ranks; generated from the program order when omitted.
            process_set: the ranks that take part.
            backend: as for :meth:`allreduce`.

        Returns:
            On the root a new tensor of ``max(displs + recvcounts)`` rows; None elsewhere.

        Raises:
            MismatchError: as for :meth:`gather`; the root expects another number of rows than it gets, which fails on
                all ranks; or the root's lists are wrong. InvalidArgumentError: on the root, lists that do not fit the
                number of ranks; on all ranks, parts that overlap.
        """
        lists = (recvcounts, displs)
        result: T | None = synchronize(
            self._gather_to(tensor, root_rank, lists, "gatherv", name, process_set, backend, wait_follows=True)
        )
        return result


class Scatter(Submitter[T]):
    """The root's rows for everybody. See :class:`horocache.collectives.api.Collectives` for names and errors."""

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
        else:  # only its dtype and the shape of its rows matter
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
        """Share one rank's rows out evenly, in rank order.

        Args:
            tensor: on the root, shape ``(n, ...)`` with ``n`` a multiple of the number of ranks; on other ranks any
                tensor of the same dtype and shape but for the first dimension, which does not matter: none of its
                values are read, and it may have no rows. Not modified.
            root_rank: a global rank in the set.
            name: identifies the tensor across ranks; generated from the program order when omitted.
            process_set: the ranks that take part.
            backend: as for :meth:`allreduce`.

        Returns:
            A new tensor with this rank's rows, ``n`` divided by the number of ranks.

        Raises:
            InvalidArgumentError: no such root; on the root, ``n`` is no multiple. MismatchError: dtype, another
                dimension or root differ between ranks; on other ranks, the root's arguments are wrong.
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
        """:meth:`scatter` with places: the root says how many rows each rank gets, and from where in its tensor.

        Args:
            tensor: as for :meth:`scatter`, with any number of rows.
            root_rank: a global rank in the set.
            sendcounts: on the root, one integer per rank, a sequence or a tensor: how many rows it gets. None: as many
                for each.
            displs: on the root, one integer per rank: the row of the tensor at which its part begins; parts may overlap
                and leave gaps. None: one part after the other, from row 0.
            name: identifies the tensor across ranks; generated from the program order when omitted.
            process_set: the ranks that take part.
            backend: as for :meth:`allreduce`.

        Returns:
            A new tensor with this rank's rows.

        Raises:
            InvalidArgumentError: no such root; on the root, lists that do not fit its tensor or the number of ranks.
                MismatchError: as for :meth:`scatter`.
        """
        lists = (sendcounts, displs)
        result: T = synchronize(
            self._scatter(tensor, root_rank, lists, "scatterv", name, process_set, backend, wait_follows=True)
        )
        return result
