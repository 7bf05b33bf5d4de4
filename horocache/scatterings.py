"""Reducescatter, once for all frameworks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from horocache.errors import InvalidArgumentError
from horocache.handles import OP_REDUCESCATTER, Average, Name, Submitter, check_op, full_name, synchronize
from horocache.layers import CompressorClass, layer_list
from horocache.process_set import ProcessSet, global_process_set

T = TypeVar("T")


class Reducescatter(Submitter[T]):
    """Reduce, and give each rank its part of the rows. See :class:`horocache.ops.Collectives` for names and errors."""

    def _reducescatter(
        self,
        tensors: Sequence[Any],
        kind: str,
        name: Name,
        op: int,
        compression: CompressorClass | None,
        scales: tuple[float, float],
        process_set: ProcessSet,
        group: bool = False,
        wait_follows: bool = False,
    ) -> int:
        adapter = self.adapter
        sources = self.checked(tensors, kind)
        for source in sources:
            if not adapter.shape(source):
                raise InvalidArgumentError(
                    "Reducescatter does not support scalar inputs; there are no rows to share out."
                )
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
            layers=layers.signature,
            group=group,
            wait_follows=wait_follows,
        )

    def reducescatter_async(
        self,
        tensor: T,
        name: Name = None,
        op: int = Average,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> int:
        """Start :meth:`reducescatter`; returns a handle for :func:`synchronize`."""
        scales = (prescale_factor, postscale_factor)
        return self._reducescatter([tensor], "reducescatter", name, op, None, scales, process_set)

    def reducescatter(
        self,
        tensor: T,
        name: Name = None,
        compression: CompressorClass | None = None,
        op: int = Average,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> T:
        """Reduce the ranks' tensors and share the rows of the result out, in rank order.

        Args:
            tensor: shape ``(n, ...)``, the same on all ranks; not a scalar. Not modified. If ``n`` is no multiple of
                the number of ranks, the first ranks get one row more.
            name: identifies the tensor across ranks; generated from the program order when omitted.
            compression: a class of ``Compression``, which all ranks must choose alike; None is ``Compression.none``.
            op: Average, Sum, Min, Max or Product.
            process_set: the ranks that take part.
            prescale_factor: multiplies every rank's tensor before the reduction.
            postscale_factor: multiplies the result.

        Returns:
            A new tensor with this rank's rows.
        """
        scales = (prescale_factor, postscale_factor)
        result: T = synchronize(
            self._reducescatter(
                [tensor], "reducescatter", name, op, compression, scales, process_set, wait_follows=True
            )
        )
        return result

    def grouped_reducescatter_async(
        self,
        tensors: Sequence[T],
        name: Name = None,
        op: int = Average,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> int:
        """Start :meth:`grouped_reducescatter`; returns one handle for the whole group."""
        scales = (prescale_factor, postscale_factor)
        return self._reducescatter(tensors, "grouped_reducescatter", name, op, None, scales, process_set, group=True)

    def grouped_reducescatter(
        self,
        tensors: Sequence[T],
        name: Name = None,
        compression: CompressorClass | None = None,
        op: int = Average,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> list[T]:
        """:meth:`reducescatter` of several tensors as one; results in the order of ``tensors``."""
        scales = (prescale_factor, postscale_factor)
        call = (tensors, "grouped_reducescatter", name, op, compression, scales, process_set)
        result: list[T] = synchronize(self._reducescatter(*call, group=True, wait_follows=True))
        return result
