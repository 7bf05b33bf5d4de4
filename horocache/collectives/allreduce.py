"""Allreduce, once for all frameworks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from horocache.base.operation_codes import OP_ALLREDUCE
from horocache.collectives.adasum import AdaptiveSum
from horocache.collectives.arguments import Name, full_name
from horocache.collectives.completion import synchronize
from horocache.collectives.reduce_op import Adasum, resolve_op
from horocache.collectives.submitter import Finisher
from horocache.collectives.transforms import AnyCompressor, LayerList, layer_list
from horocache.core.process_set import ProcessSet, global_process_set

T = TypeVar("T")


class Allreduce(AdaptiveSum[T]):
    """Every rank gets the element-wise reduction of all ranks' tensors.

    A base of :class:`horocache.collectives.api.Collectives`.
    """

    def _reduce(
        self,
        tensors: Sequence[Any],
        name: Name,
        op: int,
        scales: tuple[float, float],
        process_set: ProcessSet,
        compression: AnyCompressor | None = None,
        in_place: bool = False,
        group: bool = False,
        wait_follows: bool = False,
        backend: str | None = None,
        priority: int = 0,
    ) -> int:
        """Submit an allreduce; the finisher returns a group's list of results, or the result of a single tensor."""
        kind = "grouped_allreduce" if group else "allreduce"
        layers = layer_list(compression, group)
        if op == Adasum:
            call = (tensors, full_name(kind, name), scales, process_set, layers, in_place, wait_follows)
            return self._adaptive_sum(*call, backend, priority)
        if layers.plain and self.as_they_are(tensors, in_place):
            inputs: Sequence[T] = tensors
            outputs = tensors if in_place else [self.adapter.empty_like(tensor) for tensor in tensors]
            finish = self._finish_plain(outputs, in_place, group)
        else:
            inputs, outputs, finish = self._stage(tensors, kind, layers, in_place, group)
        return self.start(
            finish,
            OP_ALLREDUCE,
            inputs,
            outputs,
            full_name(kind, name),
            process_set,
            op,
            scales,
            layers=layers.signature,
            group=group,
            wait_follows=wait_follows,
            backend=backend,
            priority=priority,
        )

    def start_gradients(
        self,
        tensors: Sequence[T],
        name: Name,
        op: int,
        scales: tuple[float, float],
        process_set: ProcessSet,
        compression: AnyCompressor,
        *,
        group: bool,
    ) -> int:
        """Start the allreduce of gradients; :func:`synchronize` returns a group's list of results, or one result."""
        return self._reduce(tensors, name, op, scales, process_set, compression, group=group)

    def _finish_plain(self, outputs: Sequence[T], in_place: bool, group: bool) -> Finisher:
        written = self.adapter.written

        def finish(_: object) -> Any:
            if in_place:
                for output in outputs:
                    written(output)
            return list(outputs) if group else outputs[0]

        return finish

    def _stage(
        self, tensors: Sequence[Any], kind: str, layers: LayerList, in_place: bool, group: bool
    ) -> tuple[list[T], list[T], Finisher]:
        """Prepare tensors that must be copied, cast or refused; returns the inputs, the outputs and the finisher."""
        adapter = self.adapter
        sources = self.checked(tensors, kind, in_place)
        encoded, contexts = layers.encode(sources)
        buffers, private = self.dense(sources, encoded)
        # A private copy can also hold the result; a user's tensor can only if the operation is in place.
        outputs = [b if in_place or own else adapter.empty_like(b) for b, own in zip(buffers, private, strict=True)]

        def finish(_: object) -> Any:
            results = layers.decode(outputs, contexts)
            if in_place:
                for source, result, own in zip(sources, results, private, strict=True):
                    if own:
                        adapter.copy_into(source, result)
                    else:
                        adapter.written(source)
                results = list(tensors)
            return results if group else results[0]

        return buffers, outputs, finish

    def allreduce_async(
        self,
        tensor: T,
        average: bool | None = None,
        name: Name = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
        *,
        backend: str | None = None,
        priority: int = 0,
    ) -> int:
        """Start :meth:`allreduce`; returns a handle for :func:`synchronize`. The tensor must not change until then.

        Args:
            tensor: any shape, the same shape and dtype on all ranks. Not modified.
            average: deprecated, use ``op``.
            name: identifies the tensor across ranks; generated from the program order when omitted.
            op: Average (the default), Sum, Min, Max or Product; for integers and bool also And, Or and Xor; for
                floating-point tensors also Adasum.
            prescale_factor: multiplies every rank's tensor before the reduction.
            postscale_factor: multiplies the result.
            process_set: the ranks that take part.
            backend: name of the backend, such as ``"shm"``; the same on all ranks. None: the selector chooses.
            priority: of the operations that the ranks agree on in one round, those with higher priorities run earlier;
                those with equal priorities run in the order in which the ranks first agreed on them. Operations that
                run already are not overtaken, and small operations are still fused. A 32-bit integer, the same on all
                ranks.

        Raises:
            MismatchError: shape, dtype, op, scales, backend or priority differ between ranks; names both ranks and both
                values. :func:`synchronize` raises it.
        """
        scales = (prescale_factor, postscale_factor)
        call = (name, resolve_op(op, average), scales, process_set)
        return self._reduce([tensor], *call, backend=backend, priority=priority)

    def allreduce(
        self,
        tensor: T,
        average: bool | None = None,
        name: Name = None,
        compression: AnyCompressor | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
        *,
        backend: str | None = None,
    ) -> T:
        """Reduce the ranks' tensors element by element; every rank gets the result.

        Args:
            tensor: any shape, the same shape and dtype on all ranks. Not modified.
            average: deprecated, use ``op``.
            name: identifies the tensor across ranks; generated from the program order when omitted.
            compression: a class of ``Compression``, the same on all ranks; None is ``Compression.none``.
            op: Average (the default), Sum, Min, Max or Product; for integers also the bitwise And, Or and Xor, which
                are logical for bool; for floating-point tensors also Adasum, which requires that the number of ranks is
                a power of two (:mod:`horocache.collectives.adasum`). Integers are added in their own type, so a sum may
                wrap around; averages of integers are truncated towards zero.
            prescale_factor: multiplies every rank's tensor before the reduction.
            postscale_factor: multiplies the result.
            process_set: the ranks that take part.
            backend: name of the backend, such as ``"shm"`` or, with an algorithm, ``"shm/twoshot"``; the same on all
                ranks. None: the selector chooses.

        Returns:
            A new tensor of the same shape and dtype, with the same bits on every rank.

        Raises:
            MismatchError: shape, dtype, op, scales, compression or backend differ between ranks; names both ranks and
                both values. UnsupportedError: the backend does not exist, or the op is not defined for the dtype.
                ValueError: both ``op`` and ``average`` are given. DuplicateNameError: an operation of this name is in
                flight. PeerLostError: a rank died. StallError: a rank did not submit the tensor in time. ShutDownError:
                a rank left the job. AbortedError: a rank aborted the job. NotInitializedError: before ``init``.
        """
        scales = (prescale_factor, postscale_factor)
        op = resolve_op(op, average)
        handle = self._reduce([tensor], name, op, scales, process_set, compression, wait_follows=True, backend=backend)
        result: T = synchronize(handle)
        return result

    def grouped_allreduce_async(
        self,
        tensors: Sequence[T],
        average: bool | None = None,
        name: Name = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
        *,
        backend: str | None = None,
        priority: int = 0,
    ) -> int:
        """Start :meth:`grouped_allreduce`; returns one handle for the whole group."""
        scales = (prescale_factor, postscale_factor)
        op = resolve_op(op, average)
        return self._reduce(tensors, name, op, scales, process_set, group=True, backend=backend, priority=priority)

    def grouped_allreduce(
        self,
        tensors: Sequence[T],
        average: bool | None = None,
        name: Name = None,
        compression: AnyCompressor | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
        *,
        backend: str | None = None,
    ) -> list[T]:
        """:meth:`allreduce` of several tensors as one group, which runs when all of it is ready on all ranks.

        Returns:
            New tensors, in the order of ``tensors``.
        """
        scales = (prescale_factor, postscale_factor)
        op = resolve_op(op, average)
        handle = self._reduce(
            tensors, name, op, scales, process_set, compression, group=True, wait_follows=True, backend=backend
        )
        result: list[T] = synchronize(handle)
        return result
