"""Allreduce, once for all frameworks: every rank gets the element-wise reduction of all ranks' tensors."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any, TypeVar

from horocache.base.operation_codes import OP_ALLREDUCE
from horocache.base.request import Request
from horocache.base.thread_names import counts_by_itself
from horocache.collectives.adasum import AdaptiveSum
from horocache.collectives.arguments import REFUSED, Name, check_backend, check_list, check_numbers, full_name, set_id
from horocache.collectives.completion import Handle
from horocache.collectives.compression import is_codec
from horocache.collectives.encoded_sum import EncodedCall, EncodedSum
from horocache.collectives.forms import (
    AVERAGE,
    BACKEND,
    COMPRESSION_OF_ALLREDUCE,
    NAME,
    OP_WITH_ADASUM,
    POSTSCALE,
    PRESCALE,
    PRIORITY,
    PROCESS_SET,
    Collective,
    Text,
    forms,
)
from horocache.collectives.reduce_op import Adasum, ReduceOp, resolve_op
from horocache.collectives.submitter import Finisher
from horocache.collectives.transforms import AnyCompressor, LayerList, layer_list
from horocache.core import context
from horocache.core.process_set import ProcessSet, global_process_set
from horocache.errors import HorocacheError, InvalidArgumentError

T = TypeVar("T")

_RAISES = (
    "MismatchError: shape, dtype, op, scales, compression, backend or priority differ between ranks; names two ranks "
    "and both values.\n"
    "InvalidArgumentError: both ``op`` and ``average`` are given, or an argument is invalid on this rank.\n"
    "UnsupportedError: the backend does not exist, the tensor's device, layout or dtype is not supported, or the op is "
    "not defined for the dtype or the codec; or a codec needs a name or a package.\n"
    "CorruptError: a rank's encoded tensor is damaged; names the rank."
)
ALLREDUCE = Collective(
    "allreduce",
    "_allreduce",
    (AVERAGE, NAME, COMPRESSION_OF_ALLREDUCE, OP_WITH_ADASUM, PRESCALE, POSTSCALE, PROCESS_SET, BACKEND, PRIORITY),
    Text(
        summary="Reduce the ranks' tensors element by element; every rank gets the result.",
        tensor="any shape, the same shape and dtype on all ranks. Not modified.",
        returns="A new tensor of the same shape and dtype, with the same bits on every rank.",
        raises=_RAISES,
    ),
    in_place=Text(
        summary="Reduce the ranks' tensors element by element, and store the result in the tensor itself.",
        tensor="any shape, the same shape and dtype on all ranks; gets the result. A read-only tensor is an error.",
        returns="The tensor itself.",
        raises=_RAISES,
    ),
    start_in_place=("_allreduce_in_place", "_group_in_place"),
)


@forms(ALLREDUCE)
class Allreduce(AdaptiveSum[T], EncodedSum[T]):
    """Every rank gets the element-wise reduction. A base of :class:`horocache.collectives.operations.Collectives`.

    In place, tensors that the core can read by itself go to the core as they are (the fast path, which nearly all
    gradients take). All others take the general path.
    """

    def _allreduce(
        self,
        tensors: Sequence[Any],
        average: bool | None,
        name: Name,
        compression: AnyCompressor | None,
        op: int | None,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
        backend: str | None,
        priority: int,
        group: bool,
        in_place: bool,
        wait_follows: bool,
    ) -> int:
        op = resolve_op(op, average)
        call = (name, op, (prescale, postscale), process_set, compression)
        return self._reduce(tensors, *call, in_place, group, wait_follows, backend, priority)

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
        """Start an allreduce; the finisher returns a group's list of results, or the result of a single tensor."""
        kind = "grouped_allreduce" if group else "allreduce"
        if is_codec(compression):
            of = (compression, kind, name, full_name(kind, name), op, scales, process_set)
            handle = self.start_encoded(tensors, EncodedCall(*of, in_place, group, wait_follows, backend, priority))
            if handle is not None:
                return handle
            compression = None
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
            Request(
                OP_ALLREDUCE,
                inputs,
                outputs,
                full_name(kind, name),
                reduce_op=op,
                prescale=scales[0],
                postscale=scales[1],
                process_set=set_id(process_set),
                layers=layers.signature,
                group=group,
                wait_follows=wait_follows,
                backend=check_backend(backend),
                priority=priority,
            ),
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
        self.count_compressed(sources, encoded)
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

    # ---- in place

    def _allreduce_in_place(
        self,
        tensor: T,
        average: bool | None,
        name: Name,
        compression: AnyCompressor | None,
        op: Any,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
        backend: str | None,
        priority: int,
        wait_follows: bool,
    ) -> int:
        """Start one tensor in place: the path of most gradients, without any work that it can avoid."""
        if average is not None or type(op) is not ReduceOp:
            op = resolve_op(op, average)
        session = context.current()
        general = op == Adasum or session.logs_layers or (name is None and counts_by_itself())
        general = general or compression is not None
        if type(tensor) is self._plain_type and not general:
            number = 0 if process_set is global_process_set else set_id(process_set)
            try:
                handle = session.runtime.allreduce_in_place(
                    tensor, name, op, prescale, postscale, wait_follows, number, backend, priority
                )
            except REFUSED:
                check_numbers((prescale, postscale), priority)
                raise
            if handle is not None:
                session.pending[handle] = (self._written, tensor)
                return handle
        scales = (prescale, postscale)
        call = (name, op, scales, process_set, compression, True, False, wait_follows, backend, priority)
        return self._reduce([tensor], *call)

    def _group_in_place(
        self,
        tensors: Sequence[T],
        average: bool | None,
        name: Name,
        compression: AnyCompressor | None,
        op: int | None,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
        backend: str | None,
        priority: int,
        wait_follows: bool,
    ) -> int:
        """Start a group in place, without Python code per tensor if the core can read all tensors."""
        op = resolve_op(op, average)
        session = context.current()
        scales = (prescale, postscale)
        named = name is not None or not counts_by_itself()
        if op != Adasum and compression is None and named and not session.logs_layers:
            full = full_name("grouped_allreduce", name)
            number = set_id(process_set)
            call = (*scales, wait_follows, number, backend, priority)
            try:
                handle = session.runtime.allreduce_group_in_place(tensors, full, None, self._plain_type, op, *call)
            except REFUSED:
                check_numbers(scales, priority)
                raise
            if handle is not None:
                session.pending[handle] = (self._all_written, tuple(tensors))
                return handle
        more = (compression, True, True, wait_follows, backend, priority)
        return self._reduce(tensors, name, op, scales, process_set, *more)

    def allreduce_many_async_(
        self,
        tensors: Sequence[T],
        average: bool | None = None,
        names: Sequence[str | bytes] | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
        *,
        backend: str | None = None,
        priority: int = 0,
    ) -> list[Handle]:
        """Start the in-place allreduce of several tensors in one call; each is an operation with its own name.

        The effect is that of :meth:`allreduce_async_` in a loop, at a fraction of the cost: ranks may submit the
        tensors in any order and at any time, and tensors that are ready together are fused. For tensors that are always
        ready together, :meth:`grouped_allreduce_async_` costs even less.

        Args:
            tensors: a list or tuple of writable tensors, which get the results.
            average: deprecated, use ``op``.
            names: one for each tensor; generated from the program order when omitted.
            op: Average (the default), Sum, Min, Max or Product; for integers and bool also And, Or and Xor; for
                floating-point tensors also Adasum.
            prescale_factor: multiplies every rank's tensors before the reduction.
            postscale_factor: multiplies the results.
            process_set: the ranks that take part.
            backend: name of the backend, such as ``"shm"``; the same on all ranks. None: the selector chooses.
            priority: of the operations that the ranks agree on in one round, those with higher priorities run earlier.
                A 32-bit integer, the same on all ranks.

        Returns:
            Handles in the order of ``tensors``, for :func:`synchronize`, one by one or as a list.

        Raises:
            InvalidArgumentError: the number of names is not that of the tensors. HorocacheError: the first tensor that
                :meth:`allreduce_async_` refuses has its error; the tensors before it are in flight, and the error's
                ``handles`` has their handles.
        """
        check_list(tensors, "allreduce_many_async_")
        if names is not None and len(names) != len(tensors):
            raise InvalidArgumentError(f"{len(tensors)} tensors were given, with {len(names)} names.")
        if average is not None or type(op) is not ReduceOp:
            op = resolve_op(op, average)
        handles: list[int] = []
        call = (op, prescale_factor, postscale_factor, process_set, backend, priority)
        try:
            while len(handles) < len(tensors) and not self._start_each(tensors, names, handles, call):
                # The next tensor needs the general path.
                at = len(handles)
                name = None if names is None else names[at]
                handles.append(self._allreduce_in_place(tensors[at], None, name, None, *call, False))
        except HorocacheError as error:
            error.handles = list(map(Handle, handles))
            raise
        return list(map(Handle, handles))

    def _start_each(
        self, tensors: Sequence[T], names: Sequence[str | bytes] | None, handles: list[int], call: Any
    ) -> bool:
        """Start the tensors without a handle, up to the first that needs the general path; True if none does."""
        op, prescale, postscale, process_set, backend, priority = call
        session = context.current()
        if op == Adasum or session.logs_layers or (names is None and counts_by_itself()):
            return False
        first = len(handles)
        number = set_id(process_set)
        try:
            done: bool = session.runtime.allreduce_each_in_place(
                tensors, names, self._plain_type, handles, op, prescale, postscale, False, number, backend, priority
            )
            return done
        except REFUSED:
            check_numbers((prescale, postscale), priority)
            raise
        finally:
            # There are fewer handles than tensors if the core stopped early.
            session.pending.update(zip(handles[first:], zip(repeat(self._written), tensors[first:])))  # noqa: B905
