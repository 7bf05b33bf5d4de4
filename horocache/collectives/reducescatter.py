"""Reducescatter, once for all frameworks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from horocache.base.operation_codes import OP_REDUCESCATTER
from horocache.collectives.arguments import Name, full_name, whole_numbers
from horocache.collectives.completion import synchronize
from horocache.collectives.reduce_op import Average, check_op
from horocache.collectives.submitter import Submitter
from horocache.collectives.transforms import AnyCompressor, layer_list
from horocache.core.process_set import ProcessSet, global_process_set

T = TypeVar("T")


class Reducescatter(Submitter[T]):
    """Every rank gets its part of the reduced rows. A base of :class:`horocache.collectives.api.Collectives`."""

    def _reducescatter(
        self,
        tensors: Sequence[Any],
        kind: str,
        name: Name,
        op: int,
        compression: AnyCompressor | None,
        scales: tuple[float, float],
        process_set: ProcessSet,
        group: bool = False,
        wait_follows: bool = False,
        backend: str | None = None,
        splits: Sequence[int] | None = None,
    ) -> int:
        sources = self.checked(tensors, kind)
        layers = layer_list(compression, group)
        encoded, contexts = layers.encode(sources)
        buffers, _ = self.dense(sources, encoded)

        def finish(answer: Any) -> Any:
            results = layers.decode(self.tensors(answer), contexts)
            return results if group else results[0]

        return self.start(
            finish,
            OP_REDUCESCATTER,
            buffers,
            None,
            full_name(kind, name),
            process_set,
            check_op(op),
            scales,
            splits=splits,
            layers=layers.signature,
            group=group,
            wait_follows=wait_follows,
            backend=backend,
        )

    def reducescatter_async(
        self,
        tensor: T,
        name: Name = None,
        op: int = Average,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        *,
        backend: str | None = None,
    ) -> int:
        """Start :meth:`reducescatter`; returns a handle for :func:`synchronize`."""
        scales = (prescale_factor, postscale_factor)
        return self._reducescatter([tensor], "reducescatter", name, op, None, scales, process_set, backend=backend)

    def reducescatter(
        self,
        tensor: T,
        name: Name = None,
        compression: AnyCompressor | None = None,
        op: int = Average,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        *,
        backend: str | None = None,
    ) -> T:
        """Reduce the ranks' tensors and divide the rows of the result among the ranks, in rank order.

        Args:
            tensor: shape ``(n, ...)``, the same on all ranks; not a scalar. Not modified. If ``n`` is not a multiple of
                the number of ranks, the first ranks get one row more.
            name: identifies the tensor across ranks; generated from the program order when omitted.
            compression: a class of ``Compression``, the same on all ranks; None is ``Compression.none``.
            op: Average (the default), Sum, Min, Max or Product; for integers and bool also And, Or and Xor.
            process_set: the ranks that take part.
            prescale_factor: multiplies every rank's tensor before the reduction.
            postscale_factor: multiplies the result.
            backend: name of the backend, such as ``"shm"``; the same on all ranks. None: the selector chooses.

        Returns:
            A new tensor with this rank's rows.
        """
        scales = (prescale_factor, postscale_factor)
        call = ([tensor], "reducescatter", name, op, compression, scales, process_set)
        result: T = synchronize(self._reducescatter(*call, wait_follows=True, backend=backend))
        return result

    def reducescatterv_async(
        self,
        tensor: T,
        recvcounts: Any,
        name: Name = None,
        op: int = Average,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
        *,
        backend: str | None = None,
    ) -> int:
        """Start :meth:`reducescatterv`; returns a handle for :func:`synchronize`."""
        rows = whole_numbers("reducescatterv", "recvcounts", recvcounts)
        scales = (prescale_factor, postscale_factor)
        call = ([tensor], "reducescatterv", name, op, None, scales, process_set)
        return self._reducescatter(*call, backend=backend, splits=rows)

    def reducescatterv(
        self,
        tensor: T,
        recvcounts: Any,
        name: Name = None,
        op: int = Average,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
        *,
        backend: str | None = None,
    ) -> T:
        """:meth:`reducescatter` with a number of rows for each rank.

        Args:
            tensor: shape ``(n, ...)``, the same on all ranks; not a scalar. Not modified.
            recvcounts: one integer per rank, a sequence or a tensor, the same on all ranks: number of rows of the
                result that the rank gets. Their sum is ``n``.
            name: identifies the tensor across ranks; generated from the program order when omitted.
            op: Average (the default), Sum, Min, Max or Product; for integers and bool also And, Or and Xor.
            prescale_factor: multiplies every rank's tensor before the reduction.
            postscale_factor: multiplies the result.
            process_set: the ranks that take part.
            backend: name of the backend, such as ``"shm"``; the same on all ranks. None: the selector chooses.

        Returns:
            A new tensor of shape ``(recvcounts[own rank], ...)``.

        Raises:
            MismatchError: ``recvcounts`` differs between ranks. InvalidArgumentError: on a rank, ``recvcounts`` does
                not fit the tensor or the number of ranks.
        """
        rows = whole_numbers("reducescatterv", "recvcounts", recvcounts)
        scales = (prescale_factor, postscale_factor)
        call = ([tensor], "reducescatterv", name, op, None, scales, process_set)
        result: T = synchronize(self._reducescatter(*call, wait_follows=True, backend=backend, splits=rows))
        return result

    def grouped_reducescatter_async(
        self,
        tensors: Sequence[T],
        name: Name = None,
        op: int = Average,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        *,
        backend: str | None = None,
    ) -> int:
        """Start :meth:`grouped_reducescatter`; returns one handle for the whole group."""
        scales = (prescale_factor, postscale_factor)
        call = (tensors, "grouped_reducescatter", name, op, None, scales, process_set)
        return self._reducescatter(*call, group=True, backend=backend)

    def grouped_reducescatter(
        self,
        tensors: Sequence[T],
        name: Name = None,
        compression: AnyCompressor | None = None,
        op: int = Average,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        *,
        backend: str | None = None,
    ) -> list[T]:
        """:meth:`reducescatter` of several tensors as one group; returns results in the order of ``tensors``."""
        scales = (prescale_factor, postscale_factor)
        call = (tensors, "grouped_reducescatter", name, op, compression, scales, process_set)
        result: list[T] = synchronize(self._reducescatter(*call, group=True, wait_follows=True, backend=backend))
        return result
