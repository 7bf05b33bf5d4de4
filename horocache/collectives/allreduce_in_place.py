"""In-place allreduce, once for all frameworks: the path of nearly all gradients."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any, TypeVar

from horocache.base.thread_names import counts_by_itself
from horocache.collectives.allreduce import Allreduce
from horocache.collectives.arguments import Name, check_list, check_numbers, full_name, set_id
from horocache.collectives.completion import synchronize
from horocache.collectives.reduce_op import RUNNABLE, Adasum, resolve_op
from horocache.core import context
from horocache.core.process_set import ProcessSet, global_process_set
from horocache.errors import HorocacheError, InvalidArgumentError

T = TypeVar("T")


class AllreduceInPlace(Allreduce[T]):
    """Allreduce that stores its results in its tensors. A base of :class:`horocache.collectives.api.Collectives`.

    Tensors that the core can read by itself go to the core as they are (the fast path). All others take the general
    path, :class:`~horocache.collectives.allreduce.Allreduce`.
    """

    def _in_place(
        self,
        tensor: T,
        average: bool | None,
        name: Name,
        op: Any,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
        wait_follows: bool,
        backend: str | None,
        priority: int = 0,
    ) -> int:
        """:meth:`_reduce` for one tensor in place: the path of most gradients, without any work that it can avoid."""
        if average is not None or type(op) is not int or op not in RUNNABLE:
            op = resolve_op(op, average, stacklevel=4)  # the user called allreduce_, which called this
        session = context.current()
        general = op == Adasum or session.logs_layers or (name is None and counts_by_itself())
        if type(tensor) is self._plain_type and not general:
            number = 0 if process_set is global_process_set else set_id(process_set)
            try:
                handle = session.runtime.allreduce_in_place(
                    tensor, name, op, prescale, postscale, wait_follows, number, backend, priority
                )
            except (TypeError, OverflowError):
                check_numbers((prescale, postscale), priority)
                raise
            if handle is not None:
                session.pending[handle] = (self._written, tensor)
                return handle
        scales = (prescale, postscale)
        call = (name, op, scales, process_set, None, True, False, wait_follows, backend, priority)
        return self._reduce([tensor], *call)

    def _group_in_place(
        self,
        tensors: Sequence[T],
        name: Name,
        op: int,
        scales: tuple[float, float],
        process_set: ProcessSet,
        wait_follows: bool,
        backend: str | None,
        priority: int = 0,
    ) -> int:
        """:meth:`_reduce` for a group in place, without Python code per tensor if the core can read all tensors."""
        session = context.current()
        if op != Adasum and not session.logs_layers and (name is not None or not counts_by_itself()):
            full = full_name("grouped_allreduce", name)
            number = set_id(process_set)
            call = (*scales, wait_follows, number, backend, priority)
            try:
                handle = session.runtime.allreduce_group_in_place(tensors, full, None, self._plain_type, op, *call)
            except (TypeError, OverflowError):
                check_numbers(scales, priority)
                raise
            if handle is not None:
                session.pending[handle] = (self._all_written, tuple(tensors))
                return handle
        return self._reduce(tensors, name, op, scales, process_set, None, True, True, wait_follows, backend, priority)

    def allreduce_async_(
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
        """Start :meth:`allreduce_`; returns a handle for :func:`synchronize`, which returns the tensor itself."""
        before, after = prescale_factor, postscale_factor
        return self._in_place(tensor, average, name, op, before, after, process_set, False, backend, priority)

    def allreduce_(
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
    ) -> T:
        """Store the result of :meth:`allreduce` in the tensor itself and return it; ValueError if it is read-only."""
        result: T = synchronize(
            self._in_place(tensor, average, name, op, prescale_factor, postscale_factor, process_set, True, backend)
        )
        return result

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
    ) -> list[int]:
        """Start :meth:`allreduce_` of several tensors in one call; each is an operation with its own name.

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
        if average is not None or type(op) is not int or op not in RUNNABLE:
            op = resolve_op(op, average)
        handles: list[int] = []
        call = (op, prescale_factor, postscale_factor, process_set, backend, priority)
        try:
            while len(handles) < len(tensors) and not self._start_each(tensors, names, handles, call):
                # The next tensor needs the general path.
                at = len(handles)
                name = None if names is None else names[at]
                handles.append(self._in_place(tensors[at], None, name, *call[:4], False, backend, priority))
        except HorocacheError as error:
            error.handles = handles
            raise
        return handles

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
        except (TypeError, OverflowError):
            check_numbers((prescale, postscale), priority)
            raise
        finally:
            # There are fewer handles than tensors if the core stopped early.
            session.pending.update(zip(handles[first:], zip(repeat(self._written), tensors[first:])))  # noqa: B905

    def grouped_allreduce_async_(
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
        """Start :meth:`grouped_allreduce_`; returns one handle for the whole group."""
        scales = (prescale_factor, postscale_factor)
        op = resolve_op(op, average)
        return self._group_in_place(tensors, name, op, scales, process_set, False, backend, priority)

    def grouped_allreduce_(
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
    ) -> list[T]:
        """Store the results of :meth:`grouped_allreduce` in the tensors themselves and return them."""
        scales = (prescale_factor, postscale_factor)
        op = resolve_op(op, average)
        handle = self._group_in_place(tensors, name, op, scales, process_set, True, backend)
        result: list[T] = synchronize(handle)
        return result
